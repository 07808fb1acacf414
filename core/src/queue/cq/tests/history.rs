//! Looking back: what the rings still hold, and for how long.

use super::*;
use crate::queue::Standing;

/// Index, whether it was polled, and its WQE counter.
fn history(cq: &mut Cq) -> Vec<(u32, bool, u16)> {
    let mut seen = Vec::new();
    // SAFETY: this thread is the device.
    unsafe {
        (cq.queue).history(|past| seen.push((past.index, past.polled, past.cqe.wqe_counter())));
    }
    seen
}

#[test]
fn entries_are_found_again_until_they_are_written_over() {
    for (cqe_size, start) in [(64, 0), (128, 0), (64, u32::MAX - 5), (128, u32::MAX - 5)] {
        let mut cq = Cq::new(4, cqe_size, 1);
        let mut pair = qp(7);
        // SAFETY: the only poller.
        let index = unsafe { cq.queue.attach_unreserved(pair.attach) }.expect("a slot");
        assert_eq!(history(&mut cq), []);
        cq.queue.next = Cursor::at(&cq.memory, start);
        cq.written = start;
        if start != 0 {
            cq.start_at(start);
        }
        let mut expected = Vec::new();
        if start != 0 {
            expected.extend((0..4).map(|at| (start.wrapping_sub(4 - at), true, 0)));
        }
        for round in 0..11 {
            let counter = pair.post();
            cq.sent(index, counter, 3);
            expected.push((start.wrapping_add(round), false, counter as u16));
            if expected.len() > 4 {
                expected.remove(0);
            }
            assert_eq!(history(&mut cq), expected);
            // In every second round two are polled.
            if round % 2 == 1 {
                while cq.poll().is_some() {}
                expected.iter_mut().for_each(|of| of.1 = true);
                assert_eq!(history(&mut cq), expected);
            }
        }
    }
}

#[test]
fn what_a_detached_queue_left_is_found_nowhere_and_what_others_left_once() {
    let mut cq = Cq::new(16, 64, 2);
    let mut pairs = [qp(7), qp(8)];
    // SAFETY: the only poller.
    let indices = pairs
        .each_ref()
        .map(|pair| unsafe { cq.queue.attach_unreserved(pair.attach).expect("a slot") });
    for _ in 0..3 {
        for (pair, index) in pairs.iter_mut().zip(indices) {
            let counter = pair.post();
            cq.sent(index, counter, 0);
        }
    }
    // SAFETY: no device writes CQEs.
    unsafe { cq.queue.detach(indices[0], nothing) };
    assert_eq!(
        history(&mut cq),
        [(3, false, 0), (4, false, 1), (5, false, 2)]
    );
    for wr_id in 0..3 {
        assert_eq!(cq.poll(), Some((8, wr_id)));
    }
    // The entries that were freed are overwritten when it is their turn.
    for counter in 3..8 {
        pairs[1].post();
        cq.sent(indices[1], counter, 0);
        assert_eq!(cq.poll(), Some((8, counter.into())));
    }
    assert_eq!(history(&mut cq).len(), 8);
}

/// Counter, `wr_id` and how far the request has got.
fn requests(pair: &Qp) -> Vec<(u32, u64, Standing)> {
    let mut seen = Vec::new();
    // SAFETY: nobody polls.
    unsafe {
        pair.send.history(|past, entry| {
            assert_eq!(u32::from(entry.index()), past.counter & 0xffff);
            assert_eq!(u32::from(past.slots), entry.blocks());
            seen.push((past.counter, past.wr_id, past.standing));
        });
    }
    seen
}

#[test]
fn requests_are_found_again_until_they_are_posted_over() {
    let mut cq = Cq::new(16, 64, 1);
    let mut pair = qp(7);
    // SAFETY: the only poller.
    let index = unsafe { cq.queue.attach_unreserved(pair.attach) }.expect("a slot");
    assert_eq!(requests(&pair), []);
    for counter in 0..20 {
        assert_eq!(pair.post(), counter);
        if counter % 3 == 2 {
            // Also retires the two before it.
            cq.sent(index, counter, 0);
            assert!(cq.poll().is_some());
        }
        // All up to the last one that completed, which is every third.
        let retired = counter + 1 - (counter + 1) % 3;
        let standing = |at| match at < retired {
            true => Standing::Retired,
            false => Standing::InFlight,
        };
        let expected = (counter.saturating_sub(7)..=counter)
            .map(|at| (at, u64::from(at), standing(at)))
            .collect::<Vec<_>>();
        assert_eq!(requests(&pair), expected, "{counter}");
    }
    let posted = pair.send.post_empty(20, (), Send {}, SendFlags::empty());
    posted.expect("room");
    let last = requests(&pair);
    assert_eq!(last.last(), Some(&(20, 20, Standing::Staged)));
    assert_eq!(last[6], (19, 19, Standing::InFlight));
    // SAFETY: no device, and nobody polls.
    unsafe { pair.send.clear(|_| ()) };
    assert_eq!(requests(&pair), []);
    pair.send.set_postable(true);
    pair.post();
    let next_life = 1 << 16;
    assert_eq!(
        requests(&pair),
        [(next_life, next_life.into(), Standing::InFlight)]
    );
}
