//! Queue pairs.

mod attr;
mod create;
mod datagram;
mod memory;
mod transport;
mod xrc;

pub(crate) use attr::check_limits;
pub use attr::{ConnectAttr, Endpoint, QpInit};
pub(crate) use memory::{QpMemory, Side};
pub(crate) use transport::required;
pub use transport::{Binds, Connected, QpTransport};
pub(crate) use xrc::SoftTarget;
pub use xrc::XrcTarget;

use crate::cq::{Cq, CqShared, Cqs};
use crate::error::Error;
use crate::event::Element;
#[cfg(feature = "mlx5")]
use crate::mlx5::drain;
use crate::pd::Pd;
use crate::provider::{ProviderKind, RecvDoorbell, SendDoorbell};
use crate::recorder::{Notes, What};
use crate::srq::SrqShared;
use bellwire_core::qp::{Post, QpAttr, QpAttrMask, QpCap, QpState, behaviour};
use bellwire_core::queue::{RecvQueue, SendQueue, Unfinished, UserIndex};
use bellwire_core::slab::Block;
use bellwire_core::wqe::Rc;
use create::{attach, life};
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
        // Any state has a way to ERR; a device that does not take it is not asked.
        let refused = self.to_error().is_err();
        if refused {
            self.pd.device().hca.stop_qp(self.qpn);
        }
        // What is staged and not rung was taken, so it is told. On the device's own rings nothing else
        // would keep it from being executed.
        if !refused || self.pd.device().hca.kind() != ProviderKind::Mlx5 {
            self.sq.ring();
            #[cfg(feature = "mlx5")]
            self.drain_sends();
            self.rq.ring();
            #[cfg(feature = "mlx5")]
            self.drain_receives();
        }
        self.pd.device().hca.destroy_qp(self.qpn);
        self.destroyed = true;
    }

    /// Waits, on the device's own rings, until every send that was posted has completed. In ERR.
    #[cfg(feature = "mlx5")]
    fn drain_sends(&mut self) {
        if let Ok(cq) = self.cqs.0.ctx.mlx5()
            && self.sq.in_flight() != 0
        {
            let mark = self.sq.mark();
            drain::sends(cq, self.qpn, mark);
        }
    }

    /// The same of receives.
    #[cfg(feature = "mlx5")]
    fn drain_receives(&self) {
        if let Ok(cq) = self.cqs.1.ctx.mlx5()
            && self.srq.is_none()
            && T::RECEIVES
        {
            drain::receives(cq, self.qpn, || self.rq.in_flight());
        }
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
