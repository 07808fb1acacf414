//! The verbs that create, change and destroy queue pairs. Under the device's lock.

use super::control::Control;
use super::hca::Hca;
use super::limits;
use super::qp::{MAX_QP, QpCtx, SendWork};
use super::receive::{OwnQueue, Receives, RecvWork};
use super::record::{
    Life, QpParts, QpRecord, RecvParts, UNTRIED, connection, connection_with, datagrams, requester,
};
use super::remote::{self, Door, Remote};
use crate::error::Error;
use crate::fabric;
use crate::qp::check_limits;
use bellwire_core::access::AccessFlags;
use bellwire_core::qp::{QpAttr, QpAttrMask, QpState, check_modify};
use bellwire_core::wr::{QpType, WcStatus};
use std::cmp::Reverse;
use std::sync::atomic::Ordering;

impl Hca {
    /// Creates a queue pair in RESET. `attach` gives its first life, knowing its number.
    pub(crate) fn create_qp(
        &self,
        parts: impl FnOnce(u32) -> Result<(QpParts, Life), Error>,
    ) -> Result<(u32, &'static QpCtx), Error> {
        let mut control = self.control();
        control.alive()?;
        let index = match control.free_qps.pop() {
            Some(index) => usize::from(index),
            None if control.qps.len() < MAX_QP => {
                control.qps.push(None);
                control.generations.push(0);
                control.qps.len() - 1
            }
            None => {
                return Err(Error::Exhausted {
                    what: "queue pairs",
                    max: MAX_QP - 1,
                });
            }
        };
        let generation = control.generations[index].wrapping_add(1);
        control.generations[index] = generation;
        let qpn = u32::from(generation) << 16 | index as u32;
        let (parts, life) = match parts(qpn) {
            Ok(made) => made,
            Err(error) => {
                control.free_qps.push(index as u16);
                return Err(error);
            }
        };
        // SAFETY: the record that holds it goes with the device, at the latest.
        let ctx = unsafe { self.qps.get(qpn) };
        control.qps[index] = Some(QpRecord {
            qpn,
            ctx,
            parts,
            life,
            state: QpState::Reset,
            attr: QpAttr::default(),
            stall: None,
            dead_cqs: [None; 2],
            flush_status: WcStatus::WrFlushErr,
            lives: 0,
            requester: None,
            responder: None,
        });
        Ok((qpn, ctx))
    }

    /// Takes a queue pair to ERR, whatever is to go wrong.
    pub(crate) fn stop_qp(&self, qpn: u32) {
        let mut control = self.control();
        let used = |record: &mut QpRecord| record.state != QpState::Reset;
        if control.record(qpn).is_some_and(used) {
            self.to_error(&mut control, qpn);
        }
    }

    /// Ends a queue pair: everything posted is flushed and told, then the number is free. When this
    /// returns the device does not touch its rings any more.
    pub(crate) fn destroy_qp(&self, qpn: u32) {
        let mut control = self.control();
        let Some(record) = control.record(qpn) else {
            return;
        };
        if record.state != QpState::Reset {
            self.to_error(&mut control, qpn);
        }
        if let Some(record) = control.record(qpn) {
            // What was rung in ERR, and no worker has come to yet.
            self.flush(record);
        }
        self.forget(&mut control, qpn);
        control.groups.leave(qpn);
        self.unbind_of(&mut control, qpn);
        let index = qpn as usize & (MAX_QP - 1);
        control.qps[index] = None;
        control.free_qps.push(index as u16);
    }

    /// Takes a queue pair's work away from everybody.
    fn forget(&self, control: &mut Control, qpn: u32) {
        let in_error = |record: &mut QpRecord| record.state == QpState::Err;
        if !control.record(qpn).is_some_and(in_error) {
            self.close(control, qpn);
            self.shut(control, qpn);
        }
        // Else `to_error` has done both, and nothing opens a queue pair in ERR. Barriers interrupt
        // every processor that runs this process, so there are none without need.
        let Some(record) = control.record(qpn) else {
            return;
        };
        self.fall_silent(record);
        // Relaxed: whoever posts next is told of a new life by other means.
        record.ctx.receiver.flushing.store(false, Ordering::Relaxed);
        // SAFETY: shut, and the lock is held: both works are ours.
        unsafe {
            *record.ctx.sender.work.get() = None;
            *record.ctx.receiver.work.get() = None;
        }
        record.requester = None;
        record.responder = None;
    }

    /// Keeps the data path out of a queue pair's sends, waits until it has left, and deals with the
    /// entry that it stopped at, should nobody have yet. `true`: requests were under way to another
    /// process, and count as not sent.
    pub(super) fn close(&self, control: &mut Control, qpn: u32) -> bool {
        let mut rewound = false;
        while let Some(record) = control.record(qpn) {
            // Relaxed: ordered before what follows by the barrier.
            record.ctx.sender.closed.store(true, Ordering::Relaxed);
            self.barriers.heavy();
            record.ctx.sender.section.wait();
            rewound |= record.rewind();
            // The entry may have been the last: nothing was left to wait for, and it is open again.
            let opened = self.settle(control, qpn)
                && control
                    .record(qpn)
                    // Relaxed: changed under the lock, or by the data path, which is not in it.
                    .is_some_and(|record| !record.ctx.sender.closed.load(Ordering::Relaxed));
            if !opened {
                break;
            }
        }
        rewound
    }

    /// Keeps the peer out of a queue pair that is closed, and waits until it has left. Nothing waits
    /// for its time any more.
    pub(super) fn shut(&self, control: &mut Control, qpn: u32) {
        let Some(record) = control.record(qpn) else {
            return;
        };
        record.stall = None;
        // Relaxed: ordered before what follows by the barrier.
        let accepted = record.ctx.face.accepts.swap(0, Ordering::Relaxed);
        self.show_responder(record);
        self.barriers.heavy();
        self.wait_for_requester(record);
        if accepted == datagrams(qpn) {
            self.qps.wait_for_all(control.qps.len());
        } else if accepted != 0
            // Requests of other processes are executed under the lock.
            && let Some(peer) = requester(accepted)
        {
            // SAFETY: used here only.
            unsafe { self.qps.get(peer) }.sender.section.wait();
        }
        control.timers.retain(|Reverse((_, _, of))| *of != qpn);
        self.note_next_due(control);
    }

    /// Changes a queue pair's state and attributes. Going to RESET wants [`Hca::restart`] next.
    pub(crate) fn modify_qp(
        &self,
        qpn: u32,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result<QpState, Error> {
        if mask.contains(QpAttrMask::AV)
            && let Some(there) = self.elsewhere(&attr.ah_attr)
            && there.incarnation == 0
        {
            self.connect(there.slot);
        }
        let mut control = self.control();
        self.strike_at_modify(&mut control)?;
        let (dead, gated) = (control.dead, control.gated);
        let record = control.record(qpn).ok_or(Error::UnknownQp { qpn })?;
        let from = record.state;
        let drained = record.stall.is_none();
        let only_to_err = mask == QpAttrMask::STATE && attr.qp_state == QpState::Err;
        if dead && !only_to_err {
            return Err(Error::DeviceFatal);
        }
        let to = check_modify(record.parts.transport, from, drained, attr, mask)?;
        check_limits(attr, mask, 1, limits().max_qp_rd_atom)?;
        record.attr.update(attr, mask);
        record.attr.qp_state = to;
        match to {
            QpState::Reset => {
                self.forget(&mut control, qpn);
                let record = control.record(qpn).ok_or(Error::UnknownQp { qpn })?;
                record.state = to;
                record.attr = QpAttr::default();
            }
            QpState::Err => {
                if from == QpState::Reset {
                    // Nothing was posted and nothing can be: there is no life to flush.
                    self.arm_flush(record);
                }
                self.to_error(&mut control, qpn);
            }
            QpState::Init => {
                record.state = to;
                self.show_face(record);
            }
            QpState::Rtr => {
                record.state = to;
                self.show_face(record);
                self.start_receiving(record);
            }
            QpState::Rts => {
                record.state = to;
                self.show_face(record);
                match from {
                    QpState::Rtr => self.start_sending(record, gated),
                    QpState::Sqd | QpState::Sqe => {
                        self.speak(record);
                        // SAFETY: closed, and the lock is held: the work is ours.
                        if let Some(work) = unsafe { &mut *record.ctx.sender.work.get() } {
                            work.max_rd_atomic = record.attr.max_rd_atomic;
                            work.qkey = record.attr.qkey;
                        }
                        self.resume(&mut control, qpn);
                    }
                    _ => {}
                }
            }
            QpState::Sqd => {
                record.state = to;
                self.show_face(record);
                if from == QpState::Rts {
                    record.attr.en_sqd_async_notify =
                        attr.en_sqd_async_notify && mask.contains(QpAttrMask::EN_SQD_ASYNC_NOTIFY);
                    let rewound = self.close(&mut control, qpn);
                    if rewound {
                        self.send_again(&mut control, qpn);
                    }
                    let record = control.record(qpn).ok_or(Error::UnknownQp { qpn })?;
                    if record.state == to && record.stall.is_none() {
                        record.drained();
                    }
                }
            }
            QpState::Sqe => record.state = to,
        }
        // What waited may have failed by now.
        let record = control.record(qpn).ok_or(Error::UnknownQp { qpn })?;
        Ok(record.state)
    }

    /// Makes the attributes known that peers look at.
    fn show_face(&self, record: &QpRecord) {
        let face = &record.ctx.face;
        let mut access = record.attr.qp_access_flags;
        if record.attr.max_dest_rd_atomic == 0 {
            // No resources for them: to the peer as if they were not allowed.
            access -= AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
        }
        // Relaxed: published by `accepts`; a change in a later state takes effect some time, as the
        // verbs have it.
        face.pd.store(record.parts.pd, Ordering::Relaxed);
        face.access.store(access.bits(), Ordering::Relaxed);
        face.qkey.store(record.attr.qkey, Ordering::Relaxed);
        face.min_rnr_timer
            .store(record.attr.min_rnr_timer, Ordering::Relaxed);
        self.show_responder(record);
    }

    fn recv_work(record: &QpRecord) -> Option<RecvWork> {
        let user_index = record.life.recv_user_index;
        let source = match record.parts.recv {
            RecvParts::None => return None,
            RecvParts::Own { ring, record, cq } => Receives::Own(OwnQueue {
                ring,
                record,
                // Every life of a receive queue starts at zero, in the counter's 16 bits.
                consumer: 0,
                posted: 0,
                cq,
                user_index,
            }),
            RecvParts::Shared { srq, cq } => Receives::Shared {
                srq,
                cq,
                user_index,
            },
            RecvParts::Xrc { domain } => Receives::Xrc { domain },
        };
        Some(RecvWork {
            source,
            pd: record.parts.pd,
            qpn: record.qpn,
        })
    }

    fn send_work(&self, record: &QpRecord) -> Option<SendWork> {
        let (ring, cq) = record.parts.send?;
        let peer = record.attr.dest_qp_num;
        let here = self.port.leads_here(&record.attr.ah_attr);
        let there = self.elsewhere(&record.attr.ah_attr).filter(|_| !here);
        Some(SendWork {
            transport: record.parts.transport,
            is_local_rc: record.parts.transport == QpType::Rc && there.is_none(),
            ring,
            consumer: record.life.send_start,
            qpn: record.qpn,
            pd: record.parts.pd,
            // SAFETY: the work goes with the device, at the latest.
            peer: unsafe { self.qps.get(peer) },
            own: record.ctx,
            remote: there.zip(self.node.as_ref()).map(|(there, node)| Remote {
                slot: there.slot,
                incarnation: there.incarnation,
                life: record.lives,
                msn: 0,
                asks: false,
                sent_to: record.life.send_start,
                // SAFETY: the work goes with the device, at the latest, which has the node.
                door: unsafe { Door::new(node, there.slot, record.qpn, peer) },
                view: None,
            }),
            // Behind other ports there is nobody: a name that no responder accepts.
            connection: if here || there.is_some() {
                connection(peer, record.qpn)
            } else {
                u64::MAX
            },
            stop: None,
            cq,
            user_index: record.life.send_user_index,
            max_rd_atomic: record.attr.max_rd_atomic,
            qkey: record.attr.qkey,
        })
    }

    fn start_receiving(&self, record: &mut QpRecord) {
        let Some(work) = Self::recv_work(record) else {
            return;
        };
        // SAFETY: nobody is accepted yet, and the lock is held: the work is ours.
        unsafe { *record.ctx.receiver.work.get() = Some(work) };
        let accepts = match record.parts.transport {
            QpType::Ud => datagrams(record.qpn),
            _ if self.port.leads_here(&record.attr.ah_attr) => {
                connection(record.qpn, record.attr.dest_qp_num) | UNTRIED
            }
            _ => match self.elsewhere(&record.attr.ah_attr) {
                Some(there) => {
                    record.responder = Some(remote::Responder::new(there.slot, there.incarnation));
                    // Relaxed: it does not send yet. The debts are counted anew.
                    record.ctx.sender.told.store(0, Ordering::Relaxed);
                    let lid = fabric::lid(there.slot);
                    connection_with(record.qpn, record.attr.dest_qp_num, lid) | UNTRIED
                }
                // Nobody has this name.
                None => u64::MAX >> 1,
            },
        };
        // Release: partner of the acquire in `Responder::find` and `datagram::deliver`.
        record.ctx.face.accepts.store(accepts, Ordering::Release);
        self.show_responder(record);
    }

    fn start_sending(&self, record: &mut QpRecord, gated: bool) {
        record.lives = record.lives.wrapping_add(1);
        let Some(work) = self.send_work(record) else {
            return;
        };
        record.requester = work.remote.map(|remote| remote::Requester {
            work,
            slot: remote.slot,
            incarnation: remote.incarnation,
            acked: 0,
            watch: None,
            probed: false,
        });
        self.speak(record);
        // SAFETY: closed since the life began, and the lock is held: the work is ours.
        unsafe { *record.ctx.sender.work.get() = Some(work) };
        // Relaxed: published by the opening.
        (record.ctx.sender.acked).store(record.life.send_start, Ordering::Relaxed);
        record.ctx.sender.sent.store(0, Ordering::Relaxed);
        // Relaxed: published by the opening.
        record
            .ctx
            .sender
            .producer
            .store(record.life.send_start, Ordering::Relaxed);
        // Release: partner of the acquire in `Hca::execute`.
        record.ctx.sender.closed.store(gated, Ordering::Release);
    }

    /// Gives a queue pair that goes to the error state before it worked something to flush from.
    pub(super) fn arm_flush(&self, record: &QpRecord) {
        // SAFETY: shut or never opened, and the lock is held: the works are ours.
        unsafe {
            let recv = &mut *record.ctx.receiver.work.get();
            if recv.is_none() {
                *recv = Self::recv_work(record);
            }
            let send = &mut *record.ctx.sender.work.get();
            if send.is_none() {
                record
                    .ctx
                    .sender
                    .producer
                    .store(record.life.send_start, Ordering::Relaxed);
                *send = self.send_work(record);
            }
        }
    }

    /// Begins the next life of a queue pair in RESET.
    pub(crate) fn restart(&self, qpn: u32, life: Life) {
        if let Some(record) = self.control().record(qpn) {
            record.life = life;
        }
    }

    /// State and attributes.
    pub(crate) fn query_qp(&self, qpn: u32) -> Result<QpAttr, Error> {
        let mut control = self.control();
        let record = control.record(qpn).ok_or(Error::UnknownQp { qpn })?;
        let mut attr = record.attr;
        attr.qp_state = record.state;
        attr.cur_qp_state = record.state;
        attr.sq_draining = record.state == QpState::Sqd && record.stall.is_some();
        Ok(attr)
    }
}
