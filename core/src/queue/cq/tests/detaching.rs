//! Detaching queue pairs.

use super::*;

#[test]
fn detaching_removes_the_queue_pairs_entries_and_no_others() {
    let mut random = Random(7);
    for round in 0..if cfg!(miri) { 4 } else { 500 } {
        let cqe_size = 64 << (round % 2);
        let mut cq = Cq::new(16, cqe_size, 4);
        // Anywhere in a lap, and across the wrap of the indexes.
        cq.start_at((random.next() as u32 & 63).wrapping_sub(32));
        let mut pairs = [qp(0), qp(1), qp(2)];
        // SAFETY: the only poller.
        let mut indices = pairs
            .each_ref()
            .map(|qp| unsafe { cq.queue.attach_unreserved(qp.attach) }.expect("a slot"));
        for _ in 0..5 {
            let mut expected = Vec::new();
            let mut used = [0; 3];
            for _ in 0..random.below(17) {
                let of = random.below(3);
                if used[of] < 8 {
                    used[of] += 1;
                    let counter = pairs[of].post();
                    cq.sent(indices[of], counter, counter as u8);
                    expected.push((of as u32, u64::from(counter)));
                }
            }
            for _ in 0..random.below(expected.len() + 1) {
                assert_eq!(cq.poll(), Some(expected.remove(0)));
            }
            let gone = random.below(3);
            // SAFETY: no device writes CQEs.
            unsafe { cq.queue.detach(indices[gone], nothing) };
            let left = |(of, _): &(u32, u64)| *of as usize != gone;
            let lost: Vec<u64> = expected.iter().filter(|e| !left(e)).map(|e| e.1).collect();
            expected.retain(left);
            for &(of, counter) in &expected {
                // In 128-byte CQEs the other half is moved too.
                if cqe_size == 128 {
                    let entry = cq.queue.next.entry();
                    // SAFETY: written by the device, and not returned.
                    let front = unsafe { Cqe128::around(entry) }.payload;
                    assert_eq!(front, [counter as u8; 64]);
                }
                assert_eq!(cq.poll(), Some((of, counter)));
            }
            assert_eq!(
                (cq.poll(), cq.queue.stale()),
                (None, 0),
                "of {}",
                expected.len()
            );
            assert_eq!(cq.records[0].load(), cq.written & 0xff_ffff);
            // The next life: requests that were not reported are returned by the queue itself.
            let mut cleared = Vec::new();
            // SAFETY: the only poster and poller; there is no device.
            unsafe {
                pairs[gone]
                    .send
                    .clear(|request| cleared.push(request.wr_id))
            };
            assert_eq!(cleared, lost);
            pairs[gone].send.set_postable(true);
            // SAFETY: the only poller.
            let index = unsafe { cq.queue.attach_unreserved(pairs[gone].attach) };
            indices[gone] = index.expect("a slot");
        }
    }
}

#[test]
fn detaching_leaves_the_compressed_blocks_of_others() {
    for gone in 0..2 {
        let mut cq = Cq::new(32, 64, 2);
        let mut pairs = [qp(0), qp(1)];
        // SAFETY: the only poller.
        let indices = pairs
            .each_ref()
            .map(|qp| unsafe { cq.queue.attach_unreserved(qp.attach) }.expect("a slot"));
        let counter = pairs[1].post();
        cq.sent(indices[1], counter, 0);
        // Three CQEs of the first queue pair, in one compressed block; all of it is written before
        // its title.
        let counters = [(); 3].map(|()| pairs[0].post());
        let mut minis = [0; 64];
        for (counter, mini) in counters.iter().zip(minis.chunks_exact_mut(8)) {
            mini[..2].copy_from_slice(&(*counter as u16).to_be_bytes());
            mini[2] = opcode::SEND;
        }
        let title = Cqe64::requester(wqe(indices[0], 0), opcode::SEND, 3).to_bytes();
        let title = Cqe64::from_bytes(core::array::from_fn(|at| {
            title[at] | if at == 63 { 3 << 2 } else { 0 }
        }));
        let array = cq.memory.entry(cq.written + 1);
        // SAFETY: the entry belongs to the device.
        unsafe { array.write(Cqe64::from_bytes(minis)) };
        cq.write(&[0; 64], &title);
        cq.written += 2;
        let counter = pairs[1].post();
        cq.sent(indices[1], counter, 0);

        // SAFETY: no device writes CQEs.
        unsafe { cq.queue.detach(indices[gone], nothing) };
        let polled: Vec<_> = core::iter::from_fn(|| cq.poll()).collect();
        let expected = [&[(1, 0), (1, 1)][..], &[(0, 0), (0, 1), (0, 2)]][gone];
        assert_eq!((&polled[..], cq.queue.stale()), (expected, 0));
        assert!(!cq.queue.malformed());
    }
}

/// The shared receive queue goes on when one of its queue pairs is detached, so the requests of
/// that one are reported at once, and those of the others by a poll.
#[test]
fn detaching_reports_the_shared_requests_that_were_not_polled() {
    let mut cq = Cq::new(16, 64, 2);
    let (ledger, mut srq) = shared_queue(8);
    // SAFETY: the receives have no memory.
    let posted = unsafe { srq.post_list((10..17).map(|wr_id| (wr_id, &[][..]))) };
    assert_eq!(posted, Ok(()));
    let (mut pairs, indices) = sharing(&mut cq, ledger);
    for (slot, of) in [(0, 0), (1, 1), (2, 0), (3, 0), (4, 1)] {
        let entry = Cqe64::responder(CqeOpcode::RespSend, wqe(indices[of], slot), 0);
        cq.write(&[0; 64], &entry);
    }
    // A send with the same counter as a receive in flight.
    let counter = pairs[0].post();
    cq.sent(indices[0], counter, 0);
    let lost = wqe(indices[0], 5);
    let lost = Cqe64::error(CqeOpcode::RespErr, lost, 0, Syndrome::LOCAL_PROT, 0);
    cq.write(&[0; 64], &lost);
    assert_eq!(cq.poll(), Some((1, 10)));
    let mut reported = Vec::new();
    // SAFETY: no device writes CQEs.
    unsafe { cq.queue.detach(indices[0], |wr_id, _| reported.push(wr_id)) };
    assert_eq!(reported, [12, 13, 15]);
    assert_eq!(
        [cq.poll(), cq.poll(), cq.poll()],
        [Some((2, 11)), Some((2, 14)), None]
    );
    assert_eq!(
        (cq.queue.stale(), srq.free()),
        (0, 6),
        "one is posted still"
    );
    // A CQE that is not read from the ring.
    let entry = Cqe64::responder(CqeOpcode::RespSend, wqe(indices[1], 6), 3);
    // SAFETY: no device has access to the memory.
    let completion = unsafe { cq.queue.complete(&entry) }.expect("reported");
    assert_eq!((completion.qp_num, completion.wr_id), (2, 16));
    assert_eq!(srq.free(), 7);
}
