//! The posting side of a send queue.

mod count;
mod flags;
mod list;
mod repost;
mod ring;

pub use list::SendRequest;

use super::completion::Unfinished;
use super::error::Rejected;
use super::ledger::{Ledger, Record, Records};
use super::life::Lives;
use crate::port::{LastEntry, SendDoorbell};
use crate::slab::Block;
use crate::wqe::PostError;
use crate::wqe::{
    Address, BASIC_BLOCK, Inline, NoPayload, Operation, Owner, Payload, PayloadLimits, SEGMENT,
    SendRing, SendWqe, Supports, Transport, build_at, fm_ce_se, prefix,
};
use crate::wr::{SendFlags, Sge};
use core::marker::PhantomData;
use flags::{Marks, marks};
use ring::Last;

const SEGMENTS_PER_BLOCK: u32 = (BASIC_BLOCK / SEGMENT) as u32;

/// Largest number of 16-byte segments that the 6-bit size field of a WQE can hold.
const MAX_DS: usize = 63;

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
    /// The records of the ledger.
    records: Records<'m>,
    /// Counter of the next entry.
    head: u32,
    /// `head` may not pass this counter. Equal to `head` while posting is not allowed.
    limit: u32,
    /// How many requests were posted so far, free-running.
    number: u32,
    /// `number` when one request is staged, which is rung at once. Another number where flushes are
    /// suppressed: then the last request is changed first.
    alone: u32,
    /// The last entry staged.
    last: Last,
    limits: PayloadLimits,
    owner: Owner,
    /// The word with the `fm_ce_se` byte of an entry, indexed by the flags of its request.
    marks: Marks,
    /// The `fm_ce_se` byte of requests that ask for no completion.
    unsignaled: u8,
    /// The counter behind the last registration work, while `marks` has the entry there wait for it. The
    /// post of that entry, and the one behind it, go through [`refresh`](Self::refresh).
    fence: Option<u32>,
    postable: bool,
    /// A reload of `limit` has more to do: posts are refused, or requests are counted.
    reloads_slowly: bool,
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
        let unsignaled = if signal_all { fm_ce_se::SIGNALED } else { 0 };
        let longest = Self::longest_entry(max_sge, max_inline);
        let fits = longest <= (ledger.capacity() as usize * BASIC_BLOCK).min(MAX_DS * SEGMENT);
        (fits && ledger.slots() == ring.blocks()).then(|| Self {
            ring,
            ledger,
            records: ledger.records(),
            head: 0,
            limit: 0,
            number: 0,
            alone: 1,
            last: Last {
                first: ring.block(0),
                known: LastEntry::new(0, 0, 0),
            },
            limits: PayloadLimits {
                max_sge,
                max_inline,
            },
            owner: Owner::new(ledger.qp_num()),
            marks: marks(unsignaled, false),
            unsignaled,
            fence: None,
            postable: false,
            reloads_slowly: true,
            lives: Lives::default(),
            doorbell,
            transport: PhantomData,
        })
    }

    /// Bytes of the longest entry that a request within these limits takes, whichever operation of the
    /// transport it is. libmlx5 reserves less for a queue pair whose creator names the operations
    /// (`send_ops_flags`); here each request within the limits is accepted.
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
        (self.number.wrapping_sub(self.alone)).wrapping_add(self.ahead())
    }

    /// How far `alone` is ahead of the number of requests that were rung: one; where flushes are
    /// suppressed, further than requests can be staged.
    #[inline(always)]
    fn ahead(&self) -> u32 {
        match self.unsignaled {
            fm_ce_se::NO_FLUSH => u32::MAX,
            _ => 1,
        }
    }

    /// Counts all requests as rung.
    #[inline(always)]
    fn none_staged(&mut self) {
        self.alone = self.number.wrapping_add(self.ahead());
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
        self.reloads_slowly = !postable || self.counts();
        self.limit = self.head;
    }

    /// From here on, unsignalled requests that are flushed generate no CQE, except for the last of
    /// those rung together: its completion also reports those before it. Has no effect where every
    /// request generates a CQE.
    ///
    /// A completion with a flush error then says of the unsignalled requests before it only that
    /// none of them failed: each was flushed, or executed before the first failure.
    pub fn suppress_flush(&mut self) {
        if self.unsignaled == 0 {
            let staged = self.staged();
            self.unsignaled = fm_ce_se::NO_FLUSH;
            self.marks = marks(self.unsignaled, self.fence.is_some());
            self.alone = (self.number.wrapping_sub(staged)).wrapping_add(self.ahead());
        }
    }

    /// Has the next entry wait for the registration work before it.
    #[inline(never)]
    fn fence_next(&mut self) {
        self.fence = Some(self.head);
        self.marks = marks(self.unsignaled, true);
        self.limit = self.head;
    }

    fn unfence(&mut self) {
        self.fence = None;
        self.marks = marks(self.unsignaled, false);
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
        self.none_staged();
        self.unfence();
        self.set_postable(false);
        self.count();
        let end = self.head;
        // SAFETY: `&mut self` makes this the poster; the caller guarantees that nobody polls.
        self.head = unsafe { self.ledger.clear(end, each) };
        self.counted_up_to(self.head);
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
        if !self.has_room(blocks) {
            return self.refresh(blocks);
        }
        Ok(())
    }

    /// Whether so many blocks lie before `limit`.
    #[inline(always)]
    fn has_room(&self, blocks: u32) -> bool {
        self.limit.wrapping_sub(self.head.wrapping_add(blocks)) as i32 >= 0
    }

    /// Reloads how far requests are retired, and checks again.
    #[cold]
    #[inline(never)]
    fn refresh(&mut self, blocks: u32) -> Result<(), PostError> {
        if self.reloads_slowly {
            return self.refresh_slowly(blocks);
        }
        self.reload(blocks)
    }

    /// Checks again in a queue that refuses posts, or counts requests.
    #[cold]
    #[inline(never)]
    fn refresh_slowly(&mut self, blocks: u32) -> Result<(), PostError> {
        if !self.postable {
            return Err(PostError::WrongState);
        }
        self.count();
        self.reload(blocks)
    }

    #[inline(always)]
    fn reload(&mut self, blocks: u32) -> Result<(), PostError> {
        self.limit = self.ledger.retired().wrapping_add(self.ledger.capacity());
        let room = self.has_room(blocks);
        match self.fence {
            None => {}
            // This post may go beyond `limit`; the next one comes back here, however few of its
            // blocks this one takes.
            Some(at) if at == self.head => self.limit = self.head,
            Some(_) => self.unfence(),
        }
        if !room && self.doorbell.cq_failed() {
            return Err(PostError::CqFailed);
        }
        room.then_some(()).ok_or(PostError::QueueFull)
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
    }

    /// Writes a request like [`write`](Self::write), but does not set `last`.
    ///
    /// # Safety
    /// The requirements of [`write`](Self::write).
    #[inline(always)]
    unsafe fn write_entry<O: Operation, P: Payload>(
        &mut self,
        request: SendRequest<'_, T, O, P>,
        block: Option<Block<'m>>,
    ) -> Last {
        let SendRequest {
            wr_id,
            address,
            operation,
            payload,
            flags,
        } = request;
        // A table lookup, because the flags are rarely known at compile time.
        let mark = self.marks[usize::from(flags.bits()) % self.marks.len()];
        let counter = self.head;
        let index = self.ring.index(counter);
        let entry = self.ring.writer_at(index);
        let first = entry.first();
        // SAFETY: `&mut self` makes this the only poster; `reserve` found the blocks free.
        let ds = unsafe {
            build_at::<T, O, P>(
                entry,
                counter,
                &self.owner,
                mark,
                address,
                operation,
                payload,
            )
        };
        let blocks = (ds + SEGMENTS_PER_BLOCK - 1) >> SEGMENTS_PER_BLOCK.ilog2();
        let record = Record {
            wr_id,
            block,
            end: counter.wrapping_add(blocks),
            number: self.number,
            opcode: Some(O::WC),
        };
        // SAFETY: only poster, blocks reserved; the ledger has a slot for each block, with its index.
        unsafe {
            self.ledger
                .record(self.records.at(index.get()), counter, record)
        };
        self.head = counter.wrapping_add(blocks);
        self.number = self.number.wrapping_add(1);
        if O::FENCES_NEXT {
            self.fence_next();
        }
        Last {
            first,
            known: LastEntry::new(ds as u8, O::OPCODE, payload.inline()),
        }
    }

    /// Reads the description of the entry at `counter` back from the ring.
    ///
    /// # Safety
    /// The entry is staged or in flight.
    #[inline(always)]
    unsafe fn read_back(&self, counter: u32) -> Last {
        // SAFETY: the caller guarantees that the entry is staged or in flight, so nobody writes it.
        let wqe = unsafe { SendWqe::read(self.ring, counter) };
        Last {
            first: self.ring.block(counter),
            known: LastEntry::new(wqe.ds() as u8, wqe.opcode(), LastEntry::UNKNOWN),
        }
    }
}
