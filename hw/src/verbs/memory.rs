//! Protection domains, memory regions and memory windows.

use super::context::{Context, Window};
use super::sys;
use crate::error::Error;
use crate::memory;
use bellwire_core::access::AccessFlags;
use bellwire_core::wr::MwType;
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

    pub(super) fn handle(&self) -> NonNull<sys::ibv_pd> {
        self.handle
    }

    pub(super) fn context(&self) -> &Arc<Context> {
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
    /// Registers memory; gives lkey and rkey.
    ///
    /// # Safety
    /// The memory is valid until the region is deregistered, and is used as the flags say.
    pub(crate) unsafe fn register_mr(
        &self,
        pd: &Pd,
        addr: u64,
        length: u64,
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
                addr,
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
        // SAFETY: just made.
        let (lkey, rkey) = unsafe { (mr.as_ref().lkey, mr.as_ref().rkey) };
        self.tables().mrs.insert(lkey, mr);
        Ok((lkey, rkey))
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

    /// Frees a window. One that went with its region is not there any more.
    pub(crate) fn dealloc_mw(&self, rkey: u32) {
        let window = self.tables().windows.remove(&(rkey >> 8));
        if let Some(window) = window {
            // SAFETY: taken out of the table, so it goes once. Nothing can be done about an error.
            let _ = unsafe { sys::ibv_dealloc_mw(window.mw.as_ptr()) };
        }
    }
}
