//! Fault injection on the software device, for tests.

use crate::array;
use crate::code::BW_EINVAL;
use crate::device::bw_device;
use crate::event::event_type;
use crate::failure::{Failure, guard};
use crate::handle::get;
use hw::event::{Element, ElementKind, EventType};
use hw::fault::CmEvent;
use hw::soft::{Fault, Script, SoftDevice, Trigger};
use hw::wr::WcStatus;
use std::ffi::c_int;
use std::time::Duration;

/// When a fault is injected. Counts and times start when the script is given, and cover the whole
/// device unless the step names a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_soft_trigger {
    /// At the `at`-th send request that is executed, from 1; retries do not count.
    BW_AT_REQUEST = 0,
    /// At the `at`-th request packet, from 1: each attempt to execute a request is one.
    BW_AT_PACKET = 1,
    /// When `at` nanoseconds of the device's time have passed.
    BW_AFTER = 2,
    /// Before the `at`-th change of any queue pair's state or attributes, from 1.
    BW_AT_MODIFY = 3,
}

/// Which fault is injected. The faults up to BW_FAULT_STATUS, and those from BW_FAULT_STATUS_AFTER
/// to BW_FAULT_RECV_CQ_OVERRUN, affect the current request, and need BW_AT_REQUEST or BW_AT_PACKET.
/// The others affect the device, with any trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_soft_fault {
    /// The request is lost on its way to the responder.
    BW_FAULT_DROP_REQUEST = 0,
    /// The request is executed, and its acknowledgement is lost.
    BW_FAULT_DROP_ACK = 1,
    /// The request takes `value` nanoseconds longer.
    BW_FAULT_DELAY = 2,
    /// The responder finds the rkey wrong, if the request has one.
    BW_FAULT_REMOTE_ACCESS = 3,
    /// The responder sends an RNR NAK.
    BW_FAULT_RNR = 4,
    /// The request completes with the `bw_wc_status` of `value`, without having been executed.
    BW_FAULT_STATUS = 5,
    /// The completion queue of number `value` loses an entry.
    BW_FAULT_CQ_OVERRUN = 6,
    /// The queue pair of number `value` fails.
    BW_FAULT_QP_FATAL = 7,
    /// The shared receive queue of number `value` fails.
    BW_FAULT_SRQ_ERR = 8,
    /// The device fails permanently.
    BW_FAULT_DEVICE_FATAL = 9,
    /// The port's link goes down.
    BW_FAULT_PORT_DOWN = 10,
    /// The port's link comes up.
    BW_FAULT_PORT_UP = 11,
    /// The event `event_type` is raised for the object of number `value`.
    BW_FAULT_RAISE = 12,
    /// The request completes with the `bw_wc_status` of `value`, though it was executed.
    BW_FAULT_STATUS_AFTER = 13,
    /// The request is executed, and its completion overruns the completion queue of its sends.
    BW_FAULT_SEND_CQ_OVERRUN = 14,
    /// The request is executed, and the completion of the receive that it consumes overruns that
    /// receive's completion queue. Has no effect if it consumes no receive.
    BW_FAULT_RECV_CQ_OVERRUN = 15,
    /// The current change of a queue pair's state or attributes is refused, and not made. Needs
    /// BW_AT_MODIFY.
    BW_FAULT_REFUSE_MODIFY = 16,
    /// The communication manager delivers the event `value`, a `bw_cm_event_type` that reports a
    /// failure. BW_CM_EVENT_ADDR_ERROR, _ROUTE_ERROR, _CONNECT_ERROR, _UNREACHABLE and _REJECTED
    /// are the outcome of the next call that they can result from. _ADDR_CHANGE and _DEVICE_REMOVAL
    /// are delivered to all ids on the device. _MULTICAST_ERROR is delivered to the members of
    /// groups, which lose their membership.
    BW_FAULT_CM = 17,
}

/// One step of a script: a fault, and its trigger.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct bw_soft_step {
    /// A `bw_soft_trigger`.
    pub trigger: u32,
    /// A `bw_soft_fault`.
    pub fault: u32,
    /// A count, or nanoseconds, as the trigger says.
    pub at: u64,
    /// The fault's argument: nanoseconds, a status or a number. Ignored by the other faults.
    pub value: u64,
    /// With BW_FAULT_RAISE: a `bw_event_type`.
    pub event_type: u32,
    /// With BW_AT_REQUEST and BW_AT_PACKET: the queue pair whose requests count, or 0 for all. With the
    /// other triggers: 0.
    pub qp_num: u32,
}

// SAFETY: repr(C), integers only.
unsafe impl array::Element for bw_soft_step {
    const SIZES: &'static [usize] = &[size_of::<Self>()];
}

fn bad(what: &str, given: u64) -> Failure {
    let text = format!("{what} is {given}, which is not one that there is");
    Failure::new(BW_EINVAL, text)
}

fn number(given: u64) -> Result<u32, Failure> {
    u32::try_from(given).map_err(|_| bad("value", given))
}

/// The object of this number that an event of this kind is about.
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
            t if t == bw_soft_trigger::BW_AT_REQUEST as u32 => Ok(match qp_num {
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

/// The software HCA; a failure on any other device, which does not have `what`.
fn soft<'d>(device: &'d bw_device, what: &str) -> Result<SoftDevice<'d>, Failure> {
    let soft = device.device.as_soft();
    soft.ok_or_else(|| {
        let text = format!("{what}: only the software HCA has that, open \"soft\" instead");
        Failure::new(BW_EINVAL, text)
    })
}

/// `bw_soft_inject` for steps of `size` bytes: injects the faults of the `num` steps of the array
/// `steps`. Steps that remain of earlier scripts stay. Steps with the same trigger are applied in
/// order; a request gets only the first of its faults. Execution is slow while a request or packet
/// is still to be hit. If the call fails no step is taken.
///
/// Errors: `BW_EINVAL` (an unknown trigger, fault, status or event; a queue pair with a trigger that
/// takes none; a fault of a request at BW_AFTER or BW_AT_MODIFY), `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_soft_inject_sized(
    device: *const bw_device,
    steps: *const bw_soft_step,
    size: usize,
    num: u32,
) -> c_int {
    guard(|| {
        // SAFETY: the header's conventions on handles.
        let device = unsafe { get(device, "device")? };
        // SAFETY: the program guarantees `num` steps of this size.
        let steps = unsafe { array::all(steps, size, num, "the script")? };
        let mut script = Script::default();
        for step in steps {
            script = script.with(step.trigger()?, step.fault()?);
        }
        Ok(soft(device, "fault injection")?.inject(&script)?)
    })
}

/// `bw_soft_inject_seeded` for steps of `size` bytes: injects `count` faults at random among the
/// next `packets` packets. Each is the fault of one of the `num` steps of the array `kinds`, whose
/// triggers are ignored. The same seed gives the same faults.
///
/// Errors: those of `bw_soft_inject`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_soft_inject_seeded_sized(
    device: *const bw_device,
    seed: u64,
    packets: u64,
    count: u32,
    kinds: *const bw_soft_step,
    size: usize,
    num: u32,
) -> c_int {
    guard(|| {
        // SAFETY: the header's conventions on handles.
        let device = unsafe { get(device, "device")? };
        // SAFETY: the program guarantees `num` steps of this size.
        let kinds = unsafe { array::all(kinds, size, num, "the kinds")? };
        let kinds: Result<Vec<Fault>, Failure> = kinds.iter().map(bw_soft_step::fault).collect();
        let script = Script::seeded(seed, packets, count as usize, &kinds?);
        Ok(soft(device, "fault injection")?.inject(&script)?)
    })
}

/// Removes all scripts: faults that are still to come are not injected.
///
/// Errors: `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_soft_clear(device: *const bw_device) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        if let Some(soft) = get(device, "device")?.device.as_soft() {
            soft.clear_faults();
        }
        Ok(())
    })
}

/// Takes the port's link down (0) or up (not 0), which raises BW_EVENT_PORT_ERR or
/// BW_EVENT_PORT_ACTIVE. While it is down no packet leaves: reliable requests exceed their retries,
/// datagrams are dropped.
///
/// Errors: `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_soft_set_port(device: *const bw_device, up: c_int) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        if let Some(soft) = get(device, "device")?.device.as_soft() {
            soft.set_port_up(up != 0);
        }
        Ok(())
    })
}

/// Raises an event without a cause, for the object of this number: for a port its number from 1;
/// ignored for the device. Only the event is raised: the object continues to work.
///
/// Errors: `BW_EINVAL` if there is no such event or object, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_soft_raise(
    device: *const bw_device,
    event: u32,
    element_number: u32,
) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        let device = get(device, "device")?;
        let event = event_type(event)?;
        let element = element(event, element_number.into())?;
        Ok(soft(device, "raising events")?.raise(event, element)?)
    })
}
