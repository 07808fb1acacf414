//! Queue pairs identified by number, and rings that are larger than what may be in flight.

use super::*;
use crate::queue::{ByQpNum, NumberSlot, PostError};

#[test]
fn entries_name_queue_pairs_by_number_where_the_device_has_no_index_of_ours() {
    // SAFETY: kept, and used only by this queue.
    let memory = unsafe { CqMemory::new(memory(16 * 64), 16, 64) }.expect("sizes");
    let records = &*keep(<[DoorbellRecord; 2]>::default());
    let naming = ByQpNum::new(keep_all(8, NumberSlot::default)).expect("eight places");
    // SAFETY: this is the only consumer.
    let mut queue = unsafe {
        let slots = keep_all(4, QueueSlot::default);
        CompletionQueue::with_naming(memory, slots, records, naming)
    };
    let (mut a, mut b) = (qp(0x10_0008), qp(0x20_0008));
    // SAFETY: the only poller.
    let (first, _) = unsafe {
        let first = queue.attach_unreserved(a.attach).expect("a slot");
        (first, queue.attach_unreserved(b.attach).expect("a slot"))
    };
    let taken = AttachError::NumberTaken { qp_num: 0x10_0008 };
    // SAFETY: the attachment is refused.
    assert_eq!(unsafe { queue.attach_unreserved(a.attach) }, Err(taken));
    let mut written = 0;
    let mut sent = |qp_num, counter: u32| {
        let wqe = CompletedWqe {
            qpn: qp_num,
            // The driver's own index, which may be that of another queue pair here.
            user_index: 1,
            wqe_counter: counter as u16,
        };
        let entry = Cqe64::requester(wqe, opcode::SEND, 0);
        let op_own = entry.op_own() | owner_bit(written, 16);
        // SAFETY: no more than 16 entries are written.
        unsafe { Cqe64::publish(memory.entry(written), &entry, op_own) };
        written += 1;
    };
    sent(0x20_0008, b.post());
    sent(0x10_0008, a.post());
    sent(0x30_0008, 0);
    let names = |completion: Completion<'_>| (completion.qp_num, completion.wr_id);
    assert_eq!(queue.poll_one().map(names), Some((0x20_0008, 0)));
    assert_eq!(queue.poll_one().map(names), Some((0x10_0008, 0)));
    assert_eq!(queue.poll_one().map(names), None);
    assert_eq!(queue.stale(), 1, "of nobody");

    // A purge uses the same name, and the number is free afterwards.
    sent(0x10_0008, a.post());
    sent(0x20_0008, b.post());
    // SAFETY: no device writes CQEs.
    unsafe { queue.detach(first, nothing) };
    assert_eq!(queue.poll_one().map(names), Some((0x20_0008, 1)));
    assert_eq!(queue.poll_one().map(names), None);
    // SAFETY: the only poller.
    let again = unsafe { queue.attach_unreserved(a.attach) };
    assert_ne!(again.expect("a slot"), first);
}

#[test]
fn no_more_is_in_flight_than_asked_for_whatever_the_ring_has() {
    let mut cq = Cq::new(32, 64, 3);
    let ledger =
        |slots, capacity| Ledger::with_capacity(keep_all(slots, LedgerSlot::default), capacity, 5);
    for (slots, capacity) in [(8, 0), (8, 9), (6, 6), (0, 0)] {
        assert!(ledger(slots, capacity).is_none(), "{slots} {capacity}");
    }
    let send_ledger = &*keep(ledger(8, 3).expect("3 of 8"));
    // SAFETY: kept, and used only by this queue.
    let ring = unsafe { SendRing::new(memory(8 * 64), 8) }.expect("sizes");
    // SAFETY: the only queue on the ring and the ledger.
    let queue = unsafe {
        SendQueue::<Rc, _>::new(SendQueueInit {
            ring,
            ledger: send_ledger,
            doorbell: Silent,
            max_sge: 1,
            max_inline: 0,
            signal_all: true,
        })
    };
    let mut send = queue.expect("a queue");
    send.set_postable(true);
    let attach = Attach {
        send: Some((send_ledger, ring, QpType::Rc)),
        ..Attach::default()
    };
    // SAFETY: the only poller.
    let index = unsafe { cq.queue.attach(attach) }.expect("room");
    assert_eq!(cq.queue.unreserved(), 29);
    for lap in 0..5 {
        assert_eq!((send.free_blocks(), send.slots()), (3, 3));
        for at in 0..3 {
            let flags = SendFlags::empty();
            send.post_empty(lap * 3 + at, (), Send {}, flags)
                .expect("room");
        }
        let more = send.post_empty(9, (), Send {}, SendFlags::empty());
        assert_eq!(more, Err(PostError::QueueFull));
        send.ring();
        for at in 0..3 {
            cq.sent(index, lap as u32 * 3 + at as u32, 0);
            assert_eq!(cq.poll(), Some((5, lap * 3 + at)));
        }
    }
}
