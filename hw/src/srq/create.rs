//! Creating shared receive queues.

#[cfg(feature = "mlx5")]
use super::memory::Ring;
use super::memory::SrqMemory;
use super::{Srq, SrqInit, SrqShared, SrqSide, check_limit, too_large};
use crate::cq::{Cq, CqShared, Kept};
use crate::device::Device;
use crate::error::Error;
use crate::event::Element;
#[cfg(feature = "mlx5")]
use crate::mlx5;
use crate::pd::Pd;
#[cfg(feature = "verbs")]
use crate::provider::Provider;
use crate::soft::{Running, SrqCtx, XrcSrq};
#[cfg(feature = "verbs")]
use crate::verbs;
use crate::xrcd::Xrcd;
use bellwire_core::queue::{
    Attach, AttachError, SharedRecvQueue, SrqConsumer, SrqLedger, SrqUser, UserIndex,
};
use std::ptr::NonNull;
use std::sync::Arc;
#[cfg(feature = "mlx5")]
use std::sync::Mutex;

/// A queue, who takes its entries, its ledger, and the memory of all.
#[cfg(feature = "verbs")]
type Parts = (
    SharedRecvQueue<'static>,
    SrqConsumer<'static>,
    &'static SrqLedger<'static>,
    Arc<SrqMemory>,
);

/// Attaches a queue for XRC, with room for all its receives.
fn attach(
    cq: &mut Cq,
    ledger: &'static SrqLedger<'static>,
    memory: &Arc<SrqMemory>,
) -> Result<UserIndex, AttachError> {
    let queues = Attach {
        srq: Some((ledger, SrqUser::Xrc)),
        ..Attach::default()
    };
    // SAFETY: the memory holds what is attached.
    unsafe { cq.attach(Kept::Srq(memory.clone()), queues, true) }
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
    /// As [`create_srq`](Self::create_srq); a domain or completion queue of another device or context, or
    /// one without room.
    pub fn create_xrc_srq(&self, xrcd: &Xrcd, cq: &mut Cq, init: &SrqInit) -> Result<Srq, Error> {
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
            let parts = (queue, consumer, ledger, memory);
            return self.verbs_srq(context, init.max_sge, limit, parts, xrc);
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

    /// By libibverbs.
    #[cfg(feature = "verbs")]
    fn verbs_srq(
        &self,
        context: &Arc<verbs::Context>,
        max_sge: u32,
        limit: u16,
        (queue, consumer, ledger, memory): Parts,
        mut xrc: Option<(&Xrcd, &mut Cq)>,
    ) -> Result<Srq, Error> {
        let (domain, events) = (self.verbs()?.handle(), &self.device().events);
        // One is never posted.
        let max_wr = consumer.ring().count() - 1;
        let index = xrc.as_mut().map(|(_, cq)| attach(cq, ledger, &memory));
        let index = index.transpose()?;
        let make = || {
            let wanted = match (&xrc, index) {
                (Some((xrcd, cq)), Some(index)) => Some(verbs::XrcSrq {
                    xrcd: xrcd.verbs()?,
                    cq: cq.shared().ctx.verbs()?,
                    user_index: index.get(),
                }),
                _ => None,
            };
            // SAFETY: the queue keeps domain and completion queue.
            unsafe { verbs::Srq::new(context, domain, max_wr, max_sge, limit, events, wanted) }
        };
        let device = make().map(Arc::new);
        let mut shared = None;
        if let (Some((_, cq)), Some(index)) = (xrc, index) {
            match (&device, cq.shared().ctx.verbs()) {
                (Ok(device), Ok(side)) => side.admit(index.get(), device),
                _ => cq.detach(index, |_, _| ()),
            }
            shared = Some(cq.shared().clone());
        }
        let device = device?;
        // SAFETY: the queue keeps ring and record.
        let doorbell = unsafe { verbs::SrqDoorbell::new(device.clone(), consumer) };
        Ok(Srq {
            queue,
            doorbell: Some(Box::new(doorbell)),
            shared: SrqShared::of_verbs(device, memory, shared, self),
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
        let device = unsafe {
            verbs::Srq::new(
                context,
                handle,
                init.max_wr,
                init.max_sge,
                limit,
                events,
                None,
            )?
        };
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
            shared: SrqShared::of_verbs(device, memory, None, self),
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
                let domain = xrcd.soft()?.id();
                let index = attach(cq, ledger, memory)?;
                let shared = cq.shared().clone();
                let xrc = XrcSrq {
                    xrcd: domain,
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
