//! What the first failed completion of a reliable connection says of its request, and of those
//! posted behind it.

use crate::wr::{WcStatus, WrOpcode};

/// Where an operation is executed, and what of it others can notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// NOP: nowhere, and nobody can tell.
    Nothing,
    /// LOCAL_INV, BIND_MW: by the requester's device alone.
    Local,
    /// READ: at the peer, where it leaves nothing; its result comes back.
    Read,
    /// Atomics: at the peer; their result comes back.
    Atomic,
    /// WRITE: at the peer.
    Write,
    /// SENDs and WRITE_WITH_IMM: at the peer, where each consumes a receive.
    Consuming,
}

impl Kind {
    pub(super) const fn of(operation: WrOpcode) -> Self {
        match operation {
            WrOpcode::Nop => Self::Nothing,
            WrOpcode::LocalInv | WrOpcode::BindMw => Self::Local,
            WrOpcode::RdmaRead => Self::Read,
            WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd => Self::Atomic,
            WrOpcode::RdmaWrite => Self::Write,
            // TSO does not exist on reliable connections; it sends.
            WrOpcode::RdmaWriteWithImm
            | WrOpcode::Send
            | WrOpcode::SendWithImm
            | WrOpcode::SendWithInv
            | WrOpcode::Tso => Self::Consuming,
        }
    }

    /// Whether a result comes back.
    pub(super) const fn has_result(self) -> bool {
        matches!(self, Self::Read | Self::Atomic)
    }

    /// Whether others than the requester can notice that it was executed.
    pub(super) const fn noticeable(self) -> bool {
        matches!(self, Self::Atomic | Self::Write | Self::Consuming)
    }
}

/// What a failed completion says of its own request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Itself {
    /// It was not executed.
    NotExecuted,
    /// It failed for a reason of its own, and may have been executed all the same.
    Unknown,
    /// It did not fail by itself, but with its queue pair: nothing is said of it.
    Silent,
}

/// What a failed completion says of the requests behind its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Behind {
    /// The device has begun none of them.
    NotBegun,
    /// The peer has executed none of them. Local operations may have been done.
    NotAtPeer,
    /// Nothing.
    Unknown,
}

/// What the first failed completion of a connection's send queue says. `status` is not SUCCESS.
pub(super) const fn says(status: WcStatus, kind: Kind) -> (Itself, Behind) {
    use WcStatus::*;
    match status {
        // Found when the entry is processed. A READ's and an atomic's memory is touched when the
        // response comes in, so that these may be found then.
        LocLenErr | LocProtErr if kind.has_result() => (Itself::Unknown, Behind::Unknown),
        LocLenErr | LocProtErr | LocQpOpErr | MwBindErr => (Itself::NotExecuted, Behind::NotBegun),
        // Refused by the peer: a NAK stands for its request, and for all packets behind it.
        RemInvReqErr | RemAccessErr | RnrRetryExcErr => match kind {
            // No packet of these leaves: the device contradicts itself.
            Kind::Nothing | Kind::Local => (Itself::Unknown, Behind::Unknown),
            _ => (Itself::NotExecuted, Behind::NotAtPeer),
        },
        // A NAK as well, of a request that the peer had begun.
        RemOpErr => match kind {
            Kind::Nothing | Kind::Local => (Itself::Unknown, Behind::Unknown),
            _ => (Itself::Unknown, Behind::NotAtPeer),
        },
        // An answer came, and could not be used.
        LocAccessErr | BadRespErr => (Itself::Unknown, Behind::Unknown),
        // No answer came; or the queue pair stopped for a reason that is not this request's.
        RetryExcErr | RespTimeoutErr | WrFlushErr | FatalErr => (Itself::Silent, Behind::Unknown),
        // Statuses of other transports and of receives, and what the device gives no reason for.
        Success | LocEecOpErr | LocRddViolErr | RemInvRdReqErr | RemAbortErr | InvEecnErr
        | InvEecStateErr | GeneralErr | TmErr | TmRndvIncomplete => {
            (Itself::Unknown, Behind::Unknown)
        }
    }
}
