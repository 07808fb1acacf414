//! What the device's lock guards: the queue pairs' states and attributes, what waits, and which
//! numbers are free. The verbs that create, change and destroy are here.

use super::cq::CqCtx;
use super::hca::Hca;
use super::limits;
use super::mr::MAX_MR;
use super::qp::{MAX_QP, QpCtx, RecvWork, SendWork};
use super::srq::SrqNumbers;
use crate::error::Error;
use bellwire_core::access::AccessFlags;
use bellwire_core::port::DoorbellRecord;
use bellwire_core::qp::{QpAttr, QpAttrMask, QpState, check_modify};
use bellwire_core::wqe::{RecvRing, SendRing};
use bellwire_core::wr::QpType;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::Ordering;

/// A queue pair's resources, which the program's side owns and keeps until it is destroyed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpParts {
    pub pd: u32,
    pub send_ring: SendRing<'static>,
    pub recv_ring: RecvRing<'static>,
    pub recv_record: &'static DoorbellRecord,
    pub send_cq: &'static CqCtx,
    pub recv_cq: &'static CqCtx,
}

/// What tells one life of a queue pair from the next: where its counters start, and how its
/// completions name it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Life {
    pub send_start: u32,
    pub send_user_index: u32,
    pub recv_user_index: u32,
}

/// A request that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stall {
    /// Tells its timer from those of earlier stalls.
    pub id: u64,
    /// Counter of the entry that waits.
    pub counter: u32,
    pub rnr_left: u8,
    pub retries_left: u8,
    /// Waiting for an acknowledgement, not for a receive.
    pub unanswered: bool,
}

/// A queue pair as the lock's holder sees it.
#[derive(Debug)]
pub(super) struct QpRecord {
    pub qpn: u32,
    pub ctx: &'static QpCtx,
    pub parts: QpParts,
    pub life: Life,
    pub state: QpState,
    pub attr: QpAttr,
    pub stall: Option<Stall>,
}

#[derive(Debug)]
pub(super) struct Control {
    qps: Vec<Option<QpRecord>>,
    free_qps: Vec<u16>,
    generations: Vec<u8>,
    free_mrs: Vec<u16>,
    used_mrs: usize,
    next_pd: u32,
    next_xrcd: u32,
    pub srqs: SrqNumbers,
    random: u64,
    pub next_stall: u64,
    /// (due, stall, queue pair): the earliest on top, and of the same time the first.
    pub timers: BinaryHeap<Reverse<(u64, u64, u32)>>,
}

impl Control {
    pub fn new(seed: u64) -> Self {
        Self {
            // Index 0 is not used: no queue pair has the number zero.
            qps: vec![None],
            free_qps: Vec::new(),
            generations: vec![0],
            free_mrs: Vec::new(),
            used_mrs: 0,
            next_pd: 1,
            next_xrcd: 1,
            srqs: SrqNumbers::default(),
            random: seed | 1,
            next_stall: 0,
            timers: BinaryHeap::new(),
        }
    }

    pub fn record(&mut self, qpn: u32) -> Option<&mut QpRecord> {
        self.qps
            .get_mut(qpn as usize & (MAX_QP - 1))?
            .as_mut()
            .filter(|record| record.qpn == qpn)
    }

    /// xorshift64*: keys are to look random, which is all that is asked of it.
    fn random(&mut self) -> u32 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32
    }
}

/// How a responder, and the requester that it takes requests from, name their connection.
pub(super) fn connection(responder: u32, requester: u32) -> u64 {
    u64::from(responder) << 32 | u64::from(requester)
}

/// What `check_modify` leaves to the device.
fn check_limits(attr: &QpAttr, mask: QpAttrMask) -> Result<(), Error> {
    let depth = limits().max_qp_rd_atom;
    for (bit, what, given, max) in [
        (QpAttrMask::PORT, "port_num", attr.port_num, 1),
        (QpAttrMask::AV, "ah_attr.port_num", attr.ah_attr.port_num, 1),
        (
            QpAttrMask::MAX_QP_RD_ATOMIC,
            "max_rd_atomic",
            attr.max_rd_atomic,
            depth,
        ),
        (
            QpAttrMask::MAX_DEST_RD_ATOMIC,
            "max_dest_rd_atomic",
            attr.max_dest_rd_atomic,
            depth,
        ),
    ] {
        if mask.contains(bit) && given > max {
            return Err(Error::TooLarge {
                what,
                given: given.into(),
                max: max.into(),
            });
        }
    }
    Ok(())
}

impl Hca {
    pub(crate) fn alloc_pd(&self) -> u32 {
        let mut control = self.control();
        control.next_pd += 1;
        control.next_pd - 1
    }

    pub(crate) fn alloc_xrcd(&self) -> u32 {
        let mut control = self.control();
        control.next_xrcd += 1;
        control.next_xrcd - 1
    }

    /// Waits until each thread has left the section in which it may have seen what was revoked
    /// before.
    pub(super) fn drain(&self, control: &Control) {
        self.barriers.heavy();
        self.qps.wait_for_all(control.qps.len());
    }

    /// Registers memory; one key serves as lkey and rkey.
    ///
    /// # Safety
    /// The memory is valid until the key is revoked, its provenance exposed, and the program treats
    /// it as the access flags say.
    pub(crate) unsafe fn register_mr(
        &self,
        pd: u32,
        addr: u64,
        length: u64,
        access: AccessFlags,
    ) -> Result<u32, Error> {
        let remote_write = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
        if access.intersects(remote_write) && !access.contains(AccessFlags::LOCAL_WRITE) {
            return Err(Error::AccessWithoutLocalWrite);
        }
        if length == 0 || addr.checked_add(length).is_none() {
            return Err(Error::BadRegion { addr, length });
        }
        let mut control = self.control();
        let index = match control.free_mrs.pop() {
            Some(index) => usize::from(index),
            None if control.used_mrs < MAX_MR => {
                control.used_mrs += 1;
                control.used_mrs - 1
            }
            None => {
                return Err(Error::Exhausted {
                    what: "memory keys",
                    max: MAX_MR,
                });
            }
        };
        let random = control.random();
        Ok(self.mrs.register(index, random, pd, addr, length, access))
    }

    /// Revokes a key. When this returns the device does not touch its memory any more.
    pub(crate) fn deregister_mr(&self, key: u32) -> Result<(), Error> {
        let mut control = self.control();
        let index = self.mrs.revoke(key)?;
        self.drain(&control);
        control.free_mrs.push(index as u16);
        Ok(())
    }

    /// Creates a queue pair in RESET. `attach` gives its first life, knowing its number.
    pub(crate) fn create_qp(
        &self,
        parts: impl FnOnce(u32) -> Result<(QpParts, Life), Error>,
    ) -> Result<(u32, &'static QpCtx), Error> {
        let mut control = self.control();
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
        });
        Ok((qpn, ctx))
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
        let index = qpn as usize & (MAX_QP - 1);
        control.qps[index] = None;
        control.free_qps.push(index as u16);
    }

    /// Takes a queue pair's work away from everybody.
    fn forget(&self, control: &mut Control, qpn: u32) {
        self.close(control, qpn);
        self.shut(control, qpn);
        let Some(record) = control.record(qpn) else {
            return;
        };
        // Relaxed: whoever posts next is told of a new life by other means.
        record.ctx.receiver.flushing.store(false, Ordering::Relaxed);
        // SAFETY: shut, and the lock is held: both works are ours.
        unsafe {
            *record.ctx.sender.work.get() = None;
            *record.ctx.receiver.work.get() = None;
        }
    }

    /// Keeps the data path out of a queue pair's sends, waits until it has left, and deals with the
    /// entry that it stopped at, should nobody have yet.
    pub(super) fn close(&self, control: &mut Control, qpn: u32) {
        if let Some(record) = control.record(qpn) {
            // Relaxed: ordered before what follows by the barrier.
            record.ctx.sender.closed.store(true, Ordering::Relaxed);
            self.barriers.heavy();
            record.ctx.sender.section.wait();
            self.settle(control, qpn);
        }
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
        self.barriers.heavy();
        if accepted != 0 {
            // SAFETY: used here only.
            unsafe { self.qps.get(accepted as u32) }
                .sender
                .section
                .wait();
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
        let mut control = self.control();
        let record = control.record(qpn).ok_or(Error::UnknownQp { qpn })?;
        let from = record.state;
        let drained = record.stall.is_none();
        let to = check_modify(QpType::Rc, from, drained, attr, mask)?;
        check_limits(attr, mask)?;
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
                    QpState::Rtr => self.start_sending(record),
                    QpState::Sqd => {
                        // SAFETY: closed, and the lock is held: the work is ours.
                        if let Some(work) = unsafe { &mut *record.ctx.sender.work.get() } {
                            work.max_rd_atomic = record.attr.max_rd_atomic;
                        }
                        self.resume(&mut control, qpn);
                    }
                    _ => {}
                }
            }
            QpState::Sqd => {
                record.state = to;
                self.show_face(record);
                self.close(&mut control, qpn);
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
        face.min_rnr_timer
            .store(record.attr.min_rnr_timer, Ordering::Relaxed);
    }

    fn recv_work(record: &QpRecord) -> RecvWork {
        RecvWork {
            ring: record.parts.recv_ring,
            record: record.parts.recv_record,
            // Every life of a receive queue starts at zero, in the counter's 16 bits.
            consumer: 0,
            posted: 0,
            pd: record.parts.pd,
            cq: record.parts.recv_cq,
            user_index: record.life.recv_user_index,
            qpn: record.qpn,
        }
    }

    fn send_work(&self, record: &QpRecord) -> SendWork {
        SendWork {
            ring: record.parts.send_ring,
            consumer: record.life.send_start,
            qpn: record.qpn,
            pd: record.parts.pd,
            // SAFETY: the work goes with the device, at the latest.
            peer: unsafe { self.qps.get(record.attr.dest_qp_num) },
            connection: connection(record.attr.dest_qp_num, record.qpn),
            stop: None,
            cq: record.parts.send_cq,
            user_index: record.life.send_user_index,
            max_rd_atomic: record.attr.max_rd_atomic,
        }
    }

    fn start_receiving(&self, record: &QpRecord) {
        // SAFETY: nobody is accepted yet, and the lock is held: the work is ours.
        unsafe { *record.ctx.receiver.work.get() = Some(Self::recv_work(record)) };
        // Release: partner of the acquire in `respond::accepted`.
        record.ctx.face.accepts.store(
            connection(record.qpn, record.attr.dest_qp_num),
            Ordering::Release,
        );
    }

    fn start_sending(&self, record: &QpRecord) {
        // SAFETY: closed since the life began, and the lock is held: the work is ours.
        unsafe { *record.ctx.sender.work.get() = Some(self.send_work(record)) };
        // Relaxed: published by the opening.
        record
            .ctx
            .sender
            .producer
            .store(record.life.send_start, Ordering::Relaxed);
        // Release: partner of the acquire in `Hca::execute`.
        record.ctx.sender.closed.store(false, Ordering::Release);
    }

    /// Gives a queue pair that goes to the error state before it worked something to flush from.
    pub(super) fn arm_flush(&self, record: &QpRecord) {
        // SAFETY: shut or never opened, and the lock is held: the works are ours.
        unsafe {
            let recv = &mut *record.ctx.receiver.work.get();
            recv.get_or_insert_with(|| Self::recv_work(record));
            let send = &mut *record.ctx.sender.work.get();
            if send.is_none() {
                record
                    .ctx
                    .sender
                    .producer
                    .store(record.life.send_start, Ordering::Relaxed);
                *send = Some(self.send_work(record));
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
