//! Verbs that are called through the table in front of a context.

use super::*;
use std::mem::offset_of;

/// The table in front of a context (`verbs_get_ctx`); `None` for older libraries.
///
/// # Safety
/// The context is open.
unsafe fn table(context: NonNull<ibv_context>) -> Option<NonNull<verbs_context>> {
    // SAFETY: the caller guarantees that the context is open.
    let mark = unsafe { (*context.as_ptr()).abi_compat };
    let is_inside = mark.addr() == usize::MAX;
    // SAFETY: the mark says that the context is the last field of a `verbs_context`.
    is_inside.then(|| unsafe { context.byte_sub(offset_of!(verbs_context, context)).cast() })
}

/// A verb of that table (`verbs_get_ctx_op`), if the library and the device have it. The size of the table is
/// counted from its end, because newer verbs are added in front.
macro_rules! newer {
    ($context:expr, $verb:ident) => {
        // SAFETY: the caller guarantees that the context is open; a table of this size has the field.
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

/// The error if the library or the device does not have the verb.
fn unsupported() -> io::Error {
    io::Error::from_raw_os_error(libc::EOPNOTSUPP)
}

/// Calls `ibv_query_port` in its current version.
///
/// # Safety
/// The context is open.
///
/// # Errors
/// The error of the verb.
pub unsafe fn query_port(context: NonNull<ibv_context>, port_num: u8) -> io::Result<ibv_port_attr> {
    let mut attr = MaybeUninit::<ibv_port_attr>::zeroed();
    let answer = match newer!(context, query_port) {
        // SAFETY: the context is open, and the attributes are writable and have the size passed.
        Some(verb) => unsafe {
            verb(
                context.as_ptr(),
                port_num,
                attr.as_mut_ptr(),
                size_of::<ibv_port_attr>(),
            )
        },
        // SAFETY: the context is open; the old attributes are the first part of the new ones.
        None => unsafe { ibv_query_port(context.as_ptr(), port_num, attr.as_mut_ptr().cast()) },
    };
    check(answer)?;
    // SAFETY: the attributes consist of integers, for which zero is valid.
    Ok(unsafe { attr.assume_init() })
}

/// Calls `ibv_create_cq_ex`.
///
/// # Safety
/// Context and channel are open.
///
/// # Errors
/// The error of the verb.
pub unsafe fn create_cq_ex(
    context: NonNull<ibv_context>,
    attr: &mut ibv_cq_init_attr_ex,
) -> io::Result<NonNull<ibv_cq_ex>> {
    let verb = newer!(context, create_cq_ex).ok_or_else(unsupported)?;
    // SAFETY: the caller guarantees that context and channel are open.
    made(unsafe { verb(context.as_ptr(), attr) })
}

/// Calls `ibv_create_qp_ex`.
///
/// # Safety
/// The context, and the objects that the attributes refer to, are open.
///
/// # Errors
/// The error of the verb.
pub unsafe fn create_qp_ex(
    context: NonNull<ibv_context>,
    attr: &mut ibv_qp_init_attr_ex,
) -> io::Result<NonNull<ibv_qp>> {
    let verb = newer!(context, create_qp_ex).ok_or_else(unsupported)?;
    // SAFETY: the caller guarantees that the context and the objects in the attributes are open.
    made(unsafe { verb(context.as_ptr(), attr) })
}

/// Calls `ibv_alloc_td`.
///
/// # Safety
/// The context is open.
///
/// # Errors
/// The error of the verb.
pub unsafe fn alloc_td(context: NonNull<ibv_context>) -> io::Result<NonNull<ibv_td>> {
    let verb = newer!(context, alloc_td).ok_or_else(unsupported)?;
    let mut attr = ibv_td_init_attr { comp_mask: 0 };
    // SAFETY: the caller guarantees that the context is open.
    made(unsafe { verb(context.as_ptr(), &raw mut attr) })
}

/// Calls `ibv_dealloc_td`.
///
/// # Safety
/// The thread domain is alive and is deallocated only once; its context is open.
///
/// # Errors
/// The error of the verb.
pub unsafe fn dealloc_td(td: NonNull<ibv_td>) -> io::Result<()> {
    // SAFETY: the caller guarantees that the thread domain is alive.
    let context = NonNull::new(unsafe { (*td.as_ptr()).context }).ok_or_else(unsupported)?;
    let verb = newer!(context, dealloc_td).ok_or_else(unsupported)?;
    // SAFETY: the caller guarantees that the thread domain is deallocated only once.
    check(unsafe { verb(td.as_ptr()) })
}

/// Calls `ibv_alloc_parent_domain`.
///
/// # Safety
/// The context, and the objects that the attributes refer to, are open.
///
/// # Errors
/// The error of the verb.
pub unsafe fn alloc_parent_domain(
    context: NonNull<ibv_context>,
    attr: &mut ibv_parent_domain_init_attr,
) -> io::Result<NonNull<ibv_pd>> {
    let verb = newer!(context, alloc_parent_domain).ok_or_else(unsupported)?;
    // SAFETY: the caller guarantees that the context and the objects in the attributes are open.
    made(unsafe { verb(context.as_ptr(), attr) })
}

/// Calls `ibv_open_xrcd`.
///
/// # Safety
/// The context is open.
///
/// # Errors
/// The error of the verb.
pub unsafe fn open_xrcd(
    context: NonNull<ibv_context>,
    attr: &mut ibv_xrcd_init_attr,
) -> io::Result<NonNull<ibv_xrcd>> {
    let verb = newer!(context, open_xrcd).ok_or_else(unsupported)?;
    // SAFETY: the caller guarantees that the context is open.
    made(unsafe { verb(context.as_ptr(), attr) })
}

/// Calls `ibv_close_xrcd`.
///
/// # Safety
/// The XRC domain is open and is closed only once; its context is open.
///
/// # Errors
/// The error of the verb.
pub unsafe fn close_xrcd(xrcd: NonNull<ibv_xrcd>) -> io::Result<()> {
    // SAFETY: the caller guarantees that the XRC domain is open.
    let context = NonNull::new(unsafe { (*xrcd.as_ptr()).context }).ok_or_else(unsupported)?;
    let verb = newer!(context, close_xrcd).ok_or_else(unsupported)?;
    // SAFETY: the caller guarantees that the XRC domain is closed only once.
    check(unsafe { verb(xrcd.as_ptr()) })
}

/// Calls `ibv_create_srq_ex`.
///
/// # Safety
/// The context, and the objects that the attributes refer to, are open.
///
/// # Errors
/// The error of the verb.
pub unsafe fn create_srq_ex(
    context: NonNull<ibv_context>,
    attr: &mut ibv_srq_init_attr_ex,
) -> io::Result<NonNull<ibv_srq>> {
    let verb = newer!(context, create_srq_ex).ok_or_else(unsupported)?;
    // SAFETY: the caller guarantees that the context and the objects in the attributes are open.
    made(unsafe { verb(context.as_ptr(), attr) })
}

/// Calls `ibv_get_srq_num`.
///
/// # Safety
/// The shared receive queue and the context are open.
///
/// # Errors
/// The error of the verb.
pub unsafe fn get_srq_num(context: NonNull<ibv_context>, srq: NonNull<ibv_srq>) -> io::Result<u32> {
    let verb = newer!(context, get_srq_num).ok_or_else(unsupported)?;
    let mut number = 0;
    // SAFETY: the caller guarantees that queue and context are open; `number` is writable.
    check(unsafe { verb(srq.as_ptr(), &raw mut number) })?;
    Ok(number)
}

/// Calls `ibv_open_qp`.
///
/// # Safety
/// The context, and the XRC domain that the attributes refer to, are open.
///
/// # Errors
/// The error of the verb.
pub unsafe fn open_qp(
    context: NonNull<ibv_context>,
    attr: &mut ibv_qp_open_attr,
) -> io::Result<NonNull<ibv_qp>> {
    let verb = newer!(context, open_qp).ok_or_else(unsupported)?;
    // SAFETY: the caller guarantees that the context and the XRC domain are open.
    made(unsafe { verb(context.as_ptr(), attr) })
}
