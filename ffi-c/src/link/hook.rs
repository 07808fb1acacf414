//! The program's functions that a link calls.

use super::bw_link;
use super::code::away;
use super::init::nanoseconds;
use super::set::{bw_link_id, bw_link_set};
use crate::device::bw_device;
use crate::event::bw_async_event;
use crate::failure::{Failure, guard};
use crate::fault::{bw_class, bw_fault};
use crate::handle::{get, get_mut, take_with};
use hw::fault::plan::End;
use hw::link::{DeviceEvent, FaultReport, Link, LinkEnd, LinkId, RecoveryReport};
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::null;

/// The program's own pointer, which is passed to each call.
struct Context(*mut c_void);

// SAFETY: only passed on; the header says which threads call.
unsafe impl Send for Context {}

impl Context {
    fn get(&self) -> *mut c_void {
        self.0
    }
}

/// Called at each fault of a link, with the fault, its meaning, and the number of the connection, as
/// `bw_link_info.epoch` counts. The pointers are valid during the call.
pub type bw_fault_fn = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        fault: *const bw_fault,
        means: *const bw_class,
        epoch: u64,
    ),
>;

/// How a recovery ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_recovery_end {
    /// Everything works again.
    BW_END_RECOVERED = 0,
    /// The link works, except for what `bw_recovery_report.why` says.
    BW_END_DEGRADED = 1,
    /// It cannot be recovered: the link has ended.
    BW_END_GAVE_UP = 2,
}

/// A recovery that has ended.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct bw_recovery_report {
    /// The size of the struct in this version of the library.
    pub size: u32,
    /// How it ended: a `bw_recovery_end`.
    pub end: u32,
    /// Requests that were posted again.
    pub replayed: u32,
    /// Requests that are reported because of it, other than as executed.
    pub reported: u32,
    /// The number of the new connection.
    pub epoch: u64,
    /// Nanoseconds since the first fault.
    pub took_ns: u64,
    /// The reason, and the fault that the recovery began with; NULL with BW_END_RECOVERED.
    pub why: *const c_char,
}

/// Called when a recovery of a link has ended, whether it succeeded or not. The pointers are valid
/// during the call.
pub type bw_recovered_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, report: *const bw_recovery_report)>;

/// Passes the report to `call`, in its C form.
fn report(from: &RecoveryReport, call: impl FnOnce(*const bw_recovery_report)) {
    let (end, why) = match from.end {
        End::Recovered => (bw_recovery_end::BW_END_RECOVERED, None),
        End::Degraded(why) => (bw_recovery_end::BW_END_DEGRADED, Some(why)),
        End::GaveUp(why) => (bw_recovery_end::BW_END_GAVE_UP, Some(why)),
    };
    let first = from.first;
    let why = why.map(|why| LinkEnd::GaveUp { why, first });
    // The library's texts contain no NUL.
    let why = why.map(|why| CString::new(why.to_string()).unwrap_or_default());
    call(&bw_recovery_report {
        size: size_of::<bw_recovery_report>() as u32,
        end: end as u32,
        replayed: from.replayed,
        reported: from.reported,
        epoch: from.epoch,
        took_ns: nanoseconds(from.took),
        why: why.as_ref().map_or(null(), |why| why.as_ptr()),
    });
}

/// Calls the program's function at each fault.
fn fault_hook(
    hook: bw_fault_fn,
    context: *mut c_void,
) -> impl FnMut(&FaultReport) + Send + 'static {
    let context = Context(context);
    move |report| {
        if let Some(hook) = hook {
            let (fault, class) = (report.fault.into(), report.fault.into());
            // SAFETY: the program's callback, with the context that it gave.
            unsafe { hook(context.get(), &fault, &class, report.epoch) }
        }
    }
}

/// Calls the program's function at the end of each recovery.
fn recovered_hook(
    hook: bw_recovered_fn,
    context: *mut c_void,
) -> impl FnMut(&RecoveryReport) + Send + 'static {
    let context = Context(context);
    move |from| {
        if let Some(hook) = hook {
            // SAFETY: the program's callback, with the context that it gave.
            report(from, |report| unsafe { hook(context.get(), report) });
        }
    }
}

/// The link behind the handle, unless a thread is recovering it.
///
/// # Safety
/// The caller keeps the header's conventions on handles.
pub(super) unsafe fn at_home<'a>(link: *mut bw_link) -> Result<&'a mut Link, Failure> {
    // SAFETY: the caller keeps the header's conventions on handles.
    let link = unsafe { &mut get_mut(link, "link")?.link };
    match link.pd() {
        Some(_) => Ok(link),
        None => Err(away()),
    }
}

/// Sets the function `hook` that is called, with `context`, at each fault of the link when it is
/// found; NULL: none. A peer that closes its link in an orderly shutdown is not a fault. The hook
/// is called without a lock held, within `bw_link_poll`, `bw_link_report_fault` and
/// `bw_link_drain`, or by the recovery thread with BW_RECOVER_IN_THREAD. It must not use the link,
/// and has to return. While a thread recovers the link the previous hook may still be called until
/// the thread checks. Its `context` has to stay valid until the link is BW_LINK_READY or has ended.
///
/// Errors: `BW_ENULL`.
/// Thread: the link's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_on_fault(
    link: *mut bw_link,
    hook: bw_fault_fn,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the header's conventions on handles.
        let link = unsafe { &mut get_mut(link, "link")?.link };
        link.on_fault(fault_hook(hook, context));
        Ok(())
    })
}

/// As `bw_link_on_fault`, of a link of a set: called within the polls of the set, `bw_link_set_report_fault`
/// and `bw_link_set_drain`. The hook must not use the set.
///
/// Errors: `BW_ENOLINK`, `BW_ENULL`.
/// Thread: the set's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_on_fault(
    set: *mut bw_link_set,
    link: bw_link_id,
    hook: bw_fault_fn,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the header's conventions on handles.
        let set = unsafe { &mut get_mut(set, "set")?.set };
        let mut link = set.link(LinkId::from_raw(link))?;
        link.on_fault(fault_hook(hook, context));
        Ok::<_, Failure>(())
    })
}

/// Sets the function `hook` that is called, with `context`, when a recovery of the link has ended,
/// whether it succeeded or not. It is also called when the link is connected for the first time.
/// NULL: none. It is not called when the peer closes a link that works: `bw_link_get_state` then
/// returns BW_LINK_PEER_CLOSED. Otherwise as `bw_link_on_fault`.
///
/// Errors: `BW_ENULL`.
/// Thread: the link's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_on_recovered(
    link: *mut bw_link,
    hook: bw_recovered_fn,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the header's conventions on handles.
        let link = unsafe { &mut get_mut(link, "link")?.link };
        link.on_recovered(recovered_hook(hook, context));
        Ok(())
    })
}

/// As `bw_link_on_recovered`, of a link of a set. Otherwise as `bw_link_set_on_fault`.
///
/// Errors: `BW_ENOLINK`, `BW_ENULL`.
/// Thread: the set's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_on_recovered(
    set: *mut bw_link_set,
    link: bw_link_id,
    hook: bw_recovered_fn,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the header's conventions on handles.
        let set = unsafe { &mut get_mut(set, "set")?.set };
        let mut link = set.link(LinkId::from_raw(link))?;
        link.on_recovered(recovered_hook(hook, context));
        Ok::<_, Failure>(())
    })
}

/// Called with an asynchronous event that concerns no link. The arguments are its number
/// (`bw_event_type`, or one that this library does not know), the kind of its object (`bw_element`)
/// and the object's number. It has been acknowledged. For an unknown event the last two are 0.
pub type bw_event_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, event_type: u32, element: u32, number: u32)>;

/// Sets the function `hook` that is called, with `context`, for each asynchronous event of the device
/// that concerns none of its links; NULL: none. The links of a device take all its events: a poll of
/// any of them calls the hook, without a lock held. `context` has to stay valid until the device is
/// closed, or until another hook has been set while no other thread polled a link.
///
/// Errors: `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_device_set_event_hook(
    device: *const bw_device,
    hook: bw_event_fn,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the header's conventions on handles.
        let device = unsafe { &get(device, "device")?.device };
        let context = Context(context);
        device.set_event_hook(move |event| {
            let (number, of) = match event {
                DeviceEvent::Known(event, element) => {
                    (event.number().into(), crate::event::element_number(element))
                }
                DeviceEvent::Unknown(number) => (number, (0, 0)),
            };
            if let Some(hook) = hook {
                // SAFETY: the program's callback, with the context that it gave.
                unsafe { hook(context.get(), number, of.0, of.1) }
            }
        });
        Ok(())
    })
}

/// Acknowledges an event that the program took itself by `bw_get_async_event`, and passes it to the
/// links of the device that it concerns. Other events go to the hook of `bw_device_set_event_hook`.
/// The handle is destroyed.
///
/// Errors: `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_device_dispatch_async_event(
    device: *const bw_device,
    event: *mut bw_async_event,
) -> c_int {
    guard(|| {
        // SAFETY: the header's conventions on handles.
        let device = unsafe { get(device, "device")? };
        // SAFETY: the header's conventions on handles.
        let event = unsafe { take_with(event, "asynchronous event", |_| Ok(()))? };
        if let Some(event) = event {
            device.device.dispatch(event.event);
        }
        Ok(())
    })
}
