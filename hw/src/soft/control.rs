//! What the device's lock guards: the queue pairs' states and attributes, what waits, and which
//! numbers are free. The verbs that create, change and destroy are here.

use super::cq::CqCtx;
use super::fault::Pending;
use super::hca::Hca;
use super::limits;
use super::mr::{LOCAL_READ, MAX_MR, Opening};
use super::multicast::{Groups, MAX_MEMBERS};
use super::qp::{MAX_QP, QpCtx, SendWork};
use super::random::Random;
use super::receive::{OwnQueue, Receives, RecvWork};
use super::srq::{SrqCtx, SrqNumbers};
use super::window::Window;
use crate::error::Error;
use crate::event::{AsyncQueue, Element, EventType};
use bellwire_core::access::AccessFlags;
use bellwire_core::port::DoorbellRecord;
use bellwire_core::qp::{QpAttr, QpAttrMask, QpState, check_modify};
use bellwire_core::wqe::{RecvRing, SendRing, SendWqe};
use bellwire_core::wr::{QpType, WcStatus};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A queue pair's resources, which the program's side owns and keeps until it is destroyed.
#[derive(Clone, Debug)]
pub(crate) struct QpParts {
    pub transport: QpType,
    pub pd: u32,
    /// Send queue and its completion queue; an XRC target has none.
    pub send: Option<(SendRing<'static>, &'static CqCtx)>,
    pub recv: RecvParts,
    /// Those of the context that it was created in.
    pub events: Arc<AsyncQueue>,
}

/// Where a queue pair's receives come from, and where they complete.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RecvParts {
    /// An XRC initiator has none.
    None,
    Own {
        ring: RecvRing<'static>,
        record: &'static DoorbellRecord,
        cq: &'static CqCtx,
    },
    Shared {
        srq: &'static SrqCtx,
        cq: &'static CqCtx,
    },
    /// What each request names, of this domain.
    Xrc { domain: u32 },
}

impl QpParts {
    /// The completion queues of its sends, and of its receives.
    pub fn cqs(&self) -> [Option<&'static CqCtx>; 2] {
        let recv = match self.recv {
            RecvParts::Own { cq, .. } | RecvParts::Shared { cq, .. } => Some(cq),
            RecvParts::None | RecvParts::Xrc { .. } => None,
        };
        [self.send.map(|(_, cq)| cq), recv]
    }
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
    pub wait: Wait,
    /// It was executed already, bringing so many bytes, and only its acknowledgement is missing.
    pub executed: Option<u32>,
}

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// A receive at the peer.
    Rnr,
    Acknowledgement,
    /// Its packet, which takes longer.
    Delay,
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
    /// Its completion queues that are known to be dead.
    pub dead_cqs: [Option<u32>; 2],
    /// How what is not executed is told: flushed, unless the device is dead.
    pub flush_status: WcStatus,
}

#[derive(Debug)]
pub(super) struct Control {
    qps: Vec<Option<QpRecord>>,
    free_qps: Vec<u16>,
    generations: Vec<u8>,
    free_mrs: Vec<u16>,
    used_mrs: usize,
    next_pd: u32,
    random: Random,
    next_timer: u64,
    next_xrcd: u32,
    pub srqs: SrqNumbers,
    /// (due, stall, queue pair): the earliest on top, and of the same time the first.
    pub timers: BinaryHeap<Reverse<(u64, u64, u32)>>,
    pub groups: Groups,
    /// By their keys without the low byte.
    pub windows: HashMap<u32, Window>,
    pub faults: Pending,
    /// Every entry is executed under the lock: something may be about to go wrong with it.
    pub gated: bool,
    /// The device is broken.
    pub dead: bool,
}

impl QpRecord {
    /// Whether the next entry waits for something.
    pub fn waits(&self) -> bool {
        // SAFETY: closed, and the lock is held: the work is ours.
        let work = unsafe { &*self.ctx.sender.work.get() };
        let at = work.as_ref().map(|work| work.consumer);
        self.stall.is_some_and(|stall| Some(stall.counter) == at)
    }

    /// What is known of the entry at this counter, should it wait already.
    pub fn stall_at(&self, counter: u32) -> Stall {
        match self.stall {
            Some(stall) if stall.counter == counter => stall,
            _ => Stall {
                id: 0,
                counter,
                rnr_left: self.attr.rnr_retry,
                retries_left: self.attr.retry_cnt,
                wait: Wait::Delay,
                executed: None,
            },
        }
    }

    /// A closed queue pair's work, and the counter up to which its state lets it be executed.
    pub fn runnable(&mut self) -> Option<(&mut SendWork, u32)> {
        let sender = &self.ctx.sender;
        // SAFETY: closed, and the lock is held: the work is ours.
        let work = unsafe { &mut *sender.work.get() }.as_mut()?;
        let end = if self.state == QpState::Rts {
            // Acquire: partner of the release in `Hca::ring`.
            sender.producer.load(Ordering::Acquire)
        } else if self.state == QpState::Sqd {
            // Draining: what was started is finished, and nothing else begun.
            let stall = self.stall?;
            // SAFETY: rung and not completed, or just completed and not yet told.
            let wqe = unsafe { SendWqe::read(work.ring, stall.counter) };
            stall.counter.wrapping_add(wqe.blocks())
        } else {
            return None;
        };
        Some((work, end))
    }

    /// Tells the queue pair's context of an event. For errors, drains and the like: it may take a
    /// system call.
    pub fn raise(&self, event: EventType) {
        // Between its destruction and its last event nobody wants to know.
        let _known = self.parts.events.push(Element::Qp(self.qpn), event);
    }

    /// Whether its receives come from this shared receive queue.
    pub fn receives_from(&self, queue: &SrqCtx) -> bool {
        match self.parts.recv {
            RecvParts::Shared { srq, .. } => std::ptr::eq(srq, queue),
            _ => false,
        }
    }

    /// Whether this is the first that is heard of the completion queue's death.
    pub fn fatal(&mut self, cqn: u32) -> bool {
        let first = !self.dead_cqs.contains(&Some(cqn));
        if first {
            self.dead_cqs = [self.dead_cqs[1], Some(cqn)];
        }
        first
    }

    /// What was started before the queue pair went to SQD has been finished.
    pub fn drained(&self) {
        if self.attr.en_sqd_async_notify {
            self.raise(EventType::SqDrained);
        }
    }
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
            random: Random::new(seed),
            next_timer: 0,
            next_xrcd: 1,
            srqs: SrqNumbers::default(),
            timers: BinaryHeap::new(),
            groups: Groups::default(),
            windows: HashMap::new(),
            faults: Pending::default(),
            gated: false,
            dead: false,
        }
    }

    pub fn record(&mut self, qpn: u32) -> Option<&mut QpRecord> {
        self.qps
            .get_mut(qpn as usize & (MAX_QP - 1))?
            .as_mut()
            .filter(|record| record.qpn == qpn)
    }

    /// The queue pairs that complete on this queue.
    pub fn qps_on(&self, cq: &CqCtx) -> Vec<u32> {
        let on = |record: &QpRecord| {
            (record.parts.cqs().into_iter().flatten()).any(|of| std::ptr::eq(of, cq))
        };
        let records = self.qps.iter().flatten();
        records
            .filter(|record| on(record))
            .map(|record| record.qpn)
            .collect()
    }

    /// Entries of the table of queue pairs that were ever used.
    pub fn slots(&self) -> usize {
        self.qps.len()
    }

    /// The first queue pair that is like this.
    pub fn find(&self, like: impl Fn(&QpRecord) -> bool) -> Option<u32> {
        let mut records = self.qps.iter().flatten();
        records.find(|record| like(record)).map(|record| record.qpn)
    }

    /// What is known of the entry that a closed queue pair is to execute next, if it is to.
    pub fn stall_at_hand(&mut self, qpn: u32) -> Option<Stall> {
        let record = self.record(qpn)?;
        let (work, end) = record.runnable()?;
        let at = work.consumer;
        (at != end).then(|| record.stall_at(at))
    }

    /// The numbers of all queue pairs.
    pub fn qpns(&self) -> Vec<u32> {
        self.qps.iter().flatten().map(|record| record.qpn).collect()
    }

    /// A number that no other timer has.
    pub fn next_timer(&mut self) -> u64 {
        self.next_timer += 1;
        self.next_timer
    }

    /// An index of the table of keys.
    pub fn take_key(&mut self) -> Result<usize, Error> {
        match self.free_mrs.pop() {
            Some(index) => Ok(usize::from(index)),
            None if self.used_mrs < MAX_MR => {
                self.used_mrs += 1;
                Ok(self.used_mrs - 1)
            }
            None => Err(Error::Exhausted {
                what: "memory keys",
                max: MAX_MR,
            }),
        }
    }

    /// Gives an index back. Its key opens nothing any more.
    pub fn give_key(&mut self, index: usize) {
        self.free_mrs.push(index as u16);
    }

    pub fn random(&mut self) -> u32 {
        self.random.next() as u32
    }

    /// # Errors
    /// [`Error::DeviceFatal`].
    pub fn alive(&self) -> Result<(), Error> {
        if self.dead {
            return Err(Error::DeviceFatal);
        }
        Ok(())
    }
}

/// How a responder, and the requester that it takes requests from, name their connection. Queue pair
/// numbers have 24 bits.
pub(super) fn connection(responder: u32, requester: u32) -> u64 {
    u64::from(responder) << 32 | u64::from(requester)
}

/// In [`Face::accepts`](super::qp::Face::accepts): nothing has arrived on the connection yet.
pub(super) const UNTRIED: u64 = 1 << 63;

/// How a responder says that it takes anybody's datagrams.
pub(super) fn datagrams(responder: u32) -> u64 {
    u64::from(responder) << 32 | 1 << 24
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
    /// # Errors
    /// [`Error::DeviceFatal`].
    pub(crate) fn check_alive(&self) -> Result<(), Error> {
        self.control().alive()
    }

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
        if access.contains(AccessFlags::ZERO_BASED) {
            return Err(Error::ZeroBasedRegion);
        }
        if length == 0 || addr.checked_add(length).is_none() {
            return Err(Error::BadRegion { addr, length });
        }
        let mut control = self.control();
        control.alive()?;
        let index = control.take_key()?;
        let random = control.random();
        let key = self.mrs.reserve(index, random);
        let opening = Opening {
            owner: pd,
            access: access.bits() | LOCAL_READ,
            addr,
            length,
        };
        self.mrs.open(key, opening);
        Ok(key)
    }

    /// Revokes a key, and those of the windows that are bound to its region. When this returns the
    /// device does not touch its memory any more.
    pub(crate) fn deregister_mr(&self, key: u32) -> Result<(), Error> {
        let mut control = self.control();
        self.unbind_all(&mut control, key);
        self.revoke_mr(&mut control, key)
    }

    pub(super) fn revoke_mr(&self, control: &mut Control, key: u32) -> Result<(), Error> {
        let index = self.mrs.revoke(key)?;
        self.drain(control);
        control.give_key(index);
        Ok(())
    }

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
        if accepted == datagrams(qpn) {
            self.qps.wait_for_all(control.qps.len());
        } else if accepted != 0 {
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
        let (dead, gated) = (control.dead, control.gated);
        let record = control.record(qpn).ok_or(Error::UnknownQp { qpn })?;
        let from = record.state;
        let drained = record.stall.is_none();
        let only_to_err = mask == QpAttrMask::STATE && attr.qp_state == QpState::Err;
        if dead && !only_to_err {
            return Err(Error::DeviceFatal);
        }
        let to = check_modify(record.parts.transport, from, drained, attr, mask)?;
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
                    QpState::Rtr => self.start_sending(record, gated),
                    QpState::Sqd | QpState::Sqe => {
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
                    self.close(&mut control, qpn);
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
        let reachable = self.port.leads_here(&record.attr.ah_attr);
        Some(SendWork {
            transport: record.parts.transport,
            ring,
            consumer: record.life.send_start,
            qpn: record.qpn,
            pd: record.parts.pd,
            // SAFETY: the work goes with the device, at the latest.
            peer: unsafe { self.qps.get(peer) },
            // Behind another port there is nobody: a name that no responder accepts.
            connection: if reachable {
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

    fn start_receiving(&self, record: &QpRecord) {
        let Some(work) = Self::recv_work(record) else {
            return;
        };
        // SAFETY: nobody is accepted yet, and the lock is held: the work is ours.
        unsafe { *record.ctx.receiver.work.get() = Some(work) };
        let accepts = match record.parts.transport {
            QpType::Ud => datagrams(record.qpn),
            _ => connection(record.qpn, record.attr.dest_qp_num) | UNTRIED,
        };
        // Release: partner of the acquire in `Responder::find` and `datagram::deliver`.
        record.ctx.face.accepts.store(accepts, Ordering::Release);
    }

    fn start_sending(&self, record: &QpRecord, gated: bool) {
        let Some(work) = self.send_work(record) else {
            return;
        };
        // SAFETY: closed since the life began, and the lock is held: the work is ours.
        unsafe { *record.ctx.sender.work.get() = Some(work) };
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

    /// Attaches a queue pair to a multicast group.
    pub(crate) fn attach_mcast(&self, qpn: u32, gid: [u8; 16], lid: u16) -> Result<(), Error> {
        let mut control = self.control();
        control.record(qpn).ok_or(Error::UnknownQp { qpn })?;
        if gid[0] != 0xff {
            return Err(Error::NotMulticast { gid });
        }
        let room = control.groups.attach(gid, lid, qpn);
        room.then_some(()).ok_or(Error::Exhausted {
            what: "members of the multicast group",
            max: MAX_MEMBERS,
        })
    }

    /// Detaches a queue pair from a multicast group.
    pub(crate) fn detach_mcast(&self, qpn: u32, gid: [u8; 16], lid: u16) -> Result<(), Error> {
        let found = self.control().groups.detach(gid, lid, qpn);
        found.then_some(()).ok_or(Error::NotAttached { qpn })
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
