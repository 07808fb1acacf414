//! Queue pairs.

mod attr;
mod create;
mod datagram;
mod memory;
mod path;
mod queues;
mod transport;
mod xrc;

pub use attr::{ConnectAttr, QpInit};
pub use bellwire_core::link::Endpoint;
pub(crate) use memory::{QpMemory, Side};
pub use path::PathAttr;
pub(crate) use path::{check as check_path, on as path_on};
pub(crate) use queues::{OwnRecvQueue, OwnSendQueue};
pub use queues::{QpRecvQueue, QpSendQueue, RcSendQueue};
pub use transport::{Binds, Connected, QpTransport};
pub use xrc::XrcTarget;

use crate::cq::{Cq, CqShared, Cqs};
use crate::error::Error;
use crate::event::Element;
use crate::mlx5::drain;
use crate::monitor::QpMonitor;
use crate::panics::Panics;
use crate::pd::Pd;
use crate::recorder::{Notes, What};
use crate::srq::SrqShared;
use bellwire_core::qp::{Post, QpAttr, QpAttrMask, QpCap, QpState, behaviour};
use bellwire_core::queue::{Tally, Unfinished, UserIndex};
use bellwire_core::slab::Block;
use bellwire_core::wqe::Rc;
use bellwire_core::wr::WrOpcode;
use bellwire_provider::psn::random_psn;
use bellwire_provider::source::ProviderKind;
pub(crate) use create::{Made, Wanted, attach, life};
use std::sync::Arc;

/// A queue pair of transport `T`: [`Rc`], [`Uc`](bellwire_core::wqe::Uc), [`Ud`](bellwire_core::wqe::Ud), or
/// the initiator of [`Xrc`](bellwire_core::wqe::Xrc). One owner at a time; [`split`](Self::split) lends its
/// send and receive queues to two threads.
///
/// Dropping it flushes the requests in flight, rung or not: the completion queues still report them.
/// Unsignalled requests that were executed, and that no later completion retires, are not reported.
/// Asynchronous events of it that were not got are removed; the drop waits until events that were taken are
/// acknowledged.
#[derive(Debug)]
pub struct Qp<T: QpTransport = Rc> {
    sq: OwnSendQueue<T>,
    rq: OwnRecvQueue,
    qpn: u32,
    init: QpInit,
    user_index: (UserIndex, UserIndex),
    memory: Arc<QpMemory>,
    cqs: (Arc<CqShared>, Arc<CqShared>),
    srq: Option<Arc<SrqShared>>,
    /// By [`end`](Self::end), so that dropping it does not destroy it again.
    destroyed: bool,
    /// The UDP source port that was set in this life.
    udp_sport: Option<u16>,
    /// Of the first packet that it sends in this life.
    psn: u32,
    pd: Pd,
    pub(crate) notes: Notes,
}

/// A request that was not reported when its queue pair's life ended.
#[derive(Debug)]
pub(crate) enum Unreported {
    /// Of the shared receive queue: completed, and not polled.
    Shared(u64, Option<Block<'static>>),
    /// Of the send queue.
    Send(Unfinished<'static>),
    /// Of the queue pair's own receive queue.
    Recv(Unfinished<'static>),
}

impl<T: QpTransport> Qp<T> {
    /// The queue pair number, which the peer connects to.
    pub fn qp_num(&self) -> u32 {
        self.qpn
    }

    /// The endpoint to pass to the peer: by the first port, and the GID that the device prefers.
    ///
    /// Its PSN is that of the first packet of this life. It is random, and each [`reset`](Self::reset) draws
    /// another one: so a late packet of an earlier connection is not taken for one of the present connection.
    /// After a reset pass the endpoint to the peer again: with an old one the peer accepts nothing, and the
    /// requests posted here end with [`RetryExcErr`](bellwire_core::wr::WcStatus::RetryExcErr).
    pub fn endpoint(&self) -> Endpoint {
        self.with_psn(self.pd.device().endpoint(self.qpn, 1, None))
    }

    /// The endpoint to pass to the peer of a connection with these attributes, like
    /// [`endpoint`](Self::endpoint).
    pub fn endpoint_for(&self, connect: &ConnectAttr) -> Endpoint {
        let device = self.pd.device();
        self.with_psn(device.endpoint(self.qpn, connect.port_num, connect.gid_index))
    }

    fn with_psn(&self, endpoint: Endpoint) -> Endpoint {
        Endpoint {
            psn: self.psn,
            ..endpoint
        }
    }

    /// The protection domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// The send queue: post, then ring.
    #[inline(always)]
    pub fn sq(&mut self) -> QpSendQueue<'_, T> {
        QpSendQueue::new(&mut self.sq)
    }

    /// The receive queue: post, then ring. If the queue pair has none of its own (XRC, or with a shared
    /// receive queue), every post is refused.
    #[inline(always)]
    pub fn rq(&mut self) -> QpRecvQueue<'_> {
        QpRecvQueue::new(&mut self.rq)
    }

    /// Both queues, for two threads.
    #[inline(always)]
    pub fn split(&mut self) -> (QpSendQueue<'_, T>, QpRecvQueue<'_>) {
        let (sq, rq) = self.queues();
        (QpSendQueue::new(sq), QpRecvQueue::new(rq))
    }

    /// The queues themselves, which must not be moved.
    pub(crate) fn queues(&mut self) -> (&mut OwnSendQueue<T>, &mut OwnRecvQueue) {
        (&mut self.sq, &mut self.rq)
    }

    /// A monitor, by which any thread reads the queue pair's counters: see [`monitor`](crate::monitor). With the first
    /// one, requests are counted by operation.
    pub fn monitor(&mut self) -> QpMonitor {
        let tally = match self.memory.tally.get() {
            Some(tally) => tally.clone(),
            None => {
                let tally = Arc::default();
                self.count_into(&tally);
                tally
            }
        };
        let memory = Arc::downgrade(&self.memory);
        QpMonitor { tally, memory }
    }

    /// Brings what monitors read up to date: counts the requests and receives that were posted so far.
    pub fn count(&mut self) {
        self.sq.count();
        self.rq.count();
    }

    /// Counts requests and receives in `tally`, unless they are counted.
    pub(crate) fn count_into(&mut self, tally: &Arc<Tally>) {
        if self.memory.tally.set(tally.clone()).is_err() {
            return;
        }
        // SAFETY: the queue pair's memory keeps the tally, and outlives both queues.
        let tally: &'static Tally = unsafe { &*Arc::as_ptr(tally) };
        self.sq.count_into(tally);
        self.rq.count_into(tally);
    }

    /// The memory of its queues.
    pub(crate) fn memory(&self) -> &Arc<QpMemory> {
        &self.memory
    }

    /// Queries state and attributes (`ibv_query_qp`).
    pub fn query(&self) -> QpAttr {
        let mut attr = self.pd.device().hca.query_qp(self.qpn).unwrap_or_default();
        attr.cap = QpCap {
            max_send_wr: self.init.max_send_wr,
            max_recv_wr: self.init.max_recv_wr,
            max_send_sge: self.init.max_send_sge,
            max_recv_sge: self.init.max_recv_sge,
            max_inline_data: self.init.max_inline_data,
        };
        attr.udp_sport = self.udp_sport;
        attr
    }

    /// Whether the last bytes of a message of this operation are placed last. Then a program may poll for them in the
    /// memory that the message goes to: at the peer, or here for a READ.
    ///
    /// If not, only a completion says that all bytes are there: at the peer of a
    /// [`RdmaWriteWithImm`](bellwire_core::wqe::RdmaWriteWithImm) or a SEND, and here of a READ. Relaxed ordering, several
    /// paths and several adapters place bytes in any order. Of two messages, this says nothing.
    ///
    /// The software HCA places them last. A device of libibverbs says so by `ibv_query_qp_data_in_order`, which is not
    /// in rdma-core before 36: then the answer is `false`. The answer is that of the local device. A program asks the
    /// device at both ends.
    pub fn data_in_order(&self, operation: WrOpcode) -> bool {
        let hca = &self.pd.device().hca;
        hca.data_in_order(self.qpn, operation)
    }

    /// The state in the device. A failed request moves the queue pair to ERR.
    pub fn state(&self) -> QpState {
        self.query().qp_state
    }

    /// Changes state and attributes (`ibv_modify_qp`). To move it to RESET, call [`reset`](Self::reset). The
    /// [endpoint](Self::endpoint) has the `sq_psn` that was set last in this life.
    ///
    /// # Errors
    /// [`Error::Modify`] says which attribute is missing, not allowed, or out of range.
    pub fn modify(&mut self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Error> {
        if mask.contains(QpAttrMask::STATE) && attr.qp_state == QpState::Reset {
            return Err(Error::ResetByModify);
        }
        let changed = self.pd.device().hca.modify_qp(self.qpn, attr, mask);
        self.notes.push(What::of(&changed));
        let state = changed?;
        if mask.contains(QpAttrMask::SQ_PSN) {
            self.psn = attr.sq_psn;
        }
        let behaviour = behaviour(state);
        self.sq.set_postable(behaviour.post_send == Post::Allowed);
        self.rq.set_postable(behaviour.post_recv == Post::Allowed);
        Ok(())
    }

    /// Moves the queue pair from RESET to INIT: receives may be posted from now on, and should be posted
    /// before the peer connects.
    ///
    /// # Errors
    /// Those of [`modify`](Self::modify); [`Error::OutOfRange`] and [`Error::Unsupported`] for attributes of
    /// `connect` that the device does not support.
    pub fn init(&mut self, connect: &ConnectAttr) -> Result<(), Error> {
        connect.check(self.pd.device(), T::TYPE)?;
        self.step(QpState::Reset, &connect.init())
    }

    /// Moves the queue pair on from a state, with the attributes that the transition requires.
    fn step(&mut self, from: QpState, attr: &QpAttr) -> Result<(), Error> {
        self.modify(
            attr,
            bellwire_provider::limits::required(T::TYPE, from, attr.qp_state),
        )
    }

    /// Moves the queue pair to ERR: all requests in flight are flushed and reported.
    ///
    /// # Errors
    /// Those of [`modify`](Self::modify).
    pub fn to_error(&mut self) -> Result<(), Error> {
        let attr = QpAttr {
            qp_state: QpState::Err,
            ..QpAttr::default()
        };
        self.modify(&attr, QpAttrMask::STATE)
    }

    /// Checks that these are the completion queues that it was created with.
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

    /// Bytes of its rings and ledgers.
    pub(crate) fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Whether its receives come from a shared receive queue.
    pub(crate) fn receives_from_srq(&self) -> bool {
        self.srq.is_some()
    }

    /// The user indices of sends and receives in completions, in this life.
    pub(crate) fn user_indices(&self) -> (UserIndex, UserIndex) {
        self.user_index
    }

    /// Moves the queue pair to RESET, from any state: this clears both queues and removes their completions,
    /// as with the verbs. The next connection needs the [endpoints](Self::endpoint) anew, because their PSNs change.
    /// Requests that were not reported yet are reported here: `each` is called with the
    /// `wr_id` and the buffer of every one of them, sends first, oldest first. It is unknown to what extent
    /// they were executed at the peer.
    ///
    /// `cqs` are the completion queues that the queue pair was created with.
    ///
    /// # Errors
    /// [`Error::Foreign`] for other completion queues; [`Error::DeviceFatal`] on a failed device, which has
    /// flushed and reported everything.
    ///
    /// # Panics
    /// If `each` panics, after it was called for every request: the queue pair is then in RESET, and can be
    /// used again.
    pub fn reset<'a>(
        &mut self,
        cqs: impl Into<Cqs<'a>>,
        mut each: impl FnMut(u64, Option<Block<'static>>),
    ) -> Result<(), Error> {
        let mut panics = Panics::default();
        let answer = self.reset_with(cqs, |unreported| {
            let (wr_id, block) = match unreported {
                Unreported::Shared(wr_id, block) => (wr_id, block),
                Unreported::Send(request) | Unreported::Recv(request) => {
                    (request.wr_id, request.block)
                }
            };
            // Each request is reported once, and here.
            panics.catch(|| each(wr_id, block));
        });
        panics.resume();
        answer
    }

    /// Moves the queue pair to RESET like [`reset`](Self::reset), and reports how far each request got.
    /// `each` must not panic.
    pub(crate) fn reset_with<'a>(
        &mut self,
        cqs: impl Into<Cqs<'a>>,
        mut each: impl FnMut(Unreported),
    ) -> Result<(), Error> {
        let mut cqs = cqs.into();
        self.check_cqs(&cqs)?;
        let attr = QpAttr::default();
        let hca = &self.pd.device().hca;
        let changed = hca.modify_qp(self.qpn, &attr, QpAttrMask::STATE);
        self.notes.push(What::of(&changed));
        changed?;
        self.udp_sport = None;
        self.psn = random_psn();
        let (first, second) = self.user_index;
        let mut shared = |wr_id, block| each(Unreported::Shared(wr_id, block));
        // SAFETY: in RESET the device writes no completions of this queue pair.
        self.user_index = unsafe {
            match &mut cqs {
                Cqs::Shared(cq) => {
                    let index = cq.renew(first, &mut shared);
                    (index, index)
                }
                Cqs::Split(send, recv) => {
                    let sends = send.renew(first, &mut shared);
                    match T::RECEIVES {
                        true => (sends, recv.renew(second, &mut shared)),
                        false => (sends, sends),
                    }
                }
            }
        };
        // SAFETY: in RESET the device has stopped; the completion queues are borrowed exclusively, and hold
        // no completion of this queue pair any longer.
        unsafe {
            self.sq.clear(|request| each(Unreported::Send(request)));
            self.rq.clear(|request| each(Unreported::Recv(request)));
        }
        hca.restart(self.qpn, life(self.sq.counter(), self.user_index));
        Ok(())
    }
}

impl<T: QpTransport> Qp<T> {
    /// Destroys the queue pair, and reports the requests that were not reported, sends first, oldest first;
    /// their entries can still be read. `cq` is the completion queue that it was created with, for sends and
    /// receives; the queue pair's completions are removed from it.
    pub(crate) fn end(&mut self, cq: &mut Cq, mut each: impl FnMut(Unreported)) {
        self.destroy();
        // SAFETY: the queue pair is destroyed, so the device writes no completions of it.
        unsafe {
            cq.detach(self.user_index.0, |wr_id, block| {
                each(Unreported::Shared(wr_id, block));
            });
        }
        // SAFETY: the queue pair is destroyed; the completion queue is borrowed exclusively, and holds no
        // completion of it any longer.
        unsafe {
            self.sq.clear(|request| each(Unreported::Send(request)));
            self.rq.abandon(|request| each(Unreported::Recv(request)));
        }
    }

    /// Destroys the device's queue pair, after it has flushed the requests in flight.
    fn destroy(&mut self) {
        self.count();
        // Every state has a transition to ERR. If the device refuses it nevertheless, posting is stopped.
        let refused = self.to_error().is_err();
        if refused {
            self.pd.device().hca.stop_qp(self.qpn);
        }
        // Staged requests were accepted, so they are rung to be reported. They are not rung on the device's
        // own rings if it refused ERR: nothing would keep them from being executed.
        if !refused || self.pd.device().hca.kind() != ProviderKind::Mlx5 {
            self.sq.ring();
            self.drain_sends();
            self.rq.ring();
            self.drain_receives();
        }
        self.pd.device().hca.destroy_qp(self.qpn);
        self.destroyed = true;
    }

    /// Waits, on the device's own rings, until every posted send has completed. The queue pair is in ERR.
    fn drain_sends(&mut self) {
        if let Some(cq) = self.cqs.0.ctx.mlx5()
            && self.sq.in_flight() != 0
        {
            // SAFETY: the queue pair is being destroyed.
            let mark = unsafe { self.sq.mark() };
            drain::sends(cq, self.qpn, mark);
        }
    }

    /// Waits, on the device's own rings, until every posted receive has completed. The queue pair is in ERR.
    fn drain_receives(&self) {
        if let Some(cq) = self.cqs.1.ctx.mlx5()
            && self.srq.is_none()
            && T::RECEIVES
        {
            drain::receives(cq, self.qpn, || self.rq.in_flight());
        }
    }
}

impl<T: QpTransport> Drop for Qp<T> {
    fn drop(&mut self) {
        // A child of fork leaves what belongs to its parent as it is.
        if self.pd.device().is_inherited() {
            return;
        }
        if !self.destroyed {
            self.destroy();
        }
        let (send, recv) = &self.cqs;
        // This is the only place that sets it.
        let _ = self
            .memory
            .end
            .set((send.ctx.produced(), recv.ctx.produced()));
        self.pd.device().events.retire(Element::Qp(self.qpn));
    }
}
