//! Requests and completions as a dump shows them.

use crate::cq::OldCqe;
use bellwire_core::cqe::CqeOpcode;
use bellwire_core::queue::{Past, Standing};
use bellwire_core::wqe::{Data, SEGMENT, SendWqe, Transport, fm_ce_se, opcode};
use bellwire_core::wr::{QpType, Sge, WcOpcode, WcStatus, WrOpcode};
use std::fmt;

/// How far a request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Posted; the device has not been told.
    Staged,
    /// Rung, and nothing is known of it yet.
    InFlight,
    /// Its completion waits to be polled.
    Completed,
    /// Told, by its own completion or by a later one.
    Told,
}

impl Stage {
    /// What it is called in dumps.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Staged => "staged",
            Self::InFlight => "in flight",
            Self::Completed => "completed",
            Self::Told => "told",
        }
    }
}

impl From<Standing> for Stage {
    fn from(standing: Standing) -> Self {
        match standing {
            Standing::Staged => Self::Staged,
            Standing::InFlight => Self::InFlight,
            Standing::Told => Self::Told,
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A string of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Segment {
    /// Where.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// The key.
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

/// A place in the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Target {
    /// Where.
    pub addr: u64,
    /// The key.
    pub key: u32,
}

/// The operands of an atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Atomic {
    /// The value to swap in, or to add.
    pub operand: u64,
    /// The value to compare with; zero of a fetch and add.
    pub compare: u64,
}

/// Bytes that stand in the entry itself. They may be user data.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Inline {
    /// How many.
    pub length: usize,
    /// The bytes, as hexadecimal digits; `None`: they were to be left out.
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

/// A send request, as its entry has it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct SendEntry {
    /// Its counter in the send queue.
    pub counter: u32,
    /// The program's.
    pub wr_id: u64,
    /// How far it has come.
    #[cfg_attr(feature = "serde", serde(serialize_with = "super::as_text"))]
    pub stage: Stage,
    /// What its own completion says, if that is still in the completion queue.
    #[cfg_attr(feature = "serde", serde(serialize_with = "super::as_text_if"))]
    pub status: Option<WcStatus>,
    /// Its operation, as the verbs call it.
    pub operation: &'static str,
    /// Basic blocks that the entry takes.
    pub blocks: u16,
    /// It asks for a completion.
    pub signaled: bool,
    /// It raises a solicited event at the receiver.
    pub solicited: bool,
    /// It waits for earlier READs and atomics.
    pub fence: bool,
    /// Immediate data.
    pub imm: Option<u32>,
    /// The key that a SEND takes away at the peer.
    pub invalidates: Option<u32>,
    /// The peer's memory.
    pub remote: Option<Target>,
    /// Operands of an atomic.
    pub atomic: Option<Atomic>,
    /// Of a datagram: the queue pair that it goes to.
    pub dest_qp_num: Option<u32>,
    /// Of an XRC request: the shared receive queue that it names.
    pub srq_num: Option<u32>,
    /// Its memory.
    pub data: Vec<Segment>,
    /// Its data, where that stands in the entry.
    pub inline: Option<Inline>,
}

impl SendEntry {
    pub(super) fn new<T: Transport>(past: Past, wqe: SendWqe<'_>, show_inline: bool) -> Self {
        let (operation, first, second) = (
            wqe.opcode(),
            SEGMENT + T::SEGMENTS,
            2 * SEGMENT + T::SEGMENTS,
        );
        let (remote, data_at) = match operation {
            opcode::SEND | opcode::SEND_IMM | opcode::SEND_INVAL => (false, Some(first)),
            opcode::RDMA_WRITE | opcode::RDMA_WRITE_IMM | opcode::RDMA_READ => (true, Some(second)),
            opcode::ATOMIC_CS | opcode::ATOMIC_FA => (true, Some(second + SEGMENT)),
            _ => (false, None),
        };
        let atomic = matches!(operation, opcode::ATOMIC_CS | opcode::ATOMIC_FA);
        let flags = wqe.fm_ce_se();
        let mut entry = Self {
            counter: past.counter,
            wr_id: past.wr_id,
            stage: past.standing.into(),
            status: None,
            operation: send_operation(operation, past.opcode),
            blocks: past.slots,
            signaled: flags & fm_ce_se::SIGNALED != 0,
            solicited: flags & fm_ce_se::SOLICITED != 0,
            fence: flags & fm_ce_se::FENCE != 0,
            imm: matches!(operation, opcode::SEND_IMM | opcode::RDMA_WRITE_IMM)
                .then(|| wqe.imm().get()),
            invalidates: (operation == opcode::SEND_INVAL).then(|| wqe.imm().get()),
            remote: remote.then(|| {
                let remote = wqe.remote(first);
                Target {
                    addr: remote.addr,
                    key: remote.rkey,
                }
            }),
            atomic: atomic.then(|| {
                let (operand, compare) = wqe.atomic(second);
                Atomic { operand, compare }
            }),
            dest_qp_num: (T::TYPE == QpType::Ud && data_at.is_some())
                .then(|| wqe.address_vector().dqp_dct.get() & 0xff_ffff),
            srq_num: (T::TYPE == QpType::XrcSend && data_at.is_some()).then(|| wqe.xrc_srqn()),
            data: Vec::new(),
            inline: None,
        };
        for piece in data_at.into_iter().flat_map(|at| wqe.data(at)) {
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

/// A receive, as its entry has it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ReceiveEntry {
    /// Its counter in the receive queue.
    pub counter: u32,
    /// The program's.
    pub wr_id: u64,
    /// How far it has come.
    #[cfg_attr(feature = "serde", serde(serialize_with = "super::as_text"))]
    pub stage: Stage,
    /// What its completion says, if that is still in the completion queue.
    #[cfg_attr(feature = "serde", serde(serialize_with = "super::as_text_if"))]
    pub status: Option<WcStatus>,
    /// Its memory.
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
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct CompletionEntry {
    /// Number of the completion queue.
    pub cqn: u32,
    /// Its free-running index there.
    pub index: u32,
    /// Whether it was polled.
    pub polled: bool,
    /// It is of an earlier life of the queue pair: told then or, if it was not polled in time, dropped.
    pub stale: bool,
    /// What completed, as the verbs call it.
    pub operation: &'static str,
    /// How it went; `None`: it tells of no request.
    #[cfg_attr(feature = "serde", serde(serialize_with = "super::as_text_if"))]
    pub status: Option<WcStatus>,
    /// Of a failure: the device's reason, as its documentation numbers them.
    pub syndrome: u8,
    /// Of a failure: the vendor's code.
    pub vendor_err: u8,
    /// Low 16 bits of the request's counter, as the device has it.
    pub counter: u16,
    /// The program's identifier of the request, if its entry is still there.
    pub wr_id: Option<u64>,
    /// Bytes, where the verbs give them a meaning.
    pub byte_len: Option<u32>,
    /// Data that came within the entry.
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
                CqeOpcode::Req | CqeOpcode::ReqErr => {
                    send_operation(cqe.send_opcode(), WcOpcode::BindMw)
                }
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

/// What the verbs call an operation of this code; registration work has one code for two of them.
fn send_operation(operation: u8, completes_as: WcOpcode) -> &'static str {
    let verbs = match operation {
        opcode::NOP => WrOpcode::Nop,
        opcode::SEND => WrOpcode::Send,
        opcode::SEND_IMM => WrOpcode::SendWithImm,
        opcode::SEND_INVAL => WrOpcode::SendWithInv,
        opcode::RDMA_WRITE => WrOpcode::RdmaWrite,
        opcode::RDMA_WRITE_IMM => WrOpcode::RdmaWriteWithImm,
        opcode::RDMA_READ => WrOpcode::RdmaRead,
        opcode::ATOMIC_CS => WrOpcode::AtomicCmpAndSwp,
        opcode::ATOMIC_FA => WrOpcode::AtomicFetchAndAdd,
        opcode::TSO => WrOpcode::Tso,
        opcode::LOCAL_INVAL => WrOpcode::LocalInv,
        opcode::UMR if completes_as == WcOpcode::LocalInv => WrOpcode::LocalInv,
        opcode::UMR => WrOpcode::BindMw,
        _ => return "UNKNOWN",
    };
    verbs.name()
}
