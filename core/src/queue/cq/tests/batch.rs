//! When the CQEs of a poll of several completions are returned to the device.

use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Attaches queue pairs to a completion queue of `count` entries.
fn attached(count: u32, pairs: &[&Attach<'static>], reserve: bool) -> (Cq, Vec<UserIndex>) {
    let mut cq = Cq::new(count, 64, pairs.len());
    let attach = |&queues: &&Attach<'static>| {
        // SAFETY: the only poller of these queues.
        let index = unsafe {
            match reserve {
                true => cq.queue.attach(*queues),
                false => cq.queue.attach_unreserved(*queues),
            }
        };
        index.expect("room")
    };
    let indices = pairs.iter().map(attach).collect();
    (cq, indices)
}

fn sends(pair: &Qp) -> Attach<'static> {
    Attach {
        send: pair.attach.send,
        ..Attach::default()
    }
}

impl Cq {
    /// The consumer index at each completion of a poll of `limit`, and after it.
    fn records_seen(&mut self, limit: usize) -> (Vec<u32>, u32) {
        let (records, mut seen) = (self.records, Vec::new());
        let polled = self.queue.poll(limit, |completion| {
            assert!(completion.result.is_ok());
            seen.push(records[0].load());
        });
        assert_eq!(polled, seen.len());
        (seen, records[0].load())
    }
}

#[test]
fn sends_are_given_back_together_as_far_as_entries_are_spare() {
    let (mut a, mut b) = (qp(1), qp(2));
    let mut both = |count| {
        let (mut cq, indices) = attached(count, &[&sends(&a), &sends(&b)], true);
        for (pair, &index) in [&mut a, &mut b].into_iter().zip(&indices) {
            for _ in 0..8 {
                let counter = pair.post();
                cq.sent(index, counter, 0);
            }
        }
        cq
    };
    // 16 of 32 CQEs are spare, so all are returned at the end.
    let mut cq = both(32);
    assert_eq!(cq.records_seen(3), ([0; 3].into(), 3));
    assert_eq!(cq.records_seen(usize::MAX), ([3; 13].into(), 16));
    // A poll that finds nothing does not write the consumer index.
    cq.records[0].store(77);
    assert_eq!(cq.records_seen(5), ([].into(), 77));
    // None is spare: each CQE is returned before its completion is reported.
    let mut cq = both(16);
    assert_eq!(cq.records_seen(usize::MAX), ((1..=16).collect(), 16));
}

#[test]
fn no_more_are_kept_than_are_spare() {
    let (mut a, mut b) = (qp(1), qp(2));
    let recv = Attach {
        recv: qp(3).attach.recv,
        ..Attach::default()
    };
    let (mut cq, indices) = attached(32, &[&sends(&a), &sends(&b), &recv], true);
    // 8 of 32 CQEs are spare.
    for (pair, &index) in [&mut a, &mut b].into_iter().zip(&indices) {
        for _ in 0..8 {
            let counter = pair.post();
            cq.sent(index, counter, 0);
        }
    }
    let seen = [[0; 8], [8; 8]].concat();
    assert_eq!(cq.records_seen(usize::MAX), (seen, 16));
    // The CQEs of a detached queue pair are spare again.
    // SAFETY: no device writes CQEs.
    unsafe { cq.queue.detach(indices[2], nothing) };
    assert_eq!(cq.queue.spare, 16);
}

#[test]
fn nothing_is_spare_where_something_is_not_reserved() {
    let (a, b) = (qp(1), qp(2));
    let mut cq = Cq::new(64, 64, 2);
    // SAFETY: the only poller of these queues.
    unsafe {
        cq.queue.attach(sends(&a)).expect("8 of 64");
        assert_eq!(cq.queue.spare, 56);
        let index = cq.queue.attach_unreserved(sends(&b)).expect("a slot");
        assert_eq!(cq.queue.spare, 0);
        cq.queue.detach(index, nothing);
        assert_eq!(cq.queue.spare, 56);
        let too_many = b.attach;
        cq.queue.attach(too_many).expect("16 of 56");
        assert!(cq.queue.attach_unreserved(sends(&b)).is_err(), "no slot");
        assert_eq!(cq.queue.spare, 40);
    }
}

#[test]
fn receives_are_given_back_each() {
    let mut a = qp(1);
    let (mut cq, indices) = attached(64, &[&a.attach], true);
    for wr_id in 0..4 {
        // SAFETY: the request refers to no memory.
        unsafe { a.recv.post(wr_id, &[]) }.expect("room");
        a.recv.ring();
        let counter = a.post();
        cq.sent(indices[0], counter, 0);
        let receive = Cqe64::responder(CqeOpcode::RespSend, wqe(indices[0], 0), 0);
        cq.write(&[0; 64], &receive);
    }
    // Together with the send before it.
    let (seen, behind) = cq.records_seen(usize::MAX);
    assert_eq!((seen, behind), ([0, 2, 2, 4, 4, 6, 6, 8].into(), 8));
}

/// Requests that are posted and executed while completions are reported never find the ring full,
/// however much of it is reserved.
#[test]
fn posts_of_the_program_do_not_overrun() {
    let polls = if cfg!(miri) { 30 } else { 1000 };
    for count in [8, 16, 32, 64] {
        for reserve in [true, false] {
            let mut a = qp(1);
            let (mut cq, indices) = attached(count, &[&sends(&a)], reserve);
            for _ in 0..8 {
                let counter = a.post();
                cq.sent(indices[0], counter, 0);
            }
            let (memory, records, mut written) = (cq.memory, cq.records, cq.written);
            let polled = cq.queue.poll(polls, |completion| {
                assert!(completion.result.is_ok());
                let counter = a.post();
                let kept = written.wrapping_sub(records[0].load());
                assert!(kept < count, "{kept} of {count}");
                let entry = Cqe64::requester(wqe(indices[0], counter), opcode::SEND, 0);
                let op_own = entry.op_own() & !1 | owner_bit(written, count);
                // SAFETY: free, as was just checked.
                unsafe { Cqe64::publish(memory.entry(written), &entry, op_own) };
                written += 1;
            });
            assert_eq!((polled, records[0].load()), (polls, polls as u32));
        }
    }
}

#[test]
fn a_panic_of_the_program_gives_back_what_it_was_given() {
    let mut a = qp(1);
    let (mut cq, indices) = attached(64, &[&sends(&a)], true);
    for _ in 0..5 {
        let counter = a.post();
        cq.sent(indices[0], counter, 0);
    }
    let mut reported = 0;
    let panicking = catch_unwind(AssertUnwindSafe(|| {
        cq.queue.poll(usize::MAX, |_| {
            reported += 1;
            assert!(reported < 3, "a panic that is caught");
        })
    }));
    assert!(panicking.is_err());
    assert_eq!((reported, cq.records[0].load()), (3, 3));
    assert_eq!(cq.records_seen(usize::MAX), ([3; 2].into(), 5));
}
