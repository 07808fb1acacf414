//! What it tells of whom, and in which order.

use super::*;

#[test]
fn each_slot_is_found_again() {
    let mut cq = Cq::new(32, 64, 3);
    let a = qp(1);
    // SAFETY: nothing is polled.
    let mut attach = || unsafe { cq.queue.attach_unreserved(a.attach) };
    let attached: Vec<_> = (0..3).map(|_| attach().expect("a slot")).collect();
    assert!(attach().is_err());
    for order in [[1, 2, 0], [2, 0, 1], [0, 1, 2]] {
        for slot in order {
            let current = cq.queue.slots[slot].current;
            cq.queue.detach(UserIndex(current), |_, _| ());
        }
        // SAFETY: as above.
        let mut attach = || unsafe { cq.queue.attach_unreserved(a.attach) };
        let mut slots: Vec<_> = (0..3).map(|_| attach().expect("a slot").slot()).collect();
        assert!(attach().is_err());
        slots.sort_unstable();
        assert_eq!(slots, [0, 1, 2]);
    }
    for first in attached {
        assert!(cq.queue.attached(first).is_none(), "of an earlier life");
    }
}

#[test]
fn attached_queues_have_their_entries_reserved() {
    let mut cq = Cq::new(32, 64, 3);
    let (a, b) = (qp(1), qp(2));
    let only_send = Attach {
        send: a.attach.send,
        ..Attach::default()
    };
    // SAFETY: the only poller of these.
    unsafe {
        let first = cq.queue.attach(a.attach).expect("16 of 32");
        assert_eq!((first.get(), cq.queue.unreserved()), (0, 16));
        let second = cq.queue.attach(b.attach).expect("16 of 16");
        assert_eq!((second.get(), cq.queue.unreserved()), (1, 0));
        let error = AttachError::CqTooSmall { needed: 8, free: 0 };
        assert_eq!(cq.queue.attach(only_send), Err(error));
        let third = cq.queue.attach_unreserved(only_send).expect("a slot");
        assert_eq!((third.get(), cq.queue.unreserved()), (2, 0));
        let error = AttachError::TooManyQueues { slots: 3 };
        assert_eq!(cq.queue.attach_unreserved(only_send), Err(error));

        cq.queue.detach(first, nothing);
        assert_eq!(cq.queue.unreserved(), 16);
        cq.queue.detach(first, nothing);
        assert_eq!(cq.queue.unreserved(), 16, "detached twice");
        let again = cq.queue.attach(only_send).expect("8 of 16");
        assert_eq!((again.get(), cq.queue.unreserved()), (1 << 16, 8));
        cq.queue.detach(first, nothing);
        assert_eq!(cq.queue.unreserved(), 8, "of an earlier life");
    }
    assert_eq!(cq.queue.capacity(), 32);
    // SAFETY: not used.
    unsafe {
        assert!(CqMemory::new(memory(64), 1, 64).is_some());
        assert!(CqMemory::new(memory(64), 3, 64).is_none());
        assert!(CqMemory::new(memory(64), 1, 32).is_none());
        assert!(CqMemory::new(memory(128).add(64), 1, 128).is_none());
    }
}

#[test]
fn a_batch_is_told_in_order_and_the_record_has_24_bits() {
    let mut cq = Cq::new(16, 64, 1);
    cq.start_at(0xff_fffd);
    let mut qp = qp(5);
    // SAFETY: the only poller.
    let index = unsafe { cq.queue.attach(qp.attach) }.expect("room");
    for _ in 0..6 {
        let counter = qp.post();
        cq.sent(index, counter, 0);
    }
    let mut told = Vec::new();
    assert_eq!(cq.queue.poll(4, |c| told.push(c.wr_id)), 4);
    assert_eq!(cq.records[0].load(), 1, "over the end of 24 bits");
    assert_eq!(cq.queue.poll(4, |c| told.push(c.wr_id)), 2);
    assert_eq!((told, cq.records[0].load()), ((0..6).collect(), 3));
    assert_eq!(cq.queue.poll(4, |_| panic!("nothing is left")), 0);

    let word = cq.queue.arm(0x123456, true);
    assert_eq!(word.get(), 0x0100_0003_0012_3456);
    assert_eq!(cq.records[1].load(), 0x0100_0003);
}

#[test]
fn unsignalled_requests_are_told_with_the_next() {
    let mut cq = Cq::new(32, 64, 1);
    let mut qp = qp(5);
    // SAFETY: the only poller.
    let index = unsafe { cq.queue.attach(qp.attach) }.expect("room");
    let counters = [(); 3].map(|()| qp.post());
    cq.sent(index, counters[2], 0);
    let completion = cq.queue.poll_one().expect("told");
    assert_eq!((completion.wr_id, completion.retired), (2, 3));
    assert_eq!(qp.send.free_blocks(), 8);
    // An error too: what was before it succeeded.
    let counters = [(); 2].map(|()| qp.post());
    let wqe = wqe(index, counters[1]);
    let entry = Cqe64::error(
        CqeOpcode::ReqErr,
        wqe,
        opcode::SEND,
        Syndrome::LOCAL_LENGTH,
        9,
    );
    cq.write(&[0; 64], &entry);
    let completion = cq.queue.poll_one().expect("told");
    assert_eq!((completion.wr_id, completion.retired), (4, 2));
    let failure = completion.result.expect_err("failed");
    assert_eq!(
        (failure.status, failure.vendor_err, failure.counter),
        (WcStatus::LocLenErr, 9, counters[1])
    );
}

/// By it the entry is found again, in whichever life and lap.
#[test]
fn failures_tell_the_whole_counter() {
    let mut cq = Cq::new(32, 64, 2);
    let mut qp = qp(5);
    // SAFETY: the only poller.
    let mut index = unsafe { cq.queue.attach_unreserved(qp.attach) }.expect("room");
    for life in 0..3 {
        for lap in 0..10 {
            let counter = qp.post();
            assert_eq!(counter, life << 16 | lap);
            let wr_id = u64::from(lap);
            // SAFETY: no device writes there.
            unsafe { qp.recv.post(wr_id, &[]) }.expect("room");
            qp.recv.ring();
            for (opcode, syndrome) in [
                (CqeOpcode::ReqErr, Syndrome::WR_FLUSH),
                (CqeOpcode::RespErr, Syndrome::LOCAL_PROT),
            ] {
                let entry = Cqe64::error(opcode, wqe(index, counter), 0, syndrome, 0);
                cq.write(&[0; 64], &entry);
                let told = cq.queue.poll_one().expect("told");
                let failure = told.result.expect_err("failed");
                assert_eq!((failure.syndrome, failure.counter), (syndrome, counter));
            }
            assert!(qp.send.entry(counter).is_some() && qp.recv.entry(counter).is_some());
        }
        cq.queue.detach(index, nothing);
        // SAFETY: poster and poller; there is no device.
        unsafe {
            qp.send.clear(|request| panic!("{request:?}"));
            qp.recv.clear(|request| panic!("{request:?}"));
        }
        qp.send.set_postable(true);
        qp.recv.set_postable(true);
        // SAFETY: the only poller.
        index = unsafe { cq.queue.attach_unreserved(qp.attach) }.expect("room");
    }
}

#[test]
fn entries_of_nobody_are_dropped_and_counted() {
    let mut cq = Cq::new(32, 64, 2);
    let mut qp = qp(5);
    // SAFETY: the only poller.
    let index = unsafe { cq.queue.attach(qp.attach) }.expect("room");
    let counter = qp.post();
    // Not posted, of no queue pair, of another generation, not of a send queue.
    cq.sent(index, counter + 1, 0);
    cq.sent(UserIndex(1), counter, 0);
    cq.sent(UserIndex(0xffff), counter, 0);
    cq.sent(UserIndex::new(0, 1), counter, 0);
    cq.write(
        &[0; 64],
        &Cqe64::responder(CqeOpcode::RespSend, wqe(index, 0), 0),
    );
    cq.sent(index, counter, 0);
    cq.sent(index, counter, 0);
    assert_eq!((cq.poll(), cq.queue.stale()), (Some((5, 0)), 5));
    assert_eq!((cq.poll(), cq.queue.stale()), (None, 6));

    // A queue pair that was detached with requests in flight.
    let counter = qp.post();
    cq.queue.detach(index, nothing);
    cq.sent(index, counter, 0);
    assert_eq!((cq.poll(), cq.queue.stale()), (None, 7));
    // Its slot's next owner is not told of it.
    // SAFETY: the only poller.
    let next = unsafe { cq.queue.attach(qp.attach) }.expect("room");
    cq.sent(index, counter, 0);
    cq.sent(next, counter, 0);
    assert_eq!((cq.poll(), cq.queue.stale()), (Some((5, 1)), 8));
}

#[test]
fn entries_beside_the_ring_are_told_as_those_in_it() {
    let mut cq = Cq::new(32, 64, 2);
    let mut qp = qp(5);
    // SAFETY: the only poller.
    let index = unsafe { cq.queue.attach(qp.attach) }.expect("room");
    let counters = [(); 3].map(|()| qp.post());
    let sent = |user_index, counter| Cqe64::requester(wqe(user_index, counter), opcode::SEND, 0);
    cq.sent(index, counters[0], 0);
    assert_eq!(cq.queue.next_index(), 0);
    assert_eq!((cq.poll(), cq.queue.next_index()), (Some((5, 0)), 1));

    let completion = cq.queue.tell(sent(index, counters[2])).expect("told");
    assert_eq!((completion.wr_id, completion.retired), (2, 2));
    assert!(completion.result.is_ok());
    assert_eq!(qp.send.free_blocks(), 8);
    // It took its place in the ring, and gave it back.
    assert_eq!((cq.queue.next_index(), cq.records[0].load()), (2, 2));

    // Told already, of no queue pair, of another generation; and what only a ring can hold.
    let counter = qp.post();
    let with_payload = sent(index, counter).with_inline(&[1]).expect("a byte");
    let nobodys = [
        sent(index, counters[2]),
        sent(UserIndex(1), counter),
        sent(UserIndex::new(0, 1), counter),
        with_payload,
    ];
    for (count, entry) in (1..).zip(nobodys) {
        assert!(cq.queue.tell(entry).is_none());
        assert_eq!(cq.queue.stale(), count);
    }
    let wqe = wqe(index, counter);
    let entry = Cqe64::failed(CqeOpcode::ReqErr, wqe, 0, WcStatus::RetryExcErr, 7);
    let completion = cq.queue.tell(entry).expect("told");
    let failure = completion.result.expect_err("failed");
    assert_eq!((completion.wr_id, failure.vendor_err), (3, 7));
    assert_eq!(failure.status, WcStatus::RetryExcErr);

    let received = Cqe64::responder(CqeOpcode::RespSend, wqe, 9);
    assert!(cq.queue.tell(received).is_none(), "none is posted");
    // SAFETY: nothing is placed.
    unsafe { qp.recv.post(77, &[]) }.expect("room");
    qp.recv.ring();
    let completion = cq.queue.tell(received).expect("told");
    let success = completion.result.expect("placed");
    assert_eq!((completion.wr_id, success.byte_len()), (77, Some(9)));
    assert_eq!(cq.queue.stale(), 5);
}

#[test]
fn reports_without_entries_are_told_with_the_same_checks() {
    let mut cq = Cq::new(32, 64, 2);
    let mut qp = qp(5);
    // SAFETY: the only poller.
    let index = unsafe { cq.queue.attach(qp.attach) }.expect("room");
    let counters = [(); 3].map(|()| qp.post());
    let mut sent = |index: UserIndex, counter, bytes| {
        let mut refused = 0;
        let told = (cq.queue).tell_sent(index.get(), counter, bytes, |_| {
            refused += 1;
            None
        });
        assert_eq!(refused, u64::from(told.is_none()));
        told.map(|told| {
            (
                told.wr_id,
                told.retired,
                told.result.expect("executed").byte_len(),
            )
        })
    };
    // The oldest, and one that tells of another before it.
    assert_eq!(sent(index, counters[0], 7), Some((0, 1, None)));
    assert_eq!(sent(index, counters[2], 0), Some((2, 2, None)));
    // Told already, of an earlier lap, of no queue pair, of another generation.
    let counter = qp.post();
    assert_eq!(sent(index, counters[2], 0), None);
    assert_eq!(sent(index, counter.wrapping_sub(1 << 16), 0), None);
    assert_eq!(sent(UserIndex(1), counter, 0), None);
    assert_eq!(sent(UserIndex::new(0, 1), counter, 0), None);
    assert_eq!(sent(index, counter, 0), Some((3, 1, None)));
    assert_eq!(qp.send.free_blocks(), 8);
    assert_eq!(cq.queue.stale(), 4);

    let mut received = |index: UserIndex, bytes| {
        let told = cq.queue.tell_received(index.get(), bytes, |_| None);
        told.map(|told| (told.wr_id, told.result.expect("placed").byte_len()))
    };
    assert_eq!(received(index, 9), None, "none is posted");
    // SAFETY: nothing is placed.
    unsafe { qp.recv.post(77, &[]) }.expect("room");
    qp.recv.ring();
    assert_eq!(received(UserIndex::new(0, 1), 9), None);
    assert_eq!(received(index, 9), Some((77, Some(9))));
    assert_eq!(cq.queue.stale(), 6);
    // The ring was left alone.
    assert_eq!((cq.queue.next_index(), cq.records[0].load()), (0, 0));
}
