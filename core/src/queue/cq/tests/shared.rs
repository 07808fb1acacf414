//! Shared receive queues.

use super::*;

/// Two target queue pairs of an XRC shared receive queue complete through one attachment: each CQE
/// has the number of its own.
#[test]
fn an_xrc_completion_bears_its_targets_number() {
    let mut cq = Cq::new(8, 64, 1);
    let (ledger, mut srq) = shared_queue(4);
    // SAFETY: the receives have no memory.
    let posted = unsafe { srq.post_list((0..3).map(|wr_id| (wr_id, &[][..]))) };
    assert_eq!(posted, Ok(()));
    let xrc = Attach {
        srq: Some((ledger, SrqUser::Xrc)),
        ..Attach::default()
    };
    // SAFETY: the only poller.
    let user_index = unsafe { cq.queue.attach(xrc) }.expect("room");
    for (slot, qpn) in [(1, 0xabcdef), (0, 7)] {
        let completed = CompletedWqe {
            qpn,
            ..wqe(user_index, slot)
        };
        cq.write(
            &[0; 64],
            &Cqe64::responder(CqeOpcode::RespSend, completed, 0),
        );
    }
    assert_eq!(cq.poll(), Some((0xabcdef, 1)));
    assert_eq!(cq.poll(), Some((7, 0)));
    let completed = CompletedWqe {
        qpn: 8,
        ..wqe(user_index, 2)
    };
    let failed = Cqe64::error(CqeOpcode::RespErr, completed, 0, Syndrome::LOCAL_LENGTH, 0);
    cq.write(&[0; 64], &failed);
    let completion = cq.queue.poll_one().expect("the failed one");
    assert_eq!((completion.qp_num, completion.wr_id), (8, 2));
    assert_eq!(completion.status(), WcStatus::LocLenErr);
    assert_eq!(
        completion.result.expect_err("failed").counter,
        2,
        "its entry"
    );
}

#[test]
fn room_for_a_shared_queue_is_reserved_once() {
    let mut cq = Cq::new(16, 64, 4);
    let shared = || {
        // SAFETY: kept, and not used.
        let ring = unsafe { SrqRing::new(memory(8 * 32), 8, 32) }.expect("sizes");
        &*keep(SrqLedger::new(ring, keep_all(8, SrqSlot::default)).expect("eight"))
    };
    let (first, second) = (shared(), shared());
    let attach = |ledger, qpn| Attach {
        srq: Some((ledger, SrqUser::Qp(qpn))),
        ..Attach::default()
    };
    // SAFETY: nothing is posted.
    unsafe {
        let queue = &mut cq.queue;
        let none = queue.attach_unreserved(attach(first, 1)).expect("a slot");
        let a = queue.attach(attach(first, 2)).expect("room");
        assert_eq!(queue.unreserved(), 8);
        let b = queue.attach(attach(first, 3)).expect("room");
        assert_eq!(queue.unreserved(), 8);
        let c = queue.attach(attach(second, 4)).expect("room");
        assert_eq!(queue.unreserved(), 0);
        queue.detach(a, nothing);
        assert_eq!(queue.unreserved(), 0, "for the other");
        let again = queue.attach(attach(first, 2)).expect("reserved");
        queue.detach(c, nothing);
        assert_eq!(queue.unreserved(), 8);
        queue.detach(b, nothing);
        queue.detach(again, nothing);
        assert_eq!(queue.unreserved(), 16);
        queue.detach(none, nothing);
        assert_eq!(queue.unreserved(), 16);
    }
}
