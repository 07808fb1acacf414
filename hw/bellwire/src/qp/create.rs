//! Creation of queue pairs.

use super::memory::{Borrowed, Sizes};
use super::{OwnRecvQueue, OwnSendQueue, Qp, QpInit, QpMemory, QpTransport};
use crate::cq::{Cq, CqShared, Cqs, Kept};
use crate::device::Device;
use crate::error::Error;
use crate::event::Element;
use crate::pd::Pd;
use crate::pinned::headroom;
use crate::provider::{OnCq, RecvDoorbell, SendDoorbell};
use crate::recorder::Notes;
use crate::srq::{Srq, SrqShared};
use bellwire_core::queue::{Attach, RecvQueue, SendQueue, SendQueueInit, SrqUser, UserIndex};
use bellwire_core::wqe::Rc;
use bellwire_provider::life::Life;
use bellwire_provider::psn::random_psn;
use std::sync::Arc;

impl Pd {
    /// Creates an RC queue pair in RESET.
    ///
    /// # Errors
    /// An attribute exceeds the device's limits; completion queues belong to another context, or lack room
    /// for everything that can be in flight; no number is left.
    pub fn create_qp<'a>(&self, cqs: impl Into<Cqs<'a>>, init: &QpInit) -> Result<Qp, Error> {
        self.create_qp_of::<Rc>(cqs, init)
    }

    /// Creates a queue pair of transport `T` in RESET. The sends of an XRC initiator complete on the first of
    /// two completion queues.
    ///
    /// # Errors
    /// Those of [`create_qp`](Self::create_qp).
    pub fn create_qp_of<'a, T: QpTransport>(
        &self,
        cqs: impl Into<Cqs<'a>>,
        init: &QpInit,
    ) -> Result<Qp<T>, Error> {
        headroom()?;
        Qp::create(self, cqs.into(), init, None)
    }

    /// Creates a queue pair that receives from a shared receive queue; these receives complete on the queue
    /// pair's completion queue. `max_recv_wr` and `max_recv_sge` are ignored.
    ///
    /// # Errors
    /// Those of [`create_qp`](Self::create_qp); the shared receive queue belongs to another protection
    /// domain, or is for XRC.
    pub fn create_qp_on_srq<'a, T: QpTransport>(
        &self,
        cqs: impl Into<Cqs<'a>>,
        srq: &Srq,
        init: &QpInit,
    ) -> Result<Qp<T>, Error> {
        headroom()?;
        Qp::create(self, cqs.into(), init, Some(srq))
    }
}

impl<T: QpTransport> Qp<T> {
    fn create(pd: &Pd, mut cqs: Cqs<'_>, init: &QpInit, srq: Option<&Srq>) -> Result<Self, Error> {
        let own = T::RECEIVES && srq.is_none();
        let init = &match own {
            true => *init,
            false => init.without_receives(),
        };
        init.check::<T>(pd.device())?;
        check_context(pd.device(), &cqs)?;
        let srq = srq.map(|srq| srq.shared_with(pd)).transpose()?;
        let shared = match &cqs {
            Cqs::Shared(cq) => (cq.shared().clone(), cq.shared().clone()),
            Cqs::Split(send, recv) => (send.shared().clone(), recv.shared().clone()),
        };
        let sizes = init.sizes::<T>(own);
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
        } = pd.device().hca.create_qp(parts)?;
        if !own {
            rq.set_absent();
        }
        let qp = Qp {
            sq,
            rq,
            qpn,
            init: *init,
            user_index,
            memory,
            cqs: shared,
            srq,
            destroyed: false,
            udp_sport: None,
            psn: random_psn(),
            pd: pd.clone(),
            notes: Notes::default(),
        };
        pd.device().events.admit(Element::Qp(qpn))?;
        Ok(qp)
    }
}

/// The parts and attributes of a queue pair to be created.
pub(crate) struct Wanted<'a, 'c> {
    pub pd: &'a Pd,
    pub init: &'a QpInit,
    pub sizes: Sizes,
    pub cqs: &'a mut Cqs<'c>,
    pub shared: &'a (Arc<CqShared>, Arc<CqShared>),
    pub srq: Option<&'a Arc<SrqShared>>,
}

/// The parts of a queue pair that was created.
pub(crate) struct Made<T: QpTransport> {
    pub qpn: u32,
    pub memory: Arc<QpMemory>,
    pub user_index: (UserIndex, UserIndex),
    pub sq: OwnSendQueue<T>,
    pub rq: OwnRecvQueue,
}

/// The memory of a queue pair, its parts, and the user indices of both queues.
type Attached = (Arc<QpMemory>, Borrowed, (UserIndex, UserIndex));

impl Wanted<'_, '_> {
    pub fn too_large(&self) -> Error {
        Error::TooLarge {
            what: "size of a queue",
            given: u64::from(self.sizes.send_blocks) + u64::from(self.sizes.recv_count),
            max: 1 << 16,
        }
    }

    /// Allocates the rings and ledgers of the queue pair with this number, and attaches them to its
    /// completion queues.
    pub fn attached<T: QpTransport>(&mut self, qpn: u32) -> Result<Attached, Error> {
        let memory = QpMemory::new(self.sizes, qpn)?.ok_or_else(|| self.too_large())?;
        // SAFETY: the queue pair and its completion queues keep the memory.
        let parts = unsafe { memory.parts() }.ok_or_else(|| self.too_large())?;
        let user_index = attach::<T>(self.cqs, &memory, &parts, self.srq, self.init.reserve_cq)?;
        Ok((memory, parts, user_index))
    }

    /// Creates the queues.
    ///
    /// # Safety
    /// They are the only ones on the rings and ledgers; the device accesses the rings as the doorbells
    /// require, and the memory outlives both queues.
    pub unsafe fn queues<T: QpTransport>(
        &self,
        parts: &Borrowed,
        send: SendDoorbell,
        recv: RecvDoorbell,
    ) -> Option<(OwnSendQueue<T>, OwnRecvQueue)> {
        // SAFETY: the caller guarantees that these are the only queues on the rings and ledgers, and that the
        // memory outlives them.
        unsafe {
            let sq = SendQueue::new(SendQueueInit {
                ring: parts.send_ring,
                ledger: parts.send_ledger,
                doorbell: OnCq {
                    by: send,
                    cq: self.shared.0.clone(),
                },
                max_sge: self.init.max_send_sge,
                max_inline: self.init.max_inline_data,
                signal_all: self.init.sq_sig_all,
            });
            let recv = OnCq {
                by: recv,
                cq: self.shared.1.clone(),
            };
            let rq = RecvQueue::new(parts.recv_ring, parts.recv_ledger, recv);
            let (mut sq, rq) = sq.zip(rq)?;
            if self.init.suppress_flush {
                sq.suppress_flush();
            }
            Some((sq, rq))
        }
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

/// Attaches both queues, or neither.
pub(crate) fn attach<T: QpTransport>(
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
            // SAFETY: the completion queue keeps the memory of the shared receive queue.
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
    // SAFETY: the memory, which is kept, holds the ledgers, and each ledger is attached to one completion
    // queue.
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
                        // The device does not use the queues yet either.
                        first.detach(sends, |_, _| ());
                        Err(error)
                    }
                }
            }
        }
    }
}

pub(crate) fn life(send_start: u32, (send, recv): (UserIndex, UserIndex)) -> Life {
    Life {
        send_start,
        send_user_index: send.get(),
        recv_user_index: recv.get(),
    }
}
