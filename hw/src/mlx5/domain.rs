//! The parent domain that a queue is made in: its allocator gives the rings' memory, so that it stays
//! when the queue has gone; its thread domain gives a doorbell register.

use super::dv::resource;
use crate::error::Error;
use crate::pinned::Pinned;
use crate::verbs::{Pd, sys};
use std::ffi::c_void;
use std::io;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// `IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS`, `IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT`.
const ALLOCATORS_AND_CONTEXT: u32 = 1 | 2;

/// `IBV_ALLOCATOR_USE_DEFAULT`.
const USE_DEFAULT: usize = usize::MAX;

/// What the allocator has given.
type Memory = Mutex<Vec<Pinned>>;

/// A domain (`ibv_alloc_parent_domain`) for one queue. The queue is destroyed before it goes; its memory
/// is valid as long as this is there.
#[derive(Debug)]
pub(crate) struct Domain {
    handle: NonNull<sys::ibv_pd>,
    thread: Option<NonNull<sys::ibv_td>>,
    /// Not dropped where the device may still have it. In a box: the allocator knows its place.
    memory: ManuallyDrop<Box<Memory>>,
    pd: Arc<Pd>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

/// Whether the device has domains with allocators.
///
/// # Safety
/// The context is open.
pub(super) unsafe fn possible(context: NonNull<sys::ibv_context>) -> bool {
    // SAFETY: open; what is made is taken back. Nothing is allocated, for no queue is made.
    unsafe {
        let Ok(pd) = sys::made(sys::ibv_alloc_pd(context.as_ptr())) else {
            return false;
        };
        let parent = parent(context, pd, None, std::ptr::null_mut());
        if let Ok(parent) = parent {
            let _ = sys::ibv_dealloc_pd(parent.as_ptr());
        }
        let _ = sys::ibv_dealloc_pd(pd.as_ptr());
        parent.is_ok()
    }
}

/// # Safety
/// All is open; the list stays until the domain has gone, or no queue is made in it.
unsafe fn parent(
    context: NonNull<sys::ibv_context>,
    pd: NonNull<sys::ibv_pd>,
    thread: Option<NonNull<sys::ibv_td>>,
    list: *mut c_void,
) -> io::Result<NonNull<sys::ibv_pd>> {
    let mut attr = sys::ibv_parent_domain_init_attr {
        pd: pd.as_ptr(),
        td: thread.map_or(std::ptr::null_mut(), NonNull::as_ptr),
        comp_mask: ALLOCATORS_AND_CONTEXT,
        alloc: Some(allocate),
        free: Some(free),
        pd_context: list,
    };
    // SAFETY: the caller's promise.
    unsafe { sys::alloc_parent_domain(context, &mut attr) }
}

impl Domain {
    /// A domain of these keys. `register`: with a doorbell register of its own, if the device has one
    /// left.
    ///
    /// # Errors
    /// [`Error::Io`], where the device has no such domains.
    pub fn new(pd: &Arc<Pd>, register: bool) -> Result<Self, Error> {
        let context = pd.context().handle();
        let memory: Box<Memory> = Box::default();
        let thread = match register {
            // SAFETY: open.
            true => unsafe { sys::alloc_td(context) }.ok(),
            false => None,
        };
        let list = std::ptr::from_ref(&*memory).cast_mut().cast();
        // SAFETY: context and domains are open; the memory's list stays until the domain has gone.
        match unsafe { parent(context, pd.handle(), thread, list) } {
            Ok(handle) => Ok(Self {
                handle,
                thread,
                memory: ManuallyDrop::new(memory),
                pd: pd.clone(),
            }),
            Err(error) => {
                if let Some(thread) = thread {
                    // SAFETY: made above, and used by nobody.
                    let _ = unsafe { sys::dealloc_td(thread) };
                }
                Err(Error::io("allocate a parent domain", error))
            }
        }
    }

    /// What queues are made in.
    pub fn handle(&self) -> NonNull<sys::ibv_pd> {
        self.handle
    }

    /// Whether doorbells of its queues have a register of their own.
    pub fn has_register(&self) -> bool {
        self.thread.is_some()
    }

    /// Whether all of this is within memory that the allocator gave.
    pub fn owns(&self, start: NonNull<u8>, bytes: usize) -> bool {
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let start = start.addr().get();
        memory.iter().any(|memory| {
            let offset = start.checked_sub(memory.start().addr().get());
            offset.is_some_and(|offset| offset.saturating_add(bytes) <= memory.bytes())
        })
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        let _keys = &self.pd;
        // SAFETY: its queue has gone, or could not be destroyed: then this fails too.
        let answer = unsafe { sys::ibv_dealloc_pd(self.handle.as_ptr()) };
        if answer != 0 {
            // The device may still use it: it is never given back.
            return;
        }
        if let Some(thread) = self.thread {
            // SAFETY: no domain has it any more. Nothing can be done about an error.
            let _ = unsafe { sys::dealloc_td(thread) };
        }
        // SAFETY: once, here; the device has stopped.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
    }
}

/// # Safety
/// `list` is what the domain was made with.
unsafe extern "C" fn allocate(
    _: *mut sys::ibv_pd,
    list: *mut c_void,
    bytes: usize,
    align: usize,
    of: u64,
) -> *mut c_void {
    if !matches!(of, resource::QP | resource::SRQ | resource::DBR) {
        return std::ptr::without_provenance_mut(USE_DEFAULT);
    }
    let Some(memory) = Pinned::aligned(bytes, align) else {
        return std::ptr::null_mut();
    };
    let start = memory.start();
    // SAFETY: the caller's promise; the list is shared.
    let list = unsafe { &*list.cast::<Memory>() };
    list.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(memory);
    start.as_ptr().cast()
}

/// All memory goes with the domain.
extern "C" fn free(_: *mut sys::ibv_pd, _: *mut c_void, _: *mut c_void, _: u64) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_for_rings_and_records_and_stays() {
        let list = Memory::default();
        let place = std::ptr::from_ref(&list).cast_mut().cast();
        let ask = |bytes, align, of| {
            // SAFETY: the list is there.
            unsafe { allocate(std::ptr::null_mut(), place, bytes, align, of) }
        };
        for (bytes, align, of) in [
            (8192, 8192, resource::QP),
            (4096, 4096, resource::SRQ),
            (8, 8, resource::DBR),
        ] {
            let given = ask(bytes, align, of).cast::<u8>();
            assert!(given.addr().is_multiple_of(align));
            // SAFETY: just given, and of this size.
            let given = unsafe { std::slice::from_raw_parts_mut(given, bytes) };
            assert!(given.iter().all(|&byte| byte == 0));
            given.fill(1);
            free(std::ptr::null_mut(), place, given.as_mut_ptr().cast(), of);
            assert!(given.iter().all(|&byte| byte == 1), "still there");
        }
        assert_eq!(list.lock().unwrap().len(), 3);
        let other = ask(4096, 4096, resource::QP + 1);
        assert_eq!(other.addr(), USE_DEFAULT);
        assert!(ask(4096, 3, resource::QP).is_null(), "no such alignment");
        assert!(ask(usize::MAX, 4096, resource::QP).is_null());
    }
}
