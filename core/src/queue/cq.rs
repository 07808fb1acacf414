//! The polling half of a completion queue.

mod batch;
mod memory;
mod payload;
mod plain;
mod recent;
mod tell;

pub use memory::CqMemory;
pub use plain::Plain;
pub(super) use recent::Recent;

use payload::{placed_or_failed, put};
use recent::Named;

use super::attach::{QueueSlot, RecvSide, UserIndex};
use super::completion::{Completion, Failure, Success};
use super::ledger::{Ledger, Record};
use super::naming::{ByUserIndex, Naming};
use crate::be::Be64;
use crate::cqe::{Cqe64, CqeFormat, CqeOpcode, MiniFormat, expand_in_place, owner_bit};
use crate::port::DoorbellRecord;
use crate::wr::WcOpcode;
use core::ptr::NonNull;

/// The polling half of a completion queue, whose entries name their queues as `N` says.
///
/// Cost of a completion: reads one line of the ring, half a line of ledger and one of the slot
/// table, writes the consumer record (of several executed sends polled at once as seldom as there is
/// room for) and the ledger's counter.
#[derive(Debug)]
pub struct CompletionQueue<'m, N: Naming = ByUserIndex> {
    pub(super) memory: CqMemory<'m>,
    /// Consumer index, free-running.
    pub(super) ci: u32,
    pub(super) slots: &'m mut [QueueSlot<'m>],
    pub(super) naming: N,
    pub(super) recent: Recent<'m>,
    /// The slot to take next; the number of slots when all are taken.
    pub(super) free: u32,
    pub(super) record: &'m DoorbellRecord,
    arm_record: &'m DoorbellRecord,
    arm_sn: u32,
    pub(super) reserved: u32,
    /// Attached queue pairs for which nothing is reserved.
    pub(super) unreserving: u32,
    /// Entries that the device need not get back before their requests' slots go back to the poster: with
    /// so many kept there is still one for each slot. None where somebody relies on what is left.
    spare: usize,
    stale: u64,
    mini_format: MiniFormat,
    malformed: bool,
}

impl<'m> CompletionQueue<'m> {
    /// A queue over `memory`, with room for as many queue pairs as there are `slots` (65536 at the
    /// most are used), which its entries name by user index. `records` are the consumer index and the
    /// arm word.
    ///
    /// # Safety
    /// This is the only consumer of the memory and of the records.
    pub unsafe fn new(
        memory: CqMemory<'m>,
        slots: &'m mut [QueueSlot<'m>],
        records: &'m [DoorbellRecord; 2],
    ) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self::with_naming(memory, slots, records, ByUserIndex) }
    }
}

impl<'m, N: Naming> CompletionQueue<'m, N> {
    /// As [`new`](CompletionQueue::new), with entries that name queues as `naming` says.
    ///
    /// # Safety
    /// As there.
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
            ci: 0,
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
        }
    }

    /// Which mini entries the device was told to write into compressed blocks.
    pub fn set_mini_format(&mut self, format: MiniFormat) {
        self.mini_format = format;
    }

    /// Whether the device wrote a compressed block that cannot be. Nothing behind it can be told
    /// apart, so that nothing is polled any more: the queue has to be rebuilt.
    pub fn malformed(&self) -> bool {
        self.malformed
    }

    /// Entries.
    pub fn capacity(&self) -> u32 {
        self.memory.count()
    }

    /// Entries not reserved for attached queues.
    pub fn unreserved(&self) -> u32 {
        self.memory.count() - self.reserved
    }

    /// Entries dropped because they told of no request in flight: of an earlier life of a queue, of
    /// a queue that is gone, or written by a faulty device.
    pub fn stale(&self) -> u64 {
        self.stale
    }

    /// What is attached under this user index.
    pub(super) fn attached(&self, index: UserIndex) -> Option<&QueueSlot<'m>> {
        let slot = self.slots.get(index.slot())?;
        (slot.current == index.get()).then_some(slot)
    }

    /// What an entry tells of.
    #[inline(always)]
    pub(super) fn slot(&self, cqe: &Cqe64) -> Option<&QueueSlot<'m>> {
        let name = N::name(cqe);
        let slot = self.slots.get(self.naming.slot(name))?;
        (slot.name == name).then_some(slot)
    }

    /// Whether an entry tells of what is attached under this user index.
    pub fn is_of(&self, cqe: &Cqe64, index: UserIndex) -> bool {
        self.slot(cqe)
            .is_some_and(|slot| slot.current == index.get())
    }

    /// Takes one completion.
    #[inline(always)]
    pub fn poll_one(&mut self) -> Option<Completion<'m>> {
        self.take_one::<true, _>(|completion| completion)
    }

    /// Takes one completion and gives it to `each`. `AT_ONCE`: its entry goes back before; otherwise that of
    /// a plain send is left to [`give_back`](Self::give_back).
    #[inline(always)]
    fn take_one<const AT_ONCE: bool, R>(
        &mut self,
        each: impl FnOnce(Completion<'m>) -> R,
    ) -> Option<R> {
        let entry = self.memory.entry(self.ci);
        // SAFETY: within the ring, whose entries were initialised.
        let op_own = unsafe { Cqe64::peek(entry) };
        // Looked at first: polls that find nothing are the most.
        if op_own >= NOT_WRITTEN {
            return None;
        }
        // Owner, opcode and format at once: most entries are of an executed request, without payload.
        let kind = (op_own ^ owner_bit(self.ci, self.memory.count())) & !SOLICITED;
        if kind == SENT {
            // SAFETY: written, and what the device has handed over it does not write again before the
            // consumer record passes it.
            let cqe = unsafe { Cqe64::read(entry) };
            if self.recent.sends.is(N::raw_name(cqe)) || self.find(cqe).sends.ledger.is_some() {
                // SAFETY: so it was, or was found.
                let ledger = unsafe { self.recent.sends.ledger.unwrap_unchecked() };
                // Most often nothing is to be passed over. Both have all of the code, so that this case
                // has no part of the other's.
                // SAFETY: the attached ledger's poller is this queue.
                if let Some(oldest) = unsafe { ledger.oldest_called(cqe.wqe_counter()) } {
                    self.ci = self.ci.wrapping_add(1);
                    // SAFETY: as above; in flight.
                    let record = unsafe { ledger.take_one(oldest) };
                    let success = Success::new(record.opcode, cqe);
                    // SAFETY: just taken.
                    return Some(each(unsafe {
                        self.told::<AT_ONCE>(ledger, record, 1, Ok(success))
                    }));
                }
                // SAFETY: as above.
                if let Some(located) = unsafe { ledger.locate(cqe.wqe_counter()) } {
                    self.ci = self.ci.wrapping_add(1);
                    // SAFETY: as above; in flight.
                    let (record, retired) = unsafe { ledger.take(located) };
                    let success = Success::new(record.opcode, cqe);
                    // SAFETY: just taken.
                    let told =
                        unsafe { self.told::<AT_ONCE>(ledger, record, retired, Ok(success)) };
                    return Some(each(told));
                }
            }
        } else if kind & 1 != 0 {
            return None;
        } else if kind & COMPRESSED != 0 {
            if kind & COMPRESSED != COMPRESSED {
                self.ci = self.ci.wrapping_add(1);
                // SAFETY: as above.
                let cqe = unsafe { Cqe64::read(entry) };
                if let Some(told) = self.other(entry, cqe) {
                    return Some(each(told.unpacked()));
                }
                self.give_back();
                self.stale += 1;
            }
        } else if matches!(
            kind,
            RECEIVED | RECEIVED_SEND | RECEIVED_IMM | LAST_RECEIVED
        ) {
            // SAFETY: as above.
            let cqe = unsafe { Cqe64::read(entry) };
            if self.recent.receives.is(N::raw_name(cqe)) || self.find(cqe).receives.ledger.is_some()
            {
                // SAFETY: so it was, or was found.
                let ledger = unsafe { self.recent.receives.ledger.unwrap_unchecked() };
                // In order, whatever counter the entry has.
                // SAFETY: the attached ledger's poller is this queue.
                if let Some(oldest) = unsafe { ledger.next() } {
                    self.ci = self.ci.wrapping_add(1);
                    // SAFETY: as above; in flight.
                    let record = unsafe { ledger.take_one(oldest) };
                    let success = Success::new(recv_opcode(cqe), cqe);
                    // At once in any case: who ends a queue pair counts which receives were not polled.
                    // SAFETY: just taken.
                    return Some(each(unsafe {
                        self.told::<true>(ledger, record, 1, Ok(success))
                    }));
                }
            }
        }
        self.rest().map(|told| each(told.unpacked()))
    }

    /// The queue pair that an entry tells of becomes the recent one.
    #[inline(never)]
    fn find(&mut self, cqe: &Cqe64) -> Recent<'m> {
        let name = N::raw_name(cqe);
        self.recent = match self.slot(cqe) {
            Some(slot) => Recent {
                sends: Named::new(name, slot.send.map(|(ledger, ..)| ledger)),
                receives: match slot.recv {
                    RecvSide::Own(ledger, _) => Named::new(name, Some(ledger)),
                    RecvSide::Shared(..) | RecvSide::None => Named::default(),
                },
            },
            None => Recent::default(),
        };
        self.recent
    }

    /// Takes one completion, whatever it is.
    #[inline(never)]
    fn rest(&mut self) -> Option<Completion<'m>> {
        loop {
            let entry = self.memory.entry(self.ci);
            // SAFETY: within the ring; what the device has handed over it does not write again
            // before the consumer record passes it.
            let cqe = unsafe { Cqe64::read_owned(entry, self.ci, self.memory.count())? };
            match cqe.op_own() & !3 {
                SENT => {
                    self.ci = self.ci.wrapping_add(1);
                    if let told @ Some(_) = self.sent(cqe) {
                        return told;
                    }
                }
                RECEIVED..=LAST_RECEIVED if cqe.format() == CqeFormat::None => {
                    self.ci = self.ci.wrapping_add(1);
                    if let told @ Some(_) = self.received(cqe) {
                        return told;
                    }
                }
                _ if cqe.format() == CqeFormat::Compressed => {
                    self.expand(self.ci)?;
                    continue;
                }
                _ => {
                    self.ci = self.ci.wrapping_add(1);
                    if let told @ Some(_) = self.other(entry, cqe) {
                        return told;
                    }
                }
            }
            self.give_back();
            self.stale += 1;
        }
    }

    /// Index of the entry that is polled next: a producer whose own index is the same has an empty
    /// ring before it.
    #[inline(always)]
    pub fn next_index(&self) -> u32 {
        self.ci
    }

    /// Gives what has been read back to the device: before the request's slot goes back to the poster,
    /// or what the poster puts there could complete while the ring is still full.
    #[inline(always)]
    fn give_back(&self) {
        self.record.store(self.ci & 0xff_ffff);
    }

    /// What a request taken from its ledger is told as. The entry has been read, and goes back where
    /// `AT_ONCE` says so.
    ///
    /// # Safety
    /// `record` is what was taken last.
    #[inline(always)]
    unsafe fn told<const AT_ONCE: bool>(
        &self,
        ledger: &Ledger<'m>,
        record: Record<'m>,
        retired: u32,
        result: Result<Success, Failure>,
    ) -> Completion<'m> {
        if AT_ONCE {
            self.give_back();
        }
        // SAFETY: the caller's promise; this queue is the poller.
        unsafe { ledger.release(&record) };
        record.told(ledger, retired, result)
    }

    /// An executed send request. `None`, here and below: of no request in flight.
    #[inline(always)]
    fn sent(&self, cqe: &Cqe64) -> Option<Completion<'m>> {
        let (ledger, ..) = self.slot(cqe)?.send?;
        // SAFETY: the attached ledger's poller is this queue; the counter is located.
        let (record, retired) = unsafe { ledger.take(ledger.locate(cqe.wqe_counter())?) };
        let success = Success::new(record.opcode, cqe);
        // SAFETY: just taken.
        Some(unsafe { self.told::<true>(ledger, record, retired, Ok(success)) })
    }

    /// A receive whose bytes the device has placed.
    #[inline(always)]
    fn received(&self, cqe: &Cqe64) -> Option<Completion<'m>> {
        let slot = self.slot(cqe)?;
        let RecvSide::Own(ledger, _) = slot.recv else {
            return self.received_shared(slot, cqe, &[]);
        };
        // In order, whatever counter the entry has.
        // SAFETY: the attached ledger's poller is this queue, and the counter is the ledger's.
        let (record, retired) = unsafe { ledger.take(ledger.next()?) };
        let success = Success::new(recv_opcode(cqe), cqe);
        // SAFETY: just taken.
        Some(unsafe { self.told::<true>(ledger, record, retired, Ok(success)) })
    }

    /// What is not the plain case: entries with payload, and errors.
    #[inline(never)]
    fn other(&self, entry: NonNull<Cqe64>, cqe: &Cqe64) -> Option<Completion<'m>> {
        let slot = self.slot(cqe)?;
        match cqe.opcode() {
            opcode if opcode.is_received() => {
                let data = self.inline_data(entry, cqe);
                let RecvSide::Own(ledger, ring) = slot.recv else {
                    return self.received_shared(slot, cqe, data);
                };
                // SAFETY: the attached ledger's poller is this queue.
                let located = unsafe { ledger.next()? };
                // SAFETY: the receive is in flight; its poster promised that the memory is writable
                // until it is told, which it is not yet.
                let placed = unsafe { put(cqe, data, ring.read(located.counter)) };
                let success = Success::new(recv_opcode(cqe), cqe);
                // SAFETY: as above; the counter is the ledger's.
                let (record, retired) = unsafe { ledger.take(located) };
                let result = placed_or_failed(placed, success, record.counter);
                // SAFETY: just taken.
                Some(unsafe { self.told::<true>(ledger, record, retired, result) })
            }
            CqeOpcode::Req => {
                let (ledger, ring, transport) = slot.send?;
                // SAFETY: the attached ledger's poller is this queue.
                let located = unsafe { ledger.locate(cqe.wqe_counter())? };
                let placed = self.scatter_read(entry, cqe, ring, transport, located.counter);
                // SAFETY: as above; located.
                let (record, retired) = unsafe { ledger.take(located) };
                let success = Success::new(record.opcode, cqe);
                let result = placed_or_failed(placed, success, record.counter);
                // SAFETY: just taken.
                Some(unsafe { self.told::<true>(ledger, record, retired, result) })
            }
            _ => self.failed(slot, cqe),
        }
    }

    /// A request that failed.
    #[cold]
    fn failed(&self, slot: &QueueSlot<'m>, cqe: &Cqe64) -> Option<Completion<'m>> {
        match cqe.opcode() {
            CqeOpcode::ReqErr => {
                let (ledger, ..) = slot.send?;
                // SAFETY: the attached ledger's poller is this queue; the counter is located.
                let (record, retired) = unsafe { ledger.take(ledger.locate(cqe.wqe_counter())?) };
                let result = Err(failure(cqe, record.counter));
                // SAFETY: just taken.
                Some(unsafe { self.told::<true>(ledger, record, retired, result) })
            }
            CqeOpcode::RespErr => self.failed_receive(slot, cqe),
            _ => None,
        }
    }

    /// A receive that failed.
    #[cold]
    fn failed_receive(&self, slot: &QueueSlot<'m>, cqe: &Cqe64) -> Option<Completion<'m>> {
        match slot.recv {
            RecvSide::Own(ledger, _) => {
                // In order, whatever counter the entry has.
                // SAFETY: the attached ledger's poller is this queue, and the counter is the
                // ledger's.
                let (record, retired) = unsafe { ledger.take(ledger.next()?) };
                let result = Err(failure(cqe, record.counter));
                // SAFETY: just taken.
                Some(unsafe { self.told::<true>(ledger, record, retired, result) })
            }
            RecvSide::Shared(srq, user) => {
                let qp_num = user.qp_num(cqe);
                let result = Err(failure(cqe, cqe.wqe_counter().into()));
                let (wr_id, block, ()) = srq.retire(cqe.wqe_counter(), |_| self.give_back())?;
                Some(Completion {
                    wr_id,
                    qp_num,
                    retired: 1,
                    result,
                    block,
                })
            }
            RecvSide::None => None,
        }
    }

    /// A receive of a shared receive queue, with the payload that came within the entry.
    #[inline(never)]
    fn received_shared(
        &self,
        slot: &QueueSlot<'m>,
        cqe: &Cqe64,
        data: &[u8],
    ) -> Option<Completion<'m>> {
        let RecvSide::Shared(srq, user) = slot.recv else {
            return None;
        };
        let plain = cqe.format() == CqeFormat::None;
        let qp_num = user.qp_num(cqe);
        let (wr_id, block, result) = srq.retire(cqe.wqe_counter(), |index| {
            // SAFETY: the receive is in flight; its poster promised that the memory is writable
            // until it is told, which it is not yet.
            let placed = plain || unsafe { put(cqe, data, srq.ring().read(index)) };
            let success = Success::new(recv_opcode(cqe), cqe);
            let result = placed_or_failed(placed, success, index);
            self.give_back();
            result
        })?;
        Some(Completion {
            wr_id,
            qp_num,
            retired: 1,
            result,
            block,
        })
    }

    /// Writes the entries that the compressed block at `at` stands for into the ring, where the
    /// block stands. `None`: it is malformed.
    #[cold]
    #[inline(never)]
    pub(super) fn expand(&mut self, at: u32) -> Option<()> {
        let slot = |index| self.memory.entry(index);
        // SAFETY: the entry at `at` was just read as a compressed one, the slots are the ring's, and
        // no reference to them lives on.
        let expanded = unsafe { expand_in_place(slot, at, self.memory.count(), self.mini_format) };
        self.malformed |= expanded.is_err();
        expanded.ok().map(|_| ())
    }

    /// Arms the queue: the next entry (or the next solicited one) raises an event. Gives the word
    /// that a ConnectX device wants at its arm register. `cqn` is the queue's number.
    pub fn arm(&mut self, cqn: u32, solicited_only: bool) -> Be64 {
        let command =
            (self.arm_sn & 3) << 28 | u32::from(solicited_only) << 24 | self.ci & 0xff_ffff;
        self.arm_record.store(command);
        crate::barrier::to_device();
        Be64::new(u64::from(command) << 32 | u64::from(cqn))
    }

    /// To be called for each event taken: the next arming has a new sequence number.
    pub fn event_taken(&mut self) {
        self.arm_sn = self.arm_sn.wrapping_add(1);
    }
}

/// Opcode and format, as the last byte has them, of a request executed without payload.
const SENT: u8 = CqeOpcode::Req.number() << 4;
const RECEIVED: u8 = CqeOpcode::RespWrImm.number() << 4;
const RECEIVED_SEND: u8 = CqeOpcode::RespSend.number() << 4;
const RECEIVED_IMM: u8 = CqeOpcode::RespSendImm.number() << 4;
const LAST_RECEIVED: u8 = CqeOpcode::RespSendInv.number() << 4;

/// Entries that no lap takes for written have this last byte, or a greater one.
const NOT_WRITTEN: u8 = CqeOpcode::Invalid.number() << 4;

/// The format's bits; all of them: a compressed block.
const COMPRESSED: u8 = (CqeFormat::Compressed as u8) << 2;

/// The bit of the last byte that says nothing of who owns the entry, or what it tells of.
const SOLICITED: u8 = 2;

#[inline(always)]
fn recv_opcode(cqe: &Cqe64) -> WcOpcode {
    if cqe.opcode() == CqeOpcode::RespWrImm {
        WcOpcode::RecvRdmaWithImm
    } else {
        WcOpcode::Recv
    }
}

#[cold]
fn failure(cqe: &Cqe64, counter: u32) -> Failure {
    Failure {
        status: cqe.failure(),
        vendor_err: cqe.vendor_err_synd(),
        syndrome: cqe.syndrome(),
        counter,
        is_recv: cqe.opcode() == CqeOpcode::RespErr,
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
