//! Faults to order: what is to go wrong on a software HCA, and when.

use super::random::Random;
use crate::event::{Element, EventType};
use bellwire_core::wr::WcStatus;
use std::time::Duration;

/// When a fault strikes. Entries and packets count over the whole device from the moment at which
/// the script was given to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// At the n-th send entry that is executed, from 1; retries are not new entries.
    Entry(u64),
    /// At the n-th request packet, from 1: each attempt to execute an entry is one.
    Packet(u64),
    /// After this much of the device's time.
    After(Duration),
}

/// What goes wrong.
///
/// The first group befalls the request at hand, and needs a [`Trigger::Entry`] or
/// [`Trigger::Packet`]; the second the device, at any trigger.
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
    /// At entries and packets, as absolute counts.
    counted: Vec<(Count, Fault)>,
    /// By the number of their timer.
    timed: Vec<(u64, Fault)>,
    entries: u64,
    packets: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Count {
    Entry(u64),
    Packet(u64),
}

impl Pending {
    /// Adds a step; those that wait for a time are the caller's to set a timer for, by this number.
    pub fn add(&mut self, trigger: Trigger, fault: Fault, timer: u64) -> Option<Duration> {
        let count = match trigger {
            Trigger::Entry(nth) => Count::Entry(self.entries.saturating_add(nth.max(1))),
            Trigger::Packet(nth) => Count::Packet(self.packets.saturating_add(nth.max(1))),
            Trigger::After(time) => {
                self.timed.push((timer, fault));
                return Some(time);
            }
        };
        self.counted.push((count, fault));
        None
    }

    /// Whether something is to go wrong at some entry or packet.
    pub fn counts(&self) -> bool {
        !self.counted.is_empty()
    }

    /// Counts a packet, and an entry if it is the first of one, and gives what strikes now.
    pub fn packet(&mut self, new_entry: bool) -> Vec<Fault> {
        self.packets += 1;
        self.entries += u64::from(new_entry);
        let (entries, packets) = (self.entries, self.packets);
        let due = |count: &Count| match *count {
            Count::Entry(at) => new_entry && at == entries,
            Count::Packet(at) => at == packets,
        };
        let mut now = Vec::new();
        self.counted.retain(|(count, fault)| {
            if due(count) {
                now.push(*fault);
            }
            !due(count)
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
