//! A queue pair's send and receive queue, as lent to the program.
//!
//! They are lent by value: a queue points into its queue pair's memory, so it must not be moved, and a `&mut`
//! to it would allow that.

use super::QpTransport;
use crate::provider::{OnCq, RecvDoorbell, SendDoorbell};
use bellwire_core::queue::{
    BadRequest, Past, PostError, RecvQueue, Rejected, SendQueue, SendRequest,
};
use bellwire_core::slab::Block;
use bellwire_core::wqe::{Address, Operation, Payload, PayloadLimits, Rc, SendWqe, Supports};
use bellwire_core::wr::{SendFlags, Sge};

/// The send queue behind a [`QpSendQueue`]: a part of its queue pair.
pub(crate) type OwnSendQueue<T> = SendQueue<'static, T, OnCq<SendDoorbell>>;

/// The receive queue behind a [`QpRecvQueue`].
pub(crate) type OwnRecvQueue = RecvQueue<'static, OnCq<RecvDoorbell>>;

/// The send queue of a [`Qp`](crate::Qp), borrowed from it: post, then ring. Staged requests stay staged when
/// this is dropped or forgotten.
#[derive(Debug)]
pub struct QpSendQueue<'q, T: QpTransport = Rc> {
    queue: &'q mut OwnSendQueue<T>,
}

/// The send queue of an RC [`Qp`](crate::Qp).
pub type RcSendQueue<'q> = QpSendQueue<'q, Rc>;

impl<'q, T: QpTransport> QpSendQueue<'q, T> {
    #[inline(always)]
    pub(super) fn new(queue: &'q mut OwnSendQueue<T>) -> Self {
        Self { queue }
    }

    /// The queue pair number.
    #[inline(always)]
    pub fn qp_num(&self) -> u32 {
        self.queue.qp_num()
    }

    /// The limits of one request.
    #[inline(always)]
    pub fn limits(&self) -> PayloadLimits {
        self.queue.limits()
    }

    /// The most basic blocks in flight.
    pub fn slots(&self) -> u32 {
        self.queue.slots()
    }

    /// The number of basic blocks that can be staged before a request has to complete.
    pub fn free_blocks(&self) -> u32 {
        self.queue.free_blocks()
    }

    /// The number of basic blocks whose requests were rung and not reported yet.
    pub fn in_flight(&self) -> u32 {
        self.queue.in_flight()
    }

    /// The counter of the next entry.
    #[inline(always)]
    pub fn counter(&self) -> u32 {
        self.queue.counter()
    }

    /// The counter after the last entry that was posted to the device.
    pub fn rung(&self) -> u32 {
        self.queue.rung()
    }

    /// The number of requests staged and not rung.
    #[inline(always)]
    pub fn staged(&self) -> u32 {
        self.queue.staged()
    }

    /// Whether other queue pairs use the same doorbell register of the device, so that each ring takes a
    /// lock: ConnectX devices have a limited number of registers.
    pub fn shares_register(&self) -> bool {
        let doorbell = self.queue.doorbell().by.mlx5();
        doorbell.is_some_and(|doorbell| doorbell.shares_register())
    }

    /// The entry with this counter, as [`SendQueue::entry`] returns it.
    pub fn entry(&self, counter: u32) -> Option<SendWqe<'_>> {
        self.queue.entry(counter)
    }

    /// Passes the requests that are not reported to `each`, see [`SendQueue::unreported`].
    ///
    /// # Safety
    /// That of [`SendQueue::unreported`].
    pub(crate) unsafe fn unreported(&self, each: impl FnMut(Past) -> bool) {
        // SAFETY: the caller keeps the promise of `SendQueue::unreported`.
        unsafe { self.queue.unreported(each) }
    }

    /// Stages a request with inline data, see [`SendQueue::post_inline`].
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
        self.queue
            .post_inline(wr_id, address, operation, payload, flags)
    }

    /// Stages a request without data, see [`SendQueue::post_empty`].
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
        self.queue.post_empty(wr_id, address, operation, flags)
    }

    /// Stages a request with a block, see [`SendQueue::post_block`].
    ///
    /// # Errors
    /// [`Rejected`], with the block.
    #[inline(always)]
    pub fn post_block<O: Operation>(
        &mut self,
        wr_id: u64,
        address: Address<'_, T>,
        operation: O,
        block: Block<'static>,
        length: u32,
        flags: SendFlags,
    ) -> Result<(), Rejected<Block<'static>>>
    where
        T: Supports<O>,
    {
        self.queue
            .post_block(wr_id, address, operation, block, length, flags)
    }

    /// Stages a request by the raw interface, see [`SendQueue::post`].
    ///
    /// # Errors
    /// [`PostError`]; nothing was staged.
    ///
    /// # Safety
    /// That of [`SendQueue::post`].
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
        // SAFETY: the caller keeps the promise of `SendQueue::post`.
        unsafe { self.queue.post(wr_id, address, operation, payload, flags) }
    }

    /// Stages the requests of a list, see [`SendQueue::post_list`].
    ///
    /// # Errors
    /// [`BadRequest`] says which request was refused and why; those before it are staged.
    ///
    /// # Panics
    /// If `request` panics; the requests before are staged.
    ///
    /// # Safety
    /// That of [`post`](Self::post), for each request.
    #[inline(always)]
    pub unsafe fn post_list<'a, R, O: Operation, P: Payload>(
        &mut self,
        list: &'a [R],
        request: impl Fn(&'a R) -> Option<SendRequest<'a, T, O, P>>,
    ) -> Result<usize, BadRequest>
    where
        T: Supports<O>,
    {
        // SAFETY: the caller keeps the promise of `SendQueue::post`, for each request.
        unsafe { self.queue.post_list(list, request) }
    }

    /// Stages an earlier request again, see [`SendQueue::repost`].
    ///
    /// # Errors
    /// [`Rejected`], with the block; nothing was staged.
    ///
    /// # Safety
    /// That of [`SendQueue::repost`].
    #[cold]
    pub unsafe fn repost(
        &mut self,
        wr_id: u64,
        entry: &[u8],
        block: Option<Block<'static>>,
    ) -> Result<(), Rejected<Option<Block<'static>>>> {
        // SAFETY: the caller keeps the promise of `SendQueue::repost`.
        unsafe { self.queue.repost(wr_id, entry, block) }
    }

    /// Counts the requests that were posted so far, for [monitors](crate::monitor) of the queue pair.
    pub fn count(&mut self) {
        self.queue.count();
    }

    /// Rings the doorbell: posts all staged requests to the device. Does nothing if none are staged.
    #[inline(always)]
    pub fn ring(&mut self) {
        self.queue.ring();
    }
}

/// The receive queue of a [`Qp`](crate::Qp), borrowed from it: post, then ring. Staged receives stay staged
/// when this is dropped or forgotten.
#[derive(Debug)]
pub struct QpRecvQueue<'q> {
    queue: &'q mut OwnRecvQueue,
}

impl<'q> QpRecvQueue<'q> {
    #[inline(always)]
    pub(super) fn new(queue: &'q mut OwnRecvQueue) -> Self {
        Self { queue }
    }

    /// The most scatter/gather elements of one receive.
    #[inline(always)]
    pub fn max_sge(&self) -> u32 {
        self.queue.max_sge()
    }

    /// The most receives in flight.
    pub fn slots(&self) -> u32 {
        self.queue.slots()
    }

    /// The number of receives that can be staged before one has to complete.
    pub fn free(&self) -> u32 {
        self.queue.free()
    }

    /// The number of receives that were rung and not reported yet.
    pub fn in_flight(&self) -> u32 {
        self.queue.in_flight()
    }

    /// The counter of the next receive.
    pub fn counter(&self) -> u32 {
        self.queue.counter()
    }

    /// The entry with this counter, as [`RecvQueue::entry`] returns it.
    pub fn entry(&self, counter: u32) -> Option<impl Iterator<Item = Sge>> {
        self.queue.entry(counter)
    }

    /// Passes the receives that are not reported to `each`, see [`RecvQueue::unreported`].
    ///
    /// # Safety
    /// That of [`RecvQueue::unreported`].
    pub(crate) unsafe fn unreported(&self, each: impl FnMut(Past) -> bool) {
        // SAFETY: the caller keeps the promise of `RecvQueue::unreported`.
        unsafe { self.queue.unreported(each) }
    }

    /// Stages a receive into a block, see [`RecvQueue::post_block`].
    ///
    /// # Errors
    /// [`Rejected`], with the block.
    #[inline(always)]
    pub fn post_block(
        &mut self,
        wr_id: u64,
        block: Block<'static>,
    ) -> Result<(), Rejected<Block<'static>>> {
        self.queue.post_block(wr_id, block)
    }

    /// Stages a receive by the raw interface, see [`RecvQueue::post`].
    ///
    /// # Errors
    /// [`PostError`]; nothing was staged.
    ///
    /// # Safety
    /// That of [`RecvQueue::post`].
    #[inline(always)]
    pub unsafe fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        // SAFETY: the caller keeps the promise of `RecvQueue::post`.
        unsafe { self.queue.post(wr_id, sges) }
    }

    /// Counts the receives that were posted so far, for [monitors](crate::monitor) of the queue pair.
    pub fn count(&mut self) {
        self.queue.count();
    }

    /// Rings the doorbell: posts all staged receives to the device.
    #[inline(always)]
    pub fn ring(&mut self) {
        self.queue.ring();
    }
}
