//! The rings of bellwire-core beside rtrb (one to one) and crossbeam's `ArrayQueue` (many to many):
//! `cargo bench -p bellwire-benches --bench ring`.
//!
//! Elements are 8 bytes, rings have 1024 slots. The time shown is per element (pushed and popped),
//! or per batch of 32 where the name says so; the throughput always counts elements.
//!
//! Two threads pass cache lines to and fro, and how often is up to their manners: an *eager* one
//! polls again at once and catches the other in the middle of a line, a *patient* one pauses first.
//! `ArrayQueue` has pauses, and calls to `sched_yield`, of its own.

use bellwire_core::ring::{mpsc, spsc};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;
use std::hint::{black_box, spin_loop};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const SLOTS: usize = 1024;
const BATCH: usize = 32;
/// How a thread waits that finds the ring empty or full, and the pause instructions that it spends.
const POLLING: [(&str, u32); 2] = [("eager", 1), ("patient", 64)];
const ITEMS: [u64; BATCH] = [7; BATCH];

/// The halves of every ring that is compared.
macro_rules! rings {
    ($spsc:ident, $rtrb:ident, $mpsc:ident, $array:ident) => {
        let mut slots = CachePadded::new([const { spsc::Slot::new() }; SLOTS]);
        let mut ring = spsc::Ring::new(&mut *slots).unwrap();
        let mut $spsc = ring.split();
        // Each half on lines of its own, as ours are.
        let (push, pop) = rtrb::RingBuffer::new(SLOTS);
        let mut $rtrb = (CachePadded::new(push), CachePadded::new(pop));
        let mut slots = CachePadded::new([const { mpsc::Slot::new() }; SLOTS]);
        let mut ring = mpsc::Ring::new(&mut *slots).unwrap();
        let mut $mpsc = ring.split();
        let $array = ArrayQueue::new(SLOTS);
    };
}

fn one_thread(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ring, one thread");
    group.throughput(Throughput::Elements(1));
    rings!(spsc, rtrb, mpsc, array);
    group.bench_function("spsc", |bench| {
        bench.iter(|| {
            let _ = spsc.0.push(black_box(7));
            spsc.1.pop()
        });
    });
    group.bench_function("rtrb", |bench| {
        bench.iter(|| {
            let _ = rtrb.0.push(black_box(7));
            rtrb.1.pop()
        });
    });
    group.bench_function("mpsc", |bench| {
        bench.iter(|| {
            let _ = mpsc.0.push(black_box(7));
            mpsc.1.pop()
        });
    });
    group.bench_function("ArrayQueue", |bench| {
        bench.iter(|| {
            let _ = array.push(black_box(7));
            array.pop()
        });
    });
}

fn one_thread_batches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ring, one thread, batches of 32");
    group.throughput(Throughput::Elements(BATCH as u64));
    rings!(spsc, rtrb, mpsc, array);
    let mut out = [const { MaybeUninit::uninit() }; BATCH];
    group.bench_function("spsc", |bench| {
        bench.iter(|| {
            spsc.0.push_slice(black_box(&ITEMS));
            black_box(spsc.1.pop_slice(&mut out)).len()
        });
    });
    group.bench_function("rtrb", |bench| {
        bench.iter(|| {
            let _ = rtrb.0.push_partial_slice(black_box(&ITEMS));
            black_box(rtrb.1.pop_partial_slice_uninit(&mut out)).0.len()
        });
    });
    group.bench_function("mpsc", |bench| {
        bench.iter(|| {
            mpsc.0.push_slice(black_box(&ITEMS));
            black_box(mpsc.1.pop_slice(&mut out)).len()
        });
    });
    group.bench_function("ArrayQueue", |bench| {
        bench.iter(|| {
            for item in black_box(&ITEMS) {
                let _ = array.push(*item);
            }
            for place in &mut out {
                place.write(array.pop().unwrap_or(0));
            }
            black_box(&out).len()
        });
    });
}

fn two_threads(criterion: &mut Criterion) {
    for (polling, pauses) in POLLING {
        let mut group = criterion.benchmark_group(format!("ring, two threads, {polling}"));
        group.throughput(Throughput::Elements(1));
        rings!(spsc, rtrb, mpsc, array);
        let (push, pop) = &mut spsc;
        let pop = || black_box(pop.pop()).is_some().into();
        let push = |n| push.push(n).is_ok().into();
        across(&mut group, pauses, "spsc", 1, push, pop);
        let (push, pop) = &mut rtrb;
        let pop = || black_box(pop.pop()).is_ok().into();
        let push = |n| push.push(n).is_ok().into();
        across(&mut group, pauses, "rtrb", 1, push, pop);
        let (push, pop) = &mut mpsc;
        let pop = || black_box(pop.pop()).is_some().into();
        let push = |n| push.push(n).is_ok().into();
        across(&mut group, pauses, "mpsc", 1, push, pop);
        let pop = || black_box(array.pop()).is_some().into();
        let push = |n| array.push(n).is_ok().into();
        across(&mut group, pauses, "ArrayQueue", 1, push, pop);
    }
}

fn two_threads_batches(criterion: &mut Criterion) {
    for (polling, pauses) in POLLING {
        let mut group =
            criterion.benchmark_group(format!("ring, two threads, batches of 32, {polling}"));
        group.throughput(Throughput::Elements(BATCH as u64));
        rings!(spsc, rtrb, mpsc, array);
        let mut out = [const { MaybeUninit::uninit() }; BATCH];
        let fit = |left: u64| &ITEMS[..BATCH.min(left as usize)];
        let (push, pop) = &mut spsc;
        let pop = || black_box(pop.pop_slice(&mut out)).len() as u64;
        let push = |left| push.push_slice(fit(left)) as u64;
        across(&mut group, pauses, "spsc", BATCH, push, pop);
        let (push, pop) = &mut rtrb;
        let pop = || black_box(pop.pop_partial_slice_uninit(&mut out)).0.len() as u64;
        let push = |left| push.push_partial_slice(fit(left)).0.len() as u64;
        across(&mut group, pauses, "rtrb", BATCH, push, pop);
        let (push, pop) = &mut mpsc;
        let pop = || black_box(pop.pop_slice(&mut out)).len() as u64;
        let push = |left| push.push_slice(fit(left)) as u64;
        across(&mut group, pauses, "mpsc", BATCH, push, pop);
        let pop = || (0..BATCH).map_while(|_| array.pop()).map(black_box).count() as u64;
        let push = |left| {
            fit(left)
                .iter()
                .take_while(|item| array.push(**item).is_ok())
                .count() as u64
        };
        across(&mut group, pauses, "ArrayQueue", BATCH, push, pop);
    }
}

/// A queue's owner pushes work of its own while a second thread feeds it: an element each per
/// iteration.
fn two_producers(criterion: &mut Criterion) {
    for (polling, pauses) in POLLING {
        let mut group =
            criterion.benchmark_group(format!("ring, two threads push, one pops, {polling}"));
        group.throughput(Throughput::Elements(2));
        let mut slots = CachePadded::new([const { mpsc::Slot::new() }; SLOTS]);
        let mut ring = mpsc::Ring::new(&mut *slots).unwrap();
        let (push, mut pop) = ring.split();
        let pop = || black_box(pop.pop()).is_some();
        fed(&mut group, pauses, "mpsc", |n| push.push(n).is_ok(), pop);
        let array = ArrayQueue::new(SLOTS);
        let pop = || black_box(array.pop()).is_some();
        let push = |n| array.push(n).is_ok();
        fed(&mut group, pauses, "ArrayQueue", push, pop);
    }
}

/// Times the move of elements from one thread to another. `push` gets the number of elements still
/// to be pushed and returns how many it pushed; `pop` returns how many it popped.
fn across(
    group: &mut BenchmarkGroup<'_, WallTime>,
    pauses: u32,
    name: &str,
    batch: usize,
    mut push: impl FnMut(u64) -> u64 + Send,
    mut pop: impl FnMut() -> u64 + Send,
) {
    group.bench_function(name, |bench| {
        bench.iter_custom(|iterations| {
            let count = iterations * batch as u64;
            race(
                || until_done(pauses, count, &mut push),
                || until_done(pauses, count, |_| pop()),
            )
        });
    });
}

/// Times an owner that pushes as many elements as the thread that feeds it, and pops them all.
fn fed(
    group: &mut BenchmarkGroup<'_, WallTime>,
    pauses: u32,
    name: &str,
    push: impl Fn(u64) -> bool + Sync,
    mut pop: impl FnMut() -> bool + Send,
) {
    group.bench_function(name, |bench| {
        bench.iter_custom(|count| {
            let mut own = count;
            let owner = |_| {
                if own > 0 {
                    own -= u64::from(push(own));
                }
                u64::from(pop())
            };
            race(
                || until_done(pauses, count, |left| push(left).into()),
                || until_done(pauses, 2 * count, owner),
            )
        });
    });
}

/// Calls `step` until it has done `left` elements, with some pauses after each call that did none.
fn until_done(pauses: u32, mut left: u64, mut step: impl FnMut(u64) -> u64) {
    while left > 0 {
        match step(left) {
            0 => (0..pauses).for_each(|_| spin_loop()),
            done => left -= done,
        }
    }
}

/// Runs both on two processors, started together, and returns how long `consume` took.
fn race(produce: impl FnOnce() + Send, consume: impl FnOnce() + Send) -> Duration {
    let waiting = AtomicU32::new(2);
    let start = |processor| {
        pin(processor);
        waiting.fetch_sub(1, Ordering::AcqRel);
        while waiting.load(Ordering::Acquire) > 0 {
            spin_loop();
        }
    };
    thread::scope(|threads| {
        threads.spawn(|| {
            start(1);
            produce();
        });
        let consumer = threads.spawn(|| {
            start(0);
            let begin = Instant::now();
            consume();
            begin.elapsed()
        });
        consumer.join().unwrap()
    })
}

/// Binds this thread to the `nth` of the processors that it may use.
fn pin(nth: usize) {
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: all zeroes is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is `size` bytes that the call may write.
    let read = unsafe { libc::sched_getaffinity(0, size, &mut set) };
    assert_eq!(
        read,
        0,
        "sched_getaffinity: {}",
        std::io::Error::last_os_error()
    );
    let processor = (0..libc::CPU_SETSIZE as usize)
        // SAFETY: the number is below the size of the set.
        .filter(|processor| unsafe { libc::CPU_ISSET(*processor, &set) })
        .nth(nth)
        .expect("two processors: threads that share one would time the scheduler");
    // SAFETY: the set is ours, and the number came from it.
    unsafe {
        libc::CPU_ZERO(&mut set);
        libc::CPU_SET(processor, &mut set);
    }
    // SAFETY: the set is `size` bytes that the call reads.
    let written = unsafe { libc::sched_setaffinity(0, size, &set) };
    assert_eq!(
        written,
        0,
        "sched_setaffinity: {}",
        std::io::Error::last_os_error()
    );
}

criterion_group!(
    benches,
    one_thread,
    one_thread_batches,
    two_threads,
    two_threads_batches,
    two_producers
);
criterion_main!(benches);
