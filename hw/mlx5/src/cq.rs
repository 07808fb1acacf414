//! Completion queues whose ring is the device's.
//!
//! Arming writes the arm record and the register at 0x20 of the queue's doorbell page, with a sequence number
//! that each event read advances. The device raises an event at once for completions that are there and were
//! not polled. A queue that is armed for any completion is not narrowed to solicited ones.

use super::entries::{CI_MASK, Entries};
use crate::error::Error;
use bellwire_core::barrier;
use bellwire_core::port::DoorbellRecord;
use bellwire_core::queue::{ByQpNum, CompletionQueue, CqMemory};
use bellwire_provider::event::AsyncQueue;
use bellwire_verbs::mlx5dv::UNUSABLE;
use bellwire_verbs::mlx5dv::{self as dv, CQ_DOORBELL};
use bellwire_verbs::{Context, CqChannel, CqObject};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A completion queue of the device. Core polls it.
#[derive(Debug)]
pub struct Cq {
    object: CqObject,
    memory: CqMemory<'static>,
    records: &'static [DoorbellRecord; 2],
    arm_register: NonNull<u64>,
    /// The completion queue number in the device.
    number: u32,
    /// Number of events read, counted by the reader of the completion channel.
    taken: Arc<AtomicU32>,
    /// Number of events that core has been notified of.
    notified: AtomicU32,
    /// Armed for any completion, and no event has been read since.
    any: AtomicBool,
    entries: Entries,
}

// SAFETY: the register is written eight bytes at a time, from any thread; everything else may be shared.
unsafe impl Send for Cq {}
// SAFETY: the register is written eight bytes at a time, from any thread; everything else may be shared.
unsafe impl Sync for Cq {}

impl Deref for Cq {
    type Target = CqObject;

    fn deref(&self) -> &CqObject {
        &self.object
    }
}

impl Cq {
    /// Creates a queue of at least `entries` entries.
    pub fn new(
        context: &Arc<Context>,
        entries: u32,
        events: Arc<AsyncQueue>,
        channel: Option<CqChannel>,
    ) -> Result<Self, Error> {
        let kernel = channel.as_ref().map(|(_, kernel)| kernel.clone());
        // libmlx5 adds one entry and rounds up to a power of two.
        let object = CqObject::new(context, (entries - 1).max(1), true, events, channel)?;
        // SAFETY: the object is alive, and of an mlx5 device. Nothing else uses the queue from here on.
        let dv = unsafe { dv::cq(object.handle())? };
        let (Some(buf), Some(records), Some(uar)) = (
            NonNull::new(dv.buf),
            NonNull::new(dv.dbrec.cast::<[DoorbellRecord; 2]>()),
            NonNull::new(dv.cq_uar),
        ) else {
            return Err(UNUSABLE);
        };
        // SAFETY: the object keeps the ring alive, and nothing completes on it yet.
        let memory = unsafe { CqMemory::new(buf, dv.cqe_cnt, dv.cqe_size) };
        // SAFETY: the register is within the page of `uar`.
        let arm_register = unsafe { uar.add(CQ_DOORBELL) }.cast::<u64>();
        let memory = memory.filter(|memory| {
            memory.count() >= entries && arm_register.is_aligned() && records.is_aligned()
        });
        let taken = Arc::<AtomicU32>::default();
        if let Some(kernel) = kernel {
            kernel.count(object.cqn(), &taken);
        }
        let memory = memory.ok_or(UNUSABLE)?;
        // SAFETY: the object keeps the records alive; the device and the one consumer access them atomically.
        let records: &'static [DoorbellRecord; 2] = unsafe { records.as_ref() };
        Ok(Self {
            memory,
            records,
            arm_register,
            number: dv.cqn,
            taken,
            notified: AtomicU32::new(0),
            any: AtomicBool::new(false),
            entries: Entries::new(memory, &records[0]),
            object,
        })
    }

    /// The ring and the doorbell records, for core to poll.
    ///
    /// # Safety
    /// They are used by one consumer, and not after this has been dropped.
    pub unsafe fn ring(&self) -> (CqMemory<'static>, &'static [DoorbellRecord; 2]) {
        (self.memory, self.records)
    }

    /// The completion queue object.
    pub fn object(&self) -> &CqObject {
        &self.object
    }

    /// Arms the queue; core supplies the consumer index.
    pub fn arm(&self, core: &mut CompletionQueue<'static, ByQpNum<'static>>, solicited_only: bool) {
        // Acquire: pairs with the Release when an event is read.
        let taken = self.taken.load(Ordering::Acquire);
        // The sequence number has two bits. Relaxed: only the owner of the queue arms it.
        let notified = self.notified.swap(taken, Ordering::Relaxed);
        (0..taken.wrapping_sub(notified) & 3).for_each(|_| core.event_taken());
        // A queue armed for any completion stays so until its event: the device would obey the last arm
        // request, which may be for solicited completions only.
        let armed_for_any = taken == notified && self.any.load(Ordering::Relaxed);
        let any = !solicited_only || armed_for_any;
        self.any.store(any, Ordering::Relaxed);
        let word = core.arm(self.number, !any);
        // SAFETY: the register takes eight bytes, in the device's byte order.
        unsafe { self.arm_register.write_volatile(word.to_raw()) };
        barrier::flush_write_combining();
    }

    /// The entries, for the control path.
    pub fn entries(&self) -> &Entries {
        &self.entries
    }

    /// Runs `look` while no other thread on the control path examines or moves the entries.
    pub fn hold_still<R>(&self, look: impl FnOnce() -> R) -> R {
        self.entries.hold_still(look)
    }

    /// Index after the last entry.
    pub fn produced(&self) -> u32 {
        self.entries.fold(|| (), |(), _| ()).1
    }

    /// Whether everything before `index` has been polled.
    pub fn polled(&self, index: u32) -> bool {
        self.records[0].load().wrapping_sub(index) & CI_MASK < CI_MASK.div_ceil(2)
    }
}
