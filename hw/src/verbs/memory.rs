//! Protection domains, memory regions and memory windows.

use super::context::{Context, Window};
use super::sys;
use crate::error::Error;
use crate::memory;
use bellwire_core::access::AccessFlags;
use bellwire_core::wr::MwType;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// A protection domain (`ibv_pd`). What is in it keeps it alive.
#[derive(Debug)]
pub(crate) struct Pd {
    handle: NonNull<sys::ibv_pd>,
    context: Arc<Context>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Pd {}
// SAFETY: as above.
unsafe impl Sync for Pd {}

impl Pd {
    /// # Errors
    /// The number of the system's error.
    pub fn new(context: &Arc<Context>) -> Result<Self, i32> {
        // SAFETY: open.
        let handle = sys::made(unsafe { sys::ibv_alloc_pd(context.handle().as_ptr()) })
            .map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
        Ok(Self {
            handle,
            context: context.clone(),
        })
    }

    pub(crate) fn handle(&self) -> NonNull<sys::ibv_pd> {
        self.handle
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // Address handles that are kept for a while belong to it.
        self.context.ahs.forget(self.handle);
        // SAFETY: everything in it has gone. Nothing can be done about an error (EIO).
        let _ = unsafe { sys::ibv_dealloc_pd(self.handle.as_ptr()) };
    }
}

impl Context {
    /// Registers memory, named by addresses from `iova` on; gives lkey and rkey.
    ///
    /// # Safety
    /// The memory is valid until the region is deregistered, and is used as the flags say.
    pub(crate) unsafe fn register_mr(
        &self,
        pd: &Pd,
        addr: u64,
        length: u64,
        iova: u64,
        access: AccessFlags,
    ) -> Result<(u32, u32), Error> {
        self.check_alive()?;
        let start = std::ptr::with_exposed_provenance_mut(addr as usize);
        // The version that takes optional rights, such as RELAXED_ORDERING, and leaves those out
        // that an older kernel does not know.
        // SAFETY: the caller's promise.
        let mr = sys::made(unsafe {
            sys::ibv_reg_mr_iova2(
                pd.handle.as_ptr(),
                start,
                length as usize,
                iova,
                access.bits(),
            )
        });
        let mr = mr.map_err(|error| match error.raw_os_error() {
            Some(libc::ENOMEM) => match memory::pin_limit(length) {
                Some(limit) => Error::Memory(limit),
                None => Error::io("register memory", error),
            },
            _ => Error::io("register memory", error),
        })?;
        Ok(self.registered(mr))
    }

    /// Notes a region that was just made; gives lkey and rkey.
    fn registered(&self, mr: NonNull<sys::ibv_mr>) -> (u32, u32) {
        // SAFETY: just made.
        let (lkey, rkey) = unsafe { (mr.as_ref().lkey, mr.as_ref().rkey) };
        self.tables().mrs.insert(lkey, mr);
        (lkey, rkey)
    }

    /// Registers memory that a dma-buf stands for; gives lkey and rkey.
    pub(crate) fn register_dmabuf(
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
        // SAFETY: the domain is alive, the descriptor open. The memory is the dma-buf's.
        let mr = sys::made(unsafe {
            sys::ibv_reg_dmabuf_mr(
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

    /// Changes a region, as far as something is named; gives lkey and rkey, which may be others now.
    ///
    /// # Safety
    /// As [`register_mr`](Self::register_mr), and no request names the region meanwhile.
    pub(crate) unsafe fn reregister_mr(
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
        // SAFETY: in the table, so it was not deregistered; the caller's promise.
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
        // The region is the new one, and the old memory still kept from children.
        const ONLY_FORK: i32 = sys::ibv_rereg_mr_err_code::IBV_REREG_MR_ERR_DO_FORK_OLD;
        if answer != 0 && answer != ONLY_FORK {
            return Err(Error::io("re-register memory", io::Error::last_os_error()));
        }
        // SAFETY: alive, as above.
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

    /// Takes a region's keys back, unless windows are bound to it.
    pub(crate) fn deregister_unbound(&self, lkey: u32) -> Result<(), Error> {
        let mut tables = self.tables();
        let Some(&mr) = tables.mrs.get(&lkey) else {
            return Err(Error::UnknownKey { key: lkey });
        };
        // SAFETY: in the table, so it was not deregistered yet.
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

    /// Takes a region's keys back, and the windows that are bound to it.
    pub(crate) fn deregister_mr(&self, lkey: u32) -> Result<(), Error> {
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
            // SAFETY: taken out of the table, so it goes once.
            let _ = unsafe { sys::ibv_dealloc_mw(window.mw.as_ptr()) };
        }
        self.deregister_unbound(lkey)
    }

    /// Allocates a window, and gives its key.
    pub(crate) fn alloc_mw(&self, pd: &Pd, kind: MwType) -> Result<u32, Error> {
        self.check_alive()?;
        // SAFETY: the domain is alive.
        let mw = unsafe { sys::ibv_alloc_mw(pd.handle.as_ptr(), kind.number().into()) };
        let mw = sys::made(mw.unwrap_or(std::ptr::null_mut()))
            .map_err(|error| Error::io("allocate a memory window", error))?;
        // SAFETY: just made.
        let rkey = unsafe { mw.as_ref().rkey };
        self.tables()
            .windows
            .insert(rkey >> 8, Window { mw, bound: None });
        Ok(rkey)
    }

    /// A window is to be bound to this region, or to nothing.
    #[cfg(feature = "mlx5")]
    pub(crate) fn note_bind(&self, rkey: u32, lkey: Option<u32>) {
        if let Some(window) = self.tables().windows.get_mut(&(rkey >> 8)) {
            window.bound = lkey;
        }
    }

    /// Frees a window. One that went with its region is not there any more.
    pub(crate) fn dealloc_mw(&self, rkey: u32) {
        let window = self.tables().windows.remove(&(rkey >> 8));
        if let Some(window) = window {
            // SAFETY: taken out of the table, so it goes once. Nothing can be done about an error.
            let _ = unsafe { sys::ibv_dealloc_mw(window.mw.as_ptr()) };
        }
    }
}
