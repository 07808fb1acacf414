//! Objects of the software HCA.

use super::data_path::Poll;
use super::{CqSide, Left, Provider};
use crate::cq::{Cq, CqShared, FOREIGN, NewCq, OldCqe};
use crate::device::Device;
use crate::error::Error;
use crate::event::Element;
use crate::memory::fork::PerProcess;
use crate::pinned::{boxed, collected};
use crate::qp::{Made, QpTransport, Wanted, life};
use crate::soft::{self, CqCtx, HcaConfig, Polled, QpParts, RecvParts, Running, SrqCtx, XrcSrq};
use crate::srq::{NewSrq, Srq, SrqShared};
use bellwire_core::queue::{Completion, CompletionQueue};
use bellwire_provider::attr::DeviceInfo;
use bellwire_provider::short::Short;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

const SOFT: &str = "soft";

/// Prefix of a fabric's name.
const FABRIC: &str = "soft:";

/// Opens the device, if the name is one of the software HCA.
pub fn open(name: &str) -> Result<Option<Arc<Running>>, Error> {
    if name == SOFT {
        return shared().map(Some);
    }
    name.strip_prefix(FABRIC).map(shared_node).transpose()
}

pub fn name(hca: &Running) -> Short<128> {
    match hca.fabric() {
        Some(fabric) => Short::new(format_args!("{FABRIC}{fabric}")),
        None => Short::new(format_args!("{SOFT}")),
    }
}

/// The device as a list of devices shows it.
pub fn info() -> DeviceInfo {
    let mut info = DeviceInfo::default();
    info.name = SOFT.to_owned();
    info.description = "software HCA; \"soft:NAME\" reaches other processes".to_owned();
    info.attr = soft::limits();
    info
}

/// This process's node of a fabric. A child of fork(2) has one of its own.
fn shared_node(fabric: &str) -> Result<Arc<Running>, Error> {
    static SHARED: PerProcess<Mutex<BTreeMap<String, Weak<Running>>>> =
        PerProcess::new(Mutex::default);
    let mut shared = SHARED.get().lock().unwrap_or_else(PoisonError::into_inner);
    let running = match shared.get(fabric).and_then(Weak::upgrade) {
        Some(running) => running,
        None => {
            let running = Running::join(HcaConfig::default(), fabric)?;
            shared.retain(|_, running| running.strong_count() != 0);
            shared.insert(fabric.to_owned(), Arc::downgrade(&running));
            running
        }
    };
    // Unlocked, so that opening other fabrics does not wait for this fabric's nodes.
    drop(shared);
    running.meet();
    Ok(running)
}

/// The software HCA that is shared by the whole process.
pub fn shared() -> Result<Arc<Running>, Error> {
    static SHARED: PerProcess<Mutex<Weak<Running>>> = PerProcess::new(Mutex::default);
    let mut shared = SHARED.get().lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(running) = shared.upgrade() {
        return Ok(running);
    }
    let running = Running::start(HcaConfig::default())?;
    *shared = Arc::downgrade(&running);
    Ok(running)
}

/// The HCA writes the entries, with the user index that it was given. A poll that finds nothing makes requests
/// proceed, and may report a receive.
impl Poll for Polled {
    type Producer = CqCtx;

    #[inline(always)]
    fn poll_one(&mut self, _: &Arc<CqShared>, _: &Device) -> Option<Completion<'static>> {
        let completion = CompletionQueue::poll_one(self);
        if completion.is_some() {
            return completion;
        }
        match self.look() {
            Ok(received) => Some(received),
            Err(true) => CompletionQueue::poll_one(self),
            Err(false) => None,
        }
    }

    #[inline(always)]
    fn poll(
        &mut self,
        _: &Arc<CqShared>,
        _: &Device,
        limit: usize,
        mut each: impl FnMut(Completion<'static>),
    ) -> usize {
        let mut count = CompletionQueue::poll(self, limit, &mut each);
        if count != 0 {
            return count;
        }
        let mut looks = self.look_repeatedly();
        while count != limit {
            match looks.look() {
                Ok(received) => {
                    each(received);
                    count += 1;
                }
                Err(true) => {
                    drop(looks);
                    return count + CompletionQueue::poll(self, limit - count, &mut each);
                }
                Err(false) => break,
            }
        }
        count
    }

    fn arm(&mut self, cq: &CqCtx, solicited_only: bool) -> Result<(), Error> {
        cq.arm(CompletionQueue::arm(self, cq.cqn(), solicited_only));
        Ok(())
    }

    fn kept(&self) -> usize {
        self.poll_history().bytes()
    }

    /// With the completions that were reported to polls.
    fn known(&self, entries: Vec<OldCqe>, _: &CqSide) -> Result<Vec<OldCqe>, Error> {
        collected(self.poll_history().among(entries))
    }
}

pub fn create_cq(hca: &Running, new: &NewCq<'_>) -> Result<Cq, Error> {
    let producer = |memory, consumer| {
        let cqn = hca.cqns.take()?;
        let channel = new.channel.map(|channel| channel.queue().clone());
        let (events, attention) = (new.device.events.clone(), hca.attention());
        let cq = CqCtx::new(memory, consumer, cqn, events, channel, attention);
        let cq = cq
            .and_then(boxed)
            .inspect_err(|_| hca.cqns.give_back(cqn))?;
        Ok(Provider::Soft(cq))
    };
    new.on_own_ring(new.with_batch(), producer, |core, ctx| {
        let ctx = ctx.soft().ok_or(FOREIGN)?;
        Ok(Provider::Soft(Polled::new(core, ctx, hca)?))
    })
}

/// The HCA's shared receive queue: it exists until it is revoked.
#[derive(Debug)]
pub(crate) struct SrqRef(NonNull<SrqCtx>);

// SAFETY: the context may be shared, and the pointer is only read through.
unsafe impl Send for SrqRef {}
// SAFETY: the context may be shared, and the pointer is only read through.
unsafe impl Sync for SrqRef {}

impl SrqRef {
    /// # Safety
    /// It is not used after the queue was revoked.
    pub unsafe fn ctx(&self) -> &'static SrqCtx {
        // SAFETY: the caller guarantees that the queue was not revoked.
        unsafe { self.0.as_ref() }
    }
}

/// Destroys a shared receive queue; `None`: it was destroyed before. Returns its entries that were not taken.
pub fn revoke_srq(srq: &SrqShared) -> Option<Left<'static>> {
    let device = srq.pd.device();
    let ctx = device.hca.soft()?.destroy_srq(srq.number)?;
    device.events.retire(Element::Srq(srq.number));
    Some(Left::Soft(ctx))
}

pub fn create_srq(hca: &Running, new: NewSrq<'_, '_>) -> Result<Srq, Error> {
    let own = new.on_own_ring()?;
    let (pd, events) = (new.pd, new.pd.device().events.clone());
    own.consumer.set_limit(new.limit);
    let (ctx, cq) = match new.xrc {
        None => (
            hca.create_srq(SrqCtx::new(pd.id(), own.consumer, None, events))?,
            None,
        ),
        Some((xrcd, cq)) => {
            let domain = xrcd.soft()?.id();
            let index = own.attach(cq)?;
            let shared = cq.shared().clone();
            let xrc = XrcSrq {
                xrcd: domain,
                // SAFETY: the queue keeps the completion queue until the context is destroyed.
                cq: unsafe { &*std::ptr::from_ref(shared.soft()?) },
                user_index: index.get(),
            };
            let made = hca.create_srq(SrqCtx::new(pd.id(), own.consumer, Some(xrc), events));
            // SAFETY: the device's queue was not created.
            let made = made.inspect_err(|_| unsafe { cq.detach(index, |_, _| ()) })?;
            (made, Some(shared))
        }
    };
    // SAFETY: the context was just created; it exists as long as the device's queue.
    let number = unsafe { ctx.as_ref() }.number();
    let side = (Provider::Soft(SrqRef(ctx)), number);
    let srq = Srq::new(own.queue, None, side, own.memory, cq, pd);
    pd.device().events.admit(Element::Srq(number))?;
    Ok(srq)
}

pub fn create_qp<T: QpTransport>(
    hca: &Running,
    mut wanted: Wanted<'_, '_>,
) -> Result<Made<T>, Error> {
    let (send_cq, cq) = (wanted.shared.0.soft()?, wanted.shared.1.soft()?);
    // SAFETY: the queue pair keeps the completion queues until it is destroyed.
    let (send_cq, cq): (&'static CqCtx, &'static CqCtx) =
        unsafe { (&*std::ptr::from_ref(send_cq), &*std::ptr::from_ref(cq)) };
    let mut made = None;
    let (qpn, ctx) = hca.create_qp(|qpn| {
        let (memory, parts, user_index) = wanted.attached::<T>(qpn)?;
        let device = QpParts {
            transport: T::TYPE,
            pd: wanted.pd.id(),
            send: Some((parts.send_ring, send_cq)),
            recv: match wanted.srq {
                _ if !T::RECEIVES => RecvParts::None,
                Some(srq) => RecvParts::Shared {
                    // SAFETY: the queue pair keeps the shared receive queue until it is destroyed.
                    srq: unsafe { srq.ctx()? },
                    cq,
                },
                None => RecvParts::Own {
                    ring: parts.recv_ring,
                    record: parts.record,
                    cq,
                },
            },
            events: wanted.pd.device().events.clone(),
        };
        made = Some((memory, parts, user_index));
        Ok((device, life(0, user_index)))
    })?;
    let Some((memory, parts, user_index)) = made else {
        return Err(Error::UnknownQp { qpn });
    };
    // SAFETY: the queue pair is dropped before the device.
    let (send, recv) = unsafe {
        (
            soft::SendDoorbell::new(hca, ctx),
            soft::RecvDoorbell::new(hca, ctx, qpn, parts.record),
        )
    };
    let (send, recv) = (Provider::Soft(send), Provider::Soft(recv));
    // SAFETY: these are the only queues on the rings and ledgers; the device accesses the rings as the
    // doorbells require.
    let Some((sq, rq)) = (unsafe { wanted.queues::<T>(&parts, send, recv) }) else {
        // `check` rejects sizes that do not fit.
        hca.destroy_qp(qpn);
        return Err(Error::UnknownQp { qpn });
    };
    Ok(Made {
        qpn,
        memory,
        user_index,
        sq,
        rq,
    })
}
