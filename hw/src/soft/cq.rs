//! The producing end of a completion queue.

use super::arm::Arm;
use super::quiesce::Barriers;
use crate::event::{AsyncQueue, Element, EventQueue, EventType};
use bellwire_core::be::Be64;
use bellwire_core::cqe::{Cqe64, CqeOpcode, owner_bit};
use bellwire_core::port::DoorbellRecord;
use bellwire_core::queue::CqMemory;
use crossbeam_utils::CachePadded;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// What the device knows of a completion queue. Many threads write entries.
#[derive(Debug)]
pub(crate) struct CqCtx {
    memory: CqMemory<'static>,
    consumer: &'static DoorbellRecord,
    /// Producer index, free-running: an entry is claimed by counting it up.
    producer: CachePadded<AtomicU32>,
    /// The consumer index last seen.
    seen: AtomicU32,
    overrun: AtomicBool,
    arm: Arm,
    /// Counted among the armed ones of a node.
    counted: AtomicBool,
    armed: Option<Arc<AtomicU32>>,
    cqn: u32,
    /// Of the context that it was created in.
    events: Arc<AsyncQueue>,
    /// Of its completion channel.
    channel: Option<Arc<EventQueue<()>>>,
}

const CI_MASK: u32 = 0xff_ffff;

impl CqCtx {
    pub fn new(
        memory: CqMemory<'static>,
        consumer: &'static DoorbellRecord,
        cqn: u32,
        events: Arc<AsyncQueue>,
        channel: Option<Arc<EventQueue<()>>>,
        armed: Option<Arc<AtomicU32>>,
    ) -> Self {
        let element = Element::Cq(cqn);
        events.admit(element);
        if let Some(channel) = &channel {
            channel.admit(element);
        }
        Self {
            memory,
            consumer,
            producer: CachePadded::new(AtomicU32::new(0)),
            seen: AtomicU32::new(0),
            overrun: AtomicBool::new(false),
            arm: Arm::new(Barriers::get()),
            counted: AtomicBool::new(false),
            armed,
            cqn,
            events,
            channel,
        }
    }

    /// Its number.
    pub fn cqn(&self) -> u32 {
        self.cqn
    }

    /// Of its completion channel.
    pub fn channel(&self) -> Option<&EventQueue<()>> {
        self.channel.as_deref()
    }

    /// The arm register: takes the word that a ConnectX device does. What is polled from here on is
    /// either seen then, or raises an event.
    pub fn arm(&self, word: Be64) {
        const SOLICITED_ONLY: u32 = 1 << 24;
        let command = (word.get() >> 32) as u32;
        let solicited_only = command & SOLICITED_ONLY != 0;
        // Relaxed: what is counted is asked for under the device's lock.
        if let Some(armed) = &self.armed
            && !self.counted.swap(true, Ordering::Relaxed)
        {
            armed.fetch_add(1, Ordering::Relaxed);
        }
        self.arm.arm(command, solicited_only);
    }

    /// As [`arm`](Self::arm), for a consumer that does not poll once more after this: what it has not
    /// polled, of what stands there already, tells the channel now.
    #[cfg(feature = "rings")]
    pub fn arm_and_look(&self, word: Be64) {
        self.arm(word);
        let next = (word.get() >> 32) as u32;
        let end = self.produced();
        let count = self.memory.count();
        let left = end.wrapping_sub(next) & CI_MASK;
        // What is published later sees that it is armed.
        for index in (1..=left.min(count))
            .rev()
            .map(|back| end.wrapping_sub(back))
        {
            // SAFETY: of the ring, whose entries were initialised; one that is not polled is not
            // written again, but where the consumer record is wrong. Its last byte is read only.
            let entry = unsafe { Cqe64::read_owned(self.memory.entry(index), index, count) };
            if let Some(entry) = entry {
                self.notify(index, entry.op_own());
            }
        }
    }

    /// It is not armed any more.
    fn disarmed(&self) {
        // Relaxed: as in `arm`.
        if let Some(armed) = &self.armed
            && self.counted.swap(false, Ordering::Relaxed)
        {
            armed.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The program's side is gone: no event names it any more when this returns.
    pub fn retire(&self) {
        let element = Element::Cq(self.cqn);
        self.disarmed();
        if let Some(channel) = &self.channel {
            channel.retire(element);
        }
        self.events.retire(element);
    }

    /// Whether an entry was lost because the queue was full. It takes no more entries then.
    pub fn overrun(&self) -> bool {
        // Relaxed: a flag on its own.
        self.overrun.load(Ordering::Relaxed)
    }

    /// Index behind the last entry.
    pub fn produced(&self) -> u32 {
        // Relaxed: what counts was written before, by this thread or under the device's lock.
        self.producer.load(Ordering::Relaxed)
    }

    /// Whether everything before `index` has been polled.
    pub fn polled(&self, index: u32) -> bool {
        self.consumer.load().wrapping_sub(index) & CI_MASK < CI_MASK.div_ceil(2)
    }

    /// Writes an entry. `false`: the queue was full, and is dead now.
    #[inline(always)]
    #[must_use]
    pub fn produce(&self, entry: &Cqe64) -> bool {
        // Relaxed: the index is the writer's alone; the entry is published by its owner bit.
        let index = self.producer.fetch_add(1, Ordering::Relaxed);
        // Acquire: partner of the release in `room_for`; the consumer's last look at the entry comes
        // before. An old value only makes us look again.
        let ahead = index.wrapping_sub(self.seen.load(Ordering::Acquire)) & CI_MASK;
        if ahead >= self.memory.count() && !self.room_for(index) {
            return false;
        }
        let op_own = entry.op_own() | owner_bit(index, self.memory.count());
        // SAFETY: the index was claimed by this thread alone, and the consumer has passed its last
        // use.
        unsafe {
            Cqe64::publish(self.memory.entry(index), entry, op_own);
        }
        if self.arm.may_fire() {
            self.notify(index, op_own);
        }
        true
    }

    /// By its last byte, so that the entry need not be kept for this.
    #[cold]
    #[inline(never)]
    fn notify(&self, index: u32, op_own: u8) {
        const SOLICITED: u8 = 1 << 1;
        let solicited = op_own & SOLICITED != 0 || CqeOpcode::from_bits(op_own >> 4).is_error();
        if let Some(channel) = &self.channel
            && self.arm.fire(index, solicited)
        {
            self.disarmed();
            // Dropped when the queue is being destroyed.
            let _known = channel.push(Element::Cq(self.cqn), ());
        }
    }

    #[cold]
    fn room_for(&self, index: u32) -> bool {
        let consumer = self.consumer.load();
        // Release: partner of the acquire in `produce`.
        self.seen.store(consumer, Ordering::Release);
        let room = index.wrapping_sub(consumer) & CI_MASK < self.memory.count();
        if !room {
            self.fail();
        }
        // After the store: a failure meanwhile is not undone by it.
        if self.overrun() {
            self.shut(index);
            return false;
        }
        true
    }

    /// An entry is lost: the queue is dead, and says so.
    #[cold]
    pub fn fail(&self) {
        // Relaxed: a flag on its own. Of several producers one tells.
        if !self.overrun.swap(true, Ordering::Relaxed) {
            let _known = self.events.push(Element::Cq(self.cqn), EventType::CqErr);
        }
        self.shut(self.produced());
    }

    /// Makes every entry from this one on look for room, and find none.
    fn shut(&self, index: u32) {
        // Half a turn behind, so that no number of attempts comes round to a free entry.
        let far = index.wrapping_sub(CI_MASK.div_ceil(2));
        // Release: as in `room_for`.
        self.seen.store(far, Ordering::Release);
    }
}
