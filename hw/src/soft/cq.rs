//! The producing end of a completion queue.

use bellwire_core::cqe::{Cqe64, owner_bit};
use bellwire_core::port::DoorbellRecord;
use bellwire_core::queue::CqMemory;
use crossbeam_utils::CachePadded;
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
}

const CI_MASK: u32 = 0xff_ffff;

impl CqCtx {
    pub fn new(memory: CqMemory<'static>, consumer: &'static DoorbellRecord) -> Self {
        Self {
            memory,
            consumer,
            producer: CachePadded::new(AtomicU32::new(0)),
            seen: AtomicU32::new(0),
            overrun: AtomicBool::new(false),
        }
    }

    /// Whether an entry was lost because the queue was full. It takes no more entries then.
    pub fn overrun(&self) -> bool {
        // Relaxed: a flag on its own.
        self.overrun.load(Ordering::Relaxed)
    }

    /// Writes an entry. `false`: the queue was full, and is dead now.
    #[inline(always)]
    #[must_use]
    pub fn produce(&self, entry: &Cqe64) -> bool {
        // Relaxed: the index is the writer's alone; the entry is published by its owner bit.
        let index = self.producer.fetch_add(1, Ordering::Relaxed);
        // Relaxed: an old value only makes us look again.
        let ahead = index.wrapping_sub(self.seen.load(Ordering::Relaxed)) & CI_MASK;
        if ahead >= self.memory.count() && !self.room_for(index) {
            return false;
        }
        // SAFETY: the index was claimed by this thread alone, and the consumer has passed its last
        // use.
        unsafe {
            let op_own = entry.op_own() | owner_bit(index, self.memory.count());
            Cqe64::publish(self.memory.entry(index), entry, op_own);
        }
        true
    }

    #[cold]
    fn room_for(&self, index: u32) -> bool {
        // Relaxed: a flag on its own.
        if self.overrun.load(Ordering::Relaxed) {
            return false;
        }
        let consumer = self.consumer.load();
        self.seen.store(consumer, Ordering::Relaxed);
        let room = index.wrapping_sub(consumer) & CI_MASK < self.memory.count();
        if !room {
            // Relaxed: as above.
            self.overrun.store(true, Ordering::Relaxed);
        }
        room
    }
}
