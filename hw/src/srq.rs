//! Shared receive queues.

use crate::cq::{Cq, CqShared, Kept};
use crate::device::Device;
use crate::error::Error;
use crate::event::Element;
#[cfg(feature = "mlx5")]
use crate::mlx5;
use crate::pd::Pd;
use crate::pinned::Pinned;
#[cfg(feature = "verbs")]
use crate::provider::Provider;
use crate::soft::{Running, SrqCtx, XrcSrq};
#[cfg(feature = "verbs")]
use crate::verbs;
use crate::xrcd::Xrcd;
#[cfg(feature = "mlx5")]
use bellwire_core::cqe::{Cqe64, CqeOpcode};
use bellwire_core::port::DoorbellRecord;
use bellwire_core::queue::{
    Attach, BadRequest, PostError, Rejected, SharedRecvQueue, SrqConsumer, SrqLedger, SrqSlot,
    SrqUser,
};
use bellwire_core::slab::Block;
use bellwire_core::wqe::{SEGMENT, SrqRing};
use bellwire_core::wr::Sge;
#[cfg(feature = "mlx5")]
use std::collections::HashSet;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};
#[cfg(feature = "mlx5")]
use std::sync::{Mutex, PoisonError, Weak};

/// What a shared receive queue is to be able to do (`ibv_srq_init_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqInit {
    /// Receives in flight, at least one.
    pub max_wr: u32,
    /// Scatter/gather elements of a receive.
    pub max_sge: u32,
    /// The limit to begin with, as [`Srq::modify`] sets it; zero for none.
    pub srq_limit: u32,
}

impl Default for SrqInit {
    fn default() -> Self {
        Self {
            max_wr: 128,
            max_sge: 1,
            srq_limit: 0,
        }
    }
}

impl SrqInit {
    /// Entries that are reserved for it in each completion queue on which its receives complete.
    pub fn cq_entries(&self) -> u32 {
        self.count()
    }

    /// Entries of the ring: one is never posted.
    fn count(&self) -> u32 {
        (self.max_wr + 1).next_power_of_two()
    }

    fn stride(&self) -> u32 {
        ((self.max_sge.max(1) + 1) * SEGMENT as u32).next_power_of_two()
    }

    fn check(&self, pd: &Pd) -> Result<(), Error> {
        let attr = pd.device().attr();
        for (what, given, max) in [
            ("max_wr (at least 1)", self.max_wr, attr.max_srq_wr),
            ("max_sge", self.max_sge, attr.max_srq_sge),
        ] {
            if given > max {
                return Err(too_large(what, given, max));
            }
        }
        if self.max_wr == 0 {
            return Err(too_large("max_wr (at least 1)", 0, attr.max_srq_wr));
        }
        Ok(())
    }
}

#[cfg(feature = "verbs")]
const FOREIGN: Error = Error::Foreign {
    what: "shared receive queue",
};

fn too_large(what: &'static str, given: u32, max: u32) -> Error {
    Error::TooLarge {
        what,
        given: given.into(),
        max: max.into(),
    }
}

fn check_limit(limit: u32, capacity: u32) -> Result<u16, Error> {
    match u16::try_from(limit) {
        Ok(limit) if u32::from(limit) <= capacity => Ok(limit),
        _ => Err(too_large("srq_limit", limit, capacity)),
    }
}

/// What a shared receive queue is able to do (`ibv_srq_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttr {
    /// Receives in flight: at least as many as asked for.
    pub max_wr: u32,
    /// Scatter/gather elements of a receive: at least as many as asked for.
    pub max_sge: u32,
    /// The limit; zero when none is set, or the one that was is reached.
    pub srq_limit: u32,
}

/// A receive queue that many queue pairs take from. It has one poster at a time; who receives does
/// not matter to it.
///
/// What was posted is told by the completion queue of the queue pair that received it, or of the
/// shared receive queue itself where it is for XRC.
///
/// Dropping it leaves what was posted, rung or not, to the queue pairs that use it. When the last of
/// them is gone as well, buffers that no message has come into are given back, and their requests
/// are told by nobody: [`destroy`](Self::destroy) tells them.
#[derive(Debug)]
pub struct Srq {
    queue: SharedRecvQueue<'static>,
    /// What takes the entries to the device; the software HCA takes them itself.
    #[cfg(feature = "verbs")]
    doorbell: Option<Box<verbs::SrqDoorbell>>,
    shared: Arc<SrqShared>,
}

/// The device's queue, held by the [`Srq`] and the queue pairs that use it. Goes with the last one.
#[derive(Debug)]
pub(crate) struct SrqShared {
    ctx: SrqSide,
    number: u32,
    /// What a completion queue keeps.
    pub memory: Arc<SrqMemory>,
    /// Where it completes, for XRC.
    cq: Option<Arc<CqShared>>,
    /// Which queue pairs have received from it, and where that completes.
    #[cfg(feature = "mlx5")]
    users: Mutex<Vec<(u32, Weak<CqShared>)>>,
    pub pd: Pd,
}

/// The device's side, by who stands behind it.
#[derive(Debug)]
enum SrqSide {
    Soft(NonNull<SrqCtx>),
    #[cfg(feature = "verbs")]
    Verbs(Arc<verbs::Srq>),
}

/// What is left of the device's side, when it was taken away.
enum Revoked {
    Soft(Box<SrqCtx>),
    #[cfg(feature = "verbs")]
    Verbs(Arc<verbs::Srq>),
}

// SAFETY: the context may be shared, and the pointer is only read through.
unsafe impl Send for SrqShared {}
// SAFETY: as above.
unsafe impl Sync for SrqShared {}

impl SrqShared {
    /// The software HCA's side.
    ///
    /// # Safety
    /// Not used after `self` has gone.
    pub unsafe fn ctx(&self) -> Result<&'static SrqCtx, Error> {
        match &self.ctx {
            // SAFETY: stays until `revoke`, which is called when there are no users any more.
            SrqSide::Soft(ctx) => Ok(unsafe { ctx.as_ref() }),
            #[cfg(feature = "verbs")]
            SrqSide::Verbs(_) => Err(FOREIGN),
        }
    }

    /// That of libibverbs.
    #[cfg(feature = "verbs")]
    pub fn verbs(&self) -> Result<&Arc<verbs::Srq>, Error> {
        match &self.ctx {
            SrqSide::Verbs(srq) => Ok(srq),
            SrqSide::Soft(_) => Err(FOREIGN),
        }
    }

    /// A queue pair that receives from it completes there.
    #[cfg(feature = "mlx5")]
    pub fn admit(&self, qp_num: u32, cq: &Arc<CqShared>) {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        users.retain(|(number, cq)| *number != qp_num && cq.strong_count() != 0);
        users.push((qp_num, Arc::downgrade(cq)));
    }

    /// The entries that completions tell of which were not polled, on the device's own rings.
    #[cfg(feature = "mlx5")]
    fn completed(&self) -> HashSet<u16> {
        let users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        let mut completed = HashSet::new();
        for (qp_num, cq) in users.iter() {
            let cq = cq.upgrade();
            let Some(cq) = cq.as_ref().and_then(|cq| cq.ctx.mlx5().ok()) else {
                continue;
            };
            let of_it = |all: &mut HashSet<u16>, cqe: &Cqe64| {
                let of_receive = cqe.opcode().is_received() || cqe.opcode() == CqeOpcode::RespErr;
                if of_receive && cqe.qpn() == *qp_num {
                    all.insert(cqe.wqe_counter());
                }
            };
            completed.extend(cq.fold(HashSet::new, of_it).0);
        }
        completed
    }

    /// What a completion queue attaches.
    ///
    /// # Safety
    /// Not used after the memory has gone.
    pub unsafe fn ledger(&self) -> &'static SrqLedger<'static> {
        // SAFETY: the caller's promise.
        unsafe { self.memory.ledger() }
    }

    #[cfg(feature = "verbs")]
    fn of_verbs(device: Arc<verbs::Srq>, memory: Arc<SrqMemory>, pd: &Pd) -> Arc<Self> {
        Arc::new(Self {
            number: device.number(),
            ctx: SrqSide::Verbs(device),
            memory,
            cq: None,
            #[cfg(feature = "mlx5")]
            users: Mutex::default(),
            pd: pd.clone(),
        })
    }

    /// Takes the queue from the device. Once: `None` afterwards.
    fn revoke(&self) -> Option<Revoked> {
        let device = self.pd.device();
        let ctx = match &self.ctx {
            SrqSide::Soft(_) => {
                let hca = device.hca.soft("the queue's device").ok()?;
                Revoked::Soft(hca.destroy_srq(self.number)?)
            }
            #[cfg(feature = "verbs")]
            SrqSide::Verbs(srq) => {
                if !srq.destroy() {
                    return None;
                }
                Revoked::Verbs(srq.clone())
            }
        };
        device.events.retire(Element::Srq(self.number));
        if let Some(cq) = &self.cq {
            // Nobody else sets it.
            let _ = self.memory.end.set(cq.ctx.produced());
        }
        Some(ctx)
    }
}

impl Drop for SrqShared {
    fn drop(&mut self) {
        // What was taken is told by completion queues; what was not goes back.
        match self.revoke() {
            None => {}
            Some(Revoked::Soft(ctx)) => {
                while let Some(popped) = ctx.pop() {
                    // SAFETY: the device has not taken it.
                    drop(unsafe { self.memory.ledger().take_back(popped.index) });
                }
            }
            #[cfg(feature = "mlx5")]
            Some(Revoked::Verbs(_)) if self.memory.is_the_devices() => {
                let completed = self.completed();
                for index in (0..self.memory.count()).filter(|index| !completed.contains(index)) {
                    // SAFETY: the device has not completed it, and is gone.
                    drop(unsafe { self.memory.ledger().take_back(index) });
                }
            }
            #[cfg(feature = "verbs")]
            Some(Revoked::Verbs(srq)) => {
                for index in srq.left() {
                    // SAFETY: the device has not completed it, and is gone.
                    drop(unsafe { self.memory.ledger().take_back(index) });
                }
            }
        }
    }
}

/// Memory of a shared receive queue: ring, ledger, record. Kept by the queue, and by completion
/// queues until they have told everything.
#[derive(Debug)]
pub(crate) struct SrqMemory {
    ledger: *mut SrqLedger<'static>,
    slots: *mut [SrqSlot<'static>],
    ring: Ring,
    /// Set when a queue for XRC is gone: where its last completion is at the latest, as its
    /// completion queue's producer index.
    end: OnceLock<u32>,
}

/// Where the ring is.
#[derive(Debug)]
enum Ring {
    /// In memory of ours.
    Own {
        memory: Pinned,
        record: Box<DoorbellRecord>,
        count: u32,
        stride: u32,
    },
    /// Where the device has it.
    #[cfg(feature = "mlx5")]
    Device(mlx5::SrqMemory),
}

// SAFETY: a ledger may be shared, and the pointers are the owner's alone.
unsafe impl Send for SrqMemory {}
// SAFETY: as above.
unsafe impl Sync for SrqMemory {}

impl SrqMemory {
    /// In memory of ours.
    fn new(count: u32, stride: u32) -> Option<Arc<Self>> {
        Self::over(Ring::Own {
            memory: Pinned::zeroed(count as usize * stride as usize),
            record: Box::default(),
            count,
            stride,
        })
    }

    fn over(ring: Ring) -> Option<Arc<Self>> {
        // SAFETY: the ring stays as long as the ledger below.
        let (entries, _) = unsafe { ring.parts()? };
        let slots: Box<[SrqSlot<'static>]> =
            (0..entries.count()).map(|_| SrqSlot::default()).collect();
        let slots = Box::into_raw(slots);
        // SAFETY: freed after the ledger, in `drop`.
        let ledger = SrqLedger::new(entries, unsafe { &mut *slots });
        let Some(ledger) = ledger else {
            // SAFETY: from `Box::into_raw`, and borrowed by nobody.
            drop(unsafe { Box::from_raw(slots) });
            return None;
        };
        Some(Arc::new(Self {
            ledger: Box::into_raw(Box::new(ledger)),
            slots,
            ring,
            end: OnceLock::new(),
        }))
    }

    /// # Safety
    /// Not used after the memory has gone.
    unsafe fn ledger(&self) -> &'static SrqLedger<'static> {
        // SAFETY: from `Box::into_raw`, freed in `drop`.
        unsafe { &*self.ledger }
    }

    #[cfg(feature = "mlx5")]
    fn is_the_devices(&self) -> bool {
        matches!(self.ring, Ring::Device(_))
    }

    /// Entries.
    #[cfg(feature = "mlx5")]
    fn count(&self) -> u16 {
        self.slots.len() as u16
    }

    /// Index behind the last completion of a queue for XRC that is gone; `None` while it lives.
    pub fn end(&self) -> Option<u32> {
        self.end.get().copied()
    }
}

impl Ring {
    /// # Safety
    /// Of one queue, and not used after this has gone.
    unsafe fn parts(&self) -> Option<(SrqRing<'static>, &'static DoorbellRecord)> {
        // SAFETY: the caller's promise; the memory has this size.
        unsafe {
            match self {
                Self::Own {
                    memory,
                    record,
                    count,
                    stride,
                } => {
                    let ring = SrqRing::new(memory.start(), *count, *stride)?;
                    Some((ring, &*std::ptr::from_ref(&**record)))
                }
                #[cfg(feature = "mlx5")]
                Self::Device(ring) => Some(ring.parts()),
            }
        }
    }
}

impl Drop for SrqMemory {
    fn drop(&mut self) {
        // SAFETY: both from `Box::into_raw`; the ledger, which borrows the slots, goes first.
        unsafe {
            drop(Box::from_raw(self.ledger));
            drop(Box::from_raw(self.slots));
        }
    }
}

impl Pd {
    /// Creates a shared receive queue (`ibv_create_srq`).
    ///
    /// # Errors
    /// A capability that the device does not have, a limit above `max_wr`, no number left.
    pub fn create_srq(&self, init: &SrqInit) -> Result<Srq, Error> {
        self.make_srq(None, init)
    }

    /// Creates a shared receive queue for XRC (`ibv_create_srq_ex` with `IBV_SRQT_XRC`): requesters
    /// of the domain name it by its [number](Srq::srq_num), and its receives complete on `cq`, where
    /// room is reserved for all of them.
    ///
    /// # Errors
    /// As [`create_srq`](Self::create_srq); a domain or completion queue of another device, or one
    /// without room.
    pub fn create_xrc_srq(&self, xrcd: &Xrcd, cq: &mut Cq, init: &SrqInit) -> Result<Srq, Error> {
        self.device().hca.soft("XRC")?;
        let ours = |device: &Device| device.hca.is_same(&self.device().hca);
        for (what, ours) in [
            ("XRC domain", ours(xrcd.device())),
            ("completion queue", ours(cq.device())),
        ] {
            if !ours {
                return Err(Error::Foreign { what });
            }
        }
        self.make_srq(Some((xrcd, cq)), init)
    }

    fn make_srq(&self, xrc: Option<(&Xrcd, &mut Cq)>, init: &SrqInit) -> Result<Srq, Error> {
        init.check(self)?;
        let (count, stride) = (init.count(), init.stride());
        let limit = check_limit(init.srq_limit, count - 1)?;
        // `check` admits no sizes that do not fit.
        let does_not_fit = || too_large("max_wr", init.max_wr, self.device().attr().max_srq_wr);
        #[cfg(feature = "mlx5")]
        if let Provider::Verbs(context) = &self.device().hca
            && context.drives_rings()
        {
            return self.mlx5_srq(context, init, limit);
        }
        let memory = SrqMemory::new(count, stride).ok_or_else(does_not_fit)?;
        // SAFETY: queue and context keep the memory; the context goes first.
        let (ledger, parts) = unsafe { (memory.ledger(), memory.ring.parts()) };
        let (ring, record) = parts.ok_or_else(does_not_fit)?;
        // SAFETY: the only queue on ledger and record; the device keeps to the rules.
        let queue = unsafe { SharedRecvQueue::new(ledger, record) }.ok_or_else(does_not_fit)?;
        let consumer = SrqConsumer::new(ring, record);
        #[cfg(feature = "verbs")]
        if let Provider::Verbs(context) = &self.device().hca {
            let domain = self.verbs()?.handle();
            let events = &self.device().events;
            // SAFETY: the queue keeps the domain.
            let device =
                unsafe { verbs::Srq::new(context, domain, count, init.max_sge, limit, events) };
            let device = Arc::new(device?);
            // SAFETY: the queue keeps ring and record.
            let doorbell = unsafe { verbs::SrqDoorbell::new(device.clone(), consumer) };
            return Ok(Srq {
                queue,
                doorbell: Some(Box::new(doorbell)),
                shared: SrqShared::of_verbs(device, memory, self),
            });
        }
        let hca = self.device().hca.soft("the queue's device")?;
        consumer.set_limit(limit);
        let (ctx, cq) = self.soft_srq(hca, consumer, ledger, &memory, xrc)?;
        // SAFETY: just made; it goes with the device's queue.
        let number = unsafe { ctx.as_ref() }.number();
        self.device().events.admit(Element::Srq(number));
        Ok(Srq {
            queue,
            #[cfg(feature = "verbs")]
            doorbell: None,
            shared: Arc::new(SrqShared {
                ctx: SrqSide::Soft(ctx),
                number,
                memory,
                cq,
                #[cfg(feature = "mlx5")]
                users: Mutex::default(),
                pd: self.clone(),
            }),
        })
    }

    /// On the device's own ring.
    #[cfg(feature = "mlx5")]
    fn mlx5_srq(
        &self,
        context: &Arc<verbs::Context>,
        init: &SrqInit,
        limit: u16,
    ) -> Result<Srq, Error> {
        let domain = Arc::new(mlx5::Domain::new(self.verbs()?, false)?);
        let (handle, events) = (domain.handle(), &self.device().events);
        // SAFETY: the memory keeps the domain, and the queue the memory.
        let device =
            unsafe { verbs::Srq::new(context, handle, init.max_wr, init.max_sge, limit, events)? };
        let device = Arc::new(device);
        let ring = mlx5::SrqMemory::of(&device, domain, init.count())?;
        let max = self.device().attr().max_srq_wr;
        let memory = SrqMemory::over(Ring::Device(ring));
        let memory = memory.ok_or_else(|| too_large("max_wr", init.max_wr, max))?;
        // SAFETY: the queue keeps the memory; the only one on ledger and record.
        let queue = unsafe {
            let parts = memory.ring.parts();
            parts.and_then(|(_, record)| SharedRecvQueue::new(memory.ledger(), record))
        };
        Ok(Srq {
            queue: queue.ok_or_else(|| too_large("max_wr", init.max_wr, max))?,
            doorbell: None,
            shared: SrqShared::of_verbs(device, memory, self),
        })
    }

    fn soft_srq(
        &self,
        hca: &Running,
        consumer: SrqConsumer<'static>,
        ledger: &'static SrqLedger<'static>,
        memory: &Arc<SrqMemory>,
        xrc: Option<(&Xrcd, &mut Cq)>,
    ) -> Result<(NonNull<SrqCtx>, Option<Arc<CqShared>>), Error> {
        let events = self.device().events.clone();
        Ok(match xrc {
            None => (
                hca.create_srq(SrqCtx::new(self.id(), consumer, None, events))?,
                None,
            ),
            Some((xrcd, cq)) => {
                let queues = Attach {
                    srq: Some((ledger, SrqUser::Xrc)),
                    ..Attach::default()
                };
                // SAFETY: the memory holds what is attached.
                let index = unsafe { cq.attach(Kept::Srq(memory.clone()), queues, true)? };
                let shared = cq.shared().clone();
                let xrc = XrcSrq {
                    xrcd: xrcd.id(),
                    // SAFETY: the queue keeps it until the context is gone.
                    cq: unsafe { &*std::ptr::from_ref(shared.ctx.soft()?) },
                    user_index: index.get(),
                };
                let made = hca.create_srq(SrqCtx::new(self.id(), consumer, Some(xrc), events));
                (
                    made.inspect_err(|_| cq.detach(index, |_, _| ()))?,
                    Some(shared),
                )
            }
        })
    }
}

impl Srq {
    /// Its number (`ibv_get_srq_num`), by which XRC requests name it.
    pub fn srq_num(&self) -> u32 {
        self.shared.number
    }

    /// The protection domain.
    pub fn pd(&self) -> &Pd {
        &self.shared.pd
    }

    /// Stages a receive into a whole block, which comes back with the completion.
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

    /// Stages a receive. This is the raw path, [`post_block`](Self::post_block) the safe one.
    ///
    /// # Errors
    /// [`PostError`]; nothing was staged.
    ///
    /// # Safety
    /// The memory that `sges` point to stays valid, and is not touched by the program until the
    /// request is told.
    #[inline(always)]
    pub unsafe fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        // SAFETY: the caller's promise.
        unsafe { self.queue.post(wr_id, sges) }
    }

    /// Stages the receives of a list, up to the first that is refused (the `bad_wr` of
    /// `ibv_post_srq_recv`). What comes behind that one is left in the iterator.
    ///
    /// # Errors
    /// [`BadRequest`] says which was refused and why; those before it are staged.
    ///
    /// # Safety
    /// As [`post`](Self::post), for each.
    #[inline]
    pub unsafe fn post_list<'s>(
        &mut self,
        requests: impl IntoIterator<Item = (u64, &'s [Sge])>,
    ) -> Result<(), BadRequest> {
        // SAFETY: the caller's promise.
        unsafe { self.queue.post_list(requests) }
    }

    /// Makes everything staged known to the device.
    #[inline(always)]
    pub fn ring(&mut self) {
        self.queue.ring();
        #[cfg(feature = "verbs")]
        if let Some(doorbell) = &mut self.doorbell {
            doorbell.ring();
        }
    }

    /// Requests that can be staged before something has to complete.
    pub fn free(&mut self) -> u32 {
        self.queue.free()
    }

    /// What it is able to do, and its limit (`ibv_query_srq`).
    pub fn query(&self) -> SrqAttr {
        SrqAttr {
            max_wr: self.queue.capacity(),
            max_sge: self.queue.max_sge(),
            srq_limit: match &self.shared.ctx {
                // SAFETY: `self` is there.
                SrqSide::Soft(ctx) => unsafe { ctx.as_ref() }.queue.limit().into(),
                #[cfg(feature = "verbs")]
                SrqSide::Verbs(srq) => srq.limit(),
            },
        }
    }

    /// Sets the limit (`ibv_modify_srq` with `IBV_SRQ_LIMIT`): when a message takes a receive and
    /// leaves fewer than `limit`, the limit is reached, once, and is zero then. Zero sets none.
    /// `max_wr` cannot be changed (`IBV_SRQ_MAX_WR`): create a larger queue instead.
    ///
    /// # Errors
    /// A limit above `max_wr`; [`Error::Io`] when the device refuses.
    pub fn modify(&mut self, limit: u32) -> Result<(), Error> {
        let limit = check_limit(limit, self.queue.capacity())?;
        match &self.shared.ctx {
            // SAFETY: `self` is there.
            SrqSide::Soft(ctx) => unsafe { ctx.as_ref() }.queue.set_limit(limit),
            #[cfg(feature = "verbs")]
            SrqSide::Verbs(srq) => srq.set_limit(limit)?,
        }
        Ok(())
    }

    /// Destroys it (`ibv_destroy_srq`). Everything posted and not told yet goes to `each`, with its
    /// identifier and its buffer, in no order; completions of it that were not polled are dropped.
    ///
    /// # Errors
    /// [`Error::Busy`] while queue pairs use it, and the queue, as it was.
    pub fn destroy(
        mut self,
        each: impl FnMut(u64, Option<Block<'static>>),
    ) -> Result<(), (Self, Error)> {
        // Nobody else has it: everything that others did with it comes before.
        if Arc::get_mut(&mut self.shared).is_none() {
            let users = (Arc::strong_count(&self.shared) - 1).max(1);
            let what = "shared receive queue";
            return Err((self, Error::Busy { what, users }));
        }
        let ctx = self.shared.revoke();
        // SAFETY: no queue pair uses it, and no XRC request finds it any more.
        unsafe { self.shared.ledger().clear(each) };
        drop(ctx);
        Ok(())
    }

    /// What a queue pair of this protection domain that receives from it holds.
    pub(crate) fn shared_with(&self, pd: &Pd) -> Result<Arc<SrqShared>, Error> {
        if !self.pd().is_same(pd) {
            return Err(Error::Foreign {
                what: "shared receive queue",
            });
        }
        if self.shared.cq.is_some() {
            return Err(Error::XrcSrq {
                srqn: self.srq_num(),
            });
        }
        Ok(self.shared.clone())
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        // What is staged was taken, as what is rung.
        self.ring();
    }
}

#[cfg(test)]
mod tests;
