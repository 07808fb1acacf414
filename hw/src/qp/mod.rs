//! Queue pairs.

mod attr;
mod datagram;
mod memory;
mod transport;
mod xrc;

pub(crate) use attr::check_limits;
pub use attr::{ConnectAttr, Endpoint, QpInit};
pub(crate) use memory::{QpMemory, Side};
#[cfg(feature = "verbs")]
pub(crate) use transport::required;
pub use transport::{Binds, Connected, QpTransport};
pub use xrc::XrcTarget;

use crate::cq::{Cq, CqShared, Cqs, Kept};
use crate::device::Device;
use crate::error::Error;
use crate::event::Element;
use crate::pd::Pd;
use crate::provider::{Provider, RecvDoorbell, SendDoorbell};
use crate::recorder::{Notes, What};
use crate::soft::{self, CqCtx, Life, QpParts, RecvParts, Running};
use crate::srq::{Srq, SrqShared};
#[cfg(feature = "verbs")]
use crate::verbs;
use bellwire_core::qp::{Post, QpAttr, QpAttrMask, QpCap, QpState, behaviour};
use bellwire_core::queue::{
    Attach, RecvQueue, SendQueue, SendQueueInit, SrqUser, Unfinished, UserIndex,
};
use bellwire_core::slab::Block;
use bellwire_core::wqe::Rc;
use memory::{Borrowed, Sizes};
use std::sync::Arc;

/// The send queue of a [`Qp`].
pub type QpSendQueue<T> = SendQueue<'static, T, SendDoorbell>;

/// The send queue of a reliable connection's [`Qp`].
pub type RcSendQueue = QpSendQueue<Rc>;

/// The receive queue of a [`Qp`].
pub type QpRecvQueue = RecvQueue<'static, RecvDoorbell>;

/// A queue pair on transport `T`: [`Rc`], [`Uc`](bellwire_core::wqe::Uc),
/// [`Ud`](bellwire_core::wqe::Ud) or the initiator of [`Xrc`](bellwire_core::wqe::Xrc). One owner at
/// a time; [`split`](Self::split) gives its halves to two threads.
///
/// Dropping it flushes what is in flight, rung or not: it is still told by the completion queues.
/// Not told are unsignalled requests that were executed and that no later request completed. Its
/// asynchronous events that were not got are removed; the drop waits until those that were got are
/// acknowledged.
#[derive(Debug)]
pub struct Qp<T: QpTransport = Rc> {
    sq: QpSendQueue<T>,
    rq: QpRecvQueue,
    qpn: u32,
    init: QpInit,
    user_index: (UserIndex, UserIndex),
    memory: Arc<QpMemory>,
    cqs: (Arc<CqShared>, Arc<CqShared>),
    srq: Option<Arc<SrqShared>>,
    /// By [`end`](Self::end).
    destroyed: bool,
    pd: Pd,
    pub(crate) notes: Notes,
}

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

/// A request that was not told when its queue pair's life ended.
#[derive(Debug)]
pub(crate) enum Untold {
    /// Of the shared receive queue: completed, and not polled.
    Shared(u64, Option<Block<'static>>),
    /// Of the send queue.
    Send(Unfinished<'static>),
    /// Of the queue pair's own receive queue.
    Recv(Unfinished<'static>),
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
            sq.zip(rq)
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
            sends: self.sizes.send_blocks,
            receives: self.sizes.recv_count,
            max_send_sge: self.init.max_send_sge,
            max_recv_sge: self.init.max_recv_sge,
            max_inline_data: self.init.max_inline_data,
        };
        let srq = self.srq.map(|srq| srq.verbs()).transpose()?.cloned();
        // SAFETY: the queue pair keeps its completion queues until it is destroyed.
        let qp = unsafe {
            let cqs = [&*std::ptr::from_ref(send_cq), &*std::ptr::from_ref(cq)];
            verbs::Qp::new(self.pd.verbs()?, cqs, srq, &config)?
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
fn attach<T: QpTransport>(
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

fn life(send_start: u32, (send, recv): (UserIndex, UserIndex)) -> Life {
    Life {
        send_start,
        send_user_index: send.get(),
        recv_user_index: recv.get(),
    }
}

impl<T: QpTransport> Qp<T> {
    /// Its number, which the peer connects to.
    pub fn qp_num(&self) -> u32 {
        self.qpn
    }

    /// What to bring to the peer: by the first port, and the GID that the device prefers.
    pub fn endpoint(&self) -> Endpoint {
        self.pd.device().endpoint(self.qpn, 1, None)
    }

    /// What to bring to a peer that is connected with in this way.
    pub fn endpoint_for(&self, connect: &ConnectAttr) -> Endpoint {
        let device = self.pd.device();
        device.endpoint(self.qpn, connect.port_num, connect.gid_index)
    }

    /// The protection domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// The send queue: post, then ring.
    #[inline(always)]
    pub fn sq(&mut self) -> &mut QpSendQueue<T> {
        &mut self.sq
    }

    /// The receive queue: post, then ring. Of a queue pair that has none of its own (XRC, or with a
    /// shared one) it refuses every post.
    #[inline(always)]
    pub fn rq(&mut self) -> &mut QpRecvQueue {
        &mut self.rq
    }

    /// Both queues, to be used by two threads.
    pub fn split(&mut self) -> (&mut QpSendQueue<T>, &mut QpRecvQueue) {
        (&mut self.sq, &mut self.rq)
    }

    /// State and attributes, as the device has them.
    pub fn query(&self) -> QpAttr {
        let mut attr = self.pd.device().hca.query_qp(self.qpn).unwrap_or_default();
        attr.cap = QpCap {
            max_send_wr: self.init.max_send_wr,
            max_recv_wr: self.init.max_recv_wr,
            max_send_sge: self.init.max_send_sge,
            max_recv_sge: self.init.max_recv_sge,
            max_inline_data: self.init.max_inline_data,
        };
        attr
    }

    /// The device's state of it. A failed request takes it to ERR.
    pub fn state(&self) -> QpState {
        self.query().qp_state
    }

    /// Changes state and attributes (`ibv_modify_qp`). Going to RESET is [`reset`](Self::reset).
    ///
    /// # Errors
    /// [`Error::Modify`] names what is missing, not allowed or out of range.
    pub fn modify(&mut self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Error> {
        if mask.contains(QpAttrMask::STATE) && attr.qp_state == QpState::Reset {
            return Err(Error::ResetByModify);
        }
        let changed = self.pd.device().hca.modify_qp(self.qpn, attr, mask);
        self.notes.push(What::of(&changed));
        let state = changed?;
        let behaviour = behaviour(state);
        self.sq.set_postable(behaviour.post_send == Post::Allowed);
        self.rq.set_postable(behaviour.post_recv == Post::Allowed);
        Ok(())
    }

    /// From RESET to INIT: receives may be posted from here on, and should be before the peer
    /// connects.
    ///
    /// # Errors
    /// As [`modify`](Self::modify).
    pub fn init(&mut self, connect: &ConnectAttr) -> Result<(), Error> {
        self.step(QpState::Reset, &connect.init())
    }

    /// Goes on from a state with the attributes that this requires.
    fn step(&mut self, from: QpState, attr: &QpAttr) -> Result<(), Error> {
        self.modify(attr, transport::required(T::TYPE, from, attr.qp_state))
    }

    /// To the error state: everything in flight is flushed, and told.
    ///
    /// # Errors
    /// As [`modify`](Self::modify).
    pub fn to_error(&mut self) -> Result<(), Error> {
        let attr = QpAttr {
            qp_state: QpState::Err,
            ..QpAttr::default()
        };
        self.modify(&attr, QpAttrMask::STATE)
    }

    /// Whether these are the completion queues that it was created with.
    pub(crate) fn check_cqs(&self, cqs: &Cqs<'_>) -> Result<(), Error> {
        let (first, second) = match cqs {
            Cqs::Shared(cq) => (cq.shared(), cq.shared()),
            Cqs::Split(send, recv) => (send.shared(), recv.shared()),
        };
        let ours = Arc::ptr_eq(first, &self.cqs.0) && Arc::ptr_eq(second, &self.cqs.1);
        ours.then_some(()).ok_or(Error::Foreign {
            what: "completion queue",
        })
    }

    /// Whether its receives come from a shared receive queue.
    pub(crate) fn receives_from_srq(&self) -> bool {
        self.srq.is_some()
    }

    /// How completions of its sends and receives name it, in this life.
    pub(crate) fn user_indices(&self) -> (UserIndex, UserIndex) {
        self.user_index
    }

    /// To RESET, from any state: clears both queues and their completions, as the verbs have it.
    /// What was not told yet is told here: `each` gets the identifier and the buffer of every such
    /// request, sends first, oldest first. What the peer has seen of them is not known.
    ///
    /// `cqs` are the completion queues that the queue pair was created with.
    ///
    /// # Errors
    /// [`Error::Foreign`] for other completion queues, [`Error::Attach`] when another queue pair took
    /// the room meanwhile that this one had not reserved; [`Error::DeviceFatal`] on a broken device,
    /// which has told everything by flushing it.
    pub fn reset<'a>(
        &mut self,
        cqs: impl Into<Cqs<'a>>,
        mut each: impl FnMut(u64, Option<Block<'static>>),
    ) -> Result<(), Error> {
        self.reset_with(cqs, |untold| match untold {
            Untold::Shared(wr_id, block) => each(wr_id, block),
            Untold::Send(request) | Untold::Recv(request) => each(request.wr_id, request.block),
        })
    }

    /// As [`reset`](Self::reset), and says where each request stands.
    pub(crate) fn reset_with<'a>(
        &mut self,
        cqs: impl Into<Cqs<'a>>,
        mut each: impl FnMut(Untold),
    ) -> Result<(), Error> {
        let mut cqs = cqs.into();
        self.check_cqs(&cqs)?;
        let attr = QpAttr::default();
        let hca = &self.pd.device().hca;
        let changed = hca.modify_qp(self.qpn, &attr, QpAttrMask::STATE);
        self.notes.push(What::of(&changed));
        changed?;
        let mut shared = |wr_id, block| each(Untold::Shared(wr_id, block));
        match &mut cqs {
            Cqs::Shared(cq) => cq.detach(self.user_index.0, &mut shared),
            Cqs::Split(send, recv) => {
                send.detach(self.user_index.0, &mut shared);
                if T::RECEIVES {
                    recv.detach(self.user_index.1, &mut shared);
                }
            }
        }
        // SAFETY: in RESET the device has stopped; the completion queues are here, exclusively, and
        // have no entry of ours any more.
        unsafe {
            self.sq.clear(|request| each(Untold::Send(request)));
            self.rq.clear(|request| each(Untold::Recv(request)));
        }
        // SAFETY: the memory is kept as before.
        let parts = unsafe { self.memory.parts() };
        let Some(parts) = parts else {
            return Err(Error::UnknownQp { qpn: self.qpn });
        };
        self.user_index = attach::<T>(
            &mut cqs,
            &self.memory,
            &parts,
            self.srq.as_ref(),
            self.init.reserve_cq,
        )?;
        hca.restart(self.qpn, life(self.sq.counter(), self.user_index));
        Ok(())
    }
}

impl<T: QpTransport> Qp<T> {
    /// Destroys it, and tells what was not told, sends first, oldest first; their entries can still be
    /// read. `cq` is the completion queue that it was created with, for both directions; what it holds
    /// of the queue pair's completions is gone.
    pub(crate) fn end(&mut self, cq: &mut Cq, mut each: impl FnMut(Untold)) {
        self.destroy();
        cq.detach(self.user_index.0, |wr_id, block| {
            each(Untold::Shared(wr_id, block));
        });
        // SAFETY: the queue pair is destroyed; the completion queue is here, exclusively, and has no
        // entry of ours any more.
        unsafe {
            self.sq.clear(|request| each(Untold::Send(request)));
            self.rq.abandon(|request| each(Untold::Recv(request)));
        }
    }

    /// Takes it away from the device, after it has flushed what is in flight.
    fn destroy(&mut self) {
        // What is staged and not rung was taken, so it is told. Any state has a way to ERR.
        if self.to_error().is_ok() {
            self.sq.ring();
            self.rq.ring();
        }
        self.pd.device().hca.destroy_qp(self.qpn);
        self.destroyed = true;
    }
}

impl<T: QpTransport> Drop for Qp<T> {
    fn drop(&mut self) {
        if !self.destroyed {
            self.destroy();
        }
        let (send, recv) = &self.cqs;
        // Nobody else sets it.
        let _ = self
            .memory
            .end
            .set((send.ctx.produced(), recv.ctx.produced()));
        self.pd.device().events.retire(Element::Qp(self.qpn));
    }
}
