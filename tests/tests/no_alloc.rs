//! The data path allocates nothing: posting, ringing and polling, counted by the allocator.

use bellwire::ConnectAttr;
use bellwire::be::Be32;
use bellwire::soft::Mode;
use bellwire::wqe::*;
use bellwire::wr::{SendFlags, WcStatus};
use bellwire_tests::fixture::*;
use bellwire_tests::links::{links, links_between, operations, operations_between};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller guarantees that the size is not zero.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller guarantees that `ptr` was allocated here, so by `System`, with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(work: impl FnOnce()) -> u64 {
    let before = COUNT.get();
    work();
    COUNT.get() - before
}

/// One of everything that the promise is about.
fn round(a: &mut End, b: &mut End, round: u64) {
    let remote = b.region.remote(0);
    a.go(round, RdmaWrite { remote }, Inline(&round.to_ne_bytes()));
    assert_eq!(a.outcome(), (round, WcStatus::Success));
    b.receive(round, &[b.region.sge(64, 100), b.region.sge(1024, 4096)]);
    a.go(round, Send {}, a.region.sge(0, 3000));
    assert_eq!(a.outcome(), (round, WcStatus::Success));
    assert_eq!(b.outcome(), (round, WcStatus::Success));
    a.go(round, RdmaRead { remote }, a.region.sge(8192, 500));
    assert_eq!(a.outcome(), (round, WcStatus::Success));
    a.go(
        round,
        AtomicFetchAndAdd { remote, add: 1 },
        a.region.sge(0, 8),
    );
    assert_eq!(a.outcome(), (round, WcStatus::Success));
    for at in 0..32 {
        let flags = if at == 31 {
            SIGNALED
        } else {
            SendFlags::empty()
        };
        a.post(at, RdmaWrite { remote }, Inline(&[1; 16]), flags)
            .unwrap();
    }
    a.qp.sq().ring();
    let mut retired = 0;
    let polled = a.cq.poll(64, |done| retired += done.retired);
    assert_eq!((polled, retired), (1, 32));
}

#[test]
fn post_ring_and_poll_allocate_nothing() {
    let (mut a, mut b) = pair(Mode::Inline);
    round(&mut a, &mut b, 0);
    let count = allocations(|| {
        for at in 1..1000 {
            round(&mut a, &mut b, at);
        }
    });
    assert_eq!(count, 0);
}

/// Between nodes, both of which are polled.
fn round_between(a: &mut End, b: &mut End, round: u64) {
    let remote = b.region.remote(0);
    a.go(round, RdmaWrite { remote }, Inline(&round.to_ne_bytes()));
    assert_eq!(a.outcome(), (round, WcStatus::Success));
    for length in [8, 64, 1000, 3000, 20_000] {
        b.receive(round, &[b.region.sge(0, 20_000)]);
        a.go(round, Send {}, a.region.sge(0, length));
        // So many polls look after what waits, too.
        let early = (0..300).find_map(|_| a.cq.poll_one().map(|done| done.status()));
        assert_eq!(b.outcome(), (round, WcStatus::Success));
        match early {
            Some(status) => assert_eq!(status, WcStatus::Success),
            None => assert_eq!(a.outcome(), (round, WcStatus::Success)),
        }
    }
    b.receive(round, &[]);
    let imm = Be32::new(7);
    a.go(
        round,
        RdmaWriteWithImm { remote, imm },
        a.region.sge(0, 100),
    );
    assert_eq!(b.outcome(), (round, WcStatus::Success));
    assert_eq!(a.outcome(), (round, WcStatus::Success));
    for length in [8, 20_000] {
        a.go(round, RdmaRead { remote }, a.region.sge(8192, length));
        assert_eq!(a.outcome(), (round, WcStatus::Success));
    }
    let add = AtomicFetchAndAdd { remote, add: 1 };
    a.go(round, add, a.region.sge(0, 8));
    assert_eq!(a.outcome(), (round, WcStatus::Success));
}

#[test]
fn nor_do_those_between_nodes() {
    let fabric = fabric_name();
    let end = || {
        let pd = node(&fabric, Mode::Inline).alloc_pd();
        End::new(&pd, Mode::Inline, &init())
    };
    let (mut a, mut b) = (end(), end());
    connect_with(&mut a.qp, &mut b.qp, &ConnectAttr::default());
    round_between(&mut a, &mut b, 0);
    let count = allocations(|| {
        for at in 1..1000 {
            round_between(&mut a, &mut b, at);
        }
    });
    assert_eq!(count, 0);
}

#[test]
fn nor_do_those_of_a_link() {
    let (mut a, mut b) = links();
    assert!(operations(&mut a, &mut b, 0));
    let mut good = true;
    let count = allocations(|| {
        for at in 1..1000 {
            good &= operations(&mut a, &mut b, at);
        }
    });
    assert_eq!((good, count), (true, 0));
}

#[test]
fn nor_do_those_of_links_between_nodes() {
    let (mut a, mut b) = links_between();
    assert!(operations_between(&mut a, &mut b, 0));
    let mut good = true;
    let count = allocations(|| {
        for at in 1..1000 {
            good &= operations_between(&mut a, &mut b, at);
        }
    });
    assert_eq!((good, count), (true, 0));
}

#[test]
fn the_count_sees_an_allocation() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 2);
}
