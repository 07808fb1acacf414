//! Faults by family and number: how the two ends of a link name them to each other, and how C does.

use super::table::terms;
use super::{Fault, WorkQueue};
use crate::wr::QpType;
use core::fmt;

terms! {
    /// Where the number of a fault comes from.
    FaultFamily {
        Status = 0, "STATUS", "A completion: `ibv_wc_status`.";
        Event = 1, "EVENT", "An asynchronous event: `ibv_event_type`.";
        Cm = 2, "CM", "An event of the communication manager: `rdma_cm_event_type`.";
        Errno = 3, "ERRNO", "The error number of a verbs call.";
        Peer = 4, "PEER", "What a link learns of its peer.";
        Link = 5, "LINK", "What a link finds that watches its requests and its peer.";
    }
}

/// The faults of a family without a table of their own, by number.
const PEER: [Fault; 4] = [
    Fault::PeerRecovery,
    Fault::PeerClosed,
    Fault::PeerLost,
    Fault::PeerRestarted,
];
/// The number of [`Fault::PeerGaveUp`], which names another fault.
const PEER_GAVE_UP: i32 = PEER.len() as i32;
const LINK: [Fault; 4] = [
    Fault::DeadlineMissed,
    Fault::KeepAliveMissed,
    Fault::RecvLimitExceeded,
    Fault::Cancelled,
];

/// A fault without its circumstances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FaultCode {
    family: FaultFamily,
    number: i32,
}

impl FaultCode {
    /// The fault of this number; `None` if the families [`Peer`](FaultFamily::Peer) and
    /// [`Link`](FaultFamily::Link) have none. Every number of the others is a fault.
    pub const fn new(family: FaultFamily, number: i32) -> Option<Self> {
        let faults = match family {
            FaultFamily::Peer => PEER.len(),
            FaultFamily::Link => LINK.len(),
            _ => return Some(Self { family, number }),
        };
        match 0 <= number && (number as usize) < faults {
            true => Some(Self { family, number }),
            false => None,
        }
    }

    /// The family.
    pub const fn family(self) -> FaultFamily {
        self.family
    }

    /// The number within the family.
    pub const fn number(self) -> i32 {
        self.number
    }

    /// The fault. A completion is taken for one of a send on a reliable connection.
    pub const fn fault(self) -> Fault {
        let number = self.number as u32;
        match self.family {
            FaultFamily::Status => Fault::status(number, QpType::Rc, WorkQueue::Send(None), None),
            FaultFamily::Event => Fault::event(number),
            FaultFamily::Cm => Fault::cm(number),
            FaultFamily::Errno => Fault::Errno(self.number),
            FaultFamily::Peer => PEER[number as usize],
            FaultFamily::Link => LINK[number as usize],
        }
    }
}

/// Prints as its fault does, for example `CQ_ERR`.
impl fmt::Display for FaultCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fault().fmt(f)
    }
}

impl Fault {
    /// Family and number.
    pub const fn code(self) -> (FaultFamily, i32) {
        match self {
            Self::Status { status, .. } => (FaultFamily::Status, status.number() as i32),
            Self::Event(event) => (FaultFamily::Event, event.number() as i32),
            Self::UnknownEvent(number) => (FaultFamily::Event, number.cast_signed()),
            Self::Cm(event) => (FaultFamily::Cm, event.number() as i32),
            Self::UnknownCm(number) => (FaultFamily::Cm, number.cast_signed()),
            Self::Errno(number) => (FaultFamily::Errno, number),
            Self::PeerRecovery => (FaultFamily::Peer, 0),
            Self::PeerClosed => (FaultFamily::Peer, 1),
            Self::PeerLost => (FaultFamily::Peer, 2),
            Self::PeerRestarted => (FaultFamily::Peer, 3),
            Self::PeerGaveUp(_) => (FaultFamily::Peer, PEER_GAVE_UP),
            Self::DeadlineMissed => (FaultFamily::Link, 0),
            Self::KeepAliveMissed => (FaultFamily::Link, 1),
            Self::RecvLimitExceeded => (FaultFamily::Link, 2),
            Self::Cancelled => (FaultFamily::Link, 3),
        }
    }

    /// The fault without its circumstances; of [`PeerGaveUp`](Self::PeerGaveUp) the fault that the peer named.
    pub const fn without_circumstances(self) -> FaultCode {
        match self {
            Self::PeerGaveUp(named) => named,
            other => {
                let (family, number) = other.code();
                FaultCode { family, number }
            }
        }
    }
}
