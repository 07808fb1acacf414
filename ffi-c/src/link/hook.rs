//! What a link calls the program for.

use super::bw_link;
use super::code::away;
use super::init::nanoseconds;
use crate::device::bw_device;
use crate::event::bw_async_event;
use crate::failure::{Failure, guard};
use crate::fault::{bw_class, bw_fault};
use crate::handle::{get, get_mut, take_with};
use hw::fault::plan::End;
use hw::recovery::{DeviceEvent, Link, RecoveryReport};
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::null;

/// The program's own pointer, which comes back with each call.
struct Context(*mut c_void);

// SAFETY: only passed on; the header says which threads call.
unsafe impl Send for Context {}

impl Context {
    fn get(&self) -> *mut c_void {
        self.0
    }
}

/// Called at each fault of a link: what happened, what it means, and to which of its connections, as
/// `bw_link_info.epoch` counts them. All that is pointed to is there for the time of the call.
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
    /// It works, but for `bw_recovery_report.why`.
    BW_END_DEGRADED = 1,
    /// It cannot be recovered: the link has ended.
    BW_END_GAVE_UP = 2,
}

/// A recovery that has ended.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct bw_recovery_report {
    /// Its size, as the library knows it.
    pub size: u32,
    /// How: a `bw_recovery_end`.
    pub end: u32,
    /// Requests that were posted again.
    pub replayed: u32,
    /// Requests that are told because of it, and not as executed.
    pub surfaced: u32,
    /// The number of the connection from here on.
    pub epoch: u64,
    /// Nanoseconds from the first fault on.
    pub took_ns: u64,
    /// Why, unless BW_END_RECOVERED: then NULL.
    pub why: *const c_char,
}

/// Called when a recovery of a link has ended, well or not. What is pointed to is there for the time of
/// the call.
pub type bw_recovered_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, report: *const bw_recovery_report)>;

/// Calls with the report as C has it.
fn report(from: &RecoveryReport, call: impl FnOnce(*const bw_recovery_report)) {
    let (end, why) = match from.end {
        End::Recovered => (bw_recovery_end::BW_END_RECOVERED, None),
        End::Degraded(why) => (bw_recovery_end::BW_END_DEGRADED, Some(why)),
        End::GaveUp(why) => (bw_recovery_end::BW_END_GAVE_UP, Some(why)),
    };
    // No text of ours has a NUL.
    let why = why.map(|why| CString::new(why.to_string()).unwrap_or_default());
    call(&bw_recovery_report {
        size: size_of::<bw_recovery_report>() as u32,
        end: end as u32,
        replayed: from.replayed,
        surfaced: from.surfaced,
        epoch: from.epoch,
        took_ns: nanoseconds(from.took),
        why: why.as_ref().map_or(null(), |why| why.as_ptr()),
    });
}

/// The link behind the handle, when no thread has its inside.
///
/// # Safety
/// The header on handles.
pub(super) unsafe fn at_home<'a>(link: *mut bw_link) -> Result<&'a mut Link, Failure> {
    // SAFETY: the caller's promise.
    let link = unsafe { &mut get_mut(link, "link")?.link };
    match link.pd() {
        Some(_) => Ok(link),
        None => Err(away()),
    }
}

/// Has `hook` called, with `context`, at each fault of the link, as it is met; NULL: nothing any more. A
/// peer that closes its link in good order is none. It is called under no lock, within `bw_link_poll`, `bw_link_report` and `bw_link_drain`, or by the
/// recovery's thread with BW_RECOVER_IN_THREAD. It must not use the link, and has to return. While a
/// thread recovers the link the hook before may still be called until the thread has looked; `context`
/// of that has to be good until the link is BW_LINK_READY or has ended.
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
        // SAFETY: the header on handles.
        let link = unsafe { &mut get_mut(link, "link")?.link };
        let context = Context(context);
        link.on_fault(move |report| {
            if let Some(hook) = hook {
                let (fault, class) = (report.fault.into(), report.fault.into());
                // SAFETY: the program's own.
                unsafe { hook(context.get(), &fault, &class, report.epoch) }
            }
        });
        Ok(())
    })
}

/// Has `hook` called, with `context`, when a recovery of the link has ended, well or not, and when it
/// is connected for the first time; NULL: nothing any more. Not when the peer closes a link that works:
/// `bw_link_get_state` is BW_LINK_PEER_CLOSED then. Otherwise as `bw_link_on_fault`.
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
        // SAFETY: the header on handles.
        let link = unsafe { &mut get_mut(link, "link")?.link };
        let context = Context(context);
        link.on_recovered(move |from| {
            if let Some(hook) = hook {
                // SAFETY: the program's own.
                report(from, |report| unsafe { hook(context.get(), report) });
            }
        });
        Ok(())
    })
}

/// Called with an asynchronous event that concerns no link: its number (`bw_event_type`, or one that
/// this library does not know), what it is about (`bw_element`) and the number of that. It has been
/// acknowledged. Of an unknown event the latter are 0.
pub type bw_event_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, event_type: u32, element: u32, number: u32)>;

/// Has `hook` called, with `context`, with each asynchronous event of the device that concerns none of
/// its links; NULL: nothing any more. The links of a device take all its events: whoever polls one
/// calls the hook, under no lock. `context` has to be good until the device is closed, or another hook
/// set and no link polled by others meanwhile.
///
/// Errors: `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_set_event_hook(
    device: *const bw_device,
    hook: bw_event_fn,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the header on handles.
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
                // SAFETY: the program's own.
                unsafe { hook(context.get(), number, of.0, of.1) }
            }
        });
        Ok(())
    })
}

/// Acknowledges an event that the program got itself, by `bw_get_async_event`, and tells the links of
/// the device whom it concerns; others go to the hook of `bw_set_event_hook`. The handle is gone then.
///
/// Errors: `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_dispatch_async_event(
    device: *const bw_device,
    event: *mut bw_async_event,
) -> c_int {
    guard(|| {
        // SAFETY: the header on handles.
        let device = unsafe { get(device, "device")? };
        // SAFETY: as above.
        let event = unsafe { take_with(event, "asynchronous event", |_| Ok(()))? };
        device.device.dispatch(event.event);
        Ok(())
    })
}
