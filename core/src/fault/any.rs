//! A fault of any family.

use super::table::text;
use super::{CmEvent, Errno, EventType, Text, WcStatus};
use crate::queue::Failure;
use crate::wr::{QpType, WrOpcode};
use core::fmt;

/// A fault, with what its class depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// A completion.
    Status {
        /// Its status.
        status: WcStatus,
        /// The transport of its queue pair.
        transport: QpType,
        /// The queue it was posted to.
        queue: WorkQueue,
        /// The device's own code, where the device is known.
        vendor: Option<Vendor>,
    },
    /// An asynchronous event.
    Event(EventType),
    /// An asynchronous event that has no name here (`ibv_event_type`).
    UnknownEvent(u32),
    /// An event of the communication manager.
    Cm(CmEvent),
    /// An event of the communication manager that has no name here (`rdma_cm_event_type`).
    UnknownCm(u32),
    /// The error number of a verbs call. Its sign does not matter: an `rdma_cm_event` has it negated.
    Errno(i32),
    /// The peer asks for a recovery.
    Peer,
    /// The peer has closed its end, in good order.
    PeerClosed,
    /// The peer cannot be reached any more, or makes no sense.
    PeerLost,
}

/// The queue that a completed request was posted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WorkQueue {
    /// The send queue, and which operation it was, where that is known: a READ or an atomic may fail
    /// after it was executed.
    Send(Option<WrOpcode>),
    /// The queue pair's own receive queue.
    Recv,
    /// A shared receive queue.
    SharedRecv,
}

/// A device's own code of an error, which has a meaning on its devices only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Vendor {
    /// ConnectX: `ibv_wc.vendor_err`, the vendor syndrome of the error entry.
    ConnectX(u8),
}

/// The value of a family with this number, if it has one.
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
    /// A completion with the status of this number (`ibv_wc_status`). One that has no name here is a
    /// general error.
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

    /// What a poll told, of a queue pair of this transport.
    pub const fn completion(failure: &Failure, transport: QpType, queue: WorkQueue) -> Self {
        Self::Status {
            status: failure.status,
            transport,
            queue,
            vendor: None,
        }
    }

    /// The asynchronous event of this number (`ibv_event_type`).
    pub const fn event(number: u32) -> Self {
        match known!(EventType, number) {
            Some(event) => Self::Event(event),
            None => Self::UnknownEvent(number),
        }
    }

    /// The event of the communication manager of this number (`rdma_cm_event_type`).
    pub const fn cm(number: u32) -> Self {
        match known!(CmEvent, number) {
            Some(event) => Self::Cm(event),
            None => Self::UnknownCm(number),
        }
    }

    /// Whether it was learnt from the peer.
    pub(super) const fn is_of_peer(self) -> bool {
        matches!(self, Self::Peer | Self::PeerClosed | Self::PeerLost)
    }

    /// Its name in the verbs, and what happened.
    const fn told(self) -> (Text, Text) {
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
            Self::Peer => (text!("PEER"), text!("The peer asks for a recovery.")),
            Self::PeerClosed => (
                text!("PEER_CLOSED"),
                text!("The peer has closed its end, in good order."),
            ),
            Self::PeerLost => (
                text!("PEER_LOST"),
                text!("The peer cannot be reached any more, or makes no sense."),
            ),
        }
    }

    /// Its name in the verbs, without the prefix; `UNKNOWN` for a number that has none.
    pub const fn name(self) -> Text {
        self.told().0
    }

    /// What happened, in a sentence.
    pub const fn text(self) -> Text {
        self.told().1
    }
}

/// `CQ_ERR`, or `UNKNOWN (77)`.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())?;
        match *self {
            Self::UnknownEvent(number) | Self::UnknownCm(number) => write!(f, " ({number})"),
            Self::Errno(number) if Errno::from_errno(number).is_none() && number != 0 => {
                write!(f, " ({number})")
            }
            _ => Ok(()),
        }
    }
}

impl Errno {
    /// The error with this number, or with this number negated.
    pub const fn from_errno(errno: i32) -> Option<Self> {
        known!(Errno, errno.unsigned_abs())
    }
}
