//! The device's side of a completion queue, which writes its entries.

use super::arm::Arm;
use super::polled::PolledQueue;
use super::producer::{CI_MASK, Producer, widened};
use crate::error::Error;
use crate::event::{AsyncQueue, Element, EventQueue, EventType};
use crate::fabric::Attention;
use bellwire_core::be::Be64;
use bellwire_core::cqe::{Cqe64, CqeOpcode, PlainCqe, owner_bit};
use bellwire_core::port::DoorbellRecord;
use bellwire_core::queue::CqMemory;
use bellwire_provider::quiesce::Barriers;
use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The device's state of a completion queue. Many threads write entries.
#[derive(Debug)]
pub struct CqCtx {
    /// Changed only by `resize`, while no other thread uses the queue.
    memory: UnsafeCell<CqMemory<'static>>,
    consumer: &'static DoorbellRecord,
    producer: Producer,
    arm: Arm,
    /// Whether it is counted among the node's armed completion queues.
    counted: AtomicBool,
    attention: Option<Arc<Attention>>,
    cqn: u32,
    /// The event queue of the context that it was created in.
    events: Arc<AsyncQueue>,
    /// The event queue of its completion channel.
    channel: Option<Arc<EventQueue<()>>>,
}

// SAFETY: `resize` alone changes the cell, and its caller guarantees that no other thread reads it meanwhile.
unsafe impl Sync for CqCtx {}

impl CqCtx {
    /// The device's side of a completion queue with entries in `memory`. `consumer` is the doorbell record
    /// with the consumer index. `events` receives the asynchronous event of an overrun; `channel` receives
    /// completion events while the queue is armed; `attention` counts the armed queues, for which other
    /// processes wake this one.
    ///
    /// # Errors
    /// There is no memory to register its number with the event queues.
    pub fn new(
        memory: CqMemory<'static>,
        consumer: &'static DoorbellRecord,
        cqn: u32,
        events: Arc<AsyncQueue>,
        channel: Option<Arc<EventQueue<()>>>,
        attention: Option<Arc<Attention>>,
    ) -> Result<Self, Error> {
        let element = Element::Cq(cqn);
        events.admit(element)?;
        if let Some(channel) = &channel {
            (channel.admit(element)).inspect_err(|_| events.retire(element))?;
        }
        Ok(Self {
            memory: UnsafeCell::new(memory),
            consumer,
            producer: Producer::new(),
            arm: Arm::new(Barriers::get()),
            counted: AtomicBool::new(false),
            attention,
            cqn,
            events,
            channel,
        })
    }

    #[inline(always)]
    fn memory(&self) -> CqMemory<'static> {
        // SAFETY: `resize`, the only writer, requires that no other thread reads it meanwhile.
        unsafe { *self.memory.get() }
    }

    /// Bytes of an entry.
    pub fn cqe_size(&self) -> u32 {
        self.memory().cqe_size()
    }

    /// Continues in another ring, whose entries have the same size. The last entry of the old ring is a
    /// resize CQE; the consumer moves the entries that it has not polled to the new ring, each one place
    /// further on. `false`: they do not fit, or there is no room for the resize CQE, and nothing has changed.
    ///
    /// # Safety
    /// While this runs, no thread writes an entry or calls [`arm_and_look`](Self::arm_and_look).
    #[must_use]
    pub unsafe fn resize(&self, to: CqMemory<'static>) -> bool {
        let memory = self.memory();
        let index = self.produced();
        let waiting = index.wrapping_sub(self.consumer.load()) & CI_MASK;
        if waiting >= memory.count() || waiting >= to.count() || self.overrun() {
            return false;
        }
        let entry = Cqe64::resized();
        let op_own = entry.op_own() | owner_bit(index, memory.count());
        self.producer.pass_one();
        // SAFETY: the consumer has polled the entry's last use, and no other thread writes.
        unsafe {
            Cqe64::publish(memory.entry(index), &entry, op_own);
            *self.memory.get() = to;
        }
        true
    }

    /// Its number.
    pub fn cqn(&self) -> u32 {
        self.cqn
    }

    /// The event queue of its completion channel.
    pub fn channel(&self) -> Option<&EventQueue<()>> {
        self.channel.as_deref()
    }

    /// The arm doorbell, with the same 8-byte word as on a ConnectX device. From here on, every completion is
    /// either found by the consumer's next poll, or raises an event.
    pub fn arm(&self, word: Be64) {
        const SOLICITED_ONLY: u32 = 1 << 24;
        let command = (word.get() >> 32) as u32;
        let solicited_only = command & SOLICITED_ONLY != 0;
        // Relaxed: a producer that decrements after this has yet to raise its event, after which the consumer
        // arms again.
        if let Some(attention) = &self.attention
            && !self.counted.swap(true, Ordering::Relaxed)
        {
            attention.count_up();
        }
        let next = widened(self.producer.all(), command & CI_MASK, CI_MASK);
        self.arm.arm(next, solicited_only);
    }

    /// Like [`arm`](Self::arm), for a consumer that does not poll again afterwards: unpolled entries that are
    /// already in the ring raise the event now.
    pub fn arm_and_look(&self, word: Be64) {
        self.arm(word);
        let next = (word.get() >> 32) as u32;
        let end = self.produced();
        let memory = self.memory();
        let count = memory.count();
        let left = end.wrapping_sub(next) & CI_MASK;
        // Entries that are published later see that the queue is armed.
        for index in (1..=left.min(count))
            .rev()
            .map(|back| end.wrapping_sub(back))
        {
            // SAFETY: an entry of the ring, which is initialised. An unpolled entry is not overwritten,
            // unless the consumer's doorbell record is wrong. Only its last byte is read.
            let entry = unsafe { Cqe64::read_owned(memory.entry(index), index, count) };
            if let Some(entry) = entry {
                self.notify(index, entry.op_own());
            }
        }
    }

    /// The queue is no longer armed.
    fn disarmed(&self) {
        // Relaxed: the event is raised after this, and the consumer arms again after the event.
        if let Some(attention) = &self.attention
            && self.counted.swap(false, Ordering::Relaxed)
        {
            attention.count_down();
        }
    }

    /// The program has destroyed the queue. After this returns, no event names it.
    pub fn retire(&self) {
        let element = Element::Cq(self.cqn);
        self.disarmed();
        if let Some(channel) = &self.channel {
            channel.retire(element);
        }
        self.events.retire(element);
    }

    /// Whether an entry was lost because the queue was full. The queue then takes no more entries.
    pub fn overrun(&self) -> bool {
        self.producer.overrun()
    }

    /// Index behind the last entry.
    pub fn produced(&self) -> u32 {
        self.producer.produced()
    }

    /// Whether everything before `index` has been polled.
    pub fn polled(&self, index: u32) -> bool {
        // Before that the consumer is at most a ring behind, 2^22 entries, which is more than half the range ahead. Once
        // it has polled 2^23 more, the answer is no for as many: the caller asks again later.
        self.consumer.load().wrapping_sub(index) & CI_MASK < CI_MASK.div_ceil(2)
    }

    /// Whether a receive may be reported to the poll of this queue, without an entry. The poll has found the queue empty, and
    /// no entry was written since, so none is overtaken. No entry was lost, and no event waits for one.
    #[inline(always)]
    pub fn may_report_to(&self, polled: &PolledQueue) -> bool {
        // A lost entry was counted, and is never polled.
        polled.is_empty_at(self, self.produced()) && !self.arm.may_fire()
    }

    /// Writes an entry. `false`: the queue was full, and has now failed.
    #[inline(always)]
    #[must_use]
    pub fn produce(&self, entry: &Cqe64) -> bool {
        let Some(index) = self.claim() else {
            return false;
        };
        let memory = self.memory();
        let op_own = entry.op_own() | owner_bit(index, memory.count());
        // SAFETY: this thread alone has claimed the index, and the consumer has polled the entry's last use.
        unsafe { Cqe64::publish(memory.entry(index), entry, op_own) };
        self.produced_at(index, op_own);
        true
    }

    /// Like [`produce`](Self::produce), of an entry that is made once it has its place.
    #[inline(always)]
    #[must_use]
    pub fn produce_plain(&self, entry: impl FnOnce() -> PlainCqe) -> bool {
        self.produce_inline(entry, |_| ())
    }

    /// Like [`produce_plain`](Self::produce_plain). `fill` writes payload to its place in the entry: 32 bytes.
    #[inline(always)]
    #[must_use]
    pub fn produce_inline(
        &self,
        entry: impl FnOnce() -> PlainCqe,
        fill: impl FnOnce(NonNull<[u8; 32]>),
    ) -> bool {
        let Some(index) = self.claim() else {
            return false;
        };
        // Read only now, so that fewer values are held meanwhile.
        let (memory, entry) = (self.memory(), entry());
        let op_own = entry.op_own() | owner_bit(index, memory.count());
        // SAFETY: this thread alone has claimed the index, and the consumer has polled the entry's last use.
        unsafe { Cqe64::publish_inline(memory.entry(index), &entry, op_own, fill) };
        self.produced_at(index, op_own);
        true
    }

    /// The index of the next entry, which this thread writes.
    #[inline(always)]
    fn claim(&self) -> Option<u32> {
        let (count, consumed) = (self.memory().count(), || self.consumer.load());
        self.producer
            .claim(count, consumed, || self.raise_overrun())
    }

    #[inline(always)]
    fn produced_at(&self, index: u32, op_own: u8) {
        if self.arm.may_fire() {
            self.notify(index, op_own);
        }
    }

    /// Takes the entry's last byte, so that the caller need not keep the entry.
    #[cold]
    #[inline(never)]
    fn notify(&self, index: u32, op_own: u8) {
        const SOLICITED: u8 = 1 << 1;
        let solicited = op_own & SOLICITED != 0 || CqeOpcode::from_bits(op_own >> 4).is_error();
        if let Some(channel) = &self.channel
            // A thread that was interrupted here while 2^32 other entries came takes its own for a later one: an event
            // too many does no harm.
            && self.arm.fire(widened(self.producer.all(), index, u32::MAX), solicited)
        {
            self.disarmed();
            // Not delivered if the queue is being destroyed.
            let _known = channel.push(Element::Cq(self.cqn), ());
        }
    }

    /// An entry is lost: the queue fails and raises its asynchronous event.
    #[cold]
    pub fn fail(&self) {
        self.producer.fail(|| self.raise_overrun());
    }

    #[cold]
    fn raise_overrun(&self) {
        let _known = self.events.push(Element::Cq(self.cqn), EventType::CqErr);
    }
}
