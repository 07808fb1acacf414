//! Extended reliable connections: one target, many shared receive queues.

use crate::provider::Provider;
use crate::rule::rules;
use crate::support::impatient;
use bellwire::state::QpState;
use bellwire::wqe::*;
use bellwire::wr::{Remote, WcOpcode, WcStatus};
use bellwire::{
    AccessFlags, Cq, Device, Error, Pd, Qp, QpInit, QpTransport, Srq, SrqInit, XrcTarget, Xrcd,
};
use bellwire_tests::fixture::*;
use std::sync::atomic::Ordering;

rules! {
    "xrc", "XRC: initiators, targets, domains, and the shared receive queue that each request names.",
        needs [Xrc, Srq];
    a_message_goes_to_the_queue_it_names: "IBTA vol. 1, annex A14",
        "The request's SRQ number chooses the receive, and with it the completion queue.";
    the_completion_names_the_target: "ibv_create_srq_ex(3), IBV_SRQT_XRC",
        "A receive completes on its queue's completion queue, with the target's number.";
    writes_reads_and_atomics_reach_memory: "IBTA vol. 1, annex A14",
        "As on a reliable connection, under the domain of the queue that is named.";
    the_queues_domain_protects_the_memory: "IBTA vol. 1, annex A14",
        "Memory of a protection domain other than the named queue's is refused.";
    write_with_immediate_takes_a_receive: "IBTA vol. 1, annex A14",
        "Of the queue that is named.";
    without_a_receive_the_sender_waits: "IBTA vol. 1, 9.7.5.2.8",
        "RNR for the queue that is empty, until one is posted.";
    an_unknown_queue_is_refused: "IBTA vol. 1, annex A14",
        "A number of no queue: REM_INV_REQ_ERR, and the target goes to ERR.";
    a_queue_of_another_domain_is_refused: "IBTA vol. 1, annex A14; ibv_open_xrcd(3)",
        "Targets reach queues of their XRC domain only.";
    an_ordinary_srq_is_refused: "IBTA vol. 1, annex A14",
        "A shared receive queue that is not for XRC is not reached.";
    a_destroyed_queue_is_refused: "ibv_destroy_srq(3)",
        "Its number names nothing any more.";
    many_targets_share_a_queue: "IBTA vol. 1, annex A14",
        "Completions report by which target each message came.";
    a_target_is_queried: "ibv_query_qp(3) (of old ibv_query_xrc_rcv_qp)",
        "State and attributes, as they were set.";
    an_initiator_has_no_receive_queue: "IBTA vol. 1, annex A14",
        "Receives posted to it are refused.";
    limits_of_receives_are_ignored: "ibv_create_qp(3), max_recv_wr, max_recv_sge",
        "An initiator is created whatever both are, and they are queried as 0.";
    a_silent_target_is_given_up: "IBTA vol. 1, 9.9.2",
        "Retries run out as on a reliable connection.";
    an_xrc_srq_serves_no_other_transport: "ibv_create_qp(3)",
        "A queue pair cannot be created on it.";
}

const OK: WcStatus = WcStatus::Success;
const REFUSED: WcStatus = WcStatus::RemInvReqErr;

/// An initiator and its target, and queues in the target's domain with their completion queue.
pub struct World {
    pub device: Device,
    pub pd: Pd,
    pub xrcd: Xrcd,
    pub qp: Qp<Xrc>,
    pub cq: Cq,
    pub target: XrcTarget,
    pub srqs: Vec<Srq>,
    pub arrivals: Cq,
    region: bellwire::Region,
    pub quiet: Quiet,
}

pub fn srq(pd: &Pd, xrcd: &Xrcd, cq: &mut Cq) -> Srq {
    let sizes = SrqInit {
        max_wr: 16,
        ..SrqInit::default()
    };
    pd.create_xrc_srq(xrcd, cq, &sizes).expect("a queue")
}

pub fn initiator(pd: &Pd) -> (Qp<Xrc>, Cq) {
    let (send, recv) = init().cq_entries_of::<Xrc>();
    let mut cq = pd.device().create_cq(send + recv).expect("a queue");
    let qp = pd.create_qp_of(&mut cq, &init()).expect("a queue pair");
    (qp, cq)
}

pub fn connect(qp: &mut Qp<Xrc>, target: &XrcTarget) {
    let attr = impatient();
    qp.init(&attr).expect("INIT");
    target.init(&attr).expect("INIT");
    qp.connect(&target.endpoint(), &attr).expect("RTS");
    target.connect(&qp.endpoint(), &attr).expect("RTS");
}

impl World {
    pub fn new(p: &Provider) -> Self {
        let device = p.device();
        let pd = device.alloc_pd();
        let xrcd = device.open_xrcd().expect("a domain");
        let mut arrivals = device.create_cq(256).expect("a queue");
        let srqs = (0..2).map(|_| srq(&pd, &xrcd, &mut arrivals)).collect();
        let (mut qp, cq) = initiator(&pd);
        let target = xrcd.create_target().expect("a target");
        connect(&mut qp, &target);
        Self {
            region: region(&pd, 1 << 16),
            device,
            pd,
            xrcd,
            qp,
            cq,
            target,
            srqs,
            arrivals,
            quiet: p.quiet,
        }
    }

    pub fn receive(&mut self, queue: usize, wr_id: u64) {
        let place = self.region.sge(0, 256);
        // SAFETY: the region outlives the request, and its memory is only ever copied out.
        unsafe { self.srqs[queue].post(wr_id, &[place]) }.expect("room");
        self.srqs[queue].ring();
    }

    pub fn go<O: Operation>(&mut self, srqn: u32, operation: O, payload: impl Payload)
    where
        Xrc: bellwire::wqe::Supports<O>,
    {
        // SAFETY: the region outlives the request, and its memory is only ever copied.
        let posted = unsafe { self.qp.sq().post(1, srqn, operation, payload, SIGNALED) };
        posted.expect("room");
        self.qp.sq().ring();
    }

    pub fn completes(&mut self, status: WcStatus) {
        let done = wait(&mut self.cq);
        assert_eq!((done.wr_id, done.status()), (1, status));
    }

    pub fn number(&self, queue: usize) -> u32 {
        self.srqs[queue].srq_num()
    }
}

fn a_message_goes_to_the_queue_it_names(p: &Provider) {
    let mut w = World::new(p);
    for round in 0..40u64 {
        let queue = (round * 7 % 3 % 2) as usize;
        w.receive(queue, round);
        let bytes = [round as u8; 80];
        w.go(w.number(queue), Send {}, Inline(&bytes));
        w.completes(OK);
        let done = wait(&mut w.arrivals);
        assert_eq!((done.wr_id, done.status()), (round, OK));
        assert_eq!(done.result.expect("received").byte_len(), Some(80));
        let mut got = [0; 80];
        w.region.read(0, &mut got);
        assert_eq!(got, bytes);
    }
    nothing(&mut w.arrivals, w.quiet);
}

fn the_completion_names_the_target(p: &Provider) {
    let mut w = World::new(p);
    w.receive(0, 5);
    w.go(w.number(0), Send {}, NoPayload);
    w.completes(OK);
    let done = wait(&mut w.arrivals);
    assert_eq!((done.wr_id, done.qp_num), (5, w.target.qp_num()));
}

fn writes_reads_and_atomics_reach_memory(p: &Provider) {
    let mut w = World::new(p);
    let (remote, number) = (w.region.remote(1024), w.number(1));
    w.go(number, RdmaWrite { remote }, Inline(&41u64.to_ne_bytes()));
    w.completes(OK);
    w.go(
        number,
        AtomicFetchAndAdd { remote, add: 1 },
        w.region.sge(0, 8),
    );
    w.completes(OK);
    w.go(number, RdmaRead { remote }, w.region.sge(8, 8));
    w.completes(OK);
    assert_eq!(w.region.word(0).load(Ordering::Acquire), 41);
    assert_eq!(w.region.word(8).load(Ordering::Acquire), 42);
    nothing(&mut w.arrivals, w.quiet);
}

fn the_queues_domain_protects_the_memory(p: &Provider) {
    let mut w = World::new(p);
    let foreign = region(&w.device.alloc_pd(), 4096);
    let remote = foreign.remote(0);
    w.go(w.number(0), RdmaWrite { remote }, Inline(&[1]));
    w.completes(WcStatus::RemAccessErr);
    let mut w = World::new(p);
    let other = w.device.alloc_pd();
    let queue = srq(&other, &w.xrcd, &mut w.arrivals);
    let theirs = region(&other, 4096);
    w.go(
        queue.srq_num(),
        RdmaWrite {
            remote: theirs.remote(0),
        },
        Inline(&[1]),
    );
    w.completes(OK);
    let remote = w.region.remote(0);
    w.go(queue.srq_num(), RdmaWrite { remote }, Inline(&[1]));
    w.completes(WcStatus::RemAccessErr);
}

fn write_with_immediate_takes_a_receive(p: &Provider) {
    let mut w = World::new(p);
    w.receive(0, 1);
    w.receive(1, 2);
    let write = RdmaWriteWithImm {
        remote: w.region.remote(512),
        imm: bellwire::be::Be32::new(9),
    };
    w.go(w.number(1), write, Inline(b"payload"));
    w.completes(OK);
    let done = wait(&mut w.arrivals);
    assert_eq!(done.wr_id, 2);
    let opcode = done.result.expect("received").opcode;
    assert_eq!(opcode, WcOpcode::RecvRdmaWithImm);
    nothing(&mut w.arrivals, w.quiet);
}

fn without_a_receive_the_sender_waits(p: &Provider) {
    let mut w = World::new(p);
    w.receive(1, 7);
    w.go(w.number(0), Send {}, NoPayload);
    nothing(&mut w.cq, w.quiet);
    w.receive(0, 8);
    w.completes(OK);
    assert_eq!(wait(&mut w.arrivals).wr_id, 8);
}

fn refused(mut w: World, srqn: u32) {
    w.receive(0, 1);
    w.go(srqn, Send {}, NoPayload);
    w.completes(REFUSED);
    assert_eq!(w.target.state(), QpState::Err);
    assert_eq!(w.qp.state(), QpState::Err);
    nothing(&mut w.arrivals, w.quiet);
}

fn an_unknown_queue_is_refused(p: &Provider) {
    for change in [1, 0x4000, 0x80_0000] {
        let w = World::new(p);
        let number = w.number(0) ^ change;
        if number != w.number(1) {
            refused(w, number);
        }
    }
    refused(World::new(p), 0);
}

fn a_queue_of_another_domain_is_refused(p: &Provider) {
    let mut w = World::new(p);
    let other = w.device.open_xrcd().expect("a domain");
    let queue = srq(&w.pd, &other, &mut w.arrivals);
    refused(w, queue.srq_num());
}

fn an_ordinary_srq_is_refused(p: &Provider) {
    let w = World::new(p);
    let queue = w.pd.create_srq(&SrqInit::default()).expect("a queue");
    refused(w, queue.srq_num());
}

fn a_destroyed_queue_is_refused(p: &Provider) {
    let mut w = World::new(p);
    let queue = w.srqs.pop().expect("two");
    let number = queue.srq_num();
    queue
        .destroy(|_, _| ())
        .map_err(|(_, error)| error)
        .expect("nobody uses it");
    refused(w, number);
}

fn many_targets_share_a_queue(p: &Provider) {
    let mut w = World::new(p);
    let (mut second, mut cq) = initiator(&w.pd);
    let target = w.xrcd.create_target().expect("a target");
    connect(&mut second, &target);
    let number = w.number(0);
    for round in 0..20 {
        w.receive(0, round);
        let by = if round % 3 == 0 {
            let posted = second.sq().post_empty(1, number, Send {}, SIGNALED);
            posted.expect("room");
            second.sq().ring();
            assert_eq!(wait(&mut cq).status(), OK);
            target.qp_num()
        } else {
            w.go(number, Send {}, NoPayload);
            w.completes(OK);
            w.target.qp_num()
        };
        let done = wait(&mut w.arrivals);
        assert_eq!((done.wr_id, done.qp_num), (round, by));
    }
}

fn a_target_is_queried(p: &Provider) {
    let w = World::new(p);
    let attr = w.target.query();
    assert_eq!(attr.qp_state, QpState::Rts);
    assert_eq!(attr.dest_qp_num, w.qp.qp_num());
    assert_eq!(attr.qp_access_flags, impatient().access);
    let closed = bellwire::state::QpAttr {
        qp_access_flags: AccessFlags::empty(),
        ..attr
    };
    let mask = bellwire::state::QpAttrMask::ACCESS_FLAGS;
    w.target.modify(&closed, mask).expect("in RTS");
    assert_eq!(w.target.query().qp_access_flags, AccessFlags::empty());
}

fn an_initiator_has_no_receive_queue(p: &Provider) {
    const { assert!(!<Xrc as QpTransport>::RECEIVES) };
    let mut w = World::new(p);
    // SAFETY: refused, and names no memory.
    let refused = unsafe { w.qp.rq().post(1, &[]) };
    assert_eq!(refused, Err(bellwire::queue::PostError::NoRecvQueue));
}

fn a_silent_target_is_given_up(p: &Provider) {
    let mut w = World::new(p);
    let remote = Remote { addr: 0, rkey: 0 };
    let number = w.number(0);
    let World { target, .. } = &w;
    let attr = bellwire::state::QpAttr {
        qp_state: QpState::Err,
        ..Default::default()
    };
    target
        .modify(&attr, bellwire::state::QpAttrMask::STATE)
        .expect("ERR");
    w.go(number, RdmaWrite { remote }, NoPayload);
    w.completes(WcStatus::RetryExcErr);
}

fn limits_of_receives_are_ignored(p: &Provider) {
    let w = World::new(p);
    for beyond in [0, u32::MAX] {
        let init = QpInit {
            max_recv_wr: beyond,
            max_recv_sge: beyond,
            ..init()
        };
        let mut cq = w.device.create_cq(1024).expect("a queue");
        let made = w.pd.create_qp_of::<Xrc>(&mut cq, &init);
        let qp = made.unwrap_or_else(|error| panic!("{beyond}: {error}"));
        let cap = qp.query().cap;
        assert_eq!((cap.max_recv_wr, cap.max_recv_sge), (0, 0), "{beyond}");
        assert!(cap.max_send_wr >= init.max_send_wr);
    }
}

fn an_xrc_srq_serves_no_other_transport(p: &Provider) {
    let mut w = World::new(p);
    let mut cq = w.device.create_cq(1024).expect("a queue");
    let refused = w.pd.create_qp_on_srq::<Rc>(&mut cq, &w.srqs[0], &init());
    assert!(matches!(refused, Err(Error::XrcSrq { .. })), "{refused:?}");
    w.receive(0, 1);
}
