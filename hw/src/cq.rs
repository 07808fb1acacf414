//! Completion queues.

mod create;
mod polled;
mod side;

use crate::device::Device;
use crate::error::Error;
use crate::event::{CompChannel, Element};
#[cfg(feature = "mlx5")]
use crate::mlx5;
use crate::qp::{QpMemory, Side};
use crate::srq::SrqMemory;
#[cfg(feature = "verbs")]
use crate::verbs;
use arrayvec::ArrayVec;
use bellwire_core::cqe::Cqe64;
#[cfg(feature = "mlx5")]
use bellwire_core::queue::NumberSlot;
use bellwire_core::queue::{Attach, AttachError, Completion, Plain, QueueSlot, UserIndex};
use bellwire_core::slab::Block;
use create::Lent;
use polled::Polled;
pub(crate) use side::{CqShared, CqSide};
use std::sync::Arc;

/// A copy of an entry.
#[derive(Debug)]
pub(crate) struct OldCqe {
    /// Its free-running index.
    pub index: u32,
    pub polled: bool,
    pub cqe: Cqe64,
    /// The payload that came within it.
    pub data: ArrayVec<u8, 64>,
}

#[cfg(feature = "verbs")]
impl OldCqe {
    /// One that was polled, without payload.
    pub fn polled(cqe: Cqe64) -> Self {
        Self {
            index: 0,
            polled: true,
            cqe,
            data: ArrayVec::new(),
        }
    }
}

/// How a completion queue is made.
#[derive(Clone, Copy, Debug)]
pub struct CqInit<'a> {
    /// Entries, at least.
    pub entries: u32,
    /// Queue pairs that it can serve; up to 65536.
    pub qps: usize,
    /// The channel that it tells of entries, when [armed](Cq::req_notify).
    pub channel: Option<&'a CompChannel>,
}

impl CqInit<'_> {
    /// As many entries, for up to 256 queue pairs, without a channel.
    pub fn new(entries: u32) -> Self {
        Self {
            entries,
            qps: 256,
            channel: None,
        }
    }
}

/// A completion queue. One owner at a time: `Send`, not `Sync`.
///
/// Dropping it removes its events that were not got, and waits until those that were got are
/// acknowledged.
#[derive(Debug)]
pub struct Cq {
    core: Polled,
    /// Of a device of libibverbs that is polled one completion at a time.
    #[cfg(feature = "verbs")]
    extended: Option<Box<verbs::Extended>>,
    /// What completes here; its memory is kept until all is told.
    attached: Vec<Option<Attached>>,
    /// The slot that was last looked at, whether what is attached there is gone.
    swept: usize,
    shared: Arc<CqShared>,
    device: Device,
    // Last: `core` has the slots, and the table of numbers.
    _slots: Lent<QueueSlot<'static>>,
    #[cfg(feature = "mlx5")]
    _numbers: Option<Lent<NumberSlot>>,
}

#[derive(Debug)]
struct Attached {
    index: UserIndex,
    kept: Kept,
    side: Side,
}

/// What has to stay until everything was told of it.
#[derive(Debug)]
pub(crate) enum Kept {
    /// A queue pair's memory, and that of the shared receive queue that it receives from.
    Qp(
        Arc<QpMemory>,
        #[expect(dead_code, reason = "only to be kept")] Option<Arc<SrqMemory>>,
    ),
    /// The memory of a shared receive queue that itself completes here (XRC).
    Srq(Arc<SrqMemory>),
}

impl Kept {
    /// Index behind the last completion of what is gone; `None` while it lives.
    fn end(&self, side: Side) -> Option<u32> {
        match self {
            Self::Qp(memory, _) => memory.end(side),
            Self::Srq(memory) => memory.end(),
        }
    }
}

impl Cq {
    /// Takes one completion. When there is none, requests go on whose time has come.
    #[inline(always)]
    pub fn poll_one(&mut self) -> Option<Completion<'static>> {
        #[cfg_attr(
            not(feature = "mlx5"),
            expect(
                clippy::infallible_destructuring_match,
                reason = "there is another with mlx5"
            )
        )]
        let core = match &mut self.core {
            Polled::ByUserIndex(core) => core,
            #[cfg(feature = "mlx5")]
            Polled::ByQpNum(core) => return core.poll_one(),
        };
        #[cfg(feature = "verbs")]
        if let Some(extended) = &mut self.extended {
            return extended.poll_one(core);
        }
        #[cfg(feature = "verbs")]
        if let CqSide::Verbs(cq) = &self.shared.ctx {
            return cq.poll_one(core).map(Completion::unpacked);
        }
        let completion = core.poll_one();
        if completion.is_none() && self.device.hca.look() {
            return core.poll_one();
        }
        completion
    }

    /// The next completion if it is a [`Plain`] one, as
    /// [`CompletionQueue::plain`](bellwire_core::queue::CompletionQueue::plain) has it; `None` also of
    /// devices that libibverbs polls. Then [`poll_one`](Self::poll_one) says what there is.
    #[inline(always)]
    pub fn plain(&mut self) -> Option<Plain<'_, 'static>> {
        match &mut self.core {
            // Extended queues are among them.
            #[cfg(feature = "verbs")]
            Polled::ByUserIndex(_) if matches!(self.shared.ctx, CqSide::Verbs(_)) => None,
            Polled::ByUserIndex(core) => core.plain(),
            #[cfg(feature = "mlx5")]
            Polled::ByQpNum(core) => core.plain(),
        }
    }

    /// Takes up to `limit` completions, gives each to `each`, and returns how many there were. What `each`
    /// posts finds the room of those that it was given. When there are none, requests go on whose time has
    /// come.
    #[inline(always)]
    pub fn poll(&mut self, limit: usize, mut each: impl FnMut(Completion<'static>)) -> usize {
        #[cfg(feature = "verbs")]
        if let CqSide::Verbs(_) = &self.shared.ctx {
            let mut count = 0;
            while count < limit
                && let Some(completion) = self.poll_one()
            {
                each(completion);
                count += 1;
            }
            return count;
        }
        #[cfg_attr(
            not(feature = "mlx5"),
            expect(
                clippy::infallible_destructuring_match,
                reason = "there is another with mlx5"
            )
        )]
        let core = match &mut self.core {
            Polled::ByUserIndex(core) => core,
            #[cfg(feature = "mlx5")]
            Polled::ByQpNum(core) => return core.poll(limit, each),
        };
        let count = core.poll(limit, &mut each);
        if count == 0 && limit != 0 && self.device.hca.look() {
            return core.poll(limit, &mut each);
        }
        count
    }

    /// Its number, by which events name it: 24 bits, not zero.
    pub fn cqn(&self) -> u32 {
        self.shared.ctx.cqn()
    }

    /// Arms it (ibv_req_notify_cq(3)): its next entry raises one event on its completion channel; or
    /// the next one that tells of an error or a solicited message, when `solicited_only`. Arming for
    /// any entry while armed for solicited ones widens; the other way round it stays as it was.
    ///
    /// An entry that is there already raises nothing: arm, then poll until it is empty, then sleep,
    /// and nothing is missed. A system call (membarrier(2)); not for the data path.
    ///
    /// # Errors
    /// [`Error::NoChannel`]; [`Error::Io`] when the device refuses.
    pub fn req_notify(&mut self, solicited_only: bool) -> Result<(), Error> {
        let ctx = &self.shared.ctx;
        if ctx.channel().is_none() {
            return Err(Error::NoChannel { cqn: ctx.cqn() });
        }
        match (ctx, &mut self.core) {
            (CqSide::Soft(soft), Polled::ByUserIndex(core)) => {
                soft.arm(core.arm(ctx.cqn(), solicited_only));
            }
            #[cfg(feature = "verbs")]
            (CqSide::Verbs(cq), _) => cq.arm(solicited_only)?,
            #[cfg(feature = "mlx5")]
            (CqSide::Mlx5(cq), Polled::ByQpNum(core)) => cq.arm(core, solicited_only),
            // There is no such completion queue.
            #[cfg(feature = "mlx5")]
            _ => {}
        }
        if let Ok(hca) = self.device.hca.soft("peers") {
            hca.attend();
        }
        Ok(())
    }

    /// Acknowledges `count` of its events that were [deferred](crate::event::CqEvent::defer), at the
    /// price of one (ibv_ack_cq_events(3)).
    ///
    /// # Errors
    /// [`Error::NoChannel`]; [`Error::NotDeferred`] when there are fewer, and none is acknowledged
    /// then.
    pub fn ack_events(&self, count: u32) -> Result<(), Error> {
        let cqn = self.cqn();
        let channel = self.shared.ctx.channel();
        let channel = channel.ok_or(Error::NoChannel { cqn })?;
        channel.ack_deferred(Element::Cq(cqn), count)
    }

    /// Entries.
    pub fn capacity(&self) -> u32 {
        self.core.capacity()
    }

    /// Entries that are not reserved for a queue pair.
    pub fn unreserved(&self) -> u32 {
        self.core.unreserved()
    }

    /// Entries dropped because they told of no request in flight.
    pub fn stale(&self) -> u64 {
        self.core.stale()
    }

    /// Whether the queue overran: an entry was lost, and what it told of cannot be known. Does not
    /// happen while queue pairs reserve their entries, which they do unless told otherwise. Of a device of
    /// libibverbs it is known when the event `CQ_ERR` has been got.
    pub fn overrun(&self) -> bool {
        self.shared.ctx.overrun()
    }

    /// Copies of the completions that are still known and for which `wanted`, the last `limit` of them,
    /// oldest first.
    pub(crate) fn history(&mut self, limit: usize, wanted: impl Fn(&Cqe64) -> bool) -> Vec<OldCqe> {
        let mut entries = Vec::new();
        let (core, ctx) = (&mut self.core, &self.shared.ctx);
        self.device.hca.hold_still(ctx, || {
            // SAFETY: the device holds still.
            unsafe {
                core.history(|past| {
                    entries.push(OldCqe {
                        index: past.index,
                        polled: past.polled,
                        cqe: *past.cqe,
                        data: ArrayVec::from_iter(past.data.iter().copied()),
                    });
                });
            }
        });
        #[cfg(feature = "verbs")]
        if let Some(extended) = &self.extended {
            entries = extended.history(entries);
        }
        #[cfg(feature = "mlx5")]
        if let CqSide::Mlx5(cq) = ctx {
            // This device does not hold still: what it may have written over meanwhile is not shown.
            let (end, count) = (cq.produced(), core.capacity());
            entries.retain(|old| end.wrapping_sub(old.index) & mlx5::CI_MASK < count);
        }
        entries.retain(|old| wanted(&old.cqe));
        entries.split_off(entries.len().saturating_sub(limit))
    }

    /// Whether an entry tells of what is attached under this index.
    pub(crate) fn is_of(&self, cqe: &Cqe64, index: UserIndex) -> bool {
        self.core.is_of(cqe, index)
    }

    /// Index of the completion that is polled next.
    pub(crate) fn consumer_index(&self) -> u32 {
        #[cfg(feature = "verbs")]
        if let Some(extended) = &self.extended {
            return extended.count();
        }
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
    /// `kept` holds what `queues` point to; no other completion queue polls these ledgers.
    pub(crate) unsafe fn attach(
        &mut self,
        kept: Kept,
        queues: Attach<'static>,
        reserve: bool,
    ) -> Result<UserIndex, AttachError> {
        /// More than one, so that what is gone is found faster than more is attached.
        const SWEPT_AT_ONCE: usize = 4;
        self.sweep(SWEPT_AT_ONCE);
        let side = match queues.send {
            Some(_) => Side::Send,
            None => Side::Recv,
        };
        // SAFETY: the caller's promise; `attached` keeps what they point to.
        let attach = |core: &mut Polled| unsafe { core.attach(queues, reserve) };
        let index = attach(&mut self.core).or_else(|_| {
            self.sweep(self.attached.len());
            attach(&mut self.core)
        })?;
        let slot = index.slot();
        if slot >= self.attached.len() {
            self.attached.resize_with(slot + 1, || None);
        }
        self.attached[slot] = Some(Attached { index, kept, side });
        Ok(index)
    }

    /// Removes the entries of what was attached, and forgets it. Requests of a shared receive queue
    /// that were not polled go to `each`.
    pub(crate) fn detach(
        &mut self,
        index: UserIndex,
        each: impl FnMut(u64, Option<Block<'static>>),
    ) {
        match &self.shared.ctx {
            // Others look for what completed there.
            #[cfg(feature = "mlx5")]
            CqSide::Mlx5(cq) => cq.hold_still(|| self.core.detach(index, each)),
            _ => self.core.detach(index, each),
        }
        let attached = self.attached.get_mut(index.slot());
        if let Some(attached) = attached {
            attached.take_if(|attached| attached.index == index);
        }
    }

    /// Looks at the next `count` slots, and forgets what is gone and of which all that will ever be
    /// told was polled.
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
                // All was polled.
                self.core.detach(done.index, |_, _| ());
            }
        }
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        self.shared.ctx.retire();
    }
}

/// The completion queues of a queue pair: one for both directions, or one for each.
#[derive(Debug)]
pub enum Cqs<'a> {
    /// Both queues complete here.
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
