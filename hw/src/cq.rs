//! Completion queues.

mod polled;

use crate::device::Device;
use crate::error::Error;
use crate::event::{CompChannel, Element, EventQueue};
#[cfg(feature = "mlx5")]
use crate::mlx5;
use crate::pinned::Pinned;
use crate::provider::Provider;
use crate::qp::{QpMemory, Side};
use crate::soft::{CqCtx, Running};
use crate::srq::SrqMemory;
#[cfg(feature = "verbs")]
use crate::verbs;
use arrayvec::ArrayVec;
use bellwire_core::cqe::Cqe64;
use bellwire_core::port::DoorbellRecord;
use bellwire_core::queue::{
    Attach, AttachError, Completion, CompletionQueue, CqMemory, QueueSlot, UserIndex,
};
#[cfg(feature = "mlx5")]
use bellwire_core::queue::{ByQpNum, NumberSlot};
use bellwire_core::slab::Block;
use polled::Polled;
use std::collections::VecDeque;
use std::sync::Arc;

/// Queue pairs that one completion queue can serve.
const MAX_QPS: usize = 1 << 16;

/// What the device writes to and queue pairs keep alive.
#[derive(Debug)]
pub(crate) struct CqShared {
    // Before the memory that it points to.
    pub ctx: CqSide,
    _own: Option<OwnRing>,
    device: Device,
}

/// Ring and records, where they are in memory of ours.
#[derive(Debug)]
struct OwnRing {
    ring: Pinned,
    records: Box<[DoorbellRecord; 2]>,
}

/// The producing end, by who stands behind it.
#[derive(Debug)]
pub(crate) enum CqSide {
    Soft(Box<CqCtx>),
    #[cfg(feature = "verbs")]
    Verbs(Box<verbs::Cq>),
    #[cfg(feature = "mlx5")]
    Mlx5(Box<mlx5::Cq>),
}

/// Calls what both have under one name.
macro_rules! both {
    ($self:ident, $cq:ident => $call:expr) => {
        match $self {
            CqSide::Soft($cq) => $call,
            #[cfg(feature = "verbs")]
            CqSide::Verbs($cq) => $call,
            #[cfg(feature = "mlx5")]
            CqSide::Mlx5($cq) => $call,
        }
    };
}

impl CqSide {
    /// The software HCA's.
    pub fn soft(&self) -> Result<&CqCtx, Error> {
        match self {
            Self::Soft(ctx) => Ok(ctx),
            #[cfg(feature = "verbs")]
            _ => Err(FOREIGN),
        }
    }

    /// That of libibverbs.
    #[cfg(feature = "verbs")]
    pub fn verbs(&self) -> Result<&verbs::Cq, Error> {
        match self {
            Self::Verbs(cq) => Ok(cq),
            _ => Err(FOREIGN),
        }
    }

    /// That of a device whose ring core polls.
    #[cfg(feature = "mlx5")]
    pub fn mlx5(&self) -> Result<&mlx5::Cq, Error> {
        match self {
            Self::Mlx5(cq) => Ok(cq),
            _ => Err(FOREIGN),
        }
    }

    fn cqn(&self) -> u32 {
        both!(self, cq => cq.cqn())
    }

    fn channel(&self) -> Option<&EventQueue<()>> {
        both!(self, cq => cq.channel())
    }

    /// Index behind the last entry.
    pub fn produced(&self) -> u32 {
        both!(self, cq => cq.produced())
    }

    fn polled(&self, index: u32) -> bool {
        both!(self, cq => cq.polled(index))
    }

    fn overrun(&self) -> bool {
        both!(self, cq => cq.overrun())
    }

    fn retire(&self) {
        both!(self, cq => cq.retire());
    }
}

#[cfg(feature = "verbs")]
const FOREIGN: Error = Error::Foreign {
    what: "completion queue",
};

impl Drop for CqShared {
    fn drop(&mut self) {
        // Not before: the device may still name it, where queue pairs outlive it.
        if let (Ok(hca), Ok(ctx)) = (self.device.hca.soft("numbers"), self.ctx.soft()) {
            hca.cqns.give_back(ctx.cqn());
        }
    }
}

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

/// What `core` borrows for as long as it lives.
#[derive(Debug)]
struct Lent<T>(*mut [T]);

// SAFETY: memory that only its owner touches.
unsafe impl<T: Send> Send for Lent<T> {}

impl<T: Default> Lent<T> {
    fn new(count: usize) -> Self {
        Self(Box::into_raw((0..count).map(|_| T::default()).collect()))
    }
}

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        // SAFETY: from `Box::into_raw`; `core`, which borrowed it, has gone before.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

impl Device {
    /// Creates a completion queue of at least `entries` entries, for up to 256 queue pairs.
    /// [`QpInit::cq_entries`](crate::QpInit::cq_entries) tells what a queue pair needs.
    ///
    /// # Errors
    /// More entries than the device has, none, or no memory.
    pub fn create_cq(&self, entries: u32) -> Result<Cq, Error> {
        self.create_cq_with(&CqInit::new(entries))
    }

    /// As [`create_cq`](Self::create_cq), for up to `qps` queue pairs.
    ///
    /// # Errors
    /// As there.
    pub fn create_cq_for(&self, entries: u32, qps: usize) -> Result<Cq, Error> {
        self.create_cq_with(&CqInit {
            qps,
            ..CqInit::new(entries)
        })
    }

    /// As [`create_cq`](Self::create_cq), with everything that can be said.
    ///
    /// # Errors
    /// As there; and [`Error::Foreign`] for a channel of another context.
    pub fn create_cq_with(&self, init: &CqInit<'_>) -> Result<Cq, Error> {
        let &CqInit {
            entries,
            qps,
            channel,
        } = init;
        if channel.is_some_and(|channel| !self.is_same_context(channel.device())) {
            return Err(Error::Foreign {
                what: "completion channel",
            });
        }
        self.hca.check_alive()?;
        let max = self.attr().max_cqe;
        if entries == 0 || entries > max {
            return Err(Error::TooLarge {
                what: "cqe (at least 1)",
                given: entries.into(),
                max: max.into(),
            });
        }
        let qps = qps.clamp(1, MAX_QPS);
        #[cfg(feature = "mlx5")]
        if let Provider::Verbs(context) = &self.hca
            && context.drives_rings()
        {
            return self.mlx5_cq(context, entries.next_power_of_two(), qps, channel);
        }
        let count = entries.next_power_of_two();
        let own = OwnRing {
            ring: Pinned::zeroed(count as usize * 64),
            records: Box::default(),
        };
        // SAFETY: `CqShared` keeps ring and records until the queue and every queue pair on it are
        // gone; sizes were checked.
        let (memory, records) = unsafe {
            let memory = CqMemory::new(own.ring.start(), count, 64);
            (memory, &*std::ptr::from_ref(&*own.records))
        };
        let Some(memory) = memory else {
            return Err(Error::TooLarge {
                what: "cqe",
                given: entries.into(),
                max: max.into(),
            });
        };
        let ctx = match &self.hca {
            Provider::Soft(hca) => {
                CqSide::Soft(Box::new(self.soft_cq(hca, memory, &records[0], channel)?))
            }
            #[cfg(feature = "verbs")]
            Provider::Verbs(context) => {
                let (channel, events) = (kernel_channel(channel)?, self.events.clone());
                // SAFETY: `CqShared` keeps the memory longer; the only producer.
                let cq = unsafe { verbs::Cq::new(context, memory, &records[0], events, channel)? };
                CqSide::Verbs(Box::new(cq))
            }
        };
        let slots = Lent::new(qps);
        // SAFETY: the only consumer; the slots stay until `core` is gone.
        let core = unsafe { CompletionQueue::new(memory, &mut *slots.0, records) };
        Ok(Cq {
            core: Polled::ByUserIndex(core),
            attached: Vec::new(),
            swept: 0,
            shared: Arc::new(CqShared {
                ctx,
                _own: Some(own),
                device: self.clone(),
            }),
            device: self.clone(),
            _slots: slots,
            #[cfg(feature = "mlx5")]
            _numbers: None,
        })
    }

    /// On the device's own ring.
    #[cfg(feature = "mlx5")]
    fn mlx5_cq(
        &self,
        context: &Arc<verbs::Context>,
        entries: u32,
        qps: usize,
        channel: Option<&CompChannel>,
    ) -> Result<Cq, Error> {
        let channel = kernel_channel(channel)?;
        let cq = Box::new(mlx5::Cq::new(
            context,
            entries,
            self.events.clone(),
            channel,
        )?);
        let slots = Lent::new(qps);
        let numbers = Lent::<NumberSlot>::new((2 * qps).next_power_of_two());
        // SAFETY: the table stays until `core` is gone.
        let naming = ByQpNum::new(unsafe { &mut *numbers.0 });
        let naming = naming.ok_or(Error::Attach(AttachError::TooManyQueues { slots: 0 }))?;
        // SAFETY: the only consumer; `CqShared` keeps the ring, and the slots stay until `core` is gone.
        let core = unsafe {
            let (memory, records) = cq.ring();
            CompletionQueue::with_naming(memory, &mut *slots.0, records, naming)
        };
        Ok(Cq {
            core: Polled::ByQpNum(core),
            attached: Vec::new(),
            swept: 0,
            shared: Arc::new(CqShared {
                ctx: CqSide::Mlx5(cq),
                _own: None,
                device: self.clone(),
            }),
            device: self.clone(),
            _slots: slots,
            _numbers: Some(numbers),
        })
    }

    fn soft_cq(
        &self,
        hca: &Running,
        memory: CqMemory<'static>,
        consumer: &'static DoorbellRecord,
        channel: Option<&CompChannel>,
    ) -> Result<CqCtx, Error> {
        let cqn = hca.cqns.take()?;
        let channel = channel.map(|channel| channel.queue().clone());
        let (events, armed) = (self.events.clone(), hca.armed());
        Ok(CqCtx::new(memory, consumer, cqn, events, channel, armed))
    }
}

/// The kernel's side of a channel.
#[cfg(feature = "verbs")]
fn kernel_channel(channel: Option<&CompChannel>) -> Result<Option<verbs::CqChannel>, Error> {
    let kernel = |channel: &CompChannel| {
        let queue = channel.queue();
        match queue.kernel_source() {
            Some(verbs::Source::Channel(kernel)) => Ok((queue.clone(), kernel.clone())),
            _ => Err(Error::Foreign {
                what: "completion channel",
            }),
        }
    };
    channel.map(kernel).transpose()
}

impl Cq {
    /// Takes one completion. When there is none, requests go on whose time has come.
    #[inline(always)]
    pub fn poll_one(&mut self) -> Option<Completion<'static>> {
        #[cfg_attr(
            not(feature = "mlx5"),
            expect(
                clippy::infallible_destructuring_match,
                reason = "there are two with mlx5"
            )
        )]
        let core = match &mut self.core {
            Polled::ByUserIndex(core) => core,
            #[cfg(feature = "mlx5")]
            Polled::ByQpNum(core) => return core.poll_one(),
        };
        #[cfg(feature = "verbs")]
        if let CqSide::Verbs(cq) = &self.shared.ctx {
            return cq.poll_one(core);
        }
        let completion = core.poll_one();
        if completion.is_none() && self.device.hca.look() {
            return core.poll_one();
        }
        completion
    }

    /// Takes up to `limit` completions, gives each to `each`, and returns how many there were. When
    /// there are none, requests go on whose time has come.
    #[inline(always)]
    pub fn poll(&mut self, limit: usize, mut each: impl FnMut(Completion<'static>)) -> usize {
        #[cfg_attr(
            not(feature = "mlx5"),
            expect(
                clippy::infallible_destructuring_match,
                reason = "there are two with mlx5"
            )
        )]
        let core = match &mut self.core {
            Polled::ByUserIndex(core) => core,
            #[cfg(feature = "mlx5")]
            Polled::ByQpNum(core) => return core.poll(limit, each),
        };
        #[cfg(feature = "verbs")]
        if let CqSide::Verbs(cq) = &self.shared.ctx {
            let mut count = 0;
            while count < limit
                && let Some(completion) = cq.poll_one(core)
            {
                each(completion);
                count += 1;
            }
            return count;
        }
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

    /// Copies of the entries that are still in the ring and for which `wanted`, the last `limit` of them,
    /// oldest first.
    pub(crate) fn history(
        &mut self,
        limit: usize,
        wanted: impl Fn(&Cqe64) -> bool,
    ) -> VecDeque<OldCqe> {
        let mut entries = VecDeque::with_capacity(limit.min(self.capacity() as usize) + 1);
        let (core, ctx) = (&mut self.core, &self.shared.ctx);
        self.device.hca.hold_still(ctx, || {
            // SAFETY: the device holds still.
            unsafe {
                core.history(|past| {
                    if wanted(past.cqe) {
                        entries.push_back(OldCqe {
                            index: past.index,
                            polled: past.polled,
                            cqe: *past.cqe,
                            data: ArrayVec::from_iter(past.data.iter().copied()),
                        });
                        if entries.len() > limit {
                            entries.pop_front();
                        }
                    }
                });
            }
        });
        #[cfg(feature = "mlx5")]
        if let CqSide::Mlx5(cq) = ctx {
            // This device does not hold still: what it may have written over meanwhile is not shown.
            let (end, count) = (cq.produced(), core.capacity());
            entries.retain(|old| end.wrapping_sub(old.index) & mlx5::CI_MASK < count);
        }
        entries
    }

    /// Whether an entry tells of what is attached under this index.
    pub(crate) fn is_of(&self, cqe: &Cqe64, index: UserIndex) -> bool {
        self.core.is_of(cqe, index)
    }

    /// Index of the entry that is polled next.
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
