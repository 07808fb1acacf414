//! The class of each fault.

use super::table::text;
use super::{
    Blame, Class, Errno, Execution, Fault, Recovery, Retry, Scope, Vendor, WcStatus, WorkQueue,
};
use crate::wr::{QpType, WrOpcode};

/// Returns what a fault means and how to recover from it. Every number has a class.
///
/// # Examples
/// ```
/// use bellwire_core::fault::{Fault, Recovery, Scope, WcStatus, WorkQueue, classify};
/// use bellwire_core::wr::QpType;
///
/// // The status of a failed completion that a poll reported.
/// let status = WcStatus::RnrRetryExcErr;
/// let class = classify(Fault::Status {
///     status,
///     transport: QpType::Rc,
///     queue: WorkQueue::Send(None),
///     vendor: None,
/// });
/// println!("{status}: {}", status.text());
/// println!("cause: {}", class.cause);
/// println!("{} It is broken: {}", class.blame.text(), class.scope.text());
/// println!("the request: {} {}", class.execution.text(), class.retry.text());
/// println!("to do: {}", class.recovery.text());
/// println!("look at: {}", class.advice);
///
/// assert_eq!((class.scope, class.recovery), (Scope::Qp, Recovery::ResetQp));
/// ```
pub const fn classify(fault: Fault) -> Class {
    match fault {
        Fault::Status {
            status,
            transport,
            queue,
            vendor,
        } => completion(status, transport, queue, vendor),
        Fault::Event(event) => event.row(),
        Fault::Cm(event) => event.row(),
        Fault::UnknownEvent(_) | Fault::UnknownCm(_) => UNKNOWN_EVENT,
        Fault::Errno(0) => NO_ERROR,
        Fault::Errno(number) => match Errno::from_errno(number) {
            Some(errno) => errno.row(),
            None => UNKNOWN_ERRNO,
        },
        Fault::PeerRecovery => PEER,
        Fault::PeerClosed => PEER_CLOSED,
        Fault::PeerLost => PEER_LOST,
        Fault::PeerRestarted => PEER_RESTARTED,
        Fault::PeerGaveUp(_) => PEER_GAVE_UP,
        Fault::DeadlineMissed => DEADLINE_MISSED,
        Fault::KeepAliveMissed => KEEP_ALIVE_MISSED,
        Fault::RecvLimitExceeded => RECV_LIMIT_EXCEEDED,
        Fault::Cancelled => CANCELLED,
    }
}

const fn completion(
    status: WcStatus,
    transport: QpType,
    queue: WorkQueue,
    vendor: Option<Vendor>,
) -> Class {
    let mut class = status.row();
    match (queue, vendor) {
        (WorkQueue::SharedRecv, Some(Vendor::ConnectX(code)))
            if matches!(status, WcStatus::RemAbortErr) && connectx::receive_comes_back(code) =>
        {
            return connectx::RECEIVE_COMES_BACK;
        }
        (WorkQueue::Recv | WorkQueue::SharedRecv, _) => {
            class.execution = Execution::DoesNotApply;
        }
        (WorkQueue::Send(opcode), _) => {
            let unreliable = matches!(transport, QpType::Uc | QpType::Ud);
            if unreliable && matches!(class.recovery, Recovery::ResetQp) {
                class.recovery = Recovery::SqeToRts;
            }
            let reported_by_peer = matches!(class.execution, Execution::Executed);
            let while_answered =
                matches!(status, WcStatus::LocLenErr | WcStatus::LocProtErr) && brings_data(opcode);
            if (unreliable && reported_by_peer) || while_answered {
                class.execution = Execution::Unknown;
            }
        }
    }
    class
}

/// Whether the operation returns data to the requester, or may.
const fn brings_data(opcode: Option<WrOpcode>) -> bool {
    match opcode {
        Some(operation) => operation.has_result(),
        None => true,
    }
}

/// The documented vendor syndromes of ConnectX: rdma-core's mlx5dv.h names 0x93
/// (`MLX5_CQE_VENDOR_SYNDROME_ODP_PFAULT`), and UCX names both; no other is documented.
mod connectx {
    use super::*;

    /// Whether the responder aborted a message and returned its receive; the requester sends the message
    /// again.
    pub(super) const fn receive_comes_back(code: u8) -> bool {
        /// A page of the receive was not resident.
        const ODP_PAGE_FAULT: u8 = 0x93;
        /// A packet was out of sequence.
        const PSN: u8 = 0x99;
        matches!(code, ODP_PAGE_FAULT | PSN)
    }

    pub(super) const RECEIVE_COMES_BACK: Class = Class {
        scope: Scope::Request,
        cause: text!(
            "A page of the receive was not there, or packets were out of sequence: the device aborted the \
             message, and its sender sends it again."
        ),
        blame: Blame::Nobody,
        retry: Retry::Helps,
        execution: Execution::DoesNotApply,
        recovery: Recovery::None,
        advice: text!(
            "Post the receive again. If it is often: memory registered on demand that is not \
             resident, or lost packets."
        ),
    };
}

const UNKNOWN_EVENT: Class = Class {
    scope: Scope::None,
    cause: text!("An event that this version does not know."),
    blame: Blame::Unknown,
    retry: Retry::DoesNotApply,
    execution: Execution::DoesNotApply,
    recovery: Recovery::None,
    advice: text!("Its number, with the manual pages of the rdma-core that is installed."),
};

const UNKNOWN_ERRNO: Class = Class {
    scope: Scope::Request,
    cause: text!("An error that verbs calls are not known to return."),
    blame: Blame::Unknown,
    retry: Retry::AfterRepair,
    execution: Execution::Unknown,
    recovery: Recovery::None,
    advice: text!("errno(3); the kernel log."),
};

const NO_ERROR: Class = Class {
    scope: Scope::None,
    cause: text!("The call succeeded."),
    blame: Blame::Nobody,
    retry: Retry::DoesNotApply,
    execution: Execution::DoesNotApply,
    recovery: Recovery::None,
    advice: text!("Nothing."),
};

const PEER: Class = Class {
    scope: Scope::Connection,
    cause: text!("The peer met a fault of its own, and recovers."),
    blame: Blame::Nobody,
    retry: Retry::Helps,
    execution: Execution::Unknown,
    recovery: Recovery::ResetQp,
    advice: text!("What the peer's program says about its fault."),
};

const PEER_CLOSED: Class = Class {
    scope: Scope::Connection,
    cause: text!("The peer's program ended its end of the connection, and said so."),
    blame: Blame::Nobody,
    retry: Retry::AfterRepair,
    execution: Execution::Unknown,
    recovery: Recovery::Reconnect,
    advice: text!("Nothing, if the peer was to end; otherwise its program's log."),
};

const PEER_RESTARTED: Class = Class {
    scope: Scope::Connection,
    cause: text!(
        "The peer's process ended, and another one has its place: what the first had not stored is gone."
    ),
    blame: Blame::RemoteProgram,
    retry: Retry::AfterRepair,
    execution: Execution::Unknown,
    recovery: Recovery::Reconnect,
    advice: text!(
        "Why the peer's program ended. Make a new link, and have both sides compare what they have."
    ),
};

const PEER_GAVE_UP: Class = Class {
    scope: Scope::Connection,
    cause: text!(
        "The peer met a fault that it cannot recover from, or found that this end breaks a rule of its own, \
         and ended the link."
    ),
    blame: Blame::Unknown,
    retry: Retry::AfterRepair,
    execution: Execution::Unknown,
    recovery: Recovery::Reconnect,
    advice: text!(
        "The fault that the peer names, on this page. Its text is written for the peer: \"the peer\" in it is \
         this end."
    ),
};

const PEER_LOST: Class = Class {
    scope: Scope::Connection,
    cause: text!(
        "The peer's process or host ended without a message, the connection for messages about recoveries \
         was cut, or bytes came over it that are no such message."
    ),
    blame: Blame::RemoteProgram,
    retry: Retry::AfterRepair,
    execution: Execution::Unknown,
    recovery: Recovery::Reconnect,
    advice: text!("Whether the peer still runs; the network between the two; both ends' versions."),
};

const DEADLINE_MISSED: Class = Class {
    scope: Scope::Connection,
    cause: text!(
        "The peer posts no receive while retries are infinite, the path loses packets, the deadline is \
         shorter than the work, or the queue pair has stopped silently."
    ),
    blame: Blame::Unknown,
    retry: Retry::Helps,
    execution: Execution::Unknown,
    recovery: Recovery::ResetQp,
    advice: text!(
        "Whether the peer posts its receives in time; the link's deadline; the port's error counters."
    ),
};

const KEEP_ALIVE_MISSED: Class = Class {
    scope: Scope::Connection,
    cause: text!(
        "The peer's host or the path to it failed while nothing was in flight, or the queue pair has stopped."
    ),
    blame: Blame::Fabric,
    retry: Retry::Helps,
    execution: Execution::Unknown,
    recovery: Recovery::ResetQp,
    advice: text!("Whether the peer's host still runs; cables and switches between the two."),
};

const RECV_LIMIT_EXCEEDED: Class = Class {
    scope: Scope::Connection,
    cause: text!(
        "The peer sends more than the protocol between the programs allows, or this program returns \
         buffers too late for the limit. The shared receive queue is everybody's: nothing else stops one \
         peer from taking all of it."
    ),
    blame: Blame::RemoteProgram,
    retry: Retry::AfterRepair,
    execution: Execution::DoesNotApply,
    recovery: Recovery::CloseLink,
    advice: text!(
        "How many messages the peer may have outstanding, against the limit; how long this program holds \
         the buffers."
    ),
};

const CANCELLED: Class = Class {
    scope: Scope::Connection,
    cause: text!(
        "The program cancelled a request, or its deadline passed, while the device had it. No device gives one \
         request back: the queue pair is reset, and the other requests are posted again as their replay policy \
         says."
    ),
    blame: Blame::LocalProgram,
    retry: Retry::DoesNotApply,
    execution: Execution::Unknown,
    recovery: Recovery::ResetQp,
    advice: text!(
        "Nothing, if it is rare. Otherwise whether the peer answers in time, and whether the deadlines of \
         requests leave it the time."
    ),
};
