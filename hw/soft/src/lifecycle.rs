//! The verbs that create, modify, query and destroy queue pairs. Under the device's lock.

use super::connection::{UNTRIED, connection, connection_with, datagrams, requester};
use super::control::Control;
use super::gate::Way;
use super::hca::Hca;
use super::limits;
use super::mr::{Grant, LocalGrant};
use super::qp::{MAX_QP, QpCtx, SendWork, locals};
use super::receive::{OwnQueue, Receives, RecvWork, SharedQueue};
use super::record::{QpParts, QpRecord, RecvParts};
use super::remote::{self, PeerHandle, Remote};
use crate::error::Error;
use crate::fabric::{self, Name, Number};
use crate::pinned::{push, room_for};
use crate::remote::Entered;
use bellwire_core::access::AccessFlags;
use bellwire_core::op::Carries;
use bellwire_core::qp::{QpAttr, QpAttrMask, QpState, check_modify};
use bellwire_core::wr::{QpType, WcStatus, WrOpcode};
use bellwire_provider::life::Life;
use bellwire_provider::limits::check_limits;
use std::cmp::Reverse;
use std::sync::atomic::Ordering;

impl Hca {
    /// Creates a queue pair in RESET. `parts` returns its resources and its first life, given its number.
    pub fn create_qp(
        &self,
        parts: impl FnOnce(u32) -> Result<(QpParts, Life), Error>,
    ) -> Result<(u32, &'static QpCtx), Error> {
        let mut control = self.control();
        control.alive()?;
        let index = match control.free_qps.pop() {
            Some(index) => usize::from(index),
            None if control.qps.len() < MAX_QP => {
                let Control {
                    qps,
                    generations,
                    free_qps,
                    pending_responses,
                    halted,
                    going_on,
                    waiting,
                    listed,
                    requesters,
                    ..
                } = &mut *control;
                // So that the data path allocates nothing.
                for list in [pending_responses, halted, going_on, waiting, listed] {
                    room_for(list, qps.len() + 1)?;
                }
                room_for(requesters, qps.len() + 1)?;
                // Including the room to give the index back later.
                room_for(free_qps, qps.len() + 1)?;
                room_for(generations, qps.len() + 1)?;
                push(qps, None)?;
                generations.push(0);
                qps.len() - 1
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
        let made = self.qps.make(qpn).and_then(|()| parts(qpn));
        // SAFETY: the record that holds it is dropped with the device, at the latest.
        let ctx = unsafe { self.qps.find(qpn) };
        let made = made.and_then(|made| Ok((made, ctx.ok_or(Error::UnknownQp { qpn })?)));
        let ((parts, life), ctx) = match made {
            Ok(made) => made,
            Err(error) => {
                control.free_qps.push(index as u16);
                return Err(error);
            }
        };
        control.qps[index] = Some(QpRecord {
            qpn,
            ctx,
            parts,
            life,
            state: QpState::Reset,
            kept_out: true,
            left_by: 0,
            attr: QpAttr::default(),
            stall: None,
            dead_cqs: [None; 2],
            flush_status: WcStatus::WrFlushErr,
            lives: 0,
            requester: None,
            responder: None,
            established: false,
        });
        Ok((qpn, ctx))
    }

    /// Runs `end`, which ends a queue pair's connection, and waits until its requester in another process no
    /// longer accesses its memory. If a connection ends because of the peer, there is no such wait. Every connection
    /// ends in `take_out`, which has a barrier for the other process, too.
    fn end_connection<T>(&self, qpn: u32, end: impl FnOnce(&mut Control) -> T) -> T {
        let mut control = self.control();
        let requester = control
            .record(qpn)
            .and_then(|record| self.requester_of(record));
        let ended = end(&mut control);
        drop(control);
        // After the barrier in `take_out`.
        let mut requester = requester.map(Entered::with_count);
        self.wait_for_requesters(requester.as_mut_slice());
        ended
    }

    /// Moves a queue pair to ERR, regardless of injected faults.
    pub fn stop_qp(&self, qpn: u32) {
        self.end_connection(qpn, |control| {
            let used = |record: &mut QpRecord| record.state != QpState::Reset;
            if control.record(qpn).is_some_and(used) {
                self.to_error(control, qpn);
            }
        });
    }

    /// Destroys a queue pair: everything posted is flushed and reported, then its number is free. After this
    /// returns, the device no longer accesses its rings.
    pub fn destroy_qp(&self, qpn: u32) {
        let index = qpn as usize & (MAX_QP - 1);
        let destroyed = self.end_connection(qpn, |control| {
            let Some(record) = control.record(qpn) else {
                return false;
            };
            if record.state != QpState::Reset {
                self.to_error(control, qpn);
            }
            if let Some(record) = control.record(qpn) {
                // Entries that were posted in ERR, which no worker has handled yet.
                self.flush(record);
            }
            self.forget(control, qpn);
            control.groups.leave(qpn);
            self.unbind_of(control, qpn);
            control.qps[index] = None;
            true
        });
        if destroyed {
            self.control().free_qps.push(index as u16);
        }
    }

    /// Takes a queue pair to RESET, and removes its work, so that no thread can execute it. One in ERR is out already.
    fn forget(&self, control: &mut Control, qpn: u32) {
        let Some(record) = control.record(qpn) else {
            return;
        };
        if record.state != QpState::Err {
            // Nothing is executed any more, whatever the entry that execution has stopped at waits for.
            record.state = QpState::Reset;
            self.take_out(control, &[qpn]);
        }
        let Some(record) = control.record(qpn) else {
            return;
        };
        self.fall_silent(record);
        // Relaxed: the next poster learns of the new life by other means.
        record.ctx.rights.flushing.set(false);
        // SAFETY: the queue pair is shut and the lock is held, so this thread owns both works.
        unsafe {
            *record.ctx.sender.work.get() = None;
            *record.ctx.receiver.work.get() = None;
        }
        record.requester = None;
        record.responder = None;
        record.established = false;
        let peer = record.attr.dest_qp_num;
        self.end_requests(control, qpn, peer);
    }

    /// Keeps the data path out of a queue pair's sends, waits until it has left, and handles the entry at
    /// which it stopped, if that is still to be done. `true`: requests to another process were outstanding,
    /// and now count as not sent.
    pub(super) fn close(&self, control: &mut Control, qpn: u32) -> bool {
        let mut rewound = false;
        while let Some(record) = control.record(qpn) {
            self.keep_out(record);
            rewound |= record.rewind();
            // If the entry was the last, nothing was left to wait for, and the queue pair is open again.
            let opened = self.settle(control, qpn)
                && control.record(qpn).is_some_and(|record| !record.kept_out);
            if !opened {
                break;
            }
        }
        rewound
    }

    /// Keeps the data path and the peers out of queue pairs, and waits until they have left, with one barrier for all.
    /// Their state is one in which nothing is executed. The entries at which execution stopped are handled; stalls and
    /// timers are removed.
    ///
    /// A barrier interrupts every processor that runs this process, so there is none for a queue pair that nobody can
    /// have seen open since the last: one that the data path was kept out of, that accepted no peer, and whose receives
    /// need not be flushed.
    pub(super) fn take_out(&self, control: &mut Control, qpns: &[u32]) {
        let mut barrier = None;
        for &qpn in qpns {
            let Some(record) = control.record(qpn) else {
                continue;
            };
            let left = self.is_left(record);
            let ctx = record.ctx;
            // Relaxed, here and below: the barrier orders them before what follows.
            ctx.sender.gate.close(Ordering::Relaxed);
            let flushes = record.state == QpState::Err && record.has_receive_queue();
            if record.state == QpState::Err {
                // The barrier pairs with the poster's check after it has stored the doorbell record.
                ctx.rights.flushing.set(true);
            }
            let of = ctx.rights.accepts.swap(0, Ordering::Relaxed);
            self.show_responder(record);
            // While a peer is accepted, it may be another process that uses our memory.
            let abroad = of != 0 && record.responder.is_some();
            if abroad || of != 0 || flushes || !left {
                barrier = Some(barrier.unwrap_or(false) || abroad);
            }
            if of != 0 {
                record.left_by = of;
            }
        }
        match barrier {
            Some(true) => self.barriers.heavy_everywhere(),
            Some(false) => self.barriers.heavy(),
            None => {}
        }
        for &qpn in qpns {
            if let Some(record) = control.record(qpn) {
                if !record.kept_out {
                    self.wait_for_data_path(record);
                    record.kept_out = true;
                }
                self.wait_for_peers(qpn, record.left_by);
            }
        }
        for &qpn in qpns {
            let mut accepted = 0;
            if let Some(record) = control.record(qpn) {
                accepted = std::mem::take(&mut record.left_by);
                record.rewind();
            }
            self.settle(control, qpn);
            self.stop_receiving(control, qpn, accepted);
        }
        self.note_next_due(control);
    }

    /// Waits, after a barrier, until the peers that a queue pair accepted have left.
    fn wait_for_peers(&self, qpn: u32, accepted: u64) {
        if accepted == datagrams(qpn) {
            self.wait_for_all();
        } else if accepted != 0
            && let Some(peer) = requester(accepted)
        {
            // SAFETY: used here only.
            if let Some(peer) = unsafe { self.qps.find(peer) } {
                peer.sender.section.wait();
            }
        }
    }

    /// A queue pair accepts no peer any more, and none is left.
    fn stop_receiving(&self, control: &mut Control, qpn: u32, accepted: u64) {
        let Some(record) = control.record(qpn) else {
            return;
        };
        record.stall = None;
        let (ctx, slot) = (record.ctx, record.responder.map(|responder| responder.slot));
        self.stop_reading(slot, qpn, ctx, accepted);
        // SAFETY: the queue pair is shut and the lock is held, so this thread owns the work.
        if let Some(recv) = unsafe { &mut *ctx.receiver.work.get() } {
            recv.release(None);
        }
        control.timers.retain(|Reverse((_, _, of))| *of != qpn);
    }

    /// Changes a queue pair's state and attributes. After a transition to RESET, call [`Hca::restart`].
    pub fn modify_qp(&self, qpn: u32, attr: &QpAttr, mask: QpAttrMask) -> Result<QpState, Error> {
        if mask.contains(QpAttrMask::AV) {
            self.call_for(&attr.ah_attr)?;
        }
        if mask.contains(QpAttrMask::STATE)
            && matches!(attr.qp_state, QpState::Reset | QpState::Err)
        {
            return self.end_connection(qpn, |control| self.modify(control, qpn, attr, mask));
        }
        self.modify(&mut self.control(), qpn, attr, mask)
    }

    fn modify(
        &self,
        control: &mut Control,
        qpn: u32,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result<QpState, Error> {
        self.strike_at_modify(control)?;
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
        self.check_tables(attr, mask)?;
        if mask.contains(QpAttrMask::DEST_QPN) {
            self.qps.make(attr.dest_qp_num)?;
        }
        record.attr.update(attr, mask);
        record.attr.qp_state = to;
        match to {
            QpState::Reset => {
                self.forget(control, qpn);
                let record = control.record(qpn).ok_or(Error::UnknownQp { qpn })?;
                record.state = to;
                record.attr = QpAttr::default();
            }
            QpState::Err => {
                if from == QpState::Reset {
                    // Nothing was posted, and nothing can be: there is no life to flush.
                    self.arm_flush(record);
                }
                self.to_error(control, qpn);
            }
            QpState::Init => {
                record.state = to;
                self.publish_rights(record);
            }
            QpState::Rtr => {
                record.state = to;
                self.publish_rights(record);
                self.start_receiving(record);
            }
            QpState::Rts => {
                record.state = to;
                self.publish_rights(record);
                match from {
                    QpState::Rtr => self.start_sending(record, gated),
                    QpState::Sqd | QpState::Sqe => {
                        self.speak(record);
                        // SAFETY: the queue pair is closed and the lock is held, so this thread owns the
                        // work.
                        if let Some(work) = unsafe { &mut *record.ctx.sender.work.get() } {
                            work.max_rd_atomic = record.attr.max_rd_atomic;
                            work.qkey = record.attr.qkey;
                        }
                        self.resume(control, qpn);
                    }
                    _ => {}
                }
            }
            QpState::Sqd => {
                record.state = to;
                self.publish_rights(record);
                if from == QpState::Rts {
                    record.attr.en_sqd_async_notify =
                        attr.en_sqd_async_notify && mask.contains(QpAttrMask::EN_SQD_ASYNC_NOTIFY);
                    let rewound = self.close(control, qpn);
                    if rewound {
                        self.send_again(control, qpn);
                    }
                    let record = control.record(qpn).ok_or(Error::UnknownQp { qpn })?;
                    if record.state == to && record.stall.is_none() {
                        record.drained();
                    }
                }
            }
            QpState::Sqe => record.state = to,
        }
        // A request that waited may have failed by now.
        let record = control.record(qpn).ok_or(Error::UnknownQp { qpn })?;
        Ok(record.state)
    }

    /// Publishes the attributes that peers read.
    fn publish_rights(&self, record: &QpRecord) {
        let rights = &record.ctx.rights;
        let mut access = record.attr.qp_access_flags;
        if record.attr.max_dest_rd_atomic == 0 {
            // There are no resources for them: peers see them as not allowed.
            access -= AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
        }
        // Relaxed: published by `accepts`. A later change takes effect at some time, as the verbs specify.
        let allows = [record.parts.pd, access.bits()];
        let words = [&rights.pd, &rights.access];
        let before = words.map(|word| word.load(Ordering::Relaxed));
        (words.into_iter().zip(allows))
            .for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        if before != allows {
            self.mrs.generation().pass();
        }
        rights.qkey.store(record.attr.qkey, Ordering::Relaxed);
        rights
            .min_rnr_timer
            .store(record.attr.min_rnr_timer, Ordering::Relaxed);
        self.show_responder(record);
    }

    fn recv_work(record: &QpRecord) -> Option<RecvWork> {
        let user_index = record.life.recv_user_index;
        let local = LocalGrant::new(record.parts.pd, AccessFlags::LOCAL_WRITE.bits());
        let source = match record.parts.recv {
            RecvParts::None => return None,
            RecvParts::Own {
                ring,
                record: doorbell,
                cq,
            } => Receives::Own(OwnQueue {
                ring,
                record: doorbell,
                // Every life of a receive queue starts at zero, in the counter's 16 bits.
                consumer: 0,
                posted: 0,
                cq,
                user_index,
                local,
            }),
            RecvParts::Shared { srq, cq } => Receives::Shared(SharedQueue {
                srq,
                cq,
                user_index,
                local,
            }),
            RecvParts::Xrc { domain } => Receives::Xrc { domain },
        };
        Some(RecvWork {
            source,
            pd: record.parts.pd,
            qpn: record.qpn,
            held: None,
        })
    }

    fn send_work(&self, record: &QpRecord) -> Option<SendWork> {
        let (ring, cq) = record.parts.send?;
        let peer = record.attr.dest_qp_num;
        let here = self.port.leads_here(&record.attr.ah_attr);
        let there = self.other_node(&record.attr.ah_attr).filter(|_| !here);
        Some(SendWork {
            transport: record.parts.transport,
            way: match (record.parts.transport, there.and(self.node.as_ref())) {
                (QpType::Rc, None) => Way::Here,
                (QpType::Rc, Some(_)) => Way::There,
                _ => Way::Other,
            },
            ring,
            consumer: record.life.send_start,
            qpn: record.qpn,
            pd: record.parts.pd,
            // SAFETY: the work is dropped with the device, at the latest.
            // A change of the attribute makes it.
            peer: unsafe { self.qps.find(peer) }?,
            own: record.ctx,
            local: locals(record.parts.pd),
            grants: [Grant::NOTHING; 2],
            remote: there.zip(self.node.as_ref()).map(|(there, node)| Remote {
                slot: there.slot,
                incarnation: there.incarnation,
                name: Name::request(peer, record.qpn),
                asks: false,
                sent_to: record.life.send_start,
                // SAFETY: the work is dropped with the device, at the latest, which owns the node.
                handle: unsafe {
                    PeerHandle::new(node, there.slot, (record.qpn, record.lives), peer)
                },
                view: None,
                grants: [remote::PeerGrant::NOTHING; 2],
                carries: false,
                carried: 0,
                got: 0,
            }),
            // There is no device behind other ports: a connection that no responder accepts.
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
        // SAFETY: no peer is accepted yet, and the lock is held, so this thread owns the work.
        unsafe { *record.ctx.receiver.work.get() = Some(work) };
        let accepts = match record.parts.transport {
            QpType::Ud => datagrams(record.qpn),
            _ if self.port.leads_here(&record.attr.ah_attr) => {
                connection(record.qpn, record.attr.dest_qp_num) | UNTRIED
            }
            _ => match self.other_node(&record.attr.ah_attr) {
                Some(there) => {
                    record.responder = Some(remote::Responder::new(there.slot, there.incarnation));
                    record.ctx.start_inbound(there.incarnation);
                    let lid = fabric::lid(there.slot);
                    connection_with(record.qpn, record.attr.dest_qp_num, lid) | UNTRIED
                }
                // No requester has this connection.
                None => u64::MAX >> 1,
            },
        };
        // Release: pairs with the Acquire in `Responder::find` and `datagram::put`.
        record.ctx.rights.accepts.store(accepts, Ordering::Release);
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
            watch: None,
            probed: None,
            full: false,
            carried: 0,
            got: 0,
            asked_from: 0,
        });
        self.speak(record);
        // SAFETY: closed since the life began, and the lock is held, so this thread owns the work.
        unsafe { *record.ctx.sender.work.get() = Some(work) };
        // Relaxed: published by the store to `closed`.
        (record.ctx.sender.acked).store(record.life.send_start, Ordering::Relaxed);
        let first = Number::new(record.lives, 0);
        record.ctx.sender.set_number(first, Ordering::Relaxed);
        record.ctx.inbound.acked.store(0, Ordering::Relaxed);
        let completing = work.remote.map(|remote| remote::Completing {
            ring: work.ring,
            cq: work.cq,
            qpn: work.qpn,
            user_index: work.user_index,
            life: record.lives,
            slot: remote.slot,
            incarnation: remote.incarnation,
        });
        // SAFETY: as for the work.
        unsafe { *record.ctx.inbound.completing.get() = completing };
        // Relaxed: published by the store to `closed`.
        record
            .ctx
            .sender
            .producer
            .store(record.life.send_start, Ordering::Relaxed);
        if !gated {
            record.open();
        }
    }

    /// Gives works to a queue pair that goes to the error state before it had any, so that they can be
    /// flushed.
    pub(super) fn arm_flush(&self, record: &QpRecord) {
        // SAFETY: shut or never opened, and the lock is held, so this thread owns both works.
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
    pub fn restart(&self, qpn: u32, life: Life) {
        if let Some(record) = self.control().record(qpn) {
            record.life = life;
        }
    }

    /// State and attributes of a queue pair.
    /// Whether the last bytes of a message of this operation are placed last: they are, of every operation with data.
    pub fn data_in_order(&self, _qpn: u32, operation: WrOpcode) -> bool {
        !matches!(operation.row().carries, Carries::Nothing)
    }

    pub fn query_qp(&self, qpn: u32) -> Result<QpAttr, Error> {
        let mut control = self.control();
        let record = control.record(qpn).ok_or(Error::UnknownQp { qpn })?;
        let mut attr = record.attr;
        attr.qp_state = record.state;
        attr.cur_qp_state = record.state;
        attr.sq_draining = record.state == QpState::Sqd && record.stall.is_some();
        Ok(attr)
    }
}
