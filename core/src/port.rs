//! The traits that a provider implements so that the queues of this crate run on it. Always
//! monomorphised.

use crate::be::Be32;
use crate::sync::atomic::{AtomicU32, Ordering};
use core::ptr::NonNull;

/// The send requests for which the doorbell is rung.
#[derive(Clone, Copy, Debug)]
pub struct Staged {
    /// Counter behind the last entry.
    pub counter: u32,
    /// Requests since the doorbell was last rung, at least one.
    pub count: u32,
    /// The last entry.
    pub last: NonNull<u8>,
    /// The description of the last entry.
    pub known: LastEntry,
}

/// The description of the last entry staged. Saves a provider whose device takes requests in
/// another form from reading all of it back from the ring.
#[derive(Clone, Copy, Debug)]
pub struct LastEntry(u32);

impl LastEntry {
    /// The inline bytes were not counted. Larger than any real count.
    pub const UNKNOWN: u16 = u16::MAX;

    /// An entry of `ds` segments with this opcode, one of [`opcode`](crate::wqe::opcode), and so many
    /// bytes of inline data, or [`UNKNOWN`](Self::UNKNOWN).
    #[inline(always)]
    pub const fn new(ds: u8, opcode: u8, inline: u16) -> Self {
        Self(ds as u32 | (opcode as u32) << 8 | (inline as u32) << 16)
    }

    /// Its size in segments.
    #[inline(always)]
    pub const fn ds(self) -> u8 {
        self.0 as u8
    }

    /// Its opcode.
    #[inline(always)]
    pub const fn opcode(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// Bytes of inline data, or [`UNKNOWN`](Self::UNKNOWN).
    #[inline(always)]
    pub const fn inline(self) -> u16 {
        (self.0 >> 16) as u16
    }
}

/// The receives for which the doorbell is rung.
#[derive(Clone, Copy, Debug)]
pub struct StagedReceives {
    /// Counter behind the last entry.
    pub counter: u32,
    /// Receives since the doorbell was last rung. 0: the queue begins a new life at `counter`.
    pub count: u32,
    /// Scatter/gather elements of the last entry.
    pub sges: u32,
}

/// Notifies the device of staged send requests.
///
/// # Safety
/// After `ring` the device reads the entries below `counter`, each once, in order, and writes a CQE
/// with its counter for each signalled or failed one. It accesses no memory except what the entries
/// and the peers' keys allow.
pub unsafe trait SendDoorbell {
    /// Rings the doorbell. The implementation orders what was written before.
    ///
    /// # Safety
    /// The caller is the send queue that the doorbell belongs to. The entries below
    /// `staged.counter` are written and recorded, and `staged` describes the last one correctly.
    unsafe fn ring(&mut self, staged: &Staged);

    /// Whether the queue's completion queue has failed, so that no request in flight is reported any more.
    /// Called when the queue is full.
    fn cq_failed(&self) -> bool {
        false
    }
}

/// A doorbell record: a word of host memory that gives the device the counter of a queue
/// (`*_db_rec`), in big-endian order.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct DoorbellRecord(AtomicU32);

impl DoorbellRecord {
    /// Stores a counter that hands entries to the device, ordered after all earlier stores.
    #[inline(always)]
    pub fn store(&self, counter: u32) {
        crate::barrier::to_device();
        self.give_back(counter);
    }

    /// Stores a counter that returns entries to the device, ordered after all earlier loads of
    /// them. The device reads nothing that was stored before.
    #[inline(always)]
    pub fn give_back(&self, counter: u32) {
        // Release: pairs with the software device's Acquire in `load`. A device obeys it for earlier
        // loads, too; for earlier stores there is the barrier in `store`.
        self.0.store(Be32::new(counter).to_raw(), Ordering::Release);
    }

    /// Loads the counter, as a device does, ordered before the loads of the entries behind it.
    #[inline(always)]
    pub fn load(&self) -> u32 {
        // Acquire: pairs with the Release in `store`.
        Be32::from_raw(self.0.load(Ordering::Acquire)).get()
    }
}

/// Notifies the device of staged receives.
///
/// # Safety
/// After `ring` the device reads the entries below `counter`, each once, in order, and writes a CQE
/// for each. It writes no memory except what the entries allow.
pub unsafe trait RecvDoorbell {
    /// Rings the doorbell. The implementation orders what was written before.
    ///
    /// # Safety
    /// The requirements of [`SendDoorbell::ring`], for the receive queue.
    unsafe fn ring(&mut self, staged: &StagedReceives);

    /// As [`SendDoorbell::cq_failed`].
    fn cq_failed(&self) -> bool {
        false
    }
}

// SAFETY: stores the record as the ConnectX manual specifies; the device is trusted to do the rest.
unsafe impl RecvDoorbell for &DoorbellRecord {
    #[inline(always)]
    unsafe fn ring(&mut self, staged: &StagedReceives) {
        self.store(staged.counter & 0xffff);
    }
}

#[cfg(all(test, any(loom, miri)))]
mod loom_models {
    use super::DoorbellRecord;
    use crate::sync::model::{Arc, UnsafeCell, check, thread};

    struct World {
        record: DoorbellRecord,
        entry: UnsafeCell<u32>,
    }

    // SAFETY: the model checks that accesses do not conflict.
    unsafe impl Sync for World {}
    // SAFETY: the model checks that accesses do not conflict.
    unsafe impl Send for World {}

    /// What was done with an entry comes before the counter that passes it on.
    #[test]
    fn passes_on() {
        check(|| {
            let world = Arc::new(World {
                record: DoorbellRecord::default(),
                entry: UnsafeCell::new(0),
            });
            let other = {
                let world = world.clone();
                thread::spawn(move || {
                    // SAFETY: the model checks that this access does not conflict.
                    world.entry.with_mut(|entry| unsafe { *entry = 7 });
                    world.record.give_back(1);
                })
            };
            if world.record.load() == 1 {
                // SAFETY: the model checks that this access does not conflict.
                world
                    .entry
                    .with_mut(|entry| unsafe { assert_eq!(*entry, 7) });
            }
            other.join().expect("no panic");
        });
    }

    #[cfg(loom)]
    #[test]
    fn the_record_needs_its_orderings() {
        crate::sync::needs_orderings(&[passes_on], "src/port.rs", &[]);
    }
}
