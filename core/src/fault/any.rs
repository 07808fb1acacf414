//! A fault of any family.

use super::table::text;
use super::{CmEvent, Errno, EventType, FaultCode, Text, WcStatus};
use crate::wr::{QpType, WrOpcode};
use core::fmt;

/// A fault, with the circumstances that its class depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The status of a completion.
    Status {
        /// The status.
        status: WcStatus,
        /// The transport of the queue pair.
        transport: QpType,
        /// The queue that the request was posted to.
        queue: WorkQueue,
        /// The vendor error code, where the device is known.
        vendor: Option<Vendor>,
    },
    /// An asynchronous event.
    Event(EventType),
    /// An asynchronous event whose number (`ibv_event_type`) has no name here.
    UnknownEvent(u32),
    /// An event of the communication manager.
    Cm(CmEvent),
    /// An event of the communication manager whose number (`rdma_cm_event_type`) has no name here.
    UnknownCm(u32),
    /// The error number of a verbs call. The sign is ignored: `rdma_cm_event` carries it negated.
    Errno(i32),
    /// The peer asks for a recovery.
    PeerRecovery,
    /// The peer has closed its end in an orderly way.
    PeerClosed,
    /// The peer cannot be reached any more, or its messages are invalid.
    PeerLost,
    /// Another process replies in place of the peer.
    PeerRestarted,
    /// The peer has given the link up, for this reason of its own.
    PeerGaveUp(FaultCode),
    /// A request has missed its deadline.
    DeadlineMissed,
    /// The peer has not acknowledged a keep-alive in time.
    KeepAliveMissed,
    /// The peer's messages hold more receive buffers than one link may.
    RecvLimitExceeded,
    /// A request in flight was cancelled, or has missed a deadline of its own.
    Cancelled,
}

/// The queue that a completed request was posted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WorkQueue {
    /// The send queue, and the operation where it is known: a READ or an atomic may fail after it was
    /// executed.
    Send(Option<WrOpcode>),
    /// The queue pair's own receive queue.
    Recv,
    /// A shared receive queue.
    SharedRecv,
}

/// A vendor error code, whose meaning depends on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Vendor {
    /// ConnectX: `ibv_wc.vendor_err`, the vendor syndrome of the error CQE.
    ConnectX(u8),
}

/// The variant of a family with this number, if there is one.
macro_rules! known {
    ($family:ident, $number:expr) => {
        if $number <= u8::MAX as u32 {
            $family::from_number($number as u8)
        } else {
            None
        }
    };
}

impl Fault {
    /// A completion with this status number (`ibv_wc_status`). A number without a name here is classified as
    /// a general error.
    pub const fn status(
        number: u32,
        transport: QpType,
        queue: WorkQueue,
        vendor: Option<Vendor>,
    ) -> Self {
        let status = match known!(WcStatus, number) {
            Some(status) => status,
            None => WcStatus::GeneralErr,
        };
        Self::Status {
            status,
            transport,
            queue,
            vendor,
        }
    }

    /// The asynchronous event with this number (`ibv_event_type`).
    pub const fn event(number: u32) -> Self {
        match known!(EventType, number) {
            Some(event) => Self::Event(event),
            None => Self::UnknownEvent(number),
        }
    }

    /// The event of the communication manager with this number (`rdma_cm_event_type`).
    pub const fn cm(number: u32) -> Self {
        match known!(CmEvent, number) {
            Some(event) => Self::Cm(event),
            None => Self::UnknownCm(number),
        }
    }

    /// Whether the fault concerns the peer itself.
    pub(super) const fn is_of_peer(self) -> bool {
        matches!(
            self,
            Self::PeerRecovery
                | Self::PeerClosed
                | Self::PeerLost
                | Self::PeerRestarted
                | Self::PeerGaveUp(_)
        )
    }

    /// The verbs name, and what happened.
    const fn name_and_text(self) -> (Text, Text) {
        macro_rules! of {
            ($row:expr) => {
                ($row.c_name(), $row.text())
            };
        }
        match self {
            Self::Status { status, .. } => of!(status),
            Self::Event(event) => of!(event),
            Self::Cm(event) => of!(event),
            Self::Errno(0) => (text!("SUCCESS"), text!("The call succeeded.")),
            Self::Errno(number) => match Errno::from_errno(number) {
                Some(errno) => of!(errno),
                None => (text!("UNKNOWN"), text!("An unknown error.")),
            },
            Self::UnknownEvent(_) | Self::UnknownCm(_) => {
                (text!("UNKNOWN"), text!("An unknown event."))
            }
            Self::PeerRecovery => (text!("PEER"), text!("The peer asks for a recovery.")),
            Self::PeerClosed => (
                text!("PEER_CLOSED"),
                text!("The peer has closed its end, in good order."),
            ),
            Self::PeerRestarted => (
                text!("PEER_RESTARTED"),
                text!(
                    "Another process answers in the peer's place, and knows nothing of the link."
                ),
            ),
            Self::PeerGaveUp(_) => (
                text!("PEER_GAVE_UP"),
                text!("The peer has given the link up, for a reason that it names."),
            ),
            Self::PeerLost => (
                text!("PEER_LOST"),
                text!("The peer cannot be reached any more, or makes no sense."),
            ),
            Self::DeadlineMissed => (
                text!("DEADLINE_MISSED"),
                text!("A request did not complete within the time that its link allows."),
            ),
            Self::KeepAliveMissed => (
                text!("KEEP_ALIVE_MISSED"),
                text!("The peer did not acknowledge a keep-alive in time."),
            ),
            Self::RecvLimitExceeded => (
                text!("RECV_LIMIT_EXCEEDED"),
                text!("The peer's messages hold more receive buffers than one link may."),
            ),
            Self::Cancelled => (
                text!("CANCELLED"),
                text!("A request in flight was cancelled, or has missed a deadline of its own."),
            ),
        }
    }

    /// The verbs name without its prefix; `UNKNOWN` for a number without a name.
    pub const fn name(self) -> Text {
        self.name_and_text().0
    }

    /// What happened, in one sentence.
    pub const fn text(self) -> Text {
        self.name_and_text().1
    }
}

/// Prints, for example, `CQ_ERR`, `UNKNOWN (77)` or `PEER_GAVE_UP (RECV_LIMIT_EXCEEDED)`.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())?;
        match *self {
            Self::UnknownEvent(number) | Self::UnknownCm(number) => write!(f, " ({number})"),
            Self::Errno(number) if Errno::from_errno(number).is_none() && number != 0 => {
                write!(f, " ({number})")
            }
            Self::PeerGaveUp(named) => write!(f, " ({named})"),
            _ => Ok(()),
        }
    }
}

impl Errno {
    /// The error with this number, given positive or negated.
    pub const fn from_errno(errno: i32) -> Option<Self> {
        known!(Errno, errno.unsigned_abs())
    }
}
