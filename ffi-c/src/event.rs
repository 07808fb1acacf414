//! Asynchronous events.

use crate::code::BW_EINVAL;
use crate::device::bw_device;
use crate::failure::{Failure, guard};
use crate::handle::{get, give, peek, take};
use crate::sized::{self, Versioned};
use crate::used::User;
use crate::waits::wake;
use hw::event::{AsyncEvent, Element, EventType};
use std::ffi::c_int;

/// The kind of object that an event is about, and so what `bw_async_event_info.number` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_element {
    /// The device; the number is 0.
    BW_ELEMENT_DEVICE = 0,
    /// A completion queue (`bw_cq_query`).
    BW_ELEMENT_CQ = 1,
    /// A queue pair (`bw_qp_query`).
    BW_ELEMENT_QP = 2,
    /// A shared receive queue (`bw_srq_query`).
    BW_ELEMENT_SRQ = 3,
    /// A work queue.
    BW_ELEMENT_WQ = 4,
    /// A port, from 1.
    BW_ELEMENT_PORT = 5,
}

/// An asynchronous event that was taken and has to be acknowledged.
#[derive(Debug)]
pub struct bw_async_event {
    pub(crate) event: AsyncEvent,
    _device: User,
}

/// The contents of an asynchronous event (`ibv_async_event`).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct bw_async_event_info {
    /// `sizeof(bw_async_event_info)`.
    pub size: u32,
    /// A `bw_event_type`.
    pub event_type: u32,
    /// The kind of object that it is about: a `bw_element`.
    pub element: u32,
    /// The number of the object.
    pub number: u32,
}

// SAFETY: repr(C), integers only, without padding; the size is the first field.
unsafe impl Versioned for bw_async_event_info {
    const SIZES: &'static [usize] = &[size_of::<Self>()];
}

/// The object that an event is about: a `bw_element`, and its number.
pub(crate) fn element_number(element: Element) -> (u32, u32) {
    use bw_element::*;
    let (element, number) = match element {
        Element::Device => (BW_ELEMENT_DEVICE, 0),
        Element::Cq(number) => (BW_ELEMENT_CQ, number),
        Element::Qp(number) => (BW_ELEMENT_QP, number),
        Element::Srq(number) => (BW_ELEMENT_SRQ, number),
        Element::Wq(number) => (BW_ELEMENT_WQ, number),
        Element::Port(number) => (BW_ELEMENT_PORT, number.into()),
    };
    (element as u32, number)
}

impl From<&AsyncEvent> for bw_async_event_info {
    fn from(event: &AsyncEvent) -> Self {
        let (element, number) = element_number(event.element());
        Self {
            size: 0,
            event_type: event.event_type().number().into(),
            element,
            number,
        }
    }
}

/// The event of a number that the program gave.
pub(crate) fn event_type(number: u32) -> Result<EventType, Failure> {
    let known = u8::try_from(number).ok().and_then(EventType::from_number);
    known.ok_or_else(|| {
        let text = format!("event_type is {number}, which is not a bw_event_type");
        Failure::new(BW_EINVAL, text)
    })
}

/// Returns the descriptor of a device's asynchronous events, 0 or more: readable while one is queued.
/// For poll and epoll; it must not be read or closed.
///
/// Errors: `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_device_async_fd(device: *const bw_device) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe { Ok(get(device, "device")?.device.async_fd()) })
}

/// Sets whether `bw_get_async_event` returns `BW_EAGAIN` instead of blocking. This is the descriptor's
/// flag O_NONBLOCK, which the program may also set itself.
///
/// Errors: `BW_EOTHER` if the system refuses, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_device_async_set_nonblocking(
    device: *const bw_device,
    nonblocking: c_int,
) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        let device = get(device, "device")?;
        Ok(device.device.set_async_nonblocking(nonblocking != 0)?)
    })
}

/// Takes the oldest asynchronous event (`ibv_get_async_event`), and writes its contents to `info`;
/// set `info->size` before the call. Blocks if there is none. Events of a queue are delivered to
/// the device handle that it was created on. Events of a port or the device are delivered to every
/// open handle.
///
/// Owner: the caller, until `bw_ack_async_event`. It keeps the device open. Destroying the queue that
/// it is about waits for the acknowledgement.
/// Errors: `BW_EAGAIN` if there is none and the descriptor does not block, `BW_EINTR` when a signal handler has
/// interrupted the wait, `BW_EWOKEN` by `bw_device_async_wake`, `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_get_async_event(
    device: *const bw_device,
    info: *mut bw_async_event_info,
    event: *mut *mut bw_async_event,
) -> c_int {
    // SAFETY: the header's conventions on handles, sized structs and results.
    unsafe {
        give(event, || {
            let device = get(device, "device")?;
            // Checks `info` before an event is taken that could not be written.
            sized::write(info, &bw_async_event_info::default())?;
            let event = device.device.get_async_event()?;
            sized::write(info, &(&event).into())?;
            Ok(bw_async_event {
                event,
                _device: device.used.by(),
            })
        })
    }
}

/// If `awake` is not 0, ends every wait in `bw_get_async_event` on this handle of the device, and
/// every later one that would sleep, with `BW_EWOKEN`. Events that are queued are still returned.
/// If it is 0, waits sleep again. So a program lets its threads return before it closes the handle,
/// whichever comes first.
///
/// It allocates nothing, takes no lock and does not change `bw_last_error`: a signal handler may call it.
///
/// Errors: `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_device_async_wake(device: *const bw_device, awake: c_int) -> c_int {
    // SAFETY: the header's conventions on handles.
    let device = unsafe { peek(device) };
    wake(device.map(|device| device.device.async_waiters()), awake)
}

/// Acknowledges an asynchronous event (`ibv_ack_async_event`), and destroys its handle.
///
/// Errors: `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_ack_async_event(event: *mut bw_async_event) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe { take(event, "asynchronous event", |_| Ok(())) })
}
