//! The polling side of a completion queue.

mod batch;
mod complete;
mod fast;
mod lost;
mod memory;
mod payload;
mod received;
mod recent;
mod steps;

pub use fast::Plain;
pub use memory::CqMemory;
pub(super) use memory::Cursor;
pub use received::Received;
pub(super) use recent::Recent;

use super::attach::{QueueSlot, RecvSide, UserIndex};
use super::completion::{Completion, Success};
use super::naming::{ByUserIndex, Naming};
use crate::be::Be64;
use crate::cqe::{Cqe64, CqeFormat, MiniFormat, expand_in_place};
use crate::port::DoorbellRecord;
use steps::Report;

/// The polling side of a completion queue. Its CQEs identify their queue pairs as `N` defines.
///
/// Cost of a completion: reads one cache line of the ring, half a line of the ledger and one line
/// of the slot table; writes the consumer index (only as often as the room in the ring requires
/// when several successful sends are polled at once) and the ledger's counter.
// The field order matters: with the field that depends on `N` last, the compiler can share polling
// code between both namings.
#[derive(Debug)]
#[repr(C)]
pub struct CompletionQueue<'m, N: Naming = ByUserIndex> {
    pub(super) memory: CqMemory<'m>,
    /// The CQE that is polled next.
    pub(super) next: Cursor,
    pub(super) slots: &'m mut [QueueSlot<'m>],
    pub(super) recent: Recent<'m>,
    /// The first free slot; the number of slots when all are taken.
    pub(super) free: u32,
    pub(super) record: &'m DoorbellRecord,
    arm_record: &'m DoorbellRecord,
    arm_sn: u32,
    pub(super) reserved: u32,
    /// Attached queue pairs for which nothing is reserved.
    pub(super) unreserving: u32,
    /// CQEs that need not be returned to the device before their requests' slots are returned to
    /// the poster: with this many held back there is still one CQE for each slot. Zero while a
    /// queue pair attached without reservation relies on the unreserved entries.
    spare: usize,
    stale: u64,
    mini_format: MiniFormat,
    malformed: bool,
    /// The device reported that CQEs were lost.
    lossy: bool,
    pub(super) naming: N,
}

impl<'m> CompletionQueue<'m> {
    /// Creates a completion queue over `memory` for as many queue pairs as there are `slots` (at
    /// most 65536 are used). Its CQEs identify the queue pair by user index. `records` holds the
    /// doorbell records of the consumer index and of the arm command.
    ///
    /// # Safety
    /// This is the only consumer of the memory and of the records.
    pub unsafe fn new(
        memory: CqMemory<'m>,
        slots: &'m mut [QueueSlot<'m>],
        records: &'m [DoorbellRecord; 2],
    ) -> Self {
        // SAFETY: the caller guarantees that this is the only consumer of the memory and the
        // records.
        unsafe { Self::with_naming(memory, slots, records, ByUserIndex) }
    }
}

impl<'m, N: Naming> CompletionQueue<'m, N> {
    /// Creates a completion queue like [`new`](CompletionQueue::new), whose CQEs identify queue
    /// pairs as `naming` defines.
    ///
    /// # Safety
    /// This is the only consumer of the memory and of the records.
    pub unsafe fn with_naming(
        memory: CqMemory<'m>,
        slots: &'m mut [QueueSlot<'m>],
        records: &'m [DoorbellRecord; 2],
        naming: N,
    ) -> Self {
        let used = slots.len().min(1 << UserIndex::SLOT_BITS);
        let slots = &mut slots[..used];
        for (next, slot) in (1..).zip(slots.iter_mut()) {
            slot.next_free = next;
        }
        Self {
            memory,
            next: Cursor::at(&memory, 0),
            slots,
            naming,
            recent: Recent::default(),
            free: 0,
            record: &records[0],
            arm_record: &records[1],
            arm_sn: 0,
            reserved: 0,
            unreserving: 0,
            spare: memory.count() as usize,
            stale: 0,
            mini_format: MiniFormat::Hash,
            malformed: false,
            lossy: false,
        }
    }

    /// Sets the format of the mini CQEs in compressed blocks, as the device is configured.
    ///
    /// # Safety
    /// The device writes this format: read as another one, mini CQEs would refer to requests that
    /// the device has not finished.
    pub unsafe fn set_mini_format(&mut self, format: MiniFormat) {
        self.mini_format = format;
    }

    /// Whether the device wrote an invalid compressed block. The CQEs behind it cannot be
    /// separated, so polling stops: the completion queue has to be recreated.
    pub fn malformed(&self) -> bool {
        self.malformed
    }

    /// Number of CQEs.
    pub fn capacity(&self) -> u32 {
        self.memory.count()
    }

    /// CQEs not reserved for attached queues.
    pub fn unreserved(&self) -> u32 {
        self.memory.count() - self.reserved
    }

    /// CQEs dropped because they match no request in flight: they belong to an earlier life of a
    /// queue or to a destroyed queue, were written by a faulty device, or come after completions
    /// that were lost.
    pub fn stale(&self) -> u64 {
        self.stale
    }

    /// The slot attached under this user index.
    pub(super) fn attached(&self, index: UserIndex) -> Option<&QueueSlot<'m>> {
        let slot = self.slots.get(index.slot())?;
        (slot.current == index.get()).then_some(slot)
    }

    /// The slot of the queue pair that a CQE is for.
    #[inline(always)]
    pub(super) fn slot(&self, cqe: &Cqe64) -> Option<&QueueSlot<'m>> {
        let name = N::name(cqe);
        let slot = self.slots.get(self.naming.slot(name))?;
        (slot.name == name).then_some(slot)
    }

    /// Whether a CQE is for the queues attached under this user index.
    pub fn is_of(&self, cqe: &Cqe64, index: UserIndex) -> bool {
        self.slot(cqe)
            .is_some_and(|slot| slot.current == index.get())
    }

    /// Polls one completion like [`poll_one`](Self::poll_one), by one call instead of code that is
    /// inlined: where completions in the ring are rare.
    #[inline(always)]
    pub fn poll_out_of_line(&mut self) -> Option<Completion<'m>> {
        self.poll_steps().map(Completion::unpacked)
    }

    /// Polls one completion of any kind, step by step.
    #[inline(never)]
    fn poll_steps(&mut self) -> Option<Completion<'m>> {
        loop {
            let (entry, index) = (self.next.entry(), self.next.index());
            // SAFETY: within the ring; the device does not overwrite a CQE before the consumer
            // index passes it.
            let cqe = unsafe { Cqe64::read_owned(entry, index, self.memory.count())? };
            if cqe.format() == CqeFormat::Compressed {
                self.expand(index)?;
                continue;
            }
            self.next.step(&self.memory);
            let completion = Report::decode(cqe, || self.inline_data(entry, cqe))
                .and_then(|report| self.settle_and_deliver(&report));
            if completion.is_some() {
                return completion;
            }
            self.drop_stale();
        }
    }

    /// Drops the CQE that the consumer index has just passed, which matches no request in flight.
    #[inline(always)]
    fn drop_stale(&mut self) {
        self.give_back();
        self.stale += 1;
    }

    /// Index of the CQE that is polled next. A producer whose own index equals it has an empty
    /// ring.
    #[inline(always)]
    pub fn next_index(&self) -> u32 {
        self.next.index()
    }

    /// Returns the polled CQEs to the device by the consumer index. Done before the request's slot
    /// is returned to the poster; otherwise the next request in that slot could complete while the
    /// ring is still full.
    #[inline(always)]
    fn give_back(&self) {
        self.record.give_back(self.next.index() & 0xff_ffff);
    }

    /// Expands the compressed block at `at` into the CQEs that it stands for, in place. `None`: the
    /// block is malformed.
    #[cold]
    #[inline(never)]
    pub(super) fn expand(&mut self, at: u32) -> Option<()> {
        let slot = |index| self.memory.entry(index);
        // SAFETY: the entry at `at` was just read as a compressed one, the entries are the ring's,
        // and no reference to them is alive.
        let expanded = unsafe { expand_in_place(slot, at, self.memory.count(), self.mini_format) };
        self.malformed |= expanded.is_err();
        expanded.ok().map(|_| ())
    }

    /// Arms the completion queue: the next CQE (or the next solicited one) raises a completion
    /// event. Returns the word to write to the arm register of a ConnectX device; the arm record is
    /// ordered before that store. `cqn` is the number of the completion queue.
    pub fn arm(&mut self, cqn: u32, solicited_only: bool) -> Be64 {
        let index = self.next.index() & 0xff_ffff;
        let command = (self.arm_sn & 3) << 28 | u32::from(solicited_only) << 24 | index;
        self.arm_record.store(command);
        crate::barrier::record_to_register();
        Be64::new(u64::from(command) << 32 | u64::from(cqn))
    }

    /// Call this for each completion event taken: the next arming uses a new sequence number.
    pub fn event_taken(&mut self) {
        self.arm_sn = self.arm_sn.wrapping_add(1);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
