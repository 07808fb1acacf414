//! The posting side of a send queue.

mod list;
mod repost;

pub use list::SendRequest;

use super::completion::Unfinished;
use super::error::Rejected;
use super::ledger::{Ledger, Record};
use super::life::Lives;
use crate::port::{LastEntry, SendDoorbell, Staged};
use crate::slab::Block;
use crate::wqe::PostError;
use crate::wqe::{
    Address, BASIC_BLOCK, Inline, NoPayload, Operation, Payload, PayloadLimits, SEGMENT, SendRing,
    SendWqe, Supports, Transport, build, build_nop, fm_ce_se, prefix, set_fm_ce_se,
};
use crate::wr::{SendFlags, Sge};
use core::marker::PhantomData;

const SEGMENTS_PER_BLOCK: u32 = (BASIC_BLOCK / SEGMENT) as u32;

/// Largest number of 16-byte segments that the 6-bit size field of a WQE can hold.
const MAX_DS: usize = 63;

/// The `fm_ce_se` byte for each combination of the lowest bits of [`SendFlags`]. INLINE is not
/// among them: it depends on the payload.
type Marks = [u8; SendFlags::INLINE.bits() as usize];

/// `unsignaled`: the byte of requests that ask for no completion.
const fn marks(unsignaled: u8) -> Marks {
    let mut marks = [0; size_of::<Marks>()];
    let mut bits = 0;
    while bits < marks.len() {
        let flags = SendFlags::from_bits_truncate(bits as u8);
        marks[bits] = if flags.contains(SendFlags::SIGNALED) {
            fm_ce_se::SIGNALED
        } else {
            unsignaled
        };
        if flags.contains(SendFlags::FENCE) {
            marks[bits] |= fm_ce_se::FENCE;
        }
        if flags.contains(SendFlags::SOLICITED) {
            marks[bits] |= fm_ce_se::SOLICITED;
        }
        bits += 1;
    }
    marks
}

/// The parts of a send queue.
#[derive(Debug)]
pub struct SendQueueInit<'m, D> {
    /// The memory of its WQEs.
    pub ring: SendRing<'m>,
    /// Its ledger, with as many slots as the ring has blocks.
    pub ledger: &'m Ledger<'m>,
    /// How the device is notified.
    pub doorbell: D,
    /// Most scatter/gather elements in one request.
    pub max_sge: u32,
    /// Most inline bytes in one request.
    pub max_inline: u32,
    /// Every request generates a CQE, signalled or not.
    pub signal_all: bool,
}

/// The posting side of a send queue on transport `T`.
///
/// Posts are refused until [`set_postable`](Self::set_postable) is called with `true`, once the
/// state of the queue pair allows them.
#[derive(Debug)]
pub struct SendQueue<'m, T: Transport, D: SendDoorbell> {
    ring: SendRing<'m>,
    ledger: &'m Ledger<'m>,
    /// Counter of the next entry.
    head: u32,
    /// `head` may not pass this counter. Equal to `head` while posting is not allowed.
    limit: u32,
    /// Requests staged since the doorbell was last rung.
    staged: u32,
    /// Basic blocks that all requests so far took in addition to their first one.
    extra: u32,
    /// The last entry staged.
    last: LastEntry,
    limits: PayloadLimits,
    next_fence: u8,
    /// The `fm_ce_se` byte of an entry, indexed by the flags of its request.
    marks: Marks,
    postable: bool,
    lives: Lives,
    doorbell: D,
    transport: PhantomData<T>,
}

impl<'m, T: Transport, D: SendDoorbell> SendQueue<'m, T, D> {
    /// Creates a queue with all counters at zero. `None` when the ledger's size differs from the
    /// ring's, or when an entry with `max_sge` elements or `max_inline` bytes would be longer than
    /// the format allows or than the blocks that can be in flight.
    ///
    /// # Safety
    /// This is the only queue on the ring and the only poster of the ledger. Nothing else rings
    /// this doorbell or writes its doorbell record.
    pub unsafe fn new(init: SendQueueInit<'m, D>) -> Option<Self> {
        let SendQueueInit {
            ring,
            ledger,
            doorbell,
            max_sge,
            max_inline,
            signal_all,
        } = init;
        let longest = Self::longest_entry(max_sge, max_inline);
        let fits = longest <= (ledger.capacity() as usize * BASIC_BLOCK).min(MAX_DS * SEGMENT);
        (fits && ledger.slots() == ring.blocks()).then(|| Self {
            ring,
            ledger,
            head: 0,
            limit: 0,
            staged: 0,
            extra: 0,
            last: LastEntry::default(),
            limits: PayloadLimits {
                max_sge,
                max_inline,
            },
            next_fence: 0,
            marks: marks(if signal_all { fm_ce_se::SIGNALED } else { 0 }),
            postable: false,
            lives: Lives::default(),
            doorbell,
            transport: PhantomData,
        })
    }

    /// Bytes of the longest entry that a request within these limits takes.
    pub const fn longest_entry(max_sge: u32, max_inline: u32) -> usize {
        let sges = max_sge as usize * SEGMENT;
        let inline = (max_inline as usize + 4).next_multiple_of(SEGMENT);
        // Requests that do registration work carry no payload.
        SEGMENT + T::SEGMENTS + T::LONGEST_OPERATION + if sges > inline { sges } else { inline }
    }

    /// Limits of one request.
    #[inline(always)]
    pub fn limits(&self) -> PayloadLimits {
        self.limits
    }

    /// Number of the queue pair.
    #[inline(always)]
    pub fn qp_num(&self) -> u32 {
        self.ledger.qp_num()
    }

    /// Basic blocks that can be staged before a request has to complete.
    pub fn free_blocks(&self) -> u32 {
        let in_flight = self.head.wrapping_sub(self.ledger.retired());
        self.ledger.capacity() - in_flight
    }

    /// Most basic blocks that can be in flight.
    pub fn slots(&self) -> u32 {
        self.ledger.capacity()
    }

    /// Basic blocks of the requests that were rung and are not reported yet.
    pub fn in_flight(&self) -> u32 {
        self.ledger.in_flight()
    }

    /// Counter of the next entry.
    #[inline(always)]
    pub fn counter(&self) -> u32 {
        self.head
    }

    /// Counter behind the last entry for which the doorbell was rung.
    pub fn rung(&self) -> u32 {
        self.ledger.posted()
    }

    /// Requests staged and not rung.
    #[inline(always)]
    pub fn staged(&self) -> u32 {
        self.staged
    }

    /// The ledger and the ring of its requests.
    pub(super) fn recorded(&self) -> (&'m Ledger<'m>, SendRing<'m>) {
        (self.ledger, self.ring)
    }

    /// The doorbell.
    pub fn doorbell(&self) -> &D {
        &self.doorbell
    }

    /// Allows or forbids posting. Call it at each change of the queue pair's state.
    pub fn set_postable(&mut self, postable: bool) {
        self.postable = postable;
        self.limit = self.head;
    }

    /// From here on, unsignalled requests that are flushed generate no CQE, except for the last of
    /// those rung together: its completion also reports those before it. Has no effect where every
    /// request generates a CQE.
    ///
    /// A completion with a flush error then says of the unsignalled requests before it only that
    /// none of them failed: each was flushed, or executed before the first failure.
    pub fn suppress_flush(&mut self) {
        if self.marks == marks(0) {
            self.marks = marks(fm_ce_se::NO_FLUSH);
        }
    }

    /// Clears `NO_FLUSH` of the last entry, so that its completion reports the requests rung with
    /// it if they are flushed.
    #[cold]
    fn end_suppressed(&mut self) {
        self.last.fm_ce_se &= !fm_ce_se::NO_FLUSH;
        // SAFETY: `&mut self` makes this the only poster; the entry is staged and not rung.
        unsafe { set_fm_ce_se(&self.ring, self.last.counter, self.last.fm_ce_se) };
    }

    /// Ends this life of the queue after the queue pair has gone to RESET: passes every request not
    /// yet reported to `each` with its buffer, oldest first. Posts are refused from here on.
    ///
    /// # Panics
    /// When `each` panics. This life of the queue has not ended then, and the requests that were
    /// not passed to `each` are still in flight: call this again.
    ///
    /// # Safety
    /// The device has stopped and reads nothing from the queue before this function has returned
    /// without a panic. Nobody polls the completion queue meanwhile, and its CQEs of this queue are
    /// purged before it is polled again.
    pub unsafe fn clear(&mut self, each: impl FnMut(Unfinished<'m>)) {
        self.staged = 0;
        self.next_fence = 0;
        self.set_postable(false);
        let end = self.head;
        // SAFETY: `&mut self` makes this the poster; the caller guarantees that nobody polls.
        self.head = unsafe { self.ledger.clear(end, each) };
        self.lives.renew(end, self.head);
        // Again, so that `limit` equals the new `head`.
        self.set_postable(false);
    }

    /// Stages a request that carries its bytes inline, or has none. The memory of `payload` may be
    /// reused when this returns.
    ///
    /// # Errors
    /// [`PostError`]; nothing was staged then.
    #[inline(always)]
    pub fn post_inline<O: Operation>(
        &mut self,
        wr_id: u64,
        address: Address<'_, T>,
        operation: O,
        payload: &[u8],
        flags: SendFlags,
    ) -> Result<(), PostError>
    where
        T: Supports<O>,
    {
        // SAFETY: an inline entry refers to no local memory.
        unsafe { self.post(wr_id, address, operation, Inline(payload), flags) }
    }

    /// Stages a request without data: a NOP, an invalidation, an empty SEND or RDMA WRITE.
    ///
    /// # Errors
    /// [`PostError`]; nothing was staged then.
    #[inline(always)]
    pub fn post_empty<O: Operation>(
        &mut self,
        wr_id: u64,
        address: Address<'_, T>,
        operation: O,
        flags: SendFlags,
    ) -> Result<(), PostError>
    where
        T: Supports<O>,
    {
        // SAFETY: the entry refers to no local memory.
        unsafe { self.post(wr_id, address, operation, NoPayload, flags) }
    }

    /// Stages a request on the first `length` bytes of a block. The completion returns the block;
    /// if the request is unsignalled and a later completion retires it, the block goes back to its
    /// slab.
    ///
    /// # Errors
    /// [`Rejected`], which returns the block.
    #[inline(always)]
    pub fn post_block<O: Operation>(
        &mut self,
        wr_id: u64,
        address: Address<'_, T>,
        operation: O,
        block: Block<'m>,
        length: u32,
        flags: SendFlags,
    ) -> Result<(), Rejected<Block<'m>>>
    where
        T: Supports<O>,
    {
        if length > block.capacity() {
            let error = PostError::BlockTooShort {
                given: length,
                capacity: block.capacity(),
            };
            return Err(Rejected { error, block });
        }
        let sge = Sge {
            addr: block.addr(),
            length,
            lkey: block.lkey(),
        };
        let reserved = match self.reserve::<O, _>(&sge) {
            Ok(()) => Some(block),
            Err(error) => return Err(Rejected { error, block }),
        };
        // SAFETY: `reserve` found room; the block's memory stays untouched while the ledger holds
        // the block.
        unsafe {
            let request = SendRequest {
                wr_id,
                address,
                operation,
                payload: sge,
                flags,
            };
            self.write(request, reserved);
        }
        Ok(())
    }

    /// Stages a request. The memory is the caller's responsibility;
    /// [`post_inline`](Self::post_inline), [`post_block`](Self::post_block) and
    /// [`post_empty`](Self::post_empty) are the safe variants.
    ///
    /// Cost: writes the WQE (one cache line up to 64 bytes) and half a cache line of the ledger.
    ///
    /// # Errors
    /// [`PostError`]; nothing was staged then.
    ///
    /// # Safety
    /// The local memory that `payload` refers to stays valid, and the program does not write it
    /// (for an RDMA READ or atomic: does not touch it) until the request is reported.
    #[inline(always)]
    pub unsafe fn post<O: Operation, P: Payload>(
        &mut self,
        wr_id: u64,
        address: Address<'_, T>,
        operation: O,
        payload: P,
        flags: SendFlags,
    ) -> Result<(), PostError>
    where
        T: Supports<O>,
    {
        self.reserve::<O, _>(&payload)?;
        // SAFETY: `reserve` found room; the caller guarantees that the payload's memory stays valid
        // until the request is reported.
        unsafe {
            let request = SendRequest {
                wr_id,
                address,
                operation,
                payload,
                flags,
            };
            self.write(request, None);
        }
        Ok(())
    }

    /// Checks a request against the queue's limits, and returns the most blocks that it may take.
    #[inline(always)]
    fn blocks<O: Operation, P: Payload>(&self, payload: &P) -> Result<u32, PostError> {
        const {
            assert!(
                O::CARRIES_DATA || P::EMPTY,
                "this operation carries no data"
            )
        };
        payload.check(&self.limits)?;
        let bytes = const { prefix::<T, O>() } + payload.bound();
        // Shifts, because `div_ceil` would test the remainder.
        Ok(((bytes + BASIC_BLOCK - 1) >> BASIC_BLOCK.ilog2()) as u32)
    }

    /// Checks a request against the queue's limits and free slots.
    #[inline(always)]
    fn reserve<O: Operation, P: Payload>(&mut self, payload: &P) -> Result<(), PostError> {
        let blocks = self.blocks::<O, P>(payload)?;
        if self.limit.wrapping_sub(self.head) < blocks {
            return self.refresh(blocks);
        }
        Ok(())
    }

    /// Reloads how far requests are retired, and checks again.
    #[cold]
    #[inline(never)]
    fn refresh(&mut self, blocks: u32) -> Result<(), PostError> {
        if !self.postable {
            return Err(PostError::WrongState);
        }
        self.limit = self.ledger.retired().wrapping_add(self.ledger.capacity());
        if self.limit.wrapping_sub(self.head) < blocks {
            return Err(PostError::QueueFull);
        }
        Ok(())
    }

    /// # Safety
    /// `reserve` has just succeeded for this request. The memory that `payload` refers to meets the
    /// requirements of [`Self::post`].
    #[inline(always)]
    unsafe fn write<O: Operation, P: Payload>(
        &mut self,
        request: SendRequest<'_, T, O, P>,
        block: Option<Block<'m>>,
    ) {
        // SAFETY: the caller has reserved the blocks and guarantees that the payload's memory stays
        // valid.
        self.last = unsafe { self.write_entry(request, block) };
        // SAFETY: no overflow, because each staged request has a slot of its own and there are at
        // most 32768. The unchecked addition lets the compiler see that `staged` is not zero where
        // a request is rung right after it was posted.
        self.staged = unsafe { self.staged.unchecked_add(1) };
    }

    /// Writes a request like [`write`](Self::write), but neither counts it as staged nor sets
    /// `last`.
    ///
    /// # Safety
    /// The requirements of [`write`](Self::write).
    #[inline(always)]
    unsafe fn write_entry<O: Operation, P: Payload>(
        &mut self,
        request: SendRequest<'_, T, O, P>,
        block: Option<Block<'m>>,
    ) -> LastEntry {
        let SendRequest {
            wr_id,
            address,
            operation,
            payload,
            flags,
        } = request;
        // A table lookup, because the flags are rarely known at compile time.
        let mut fm_ce_se = self.marks[usize::from(flags.bits()) % self.marks.len()];
        if !flags.contains(SendFlags::FENCE) {
            fm_ce_se |= self.next_fence;
        }
        self.next_fence = if O::FENCES_NEXT {
            fm_ce_se::INITIATOR_SMALL_FENCE
        } else {
            0
        };
        let counter = self.head;
        // SAFETY: `&mut self` makes this the only poster; `reserve` found the blocks free.
        let ds = unsafe {
            build::<T, O, P>(
                &self.ring,
                counter,
                self.ledger.qp_num(),
                fm_ce_se,
                address,
                operation,
                payload,
            )
        };
        let blocks = (ds + SEGMENTS_PER_BLOCK - 1) >> SEGMENTS_PER_BLOCK.ilog2();
        // SAFETY: only poster, blocks reserved; the ledger has a slot for each block.
        unsafe {
            self.ledger.record(Record {
                wr_id,
                block,
                counter,
                extra: self.extra,
                slots: blocks as u8,
                opcode: O::WC,
            });
        }
        self.head = counter.wrapping_add(blocks);
        self.extra = self.extra.wrapping_add(blocks - 1);
        LastEntry {
            counter,
            ds: ds as u8,
            opcode: O::OPCODE,
            inline: payload.inline(),
            fm_ce_se,
        }
    }

    /// Reads the description of the entry at `counter` back from the ring.
    ///
    /// # Safety
    /// The entry is staged or in flight.
    #[inline(always)]
    unsafe fn read_back(&self, counter: u32) -> LastEntry {
        // SAFETY: the caller guarantees that the entry is staged or in flight, so nobody writes it.
        let wqe = unsafe { SendWqe::read(self.ring, counter) };
        LastEntry {
            counter,
            ds: wqe.ds() as u8,
            opcode: wqe.opcode(),
            inline: LastEntry::UNKNOWN,
            fm_ce_se: wqe.fm_ce_se(),
        }
    }

    /// Posts and rings a signalled NOP that is not in the ledger, behind everything posted so far,
    /// and returns its counter. The device completes it last, and the poll that finds its CQE drops
    /// it as [stale](super::CompletionQueue::stale). If there is no room for it, returns the
    /// counter of the last request.
    ///
    /// For a caller that ends the queue and looks for this counter among the CQEs that were not
    /// polled.
    ///
    /// # Safety
    /// Nothing is posted from here on until [`clear`](Self::clear): it would overwrite the NOP.
    #[cold]
    pub unsafe fn mark(&mut self) -> u16 {
        self.ring();
        if self.free_blocks() == 0 {
            return self.last.counter as u16;
        }
        let counter = self.head;
        let flags = fm_ce_se::SIGNALED;
        // SAFETY: `&mut self` makes this the only poster; the block is free.
        let ds = unsafe { build_nop(&self.ring, counter, self.ledger.qp_num(), flags) };
        let staged = Staged {
            counter: counter.wrapping_add(1),
            count: 1,
            last: self.ring.block(counter),
            known: LastEntry {
                counter,
                ds: ds as u8,
                opcode: crate::wqe::opcode::NOP,
                inline: 0,
                fm_ce_se: flags,
            },
        };
        // SAFETY: the entry was written above; the ledger has no request in its slot.
        unsafe { self.doorbell.ring(&staged) };
        counter as u16
    }

    /// Rings the doorbell for everything staged. Does nothing when nothing is staged.
    #[inline(always)]
    pub fn ring(&mut self) {
        if self.staged == 0 {
            return;
        }
        if self.last.fm_ce_se & fm_ce_se::NO_FLUSH != 0 {
            self.end_suppressed();
        }
        // Read before the requests are published: where they were posted in the same function, the
        // compiler still knows all of these values.
        let staged = Staged {
            counter: self.head,
            count: self.staged,
            last: self.ring.block(self.last.counter),
            known: self.last,
        };
        self.ledger.publish(staged.counter);
        // SAFETY: these requests are staged and in the ledger.
        unsafe { self.doorbell.ring(&staged) };
        self.staged = 0;
    }
}
