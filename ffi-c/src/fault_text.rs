//! Texts and names of the numbers that faults are made of.

use crate::fault::pointer;
use hw::fault::{Blame, CmEvent, EventType, Execution, Recovery, Retry, Scope, WcStatus};
use std::ffi::c_char;

/// What `$get` returns of a value of a family.
macro_rules! of {
    ($family:ident, $number:expr, $get:ident, $unknown:literal) => {
        u8::try_from($number)
            .ok()
            .and_then($family::from_number)
            .map_or($unknown.as_ptr(), |value| pointer(value.$get()))
    };
}

/// What a `bw_wc_status` means, in a sentence (`ibv_wc_status_str`). Never NULL; the text is static.
///
/// Thread: any.
#[unsafe(no_mangle)]
pub extern "C" fn bw_wc_status_str(status: u32) -> *const c_char {
    of!(WcStatus, status, text, c"not a status of this library")
}

/// What a `bw_event_type` means, in a sentence (`ibv_event_type_str`). Never NULL; the text is static.
///
/// Thread: any.
#[unsafe(no_mangle)]
pub extern "C" fn bw_event_type_str(event_type: u32) -> *const c_char {
    of!(EventType, event_type, text, c"not an event of this library")
}

/// What a `bw_cm_event_type` means, in a sentence (`rdma_event_str`). Never NULL; the text is static.
///
/// Thread: any.
#[unsafe(no_mangle)]
pub extern "C" fn bw_cm_event_str(event: u32) -> *const c_char {
    of!(CmEvent, event, text, c"not an event of this library")
}

/// What a `bw_scope` means. Never NULL; the text is static.
///
/// Thread: any.
#[unsafe(no_mangle)]
pub extern "C" fn bw_scope_str(scope: u32) -> *const c_char {
    of!(Scope, scope, text, c"not a scope of this library")
}

/// What a `bw_blame` means. Never NULL; the text is static.
///
/// Thread: any.
#[unsafe(no_mangle)]
pub extern "C" fn bw_blame_str(blame: u32) -> *const c_char {
    of!(Blame, blame, text, c"not a blame of this library")
}

/// What a `bw_retry` means. Never NULL; the text is static.
///
/// Thread: any.
#[unsafe(no_mangle)]
pub extern "C" fn bw_retry_str(retry: u32) -> *const c_char {
    of!(Retry, retry, text, c"not a bw_retry of this library")
}

/// What a `bw_execution` means. Never NULL; the text is static.
///
/// Thread: any.
#[unsafe(no_mangle)]
pub extern "C" fn bw_execution_str(execution: u32) -> *const c_char {
    of!(
        Execution,
        execution,
        text,
        c"not a bw_execution of this library"
    )
}

/// What a `bw_recovery` means: what to do. Never NULL; the text is static.
///
/// Thread: any.
#[unsafe(no_mangle)]
pub extern "C" fn bw_recovery_str(recovery: u32) -> *const c_char {
    of!(Recovery, recovery, text, c"not a recovery of this library")
}

/// The name of a `bw_wc_status`, without its prefix, for example "RETRY_EXC_ERR". "UNKNOWN" for other numbers.
/// Never NULL; the text is static.
///
/// Thread: any.
#[unsafe(no_mangle)]
pub extern "C" fn bw_wc_status_name(status: u32) -> *const c_char {
    of!(WcStatus, status, c_name, c"UNKNOWN")
}

/// The name of a `bw_event_type`, without its prefix, for example "QP_FATAL". "UNKNOWN" for other numbers.
/// Never NULL; the text is static.
///
/// Thread: any.
#[unsafe(no_mangle)]
pub extern "C" fn bw_event_type_name(event_type: u32) -> *const c_char {
    of!(EventType, event_type, c_name, c"UNKNOWN")
}

/// The name of a `bw_cm_event_type`, without its prefix, for example "REJECTED". "UNKNOWN" for other numbers.
/// Never NULL; the text is static.
///
/// Thread: any.
#[unsafe(no_mangle)]
pub extern "C" fn bw_cm_event_name(event: u32) -> *const c_char {
    of!(CmEvent, event, c_name, c"UNKNOWN")
}

/// The name of a `bw_scope`, without its prefix. "UNKNOWN" for other numbers.
/// Never NULL; the text is static.
///
/// Thread: any.
#[unsafe(no_mangle)]
pub extern "C" fn bw_scope_name(scope: u32) -> *const c_char {
    of!(Scope, scope, c_name, c"UNKNOWN")
}

/// The name of a `bw_blame`, without its prefix. "UNKNOWN" for other numbers.
/// Never NULL; the text is static.
///
/// Thread: any.
#[unsafe(no_mangle)]
pub extern "C" fn bw_blame_name(blame: u32) -> *const c_char {
    of!(Blame, blame, c_name, c"UNKNOWN")
}

/// The name of a `bw_retry`, without its prefix. "UNKNOWN" for other numbers.
/// Never NULL; the text is static.
///
/// Thread: any.
#[unsafe(no_mangle)]
pub extern "C" fn bw_retry_name(retry: u32) -> *const c_char {
    of!(Retry, retry, c_name, c"UNKNOWN")
}

/// The name of a `bw_execution`, without its prefix. "UNKNOWN" for other numbers.
/// Never NULL; the text is static.
///
/// Thread: any.
#[unsafe(no_mangle)]
pub extern "C" fn bw_execution_name(execution: u32) -> *const c_char {
    of!(Execution, execution, c_name, c"UNKNOWN")
}

/// The name of a `bw_recovery`, without its prefix. "UNKNOWN" for other numbers.
/// Never NULL; the text is static.
///
/// Thread: any.
#[unsafe(no_mangle)]
pub extern "C" fn bw_recovery_name(recovery: u32) -> *const c_char {
    of!(Recovery, recovery, c_name, c"UNKNOWN")
}
