//! What the first failed completion of a reliable connection proves about its own request, and about those
//! posted behind it.

use crate::op::{Layout, WrOpcode};
use crate::wr::WcStatus;

/// Where an operation is executed, and which of its effects others can notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// NOP: executed nowhere, without a noticeable effect.
    Nothing,
    /// LOCAL_INV, BIND_MW: executed by the requester's device alone.
    Local,
    /// READ: executed at the peer without changing anything there; returns a result.
    Read,
    /// Atomics: executed at the peer; return a result.
    Atomic,
    /// WRITE: executed at the peer.
    Write,
    /// SENDs and WRITE_WITH_IMM: executed at the peer, where each consumes a receive.
    Consuming,
}

impl Kind {
    pub(super) const fn of(operation: WrOpcode) -> Self {
        match operation.row().layout {
            Layout::Control => Self::Nothing,
            Layout::Registration => Self::Local,
            Layout::CompareAndSwap | Layout::FetchAndAdd => Self::Atomic,
            Layout::Message | Layout::Memory if operation.consumes_receive() => Self::Consuming,
            Layout::Message | Layout::Memory if operation.has_result() => Self::Read,
            Layout::Message | Layout::Memory => Self::Write,
        }
    }

    /// Whether the operation returns a result.
    pub(super) const fn has_result(self) -> bool {
        matches!(self, Self::Read | Self::Atomic)
    }

    /// Whether parties other than the requester can notice that it was executed.
    pub(super) const fn noticeable(self) -> bool {
        matches!(self, Self::Atomic | Self::Write | Self::Consuming)
    }
}

/// What a failed completion proves about its own request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Itself {
    /// It was not executed.
    NotExecuted,
    /// It failed for a reason of its own, but may have been executed.
    Unknown,
    /// It did not fail for a reason of its own, but with its queue pair: nothing is known about it.
    Silent,
}

/// What a failed completion proves about the requests behind its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Behind {
    /// The device has begun none of them.
    NotBegun,
    /// The peer executed none of them. Local operations may have been done.
    NotAtPeer,
    /// Nothing is known.
    Unknown,
}

/// What the first failed completion of a connection's send queue proves. `status` is not SUCCESS.
pub(super) const fn says(status: WcStatus, kind: Kind) -> (Itself, Behind) {
    use WcStatus::*;
    match status {
        // Detected when the WQE is processed. The memory of a READ or atomic is accessed when the response
        // arrives, so these errors may be detected then.
        LocLenErr | LocProtErr if kind.has_result() => (Itself::Unknown, Behind::Unknown),
        LocLenErr | LocProtErr | LocQpOpErr | MwBindErr => (Itself::NotExecuted, Behind::NotBegun),
        // Refused by the peer: a NAK rejects its request and all packets behind it.
        RemInvReqErr | RemAccessErr | RnrRetryExcErr => match kind {
            // These operations send no packet: the device contradicts itself.
            Kind::Nothing | Kind::Local => (Itself::Unknown, Behind::Unknown),
            Kind::Read | Kind::Atomic | Kind::Write | Kind::Consuming => {
                (Itself::NotExecuted, Behind::NotAtPeer)
            }
        },
        // Also a NAK, but of a request that the peer had begun to execute.
        RemOpErr => match kind {
            Kind::Nothing | Kind::Local => (Itself::Unknown, Behind::Unknown),
            Kind::Read | Kind::Atomic | Kind::Write | Kind::Consuming => {
                (Itself::Unknown, Behind::NotAtPeer)
            }
        },
        // A response arrived and could not be used.
        LocAccessErr | BadRespErr => (Itself::Unknown, Behind::Unknown),
        // No response arrived, or the queue pair stopped for a reason unrelated to this request.
        RetryExcErr | RespTimeoutErr | WrFlushErr | FatalErr => (Itself::Silent, Behind::Unknown),
        // Statuses of other transports and of receives, and those for which the device gives no reason.
        Success | LocEecOpErr | LocRddViolErr | RemInvRdReqErr | RemAbortErr | InvEecnErr
        | InvEecStateErr | GeneralErr | TmErr | TmRndvIncomplete => {
            (Itself::Unknown, Behind::Unknown)
        }
    }
}
