//! What a completion says, and on which queue.

use crate::provider::Provider;
use crate::rule::rules;
use crate::support::completes;
use bellwire::be::Be32;
use bellwire::queue::Imm;
use bellwire::wqe::*;
use bellwire::wr::{Remote, WcOpcode, WcStatus};
use bellwire::{ConnectAttr, Cqs, Qp};
use bellwire_tests::fixture::*;
use std::collections::HashMap;

rules! {
    "outcome", "What a completion says, and on which queue.", needs [Rc];
    an_error_says_no_more_than_it_may: "ibv_poll_cq(3)",
        "Of a failed request there are identifier, queue pair, status and vendor code, no more.";
    a_completion_belongs_to_its_queue_by_its_opcode: "ibv_poll_cq(3), IBV_WC_RECV",
        "Completions of receives have the RECV bit in their opcode, those of sends have not.";
    a_completion_names_its_queue_pair: "ibv_poll_cq(3), qp_num",
        "On a completion queue of many queue pairs each completion names its own.";
    send_and_receive_may_complete_apart: "ibv_create_qp(3), send_cq and recv_cq",
        "With two completion queues sends complete on one, receives on the other.";
    immediate_data_is_in_the_order_of_the_wire: "ibv_poll_cq(3), imm_data",
        "Immediate data comes out as the bytes that went in.";
    byte_len_is_there_where_it_is_defined: "ibv_poll_cq(3), byte_len",
        "Receives, READs and atomics have a length; SENDs and WRITEs have none.";
    a_poll_takes_no_more_than_asked: "ibv_poll_cq(3), num_entries",
        "A poll gives at the most as many completions as asked for, and keeps the others.";
    a_completion_is_polled_once: "IBTA vol. 1, 11.4.2.1",
        "A poll takes a completion away.";
}

fn next_ok(end: &mut End, wr_id: u64) -> bellwire::queue::Success {
    let done = end.wait();
    assert_eq!(done.wr_id, wr_id);
    done.result.expect("executed")
}

fn an_error_says_no_more_than_it_may(p: &Provider) {
    let (mut a, _b) = p.pair();
    let remote = Remote { addr: 0, rkey: 1 };
    a.go(4, RdmaWrite { remote }, Inline(&[1]));
    let failed = a.wait();
    assert_eq!((failed.wr_id, failed.qp_num), (4, a.qp.qp_num()));
    assert_eq!(failed.status(), WcStatus::RemAccessErr);
    // Opcode, length and immediate are in the `Ok` that there is none of.
    let failure = failed.result.expect_err("it failed");
    assert_eq!(failure.status, WcStatus::RemAccessErr);
    let text = failure.to_string();
    assert!(
        text.contains("REM_ACCESS_ERR") && text.contains("vendor"),
        "{text}"
    );
}

fn a_completion_belongs_to_its_queue_by_its_opcode(p: &Provider) {
    let (mut a, mut b) = p.pair();
    let (remote, imm) = (b.region.remote(0), Be32::new(1));
    b.receive(70, &[]);
    b.receive(71, &[]);
    a.go(1, Send {}, NoPayload);
    a.go(2, RdmaWriteWithImm { remote, imm }, NoPayload);
    a.go(3, RdmaRead { remote }, a.region.sge(0, 8));
    for (wr_id, opcode) in [
        (1, WcOpcode::Send),
        (2, WcOpcode::RdmaWrite),
        (3, WcOpcode::RdmaRead),
    ] {
        let done = next_ok(&mut a, wr_id);
        assert!(done.opcode == opcode && !done.opcode.is_recv());
        assert_eq!(done.opcode.number() & 128, 0);
    }
    for (wr_id, opcode) in [(70, WcOpcode::Recv), (71, WcOpcode::RecvRdmaWithImm)] {
        let done = next_ok(&mut b, wr_id);
        assert!(done.opcode == opcode && done.opcode.is_recv());
        assert_ne!(done.opcode.number() & 128, 0);
    }
}

fn a_completion_names_its_queue_pair(p: &Provider) {
    const PAIRS: usize = 10;
    let device = p.device();
    let pd = device.alloc_pd();
    let (send, recv) = init().cq_entries();
    let mut cq = device.create_cq((send + recv) * 2 * PAIRS as u32).unwrap();
    let mut qps: Vec<Qp> = (0..2 * PAIRS)
        .map(|_| pd.create_qp(&mut cq, &init()).unwrap())
        .collect();
    let (left, right) = qps.split_at_mut(PAIRS);
    for (a, b) in left.iter_mut().zip(right) {
        connect_with(a, b, &ConnectAttr::default());
    }
    for round in 0..50u64 {
        for at in 0..PAIRS {
            let id = round << 8 | at as u64;
            post_recv(&mut qps[PAIRS + at], id, &[]).unwrap();
            qps[PAIRS + at].rq().ring();
            post(&mut qps[at], id, Send {}, NoPayload, SIGNALED).unwrap();
            qps[at].sq().ring();
        }
        let mut counts = HashMap::new();
        for _ in 0..2 * PAIRS {
            let done = wait(&mut cq);
            let at = (done.wr_id & 0xff) as usize;
            assert_eq!((done.wr_id >> 8, done.status()), (round, WcStatus::Success));
            let received = done.result.unwrap().opcode.is_recv();
            let end = if received { PAIRS + at } else { at };
            assert_eq!(done.qp_num, qps[end].qp_num());
            *counts.entry(end).or_insert(0) += 1;
        }
        assert_eq!(counts, (0..2 * PAIRS).map(|end| (end, 1)).collect());
    }
    nothing(&mut cq, p.quiet);
}

fn send_and_receive_may_complete_apart(p: &Provider) {
    let device = p.device();
    let pd = device.alloc_pd();
    let (send, recv) = init().cq_entries();
    let mut sends = device.create_cq(2 * send).unwrap();
    let mut recvs = device.create_cq(2 * recv).unwrap();
    let mut create = || {
        pd.create_qp(Cqs::Split(&mut sends, &mut recvs), &init())
            .unwrap()
    };
    let (mut a, mut b) = (create(), create());
    connect_with(&mut a, &mut b, &ConnectAttr::default());
    let both = [&mut a, &mut b];
    for (from, to) in [(0, 1), (1, 0)] {
        post_recv(both[to], 70, &[]).unwrap();
        both[to].rq().ring();
        post(both[from], 7, Send {}, NoPayload, SIGNALED).unwrap();
        both[from].sq().ring();
        let (sent, received) = (wait(&mut sends), wait(&mut recvs));
        assert_eq!((sent.wr_id, sent.qp_num), (7, both[from].qp_num()));
        assert_eq!((received.wr_id, received.qp_num), (70, both[to].qp_num()));
        assert_eq!(received.status(), WcStatus::Success);
    }
    // Flushed ones too.
    post_recv(both[0], 71, &[]).unwrap();
    both[0].rq().ring();
    both[0].to_error().unwrap();
    post(both[0], 8, Send {}, NoPayload, SIGNALED).unwrap();
    both[0].sq().ring();
    for (cq, wr_id) in [(&mut sends, 8), (&mut recvs, 71)] {
        let done = wait(cq);
        assert_eq!((done.wr_id, done.status()), (wr_id, WcStatus::WrFlushErr));
        nothing(cq, p.quiet);
    }
    let cqs = Cqs::Split(&mut sends, &mut recvs);
    both[0]
        .reset(cqs, |_, _| panic!("reported already"))
        .unwrap();
}

fn immediate_data_is_in_the_order_of_the_wire(p: &Provider) {
    let (mut a, mut b) = p.pair();
    let imm = Be32::new(0x0102_0304);
    // As C's htonl has it: the first byte of memory is the highest.
    b.receive(70, &[]);
    a.go(1, SendWithImm { imm }, NoPayload);
    match next_ok(&mut b, 70).imm() {
        Imm::Data(data) => assert_eq!((data, data.get()), (imm, 0x0102_0304)),
        other => panic!("{other:?}"),
    }
}

fn byte_len_is_there_where_it_is_defined(p: &Provider) {
    let (mut a, mut b) = p.pair();
    let (remote, imm) = (b.region.remote(0), Be32::new(1));
    let here = |length| a.region.sge(0, length);
    let (some, word) = (here(100), here(8));
    for wr_id in 70..73 {
        b.receive(wr_id, &[b.region.sge(0, 200)]);
    }
    a.go(1, Send {}, some);
    a.go(2, SendWithImm { imm }, some);
    a.go(3, RdmaWrite { remote }, some);
    a.go(4, RdmaWriteWithImm { remote, imm }, some);
    a.go(5, RdmaRead { remote }, some);
    a.go(6, AtomicFetchAndAdd { remote, add: 1 }, word);
    a.go(
        7,
        AtomicCmpAndSwp {
            remote,
            compare: 0,
            swap: 1,
        },
        word,
    );
    let lengths = [None, None, None, None, Some(100), Some(8), Some(8)];
    for (wr_id, length) in (1..).zip(lengths) {
        assert_eq!(next_ok(&mut a, wr_id).byte_len(), length, "request {wr_id}");
    }
    for wr_id in 70..73 {
        assert_eq!(next_ok(&mut b, wr_id).byte_len(), Some(100));
    }
}

fn a_poll_takes_no_more_than_asked(p: &Provider) {
    let (mut a, b) = p.pair();
    let remote = b.region.remote(0);
    for wr_id in 0..10 {
        a.post(wr_id, RdmaWrite { remote }, NoPayload, SIGNALED)
            .unwrap();
    }
    a.qp.sq().ring();
    let mut next = 0;
    until("ten completions", || {
        let count = a.cq.poll(3, |done| {
            assert_eq!(done.wr_id, next);
            next += 1;
        });
        assert!(count <= 3);
        next == 10
    });
}

fn a_completion_is_polled_once(p: &Provider) {
    let (mut a, mut b) = p.pair();
    // More often than the queue has entries.
    for round in 0..u64::from(a.cq.capacity()) * 2 {
        b.receive(round, &[]);
        a.go(round, Send {}, NoPayload);
        completes(&mut a, round, WcStatus::Success);
        completes(&mut b, round, WcStatus::Success);
    }
    a.nothing();
    b.nothing();
}
