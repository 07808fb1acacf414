//! Requests and completions as shown in a dump.

use bellwire_core::be::Be32;
use bellwire_core::cqe::CqeOpcode;
use bellwire_core::op::{WrOpcode, opcode};
use bellwire_core::queue::{Past, Standing};
use bellwire_core::wqe::{self, Data, Destination, SendWqe, Transport, fm_ce_se};
use bellwire_core::wr::{Remote, Sge, WcStatus};
use bellwire_provider::history::OldCqe;
use serde::Serialize;
use std::fmt;

/// How far a request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Posted; the device has not been notified.
    Staged,
    /// The device was notified, and nothing is known of it yet.
    InFlight,
    /// Its completion has not been polled yet.
    Completed,
    /// Retired, by its own completion or by a later one.
    Retired,
}

impl Stage {
    /// Its name in dumps.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Staged => "staged",
            Self::InFlight => "in flight",
            Self::Completed => "completed",
            Self::Retired => "retired",
        }
    }
}

impl From<Standing> for Stage {
    fn from(standing: Standing) -> Self {
        match standing {
            Standing::Staged => Self::Staged,
            Standing::InFlight => Self::InFlight,
            Standing::Retired => Self::Retired,
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A scatter/gather element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Segment {
    /// Start address.
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// The lkey.
    pub key: u32,
}

impl From<Sge> for Segment {
    fn from(sge: Sge) -> Self {
        Self {
            addr: sge.addr,
            length: sge.length,
            key: sge.lkey,
        }
    }
}

/// An address in the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Target {
    /// The address.
    pub addr: u64,
    /// The rkey.
    pub key: u32,
}

/// The operands of an atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Atomic {
    /// The value to swap in, or to add.
    pub operand: u64,
    /// The value to compare with; zero for a fetch and add.
    pub compare: u64,
}

impl From<wqe::Atomic> for Atomic {
    fn from(atomic: wqe::Atomic) -> Self {
        let (operand, compare) = match atomic {
            wqe::Atomic::CompareAndSwap { compare, swap } => (swap, compare),
            wqe::Atomic::FetchAndAdd(add) => (add, 0),
        };
        Self { operand, compare }
    }
}

/// Inline bytes of an entry. They may be user data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Inline {
    /// Number of bytes.
    pub length: usize,
    /// The bytes as hexadecimal digits; `None` if they were not asked for.
    pub hex: Option<String>,
}

impl Inline {
    fn new(shown: bool, parts: [&[u8]; 2]) -> Self {
        let bytes = || parts.into_iter().flatten();
        Self {
            length: bytes().count(),
            hex: shown.then(|| bytes().map(|byte| format!("{byte:02x}")).collect()),
        }
    }
}

/// A send request, as read from its entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SendEntry {
    /// Its counter in the send queue.
    pub counter: u32,
    /// The program's identifier.
    pub wr_id: u64,
    /// How far it has come.
    #[serde(serialize_with = "super::serialize::as_text")]
    pub stage: Stage,
    /// Status of its own completion, if that is still in the completion queue.
    #[serde(serialize_with = "super::serialize::as_text_if")]
    pub status: Option<WcStatus>,
    /// Its operation, by its name in libibverbs.
    pub operation: &'static str,
    /// Basic blocks occupied by the entry.
    pub blocks: u16,
    /// It is signalled.
    pub signaled: bool,
    /// It requests a solicited event at the receiver.
    pub solicited: bool,
    /// It is fenced: it waits for earlier READs and atomics.
    pub fence: bool,
    /// Immediate data.
    pub imm: Option<u32>,
    /// The rkey that a SEND with invalidate invalidates at the peer.
    pub invalidates: Option<u32>,
    /// The peer's memory.
    pub remote: Option<Target>,
    /// Operands of an atomic.
    pub atomic: Option<Atomic>,
    /// For a datagram: the destination queue pair.
    pub dest_qp_num: Option<u32>,
    /// For an XRC request: the destination shared receive queue.
    pub srq_num: Option<u32>,
    /// Its scatter/gather list.
    pub data: Vec<Segment>,
    /// Its inline data.
    pub inline: Option<Inline>,
}

impl SendEntry {
    pub(super) fn new<T: Transport>(past: Past, wqe: SendWqe<'_>, show_inline: bool) -> Self {
        // Of an entry that is no request only the opcode is shown.
        let request = wqe.request(T::TYPE).ok();
        let to = request.and_then(|request| request.destination());
        let flags = wqe.fm_ce_se();
        let mut entry = Self {
            counter: past.counter,
            wr_id: past.wr_id,
            stage: past.standing.into(),
            status: None,
            operation: match wqe.operation() {
                // An unbind may have the entry of an invalidation: the ledger knows which it is.
                Some(operation) if operation.is_registration() => past.opcode.name(),
                _ => send_operation(wqe.opcode()),
            },
            blocks: past.slots,
            signaled: flags & fm_ce_se::SIGNALED != 0,
            solicited: flags & fm_ce_se::SOLICITED != 0,
            fence: flags & fm_ce_se::FENCE != 0,
            imm: request.and_then(|request| request.imm()).map(Be32::get),
            invalidates: request.and_then(|request| request.invalidates()),
            remote: request
                .and_then(|request| request.remote())
                .map(|Remote { addr, rkey: key }| Target { addr, key }),
            atomic: request
                .and_then(|request| request.atomic())
                .map(Atomic::from),
            dest_qp_num: match to {
                Some(Destination::Address(av)) => Some(av.dqp_dct.get() & 0xff_ffff),
                Some(Destination::Peer | Destination::Srq(_)) | None => None,
            },
            srq_num: match to {
                Some(Destination::Srq(number)) => Some(number),
                Some(Destination::Peer | Destination::Address(_)) | None => None,
            },
            data: Vec::new(),
            inline: None,
        };
        for piece in request.into_iter().flat_map(|request| request.data()) {
            match piece {
                Data::Pointer(sge) => entry.data.push(sge.into()),
                Data::Inline(head, tail) => {
                    entry.inline = Some(Inline::new(show_inline, [head, tail]));
                }
            }
        }
        entry
    }
}

/// A receive, as read from its entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ReceiveEntry {
    /// Its counter in the receive queue.
    pub counter: u32,
    /// The program's identifier.
    pub wr_id: u64,
    /// How far it has come.
    #[serde(serialize_with = "super::serialize::as_text")]
    pub stage: Stage,
    /// Status of its completion, if that is still in the completion queue.
    #[serde(serialize_with = "super::serialize::as_text_if")]
    pub status: Option<WcStatus>,
    /// Its scatter/gather list.
    pub data: Vec<Segment>,
}

impl ReceiveEntry {
    pub(super) fn new(past: Past, data: &mut dyn Iterator<Item = Sge>) -> Self {
        Self {
            counter: past.counter,
            wr_id: past.wr_id,
            stage: past.standing.into(),
            status: None,
            data: data.map(Segment::from).collect(),
        }
    }
}

/// A completion, as the device wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CompletionEntry {
    /// Number of the completion queue.
    pub cqn: u32,
    /// Its free-running index in the completion queue.
    pub index: u32,
    /// Whether it was polled.
    pub polled: bool,
    /// It belongs to the queue pair before its last RESET: it was reported then or, if it was not polled
    /// in time, dropped.
    pub stale: bool,
    /// What completed, by its name in libibverbs.
    pub operation: &'static str,
    /// Its status; `None` if it belongs to no request.
    #[serde(serialize_with = "super::serialize::as_text_if")]
    pub status: Option<WcStatus>,
    /// For a failure: the device's syndrome, numbered as in its documentation.
    pub syndrome: u8,
    /// For a failure: the vendor's code.
    pub vendor_err: u8,
    /// Low 16 bits of the request's counter, as the device reports it.
    pub counter: u16,
    /// The program's identifier of the request, if its entry is still there.
    pub wr_id: Option<u64>,
    /// Number of bytes, if it is defined for the operation.
    pub byte_len: Option<u32>,
    /// Data in the completion queue entry itself.
    pub inline: Option<Inline>,
}

impl CompletionEntry {
    pub(super) fn new(cqn: u32, stale: bool, old: &OldCqe, show_inline: bool) -> Self {
        let cqe = &old.cqe;
        let failed = cqe.opcode().is_error();
        Self {
            cqn,
            index: old.index,
            polled: old.polled,
            stale,
            operation: match cqe.opcode() {
                CqeOpcode::Req | CqeOpcode::ReqErr => send_operation(cqe.send_opcode()),
                CqeOpcode::RespErr | CqeOpcode::RespSend => "RECV",
                CqeOpcode::RespSendImm => "RECV_WITH_IMM",
                CqeOpcode::RespSendInv => "RECV_WITH_INV",
                CqeOpcode::RespWrImm => "RECV_RDMA_WITH_IMM",
                _ => "UNKNOWN",
            },
            status: cqe.status(),
            syndrome: if failed { cqe.syndrome().0 } else { 0 },
            vendor_err: if failed { cqe.vendor_err_synd() } else { 0 },
            counter: cqe.wqe_counter(),
            wr_id: None,
            byte_len: if failed { None } else { cqe.byte_len() },
            inline: (!old.data.is_empty()).then(|| Inline::new(show_inline, [&old.data, &[]])),
        }
    }
}

/// The name in libibverbs of the operation with this opcode; registration work is taken for a bind.
fn send_operation(code: u8) -> &'static str {
    match WrOpcode::of_opcode(code) {
        Some(operation) => operation.name(),
        None if code == opcode::LOCAL_INVAL => WrOpcode::LocalInv.name(),
        None => "UNKNOWN",
    }
}
