//! The posting half of a send queue.

mod list;
mod repost;

pub use list::SendRequest;

use super::completion::Unfinished;
use super::error::{PostError, Rejected};
use super::ledger::{Ledger, Record};
use super::life::Lives;
use crate::port::{LastEntry, SendDoorbell, Staged};
use crate::slab::Block;
use crate::wqe::{
    Address, BASIC_BLOCK, Inline, NoPayload, Operation, Payload, PayloadLimits, SEGMENT, SendRing,
    SendWqe, Supports, Transport, build, build_nop, fm_ce_se, prefix, set_fm_ce_se,
};
use crate::wr::{SendFlags, Sge};
use core::marker::PhantomData;

const SEGMENTS_PER_BLOCK: u32 = (BASIC_BLOCK / SEGMENT) as u32;

/// Segments that an entry's 6-bit size can name.
const MAX_DS: usize = 63;

/// How entries are flagged, by the lowest bits of [`SendFlags`]: all but INLINE, which is a matter of the
/// payload.
type Marks = [u8; SendFlags::INLINE.bits() as usize];

/// `unsignaled`: of requests that ask for no completion.
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

/// What a send queue is made of.
#[derive(Debug)]
pub struct SendQueueInit<'m, D> {
    /// Its memory.
    pub ring: SendRing<'m>,
    /// Its ledger, with as many slots as the ring has blocks.
    pub ledger: &'m Ledger<'m>,
    /// How the device is told.
    pub doorbell: D,
    /// Scatter/gather elements of one request.
    pub max_sge: u32,
    /// Inline bytes of one request.
    pub max_inline: u32,
    /// Every request completes with an entry, signalled or not.
    pub signal_all: bool,
}

/// The posting half of a send queue on transport `T`.
///
/// Posting is refused until [`set_postable`](Self::set_postable) says that the queue pair's state
/// allows it.
#[derive(Debug)]
pub struct SendQueue<'m, T: Transport, D: SendDoorbell> {
    ring: SendRing<'m>,
    ledger: &'m Ledger<'m>,
    /// Counter of the next entry.
    head: u32,
    /// `head` may not pass this; equal to it while posting is not allowed.
    limit: u32,
    /// Requests staged and not rung.
    staged: u32,
    /// Basic blocks that all requests took beside the first one of each.
    extra: u32,
    /// The last one.
    last: LastEntry,
    limits: PayloadLimits,
    next_fence: u8,
    /// How an entry is flagged, by its request's flags.
    marks: Marks,
    postable: bool,
    lives: Lives,
    doorbell: D,
    transport: PhantomData<T>,
}

impl<'m, T: Transport, D: SendDoorbell> SendQueue<'m, T, D> {
    /// A queue in its first life. `None` when the ledger's size differs from the ring's, or an entry
    /// with `max_sge` elements or `max_inline` bytes would be longer than the format can say or
    /// than what can be in flight.
    ///
    /// # Safety
    /// This is the only queue on the ring, and the only poster of the ledger.
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

    /// Bytes of the longest entry that a request of these limits makes.
    pub const fn longest_entry(max_sge: u32, max_inline: u32) -> usize {
        let sges = max_sge as usize * SEGMENT;
        let inline = (max_inline as usize + 4).next_multiple_of(SEGMENT);
        // Requests with registration work carry no payload.
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

    /// Basic blocks that can be staged before something has to complete.
    pub fn free_blocks(&self) -> u32 {
        let in_flight = self.head.wrapping_sub(self.ledger.retired());
        self.ledger.capacity() - in_flight
    }

    /// Basic blocks that can be in flight.
    pub fn slots(&self) -> u32 {
        self.ledger.capacity()
    }

    /// Basic blocks of what was rung and not told yet.
    pub fn in_flight(&self) -> u32 {
        self.ledger.in_flight()
    }

    /// Counter of the next entry.
    #[inline(always)]
    pub fn counter(&self) -> u32 {
        self.head
    }

    /// Counter behind the last entry that the device was told of.
    pub fn rung(&self) -> u32 {
        self.ledger.posted()
    }

    /// Requests staged and not rung.
    #[inline(always)]
    pub fn staged(&self) -> u32 {
        self.staged
    }

    /// What is known of its requests.
    pub(super) fn recorded(&self) -> (&'m Ledger<'m>, SendRing<'m>) {
        (self.ledger, self.ring)
    }

    /// The doorbell.
    pub fn doorbell(&self) -> &D {
        &self.doorbell
    }

    /// Allows or forbids posting: to be called at each change of the queue pair's state.
    pub fn set_postable(&mut self, postable: bool) {
        self.postable = postable;
        self.limit = self.head;
    }

    /// Unsignalled requests that are flushed make no completion entry from here on, but for the last of
    /// those that are rung together: its completion tells of those before it. Without effect where every
    /// request completes with an entry.
    ///
    /// A completion that says "flushed" then tells no more of the unsignalled requests before it than that
    /// none of them failed: they were flushed, or executed while nothing had failed yet.
    pub fn suppress_flush(&mut self) {
        if self.marks == marks(0) {
            self.marks = marks(fm_ce_se::NO_FLUSH);
        }
    }

    /// The last entry is to tell of the requests rung with it, should they be flushed.
    #[cold]
    fn end_suppressed(&mut self) {
        self.last.fm_ce_se &= !fm_ce_se::NO_FLUSH;
        // SAFETY: only poster by `&mut self`; staged, and not rung.
        unsafe { set_fm_ce_se(&self.ring, self.last.counter, self.last.fm_ce_se) };
    }

    /// Ends this life of the queue, after the queue pair has gone to RESET: every request not yet
    /// told goes to `each` with its buffer, oldest first. Posting is refused from here on.
    ///
    /// # Safety
    /// The device has stopped, and nobody polls the completion queue meanwhile; its entries of this
    /// queue are purged before it is polled again.
    pub unsafe fn clear(&mut self, each: impl FnMut(Unfinished<'m>)) {
        let end = self.head;
        // SAFETY: poster by `&mut self`, poller by the caller's promise.
        self.head = unsafe { self.ledger.clear(end, each) };
        self.lives.renew(end, self.head);
        self.staged = 0;
        self.next_fence = 0;
        self.set_postable(false);
    }

    /// Stages a request that carries its bytes, or has none. The memory of `payload` is free again
    /// when this returns.
    ///
    /// # Errors
    /// [`PostError`]; nothing was staged.
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
        // SAFETY: an inline entry names no local memory.
        unsafe { self.post(wr_id, address, operation, Inline(payload), flags) }
    }

    /// Stages a request without data: a NOP, an invalidation, an empty SEND or WRITE.
    ///
    /// # Errors
    /// [`PostError`]; nothing was staged.
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
        // SAFETY: the entry names no local memory.
        unsafe { self.post(wr_id, address, operation, NoPayload, flags) }
    }

    /// Stages a request on the first `length` bytes of a block, which comes back with the completion
    /// (or goes back to its slab when a later completion retires an unsignalled request).
    ///
    /// # Errors
    /// [`Rejected`], with the block.
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
        // SAFETY: reserved; the block's memory stays untouched while the ledger holds it.
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

    /// Stages a request. This is the raw path; [`post_inline`](Self::post_inline),
    /// [`post_block`](Self::post_block) and [`post_empty`](Self::post_empty) are the safe ones.
    ///
    /// Cost: writes the entry (one cache line up to 64 bytes) and half a line of ledger.
    ///
    /// # Errors
    /// [`PostError`]; nothing was staged.
    ///
    /// # Safety
    /// The local memory that `payload` points to stays valid, and is not written (for a READ or
    /// atomic: not touched) by the program until the request is told.
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
        // SAFETY: reserved; the memory is the caller's promise.
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

    /// Checks a request against the queue's limits, and gives the blocks that it needs at the most.
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
        // Shifts: `div_ceil` would test the remainder.
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

    /// Looks again at what has been retired since.
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
    /// `reserve` has just said yes; the memory that `payload` points to is as [`Self::post`] says.
    #[inline(always)]
    unsafe fn write<O: Operation, P: Payload>(
        &mut self,
        request: SendRequest<'_, T, O, P>,
        block: Option<Block<'m>>,
    ) {
        // SAFETY: the caller's promise.
        self.last = unsafe { self.write_entry(request, block) };
        // SAFETY: each has a slot of its own, of at most 32768. So told, the compiler knows of a request that
        // is rung where it was posted that there is one.
        self.staged = unsafe { self.staged.unchecked_add(1) };
    }

    /// As [`write`](Self::write), but that it is not counted, and not known as the last.
    ///
    /// # Safety
    /// As there.
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
        // A table, for flags are rarely known when this is compiled.
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
        // SAFETY: only poster by `&mut self`; `reserve` found the blocks free.
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
        // SAFETY: as above; the ledger has a slot for each block.
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

    /// What the entry at `counter` says of itself.
    ///
    /// # Safety
    /// It is staged, or in flight.
    #[inline(always)]
    unsafe fn read_back(&self, counter: u32) -> LastEntry {
        // SAFETY: the caller's promise: nobody writes it.
        let wqe = unsafe { SendWqe::read(self.ring, counter) };
        LastEntry {
            counter,
            ds: wqe.ds() as u8,
            opcode: wqe.opcode(),
            inline: LastEntry::UNKNOWN,
            fm_ce_se: wqe.fm_ce_se(),
        }
    }

    /// Posts and rings an entry that is no request: a NOP, signalled, behind all that was posted; gives its
    /// counter. The device completes it last; what polls the completion drops it as
    /// [stale](super::CompletionQueue::stale). Without room for it the counter is that of the last
    /// request.
    ///
    /// For who ends the queue, and looks for it among the completions that were not polled: nothing is to
    /// be posted from here on, before [`clear`](Self::clear).
    #[cold]
    pub fn mark(&mut self) -> u16 {
        self.ring();
        if self.free_blocks() == 0 {
            return self.last.counter as u16;
        }
        let counter = self.head;
        let flags = fm_ce_se::SIGNALED;
        // SAFETY: only poster by `&mut self`; the block is free.
        let ds = unsafe { build_nop(&self.ring, counter, self.ledger.qp_num(), flags) };
        self.doorbell.ring(&Staged {
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
        });
        counter as u16
    }

    /// Tells the device of everything staged. Does nothing when nothing is.
    #[inline(always)]
    pub fn ring(&mut self) {
        if self.staged == 0 {
            return;
        }
        if self.last.fm_ce_se & fm_ce_se::NO_FLUSH != 0 {
            self.end_suppressed();
        }
        // Looked at before others can see the requests: where they were posted in the same place, the
        // compiler knows all of it.
        let staged = Staged {
            counter: self.head,
            count: self.staged,
            last: self.ring.block(self.last.counter),
            known: self.last,
        };
        self.ledger.publish(staged.counter);
        self.doorbell.ring(&staged);
        self.staged = 0;
    }
}
