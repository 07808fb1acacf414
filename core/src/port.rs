//! What a provider implements, so that core's queues run on it. Always monomorphised.

use crate::be::Be32;
use crate::sync::atomic::{AtomicU32, Ordering};
use core::ptr::NonNull;

/// What a ring of the doorbell makes known.
#[derive(Clone, Copy, Debug)]
pub struct Staged {
    /// Counter behind the last entry.
    pub counter: u32,
    /// Requests since the last ring, at least one.
    pub count: u32,
    /// The last entry.
    pub last: NonNull<u8>,
    /// What its poster knows of it.
    pub known: LastEntry,
}

/// What the poster of an entry knows of it: so that a provider whose device takes requests in another
/// form need not read all of it back.
#[derive(Clone, Copy, Debug, Default)]
pub struct LastEntry {
    /// Its counter.
    pub counter: u32,
    /// Its size in segments.
    pub ds: u8,
    /// Its operation code, [`opcode`](crate::wqe::opcode).
    pub opcode: u8,
    /// Bytes of data that it carries itself, or [`UNKNOWN`](Self::UNKNOWN).
    pub inline: u16,
    /// Its flag byte, [`fm_ce_se`](crate::wqe::fm_ce_se).
    pub fm_ce_se: u8,
}

impl LastEntry {
    /// More bytes than any entry carries: its poster did not count them.
    pub const UNKNOWN: u16 = u16::MAX;
}

/// What a ring of a receive queue's doorbell makes known.
#[derive(Clone, Copy, Debug)]
pub struct StagedReceives {
    /// Counter behind the last entry.
    pub counter: u32,
    /// Receives since the last ring. 0: the queue begins a new life at `counter`.
    pub count: u32,
    /// Elements of the last entry.
    pub sges: u32,
}

/// Tells the device of staged send entries.
///
/// # Safety
/// After `ring` the device reads the entries below `counter`, each once, in order, and writes for
/// each signalled or failed one a completion entry with its counter. It reads and writes no memory
/// but what the entries and the peers' keys allow.
pub unsafe trait SendDoorbell {
    /// Rings. The entries have been written before; ordering them is the implementer's.
    fn ring(&mut self, staged: &Staged);
}

/// A word of host memory that tells the device how far a queue has come (`*_db_rec`): a big-endian
/// counter.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct DoorbellRecord(AtomicU32);

impl DoorbellRecord {
    /// Stores a counter, after everything that was written before.
    #[inline(always)]
    pub fn store(&self, counter: u32) {
        crate::barrier::to_device();
        // Release: partner of the software device's acquire in `load`; hardware is ordered by the
        // barrier above.
        self.0.store(Be32::new(counter).to_raw(), Ordering::Release);
    }

    /// Reads it, as a device does, before what it makes known.
    #[inline(always)]
    pub fn load(&self) -> u32 {
        // Acquire: partner of the release in `store`.
        Be32::from_raw(self.0.load(Ordering::Acquire)).get()
    }
}

/// Tells the device of staged receives.
///
/// # Safety
/// After `ring` the device reads the entries below `counter`, each once, in order, and writes for
/// each a completion entry. It writes no memory but what the entries allow.
pub unsafe trait RecvDoorbell {
    /// Rings. The entries have been written before; ordering them is the implementer's.
    fn ring(&mut self, staged: &StagedReceives);
}

// SAFETY: stores the record as the ConnectX manual says; what the device then does is the device's.
unsafe impl RecvDoorbell for &DoorbellRecord {
    #[inline(always)]
    fn ring(&mut self, staged: &StagedReceives) {
        self.store(staged.counter & 0xffff);
    }
}
