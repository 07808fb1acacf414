//! Objects of devices that libibverbs posts to and polls, and their parts that devices of core's rings share.

use super::data_path::Poll;
use super::{AhSide, CqSide, Provider};
use crate::cq::{Cq, CqShared, NewCq, OldCqe};
use crate::device::Device;
use crate::error::Error;
use crate::event::{AsyncQueue, CompChannel, Element, EventQueue};
use crate::pd::Pd;
use crate::qp::{Made, QpTransport, Wanted, life};
use crate::soft::address_vector;
use crate::srq::{NewSrq, Srq, SrqShared};
use crate::verbs;
use bellwire_core::qp::AhAttr;
use bellwire_core::queue::{Completion, CompletionQueue, Plain};
use bellwire_core::wqe::AddressVector;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// The queue of a new context's asynchronous events.
pub fn async_queue(context: &Arc<verbs::Context>) -> Result<Arc<AsyncQueue>, Error> {
    let source = Arc::new(verbs::Source::Async(context.clone()));
    let events = AsyncQueue::of_kernel(source, |event| event)?;
    events.admit(Element::Device)?;
    (1..=context.attr().phys_port_cnt).try_for_each(|port| events.admit(Element::Port(port)))?;
    Ok(Arc::new(events))
}

/// The queue of a completion channel.
pub fn cq_events(context: &Arc<verbs::Context>) -> Result<EventQueue<()>, Error> {
    let channel = Arc::new(verbs::Channel::new(context)?);
    let source = verbs::Source::Channel(channel);
    EventQueue::of_kernel(Arc::new(source), |_| ())
}

/// Creates an address handle for entries that the libibverbs layer reads, and no device: its name is in the
/// fields that hold the address of a card in the driver's own entries.
pub fn create_ah(pd: &Pd, attr: &AhAttr) -> Result<(AddressVector, AhSide), Error> {
    let handle = verbs::Ah::new(pd.verbs()?, attr)?;
    let (name, mut av) = (handle.name(), address_vector(attr));
    av.reserved0 = name.place.to_be_bytes();
    av.rmac[..4].copy_from_slice(&name.generation.to_be_bytes());
    Ok((av, Provider::Verbs(Arc::new(handle))))
}

/// The kernel's completion channel behind a channel.
pub fn kernel_channel(channel: Option<&CompChannel>) -> Result<Option<verbs::CqChannel>, Error> {
    let kernel = |channel: &CompChannel| {
        let queue = channel.queue();
        let source = queue.kernel_source();
        match source.and_then(|source| source.as_any().downcast_ref()) {
            Some(verbs::Source::Channel(kernel)) => Ok((queue.clone(), kernel.clone())),
            _ => Err(Error::Foreign {
                what: "completion channel",
            }),
        }
    };
    channel.map(kernel).transpose()
}

/// The polling side of a completion queue. Each completion is written to core's ring as it is polled. With
/// [`Extended`](verbs::Extended), they are polled by `ibv_start_poll`, and most are passed to core without the
/// ring.
#[derive(Debug)]
pub(crate) struct Polled(CompletionQueue<'static>, Option<Box<verbs::Extended>>);

impl Deref for Polled {
    type Target = CompletionQueue<'static>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Polled {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl Polled {
    /// Completions are not polled this way: always `None`.
    #[inline(always)]
    pub fn plain(&mut self) -> Option<Plain<'_, 'static>> {
        None
    }

    pub fn consumer_index(&self) -> u32 {
        let extended = self.1.as_ref();
        extended.map_or_else(|| self.0.consumer_index(), |extended| extended.count())
    }
}

impl Poll for Polled {
    type Producer = verbs::Cq;

    #[inline(always)]
    fn poll_one(&mut self, cq: &Arc<CqShared>, _: &Device) -> Option<Completion<'static>> {
        match &mut self.1 {
            Some(extended) => extended.poll_one(&mut self.0),
            // No other device has such a completion queue.
            None => cq.ctx.verbs()?.poll_one(&mut self.0),
        }
    }

    #[inline(always)]
    fn poll(
        &mut self,
        cq: &Arc<CqShared>,
        device: &Device,
        limit: usize,
        mut each: impl FnMut(Completion<'static>),
    ) -> usize {
        let mut count = 0;
        while count < limit
            && let Some(completion) = Poll::poll_one(self, cq, device)
        {
            each(completion);
            count += 1;
        }
        count
    }

    fn arm(&mut self, cq: &verbs::Cq, solicited_only: bool) -> Result<(), Error> {
        cq.arm(solicited_only)
    }

    /// With `Extended`, also the completions that it kept.
    fn known(&self, entries: Vec<OldCqe>, _: &CqSide) -> Result<Vec<OldCqe>, Error> {
        match &self.1 {
            Some(extended) => extended.history(&entries),
            None => Ok(entries),
        }
    }
}

pub fn create_cq(context: &Arc<verbs::Context>, new: &NewCq<'_>) -> Result<Cq, Error> {
    let producer = |memory, consumer| {
        let (channel, events) = (kernel_channel(new.channel)?, new.device.events.clone());
        // SAFETY: `CqShared` keeps the memory longer; this is the only producer.
        let cq = unsafe { verbs::Cq::new(context, memory, consumer, events, channel)? };
        Ok(Provider::Verbs(Box::new(cq)))
    };
    // libibverbs maintains the device's consumer record.
    new.on_own_ring(new.entries, producer, |core, cq: &CqSide| {
        let count = core.capacity();
        // SAFETY: `CqShared` keeps the queue alive; this is its only poller.
        let extended = cq
            .verbs()
            .map(|cq| unsafe { verbs::Extended::new(cq, count) });
        let extended = extended.transpose()?.flatten();
        Ok(Provider::Verbs(Polled(core, extended.map(Box::new))))
    })
}

/// Destroys a shared receive queue; `None`: it was destroyed before.
pub fn revoke_srq(queue: &verbs::Srq, srq: &SrqShared) -> Option<()> {
    if queue.is_gone() {
        return None;
    }
    // First: the next queue may get the same number.
    srq.pd.device().events.retire(Element::Srq(srq.number));
    queue.destroy(srq.cq().and_then(|cq| cq.verbs().ok()));
    Some(())
}

pub fn create_srq(context: &Arc<verbs::Context>, mut new: NewSrq<'_, '_>) -> Result<Srq, Error> {
    let own = new.on_own_ring()?;
    let (domain, events) = (new.pd.verbs()?.handle(), &new.pd.device().events);
    // One entry of the ring is never posted.
    let max_wr = own.consumer.ring().count() - 1;
    let index = new.xrc.as_mut().map(|(_, cq)| own.attach(cq));
    let index = index.transpose()?;
    let make = || {
        let wanted = match (&new.xrc, index) {
            (Some((xrcd, cq)), Some(index)) => Some(verbs::XrcSrq {
                xrcd: xrcd.verbs()?,
                cq: cq.shared().verbs()?,
                user_index: index.get(),
            }),
            _ => None,
        };
        let (max_sge, limit) = (new.init.max_sge, new.limit);
        // SAFETY: the queue keeps the domain, the completion queue, the ring and the record.
        unsafe {
            let device = verbs::Srq::new(context, domain, max_wr, max_sge, limit, events, wanted);
            let device = Arc::new(device?);
            let doorbell = verbs::SrqDoorbell::new(device.clone(), own.consumer)?;
            Ok::<_, Error>((device, doorbell))
        }
    };
    let made = make();
    let mut shared = None;
    if let (Some((_, cq)), Some(index)) = (new.xrc, index) {
        match (&made, cq.shared().verbs()) {
            (Ok((device, _)), Ok(side)) => side.admit(index.get(), device),
            // SAFETY: the device's queue was not created.
            _ => unsafe { cq.detach(index, |_, _| ()) },
        }
        shared = Some(cq.shared().clone());
    }
    let (device, doorbell) = made?;
    let (number, doorbell) = (device.number(), Some(Box::new(doorbell)));
    let side = (Provider::Verbs(device), number);
    Ok(Srq::new(
        own.queue, doorbell, side, own.memory, shared, new.pd,
    ))
}

pub fn create_qp<T: QpTransport>(
    context: &verbs::Context,
    mut wanted: Wanted<'_, '_>,
) -> Result<Made<T>, Error> {
    let (send_cq, cq) = (wanted.shared.0.verbs()?, wanted.shared.1.verbs()?);
    let config = verbs::QpConfig {
        transport: T::TYPE,
        // Each entry of the rings may be a request; the spare one is the last request of a drain.
        sends: wanted.sizes.send_blocks,
        spare: 1,
        plain: false,
        receives: wanted.sizes.recv_count,
        max_send_sge: wanted.init.max_send_sge,
        max_recv_sge: wanted.init.max_recv_sge,
        max_inline_data: wanted.init.max_inline_data,
    };
    let srq = wanted.srq.map(|srq| srq.verbs()).transpose()?.cloned();
    // SAFETY: the queue pair keeps its completion queues until it is destroyed.
    let qp = unsafe {
        let cqs = [&*std::ptr::from_ref(send_cq), &*std::ptr::from_ref(cq)];
        verbs::Qp::new(wanted.pd.verbs()?, verbs::Way::Verbs(cqs), srq, &config)?
    };
    let qpn = qp.qp_num();
    let made = wanted
        .attached::<T>(qpn)
        .and_then(|(memory, parts, user_index)| {
            // SAFETY: the queue pair keeps the rings.
            let (send, recv) = unsafe {
                (
                    verbs::SendDoorbell::new(qp.clone(), parts.send_ring)?,
                    verbs::RecvDoorbell::new(qp.clone(), parts.recv_ring)?,
                )
            };
            let (send, recv) = (Provider::Verbs(send), Provider::Verbs(recv));
            // SAFETY: these are the only queues on the rings and ledgers; the doorbells access them as
            // they must.
            let queues = unsafe { wanted.queues::<T>(&parts, send, recv) };
            let (sq, rq) = queues.ok_or_else(|| wanted.too_large())?;
            Ok(Made {
                qpn,
                memory,
                user_index,
                sq,
                rq,
            })
        });
    match &made {
        Ok(made) => qp.begin(life(0, made.user_index)),
        Err(_) => context.destroy_qp(qpn),
    }
    made
}
