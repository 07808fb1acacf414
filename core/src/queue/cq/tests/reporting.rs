//! What the completion queue reports for which queue pair, and in which order.

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
            // SAFETY: no device writes CQEs.
            unsafe { cq.queue.detach(UserIndex(current), |_, _| ()) };
        }
        // SAFETY: nothing is polled.
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
    // SAFETY: the only poller of these queues.
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
    // SAFETY: the queues are not used.
    unsafe {
        assert!(CqMemory::new(memory(64), 1, 64).is_some());
        assert!(CqMemory::new(memory(64), 3, 64).is_none());
        assert!(CqMemory::new(memory(64), 1, 32).is_none());
        assert!(CqMemory::new(memory(128).add(64), 1, 128).is_none());
    }
}

#[test]
fn a_batch_is_reported_in_order_and_the_record_has_24_bits() {
    let mut cq = Cq::new(16, 64, 1);
    cq.start_at(0xff_fffd);
    let mut qp = qp(5);
    // SAFETY: the only poller.
    let index = unsafe { cq.queue.attach(qp.attach) }.expect("room");
    for _ in 0..6 {
        let counter = qp.post();
        cq.sent(index, counter, 0);
    }
    let mut reported = Vec::new();
    assert_eq!(cq.queue.poll(4, |c| reported.push(c.wr_id)), 4);
    assert_eq!(cq.records[0].load(), 1, "over the end of 24 bits");
    assert_eq!(cq.queue.poll(4, |c| reported.push(c.wr_id)), 2);
    assert_eq!((reported, cq.records[0].load()), ((0..6).collect(), 3));
    assert_eq!(cq.queue.poll(4, |_| panic!("nothing is left")), 0);

    let word = cq.queue.arm(0x123456, true);
    assert_eq!(word.get(), 0x0100_0003_0012_3456);
    assert_eq!(cq.records[1].load(), 0x0100_0003);
}

#[test]
fn unsignalled_requests_are_reported_with_the_next() {
    let mut cq = Cq::new(32, 64, 1);
    let mut qp = qp(5);
    // SAFETY: the only poller.
    let index = unsafe { cq.queue.attach(qp.attach) }.expect("room");
    let counters = [(); 3].map(|()| qp.post_with(SendFlags::empty()));
    cq.sent(index, counters[2], 0);
    let completion = cq.queue.poll_one().expect("reported");
    assert_eq!((completion.wr_id, completion.retired), (2, 3));
    assert_eq!(qp.send.free_blocks(), 8);
    // Also for an error: the requests before it succeeded.
    let counters = [(); 2].map(|()| qp.post_with(SendFlags::empty()));
    let wqe = wqe(index, counters[1]);
    let entry = Cqe64::error(
        CqeOpcode::ReqErr,
        wqe,
        opcode::SEND,
        Syndrome::LOCAL_LENGTH,
        9,
    );
    cq.write(&[0; 64], &entry);
    let completion = cq.queue.poll_one().expect("reported");
    assert_eq!((completion.wr_id, completion.retired), (4, 2));
    let failure = completion.result.expect_err("failed");
    assert_eq!(
        (failure.status, failure.vendor_err, failure.counter),
        (WcStatus::LocLenErr, 9, counters[1])
    );
}

/// By the counter the entry is found again, in any life and lap.
#[test]
fn failures_report_the_whole_counter() {
    let mut cq = Cq::new(32, 64, 2);
    let mut qp = qp(5);
    // SAFETY: the only poller.
    let mut index = unsafe { cq.queue.attach_unreserved(qp.attach) }.expect("room");
    for life in 0..3 {
        for lap in 0..10 {
            let counter = qp.post();
            assert_eq!(counter, life << 16 | lap);
            let wr_id = u64::from(lap);
            // SAFETY: no device writes to this memory.
            unsafe { qp.recv.post(wr_id, &[]) }.expect("room");
            qp.recv.ring();
            for (opcode, syndrome) in [
                (CqeOpcode::ReqErr, Syndrome::WR_FLUSH),
                (CqeOpcode::RespErr, Syndrome::LOCAL_PROT),
            ] {
                let entry = Cqe64::error(opcode, wqe(index, counter), 0, syndrome, 0);
                cq.write(&[0; 64], &entry);
                let completion = cq.queue.poll_one().expect("reported");
                let failure = completion.result.expect_err("failed");
                assert_eq!((failure.syndrome, failure.counter), (syndrome, counter));
            }
            assert!(qp.send.entry(counter).is_some() && qp.recv.entry(counter).is_some());
        }
        // SAFETY: no device writes CQEs.
        unsafe { cq.queue.detach(index, nothing) };
        // SAFETY: the only poster and poller; there is no device.
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
    // SAFETY: no device writes CQEs.
    unsafe { cq.queue.detach(index, nothing) };
    cq.sent(index, counter, 0);
    assert_eq!((cq.poll(), cq.queue.stale()), (None, 7));
    // The next queue pair in its slot does not get its completion.
    // SAFETY: the only poller.
    let next = unsafe { cq.queue.attach(qp.attach) }.expect("room");
    cq.sent(index, counter, 0);
    cq.sent(next, counter, 0);
    assert_eq!((cq.poll(), cq.queue.stale()), (Some((5, 1)), 8));
}

#[test]
fn entries_beside_the_ring_are_reported_as_those_in_it() {
    let mut cq = Cq::new(32, 64, 2);
    let mut qp = qp(5);
    // SAFETY: the only poller.
    let index = unsafe { cq.queue.attach(qp.attach) }.expect("room");
    let counters = [(); 3].map(|()| qp.post());
    let sent = |user_index, counter| Cqe64::requester(wqe(user_index, counter), opcode::SEND, 0);
    cq.sent(index, counters[0], 0);
    assert_eq!(cq.queue.next_index(), 0);
    assert_eq!((cq.poll(), cq.queue.next_index()), (Some((5, 0)), 1));

    // SAFETY: no device has access to the memory.
    let completion = unsafe { cq.queue.complete(&sent(index, counters[2])) }.expect("reported");
    assert_eq!((completion.wr_id, completion.retired), (2, 2));
    assert!(completion.result.is_ok());
    assert_eq!(qp.send.free_blocks(), 8);
    // It used its index in the ring, and returned it.
    assert_eq!((cq.queue.next_index(), cq.records[0].load()), (2, 2));

    // Reported already, of no queue pair, of another generation; and formats that only a ring can
    // hold.
    let counter = qp.post();
    let with_payload = sent(index, counter).with_inline(&[1]).expect("a byte");
    let nobodys = [
        sent(index, counters[2]),
        sent(UserIndex(1), counter),
        sent(UserIndex::new(0, 1), counter),
        with_payload,
    ];
    for (count, entry) in (1..).zip(nobodys) {
        // SAFETY: no device has access to the memory.
        assert!(unsafe { cq.queue.complete(&entry) }.is_none());
        assert_eq!(cq.queue.stale(), count);
    }
    let wqe = wqe(index, counter);
    let entry = Cqe64::failed(CqeOpcode::ReqErr, wqe, 0, WcStatus::RetryExcErr, 7);
    // SAFETY: no device has access to the memory.
    let completion = unsafe { cq.queue.complete(&entry) }.expect("reported");
    let failure = completion.result.expect_err("failed");
    assert_eq!((completion.wr_id, failure.vendor_err), (3, 7));
    assert_eq!(failure.status, WcStatus::RetryExcErr);

    let received = Cqe64::responder(CqeOpcode::RespSend, wqe, 9);
    // SAFETY: no device has access to the memory.
    let completion = unsafe { cq.queue.complete(&received) };
    assert!(completion.is_none(), "none is posted");
    // SAFETY: the receive has no memory.
    unsafe { qp.recv.post(77, &[]) }.expect("room");
    qp.recv.ring();
    // SAFETY: no device has access to the memory.
    let completion = unsafe { cq.queue.complete(&received) }.expect("reported");
    let success = completion.result.expect("placed");
    assert_eq!((completion.wr_id, success.byte_len()), (77, Some(9)));
    assert_eq!(cq.queue.stale(), 5);
}

#[test]
fn reports_without_entries_have_the_same_checks() {
    let mut cq = Cq::new(32, 64, 2);
    let mut qp = qp(5);
    // SAFETY: the only poller.
    let index = unsafe { cq.queue.attach(qp.attach) }.expect("room");
    let counters = [(); 3].map(|()| qp.post());
    let mut sent = |index: UserIndex, counter, bytes| {
        // SAFETY: no device has access to the memory.
        let completion = unsafe { (cq.queue).complete_send(index.get(), counter, bytes) };
        completion.map(|completion| {
            (
                completion.wr_id,
                completion.retired,
                completion.result.expect("executed").byte_len(),
            )
        })
    };
    // The oldest request, and one that also reports another one before it.
    assert_eq!(sent(index, counters[0], 7), Some((0, 1, None)));
    assert_eq!(sent(index, counters[2], 0), Some((2, 2, None)));
    // Reported already, of an earlier lap, of no queue pair, of another generation.
    let counter = qp.post();
    assert_eq!(sent(index, counters[2], 0), None);
    assert_eq!(sent(index, counter.wrapping_sub(1 << 16), 0), None);
    assert_eq!(sent(UserIndex(1), counter, 0), None);
    assert_eq!(sent(UserIndex::new(0, 1), counter, 0), None);
    assert_eq!(sent(index, counter, 0), Some((3, 1, None)));
    assert_eq!(qp.send.free_blocks(), 8);
    assert_eq!(cq.queue.stale(), 4);

    let mut received = |index: UserIndex, counter, bytes| {
        // SAFETY: no device has access to the memory.
        let completion = unsafe { (cq.queue).complete_recv(index.get(), counter, bytes) };
        completion.map(|completion| {
            (
                completion.wr_id,
                completion.result.expect("placed").byte_len(),
            )
        })
    };
    let counter = qp.recv.counter();
    assert_eq!(received(index, counter, 9), None, "none is posted");
    // SAFETY: the receive has no memory.
    unsafe { qp.recv.post(77, &[]) }.expect("room");
    qp.recv.ring();
    assert_eq!(received(UserIndex::new(0, 1), counter, 9), None);
    // Of an earlier lap, and not the oldest.
    assert_eq!(received(index, counter.wrapping_sub(1 << 16), 9), None);
    assert_eq!(received(index, counter + 1, 9), None);
    assert_eq!(received(index, counter, 9), Some((77, Some(9))));
    assert_eq!(received(index, counter, 9), None, "reported already");
    assert_eq!(cq.queue.stale(), 9);
    // The ring was not touched.
    assert_eq!((cq.queue.next_index(), cq.records[0].load()), (0, 0));
}

/// Completions of receives are lost and later ones arrive. These are not of the oldest receive, so
/// no receive is reported before the queue is cleared.
#[test]
fn a_receive_behind_lost_completions_is_not_reported_in_their_place() {
    /// How a completion arrives.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Way {
        Received,
        Completed,
        Polled,
    }
    for way in [Way::Received, Way::Completed, Way::Polled] {
        for failed in [false, true] {
            if failed && way == Way::Received {
                continue;
            }
            let mut cq = Cq::new(32, 64, 2);
            let mut qp = qp(5);
            let counted = Attach {
                recv_counted: true,
                ..qp.attach
            };
            // SAFETY: the only poller.
            let index = unsafe { cq.queue.attach(counted) }.expect("room");
            let first = qp.recv.counter();
            for wr_id in 70..76 {
                // SAFETY: the receive has no memory.
                unsafe { qp.recv.post(wr_id, &[]) }.expect("room");
            }
            qp.recv.ring();
            let mut comes = |of: u32| {
                let counter = first + of;
                let wqe = wqe(index, counter);
                let entry = match failed {
                    true => Cqe64::failed(CqeOpcode::RespErr, wqe, 0, WcStatus::WrFlushErr, 0),
                    false => Cqe64::responder(CqeOpcode::RespSendImm, wqe, 9),
                };
                let completion = match way {
                    // SAFETY: no device has access to the memory.
                    Way::Received => unsafe { (cq.queue).complete_recv(index.get(), counter, 9) },
                    // SAFETY: no device has access to the memory.
                    Way::Completed => unsafe { cq.queue.complete(&entry) },
                    Way::Polled => {
                        cq.write(&[0; 64], &entry);
                        cq.queue.poll_one()
                    }
                };
                completion.map(|completion| {
                    (
                        completion.wr_id,
                        completion.retired,
                        completion.result.is_err(),
                    )
                })
            };
            assert_eq!(comes(0), Some((70, 1, failed)), "{way:?}");
            assert_eq!(comes(1), Some((71, 1, failed)), "{way:?}");
            // The completion of 72 is lost.
            assert_eq!(comes(3), None, "{way:?}");
            assert_eq!(comes(4), None, "{way:?}");
            assert_eq!(cq.queue.stale(), 2);
            let mut left = Vec::new();
            // SAFETY: this thread is the poller, and there is no device.
            unsafe { qp.recv.clear(|unfinished| left.push(unfinished.wr_id)) };
            assert_eq!(left, [72, 73, 74, 75], "{way:?}");
        }
    }
}

/// Completions of sends are lost and a later one arrives. A request that succeeded, or that failed
/// first, proves that all before it succeeded. A flush does not, and is reported only where no
/// request before it can have had a completion that was lost.
#[test]
fn a_flush_behind_lost_completions_reports_no_success() {
    use WcStatus::*;
    const SIGNALLED: SendFlags = SendFlags::SIGNALED;
    const UNSIGNALLED: SendFlags = SendFlags::empty();
    // Arguments: whether the completions are polled, whether losses were reported, the flags of a
    // request before them, and their status. Returns what was reported, and what `clear` returned.
    let outcome = |polled: bool, known: bool, before: SendFlags, status: WcStatus| {
        let mut cq = Cq::new(32, 64, 2);
        let mut qp = qp(5);
        // SAFETY: the only poller.
        let index = unsafe { cq.queue.attach(qp.attach) }.expect("room");
        let first = qp.post();
        cq.sent(index, first, 0);
        assert_eq!(cq.poll(), Some((5, 0)));
        let flags = [UNSIGNALLED, before, UNSIGNALLED, UNSIGNALLED, SIGNALLED];
        let counters = flags.map(|flags| qp.post_with(flags));
        if known {
            cq.queue.entries_lost();
        }
        let mut comes = |counter: u32| {
            let wqe = wqe(index, counter);
            let entry = match status {
                Success => Cqe64::requester(wqe, opcode::SEND, 0),
                _ => Cqe64::failed(CqeOpcode::ReqErr, wqe, 0, status, 0),
            };
            let completion = match polled {
                true => {
                    cq.write(&[0; 64], &entry);
                    cq.queue.poll_one()
                }
                // SAFETY: no device has access to the memory.
                false => unsafe { cq.queue.complete(&entry) },
            };
            completion.map(|completion| (completion.wr_id, completion.retired, completion.status()))
        };
        let reported = [counters[3], counters[4]].map(&mut comes);
        let stale = cq.queue.stale();
        assert_eq!(
            stale,
            reported
                .iter()
                .filter(|completion| completion.is_none())
                .count() as u64
        );
        let mut left = Vec::new();
        // SAFETY: this thread is the poller, and there is no device.
        unsafe { qp.send.clear(|unfinished| left.push(unfinished.wr_id)) };
        (reported, left)
    };
    for polled in [true, false] {
        for known in [true, false] {
            let outcome = |before, status| outcome(polled, known, before, status);
            for status in [Success, RetryExcErr, RemAccessErr] {
                for before in [SIGNALLED, UNSIGNALLED] {
                    let both = [Some((4, 4, status)), Some((5, 1, status))];
                    assert_eq!(outcome(before, status), (both, Vec::new()));
                }
            }
            for status in [WrFlushErr, FatalErr, LocQpOpErr, MwBindErr] {
                let both = || ([Some((4, 4, status)), Some((5, 1, status))], Vec::new());
                let neither = || ([None, None], (1..=5).collect());
                // A ring receives no more CQEs once some were lost: those in it are correct.
                let of_signalled = if polled { both() } else { neither() };
                assert_eq!(outcome(SIGNALLED, status), of_signalled);
                // A failure would have been reported by a completion, unless that was lost.
                let of_unsignalled = if polled || !known { both() } else { neither() };
                assert_eq!(outcome(UNSIGNALLED, status), of_unsignalled);
            }
        }
    }
}

/// A flush with no request before it is reported, whatever was lost.
#[test]
fn the_oldest_is_reported_as_flushed_whatever_was_lost() {
    let mut cq = Cq::new(32, 64, 2);
    let mut qp = qp(5);
    // SAFETY: the only poller.
    let index = unsafe { cq.queue.attach(qp.attach) }.expect("room");
    cq.queue.entries_lost();
    for wr_id in 0..3 {
        let wqe = wqe(index, qp.post());
        let entry = Cqe64::failed(CqeOpcode::ReqErr, wqe, 0, WcStatus::WrFlushErr, 0);
        // SAFETY: no device has access to the memory.
        let completion = unsafe { cq.queue.complete(&entry) }.expect("reported");
        assert_eq!((completion.wr_id, completion.retired), (wr_id, 1));
    }
}
