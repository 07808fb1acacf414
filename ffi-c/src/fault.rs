//! What a fault means, and what to do about it.

use crate::code::BW_EINVAL;
use crate::failure::{Failure, guard};
use crate::sized::{self, Versioned};
use crate::wc::bw_wc;
use hw::fault::{Fault, FaultCode, FaultFamily, Text, Vendor, WorkQueue, classify};
use hw::wr::{QpType, WrOpcode};
use std::ffi::{c_char, c_int};
use std::mem::offset_of;
use std::ptr::null;

/// Where the number of a fault comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_fault_family {
    /// A completion: a `bw_wc_status`.
    BW_FAMILY_STATUS = 0,
    /// An asynchronous event: a `bw_event_type`.
    BW_FAMILY_EVENT = 1,
    /// An event of rdma_cm: a `bw_cm_event_type`.
    BW_FAMILY_CM = 2,
    /// The `errno` of a call of libibverbs or librdmacm, whatever its sign.
    BW_FAMILY_ERRNO = 3,
    /// What a link learns from its peer: a `bw_peer_fault`.
    BW_FAMILY_PEER = 4,
    /// What a link that watches its requests and its peer finds: a `bw_link_fault`.
    BW_FAMILY_LINK = 5,
}

/// What a link learns from its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_peer_fault {
    /// It asks for a recovery.
    BW_PEER_RECOVERS = 0,
    /// It has closed its end in an orderly shutdown.
    BW_PEER_CLOSED = 1,
    /// It can no longer be reached, or its messages make no sense.
    BW_PEER_LOST = 2,
    /// Another process replies in its place, and does not know the link.
    BW_PEER_RESTARTED = 3,
    /// It has given the link up, for the reason in `bw_fault.named_family` and `named_number`.
    BW_PEER_GAVE_UP = 4,
}

/// What a link finds that watches its requests and its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_link_fault {
    /// A request did not complete within `bw_link_init.request_deadline_ns`.
    BW_DEADLINE_MISSED = 0,
    /// The peer did not acknowledge a keep-alive in time: `bw_link_init.keep_alive_ns`.
    BW_KEEP_ALIVE_MISSED = 1,
    /// The peer's messages hold more buffers of a set's shared receive queue than one link may:
    /// `bw_link_set_init.srq_max_held`.
    BW_RECV_LIMIT_EXCEEDED = 2,
    /// A request in flight was cancelled (`bw_link_cancel`), or has missed a deadline of its own.
    BW_CANCELLED = 3,
}

/// The queue that a request was posted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_work_queue {
    /// The send queue.
    BW_QUEUE_SEND = 0,
    /// The queue pair's own receive queue.
    BW_QUEUE_RECV = 1,
    /// A shared receive queue.
    BW_QUEUE_SRQ = 2,
}

/// The vendor of `vendor_err`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_vendor {
    /// A device whose vendor codes are not known here.
    BW_VENDOR_NONE = 0,
    /// A ConnectX device.
    BW_VENDOR_CONNECTX = 1,
}

/// A fault, for `bw_classify`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct bw_fault {
    /// `sizeof(bw_fault)`.
    pub size: u32,
    /// A `bw_fault_family`.
    pub family: u32,
    /// The number within the family. Numbers that this library does not know have a class, too.
    pub number: i32,
    /// Of a completion: the queue pair's `bw_qp_type`. In other families this field and all that follow
    /// are ignored.
    pub transport: u32,
    /// A `bw_work_queue`.
    pub queue: u32,
    /// Whether `opcode` is set: 0 or 1.
    pub has_opcode: u32,
    /// Of a send: the `bw_wr_opcode` that was posted. A READ or an atomic may fail after it was
    /// executed.
    pub opcode: u32,
    /// A `bw_vendor`.
    pub vendor: u32,
    /// `bw_wc.vendor_err`.
    pub vendor_err: u32,
    /// Of BW_PEER_GAVE_UP: the `bw_fault_family` of the fault that the peer names as its reason. In other
    /// faults this field and the next are ignored.
    pub named_family: u32,
    /// The number of that fault.
    pub named_number: i32,
}

// SAFETY: repr(C), integers only, without padding; the size is the first field.
unsafe impl Versioned for bw_fault {
    const SIZES: &'static [usize] = &[offset_of!(Self, named_family), size_of::<Self>()];
}

/// What a fault means for the program. docs/faults.md lists all of them. The texts are static, and
/// never NULL.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct bw_class {
    /// `sizeof(bw_class)`.
    pub size: u32,
    /// How far the fault reaches: a `bw_scope`.
    pub scope: u32,
    /// Where its cause most likely has to be fixed: a `bw_blame`.
    pub blame: u32,
    /// Whether the same request can succeed if it is retried: a `bw_retry`.
    pub retry: u32,
    /// What it says about the execution of the request at the peer: a `bw_execution`.
    pub execution: u32,
    /// What restores operation: a `bw_recovery`.
    pub recovery: u32,
    /// The fault's name, such as `RETRY_EXC_ERR`; `UNKNOWN` for a number that has none.
    pub name: *const c_char,
    /// What happened.
    pub text: *const c_char,
    /// What causes it.
    pub cause: *const c_char,
    /// What the operator should look at.
    pub advice: *const c_char,
}

impl Default for bw_class {
    fn default() -> Self {
        Self {
            size: size_of::<Self>() as u32,
            scope: 0,
            blame: 0,
            retry: 0,
            execution: 0,
            recovery: 0,
            name: null(),
            text: null(),
            cause: null(),
            advice: null(),
        }
    }
}

// SAFETY: repr(C), integers and pointers for which any bytes are a value, without padding: the integers
// fill 24 bytes. The size is the first field.
unsafe impl Versioned for bw_class {
    const SIZES: &'static [usize] = &[size_of::<Self>()];
}

pub(crate) fn pointer(text: Text) -> *const c_char {
    text.as_c_str().as_ptr()
}

impl From<Fault> for bw_class {
    fn from(fault: Fault) -> Self {
        let class = classify(fault);
        Self {
            scope: class.scope.number().into(),
            blame: class.blame.number().into(),
            retry: class.retry.number().into(),
            execution: class.execution.number().into(),
            recovery: class.recovery.number().into(),
            name: pointer(fault.name()),
            text: pointer(fault.text()),
            cause: pointer(class.cause),
            advice: pointer(class.advice),
            ..Self::default()
        }
    }
}

impl From<Fault> for bw_fault {
    fn from(fault: Fault) -> Self {
        let (family, number) = fault.code();
        let plain = Self {
            size: size_of::<Self>() as u32,
            family: family.number().into(),
            number,
            ..Self::default()
        };
        match fault {
            Fault::Status {
                transport,
                queue,
                vendor,
                ..
            } => {
                let (queue, opcode) = match queue {
                    WorkQueue::Send(opcode) => (bw_work_queue::BW_QUEUE_SEND, opcode),
                    WorkQueue::Recv => (bw_work_queue::BW_QUEUE_RECV, None),
                    WorkQueue::SharedRecv => (bw_work_queue::BW_QUEUE_SRQ, None),
                };
                let (vendor, vendor_err) = match vendor {
                    None => (bw_vendor::BW_VENDOR_NONE, 0),
                    Some(Vendor::ConnectX(code)) => (bw_vendor::BW_VENDOR_CONNECTX, code),
                };
                Self {
                    transport: transport.number().into(),
                    queue: queue as u32,
                    has_opcode: opcode.is_some().into(),
                    opcode: opcode.map_or(0, |opcode| opcode.number().into()),
                    vendor: vendor as u32,
                    vendor_err: vendor_err.into(),
                    ..plain
                }
            }
            Fault::PeerGaveUp(named) => Self {
                named_family: named.family().number().into(),
                named_number: named.number(),
                ..plain
            },
            _ => plain,
        }
    }
}

fn invalid(field: &str, given: u32, kind: &str) -> Failure {
    Failure::new(
        BW_EINVAL,
        format!("{field} is {given}, which is not a {kind}"),
    )
}

impl bw_fault {
    fn completion(&self) -> Result<Fault, Failure> {
        let transport = u8::try_from(self.transport).ok();
        let transport = transport
            .and_then(QpType::from_number)
            .ok_or_else(|| invalid("transport", self.transport, "bw_qp_type"))?;
        let opcode = match self.has_opcode {
            0 => None,
            1 => {
                let opcode = u8::try_from(self.opcode).ok();
                let opcode = opcode.and_then(WrOpcode::from_number);
                Some(opcode.ok_or_else(|| invalid("opcode", self.opcode, "bw_wr_opcode"))?)
            }
            other => return Err(invalid("has_opcode", other, "0 or 1")),
        };
        let queue = match self.queue {
            0 => WorkQueue::Send(opcode),
            1 => WorkQueue::Recv,
            2 => WorkQueue::SharedRecv,
            other => return Err(invalid("queue", other, "bw_work_queue")),
        };
        let vendor = match self.vendor {
            0 => None,
            1 => u8::try_from(self.vendor_err).ok().map(Vendor::ConnectX),
            other => return Err(invalid("vendor", other, "bw_vendor")),
        };
        Ok(Fault::status(
            self.number.cast_unsigned(),
            transport,
            queue,
            vendor,
        ))
    }

    pub(crate) fn checked(&self) -> Result<Fault, Failure> {
        match (self.family, self.number) {
            (0, _) => self.completion(),
            (4, number) if number == bw_peer_fault::BW_PEER_GAVE_UP as i32 => {
                let named = code("named_family", self.named_family, self.named_number)?;
                Ok(Fault::PeerGaveUp(named))
            }
            (family, number) => Ok(code("family", family, number)?.fault()),
        }
    }
}

/// The fault of a family with this number.
fn code(field: &str, family: u32, number: i32) -> Result<FaultCode, Failure> {
    let known = u8::try_from(family).ok().and_then(FaultFamily::from_number);
    let known = known.ok_or_else(|| invalid(field, family, "bw_fault_family"))?;
    let kind = match known {
        FaultFamily::Peer => "bw_peer_fault",
        _ => "bw_link_fault",
    };
    FaultCode::new(known, number).ok_or_else(|| invalid("number", number.cast_unsigned(), kind))
}

/// Writes what a fault means, and what to do about it, to `class`. Every number of a family has a class.
///
/// Errors: `BW_EINVAL` for an unknown family, transport, queue, opcode, vendor, `bw_peer_fault` or
/// `bw_link_fault`, `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_classify(fault: *const bw_fault, class: *mut bw_class) -> c_int {
    // SAFETY: the header's conventions on sized structs.
    guard(|| unsafe {
        let fault = sized::read(fault)?;
        sized::write(class, &fault.checked()?.into())
    })
}

/// Writes what the status of a completion means, and what to do about it, to `class`. It does so as
/// `bw_classify` with the fault of `wc`, of a queue pair of this `bw_qp_type` and of this
/// `bw_work_queue`. A completion that failed does not name its queue: the program knows it from
/// `wr_id`. The vendor's code is not taken into account.
///
/// Errors: `BW_EINVAL` for an unknown transport or queue, `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_classify_wc(
    wc: *const bw_wc,
    transport: u32,
    queue: u32,
    class: *mut bw_class,
) -> c_int {
    guard(|| {
        if wc.is_null() {
            return Err(Failure::null("the completion"));
        }
        // SAFETY: not NULL; a completion of any version has this field, and the header says that the pointer
        // is valid.
        let status = unsafe { (&raw const (*wc).status).read() };
        let fault = bw_fault {
            family: bw_fault_family::BW_FAMILY_STATUS as u32,
            number: status.cast_signed(),
            transport,
            queue,
            ..bw_fault::default()
        };
        // SAFETY: the header's conventions on sized structs.
        unsafe { sized::write(class, &fault.checked()?.into()) }
    })
}
