//! The parent domain that a queue is created in. Its allocator provides the memory of the rings, so that they
//! outlive the queue; its thread domain provides a doorbell register.

use crate::error::Error;
use crate::pinned::Pinned;
use bellwire_verbs::mlx5dv::resource;
use bellwire_verbs::{Pd, sys};
use std::ffi::c_void;
use std::io;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// `IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS`, `IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT`.
const ALLOCATORS_AND_CONTEXT: u32 = 1 | 2;

/// `IBV_ALLOCATOR_USE_DEFAULT`.
const USE_DEFAULT: usize = usize::MAX;

/// The memory that the allocator has provided.
type Memory = Mutex<Vec<Pinned>>;

/// A parent domain (`ibv_alloc_parent_domain`) for one queue. The queue must be destroyed before the domain
/// is dropped; the memory of its rings is valid until then.
#[derive(Debug)]
pub struct Domain {
    handle: NonNull<sys::ibv_pd>,
    thread: Option<NonNull<sys::ibv_td>>,
    /// Not freed if the device may still use it. Boxed, since the allocator keeps a pointer to it.
    memory: ManuallyDrop<Box<Memory>>,
    pd: Arc<Pd>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Domain {}
// SAFETY: libibverbs may be called from any thread.
unsafe impl Sync for Domain {}

/// Whether the device supports parent domains with allocators.
///
/// # Safety
/// The context is open.
pub(super) unsafe fn possible(context: NonNull<sys::ibv_context>) -> bool {
    // SAFETY: the context is open, and what is allocated is freed again. The allocator is not called, since
    // no queue is created.
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
/// Context and domains are open; the list stays until the domain is deallocated, unless no queue is created
/// in it.
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
    // SAFETY: the caller guarantees that context and domains are open, and that the list stays.
    unsafe { sys::alloc_parent_domain(context, &mut attr) }
}

impl Domain {
    /// Creates a parent domain of this protection domain. `register`: with a doorbell register of its own, if
    /// the device has one left.
    ///
    /// # Errors
    /// [`Error::Io`]: the device does not support such domains.
    pub fn new(pd: &Arc<Pd>, register: bool) -> Result<Self, Error> {
        let context = pd.context().handle();
        let memory: Box<Memory> = Box::default();
        let thread = match register {
            // SAFETY: the context is open.
            true => unsafe { sys::alloc_td(context) }.ok(),
            false => None,
        };
        let list = std::ptr::from_ref(&*memory).cast_mut().cast();
        // SAFETY: context and domains are open; the list stays until the domain is deallocated.
        match unsafe { parent(context, pd.handle(), thread, list) } {
            Ok(handle) => Ok(Self {
                handle,
                thread,
                memory: ManuallyDrop::new(memory),
                pd: pd.clone(),
            }),
            Err(error) => {
                if let Some(thread) = thread {
                    // SAFETY: the thread domain was allocated above, and nothing uses it.
                    let _ = unsafe { sys::dealloc_td(thread) };
                }
                Err(Error::io("allocate a parent domain", error))
            }
        }
    }

    /// The handle of libibverbs, to create queues in.
    pub fn handle(&self) -> NonNull<sys::ibv_pd> {
        self.handle
    }

    /// Whether the queues in it have a doorbell register of their own.
    pub fn has_register(&self) -> bool {
        self.thread.is_some()
    }

    /// Whether these bytes are within memory that the allocator provided.
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
        // A child of fork leaves what belongs to its parent as it is.
        if self.pd.context().is_inherited() {
            return;
        }
        let _keys = &self.pd;
        // SAFETY: the queue in it was destroyed; if destroying it failed, this fails, too.
        let answer = unsafe { sys::ibv_dealloc_pd(self.handle.as_ptr()) };
        if answer != 0 {
            // The device may still use the memory: it is never freed.
            return;
        }
        if let Some(thread) = self.thread {
            // SAFETY: no domain uses the thread domain any longer. An error cannot be handled.
            let _ = unsafe { sys::dealloc_td(thread) };
        }
        // SAFETY: dropped only here; the device no longer uses the memory.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
    }
}

/// # Safety
/// `list` is the pointer that the domain was created with.
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
    // SAFETY: the caller guarantees that `list` is the domain's; it is only shared.
    let list = unsafe { &*list.cast::<Memory>() };
    list.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(memory);
    start.as_ptr().cast()
}

/// Does nothing: all memory is freed with the domain.
extern "C" fn free(_: *mut sys::ibv_pd, _: *mut c_void, _: *mut c_void, _: u64) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_for_rings_and_records_and_stays() {
        let list = Memory::default();
        let place = std::ptr::from_ref(&list).cast_mut().cast();
        let ask = |bytes, align, of| {
            // SAFETY: the list is alive.
            unsafe { allocate(std::ptr::null_mut(), place, bytes, align, of) }
        };
        for (bytes, align, of) in [
            (8192, 8192, resource::QP),
            (4096, 4096, resource::SRQ),
            (8, 8, resource::DBR),
        ] {
            let given = ask(bytes, align, of).cast::<u8>();
            assert!(given.addr().is_multiple_of(align));
            // SAFETY: the memory was just allocated with this size.
            let given = unsafe { std::slice::from_raw_parts_mut(given, bytes) };
            assert!(given.iter().all(|&byte| byte == 0));
            given.fill(1);
            free(std::ptr::null_mut(), place, given.as_mut_ptr().cast(), of);
            assert!(given.iter().all(|&byte| byte == 1), "still there");
        }
        assert_eq!(list.lock().unwrap().len(), 3);
        let other = ask(4096, 4096, resource::QP + 1);
        assert_eq!(other.addr(), USE_DEFAULT);
        assert!(
            ask(4096, 3 << 12, resource::QP).is_null(),
            "no such alignment"
        );
        assert!(ask(usize::MAX, 4096, resource::QP).is_null());
    }
}
