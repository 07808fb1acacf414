//! Receives that the device hands to the poll.

use super::*;
use crate::be::Be32;
use crate::cqe::PlainCqe;
use crate::queue::{Imm, Received};
use crate::wr::WcOpcode;

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
        let completion = unsafe { cq.queue.complete_received(received) };
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
        assert!(unsafe { cq.queue.complete_received(received) }.is_none());
        assert_eq!(cq.queue.stale(), at as u64 + 1);
    }
    for taken in 0..4 {
        let received = received(index, 1);
        // SAFETY: nothing is placed.
        let completion = unsafe { cq.queue.complete_received(received) };
        assert_eq!(completion.is_some(), taken < 3);
    }
    assert_eq!(cq.queue.stale(), 3);
    // And the queue goes on.
    let counter = first.post();
    cq.sent(index, counter, 0);
    assert_eq!(cq.poll(), Some((1, u64::from(counter))));
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
}
