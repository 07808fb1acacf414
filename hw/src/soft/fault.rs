//! Faults to order: what is to go wrong on a software HCA, and when.

use super::random::Random;
use crate::event::{Element, EventType};
use bellwire_core::fault::CmEvent;
use bellwire_core::wr::WcStatus;
use std::time::Duration;

/// When a fault strikes. Everything counts from the moment at which the script was given to the
/// device, and over all of it where no queue pair is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// At the n-th send entry that is executed, from 1; retries are not new entries.
    Entry(u64),
    /// At the n-th request packet, from 1: each attempt to execute an entry is one.
    Packet(u64),
    /// At the n-th send entry of one queue pair, from 1, in whatever life of it.
    EntryOf {
        /// Its number.
        qp_num: u32,
        /// Which entry.
        nth: u64,
    },
    /// At the n-th request packet of one queue pair, from 1, in whatever life of it.
    PacketOf {
        /// Its number.
        qp_num: u32,
        /// Which packet.
        nth: u64,
    },
    /// At the n-th change of any queue pair's state or attributes (ibv_modify_qp(3)), from 1, before it
    /// is made: every step of a connection and of a recovery is one.
    Modify(u64),
    /// After this much of the device's time.
    After(Duration),
}

/// What goes wrong.
///
/// The first group befalls the request at hand, and needs a trigger that counts entries or packets; the
/// second the device, at any trigger. [`RefuseModify`](Self::RefuseModify) is between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request is lost on its way: a reliable requester sends it again when its timer expires.
    DropRequest,
    /// The request is executed, and its acknowledgement lost.
    DropAck,
    /// The request takes as much longer.
    Delay(Duration),
    /// The responder finds the key wrong, if the request has one.
    RemoteAccess,
    /// The responder says that it is not ready.
    Rnr,
    /// The request completes with this status, which is not SUCCESS, without having been executed.
    Status(WcStatus),
    /// The request completes with this status, which is not SUCCESS, though it was executed: as when
    /// what went wrong befell the answer. Of an entry that cannot be executed: what is wrong with it.
    /// Of a requester in another process than its peer: as [`Status`](Self::Status).
    StatusAfter(WcStatus),
    /// The request is executed, and the completion queue of its sends overruns by its completion, which
    /// is lost; without one, by whatever was to complete there next.
    SendCqOverrun,
    /// The request is executed and consumes a receive, and the completion queue of that overruns by its
    /// completion, which is lost. Nothing if the request takes no receive, or the receiver is in another
    /// process.
    RecvCqOverrun,
    /// The change of a queue pair's state or attributes that is at hand is refused (ENOMEM), and not made.
    /// Needs a [`Trigger::Modify`].
    RefuseModify,
    /// The completion queue of this number loses an entry.
    CqOverrun(u32),
    /// The queue pair of this number breaks.
    QpFatal(u32),
    /// The shared receive queue of this number breaks.
    SrqErr(u32),
    /// The device breaks, for good.
    DeviceFatal,
    /// The port's link goes down.
    PortDown,
    /// The port's link comes up.
    PortUp,
    /// An asynchronous event that nothing else here causes.
    Raise(EventType, Element),
    /// An event of the communication manager, of those that say that something went wrong:
    /// `ADDR_ERROR`, `ROUTE_ERROR`, `CONNECT_ERROR`, `UNREACHABLE` and `REJECTED` are what becomes of the
    /// next call that they could tell of; `ADDR_CHANGE` and `DEVICE_REMOVAL` are told of all ids that are
    /// bound to the device, `MULTICAST_ERROR` of those that are members of a group, which they lose.
    Cm(CmEvent),
}

impl Fault {
    /// Whether it befalls the request at hand.
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

/// A list of faults for [`Device::inject`](crate::Device::inject).
///
/// ```
/// use bellwire::soft::{Fault, Script, Trigger};
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
    /// With one more fault. Of those with the same trigger the first given strikes first; of faults
    /// of one request only the first does.
    #[must_use]
    pub fn with(mut self, trigger: Trigger, fault: Fault) -> Self {
        self.steps.push((trigger, fault));
        self
    }

    /// `count` faults out of `kinds`, at random among the next `packets` packets.
    pub fn seeded(seed: u64, packets: u64, count: usize, kinds: &[Fault]) -> Self {
        let mut random = Random::new(seed);
        let steps = (0..count).filter_map(|_| {
            let packet = 1 + random.next() % packets.max(1);
            let at = random.next() as usize % kinds.len().max(1);
            Some((Trigger::Packet(packet), *kinds.get(at)?))
        });
        Self {
            steps: steps.collect(),
        }
    }

    /// Its steps, in the order in which they were given.
    pub fn steps(&self) -> &[(Trigger, Fault)] {
        &self.steps
    }
}

/// The faults that a device still has before it.
#[derive(Debug, Default)]
pub(super) struct Pending {
    counted: Vec<Counted>,
    /// By the number of their timer.
    timed: Vec<(u64, Fault)>,
}

/// A fault that strikes at the last of what it counts.
#[derive(Debug)]
struct Counted {
    what: Count,
    /// Of this queue pair only.
    qp_num: Option<u32>,
    left: u64,
    fault: Fault,
}

impl Counted {
    /// Whether it counts a packet of this queue pair.
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
    /// Adds a step; those that wait for a time are the caller's to set a timer for, by this number.
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

    /// Whether something is to go wrong at some entry or packet.
    pub fn counts_packets(&self) -> bool {
        (self.counted.iter()).any(|counted| counted.what != Count::Modifies)
    }

    /// Counts a packet, and an entry if it is the first of one, and gives what strikes now.
    pub fn packet(&mut self, qp_num: u32, new_entry: bool) -> Vec<Fault> {
        self.count(|counted| counted.counts(qp_num, new_entry))
    }

    /// Whether the next packet of a queue pair, of a new entry or not, is to be hit.
    pub fn hits(&self, qp_num: u32, new_entry: bool) -> bool {
        (self.counted.iter()).any(|counted| {
            counted.left == 1 && counted.fault.is_of_request() && counted.counts(qp_num, new_entry)
        })
    }

    /// Counts a change of a queue pair, and gives what strikes now.
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

    /// What strikes when this timer expires.
    pub fn expired(&mut self, timer: u64) -> Option<Fault> {
        let at = self.timed.iter().position(|(of, _)| *of == timer)?;
        Some(self.timed.swap_remove(at).1)
    }

    /// Forgets everything that has not struck yet.
    pub fn clear(&mut self) {
        self.counted.clear();
        self.timed.clear();
    }
}
