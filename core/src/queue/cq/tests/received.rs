//! Receives that the device hands to the poll.

use super::panics::slab;
use super::*;
use crate::be::Be32;
use crate::cqe::PlainCqe;
use crate::queue::{Imm, Received};
use crate::wr::WcOpcode;
use core::ops::Range;

fn received(user_index: UserIndex, bytes: u32) -> Received {
    Received::new(&wqe(user_index, 0xabcd), bytes)
}

/// Two attached queue pairs, with three receives posted each.
fn attached(cq: &mut Cq) -> [(Qp, UserIndex); 2] {
    [1, 2].map(|qp_num| {
        let mut qp = qp(qp_num);
        // SAFETY: the only poller.
        let index = unsafe { cq.queue.attach(qp.attach) }.expect("a slot");
        for wr_id in 0..3 {
            // SAFETY: no device places anything.
            unsafe { qp.recv.post(wr_id, &[]) }.expect("room");
        }
        qp.recv.ring();
        (qp, index)
    })
}

#[test]
fn it_completes_the_oldest_receive_of_its_queue_pair() {
    let mut cq = Cq::new(64, 64, 2);
    let queues = attached(&mut cq);
    let mut reported = [0; 2];
    for at in [0, 0, 1, 0, 1] {
        let received = received(queues[at].1, 12 + at as u32);
        // SAFETY: nothing is placed.
        let completion = unsafe { cq.queue.complete_received(received, || unreachable!()) };
        let completion = completion.expect("a receive");
        let success = completion.result.expect("success");
        let expected = (at as u32 + 1, reported[at], 1);
        assert_eq!(
            (completion.qp_num, completion.wr_id, completion.retired),
            expected
        );
        assert_eq!(success.opcode, WcOpcode::Recv);
        assert_eq!(success.byte_len(), Some(12 + at as u32));
        assert_eq!(success.imm(), Imm::None);
        reported[at] += 1;
        assert_eq!(queues[at].0.recv.in_flight(), 3 - reported[at] as u32);
    }
    assert_eq!((cq.queue.next_index(), cq.queue.stale()), (0, 0));
}

#[test]
fn without_a_receive_it_is_stale() {
    let mut cq = Cq::new(64, 64, 2);
    let [(mut first, index), _] = attached(&mut cq);
    let life = UserIndex::new(index.slot(), 5);
    let nobody = UserIndex::new(7, 0);
    for (at, of) in [life, nobody].into_iter().enumerate() {
        let received = received(of, 1);
        // SAFETY: there is no such queue.
        assert!(unsafe { cq.queue.complete_received(received, || unreachable!()) }.is_none());
        assert_eq!(cq.queue.stale(), at as u64 + 1);
    }
    for taken in 0..4 {
        let received = received(index, 1);
        // SAFETY: nothing is placed.
        let completion = unsafe { cq.queue.complete_received(received, || unreachable!()) };
        assert_eq!(completion.is_some(), taken < 3);
    }
    assert_eq!(cq.queue.stale(), 3);
    // And the queue goes on.
    let counter = first.post();
    cq.sent(index, counter, 0);
    assert_eq!(cq.poll(), Some((1, u64::from(counter))));
}

/// A shared receive queue with receives of these identifiers, in its entries from 0 on.
fn shared(posted: Range<u64>) -> (&'static SrqLedger<'static>, SharedRecvQueue<'static>) {
    let (ledger, mut srq) = shared_queue(8);
    // SAFETY: the receives have no memory.
    let posted = unsafe { srq.post_list(posted.map(|wr_id| (wr_id, &[][..]))) };
    assert_eq!(posted, Ok(()));
    (ledger, srq)
}

/// A ledger for them, of one slot.
fn one() -> &'static Ledger<'static> {
    keep(Ledger::new(keep_all(1, LedgerSlot::default), 0).expect("a power of two"))
}

#[test]
fn it_completes_this_receive_of_a_shared_queue() {
    let mut cq = Cq::new(64, 64, 2);
    let (ledger, mut srq) = shared(10..17);
    let ((_pairs, indices), one) = (sharing(&mut cq, ledger), one());
    for (at, slot) in [(0, 0), (1, 2), (1, 1), (0, 6), (0, 5)] {
        let received = Received::of_shared(&wqe(indices[at], slot), 12 + slot);
        // SAFETY: nothing is placed, and nothing else uses the ledger.
        let completion = unsafe { cq.queue.complete_received(received, || one) };
        let completion = completion.expect("it is posted");
        assert_eq!(
            (completion.qp_num, completion.wr_id, completion.retired),
            (at as u32 + 1, 10 + u64::from(slot), 1)
        );
        let success = completion.result.expect("success");
        assert_eq!(success.opcode, WcOpcode::Recv);
        assert_eq!(success.byte_len(), Some(12 + slot));
        assert_eq!(success.imm(), Imm::None);
    }
    assert_eq!((one.in_flight(), cq.queue.stale()), (0, 0));
    assert_eq!(srq.free(), 5, "those that completed");
}

/// The buffer of a safe post comes back with it.
#[test]
fn a_shared_receive_returns_its_buffer() {
    let mut cq = Cq::new(64, 64, 2);
    let (slab, (ledger, mut srq)) = (slab(), shared_queue(8));
    let ((_pairs, indices), one) = (sharing(&mut cq, ledger), one());
    for wr_id in 0..20 {
        let block = slab.take(64).expect("one");
        let addr = block.addr();
        srq.post_block(wr_id, block).expect("room");
        srq.ring();
        let slot = (0..8).find(|&slot| {
            let received = Received::of_shared(&wqe(indices[0], slot), 1);
            // SAFETY: nothing is placed, and nothing else uses the ledger.
            let completion = unsafe { cq.queue.complete_received(received, || one) };
            completion.is_some_and(|completion| {
                assert_eq!(completion.wr_id, wr_id);
                completion.block.is_some_and(|block| block.addr() == addr)
            })
        });
        assert!(slot.is_some(), "its buffer");
    }
}

#[test]
fn a_shared_receive_that_is_not_posted_is_stale() {
    let mut cq = Cq::new(64, 64, 3);
    let (ledger, _srq) = shared(10..12);
    let ((_pairs, indices), one) = (sharing(&mut cq, ledger), one());
    let mut own = qp(3);
    // SAFETY: the only poller.
    let own_index = unsafe { cq.queue.attach(own.attach) }.expect("a slot");
    // SAFETY: no device places anything.
    unsafe { own.recv.post(7, &[]) }.expect("room");
    own.recv.ring();
    let index = indices[0];
    let life = UserIndex::new(index.slot(), 5);
    let nobody = UserIndex::new(40, 0);
    let none = [
        (index, 2),
        (index, 8),
        (index, 0xffff),
        (life, 0),
        (nobody, 0),
        (own_index, 0),
    ];
    for (at, (of, slot)) in none.into_iter().enumerate() {
        let received = Received::of_shared(&wqe(of, slot), 1);
        // SAFETY: there is no such receive.
        assert!(unsafe { cq.queue.complete_received(received, || one) }.is_none());
        assert_eq!(cq.queue.stale(), at as u64 + 1);
    }
    for (slot, there) in [(1, true), (1, false), (0, true), (0, false)] {
        let received = Received::of_shared(&wqe(index, slot), 1);
        // SAFETY: nothing is placed, and nothing else uses the ledger.
        let completion = unsafe { cq.queue.complete_received(received, || one) };
        assert_eq!(completion.is_some(), there, "once");
    }
    // A receive of a queue pair's own queue that the device takes for one of theirs, and the other way round.
    // SAFETY: nothing is placed.
    let completion = unsafe {
        cq.queue
            .complete_received(received(index, 1), || unreachable!())
    };
    assert!(completion.is_none());
    // SAFETY: nothing is placed.
    let completion = unsafe {
        cq.queue
            .complete_received(received(own_index, 1), || unreachable!())
    };
    assert_eq!(completion.expect("the own one").wr_id, 7);
}

#[test]
fn its_entry_would_say_the_same() {
    let index = UserIndex::new(3, 4);
    let (kind, none) = (CqeOpcode::RespSend, Be32::new(0));
    let entry = PlainCqe::responder(kind, wqe(index, 0xabcd), 77, none, false);
    let shown = received(index, 77).cqe();
    assert_eq!(shown.user_index(), index.get());
    assert_eq!(shown.wqe_counter(), 0xabcd);
    assert_eq!(shown.op_own(), entry.op_own());
    assert_eq!(shown.byte_len(), Some(77));
    assert_eq!(shown.imm().get(), 0);
    let shared = Received::of_shared(&wqe(index, 0xabcd), 77).cqe();
    assert_eq!(shared.to_bytes(), shown.to_bytes());
}
