//! The device side of a shared receive queue: entries are consumed once, in order, and the limit is
//! reported once.

use super::keep;
use super::srq::{Fixture, fixture};
use crate::queue::{Popped, SrqConsumer};
use crate::random::Random;
use std::collections::VecDeque;
use std::vec::Vec;

fn consumer(f: &Fixture) -> SrqConsumer<'static> {
    SrqConsumer::new(f.ring, f.record)
}

fn popped(index: u16, limit_reached: bool) -> Option<Popped> {
    Some(Popped {
        index,
        limit_reached,
    })
}

#[test]
fn entries_are_taken_in_order_once_rung() {
    let mut f = fixture(4);
    let device = consumer(&f);
    f.post(1).expect("room");
    f.post(2).expect("room");
    assert_eq!((device.pop(), device.available()), (None, 0), "not rung");
    f.queue.ring();
    assert_eq!(device.available(), 2);
    assert_eq!(device.pop(), popped(0, false));
    assert_eq!(device.pop(), popped(1, false));
    assert_eq!(device.pop(), None);
}

#[test]
fn the_limit_is_reported_once() {
    let mut f = fixture(8);
    let device = consumer(&f);
    for wr_id in 0..5 {
        f.post(wr_id).expect("room");
    }
    f.queue.ring();
    device.set_limit(4);
    assert_eq!(device.pop(), popped(0, false), "four are left");
    assert_eq!(device.limit(), 4);
    assert_eq!(device.pop(), popped(1, true), "three are");
    assert_eq!((device.pop(), device.limit()), (popped(2, false), 0));
    // Set when there are fewer already: the next pop reports it.
    device.set_limit(0x7fff);
    assert_eq!(device.limit(), 0x7fff);
    assert_eq!(device.pop(), popped(3, true));
    device.set_limit(1);
    device.set_limit(0);
    assert_eq!(device.pop(), popped(4, false));
}

#[test]
fn a_failed_queue_gives_nothing() {
    let mut f = fixture(4);
    let device = consumer(&f);
    f.post(1).expect("room");
    f.queue.ring();
    device.set_limit(3);
    assert!(!device.failed());
    device.fail();
    assert_eq!((device.pop(), device.failed()), (None, true));
    assert_eq!((device.limit(), device.available()), (3, 1));
}

/// A link may contain anything: the successor is always an entry of the ring.
#[test]
fn a_wild_link_stays_within_the_ring() {
    let mut f = fixture(4);
    let device = consumer(&f);
    f.post(1).expect("room");
    f.post(2).expect("room");
    f.queue.ring();
    // SAFETY: nothing follows the links meanwhile.
    unsafe { f.ring.link(0, 0xfffe) };
    assert_eq!(device.pop(), popped(0, false));
    assert_eq!(device.pop(), popped(2, false));
}

/// More entries than the 16 bits of the doorbell record can count, completed in any order.
#[test]
fn what_is_posted_is_taken_in_order() {
    let mut random = Random(9);
    let mut f = fixture(8);
    let device = consumer(&f);
    let (mut posted, mut taken) = (0, 0);
    let mut waiting = VecDeque::new();
    let mut flying = Vec::new();
    for _ in 0..if cfg!(miri) { 100 } else { 400_000 } {
        match random.below(3) {
            0 => {
                if f.post(posted).is_ok() {
                    waiting.push_back(posted);
                    posted += 1;
                    f.queue.ring();
                }
            }
            1 => {
                assert_eq!(device.available() as usize, waiting.len());
                let popped = device.pop();
                assert_eq!(popped.is_some(), !waiting.is_empty());
                if let Some(Popped { index, .. }) = popped {
                    flying.push((index, waiting.pop_front().expect("one waits")));
                    taken += 1;
                }
            }
            _ if flying.is_empty() => {}
            _ => {
                let (index, wr_id) = flying.swap_remove(random.below(flying.len()));
                assert_eq!(f.retire(index), Some(wr_id));
            }
        }
    }
    assert!(cfg!(miri) || taken > 1 << 16, "{taken}");
}

/// Threads consume and complete while the poster goes on posting: each request is reported once.
#[test]
fn threads_take_each_entry_once() {
    let total = if cfg!(miri) { 30 } else { 100_000 };
    let mut f = fixture(8);
    let device = &*keep(consumer(&f));
    let (ledger, ring) = (f.ledger, f.ring);
    let reported = std::sync::Mutex::new(Vec::new());
    let left = std::sync::atomic::AtomicU64::new(total);
    let (reported_ref, left_ref) = (&reported, &left);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(move || {
                use std::sync::atomic::Ordering::Relaxed;
                let mut mine = Vec::new();
                while left_ref.load(Relaxed) != 0 {
                    let Some(Popped { index, .. }) = device.pop() else {
                        std::thread::yield_now();
                        continue;
                    };
                    // SAFETY: consumed, and not returned yet.
                    let sge = unsafe { ring.read(index.into()).next() };
                    let wr_id = ledger.locate(index).map(|request| request.release().0);
                    assert_eq!(wr_id, sge.map(|sge| sge.addr), "taken twice, or torn");
                    mine.extend(wr_id);
                    left_ref.fetch_sub(1, Relaxed);
                }
                reported_ref.lock().expect("no panic").extend(mine);
            });
        }
        for wr_id in 0..total {
            while f.post(wr_id).is_err() {
                std::thread::yield_now();
            }
            f.queue.ring();
        }
    });
    let mut reported = reported.into_inner().expect("no panic");
    reported.sort_unstable();
    assert!(reported.into_iter().eq(0..total));
}
