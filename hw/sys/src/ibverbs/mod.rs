//! libibverbs (`infiniband/verbs.h`).

mod functions;
mod gid;
mod inline;
mod newer;
mod numbers;
mod types;

pub use functions::*;
pub use inline::*;
pub use newer::*;
pub use numbers::*;
pub use types::*;

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// Network byte order.
pub type __be16 = u16;
/// Network byte order.
pub type __be32 = u32;
/// Network byte order.
pub type __be64 = u64;

/// The type of a function pointer that is never called.
pub type Unused = Option<unsafe extern "C" fn()>;

mod by_hand {
    use super::*;

    types! {
        struct ibv_async_event {
            element: ibv_async_event_element_t,
            event_type: c_int,
        }
        struct ibv_gid_entry {
            gid: ibv_gid,
            gid_index: u32,
            port_num: u32,
            gid_type: u32,
            ndev_ifindex: u32,
        }
    }
}

pub use by_hand::{ibv_async_event, ibv_gid_entry};

/// `ibv_gid_entry.gid_type`.
pub const IBV_GID_TYPE_ROCE_V2: u32 = 2;

/// `ibv_port_attr.link_layer`.
pub const IBV_LINK_LAYER_ETHERNET: u8 = 2;

/// The result of `ibv_rereg_mr` if the region was changed, but the old memory is still excluded from child
/// processes (`enum ibv_rereg_mr_err_code`).
pub const IBV_REREG_MR_ERR_DO_FORK_OLD: c_int = -3;

/// Converts the result of a verb that returns zero or an error number. Some older verbs return -1 and leave
/// the number in `errno`.
///
/// # Errors
/// The error that the verb returned.
pub fn check(answer: c_int) -> io::Result<()> {
    match answer {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        error => Err(io::Error::from_raw_os_error(error.abs())),
    }
}

/// Converts the result of a verb that returns an object, or null with the error number in `errno`.
///
/// # Errors
/// The error in `errno`, if the object is null.
pub fn made<T>(object: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(object).ok_or_else(io::Error::last_os_error)
}

/// Calls `ibv_query_gid_ex` or, if the library does not have it, `ibv_query_gid` and sysfs.
///
/// # Safety
/// The context is open.
///
/// # Errors
/// The error of the verb.
pub unsafe fn query_gid_ex(
    context: NonNull<ibv_context>,
    port_num: u8,
    index: u16,
) -> io::Result<ibv_gid_entry> {
    let Ok(query) = _ibv_query_gid_ex() else {
        // SAFETY: the caller guarantees that the context is open.
        return unsafe { gid::of_sysfs(context, port_num, index) };
    };
    let mut entry = MaybeUninit::<ibv_gid_entry>::zeroed();
    // SAFETY: the context is open, and the entry is writable and has the size passed.
    check(unsafe {
        query(
            context.as_ptr(),
            port_num.into(),
            index.into(),
            entry.as_mut_ptr(),
            0,
            size_of::<ibv_gid_entry>(),
        )
    })?;
    // SAFETY: the entry consists of integers, for which zero is valid.
    Ok(unsafe { entry.assume_init() })
}

/// Calls `ibv_get_async_event`, which blocks unless the descriptor is non-blocking.
///
/// # Safety
/// The context is open.
///
/// # Errors
/// The error of the verb.
pub unsafe fn get_async_event(context: NonNull<ibv_context>) -> io::Result<ibv_async_event> {
    let mut event = MaybeUninit::<ibv_async_event>::zeroed();
    // SAFETY: the context is open, and the event is writable.
    let answer = unsafe { ibv_get_async_event(context.as_ptr(), event.as_mut_ptr()) };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the verb has filled in the event; all zeroes would be valid too.
    Ok(unsafe { event.assume_init() })
}

/// Destroys a queue pair that was opened (`ibv_open_qp`), bypassing the provider: libmlx5 (of rdma-core 44,
/// and still of 64) would free memory that only a created queue pair has, and the process would crash. The
/// provider's own structure for the queue pair is not freed.
///
/// # Safety
/// The queue pair was opened, not created, and is destroyed only once.
///
/// # Errors
/// The error of the kernel, or that the function is [`Missing`](crate::Missing).
pub unsafe fn destroy_opened_qp(qp: NonNull<ibv_qp>) -> io::Result<()> {
    // All providers call this function.
    let destroy = ibv_cmd_destroy_qp()?;
    // SAFETY: the caller guarantees that the queue pair was opened and is destroyed only once.
    check(unsafe { destroy(qp.as_ptr()) })
}

#[cfg(test)]
pub(crate) use by_hand::TYPES as BY_HAND;
