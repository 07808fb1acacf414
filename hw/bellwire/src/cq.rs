//! Completion queues.

mod create;
mod side;

use crate::device::Device;
use crate::error::Error;
use crate::event::{CompChannel, Element};
use crate::pinned::room_for;
use crate::provider::Polled;
use crate::qp::{QpMemory, Side};
use crate::srq::SrqMemory;
use bellwire_core::cqe::Cqe64;
use bellwire_core::queue::NumberSlot;
use bellwire_core::queue::{Attach, Completion, Plain, QueueSlot, UserIndex};
use bellwire_core::slab::Block;
pub(crate) use bellwire_provider::history::OldCqe;
pub(crate) use create::Lent;
pub(crate) use create::NewCq;
pub(crate) use side::{CqShared, FOREIGN};
use std::sync::Arc;

/// The attributes of a new completion queue.
#[derive(Clone, Copy, Debug)]
pub struct CqInit<'a> {
    /// The least number of entries.
    pub entries: u32,
    /// The most queue pairs that it can serve; up to 65536. One that was destroyed counts until its
    /// completions were polled.
    pub qps: usize,
    /// The completion channel on which it reports events when [armed](Cq::req_notify).
    pub channel: Option<&'a CompChannel>,
}

impl CqInit<'_> {
    /// At least `entries` entries, for up to 256 queue pairs, without a channel.
    pub fn new(entries: u32) -> Self {
        Self {
            entries,
            qps: 256,
            channel: None,
        }
    }
}

/// A completion queue (`ibv_cq`). One owner at a time: `Send`, not `Sync`.
///
/// Dropping it removes its queued events, and waits until events that were taken are acknowledged.
#[derive(Debug)]
pub struct Cq {
    core: Polled,
    /// The queues whose requests complete here; their memory is kept until everything is reported.
    attached: Vec<Option<Attached>>,
    /// The slot of `attached` that was last examined by [`sweep`](Self::sweep).
    swept: usize,
    shared: Arc<CqShared>,
    device: Device,
    // Dropped last: `core` borrows the slots and the table of queue pair numbers.
    _slots: Lent<QueueSlot<'static>>,
    _numbers: Option<Lent<NumberSlot>>,
}

#[derive(Debug)]
struct Attached {
    index: UserIndex,
    kept: Kept,
    side: Side,
}

/// The memory that has to stay until all its completions are reported.
#[derive(Debug)]
pub(crate) enum Kept {
    /// The memory of a queue pair, and of the shared receive queue that it receives from.
    Qp(
        Arc<QpMemory>,
        #[expect(dead_code, reason = "only to be kept")] Option<Arc<SrqMemory>>,
    ),
    /// The memory of a shared receive queue whose own receives complete here (XRC).
    Srq(Arc<SrqMemory>),
}

impl Kept {
    /// Index after the last completion of a destroyed queue; `None` while the queue exists.
    fn end(&self, side: Side) -> Option<u32> {
        match self {
            Self::Qp(memory, _) => memory.end(side),
            Self::Srq(memory) => memory.end(),
        }
    }
}

impl Cq {
    /// Polls one completion. If there is none, requests proceed whose time has come.
    #[inline(always)]
    pub fn poll_one(&mut self) -> Option<Completion<'static>> {
        self.core.poll_one(&self.shared, &self.device)
    }

    /// Polls the next completion if it is a [`Plain`] one, as
    /// [`CompletionQueue::plain`](bellwire_core::queue::CompletionQueue::plain) defines it. `None` if it is
    /// not, and always on devices that are polled by libibverbs: then [`poll_one`](Self::poll_one) has to be
    /// called.
    #[inline(always)]
    pub fn plain(&mut self) -> Option<Plain<'_, 'static>> {
        self.core.plain()
    }

    /// Polls up to `limit` completions, passes each to `each`, and returns their number. When `each` posts,
    /// the room of the completions passed so far is free. If there are none, requests proceed whose time has
    /// come.
    #[inline(always)]
    pub fn poll(&mut self, limit: usize, each: impl FnMut(Completion<'static>)) -> usize {
        self.core.poll(&self.shared, &self.device, limit, each)
    }

    /// The completion queue number, by which events name it: 24 bits, not zero.
    pub fn cqn(&self) -> u32 {
        self.shared.ctx.cqn()
    }

    /// Arms the queue (ibv_req_notify_cq(3)): its next completion raises one event on its completion channel;
    /// with `solicited_only`, the next one that reports an error or a solicited message does. Arming for any
    /// completion replaces arming for solicited ones; the reverse leaves the queue armed for any.
    ///
    /// A completion that is already in the queue raises no event: arm, then poll until the queue is empty,
    /// then sleep, and none is missed. Not for the data path: on the software HCA this makes a system call
    /// (membarrier(2)), unless the queue was armed recently.
    ///
    /// # Errors
    /// [`Error::NoChannel`]; [`Error::Io`]: the device refuses.
    pub fn req_notify(&mut self, solicited_only: bool) -> Result<(), Error> {
        let ctx = &self.shared.ctx;
        if ctx.channel().is_none() {
            return Err(Error::NoChannel { cqn: ctx.cqn() });
        }
        self.core.arm(ctx, solicited_only)?;
        if let Some(hca) = self.device.hca.soft() {
            hca.attend();
        }
        Ok(())
    }

    /// Acknowledges `count` of its events that were [deferred](crate::event::CqEvent::defer), at the cost of
    /// one acknowledgement (ibv_ack_cq_events(3)).
    ///
    /// # Errors
    /// [`Error::NoChannel`]; [`Error::NotDeferred`]: fewer events were deferred, and none is acknowledged.
    pub fn ack_events(&self, count: u32) -> Result<(), Error> {
        let cqn = self.cqn();
        let channel = self.shared.ctx.channel();
        let channel = channel.ok_or(Error::NoChannel { cqn })?;
        channel.ack_deferred(Element::Cq(cqn), count)
    }

    /// The number of entries.
    pub fn capacity(&self) -> u32 {
        self.core.capacity()
    }

    /// Bytes of its ring and tables.
    pub(crate) fn bytes(&self) -> usize {
        let entry = size_of::<Cqe64>();
        let attached = self.attached.capacity() * size_of::<Option<Attached>>();
        let numbers = self._numbers.as_ref().map_or(0, Lent::bytes);
        let ring = self.capacity() as usize * entry + self.core.kept();
        ring + self._slots.bytes() + numbers + attached
    }

    /// The number of entries that are not reserved for a queue.
    pub fn unreserved(&self) -> u32 {
        self.core.unreserved()
    }

    /// The number of entries discarded because they belonged to no request in flight, or to a flush after
    /// lost completions.
    pub fn stale(&self) -> u64 {
        self.core.stale()
    }

    /// Whether the queue overran: an entry was lost, and the request that it reported is unknown. This cannot
    /// happen while queue pairs reserve their entries, which they do by default. On devices of libibverbs it
    /// is known once the event `CQ_ERR` has been got.
    pub fn overrun(&self) -> bool {
        self.shared.ctx.overrun()
    }

    /// Copies of the completions that are still known and for which `wanted` returns `true`: the last `limit`
    /// of them, oldest first.
    ///
    /// # Errors
    /// There is no memory for them.
    pub(crate) fn history(
        &mut self,
        limit: usize,
        wanted: impl Fn(&Cqe64) -> bool,
    ) -> Result<Vec<OldCqe>, Error> {
        let mut entries = self.core.history(&self.shared.ctx, &self.device.hca)?;
        entries.retain(|old| wanted(&old.cqe));
        entries.drain(..entries.len().saturating_sub(limit));
        Ok(entries)
    }

    /// Whether an entry belongs to the queue that is attached with this index.
    pub(crate) fn is_of(&self, cqe: &Cqe64, index: UserIndex) -> bool {
        self.core.is_of(cqe, index)
    }

    /// Index of the next completion to be polled.
    pub(crate) fn consumer_index(&self) -> u32 {
        self.core.consumer_index()
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn shared(&self) -> &Arc<CqShared> {
        &self.shared
    }

    /// # Safety
    /// `kept` holds the memory that `queues` point to; no other completion queue polls these ledgers.
    pub(crate) unsafe fn attach(
        &mut self,
        kept: Kept,
        queues: Attach<'static>,
        reserve: bool,
    ) -> Result<UserIndex, Error> {
        /// More than one, so that slots of destroyed queues are found faster than new queues are attached.
        const SWEPT_AT_ONCE: usize = 4;
        self.sweep(SWEPT_AT_ONCE);
        let side = match queues.send {
            Some(_) => Side::Send,
            None => Side::Recv,
        };
        // libibverbs reports which receive a completion belongs to. Its devices continue after completions
        // were lost.
        let queues = Attach {
            recv_counted: self.shared.ctx.verbs().is_some(),
            ..queues
        };
        // SAFETY: the caller guarantees that no other completion queue polls the ledgers; `attached` keeps
        // the memory that they point to.
        let attach = |core: &mut Polled| unsafe { core.attach(queues, reserve) };
        let index = attach(&mut self.core).or_else(|_| {
            self.sweep(self.attached.len());
            attach(&mut self.core)
        })?;
        let slot = index.slot();
        if slot >= self.attached.len() {
            let room = room_for(&mut self.attached, slot + 1);
            // SAFETY: the device does not know the index yet, so it writes no entries with it.
            room.inspect_err(|_| unsafe { self.core.detach(index, |_, _| ()) })?;
            self.attached.resize_with(slot + 1, || None);
        }
        self.attached[slot] = Some(Attached { index, kept, side });
        Ok(index)
    }

    /// Changes an attached queue, and passes the requests that are removed with it to `each`.
    fn change<R>(
        &mut self,
        each: impl FnMut(u64, Option<Block<'static>>),
        change: impl FnOnce(&mut Polled, &mut dyn FnMut(u64, Option<Block<'static>>)) -> R,
    ) -> R {
        let mut each = each;
        let Some(cq) = self.shared.ctx.mlx5() else {
            return change(&mut self.core, &mut each);
        };
        let mut reported = Vec::new();
        // Other threads may look for completions here. The program's function is called without the lock.
        let answer = cq.hold_still(|| {
            change(&mut self.core, &mut |wr_id, block| {
                reported.push((wr_id, block))
            })
        });
        reported
            .into_iter()
            .for_each(|(wr_id, block)| each(wr_id, block));
        answer
    }

    /// Begins another life of an attached queue pair: removes its entries, and returns the user index that
    /// the device has to use from now on. Requests of a shared receive queue whose completions were not
    /// polled are passed to `each`, which must not panic.
    ///
    /// # Safety
    /// The device writes no more entries of it with its present index.
    pub(crate) unsafe fn renew(
        &mut self,
        index: UserIndex,
        each: impl FnMut(u64, Option<Block<'static>>),
    ) -> UserIndex {
        // SAFETY: the caller guarantees that the device writes no more entries with the index.
        let renewed = self.change(each, |core, each| unsafe { core.renew(index, each) });
        // It is attached for as long as its queue pair exists.
        let renewed = renewed.unwrap_or(index);
        if let Some(Some(attached)) = self.attached.get_mut(index.slot()) {
            attached.index = renewed;
        }
        renewed
    }

    /// Removes the entries of an attached queue, and detaches it. Requests of a shared receive queue whose
    /// completions were not polled are passed to `each`, which must not panic.
    ///
    /// # Safety
    /// The device writes no more entries of it.
    pub(crate) unsafe fn detach(
        &mut self,
        index: UserIndex,
        each: impl FnMut(u64, Option<Block<'static>>),
    ) {
        // SAFETY: the caller guarantees that the device writes no more entries of it.
        self.change(each, |core, each| unsafe { core.detach(index, each) });
        let attached = self.attached.get_mut(index.slot());
        if let Some(attached) = attached {
            attached.take_if(|attached| attached.index == index);
        }
    }

    /// Examines the next `count` slots, and detaches the queues that are destroyed and whose completions have
    /// all been polled.
    fn sweep(&mut self, count: usize) {
        for _ in 0..count.min(self.attached.len()) {
            self.swept = if self.swept + 1 < self.attached.len() {
                self.swept + 1
            } else {
                0
            };
            let done = self.attached[self.swept].take_if(|attached| {
                let end = attached.kept.end(attached.side);
                end.is_some_and(|end| self.shared.ctx.polled(end))
            });
            if let Some(done) = done {
                // SAFETY: the queue is destroyed, and all its entries were polled.
                unsafe { self.core.detach(done.index, |_, _| ()) };
            }
        }
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // A child of fork leaves what belongs to its parent as it is.
        if self.shared.device.is_inherited() {
            return;
        }
        self.shared.ctx.retire();
    }
}

/// The completion queues of a queue pair: one for both queues, or one for each.
#[derive(Debug)]
pub enum Cqs<'a> {
    /// Sends and receives complete here.
    Shared(&'a mut Cq),
    /// Sends complete on the first, receives on the second.
    Split(&'a mut Cq, &'a mut Cq),
}

impl<'a> From<&'a mut Cq> for Cqs<'a> {
    fn from(cq: &'a mut Cq) -> Self {
        Self::Shared(cq)
    }
}

impl<'a> From<(&'a mut Cq, &'a mut Cq)> for Cqs<'a> {
    fn from((send, recv): (&'a mut Cq, &'a mut Cq)) -> Self {
        Self::Split(send, recv)
    }
}
