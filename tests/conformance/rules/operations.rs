//! What arrives, and what is reported of it: every operation of a reliable connection.

use crate::provider::Provider;
use crate::rule::rules;
use crate::support::completes;
use bellwire::be::Be32;
use bellwire::queue::{Imm, Success};
use bellwire::wqe::*;
use bellwire::wr::{Remote, SendFlags, Sge, WcOpcode, WcStatus};
use bellwire::{ConnectAttr, QpInit};
use bellwire_tests::fixture::*;
use std::sync::atomic::Ordering;

rules! {
    "operations::rc", "Data that arrives, and its completions.", needs [Rc];
    send_completes_on_both_sides: "IBTA vol. 1, 9.4.1",
        "A SEND consumes the peer's next receive; both complete, as SEND and as RECV.";
    send_without_immediate_brings_none: "ibv_poll_cq(3)",
        "A receive that a plain SEND consumed has no immediate data.";
    send_with_immediate_brings_it: "IBTA vol. 1, 9.4.1",
        "SEND with immediate gives the receiver the four bytes, in the order of the wire.";
    write_consumes_no_receive: "IBTA vol. 1, 9.4.3",
        "An RDMA WRITE consumes no receive, and does not notify its peer.";
    write_with_immediate_consumes_a_receive: "IBTA vol. 1, 9.4.3",
        "RDMA WRITE with immediate writes where it names, and completes the peer's next receive \
         as RECV_RDMA_WITH_IMM.";
    write_with_immediate_leaves_the_receive_memory: "IBTA vol. 1, 9.4.3",
        "The receive that a WRITE with immediate consumes keeps its memory as it was.";
    read_consumes_no_receive: "IBTA vol. 1, 9.4.4",
        "An RDMA READ consumes no receive, does not notify its peer, and completes with its length.";
    fetch_and_add_gives_the_old_value: "IBTA vol. 1, 9.4.5",
        "Fetch and add adds, wrapping around, and gives the value before.";
    compare_and_swap_swaps_what_is_equal: "IBTA vol. 1, 9.4.5",
        "Compare and swap writes when the values are equal, and gives the value before.";
    compare_and_swap_leaves_what_differs: "IBTA vol. 1, 9.4.5",
        "Compare and swap writes nothing when the values differ, and gives the value found.";
    an_atomic_result_may_be_cut_up: "ibv_post_send(3)",
        "The eight bytes of an atomic's result may go to several elements.";
    atomics_of_two_requesters_lose_nothing: "IBTA vol. 1, 9.4.5.1",
        "Atomics of several queue pairs on one word are atomic to each other.";
    inline_memory_is_free_once_posted: "ibv_post_send(3), IBV_SEND_INLINE",
        "Inline data is copied when it is posted: its memory may change at once.";
    nop_does_nothing_and_completes [Nop]: "verbs have none; mlx5 opcode NOP",
        "A NOP completes, and the peer sees nothing of it.";
    empty_messages_need_no_key: "IBTA vol. 1, C9-88",
        "Operations of no bytes succeed whatever addresses and keys they name.";
    empty_sends_consume_receives: "IBTA vol. 1, 9.4.1",
        "A SEND of no bytes consumes a receive, which completes with length zero.";
    solicited_is_reported: "IBTA vol. 1, 9.2.3",
        "The solicited bit of SEND and WRITE with immediate arrives; without it none does.";
    a_queue_pair_may_be_connected_with_itself: "ibv_modify_qp(3)",
        "A queue pair connected with itself sends to its own receives.";
    a_queue_pair_talks_both_ways: "IBTA vol. 1, 9.7",
        "Both ends of a connection are requester and responder at once.";
    blocks_go_out_and_come_back: "bellwire, Block",
        "The buffer of a request comes back with its completion, on either side.";
}

const IMM: Be32 = Be32::new(0xdead_beef);

fn done(end: &mut End, wr_id: u64) -> Success {
    let completion = end.wait();
    assert_eq!(
        (completion.wr_id, completion.qp_num),
        (wr_id, end.qp.qp_num())
    );
    completion.result.expect("executed")
}

/// The next two outcomes, by identifier: between the two queues there is no order.
fn two(end: &mut End) -> [(u64, WcStatus); 2] {
    let mut outcomes = [end.outcome(), end.outcome()];
    outcomes.sort_by_key(|(wr_id, _)| *wr_id);
    outcomes
}

fn word(end: &End, offset: usize) -> u64 {
    end.region.word(offset).load(Ordering::Acquire)
}

fn send_completes_on_both_sides(p: &Provider) {
    let (mut a, mut b) = p.pair();
    b.receive(70, &[b.region.sge(0, 64)]);
    a.region.write(0, &7u64.to_ne_bytes());
    a.go(7, Send {}, a.region.sge(0, 8));
    assert_eq!(done(&mut a, 7).opcode, WcOpcode::Send);
    let received = done(&mut b, 70);
    assert_eq!(
        (received.opcode, received.byte_len()),
        (WcOpcode::Recv, Some(8))
    );
    assert_eq!(word(&b, 0), 7);
}

fn send_without_immediate_brings_none(p: &Provider) {
    let (mut a, mut b) = p.pair();
    b.receive(70, &[]);
    a.go(7, Send {}, NoPayload);
    assert_eq!(done(&mut b, 70).imm(), Imm::None);
}

fn send_with_immediate_brings_it(p: &Provider) {
    let (mut a, mut b) = p.pair();
    b.receive(70, &[b.region.sge(0, 64)]);
    a.go(7, SendWithImm { imm: IMM }, Inline(&7u64.to_ne_bytes()));
    assert_eq!(done(&mut a, 7).opcode, WcOpcode::Send);
    let received = done(&mut b, 70);
    assert_eq!(
        (received.opcode, received.imm()),
        (WcOpcode::Recv, Imm::Data(IMM))
    );
    assert_eq!(word(&b, 0), 7);
}

fn write_consumes_no_receive(p: &Provider) {
    let (mut a, mut b) = p.pair();
    b.receive(70, &[]);
    let remote = b.region.remote(8);
    a.go(7, RdmaWrite { remote }, Inline(&7u64.to_ne_bytes()));
    assert_eq!(done(&mut a, 7).opcode, WcOpcode::RdmaWrite);
    assert_eq!((word(&b, 0), word(&b, 8), word(&b, 16)), (0, 7, 0));
    b.nothing();
    assert_eq!(b.reset(), [70]);
}

fn write_with_immediate_consumes_a_receive(p: &Provider) {
    let (mut a, mut b) = p.pair();
    b.receive(70, &[]);
    let remote = b.region.remote(8);
    a.go(
        7,
        RdmaWriteWithImm { remote, imm: IMM },
        Inline(&7u64.to_ne_bytes()),
    );
    assert_eq!(done(&mut a, 7).opcode, WcOpcode::RdmaWrite);
    let received = done(&mut b, 70);
    let expected = (WcOpcode::RecvRdmaWithImm, Some(8), Imm::Data(IMM));
    assert_eq!(
        (received.opcode, received.byte_len(), received.imm()),
        expected
    );
    assert_eq!(word(&b, 8), 7);
}

fn write_with_immediate_leaves_the_receive_memory(p: &Provider) {
    let (mut a, mut b) = p.pair();
    b.receive(70, &[b.region.sge(64, 64)]);
    let remote = b.region.remote(0);
    a.go(
        7,
        RdmaWriteWithImm { remote, imm: IMM },
        Inline(&[0xff; 32]),
    );
    done(&mut b, 70);
    assert_eq!(word(&b, 64), 0);
}

fn read_consumes_no_receive(p: &Provider) {
    let (mut a, mut b) = p.pair();
    b.receive(70, &[]);
    b.region.write(16, &7u64.to_ne_bytes());
    let remote = b.region.remote(16);
    a.go(7, RdmaRead { remote }, a.region.sge(0, 8));
    let read = done(&mut a, 7);
    assert_eq!(
        (read.opcode, read.byte_len()),
        (WcOpcode::RdmaRead, Some(8))
    );
    assert_eq!((word(&a, 0), word(&b, 16)), (7, 7));
    b.nothing();
    assert_eq!(b.reset(), [70]);
}

fn fetch_and_add_gives_the_old_value(p: &Provider) {
    let (mut a, b) = p.pair();
    let mut random = Random::new(5);
    let mut expected = 0u64;
    for wr_id in 0..50 {
        let (remote, add) = (b.region.remote(40), random.number());
        a.go(wr_id, AtomicFetchAndAdd { remote, add }, a.region.sge(0, 8));
        let done = done(&mut a, wr_id);
        assert_eq!(
            (done.opcode, done.byte_len()),
            (WcOpcode::FetchAdd, Some(8))
        );
        assert_eq!(word(&a, 0), expected);
        expected = expected.wrapping_add(add);
        assert_eq!(word(&b, 40), expected);
    }
}

/// Swaps in 9 where 3 stands, if that is `compare`; gives what stands there then.
fn compare_and_swap(p: &Provider, compare: u64) -> u64 {
    let (mut a, b) = p.pair();
    b.region.word(40).store(3, Ordering::Release);
    let (remote, swap) = (b.region.remote(40), 9);
    let operation = AtomicCmpAndSwp {
        remote,
        compare,
        swap,
    };
    a.go(7, operation, a.region.sge(0, 8));
    let done = done(&mut a, 7);
    assert_eq!(
        (done.opcode, done.byte_len()),
        (WcOpcode::CompSwap, Some(8))
    );
    assert_eq!(word(&a, 0), 3, "what was found");
    word(&b, 40)
}

fn compare_and_swap_swaps_what_is_equal(p: &Provider) {
    assert_eq!(compare_and_swap(p, 3), 9);
}

fn compare_and_swap_leaves_what_differs(p: &Provider) {
    assert_eq!(compare_and_swap(p, 4), 3);
    // All eight bytes count.
    assert_eq!(compare_and_swap(p, 3 | 1 << 63), 3);
}

fn an_atomic_result_may_be_cut_up(p: &Provider) {
    let (mut a, b) = p.pair();
    let old = 0x0102_0304_0506_0708u64;
    for cut in 0..=8 {
        b.region.word(40).store(old, Ordering::Release);
        let result = [a.region.sge(100, cut), a.region.sge(200, 8 - cut)];
        let remote = b.region.remote(40);
        a.go(7, AtomicFetchAndAdd { remote, add: 1 }, &result[..]);
        done(&mut a, 7);
        let mut bytes = [0; 8];
        a.region.read(100, &mut bytes[..cut as usize]);
        a.region.read(200, &mut bytes[cut as usize..]);
        assert_eq!(u64::from_ne_bytes(bytes), old, "cut at {cut}");
    }
}

fn atomics_of_two_requesters_lose_nothing(p: &Provider) {
    const COUNT: u64 = 2000;
    let device = p.device();
    let pd = device.alloc_pd();
    let target = region(&pd, 4096);
    let add = |mut a: End, mut b: End, remote: Remote| {
        connect_with(&mut a.qp, &mut b.qp, &ConnectAttr::default());
        for wr_id in 0..COUNT {
            a.go(
                wr_id,
                AtomicFetchAndAdd { remote, add: 1 },
                a.region.sge(0, 8),
            );
            completes(&mut a, wr_id, WcStatus::Success);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let [a, b] = [(); 2].map(|()| End::new(&pd, p.quiet, &init()));
            let remote = target.remote(0);
            scope.spawn(move || add(a, b, remote));
        }
    });
    assert_eq!(target.word(0).load(Ordering::Acquire), 2 * COUNT);
}

fn inline_memory_is_free_once_posted(p: &Provider) {
    let (mut a, b) = p.pair();
    let remote = b.region.remote(0);
    let mut bytes = 7u64.to_ne_bytes();
    a.post(7, RdmaWrite { remote }, Inline(&bytes), SIGNALED)
        .unwrap();
    bytes.fill(0xff);
    std::hint::black_box(&bytes);
    a.qp.sq().ring();
    done(&mut a, 7);
    assert_eq!(word(&b, 0), 7);
}

fn nop_does_nothing_and_completes(p: &Provider) {
    let (mut a, mut b) = p.pair();
    a.go(7, Nop {}, NoPayload);
    assert_eq!(done(&mut a, 7).opcode, WcOpcode::Nop);
    b.nothing();
}

fn empty_messages_need_no_key(p: &Provider) {
    let (mut a, mut b) = p.pair();
    let remote = Remote {
        addr: 0x1234_5678,
        rkey: 0x9abc_def0,
    };
    let empty = Sge {
        addr: 1,
        length: 0,
        lkey: 0x1111,
    };
    a.go(1, RdmaWrite { remote }, NoPayload);
    a.go(2, RdmaRead { remote }, empty);
    a.go(3, RdmaWrite { remote }, Inline(b""));
    b.receive(70, &[]);
    b.receive(71, &[]);
    a.go(4, RdmaWriteWithImm { remote, imm: IMM }, empty);
    a.go(5, Send {}, &[empty, empty][..]);
    for wr_id in 1..=5 {
        completes(&mut a, wr_id, WcStatus::Success);
    }
    completes(&mut b, 70, WcStatus::Success);
    completes(&mut b, 71, WcStatus::Success);
}

fn empty_sends_consume_receives(p: &Provider) {
    let (mut a, mut b) = p.pair();
    b.receive(70, &[b.region.sge(0, 8)]);
    b.receive(71, &[]);
    a.go(1, Send {}, NoPayload);
    a.go(2, Send {}, NoPayload);
    assert_eq!(done(&mut b, 70).byte_len(), Some(0));
    assert_eq!(done(&mut b, 71).byte_len(), Some(0));
}

fn solicited_is_reported(p: &Provider) {
    let (mut a, mut b) = p.pair();
    for flags in [SIGNALED | SendFlags::SOLICITED, SIGNALED] {
        let solicited = flags.contains(SendFlags::SOLICITED);
        b.receive(70, &[b.region.sge(0, 8)]);
        b.receive(71, &[]);
        a.post(1, Send {}, Inline(&[1; 8]), flags).unwrap();
        let remote = b.region.remote(0);
        a.post(2, RdmaWriteWithImm { remote, imm: IMM }, NoPayload, flags)
            .unwrap();
        a.qp.sq().ring();
        assert_eq!(done(&mut b, 70).solicited(), solicited);
        assert_eq!(done(&mut b, 71).solicited(), solicited);
        assert!(!done(&mut a, 1).solicited() && !done(&mut a, 2).solicited());
    }
}

fn a_queue_pair_may_be_connected_with_itself(p: &Provider) {
    let device = p.device();
    let mut a = End::new(&device.alloc_pd(), p.quiet, &init());
    let attr = ConnectAttr::default();
    a.qp.init(&attr).unwrap();
    let own = a.qp.endpoint();
    a.qp.connect(&own, &attr).unwrap();
    for round in 0..100u64 {
        a.receive(70, &[a.region.sge(0, 8)]);
        a.go(7, Send {}, Inline(&round.to_ne_bytes()));
        assert_eq!(
            two(&mut a),
            [(7, WcStatus::Success), (70, WcStatus::Success)]
        );
        assert_eq!(word(&a, 0), round);
    }
    // Its own refusal takes it to ERR once.
    a.receive(71, &[]);
    let remote = Remote { addr: 0, rkey: 1 };
    a.go(8, RdmaWrite { remote }, Inline(&[1]));
    assert_eq!(
        two(&mut a),
        [(8, WcStatus::RemAccessErr), (71, WcStatus::WrFlushErr)]
    );
    a.nothing();
}

fn a_queue_pair_talks_both_ways(p: &Provider) {
    let (mut a, mut b) = p.pair();
    for round in 0..50u64 {
        for end in [&mut a, &mut b] {
            end.receive(70, &[end.region.sge(0, 8)]);
        }
        for end in [&mut a, &mut b] {
            end.go(7, Send {}, Inline(&round.to_ne_bytes()));
        }
        for end in [&mut a, &mut b] {
            assert_eq!(two(end), [(7, WcStatus::Success), (70, WcStatus::Success)]);
            assert_eq!(word(end, 0), round);
        }
    }
}

fn blocks_go_out_and_come_back(p: &Provider) {
    use bellwire::ClassLayout;

    let device = p.device();
    let pd = device.alloc_pd();
    let layout = [ClassLayout {
        size: 4096,
        count: 2,
    }];
    let slab = slab(&pd, &layout);
    let (mut a, mut b) = (
        End::new(&pd, p.quiet, &QpInit::default()),
        End::new(&pd, p.quiet, &QpInit::default()),
    );
    connect_with(&mut a.qp, &mut b.qp, &ConnectAttr::default());
    let mut block = slab.take(4096).unwrap();
    block.as_mut_slice()[..5].copy_from_slice(b"hello");
    b.qp.rq().post_block(70, slab.take(4096).unwrap()).unwrap();
    b.qp.rq().ring();
    a.qp.sq()
        .post_block(7, (), Send {}, block, 5, SIGNALED)
        .unwrap();
    a.qp.sq().ring();
    assert_eq!(slab.outstanding(), 2);
    let received = b.wait();
    let block = received.block.expect("posted with one");
    assert_eq!(&block.as_slice()[..5], b"hello");
    assert!(a.wait().block.is_some());
    drop(block);
    assert_eq!(slab.outstanding(), 0);
}
