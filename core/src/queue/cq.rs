//! The polling half of a completion queue.

use super::completion::{Completion, Failure, Imm, Success};
use super::ledger::{Ledger, Record};
use super::srq::SrqLedger;
use crate::be::Be64;
use crate::cqe::{
    Cqe64, Cqe128, CqeFormat, CqeOpcode, MiniFormat, Syndrome, expand_in_place, scatter,
};
use crate::port::DoorbellRecord;
use crate::wqe::{Data, RecvRing, SendRing, SendWqe};
use crate::wr::{QpType, Sge, WcOpcode, WcStatus};
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;

/// A completion queue's memory: `count` entries of 64 or 128 bytes.
#[derive(Clone, Copy, Debug)]
pub struct CqMemory<'m> {
    /// The first entry's 64 bytes that hold the descriptor.
    first: NonNull<Cqe64>,
    count: u32,
    /// 64-byte units from one entry to the next.
    step: u32,
    memory: PhantomData<&'m [u8]>,
}

// SAFETY: memory that is reached only through unsafe functions whose callers promise who writes.
unsafe impl Send for CqMemory<'_> {}
// SAFETY: as above.
unsafe impl Sync for CqMemory<'_> {}

impl<'m> CqMemory<'m> {
    /// Memory of `count` entries of `cqe_size` bytes at `base`, set to "owned by the device". `None`
    /// unless `count` is a power of two of at most 2^22, `cqe_size` 64 or 128, and `base` aligned
    /// to it.
    ///
    /// # Safety
    /// The memory is valid for reads and writes for `'m`, and used by nobody but one completion
    /// queue and the device, which starts after this returns.
    pub unsafe fn new(base: NonNull<u8>, count: u32, cqe_size: u32) -> Option<Self> {
        let fits = count.is_power_of_two() && count <= 1 << 22 && matches!(cqe_size, 64 | 128);
        if !fits || !base.as_ptr().addr().is_multiple_of(cqe_size as usize) {
            return None;
        }
        let memory = Self {
            // SAFETY: within the first entry; in one of 128 bytes the descriptor is the second half.
            first: unsafe { base.add(cqe_size as usize - 64).cast() },
            count,
            step: cqe_size / 64,
            memory: PhantomData,
        };
        for index in 0..count {
            // SAFETY: within the memory, which is the caller's to give.
            unsafe { Cqe64::init(memory.entry(index)) };
        }
        Some(memory)
    }

    /// Entries.
    #[inline(always)]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Bytes of an entry.
    #[inline(always)]
    pub fn cqe_size(&self) -> u32 {
        self.step * 64
    }

    /// The descriptor of the entry that counter `index` falls on.
    #[inline(always)]
    pub fn entry(&self, index: u32) -> NonNull<Cqe64> {
        // SAFETY: the masked index lies within the ring.
        unsafe {
            self.first
                .add(((index & (self.count - 1)) * self.step) as usize)
        }
    }
}

/// What a device puts into a completion entry to name the queue: slot and generation, 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserIndex(u32);

impl UserIndex {
    const SLOT_BITS: u32 = 16;

    /// As a number.
    #[inline(always)]
    pub fn get(self) -> u32 {
        self.0
    }

    fn new(slot: usize, generation: u8) -> Self {
        Self(slot as u32 | u32::from(generation) << Self::SLOT_BITS)
    }
}

/// Where received bytes go.
#[derive(Clone, Copy, Debug)]
enum RecvSide<'m> {
    None,
    Own(&'m Ledger<'m>, RecvRing<'m>),
    Shared(&'m SrqLedger<'m>, u32),
}

/// One queue pair attached to a completion queue. Created by [`Default`] in memory that the caller
/// gives to [`CompletionQueue::new`].
#[derive(Clone, Copy, Debug)]
pub struct QueueSlot<'m> {
    generation: u8,
    attached: bool,
    reserved: u32,
    send: Option<(&'m Ledger<'m>, SendRing<'m>, QpType)>,
    recv: RecvSide<'m>,
}

impl Default for QueueSlot<'_> {
    fn default() -> Self {
        Self {
            generation: 0,
            attached: false,
            reserved: 0,
            send: None,
            recv: RecvSide::None,
        }
    }
}

/// Why a queue cannot be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachError {
    /// All slots for queue pairs are taken.
    TooManyQueues {
        /// Slots.
        slots: usize,
    },
    /// A flush of everything attached could overrun the completion queue.
    CqTooSmall {
        /// Entries that the queues need.
        needed: u32,
        /// Entries that are not reserved.
        free: u32,
    },
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TooManyQueues { slots } => write!(
                f,
                "the completion queue has slots for {slots} queue pairs and all are taken: \
                 use another one"
            ),
            Self::CqTooSmall { needed, free } => write!(
                f,
                "the completion queue has {free} entries left and a flush could write {needed}: \
                 create it larger, or attach without reserving and poll in time"
            ),
        }
    }
}

impl core::error::Error for AttachError {}

/// What of a queue pair completes here.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attach<'m> {
    /// Its send queue's ledger and ring, and the transport.
    pub send: Option<(&'m Ledger<'m>, SendRing<'m>, QpType)>,
    /// Its own receive queue's ledger and ring.
    pub recv: Option<(&'m Ledger<'m>, RecvRing<'m>)>,
    /// The shared receive queue that it receives from, and the number of the queue pair.
    pub srq: Option<(&'m SrqLedger<'m>, u32)>,
}

impl Attach<'_> {
    /// Entries that a flush of everything can write.
    fn entries(&self) -> u32 {
        let send = self.send.map_or(0, |(ledger, ..)| ledger.capacity());
        let recv = self.recv.map_or(0, |(ledger, _)| ledger.capacity());
        let srq = self.srq.map_or(0, |(ledger, _)| ledger.ring().count());
        send + recv + srq
    }
}

/// The polling half of a completion queue.
///
/// Cost of a completion: reads one line of the ring, half a line of ledger and one of the slot
/// table, writes the consumer record and the ledger's counter.
#[derive(Debug)]
pub struct CompletionQueue<'m> {
    memory: CqMemory<'m>,
    /// Consumer index, free-running.
    ci: u32,
    slots: &'m mut [QueueSlot<'m>],
    record: &'m DoorbellRecord,
    arm_record: &'m DoorbellRecord,
    arm_sn: u32,
    reserved: u32,
    stale: u64,
    mini_format: MiniFormat,
    malformed: bool,
}

impl<'m> CompletionQueue<'m> {
    /// A queue over `memory`, with room for as many queue pairs as there are `slots` (65536 at the
    /// most are used). `records` are the consumer index and the arm word.
    ///
    /// # Safety
    /// This is the only consumer of the memory and of the records.
    pub unsafe fn new(
        memory: CqMemory<'m>,
        slots: &'m mut [QueueSlot<'m>],
        records: &'m [DoorbellRecord; 2],
    ) -> Self {
        let used = slots.len().min(1 << UserIndex::SLOT_BITS);
        Self {
            memory,
            ci: 0,
            slots: &mut slots[..used],
            record: &records[0],
            arm_record: &records[1],
            arm_sn: 0,
            reserved: 0,
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
        self.memory.count
    }

    /// Entries not reserved for attached queues.
    pub fn unreserved(&self) -> u32 {
        self.memory.count - self.reserved
    }

    /// Entries dropped because they told of no request in flight: of an earlier life of a queue, of
    /// a queue that is gone, or written by a faulty device.
    pub fn stale(&self) -> u64 {
        self.stale
    }

    /// Attaches the queues of a queue pair, and reserves an entry for each of their slots. The
    /// device is to name them by the index returned.
    ///
    /// # Errors
    /// [`AttachError`].
    ///
    /// # Safety
    /// This completion queue is the only poller of the ledgers (of a shared receive queue: one of
    /// its pollers).
    pub unsafe fn attach(&mut self, queues: Attach<'m>) -> Result<UserIndex, AttachError> {
        let needed = queues.entries();
        let free = self.unreserved();
        if needed > free {
            return Err(AttachError::CqTooSmall { needed, free });
        }
        // SAFETY: the caller's promise.
        unsafe { self.attach_reserving(queues, needed) }
    }

    /// As [`attach`](Self::attach), but reserves nothing: if the queues complete more than is polled
    /// the completion queue overruns, which ends it and every queue pair on it.
    ///
    /// # Errors
    /// [`AttachError::TooManyQueues`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn attach_unreserved(
        &mut self,
        queues: Attach<'m>,
    ) -> Result<UserIndex, AttachError> {
        // SAFETY: the caller's promise.
        unsafe { self.attach_reserving(queues, 0) }
    }

    /// # Safety
    /// As [`Self::attach`].
    unsafe fn attach_reserving(
        &mut self,
        queues: Attach<'m>,
        reserved: u32,
    ) -> Result<UserIndex, AttachError> {
        let free = self.slots.iter().position(|slot| !slot.attached);
        let Some(index) = free else {
            let slots = self.slots.len();
            return Err(AttachError::TooManyQueues { slots });
        };
        let slot = &mut self.slots[index];
        slot.attached = true;
        slot.reserved = reserved;
        slot.send = queues.send;
        slot.recv = match (queues.recv, queues.srq) {
            (_, Some((ledger, qp_num))) => RecvSide::Shared(ledger, qp_num),
            (Some((ledger, ring)), None) => RecvSide::Own(ledger, ring),
            (None, None) => RecvSide::None,
        };
        self.reserved += reserved;
        Ok(UserIndex::new(index, slot.generation))
    }

    /// Detaches the queues of `user_index` and removes their entries. Later entries that name them
    /// are dropped. Does nothing when the index is not (or no longer) attached.
    ///
    /// The device must have stopped writing entries of these queues.
    pub fn detach(&mut self, user_index: UserIndex) {
        if self.slot(user_index.get()).is_none() {
            return;
        }
        self.purge(user_index);
        let index = (user_index.get() & 0xffff) as usize;
        let slot = &mut self.slots[index];
        self.reserved -= slot.reserved;
        *slot = QueueSlot {
            generation: slot.generation.wrapping_add(1),
            ..QueueSlot::default()
        };
    }

    /// Removes the entries that name `user_index`, closing up the others towards the producer, as
    /// the device's own rules of a reset have it. Producers may go on behind them meanwhile.
    fn purge(&mut self, user_index: UserIndex) {
        let mut end = self.ci;
        while end.wrapping_sub(self.ci) < self.memory.count {
            let entry = self.memory.entry(end);
            // SAFETY: the entries are ours from `ci` on as long as their owner bit says so.
            let format = match unsafe { Cqe64::read_owned(entry, end, self.memory.count) } {
                Some(cqe) => cqe.format(),
                None => break,
            };
            // What a block stands for can be moved, the block cannot.
            if format != CqeFormat::Compressed {
                end = end.wrapping_add(1);
            } else if self.expand(end).is_none() {
                break;
            }
        }
        let mut removed = 0;
        let mut at = end;
        while at != self.ci {
            at = at.wrapping_sub(1);
            let from = self.memory.entry(at);
            // SAFETY: owned by us, as found above.
            let named = unsafe { from.as_ref().user_index() == user_index.get() };
            if named {
                removed += 1;
            } else if removed != 0 {
                let to = at.wrapping_add(removed);
                // SAFETY: both are owned by us.
                unsafe { Cqe64::move_entry(from, self.memory.entry(to), to, self.memory.count) };
                if self.memory.step == 2 {
                    // SAFETY: the half before the descriptor belongs to the same entry.
                    unsafe {
                        let inline = from.sub(1);
                        self.memory
                            .entry(to)
                            .sub(1)
                            .copy_from_nonoverlapping(inline, 1);
                    }
                }
            }
        }
        self.ci = self.ci.wrapping_add(removed);
        self.record.store(self.ci & 0xff_ffff);
    }

    #[inline(always)]
    fn slot(&self, user_index: u32) -> Option<&QueueSlot<'m>> {
        let slot = self.slots.get((user_index & 0xffff) as usize)?;
        let current = u32::from(slot.generation) == user_index >> UserIndex::SLOT_BITS;
        (current && slot.attached).then_some(slot)
    }

    /// Takes one completion.
    #[inline(always)]
    pub fn poll_one(&mut self) -> Option<Completion<'m>> {
        loop {
            let entry = self.memory.entry(self.ci);
            // SAFETY: within the ring; what the device has handed over it does not write again
            // before the consumer record passes it.
            let cqe = unsafe { Cqe64::read_owned(entry, self.ci, self.memory.count)? };
            if cqe.format() == CqeFormat::Compressed {
                self.expand(self.ci)?;
                continue;
            }
            let completion = self.complete(entry, cqe);
            self.ci = self.ci.wrapping_add(1);
            self.record.store(self.ci & 0xff_ffff);
            if completion.is_some() {
                return completion;
            }
            self.stale += 1;
        }
    }

    /// Takes up to `limit` completions, gives each to `each`, and returns how many there were.
    #[inline(always)]
    pub fn poll(&mut self, limit: usize, mut each: impl FnMut(Completion<'m>)) -> usize {
        let mut count = 0;
        while count < limit {
            let Some(completion) = self.poll_one() else {
                break;
            };
            each(completion);
            count += 1;
        }
        count
    }

    /// Tells what an entry means, and retires the request. `None`: of no request in flight.
    #[inline(always)]
    fn complete(&self, entry: NonNull<Cqe64>, cqe: &Cqe64) -> Option<Completion<'m>> {
        let slot = self.slot(cqe.user_index())?;
        match cqe.opcode() {
            CqeOpcode::Req => {
                let (ledger, ring, transport) = slot.send?;
                // SAFETY: the attached ledger's poller is this queue.
                let counter = unsafe { ledger.locate(cqe.wqe_counter())? };
                let placed = cqe.format() == CqeFormat::None
                    || self.scatter_read(entry, cqe, ring, transport, counter);
                // SAFETY: as above; located.
                let (record, retired) = unsafe { ledger.retire(counter) };
                let success = Success {
                    opcode: record.opcode,
                    solicited: false,
                    grh: false,
                    imm: Imm::None,
                    byte_len: cqe.byte_cnt(),
                    src_qp: 0,
                };
                Some(told(
                    ledger,
                    record,
                    retired,
                    placed_or_failed(placed, success),
                ))
            }
            CqeOpcode::RespWrImm
            | CqeOpcode::RespSend
            | CqeOpcode::RespSendImm
            | CqeOpcode::RespSendInv => self.received(slot, entry, cqe),
            CqeOpcode::ReqErr => {
                let (ledger, ..) = slot.send?;
                // SAFETY: as above.
                let (record, retired) = unsafe { ledger.retire(ledger.locate(cqe.wqe_counter())?) };
                Some(told(ledger, record, retired, Err(failure(cqe))))
            }
            CqeOpcode::RespErr => receive(slot, cqe, |_| Err(failure(cqe))),
            _ => None,
        }
    }

    #[inline(always)]
    fn received(
        &self,
        slot: &QueueSlot<'m>,
        entry: NonNull<Cqe64>,
        cqe: &Cqe64,
    ) -> Option<Completion<'m>> {
        let opcode = cqe.opcode();
        let plain = cqe.format() == CqeFormat::None;
        // Payload in the descriptor stands where the source would be.
        let sourced = cqe.format() != CqeFormat::Inline32;
        let success = Success {
            opcode: if opcode == CqeOpcode::RespWrImm {
                WcOpcode::RecvRdmaWithImm
            } else {
                WcOpcode::Recv
            },
            solicited: cqe.solicited(),
            grh: sourced && cqe.grh() != 0,
            imm: match opcode {
                CqeOpcode::RespSend => Imm::None,
                CqeOpcode::RespSendInv => Imm::Invalidated(cqe.inval_rkey()),
                _ => Imm::Data(cqe.imm()),
            },
            byte_len: cqe.byte_cnt(),
            src_qp: if sourced { cqe.src_qpn() } else { 0 },
        };
        receive(slot, cqe, |sges| {
            placed_or_failed(plain || self.scatter_receive(entry, cqe, sges), success)
        })
    }

    /// Bytes that came within the entry go where the receive says; whether all found a place.
    #[inline(always)]
    fn scatter_receive(
        &self,
        entry: NonNull<Cqe64>,
        cqe: &Cqe64,
        receive: ReceiveEntry<'m>,
    ) -> bool {
        let data = self.inline_data(entry, cqe);
        match receive {
            // SAFETY: the receive is in flight; its poster promised that the memory is writable
            // until it is told, which it is not yet.
            ReceiveEntry::Own(ring, index) => unsafe { put(cqe, data, ring.read(index)) },
            // SAFETY: as above.
            ReceiveEntry::Shared(srq, index) => unsafe { put(cqe, data, srq.ring().read(index)) },
        }
    }

    /// Bytes of a READ or atomic that came within the entry go where the request says; whether all
    /// found a place.
    #[cold]
    fn scatter_read(
        &self,
        entry: NonNull<Cqe64>,
        cqe: &Cqe64,
        ring: SendRing<'m>,
        transport: QpType,
        counter: u32,
    ) -> bool {
        // SAFETY: in flight, so the poster does not write it.
        let wqe = unsafe { SendWqe::read(ring, counter) };
        let Some(offset) = wqe.result_offset(transport) else {
            return false;
        };
        let sges = wqe.data(offset).filter_map(|data| match data {
            Data::Pointer(sge) => Some(sge),
            Data::Inline(..) => None,
        });
        // SAFETY: as in `scatter_receive`.
        unsafe { put(cqe, self.inline_data(entry, cqe), sges) }
    }

    #[inline(always)]
    fn inline_data<'c>(&self, entry: NonNull<Cqe64>, cqe: &'c Cqe64) -> &'c [u8] {
        if self.memory.step == 2 {
            // SAFETY: the entries have 128 bytes, and this one is ours.
            unsafe { Cqe128::around(entry) }.inline_data()
        } else {
            cqe.inline_data()
        }
    }

    /// Writes the entries that the compressed block at `at` stands for into the ring, where the
    /// block stands. `None`: it is malformed.
    #[cold]
    #[inline(never)]
    fn expand(&mut self, at: u32) -> Option<()> {
        let slot = |index| self.memory.entry(index);
        // SAFETY: the entry at `at` was just read as a compressed one, the slots are the ring's, and
        // no reference to them lives on.
        let expanded = unsafe { expand_in_place(slot, at, self.memory.count, self.mini_format) };
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

#[derive(Clone, Copy)]
enum ReceiveEntry<'m> {
    Own(RecvRing<'m>, u32),
    Shared(&'m SrqLedger<'m>, u32),
}

/// Takes the receive that an entry tells of. `result` is asked for while the receive's memory is
/// still the device's.
#[inline(always)]
fn receive<'m>(
    slot: &QueueSlot<'m>,
    cqe: &Cqe64,
    result: impl FnOnce(ReceiveEntry<'m>) -> Result<Success, Failure>,
) -> Option<Completion<'m>> {
    match slot.recv {
        RecvSide::Own(ledger, ring) => {
            // In order, whatever counter the entry has.
            // SAFETY: the attached ledger's poller is this queue.
            let counter = unsafe { ledger.next()? };
            let result = result(ReceiveEntry::Own(ring, counter));
            // SAFETY: as above.
            let (record, retired) = unsafe { ledger.retire(counter) };
            Some(told(ledger, record, retired, result))
        }
        RecvSide::Shared(srq, qp_num) => {
            let (wr_id, block, result) = srq.retire(cqe.wqe_counter(), |index| {
                result(ReceiveEntry::Shared(srq, index))
            })?;
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

/// Success, unless bytes that came within the entry found no place in the request's memory.
#[inline(always)]
fn placed_or_failed(placed: bool, success: Success) -> Result<Success, Failure> {
    if placed {
        return Ok(success);
    }
    Err(Failure {
        status: WcStatus::LocLenErr,
        vendor_err: 0,
        syndrome: Syndrome::LOCAL_LENGTH,
    })
}

#[inline(always)]
fn told<'m>(
    ledger: &Ledger<'m>,
    record: Record<'m>,
    retired: u32,
    result: Result<Success, Failure>,
) -> Completion<'m> {
    Completion {
        wr_id: record.wr_id,
        qp_num: ledger.qp_num(),
        retired,
        result,
        block: record.block,
    }
}

#[cold]
fn failure(cqe: &Cqe64) -> Failure {
    let syndrome = cqe.syndrome();
    Failure {
        status: syndrome.status(),
        vendor_err: cqe.vendor_err_synd(),
        syndrome,
    }
}

/// Copies an entry's payload over a list's memory; whether all that it claims was there and found a
/// place.
///
/// # Safety
/// The list's memory is writable.
#[inline(always)]
unsafe fn put(cqe: &Cqe64, data: &[u8], list: impl Iterator<Item = Sge>) -> bool {
    let left = scatter(data, list, |sge, bytes| {
        // SAFETY: the caller's promise; `scatter` gives no more bytes than the element has.
        unsafe {
            core::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                core::ptr::with_exposed_provenance_mut(sge.addr as usize),
                bytes.len(),
            );
        }
    });
    left == 0
        && cqe
            .byte_len()
            .is_some_and(|claimed| claimed as usize == data.len())
}

#[cfg(all(test, not(loom)))]
mod tests;
