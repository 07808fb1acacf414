//! What completes, in which order, and what a completion says.

use crate::provider::Provider;
use crate::rule::rules;
use crate::support::told;
use bellwire::be::Be32;
use bellwire::queue::{Completion, Imm};
use bellwire::wqe::*;
use bellwire::wr::{Remote, SendFlags, WcOpcode, WcStatus};
use bellwire::{ConnectAttr, Cqs, Qp, QpInit};
use bellwire_tests::fixture::*;
use std::collections::HashMap;

rules! {
    "completion", "What completes, in which order, and what a completion says.", needs [Rc];
    sends_complete_in_the_order_they_were_posted: "IBTA vol. 1, 10.8.3.1",
        "Completions of one send queue come in the order of its requests, whatever they are.";
    receives_complete_in_the_order_they_were_posted: "IBTA vol. 1, 10.8.3.1",
        "Completions of one receive queue come in the order of its receives.";
    unsignalled_requests_complete_with_the_next_signalled: "ibv_post_send(3), IBV_SEND_SIGNALED",
        "An unsignalled request has no entry; the next signalled one tells how many it retires.";
    unsignalled_requests_alone_tell_nothing: "ibv_post_send(3), IBV_SEND_SIGNALED",
        "Unsignalled requests that succeed write no completion.";
    slots_come_back_with_the_signalled: "ibv_post_send(3)",
        "A completion gives the room of the unsignalled requests before it back.";
    every_request_of_sq_sig_all_is_told: "ibv_create_qp(3), sq_sig_all",
        "With `sq_sig_all` every send request completes with an entry of its own.";
    errors_complete_though_unsignalled: "IBTA vol. 1, 10.7.3.1",
        "A request that fails completes, signalled or not.";
    flushed_requests_complete_though_unsignalled: "IBTA vol. 1, 10.3.1.7",
        "A request that is flushed completes, signalled or not.";
    receives_always_complete: "IBTA vol. 1, 10.7.3.1",
        "Every receive that is consumed completes: there are no unsignalled ones.";
    the_failed_comes_first_then_the_flushed: "IBTA vol. 1, 10.3.1.7",
        "The request that fails completes with its error, those behind it as flushed, in order.";
    those_before_the_failed_succeed: "IBTA vol. 1, 10.3.1.7",
        "Requests before the one that fails are told as executed.";
    nothing_comes_after_the_last: "ibv_poll_cq(3)",
        "When everything was told a poll gives nothing, and goes on giving nothing.";
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
    a_completion_is_told_once: "IBTA vol. 1, 11.4.2.1",
        "A poll takes a completion away.";
}

const SILENT: SendFlags = SendFlags::empty();
/// A key of nobody.
const BAD: Remote = Remote { addr: 0, rkey: 1 };

fn next_ok(end: &mut End, wr_id: u64) -> bellwire::queue::Success {
    let done = end.wait();
    assert_eq!(done.wr_id, wr_id);
    done.result.expect("executed")
}

fn sends_complete_in_the_order_they_were_posted(p: &Provider) {
    let (mut a, mut b) = p.pair();
    let remote = b.region.remote(0);
    for round in 0..20 {
        b.receive(70, &[]);
        let here = a.region.sge(0, 8);
        let long = a.region.sge(0, 60_000);
        a.post(round * 5, RdmaRead { remote }, long, SIGNALED)
            .unwrap();
        a.post(
            round * 5 + 1,
            RdmaWrite { remote },
            Inline(&[1; 8]),
            SIGNALED,
        )
        .unwrap();
        a.post(
            round * 5 + 2,
            AtomicFetchAndAdd { remote, add: 1 },
            here,
            SIGNALED,
        )
        .unwrap();
        a.post(round * 5 + 3, Send {}, NoPayload, SIGNALED).unwrap();
        a.post(round * 5 + 4, RdmaWrite { remote }, NoPayload, SIGNALED)
            .unwrap();
        a.qp.sq().ring();
        for at in 0..5 {
            told(&mut a, round * 5 + at, WcStatus::Success);
        }
        told(&mut b, 70, WcStatus::Success);
    }
}

fn receives_complete_in_the_order_they_were_posted(p: &Provider) {
    let (mut a, mut b) = p.pair();
    let (remote, imm) = (b.region.remote(0), Be32::new(1));
    for wr_id in 0..40 {
        b.receive(wr_id, &[b.region.sge(0, 100)]);
    }
    for wr_id in 0..20 {
        a.go(wr_id, RdmaWriteWithImm { remote, imm }, NoPayload);
        a.go(wr_id, Send {}, Inline(&[1; 100][..wr_id as usize * 5]));
    }
    for wr_id in 0..40 {
        told(&mut b, wr_id, WcStatus::Success);
    }
}

fn unsignalled_requests_complete_with_the_next_signalled(p: &Provider) {
    let (mut a, b) = p.pair();
    let remote = b.region.remote(0);
    let mut random = Random::new(6);
    for round in 0..200 {
        let silent = random.below(40) as u32;
        for at in 0..silent {
            let flags = if at % 3 == 0 {
                SendFlags::FENCE
            } else {
                SILENT
            };
            let length = random.below(150) as usize;
            let bytes = [1; 150];
            a.post(
                u64::MAX,
                RdmaWrite { remote },
                Inline(&bytes[..length]),
                flags,
            )
            .unwrap();
            if random.below(4) == 0 {
                a.qp.sq().ring();
            }
        }
        a.go(round, RdmaWrite { remote }, Inline(&[2; 8]));
        let done = a.wait();
        assert_eq!((done.wr_id, done.status()), (round, WcStatus::Success));
        assert_eq!(done.retired, silent + 1);
    }
    a.nothing();
}

fn unsignalled_requests_alone_tell_nothing(p: &Provider) {
    let (mut a, mut b) = p.pair();
    for wr_id in 0..20 {
        b.receive(wr_id, &[]);
        a.post(wr_id, Send {}, NoPayload, SILENT).unwrap();
    }
    a.qp.sq().ring();
    for wr_id in 0..20 {
        told(&mut b, wr_id, WcStatus::Success);
    }
    a.nothing();
}

fn slots_come_back_with_the_signalled(p: &Provider) {
    let (mut a, b) = p.pair();
    let remote = b.region.remote(0);
    let free = a.qp.sq().free_blocks();
    for round in 0..200u64 {
        for _ in 0..round % 50 {
            a.post(0, RdmaWrite { remote }, Inline(&[1; 100]), SILENT)
                .unwrap();
        }
        a.go(round, RdmaWrite { remote }, NoPayload);
        assert!(a.qp.sq().free_blocks() < free);
        told(&mut a, round, WcStatus::Success);
        assert_eq!(a.qp.sq().free_blocks(), free);
    }
}

fn every_request_of_sq_sig_all_is_told(p: &Provider) {
    let device = p.device();
    let pd = device.alloc_pd();
    let init = QpInit {
        sq_sig_all: true,
        ..init()
    };
    let (mut a, mut b) = (End::new(&pd, p.quiet, &init), End::new(&pd, p.quiet, &init));
    connect_with(&mut a.qp, &mut b.qp, &ConnectAttr::default());
    let remote = b.region.remote(0);
    for wr_id in 0..20 {
        a.post(wr_id, RdmaWrite { remote }, NoPayload, SILENT)
            .unwrap();
    }
    a.qp.sq().ring();
    for wr_id in 0..20 {
        let done = a.wait();
        assert_eq!((done.wr_id, done.retired), (wr_id, 1));
    }
    a.nothing();
}

fn errors_complete_though_unsignalled(p: &Provider) {
    let (mut a, _b) = p.pair();
    a.post(1, RdmaWrite { remote: BAD }, Inline(&[1]), SILENT)
        .unwrap();
    a.qp.sq().ring();
    told(&mut a, 1, WcStatus::RemAccessErr);
}

fn flushed_requests_complete_though_unsignalled(p: &Provider) {
    let (mut a, _b) = p.pair();
    a.qp.to_error().unwrap();
    for wr_id in 0..10 {
        a.post(wr_id, Send {}, NoPayload, SILENT).unwrap();
    }
    a.qp.sq().ring();
    for wr_id in 0..10 {
        told(&mut a, wr_id, WcStatus::WrFlushErr);
    }
}

fn receives_always_complete(p: &Provider) {
    let (mut a, mut b) = p.pair();
    for wr_id in 0..20 {
        b.receive(wr_id, &[]);
    }
    for wr_id in 0..20 {
        a.post(wr_id, Send {}, NoPayload, SILENT).unwrap();
        a.qp.sq().ring();
        let done = b.wait();
        assert_eq!((done.wr_id, done.retired), (wr_id, 1));
    }
    b.nothing();
}

/// Ten requests, signalled every other time, of which number four fails.
fn four_fails(p: &Provider) -> (End, End) {
    let (mut a, b) = p.pair();
    let good = b.region.remote(0);
    for wr_id in 0..10 {
        let remote = if wr_id == 4 { BAD } else { good };
        let flags = if wr_id % 2 == 1 { SIGNALED } else { SILENT };
        a.post(wr_id, RdmaWrite { remote }, Inline(&[1]), flags)
            .unwrap();
    }
    a.qp.sq().ring();
    (a, b)
}

fn the_failed_comes_first_then_the_flushed(p: &Provider) {
    let (mut a, _b) = four_fails(p);
    told(&mut a, 1, WcStatus::Success);
    told(&mut a, 3, WcStatus::Success);
    told(&mut a, 4, WcStatus::RemAccessErr);
    for wr_id in 5..10 {
        told(&mut a, wr_id, WcStatus::WrFlushErr);
    }
}

fn those_before_the_failed_succeed(p: &Provider) {
    let (mut a, _b) = four_fails(p);
    let all: Vec<Completion<'_>> = (0..8).map(|_| a.wait()).collect();
    let retired: Vec<u32> = all.iter().map(|done| done.retired).collect();
    assert_eq!(retired, [2, 2, 1, 1, 1, 1, 1, 1], "each request once");
    assert!(all[..2].iter().all(|done| done.result.is_ok()));
    assert!(all[2..].iter().all(|done| done.result.is_err()));
}

fn nothing_comes_after_the_last(p: &Provider) {
    let (mut a, mut b) = four_fails(p);
    for _ in 0..8 {
        let _told = a.wait();
    }
    for _ in 0..3 {
        a.nothing();
        b.nothing();
    }
    assert!(a.reset().is_empty());
    assert_eq!((a.cq.stale(), b.cq.stale()), (0, 0));
}

fn an_error_says_no_more_than_it_may(p: &Provider) {
    let (mut a, _b) = four_fails(p);
    let (_, _, failed) = (a.wait(), a.wait(), a.wait());
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
        let mut told = HashMap::new();
        for _ in 0..2 * PAIRS {
            let done = wait(&mut cq);
            let at = (done.wr_id & 0xff) as usize;
            assert_eq!((done.wr_id >> 8, done.status()), (round, WcStatus::Success));
            let received = done.result.unwrap().opcode.is_recv();
            let end = if received { PAIRS + at } else { at };
            assert_eq!(done.qp_num, qps[end].qp_num());
            *told.entry(end).or_insert(0) += 1;
        }
        assert_eq!(told, (0..2 * PAIRS).map(|end| (end, 1)).collect());
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
    both[0].reset(cqs, |_, _| panic!("told already")).unwrap();
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

fn a_completion_is_told_once(p: &Provider) {
    let (mut a, mut b) = p.pair();
    // More often than the queue has entries.
    for round in 0..u64::from(a.cq.capacity()) * 2 {
        b.receive(round, &[]);
        a.go(round, Send {}, NoPayload);
        told(&mut a, round, WcStatus::Success);
        told(&mut b, round, WcStatus::Success);
    }
    a.nothing();
    b.nothing();
}
