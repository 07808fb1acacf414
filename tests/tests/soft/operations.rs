//! Much work at once. What each operation does is in the conformance suite.

use bellwire::soft::Mode;
use bellwire::wqe::*;
use bellwire::wr::WcStatus;
use bellwire_tests::fixture::*;
use bellwire_tests::in_both_modes;
use std::sync::atomic::Ordering;

in_both_modes! { a_batch_over_the_rings_end, both_ends_at_once }

fn a_batch_over_the_rings_end(mode: Mode) {
    let (mut a, b) = pair(mode);
    let remote = b.region.remote(0);
    let mut random = Random::new(8);
    let mut next = 0u64;
    let mut completed = 0u64;
    for _ in 0..2000 {
        let burst = 1 + random.below(60);
        for _ in 0..burst {
            let length = random.below(200) as usize;
            match a.post(
                next,
                RdmaWrite { remote },
                Inline(&[3; 200][..length]),
                SIGNALED,
            ) {
                Ok(()) => next += 1,
                Err(bellwire::queue::PostError::QueueFull) => break,
                Err(other) => panic!("{other}"),
            }
        }
        a.qp.sq().ring();
        while completed < next {
            assert_eq!(a.outcome(), (completed, WcStatus::Success));
            completed += 1;
        }
    }
}

/// Sends and receives numbered messages, both ways at once.
fn hammer(mut end: End, count: u64) {
    let (mut sent, mut acknowledged, mut posted, mut received) = (0u64, 0u64, 0u64, 0u64);
    until("the last message", || {
        while posted < count && posted < received + 32 {
            let at = (posted % 32) as usize * 64;
            end.receive(1 << 32 | posted, &[end.region.sge(at, 64)]);
            posted += 1;
        }
        while sent < count && sent < acknowledged + 16 {
            let length = 8 + (sent % 57) as usize;
            let mut bytes = [0; 64];
            bytes[..8].copy_from_slice(&sent.to_ne_bytes());
            end.go(sent, Send {}, Inline(&bytes[..length]));
            sent += 1;
        }
        while let Some(done) = end.cq.poll_one() {
            assert_eq!(done.status(), WcStatus::Success);
            if done.wr_id >> 32 == 0 {
                assert_eq!(done.wr_id, acknowledged);
                acknowledged += 1;
            } else {
                assert_eq!(done.wr_id, 1 << 32 | received);
                let word = end.region.word((received % 32) as usize * 64);
                assert_eq!(word.load(Ordering::Acquire), received);
                received += 1;
            }
        }
        (acknowledged, received) == (count, count)
    });
    end.nothing();
}

fn both_ends_at_once(mode: Mode) {
    let (a, b) = pair(mode);
    std::thread::scope(|scope| {
        scope.spawn(|| hammer(a, 20_000));
        scope.spawn(|| hammer(b, 20_000));
    });
}
