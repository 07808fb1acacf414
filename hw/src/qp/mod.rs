//! Queue pairs.

mod attr;
mod memory;

pub use attr::{ConnectAttr, Endpoint, QpInit};
pub(crate) use memory::{QpMemory, Side};

use crate::cq::{Cq, CqShared, Cqs, Kept};
use crate::device::Device;
use crate::error::Error;
use crate::pd::Pd;
use crate::soft::{Life, QpParts, RecvDoorbell, SendDoorbell};
use bellwire_core::qp::{Post, QpAttr, QpAttrMask, QpCap, QpState, behaviour};
use bellwire_core::queue::{Attach, RecvQueue, SendQueue, SendQueueInit, UserIndex};
use bellwire_core::slab::Block;
use bellwire_core::wqe::Rc;
use memory::Borrowed;
use std::sync::Arc;

/// The send queue of a [`Qp`].
pub type RcSendQueue = SendQueue<'static, Rc, SendDoorbell>;

/// The receive queue of a [`Qp`].
pub type RcRecvQueue = RecvQueue<'static, RecvDoorbell>;

/// A reliable connection's queue pair. One owner at a time; [`split`](Self::split) gives its halves
/// to two threads.
///
/// Dropping it flushes what is in flight, rung or not: it is still told by the completion queues.
/// Not told are unsignalled requests that were executed and that no later request completed.
#[derive(Debug)]
pub struct Qp {
    sq: RcSendQueue,
    rq: RcRecvQueue,
    qpn: u32,
    init: QpInit,
    user_index: (UserIndex, UserIndex),
    memory: Arc<QpMemory>,
    cqs: (Arc<CqShared>, Arc<CqShared>),
    pd: Pd,
}

impl Pd {
    /// Creates a queue pair in RESET.
    ///
    /// # Errors
    /// A capability that the device does not have; completion queues of another device, or without
    /// room for everything that can be in flight; no number left.
    pub fn create_qp<'a>(&self, cqs: impl Into<Cqs<'a>>, init: &QpInit) -> Result<Qp, Error> {
        init.check(self.device())?;
        let mut cqs = cqs.into();
        check_device(self.device(), &cqs)?;
        let shared = match &cqs {
            Cqs::Shared(cq) => (cq.shared().clone(), cq.shared().clone()),
            Cqs::Split(send, recv) => (send.shared().clone(), recv.shared().clone()),
        };
        let mut made = None;
        let (qpn, ctx) = self.device().hca.create_qp(|qpn| {
            let too_large = Error::TooLarge {
                what: "size of a queue",
                given: u64::from(init.send_blocks()) + u64::from(init.recv_count()),
                max: 1 << 16,
            };
            let memory = QpMemory::new(init, qpn);
            let Some(memory) = memory else {
                return Err(too_large);
            };
            // SAFETY: the queue pair and its completion queues keep the memory.
            let Some(parts) = (unsafe { memory.parts(init) }) else {
                return Err(too_large);
            };
            let user_index = attach(&mut cqs, &memory, &parts, init.reserve_cq)?;
            let device = QpParts {
                pd: self.id(),
                send_ring: parts.send_ring,
                recv_ring: parts.recv_ring,
                recv_record: parts.record,
                // SAFETY: the queue pair keeps them until it is destroyed.
                send_cq: unsafe { &*std::ptr::from_ref(&*shared.0.ctx) },
                // SAFETY: as above.
                recv_cq: unsafe { &*std::ptr::from_ref(&*shared.1.ctx) },
            };
            let life = life(0, user_index);
            made = Some((memory, parts, user_index));
            Ok((device, life))
        })?;
        let Some((memory, parts, user_index)) = made else {
            return Err(Error::UnknownQp { qpn });
        };
        // SAFETY: the only queues on the rings and ledgers; the device follows the doorbells' rules,
        // and the queue pair outlives both.
        let queues = unsafe {
            let hca = &self.device().hca;
            let sq = SendQueue::new(SendQueueInit {
                ring: parts.send_ring,
                ledger: parts.send_ledger,
                doorbell: SendDoorbell::new(hca, ctx, qpn),
                max_sge: init.max_send_sge,
                max_inline: init.max_inline_data,
                signal_all: init.sq_sig_all,
            });
            let rq = RecvQueue::new(
                parts.recv_ring,
                parts.recv_ledger,
                RecvDoorbell::new(hca, ctx, qpn, parts.record),
            );
            sq.zip(rq)
        };
        let Some((sq, rq)) = queues else {
            // `check` admits no sizes that do not fit.
            self.device().hca.destroy_qp(qpn);
            return Err(Error::UnknownQp { qpn });
        };
        Ok(Qp {
            sq,
            rq,
            qpn,
            init: *init,
            user_index,
            memory,
            cqs: shared,
            pd: self.clone(),
        })
    }
}

fn check_device(device: &Device, cqs: &Cqs<'_>) -> Result<(), Error> {
    let ours = |cq: &Cq| Arc::ptr_eq(&cq.device().hca, &device.hca);
    let all = match cqs {
        Cqs::Shared(cq) => ours(cq),
        Cqs::Split(send, recv) => ours(send) && ours(recv),
    };
    all.then_some(()).ok_or(Error::Foreign {
        what: "completion queue",
    })
}

/// Attaches both queues, or none.
fn attach(
    cqs: &mut Cqs<'_>,
    memory: &Arc<QpMemory>,
    parts: &Borrowed,
    reserve: bool,
) -> Result<(UserIndex, UserIndex), Error> {
    let kept = || Kept::Qp(memory.clone(), None);
    // SAFETY: the memory holds what is attached, and each ledger goes to one completion queue.
    unsafe {
        match cqs {
            Cqs::Shared(cq) => {
                let both = Attach {
                    recv: parts.recv().recv,
                    ..parts.send()
                };
                let index = cq.attach(kept(), both, reserve)?;
                Ok((index, index))
            }
            Cqs::Split(send, recv) => {
                let first = send.attach(kept(), parts.send(), reserve)?;
                match recv.attach(kept(), parts.recv(), reserve) {
                    Ok(second) => Ok((first, second)),
                    Err(error) => {
                        send.detach(first, |_, _| ());
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

impl Qp {
    /// Its number, which the peer connects to.
    pub fn qp_num(&self) -> u32 {
        self.qpn
    }

    /// What to bring to the peer.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint {
            qp_num: self.qpn,
            psn: 0,
        }
    }

    /// The protection domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// The send queue: post, then ring.
    #[inline(always)]
    pub fn sq(&mut self) -> &mut RcSendQueue {
        &mut self.sq
    }

    /// The receive queue: post, then ring.
    #[inline(always)]
    pub fn rq(&mut self) -> &mut RcRecvQueue {
        &mut self.rq
    }

    /// Both queues, to be used by two threads.
    pub fn split(&mut self) -> (&mut RcSendQueue, &mut RcRecvQueue) {
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
        let state = self.pd.device().hca.modify_qp(self.qpn, attr, mask)?;
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
        let attr = QpAttr {
            qp_state: QpState::Init,
            qp_access_flags: connect.access,
            port_num: 1,
            ..QpAttr::default()
        };
        let mask = QpAttrMask::STATE
            | QpAttrMask::PKEY_INDEX
            | QpAttrMask::PORT
            | QpAttrMask::ACCESS_FLAGS;
        self.modify(&attr, mask)
    }

    /// From INIT to RTS, connected with `peer`.
    ///
    /// # Errors
    /// As [`modify`](Self::modify).
    pub fn connect(&mut self, peer: &Endpoint, connect: &ConnectAttr) -> Result<(), Error> {
        let mut attr = QpAttr {
            qp_state: QpState::Rtr,
            path_mtu: connect.path_mtu,
            dest_qp_num: peer.qp_num,
            rq_psn: peer.psn,
            sq_psn: self.endpoint().psn,
            max_dest_rd_atomic: connect.max_rd_atomic,
            max_rd_atomic: connect.max_rd_atomic,
            min_rnr_timer: connect.min_rnr_timer,
            timeout: connect.timeout,
            retry_cnt: connect.retry_cnt,
            rnr_retry: connect.rnr_retry,
            ..QpAttr::default()
        };
        attr.ah_attr.port_num = 1;
        let rtr = QpAttrMask::STATE
            | QpAttrMask::AV
            | QpAttrMask::PATH_MTU
            | QpAttrMask::DEST_QPN
            | QpAttrMask::RQ_PSN
            | QpAttrMask::MAX_DEST_RD_ATOMIC
            | QpAttrMask::MIN_RNR_TIMER;
        self.modify(&attr, rtr)?;
        attr.qp_state = QpState::Rts;
        let rts = QpAttrMask::STATE
            | QpAttrMask::SQ_PSN
            | QpAttrMask::TIMEOUT
            | QpAttrMask::RETRY_CNT
            | QpAttrMask::RNR_RETRY
            | QpAttrMask::MAX_QP_RD_ATOMIC;
        self.modify(&attr, rts)
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

    /// To RESET, from any state: clears both queues and their completions, as the verbs have it.
    /// What was not told yet is told here: `each` gets the identifier and the buffer of every such
    /// request, sends first, oldest first. What the peer has seen of them is not known.
    ///
    /// `cqs` are the completion queues that the queue pair was created with.
    ///
    /// # Errors
    /// [`Error::Foreign`] for other completion queues, [`Error::Attach`] when another queue pair took
    /// the room meanwhile that this one had not reserved.
    pub fn reset<'a>(
        &mut self,
        cqs: impl Into<Cqs<'a>>,
        mut each: impl FnMut(u64, Option<Block<'static>>),
    ) -> Result<(), Error> {
        let mut cqs = cqs.into();
        let ours = match &cqs {
            Cqs::Shared(cq) => {
                Arc::ptr_eq(cq.shared(), &self.cqs.0) && Arc::ptr_eq(cq.shared(), &self.cqs.1)
            }
            Cqs::Split(send, recv) => {
                Arc::ptr_eq(send.shared(), &self.cqs.0) && Arc::ptr_eq(recv.shared(), &self.cqs.1)
            }
        };
        if !ours {
            return Err(Error::Foreign {
                what: "completion queue",
            });
        }
        let attr = QpAttr::default();
        let hca = &self.pd.device().hca;
        hca.modify_qp(self.qpn, &attr, QpAttrMask::STATE)?;
        match &mut cqs {
            Cqs::Shared(cq) => cq.detach(self.user_index.0, &mut each),
            Cqs::Split(send, recv) => {
                send.detach(self.user_index.0, &mut each);
                recv.detach(self.user_index.1, &mut each);
            }
        }
        // SAFETY: in RESET the device has stopped; the completion queues are here, exclusively, and
        // have no entry of ours any more.
        unsafe {
            self.sq.clear(&mut each);
            self.rq.clear(&mut each);
        }
        // SAFETY: the memory is kept as before.
        let parts = unsafe { self.memory.parts(&self.init) };
        let Some(parts) = parts else {
            return Err(Error::UnknownQp { qpn: self.qpn });
        };
        self.user_index = attach(&mut cqs, &self.memory, &parts, self.init.reserve_cq)?;
        hca.restart(self.qpn, life(self.sq.counter(), self.user_index));
        Ok(())
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // What is staged and not rung was taken, so it is told. Any state has a way to ERR.
        if self.to_error().is_ok() {
            self.sq.ring();
            self.rq.ring();
        }
        self.pd.device().hca.destroy_qp(self.qpn);
        let (send, recv) = &self.cqs;
        // Nobody else sets it.
        let _ = self
            .memory
            .end
            .set((send.ctx.produced(), recv.ctx.produced()));
    }
}
