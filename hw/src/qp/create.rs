//! Creating queue pairs.

#[cfg(feature = "mlx5")]
mod mlx5;

use super::memory::{Borrowed, Sizes};
use super::{Qp, QpInit, QpMemory, QpRecvQueue, QpSendQueue, QpTransport};
use crate::cq::{Cq, CqShared, Cqs, Kept};
use crate::device::Device;
use crate::error::Error;
use crate::event::Element;
use crate::pd::Pd;
use crate::provider::{Provider, RecvDoorbell, SendDoorbell};
use crate::recorder::Notes;
use crate::soft::{self, CqCtx, Life, QpParts, RecvParts, Running};
use crate::srq::{Srq, SrqShared};
#[cfg(feature = "verbs")]
use crate::verbs;
use bellwire_core::queue::{Attach, RecvQueue, SendQueue, SendQueueInit, SrqUser, UserIndex};
use bellwire_core::wqe::Rc;
use std::sync::Arc;

impl Pd {
    /// Creates a reliable connection's queue pair in RESET.
    ///
    /// # Errors
    /// A capability that the device does not have; completion queues of another context, or without
    /// room for everything that can be in flight; no number left.
    pub fn create_qp<'a>(&self, cqs: impl Into<Cqs<'a>>, init: &QpInit) -> Result<Qp, Error> {
        self.create_qp_of::<Rc>(cqs, init)
    }

    /// Creates a queue pair of transport `T` in RESET. An XRC initiator completes on the first of
    /// two completion queues.
    ///
    /// # Errors
    /// As [`create_qp`](Self::create_qp).
    pub fn create_qp_of<'a, T: QpTransport>(
        &self,
        cqs: impl Into<Cqs<'a>>,
        init: &QpInit,
    ) -> Result<Qp<T>, Error> {
        Qp::create(self, cqs.into(), init, None)
    }

    /// Creates a queue pair that receives from a shared receive queue, whose receives then complete
    /// on the queue pair's completion queue.
    ///
    /// # Errors
    /// As [`create_qp`](Self::create_qp); a shared receive queue of another protection domain, or
    /// one for XRC.
    pub fn create_qp_on_srq<'a, T: QpTransport>(
        &self,
        cqs: impl Into<Cqs<'a>>,
        srq: &Srq,
        init: &QpInit,
    ) -> Result<Qp<T>, Error> {
        Qp::create(self, cqs.into(), init, Some(srq))
    }
}

impl<T: QpTransport> Qp<T> {
    fn create(pd: &Pd, mut cqs: Cqs<'_>, init: &QpInit, srq: Option<&Srq>) -> Result<Self, Error> {
        init.check::<T>(pd.device())?;
        check_context(pd.device(), &cqs)?;
        let srq = srq.map(|srq| srq.shared_with(pd)).transpose()?;
        let shared = match &cqs {
            Cqs::Shared(cq) => (cq.shared().clone(), cq.shared().clone()),
            Cqs::Split(send, recv) => (send.shared().clone(), recv.shared().clone()),
        };
        let sizes = init.sizes::<T>(T::RECEIVES && srq.is_none());
        let parts = Wanted {
            pd,
            init,
            sizes,
            cqs: &mut cqs,
            shared: &shared,
            srq: srq.as_ref(),
        };
        let Made {
            qpn,
            memory,
            user_index,
            sq,
            mut rq,
        } = match &pd.device().hca {
            Provider::Soft(hca) => parts.soft(hca)?,
            #[cfg(feature = "mlx5")]
            Provider::Verbs(context) if context.drives_rings() => parts.mlx5(context)?,
            #[cfg(feature = "verbs")]
            Provider::Verbs(context) => parts.verbs(context)?,
        };
        if !T::RECEIVES || srq.is_some() {
            rq.set_absent();
        }
        pd.device().events.admit(Element::Qp(qpn));
        Ok(Qp {
            sq,
            rq,
            qpn,
            init: *init,
            user_index,
            memory,
            cqs: shared,
            srq,
            destroyed: false,
            pd: pd.clone(),
            notes: Notes::default(),
        })
    }
}

/// What a queue pair is to be made of.
struct Wanted<'a, 'c> {
    pd: &'a Pd,
    init: &'a QpInit,
    sizes: Sizes,
    cqs: &'a mut Cqs<'c>,
    shared: &'a (Arc<CqShared>, Arc<CqShared>),
    srq: Option<&'a Arc<SrqShared>>,
}

/// What it was made of.
struct Made<T: QpTransport> {
    qpn: u32,
    memory: Arc<QpMemory>,
    user_index: (UserIndex, UserIndex),
    sq: QpSendQueue<T>,
    rq: QpRecvQueue,
}

/// The memory of a queue pair, its parts, and how completions name both queues.
type Attached = (Arc<QpMemory>, Borrowed, (UserIndex, UserIndex));

impl Wanted<'_, '_> {
    fn too_large(&self) -> Error {
        Error::TooLarge {
            what: "size of a queue",
            given: u64::from(self.sizes.send_blocks) + u64::from(self.sizes.recv_count),
            max: 1 << 16,
        }
    }

    /// The rings and ledgers of the queue pair of this number, attached to its completion queues.
    fn attached<T: QpTransport>(&mut self, qpn: u32) -> Result<Attached, Error> {
        let memory = QpMemory::new(self.sizes, qpn).ok_or_else(|| self.too_large())?;
        // SAFETY: the queue pair and its completion queues keep the memory.
        let parts = unsafe { memory.parts() }.ok_or_else(|| self.too_large())?;
        let user_index = attach::<T>(self.cqs, &memory, &parts, self.srq, self.init.reserve_cq)?;
        Ok((memory, parts, user_index))
    }

    /// The queues.
    ///
    /// # Safety
    /// The only ones on the rings and ledgers; the device follows the doorbells' rules, and the queue
    /// pair outlives both.
    unsafe fn queues<T: QpTransport>(
        &self,
        parts: &Borrowed,
        send: SendDoorbell,
        recv: RecvDoorbell,
    ) -> Option<(QpSendQueue<T>, QpRecvQueue)> {
        // SAFETY: the caller's promise.
        unsafe {
            let sq = SendQueue::new(SendQueueInit {
                ring: parts.send_ring,
                ledger: parts.send_ledger,
                doorbell: send,
                max_sge: self.init.max_send_sge,
                max_inline: self.init.max_inline_data,
                signal_all: self.init.sq_sig_all,
            });
            let rq = RecvQueue::new(parts.recv_ring, parts.recv_ledger, recv);
            let (mut sq, rq) = sq.zip(rq)?;
            if self.init.suppress_flush {
                sq.suppress_flush();
            }
            Some((sq, rq))
        }
    }

    /// Of a software HCA.
    fn soft<T: QpTransport>(mut self, hca: &Running) -> Result<Made<T>, Error> {
        let (send_cq, cq) = (self.shared.0.ctx.soft()?, self.shared.1.ctx.soft()?);
        // SAFETY: the queue pair keeps them until it is destroyed.
        let (send_cq, cq): (&'static CqCtx, &'static CqCtx) =
            unsafe { (&*std::ptr::from_ref(send_cq), &*std::ptr::from_ref(cq)) };
        let mut made = None;
        let (qpn, ctx) = hca.create_qp(|qpn| {
            let (memory, parts, user_index) = self.attached::<T>(qpn)?;
            let device = QpParts {
                transport: T::TYPE,
                pd: self.pd.id(),
                send: Some((parts.send_ring, send_cq)),
                recv: match self.srq {
                    _ if !T::RECEIVES => RecvParts::None,
                    Some(srq) => RecvParts::Shared {
                        // SAFETY: as above.
                        srq: unsafe { srq.ctx()? },
                        cq,
                    },
                    None => RecvParts::Own {
                        ring: parts.recv_ring,
                        record: parts.record,
                        cq,
                    },
                },
                events: self.pd.device().events.clone(),
            };
            made = Some((memory, parts, user_index));
            Ok((device, life(0, user_index)))
        })?;
        let Some((memory, parts, user_index)) = made else {
            return Err(Error::UnknownQp { qpn });
        };
        // SAFETY: the queue pair goes before the device.
        let (send, recv) = unsafe {
            (
                soft::SendDoorbell::new(hca, ctx, qpn),
                soft::RecvDoorbell::new(hca, ctx, qpn, parts.record),
            )
        };
        let (send, recv) = (SendDoorbell::Soft(send), RecvDoorbell::Soft(recv));
        // SAFETY: the only queues on the rings and ledgers; the device follows the doorbells' rules.
        let Some((sq, rq)) = (unsafe { self.queues::<T>(&parts, send, recv) }) else {
            // `check` admits no sizes that do not fit.
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

    /// Of a device of libibverbs.
    #[cfg(feature = "verbs")]
    fn verbs<T: QpTransport>(mut self, context: &verbs::Context) -> Result<Made<T>, Error> {
        let (send_cq, cq) = (self.shared.0.ctx.verbs()?, self.shared.1.ctx.verbs()?);
        let config = verbs::QpConfig {
            transport: T::TYPE,
            // Each entry of the rings may be a request; and the last one of a drain.
            sends: self.sizes.send_blocks,
            spare: 1,
            plain: false,
            receives: self.sizes.recv_count,
            max_send_sge: self.init.max_send_sge,
            max_recv_sge: self.init.max_recv_sge,
            max_inline_data: self.init.max_inline_data,
        };
        let srq = self.srq.map(|srq| srq.verbs()).transpose()?.cloned();
        // SAFETY: the queue pair keeps its completion queues until it is destroyed.
        let qp = unsafe {
            let cqs = [&*std::ptr::from_ref(send_cq), &*std::ptr::from_ref(cq)];
            verbs::Qp::new(self.pd.verbs()?, verbs::Way::Verbs(cqs), srq, &config)?
        };
        let qpn = qp.qp_num();
        let made = self
            .attached::<T>(qpn)
            .and_then(|(memory, parts, user_index)| {
                // SAFETY: the queue pair keeps the rings.
                let (send, recv) = unsafe {
                    (
                        verbs::SendDoorbell::new(qp.clone(), parts.send_ring),
                        verbs::RecvDoorbell::new(qp.clone(), parts.recv_ring),
                    )
                };
                let (send, recv) = (SendDoorbell::Verbs(send), RecvDoorbell::Verbs(recv));
                // SAFETY: the only queues on the rings and ledgers; the doorbells follow the rules.
                let queues = unsafe { self.queues::<T>(&parts, send, recv) };
                let (sq, rq) = queues.ok_or_else(|| self.too_large())?;
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
}

fn check_context(device: &Device, cqs: &Cqs<'_>) -> Result<(), Error> {
    let ours = |cq: &Cq| device.is_same_context(cq.device());
    let all = match cqs {
        Cqs::Shared(cq) => ours(cq),
        Cqs::Split(send, recv) => ours(send) && ours(recv),
    };
    all.then_some(()).ok_or(Error::Foreign {
        what: "completion queue",
    })
}

/// Attaches both queues, or none.
pub(super) fn attach<T: QpTransport>(
    cqs: &mut Cqs<'_>,
    memory: &Arc<QpMemory>,
    parts: &Borrowed,
    srq: Option<&Arc<SrqShared>>,
    reserve: bool,
) -> Result<(UserIndex, UserIndex), Error> {
    let send = parts.send(T::TYPE);
    let recv = match srq {
        _ if !T::RECEIVES => Attach::default(),
        Some(srq) => Attach {
            // SAFETY: the completion queue keeps the memory.
            srq: Some((
                unsafe { srq.ledger() },
                SrqUser::Qp(parts.send_ledger.qp_num()),
            )),
            ..Attach::default()
        },
        None => parts.recv(),
    };
    let kept =
        |srq: Option<&Arc<SrqShared>>| Kept::Qp(memory.clone(), srq.map(|srq| srq.memory.clone()));
    // SAFETY: the memory holds what is attached, and each ledger goes to one completion queue.
    unsafe {
        match cqs {
            Cqs::Shared(cq) => {
                let both = Attach {
                    send: send.send,
                    ..recv
                };
                let index = cq.attach(kept(srq), both, reserve)?;
                Ok((index, index))
            }
            Cqs::Split(first, second) => {
                let sends = first.attach(kept(None), send, reserve)?;
                if !T::RECEIVES {
                    return Ok((sends, sends));
                }
                match second.attach(kept(srq), recv, reserve) {
                    Ok(receives) => Ok((sends, receives)),
                    Err(error) => {
                        first.detach(sends, |_, _| ());
                        Err(error.into())
                    }
                }
            }
        }
    }
}

pub(super) fn life(send_start: u32, (send, recv): (UserIndex, UserIndex)) -> Life {
    Life {
        send_start,
        send_user_index: send.get(),
        recv_user_index: recv.get(),
    }
}
