//! Letting things go wrong on the software device, for tests.

use crate::code::BW_EINVAL;
use crate::device::bw_device;
use crate::event::event_type;
use crate::failure::{Failure, guard};
use crate::handle::get;
use hw::event::{Element, ElementKind, EventType};
use hw::fault::CmEvent;
use hw::soft::{Fault, Script, Trigger};
use hw::wr::WcStatus;
use std::ffi::c_int;
use std::time::Duration;

/// When a fault strikes. Everything counts from the moment at which the script is given, and over the
/// whole device unless the step names a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_soft_trigger {
    /// At the `at`-th send request that is executed, from 1; retries are not new ones.
    BW_AT_ENTRY = 0,
    /// At the `at`-th request packet, from 1: each attempt to execute a request is one.
    BW_AT_PACKET = 1,
    /// When `at` nanoseconds of the device's time have passed.
    BW_AFTER = 2,
    /// At the `at`-th change of any queue pair's state or attributes, from 1, before it is made.
    BW_AT_MODIFY = 3,
}

/// What goes wrong. The faults up to BW_FAULT_STATUS, and those from BW_FAULT_STATUS_AFTER to
/// BW_FAULT_RECV_CQ_OVERRUN, befall the request at hand, and need BW_AT_ENTRY or BW_AT_PACKET; the others the device, at any trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_soft_fault {
    /// The request is lost on its way.
    BW_FAULT_DROP_REQUEST = 0,
    /// The request is executed, and its acknowledgement lost.
    BW_FAULT_DROP_ACK = 1,
    /// The request takes `value` nanoseconds longer.
    BW_FAULT_DELAY = 2,
    /// The responder finds the key wrong, if the request has one.
    BW_FAULT_REMOTE_ACCESS = 3,
    /// The responder says that it is not ready.
    BW_FAULT_RNR = 4,
    /// The request completes with the `bw_wc_status` of `value`, without having been executed.
    BW_FAULT_STATUS = 5,
    /// The completion queue of number `value` loses an entry.
    BW_FAULT_CQ_OVERRUN = 6,
    /// The queue pair of number `value` breaks.
    BW_FAULT_QP_FATAL = 7,
    /// The shared receive queue of number `value` breaks.
    BW_FAULT_SRQ_ERR = 8,
    /// The device breaks, for good.
    BW_FAULT_DEVICE_FATAL = 9,
    /// The port's link goes down.
    BW_FAULT_PORT_DOWN = 10,
    /// The port's link comes up.
    BW_FAULT_PORT_UP = 11,
    /// The event `event_type` is raised, about what has the number `value`.
    BW_FAULT_RAISE = 12,
    /// The request completes with the `bw_wc_status` of `value`, though it was executed.
    BW_FAULT_STATUS_AFTER = 13,
    /// The request is executed, and the completion queue of its sends overruns by its completion.
    BW_FAULT_SEND_CQ_OVERRUN = 14,
    /// The request is executed, and the completion queue of the receive that it consumes overruns by its
    /// completion. Nothing if it takes no receive.
    BW_FAULT_RECV_CQ_OVERRUN = 15,
    /// The change of a queue pair's state or attributes that is at hand is refused, and not made. Needs
    /// BW_AT_MODIFY.
    BW_FAULT_REFUSE_MODIFY = 16,
    /// The communication manager tells the event `value`, a `bw_cm_event_type` that says that something
    /// went wrong: BW_CM_EVENT_ADDR_ERROR, _ROUTE_ERROR, _CONNECT_ERROR, _UNREACHABLE and _REJECTED are
    /// what becomes of the next call that they could tell of; _ADDR_CHANGE and _DEVICE_REMOVAL are told of
    /// all ids on the device, _MULTICAST_ERROR of the members of groups, which they lose.
    BW_FAULT_CM = 17,
}

/// One step of a script: a fault, and when it strikes.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct bw_soft_step {
    /// A `bw_soft_trigger`.
    pub trigger: u32,
    /// A `bw_soft_fault`.
    pub fault: u32,
    /// When: a count, or nanoseconds.
    pub at: u64,
    /// What the fault takes: nanoseconds, a status or a number. Not looked at by the others.
    pub value: u64,
    /// Of BW_FAULT_RAISE: a `bw_event_type`.
    pub event_type: u32,
    /// Of BW_AT_ENTRY and BW_AT_PACKET: the queue pair whose requests count, or 0 for those of all. Of the
    /// others: 0.
    pub qp_num: u32,
}

fn bad(what: &str, given: u64) -> Failure {
    let text = format!("{what} is {given}, which is not one that there is");
    Failure::new(BW_EINVAL, text)
}

fn number(given: u64) -> Result<u32, Failure> {
    u32::try_from(given).map_err(|_| bad("value", given))
}

/// What an event of this kind with this number is about.
fn element(event: EventType, given: u64) -> Result<Element, Failure> {
    let number = number(given)?;
    Ok(match event.element_kind() {
        ElementKind::Cq => Element::Cq(number),
        ElementKind::Qp => Element::Qp(number),
        ElementKind::Srq => Element::Srq(number),
        ElementKind::Wq => Element::Wq(number),
        ElementKind::Port => {
            Element::Port(u8::try_from(number).map_err(|_| bad("the port", given))?)
        }
        ElementKind::Device => Element::Device,
    })
}

impl bw_soft_step {
    fn trigger(&self) -> Result<Trigger, Failure> {
        let (qp_num, nth) = (self.qp_num, self.at);
        match self.trigger {
            t if t == bw_soft_trigger::BW_AT_ENTRY as u32 => Ok(match qp_num {
                0 => Trigger::Entry(nth),
                qp_num => Trigger::EntryOf { qp_num, nth },
            }),
            t if t == bw_soft_trigger::BW_AT_PACKET as u32 => Ok(match qp_num {
                0 => Trigger::Packet(nth),
                qp_num => Trigger::PacketOf { qp_num, nth },
            }),
            _ if qp_num != 0 => Err(bad("qp_num", qp_num.into())),
            t if t == bw_soft_trigger::BW_AT_MODIFY as u32 => Ok(Trigger::Modify(nth)),
            t if t == bw_soft_trigger::BW_AFTER as u32 => {
                Ok(Trigger::After(Duration::from_nanos(self.at)))
            }
            other => Err(bad("trigger", other.into())),
        }
    }

    fn fault(&self) -> Result<Fault, Failure> {
        use bw_soft_fault::*;
        let status = || {
            let status = u8::try_from(self.value).ok();
            let status = status.and_then(WcStatus::from_number);
            status.ok_or_else(|| bad("the status", self.value))
        };
        Ok(match self.fault {
            f if f == BW_FAULT_DROP_REQUEST as u32 => Fault::DropRequest,
            f if f == BW_FAULT_DROP_ACK as u32 => Fault::DropAck,
            f if f == BW_FAULT_DELAY as u32 => Fault::Delay(Duration::from_nanos(self.value)),
            f if f == BW_FAULT_REMOTE_ACCESS as u32 => Fault::RemoteAccess,
            f if f == BW_FAULT_RNR as u32 => Fault::Rnr,
            f if f == BW_FAULT_STATUS as u32 => Fault::Status(status()?),
            f if f == BW_FAULT_STATUS_AFTER as u32 => Fault::StatusAfter(status()?),
            f if f == BW_FAULT_SEND_CQ_OVERRUN as u32 => Fault::SendCqOverrun,
            f if f == BW_FAULT_RECV_CQ_OVERRUN as u32 => Fault::RecvCqOverrun,
            f if f == BW_FAULT_REFUSE_MODIFY as u32 => Fault::RefuseModify,
            f if f == BW_FAULT_CQ_OVERRUN as u32 => Fault::CqOverrun(number(self.value)?),
            f if f == BW_FAULT_QP_FATAL as u32 => Fault::QpFatal(number(self.value)?),
            f if f == BW_FAULT_SRQ_ERR as u32 => Fault::SrqErr(number(self.value)?),
            f if f == BW_FAULT_DEVICE_FATAL as u32 => Fault::DeviceFatal,
            f if f == BW_FAULT_PORT_DOWN as u32 => Fault::PortDown,
            f if f == BW_FAULT_PORT_UP as u32 => Fault::PortUp,
            f if f == BW_FAULT_RAISE as u32 => {
                let event = event_type(self.event_type)?;
                Fault::Raise(event, element(event, self.value)?)
            }
            f if f == BW_FAULT_CM as u32 => {
                let event = u8::try_from(self.value).ok();
                let event = event.and_then(CmEvent::from_number);
                Fault::Cm(event.ok_or_else(|| bad("the event", self.value))?)
            }
            other => return Err(bad("fault", other.into())),
        })
    }
}

/// Lets things go wrong as the `num` steps of the array `steps` say, beside what earlier scripts still
/// have to say. Of those with the same trigger the first strikes first; of the faults of one request
/// only the first does. While some entry or packet is to be hit, execution is slow. When it fails
/// nothing of the script is taken.
///
/// Errors: `BW_EINVAL` (an unknown trigger, fault, status or event; a queue pair where none is looked at;
/// a fault of a request at BW_AFTER or BW_AT_MODIFY), `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_soft_inject(
    device: *const bw_device,
    steps: *const bw_soft_step,
    num: u32,
) -> c_int {
    guard(|| {
        // SAFETY: the header on handles.
        let device = unsafe { get(device, "device")? };
        if steps.is_null() {
            return Err(Failure::null("the script"));
        }
        // SAFETY: not NULL; as many steps as the program says.
        let steps = unsafe { std::slice::from_raw_parts(steps, num as usize) };
        let mut script = Script::default();
        for step in steps {
            script = script.with(step.trigger()?, step.fault()?);
        }
        Ok(device.device.inject(&script)?)
    })
}

/// Lets `count` faults strike at random among the next `packets` packets: each is the fault of one of
/// the `num` steps of the array `kinds`, whose triggers are not looked at. The same seed gives the same
/// faults.
///
/// Errors: as `bw_soft_inject`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_soft_inject_seeded(
    device: *const bw_device,
    seed: u64,
    packets: u64,
    count: u32,
    kinds: *const bw_soft_step,
    num: u32,
) -> c_int {
    guard(|| {
        // SAFETY: the header on handles.
        let device = unsafe { get(device, "device")? };
        if kinds.is_null() {
            return Err(Failure::null("the kinds"));
        }
        // SAFETY: not NULL; as many as the program says.
        let kinds = unsafe { std::slice::from_raw_parts(kinds, num as usize) };
        let kinds: Result<Vec<Fault>, Failure> = kinds.iter().map(bw_soft_step::fault).collect();
        let script = Script::seeded(seed, packets, count as usize, &kinds?);
        Ok(device.device.inject(&script)?)
    })
}

/// Forgets all scripts, as far as they have not struck.
///
/// Errors: `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_soft_clear(device: *const bw_device) -> c_int {
    // SAFETY: the header on handles.
    guard(|| unsafe {
        get(device, "device")?.device.clear_faults();
        Ok(())
    })
}

/// Takes the port's link down (0) or up (not 0): BW_EVENT_PORT_ERR and BW_EVENT_PORT_ACTIVE tell. While
/// it is down no packet leaves: reliable requests run out of retries, datagrams are dropped.
///
/// Errors: `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_soft_set_port(device: *const bw_device, up: c_int) -> c_int {
    // SAFETY: the header on handles.
    guard(|| unsafe {
        get(device, "device")?.device.set_port_up(up != 0);
        Ok(())
    })
}

/// Raises an event that nothing caused, about what has this number: of a port from 1, of the device not
/// looked at. Only the event: the thing itself goes on as before.
///
/// Errors: `BW_EINVAL` when there is no such event or thing, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_soft_raise(
    device: *const bw_device,
    event: u32,
    element_number: u32,
) -> c_int {
    // SAFETY: the header on handles.
    guard(|| unsafe {
        let device = get(device, "device")?;
        let event = event_type(event)?;
        let element = element(event, element_number.into())?;
        Ok(device.device.raise(event, element)?)
    })
}
