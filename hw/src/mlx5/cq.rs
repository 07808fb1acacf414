//! Completion queues whose ring is the device's.

use super::dv::{self, CQ_DOORBELL};
use super::entries::{CI_MASK, Entries};
use super::rings::UNUSABLE;
use crate::error::Error;
use crate::event::AsyncQueue;
use crate::verbs::{Context, CqChannel, CqObject};
use bellwire_core::barrier;
use bellwire_core::port::DoorbellRecord;
use bellwire_core::queue::{ByQpNum, CompletionQueue, CqMemory};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The device's completion queue. Polling it is core's.
#[derive(Debug)]
pub(crate) struct Cq {
    object: CqObject,
    memory: CqMemory<'static>,
    records: &'static [DoorbellRecord; 2],
    arm_register: NonNull<u64>,
    /// By which the device calls it.
    number: u32,
    /// Events that were taken. Counted by whoever reads the channel.
    taken: Arc<AtomicU32>,
    /// As many as core was told of.
    told: AtomicU32,
    /// Armed for any entry, and no event since.
    any: AtomicBool,
    entries: Entries,
}

// SAFETY: the register takes eight bytes at once, from any thread; the rest may be shared.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

impl Deref for Cq {
    type Target = CqObject;

    fn deref(&self) -> &CqObject {
        &self.object
    }
}

impl Cq {
    /// A queue of at least `entries` entries.
    pub fn new(
        context: &Arc<Context>,
        entries: u32,
        events: Arc<AsyncQueue>,
        channel: Option<CqChannel>,
    ) -> Result<Self, Error> {
        let kernel = channel.as_ref().map(|(_, kernel)| kernel.clone());
        // libmlx5 makes a power of two of one more.
        let object = CqObject::new(context, (entries - 1).max(1), true, events, channel)?;
        // SAFETY: alive, and of a device of mlx5. It is ours alone from here on.
        let dv = unsafe { dv::cq(object.handle())? };
        let (Some(buf), Some(records), Some(uar)) = (
            NonNull::new(dv.buf),
            NonNull::new(dv.dbrec),
            NonNull::new(dv.cq_uar),
        ) else {
            return Err(UNUSABLE);
        };
        // SAFETY: the object keeps the ring, and nothing completes on it yet.
        let memory = unsafe { CqMemory::new(buf, dv.cqe_cnt, dv.cqe_size) };
        // SAFETY: within its page.
        let arm_register = unsafe { uar.add(CQ_DOORBELL) }.cast::<u64>();
        let memory = memory.filter(|memory| {
            memory.count() >= entries && arm_register.is_aligned() && records.is_aligned()
        });
        let taken = Arc::<AtomicU32>::default();
        if let Some(kernel) = kernel {
            kernel.count(object.cqn(), &taken);
        }
        let memory = memory.ok_or(UNUSABLE)?;
        // SAFETY: the object keeps them; the device and the one consumer use them as atomics.
        let records: &'static [DoorbellRecord; 2] = unsafe { records.as_ref() };
        Ok(Self {
            memory,
            records,
            arm_register,
            number: dv.cqn,
            taken,
            told: AtomicU32::new(0),
            any: AtomicBool::new(false),
            entries: Entries::new(memory, &records[0]),
            object,
        })
    }

    /// What core polls.
    ///
    /// # Safety
    /// By one consumer, and not when this has gone.
    pub unsafe fn ring(&self) -> (CqMemory<'static>, &'static [DoorbellRecord; 2]) {
        (self.memory, self.records)
    }

    /// The object.
    pub fn object(&self) -> &CqObject {
        &self.object
    }

    /// Arms it: core says from which entry on.
    pub fn arm(&self, core: &mut CompletionQueue<'static, ByQpNum<'static>>, solicited_only: bool) {
        // Acquire: partner of the release when an event is read.
        let taken = self.taken.load(Ordering::Acquire);
        // The number has two bits. Relaxed: only who owns the queue arms it.
        let told = self.told.swap(taken, Ordering::Relaxed);
        (0..taken.wrapping_sub(told) & 3).for_each(|_| core.event_taken());
        // What was armed for any entry stays so until it tells: the device would go by the last word.
        let armed_for_any = taken == told && self.any.load(Ordering::Relaxed);
        let any = !solicited_only || armed_for_any;
        self.any.store(any, Ordering::Relaxed);
        let word = core.arm(self.number, !any);
        // The record before the register.
        barrier::flush_write_combining();
        // SAFETY: a register that takes eight bytes, in the order of the device.
        unsafe { self.arm_register.write_volatile(word.to_raw()) };
        barrier::flush_write_combining();
    }

    /// The entries, for the control path.
    pub fn entries(&self) -> &Entries {
        &self.entries
    }

    /// Runs `look` while nobody else on the control path looks at the entries, or moves them.
    pub fn hold_still<R>(&self, look: impl FnOnce() -> R) -> R {
        self.entries.hold_still(look)
    }

    /// Index behind the last entry.
    pub fn produced(&self) -> u32 {
        self.entries.fold(|| (), |(), _| ()).1
    }

    /// Whether everything before `index` has been polled.
    pub fn polled(&self, index: u32) -> bool {
        self.records[0].load().wrapping_sub(index) & CI_MASK < CI_MASK.div_ceil(2)
    }
}
