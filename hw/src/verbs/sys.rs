//! libibverbs as C sees it: the declarations of `rdma-sys`, and in their stead those of ours where
//! they are wrong.
//!
//! - Newer verbs are reached through the table in front of the context, whose presence `rdma-sys`
//!   looks for by comparing a pointer with 32 bits: on 64 bits it never finds it.
//! - A number that a newer library gives an asynchronous event is none of `rdma-sys`'s enum: it has
//!   to be read as a number.
//! - Ports' attributes are to be zeroed before an older library fills in what it knows of.
//! - `_ibv_query_gid_ex` is missing.
//! - Its `ibv_create_srq_ex` gives a queue for XRC to the older verb, and its `ibv_close_xrcd` panics.

pub(crate) use rdma_sys::*;

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::{MaybeUninit, offset_of, transmute};
use std::ptr::NonNull;
use std::sync::LazyLock;

/// `struct ibv_async_event`.
#[repr(C)]
pub(crate) struct AsyncEvent {
    pub element: ibv_async_event_element_t,
    /// `enum ibv_event_type`, which grows.
    pub event_type: c_int,
}

/// `struct ibv_gid_entry`.
#[repr(C)]
pub(crate) struct GidEntry {
    pub gid: ibv_gid,
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}

/// `IBV_GID_TYPE_ROCE_V2`.
pub(crate) const GID_TYPE_ROCE_V2: u32 = 2;

/// `IBV_LINK_LAYER_ETHERNET`.
pub(crate) const LINK_LAYER_ETHERNET: u8 = 2;

unsafe extern "C" {
    fn _ibv_query_gid_ex(
        context: *mut ibv_context,
        port_num: u32,
        gid_index: u32,
        entry: *mut GidEntry,
        flags: u32,
        entry_size: usize,
    ) -> c_int;
}

/// What a verb that returns zero or an error number said. Some older ones return -1, and the number
/// by errno.
pub(crate) fn check(answer: c_int) -> io::Result<()> {
    match answer {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        error => Err(io::Error::from_raw_os_error(error.abs())),
    }
}

/// What a verb that returns an object, or null and an error number in errno, said.
pub(crate) fn made<T>(object: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(object).ok_or_else(io::Error::last_os_error)
}

/// The table in front of a context (`verbs_get_ctx`); older libraries have none.
///
/// # Safety
/// The context is open.
unsafe fn table(context: NonNull<ibv_context>) -> Option<NonNull<verbs_context>> {
    // SAFETY: the caller's promise.
    let mark = unsafe { (*context.as_ptr()).abi_compat };
    let is_inside = mark.addr() == usize::MAX;
    // SAFETY: marked so, the context is the last part of a `verbs_context`.
    is_inside.then(|| unsafe { context.byte_sub(offset_of!(verbs_context, context)).cast() })
}

/// A verb of that table (`verbs_get_ctx_op`), if the library and the device have it. It counts its
/// size from the end: what is new stands in front.
macro_rules! newer {
    ($context:expr, $verb:ident) => {
        // SAFETY: the context is open, by the caller's promise; a table of this size has the field.
        unsafe {
            table($context).and_then(|table| {
                let table = table.as_ptr();
                let reaches = size_of::<verbs_context>() - offset_of!(verbs_context, $verb);
                if (*table).sz < reaches {
                    return None;
                }
                (*table).$verb
            })
        }
    };
}

fn unsupported() -> io::Error {
    io::Error::from_raw_os_error(libc::EOPNOTSUPP)
}

/// `ibv_query_port`, of the present version.
///
/// # Safety
/// The context is open.
pub(crate) unsafe fn query_port(
    context: NonNull<ibv_context>,
    port_num: u8,
) -> io::Result<ibv_port_attr> {
    let mut attr = MaybeUninit::<ibv_port_attr>::zeroed();
    let answer = match newer!(context, query_port) {
        // SAFETY: the context is open, and the attributes have the size that is said.
        Some(verb) => unsafe {
            verb(
                context.as_ptr(),
                port_num,
                attr.as_mut_ptr(),
                size_of::<ibv_port_attr>(),
            )
        },
        // SAFETY: as above; the old attributes are the first part of the new ones.
        None => unsafe { ibv_query_port(context.as_ptr(), port_num, attr.as_mut_ptr().cast()) },
    };
    check(answer)?;
    // SAFETY: numbers only, which zeroes are values of.
    Ok(unsafe { attr.assume_init() })
}

/// `ibv_query_gid_ex`.
///
/// # Safety
/// The context is open.
pub(crate) unsafe fn query_gid_ex(
    context: NonNull<ibv_context>,
    port_num: u8,
    index: u16,
) -> io::Result<GidEntry> {
    let mut entry = MaybeUninit::<GidEntry>::zeroed();
    // SAFETY: the context is open, and the entry has the size that is said.
    check(unsafe {
        _ibv_query_gid_ex(
            context.as_ptr(),
            port_num.into(),
            index.into(),
            entry.as_mut_ptr(),
            0,
            size_of::<GidEntry>(),
        )
    })?;
    // SAFETY: numbers only, which zeroes are values of.
    Ok(unsafe { entry.assume_init() })
}

/// `ibv_create_cq_ex`.
///
/// # Safety
/// Context and channel are open.
pub(crate) unsafe fn create_cq_ex(
    context: NonNull<ibv_context>,
    attr: &mut ibv_cq_init_attr_ex,
) -> io::Result<NonNull<ibv_cq_ex>> {
    let verb = newer!(context, create_cq_ex).ok_or_else(unsupported)?;
    // SAFETY: the caller's promise.
    made(unsafe { verb(context.as_ptr(), attr) })
}

/// `ibv_create_qp_ex`.
///
/// # Safety
/// The context, and what the attributes name, are open.
pub(crate) unsafe fn create_qp_ex(
    context: NonNull<ibv_context>,
    attr: &mut ibv_qp_init_attr_ex,
) -> io::Result<NonNull<ibv_qp>> {
    let verb = newer!(context, create_qp_ex).ok_or_else(unsupported)?;
    // SAFETY: the caller's promise.
    made(unsafe { verb(context.as_ptr(), attr) })
}

/// `ibv_alloc_td`.
///
/// # Safety
/// The context is open.
#[cfg(feature = "mlx5")]
pub(crate) unsafe fn alloc_td(context: NonNull<ibv_context>) -> io::Result<NonNull<ibv_td>> {
    let verb = newer!(context, alloc_td).ok_or_else(unsupported)?;
    let mut attr = ibv_td_init_attr { comp_mask: 0 };
    // SAFETY: the caller's promise.
    made(unsafe { verb(context.as_ptr(), &raw mut attr) })
}

/// `ibv_dealloc_td`.
///
/// # Safety
/// The domain is alive, and goes once; its context is open.
#[cfg(feature = "mlx5")]
pub(crate) unsafe fn dealloc_td(td: NonNull<ibv_td>) -> io::Result<()> {
    // SAFETY: the caller's promise.
    let context = NonNull::new(unsafe { (*td.as_ptr()).context }).ok_or_else(unsupported)?;
    let verb = newer!(context, dealloc_td).ok_or_else(unsupported)?;
    // SAFETY: the caller's promise.
    check(unsafe { verb(td.as_ptr()) })
}

/// `ibv_alloc_parent_domain`.
///
/// # Safety
/// The context, and what the attributes name, are open.
#[cfg(feature = "mlx5")]
pub(crate) unsafe fn alloc_parent_domain(
    context: NonNull<ibv_context>,
    attr: &mut ibv_parent_domain_init_attr,
) -> io::Result<NonNull<ibv_pd>> {
    let verb = newer!(context, alloc_parent_domain).ok_or_else(unsupported)?;
    // SAFETY: the caller's promise.
    made(unsafe { verb(context.as_ptr(), attr) })
}

/// `ibv_open_xrcd`.
///
/// # Safety
/// The context is open.
pub(crate) unsafe fn open_xrcd(
    context: NonNull<ibv_context>,
    attr: &mut ibv_xrcd_init_attr,
) -> io::Result<NonNull<ibv_xrcd>> {
    let verb = newer!(context, open_xrcd).ok_or_else(unsupported)?;
    // SAFETY: the caller's promise.
    made(unsafe { verb(context.as_ptr(), attr) })
}

/// `ibv_close_xrcd`.
///
/// # Safety
/// The domain is open, and is closed once; its context is open.
pub(crate) unsafe fn close_xrcd(xrcd: NonNull<ibv_xrcd>) -> io::Result<()> {
    // SAFETY: the caller's promise.
    let context = NonNull::new(unsafe { (*xrcd.as_ptr()).context }).ok_or_else(unsupported)?;
    let verb = newer!(context, close_xrcd).ok_or_else(unsupported)?;
    // SAFETY: the caller's promise.
    check(unsafe { verb(xrcd.as_ptr()) })
}

/// `ibv_create_srq_ex`.
///
/// # Safety
/// The context, and what the attributes name, are open.
pub(crate) unsafe fn create_srq_ex(
    context: NonNull<ibv_context>,
    attr: &mut ibv_srq_init_attr_ex,
) -> io::Result<NonNull<ibv_srq>> {
    let verb = newer!(context, create_srq_ex).ok_or_else(unsupported)?;
    // SAFETY: the caller's promise.
    made(unsafe { verb(context.as_ptr(), attr) })
}

/// `ibv_get_srq_num`.
///
/// # Safety
/// Queue and context are open.
pub(crate) unsafe fn get_srq_num(
    context: NonNull<ibv_context>,
    srq: NonNull<ibv_srq>,
) -> io::Result<u32> {
    let verb = newer!(context, get_srq_num).ok_or_else(unsupported)?;
    let mut number = 0;
    // SAFETY: the caller's promise; the number can be written.
    check(unsafe { verb(srq.as_ptr(), &raw mut number) })?;
    Ok(number)
}

/// `ibv_open_qp`.
///
/// # Safety
/// The context, and the domain that the attributes name, are open.
pub(crate) unsafe fn open_qp(
    context: NonNull<ibv_context>,
    attr: &mut ibv_qp_open_attr,
) -> io::Result<NonNull<ibv_qp>> {
    let verb = newer!(context, open_qp).ok_or_else(unsupported)?;
    // SAFETY: the caller's promise.
    made(unsafe { verb(context.as_ptr(), attr) })
}

/// Destroys a queue pair that was opened (`ibv_open_qp`), without the provider: libmlx5 (of rdma-core 44,
/// and 64 too) gives memory back then that only those it created have, and the process dies. What the
/// provider keeps of it, its structure, stays.
///
/// # Safety
/// The queue pair was opened, and is destroyed once.
pub(crate) unsafe fn destroy_opened_qp(qp: NonNull<ibv_qp>) -> io::Result<()> {
    type Destroy = unsafe extern "C" fn(*mut ibv_qp) -> c_int;
    // What all providers call. Its version is that of the library, with which a program that is linked
    // to it would run, and with no other.
    static DESTROY: LazyLock<Option<Destroy>> = LazyLock::new(|| {
        let (library, name) = (c"libibverbs.so.1", c"ibv_cmd_destroy_qp");
        // SAFETY: both end with a zero; the library is there, for this is linked to it.
        let found = unsafe {
            let library = libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
            if library.is_null() {
                return None;
            }
            libc::dlsym(library, name.as_ptr())
        };
        // SAFETY: it has had this type ever since there is such a function.
        (!found.is_null()).then(|| unsafe { transmute::<*mut c_void, Destroy>(found) })
    });
    let destroy = (*DESTROY).ok_or_else(unsupported)?;
    // SAFETY: the caller's promise.
    check(unsafe { destroy(qp.as_ptr()) })
}

/// `ibv_get_async_event`: blocks, unless the descriptor says otherwise.
///
/// # Safety
/// The context is open.
pub(crate) unsafe fn get_async_event(context: NonNull<ibv_context>) -> io::Result<AsyncEvent> {
    let mut event = MaybeUninit::<AsyncEvent>::zeroed();
    // SAFETY: the context is open; the event has C's layout (see the tests). The enum that
    // `rdma-sys` has in it is not looked at.
    let answer =
        unsafe { rdma_sys::ibv_get_async_event(context.as_ptr(), event.as_mut_ptr().cast()) };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the verb has filled it in; zeroes are a value too.
    Ok(unsafe { event.assume_init() })
}

/// `ibv_ack_async_event`.
///
/// # Safety
/// The event was got, and is acknowledged once.
pub(crate) unsafe fn ack_async_event(event: &mut AsyncEvent) {
    // SAFETY: the caller's promise; as in `get_async_event`.
    unsafe { rdma_sys::ibv_ack_async_event(std::ptr::from_mut(event).cast()) };
}

#[cfg(test)]
mod tests;
