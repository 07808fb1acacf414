//! Protection domains, memory regions and memory windows.

use super::context::{Context, Window};
use super::sys;
use crate::error::Error;
use bellwire_core::access::AccessFlags;
use bellwire_core::wr::MwType;
use bellwire_memory as memory;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// A protection domain (`ibv_pd`). Every object in it keeps it alive.
#[derive(Debug)]
pub struct Pd {
    handle: NonNull<sys::ibv_pd>,
    context: Arc<Context>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Pd {}
// SAFETY: libibverbs may be called from any thread.
unsafe impl Sync for Pd {}

impl Pd {
    /// # Errors
    /// The system's error number.
    pub fn new(context: &Arc<Context>) -> Result<Self, i32> {
        // SAFETY: the context is open.
        let handle = sys::made(unsafe { sys::ibv_alloc_pd(context.handle().as_ptr()) })
            .map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
        Ok(Self {
            handle,
            context: context.clone(),
        })
    }

    /// The handle of libibverbs.
    pub fn handle(&self) -> NonNull<sys::ibv_pd> {
        self.handle
    }

    /// The context that the domain belongs to.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // A child of fork leaves what belongs to its parent as it is.
        if self.context.is_inherited() {
            return;
        }
        // Dropped address handles that are still kept belong to the domain.
        self.context.ahs.forget(self.handle);
        // SAFETY: everything in the domain has been destroyed. An error (EIO) cannot be handled.
        let _ = unsafe { sys::ibv_dealloc_pd(self.handle.as_ptr()) };
    }
}

impl Context {
    /// Registers memory that requests address from `iova` on; returns lkey and rkey.
    ///
    /// # Safety
    /// The memory is valid until the region is deregistered, and is used as the access flags allow.
    pub unsafe fn register_mr(
        &self,
        pd: &Pd,
        addr: u64,
        length: u64,
        iova: u64,
        access: AccessFlags,
    ) -> Result<(u32, u32), Error> {
        self.check_alive()?;
        let start = std::ptr::with_exposed_provenance_mut(addr as usize);
        let (domain, length_here, bits) = (pd.handle.as_ptr(), length as usize, access.bits());
        let mr = match sys::ibv_reg_mr_iova2() {
            // This version accepts optional access flags such as RELAXED_ORDERING, and ignores flags that an
            // older kernel does not know.
            // SAFETY: the caller guarantees that the memory stays valid.
            Ok(register) => unsafe { register(domain, start, length_here, iova, bits) },
            // What every version of libibverbs has: without optional flags, and without an address of its
            // own.
            Err(_) if iova == addr && bits >> 20 == 0 => {
                // SAFETY: the caller guarantees that the memory stays valid.
                unsafe { sys::ibv_reg_mr(domain, start, length_here, bits as i32) }
            }
            Err(missing) => return Err(super::missing(missing)),
        };
        let mr = sys::made(mr);
        let mr = mr.map_err(|error| match error.raw_os_error() {
            Some(libc::ENOMEM) => match memory::pin_limit(length) {
                Some(limit) => Error::Memory(limit),
                None => Error::io("register memory", error),
            },
            // The kernel does not say which page it is.
            Some(libc::EFAULT) => {
                let how = memory::Use::writing(access.contains(AccessFlags::LOCAL_WRITE));
                match memory::probe(addr as usize, length_here, how) {
                    Err(no_access) => Error::Memory(no_access),
                    Ok(()) => Error::io("register memory", error),
                }
            }
            _ => Error::io("register memory", error),
        })?;
        Ok(self.registered(mr))
    }

    /// Records a region that was just registered; returns lkey and rkey.
    fn registered(&self, mr: NonNull<sys::ibv_mr>) -> (u32, u32) {
        // SAFETY: the region was just registered.
        let (lkey, rkey) = unsafe { (mr.as_ref().lkey, mr.as_ref().rkey) };
        self.tables().mrs.insert(lkey, mr);
        (lkey, rkey)
    }

    /// Registers the memory of a dma-buf; returns lkey and rkey.
    pub fn register_dmabuf(
        &self,
        pd: &Pd,
        dmabuf: BorrowedFd<'_>,
        offset: u64,
        length: u64,
        iova: u64,
        access: AccessFlags,
    ) -> Result<(u32, u32), Error> {
        self.check_alive()?;
        let (fd, access) = (dmabuf.as_raw_fd(), access.bits() as i32);
        let register = sys::ibv_reg_dmabuf_mr().map_err(super::missing)?;
        // SAFETY: the domain is alive, and the descriptor is open. The memory is the dma-buf's.
        let mr = sys::made(unsafe {
            register(
                pd.handle.as_ptr(),
                offset,
                length as usize,
                iova,
                fd,
                access,
            )
        });
        let mr = mr.map_err(|error| Error::io("register a dma-buf", error))?;
        Ok(self.registered(mr))
    }

    /// Changes those attributes of a region that are given; returns lkey and rkey, which may have changed.
    ///
    /// # Safety
    /// That of [`register_mr`](Self::register_mr), and no request uses the region during the call.
    pub unsafe fn reregister_mr(
        &self,
        lkey: u32,
        pd: Option<&Arc<Pd>>,
        memory: Option<(u64, u64)>,
        access: Option<AccessFlags>,
    ) -> Result<(u32, u32), Error> {
        use sys::ibv_rereg_mr_flags as F;
        self.check_alive()?;
        let mut tables = self.tables();
        let Some(&mr) = tables.mrs.get(&lkey) else {
            return Err(Error::UnknownKey { key: lkey });
        };
        let flags = [
            (memory.is_some(), F::IBV_REREG_MR_CHANGE_TRANSLATION),
            (pd.is_some(), F::IBV_REREG_MR_CHANGE_PD),
            (access.is_some(), F::IBV_REREG_MR_CHANGE_ACCESS),
        ];
        let flags = flags.map(|(changes, flag)| if changes { flag.0 } else { 0 });
        let (addr, length) = memory.unwrap_or((0, 0));
        // SAFETY: the region is in the table, so it is registered; the caller guarantees that the memory
        // stays valid, and that no request uses the region.
        let answer = unsafe {
            sys::ibv_rereg_mr(
                mr.as_ptr(),
                flags.iter().sum::<u32>() as i32,
                pd.map_or(std::ptr::null_mut(), |pd| pd.handle.as_ptr()),
                std::ptr::with_exposed_provenance_mut(addr as usize),
                length as usize,
                access.map_or(0, |access| access.bits() as i32),
            )
        };
        // The region was changed; only the old memory is still kept from child processes.
        const ONLY_FORK: i32 = sys::IBV_REREG_MR_ERR_DO_FORK_OLD;
        if answer != 0 && answer != ONLY_FORK {
            return Err(Error::io("re-register memory", io::Error::last_os_error()));
        }
        // SAFETY: the region is registered.
        let keys = unsafe { (mr.as_ref().lkey, mr.as_ref().rkey) };
        tables.mrs.remove(&lkey);
        tables.mrs.insert(keys.0, mr);
        for window in tables.windows.values_mut() {
            if window.bound == Some(lkey) {
                window.bound = Some(keys.0);
            }
        }
        Ok(keys)
    }

    /// Deregisters a region; fails if windows are bound to it.
    pub fn deregister_unbound(&self, lkey: u32) -> Result<(), Error> {
        let mut tables = self.tables();
        let Some(&mr) = tables.mrs.get(&lkey) else {
            return Err(Error::UnknownKey { key: lkey });
        };
        // SAFETY: the region is in the table, so it is registered.
        match sys::check(unsafe { sys::ibv_dereg_mr(mr.as_ptr()) }) {
            Ok(()) => {
                tables.mrs.remove(&lkey);
                Ok(())
            }
            Err(error) => {
                let bound = |window: &&Window| window.bound == Some(lkey);
                match tables.windows.values().filter(bound).count() {
                    0 => Err(Error::io("deregister memory", error)),
                    windows => Err(Error::WindowsBound { windows }),
                }
            }
        }
    }

    /// Deregisters a region, and deallocates the windows that are bound to it.
    pub fn deregister_mr(&self, lkey: u32) -> Result<(), Error> {
        let Err(error) = self.deregister_unbound(lkey) else {
            return Ok(());
        };
        let mut tables = self.tables();
        let bound = |_: &u32, window: &mut Window| window.bound == Some(lkey);
        let windows: Vec<_> = tables.windows.extract_if(bound).collect();
        drop(tables);
        if windows.is_empty() {
            return Err(error);
        }
        for (_, window) in windows {
            // SAFETY: the window was removed from the table, so it is deallocated once.
            let _ = unsafe { sys::ibv_dealloc_mw(window.mw.as_ptr()) };
        }
        self.deregister_unbound(lkey)
    }

    /// Allocates a memory window, and returns its rkey.
    pub fn alloc_mw(&self, pd: &Pd, kind: MwType) -> Result<u32, Error> {
        self.check_alive()?;
        // SAFETY: the domain is alive.
        let mw = sys::made(unsafe { sys::ibv_alloc_mw(pd.handle.as_ptr(), kind.number().into()) })
            .map_err(|error| Error::io("allocate a memory window", error))?;
        // SAFETY: the window was just allocated.
        let rkey = unsafe { mw.as_ref().rkey };
        self.tables()
            .windows
            .insert(rkey >> 8, Window { mw, bound: None });
        Ok(rkey)
    }

    /// Records that a window is to be bound to this region, or to none.
    pub fn note_bind(&self, rkey: u32, lkey: Option<u32>) {
        if let Some(window) = self.tables().windows.get_mut(&(rkey >> 8)) {
            window.bound = lkey;
        }
    }

    /// Deallocates a window, unless that was done when its region was deregistered.
    pub fn dealloc_mw(&self, rkey: u32) {
        let window = self.tables().windows.remove(&(rkey >> 8));
        if let Some(window) = window {
            // SAFETY: the window was removed from the table, so it is deallocated once. An error cannot be
            // handled.
            let _ = unsafe { sys::ibv_dealloc_mw(window.mw.as_ptr()) };
        }
    }
}
