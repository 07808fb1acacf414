//! Fault injection: what is to go wrong on a software HCA, and when.

use super::random::Random;
use crate::event::{Element, EventType};
use bellwire_core::fault::CmEvent;
use bellwire_core::wr::WcStatus;
use std::fmt;
use std::time::Duration;

/// When a fault occurs. Counters and times start when the script is given to the device. Entries and packets
/// are counted over the whole device unless a queue pair is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// At the n-th send entry that is executed, counted from 1. Retries are not counted again.
    Entry(u64),
    /// At the n-th request packet, counted from 1. Each attempt to execute an entry is one packet.
    Packet(u64),
    /// At the n-th send entry of one queue pair, counted from 1 and across its lives (resets do not restart
    /// the count).
    EntryOf {
        /// The queue pair's number.
        qp_num: u32,
        /// Which entry.
        nth: u64,
    },
    /// At the n-th request packet of one queue pair, counted from 1 and across its lives (resets do not
    /// restart the count).
    PacketOf {
        /// The queue pair's number.
        qp_num: u32,
        /// Which packet.
        nth: u64,
    },
    /// At the n-th change of any queue pair's state or attributes (ibv_modify_qp(3)), counted from 1, before
    /// the change is made. Every step of connecting and of recovering is one change.
    Modify(u64),
    /// After this much of the device's time.
    After(Duration),
}

/// What goes wrong.
///
/// The first group affects the current request, and needs a trigger that counts entries or packets. The
/// second group affects the device, and takes any trigger. [`RefuseModify`](Self::RefuseModify) is between
/// the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request is lost on the wire. A reliable requester sends it again when its timer expires.
    DropRequest,
    /// The request is executed, but its acknowledgement is lost.
    DropAck,
    /// The request takes this much longer.
    Delay(Duration),
    /// The responder rejects the request's rkey, if it has one.
    RemoteAccess,
    /// The responder replies with an RNR NAK.
    Rnr,
    /// The request completes with this status, which is not SUCCESS, and is not executed.
    Status(WcStatus),
    /// The request is executed, but completes with this status, which is not SUCCESS, as if the error had
    /// affected the response. An entry that cannot be executed completes with its own error. If the requester
    /// and its peer are in different processes, same as [`Status`](Self::Status).
    StatusAfter(WcStatus),
    /// The request is executed, and its completion overruns the send completion queue and is lost. If the
    /// request is unsignalled, the next completion of that queue overruns it.
    SendCqOverrun,
    /// The request is executed and consumes a receive, whose completion overruns its completion queue and is
    /// lost. No effect if the request consumes no receive, or if the receiver is in another process.
    RecvCqOverrun,
    /// The current change of a queue pair's state or attributes is refused with ENOMEM, and not made. Needs a
    /// [`Trigger::Modify`].
    RefuseModify,
    /// The completion queue of this number is overrun.
    CqOverrun(u32),
    /// The queue pair of this number has a fatal error.
    QpFatal(u32),
    /// The shared receive queue of this number has a fatal error.
    SrqErr(u32),
    /// The device has a fatal error from which it does not recover.
    DeviceFatal,
    /// The port's link goes down.
    PortDown,
    /// The port's link comes up.
    PortUp,
    /// An asynchronous event that no other fault causes.
    Raise(EventType, Element),
    /// An error event of the communication manager. `ADDR_ERROR`, `ROUTE_ERROR`, `CONNECT_ERROR`,
    /// `UNREACHABLE` and `REJECTED` become the outcome of the next call that can report them. `ADDR_CHANGE`
    /// and `DEVICE_REMOVAL` are delivered to all ids that are bound to the device. `MULTICAST_ERROR` is
    /// delivered to all ids that are members of a group, and ends their membership.
    Cm(CmEvent),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DropRequest => f.write_str("the loss of a request"),
            Self::DropAck => f.write_str("the loss of an acknowledgement"),
            Self::Delay(time) => write!(f, "a delay of {time:?}"),
            Self::RemoteAccess => f.write_str("the refusal of an rkey"),
            Self::Rnr => f.write_str("an RNR NAK"),
            Self::Status(status) => write!(f, "the status {status}"),
            Self::StatusAfter(status) => write!(f, "the status {status} after the execution"),
            Self::SendCqOverrun => f.write_str("an overrun by a send completion"),
            Self::RecvCqOverrun => f.write_str("an overrun by a receive completion"),
            Self::RefuseModify => f.write_str("the refusal of a change"),
            Self::CqOverrun(cqn) => write!(f, "an overrun of completion queue {cqn:#x}"),
            Self::QpFatal(qpn) => write!(f, "the failure of queue pair {qpn:#x}"),
            Self::SrqErr(srqn) => write!(f, "the failure of shared receive queue {srqn:#x}"),
            Self::DeviceFatal => f.write_str("the failure of the device"),
            Self::PortDown => f.write_str("taking the port down"),
            Self::PortUp => f.write_str("taking the port up"),
            Self::Raise(event, element) => write!(f, "{event} of {element}"),
            Self::Cm(event) => f.write_str(event.name()),
        }
    }
}

impl Fault {
    /// The element that the fault names, which has to exist when the fault is injected.
    pub const fn element(&self) -> Option<Element> {
        match *self {
            Self::CqOverrun(cqn) => Some(Element::Cq(cqn)),
            Self::QpFatal(qpn) => Some(Element::Qp(qpn)),
            Self::SrqErr(srqn) => Some(Element::Srq(srqn)),
            Self::Raise(_, element) => Some(element),
            _ => None,
        }
    }

    /// Whether it affects the current request.
    pub const fn is_of_request(&self) -> bool {
        matches!(
            self,
            Self::DropRequest
                | Self::DropAck
                | Self::Delay(_)
                | Self::RemoteAccess
                | Self::Rnr
                | Self::Status(_)
                | Self::StatusAfter(_)
                | Self::SendCqOverrun
                | Self::RecvCqOverrun
        )
    }
}

/// A list of faults for `SoftDevice::inject`.
///
/// ```
/// use bellwire_soft::{Fault, Script, Trigger};
/// use std::time::Duration;
///
/// let script = Script::default()
///     .with(Trigger::Entry(3), Fault::DropAck)
///     .with(Trigger::After(Duration::from_millis(5)), Fault::PortDown);
/// assert_eq!(script.steps().len(), 2);
/// // The same seed is the same script.
/// let kinds = [Fault::DropRequest, Fault::Rnr];
/// assert_eq!(Script::seeded(7, 1000, 20, &kinds), Script::seeded(7, 1000, 20, &kinds));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script {
    steps: Vec<(Trigger, Fault)>,
}

impl Script {
    /// Adds a fault. Faults with the same trigger occur in the order in which they were added. If several
    /// affect the same request, only the first does.
    #[must_use]
    pub fn with(mut self, trigger: Trigger, fault: Fault) -> Self {
        self.steps.push((trigger, fault));
        self
    }

    /// A script of `count` faults drawn from `kinds`, at random among the next `packets` packets.
    pub fn seeded(seed: u64, packets: u64, count: usize, kinds: &[Fault]) -> Self {
        let mut random = Random::new(seed);
        let steps = (0..count).filter_map(|_| {
            let packet = 1 + random.draw() % packets.max(1);
            let at = random.draw() as usize % kinds.len().max(1);
            Some((Trigger::Packet(packet), *kinds.get(at)?))
        });
        Self {
            steps: steps.collect(),
        }
    }

    /// The steps, in the order in which they were added.
    pub fn steps(&self) -> &[(Trigger, Fault)] {
        &self.steps
    }
}

/// The faults that have not occurred yet.
#[derive(Debug, Default)]
pub(super) struct Pending {
    counted: Vec<Counted>,
    /// With the number of their timer.
    timed: Vec<(u64, Fault)>,
}

/// A fault that occurs when `left` reaches zero.
#[derive(Debug)]
struct Counted {
    what: Count,
    /// Counts only this queue pair's.
    qp_num: Option<u32>,
    left: u64,
    fault: Fault,
}

impl Counted {
    /// Whether it counts this packet of this queue pair.
    fn counts(&self, qp_num: u32, new_entry: bool) -> bool {
        self.qp_num.is_none_or(|of| of == qp_num)
            && match self.what {
                Count::Entries => new_entry,
                Count::Packets => true,
                Count::Modifies => false,
            }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Count {
    Entries,
    Packets,
    Modifies,
}

impl Pending {
    /// Adds a step. If the trigger is a time, returns it, and the caller sets a timer of this number.
    pub fn add(&mut self, trigger: Trigger, fault: Fault, timer: u64) -> Option<Duration> {
        let (what, qp_num, nth) = match trigger {
            Trigger::Entry(nth) => (Count::Entries, None, nth),
            Trigger::Packet(nth) => (Count::Packets, None, nth),
            Trigger::EntryOf { qp_num, nth } => (Count::Entries, Some(qp_num), nth),
            Trigger::PacketOf { qp_num, nth } => (Count::Packets, Some(qp_num), nth),
            Trigger::Modify(nth) => (Count::Modifies, None, nth),
            Trigger::After(time) => {
                self.timed.push((timer, fault));
                return Some(time);
            }
        };
        let left = nth.max(1);
        self.counted.push(Counted {
            what,
            qp_num,
            left,
            fault,
        });
        None
    }

    /// Whether some fault waits for an entry or a packet.
    pub fn counts_packets(&self) -> bool {
        (self.counted.iter()).any(|counted| counted.what != Count::Modifies)
    }

    /// Counts a packet, and an entry if it is the entry's first packet. Returns the faults that occur now.
    pub fn packet(&mut self, qp_num: u32, new_entry: bool) -> Vec<Fault> {
        self.count(|counted| counted.counts(qp_num, new_entry))
    }

    /// Whether a fault will affect the next packet of a queue pair.
    pub fn hits(&self, qp_num: u32, new_entry: bool) -> bool {
        (self.counted.iter()).any(|counted| {
            counted.left == 1 && counted.fault.is_of_request() && counted.counts(qp_num, new_entry)
        })
    }

    /// Counts a change of a queue pair. Returns the faults that occur now.
    pub fn modify(&mut self) -> Vec<Fault> {
        self.count(|counted| counted.what == Count::Modifies)
    }

    fn count(&mut self, counts: impl Fn(&Counted) -> bool) -> Vec<Fault> {
        let mut now = Vec::new();
        self.counted.retain_mut(|counted| {
            counted.left -= u64::from(counts(counted));
            if counted.left == 0 {
                now.push(counted.fault);
            }
            counted.left != 0
        });
        now
    }

    /// The fault that occurs when this timer expires.
    pub fn expired(&mut self, timer: u64) -> Option<Fault> {
        let at = self.timed.iter().position(|(of, _)| *of == timer)?;
        Some(self.timed.swap_remove(at).1)
    }

    /// Removes all faults that have not occurred yet.
    pub fn clear(&mut self) {
        self.counted.clear();
        self.timed.clear();
    }
}
