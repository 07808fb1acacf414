//! Taking and returning a block, beside an uncontended atomic increment as the yardstick.

#![allow(
    missing_docs,
    reason = "criterion's macros make undocumented functions"
)]

use bellwire_core::slab::{
    Block, BlockMeta, ClassLayout, Slab, SlabClass, SlabRegion, block_count, region_bytes,
};
use criterion::{Criterion, criterion_group, criterion_main};
use std::{
    alloc::{Layout, alloc_zeroed},
    hint::black_box,
    mem,
    ptr::NonNull,
    sync::{
        Barrier,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

const CLASSES: [ClassLayout; 3] = [
    ClassLayout {
        size: 256,
        count: 1024,
    },
    ClassLayout {
        size: 4096,
        count: 1024,
    },
    ClassLayout {
        size: 65536,
        count: 16,
    },
];
const LEN: u32 = 4096;

/// A slab for the life of the process.
fn slab() -> &'static Slab<'static> {
    let length = region_bytes(&CLASSES).expect("no overflow");
    let layout = Layout::from_size_align(length, 4096).expect("a page is a power of two");
    // SAFETY: the length is not zero.
    let start = NonNull::new(unsafe { alloc_zeroed(layout) }).expect("memory");
    let metas: Box<[_]> = (0..block_count(&CLASSES))
        .map(|_| BlockMeta::default())
        .collect();
    let classes: Box<[_]> = CLASSES.iter().map(|_| SlabClass::default()).collect();
    let region = SlabRegion {
        start,
        length,
        lkey: 1,
        rkey: 2,
    };
    // SAFETY: the memory is leaked, zeroed, and known to nobody else.
    let slab = unsafe { Slab::new(Box::leak(metas), Box::leak(classes), region, &CLASSES) };
    Box::leak(Box::new(slab.expect("the layout is sound")))
}

/// Keeps the calling thread on one processor.
fn pin(cpu: usize) {
    // SAFETY: an all-zero `cpu_set_t` is the empty set; the call reads the set only.
    let failed = unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set)
    };
    assert_eq!(
        failed,
        0,
        "processor {cpu}: {}",
        std::io::Error::last_os_error()
    );
}

/// What every user of a block does: learn its address.
fn used(block: Block<'_>) -> Block<'_> {
    black_box(block.as_ptr());
    block
}

/// Time that `iters` rounds of `work` take on two threads at once, each on its own processor: of
/// the slower one.
fn on_two_threads(iters: u64, work: impl Fn(u64) + Sync) -> Duration {
    let start = Barrier::new(2);
    let run = |cpu| {
        pin(cpu);
        start.wait();
        let begin = Instant::now();
        work(iters);
        begin.elapsed()
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| run(1));
        let one = scope.spawn(|| run(0));
        one.join()
            .expect("no panic")
            .max(other.join().expect("no panic"))
    })
}

fn one_thread(c: &mut Criterion) {
    pin(0);
    let slab = slab();
    let mut group = c.benchmark_group("slab/one thread");
    let counter = AtomicU64::new(0);
    group.bench_function("yardstick: fetch_add", |b| {
        b.iter(|| black_box(&counter).fetch_add(1, Ordering::Relaxed));
    });
    group.bench_function("slab take, drop", |b| {
        b.iter(|| slab.take(black_box(LEN)).map(|block| drop(used(block))));
    });
    let mut cache = slab.cache(LEN).expect("a class");
    group.bench_function("cache take, cache put", |b| {
        b.iter(|| {
            if let Ok(block) = cache.take() {
                cache.put(used(block));
            }
        });
    });
    group.bench_function("cache take, drop", |b| {
        b.iter(|| cache.take().map(|block| drop(used(block))));
    });
    // More than the two magazines hold: every block goes through the slab, 32 at a time.
    let mut held = Vec::with_capacity(128);
    group.bench_function("cache take 128, cache put 128", |b| {
        b.iter(|| {
            held.extend((0..128).filter_map(|_| cache.take().ok()));
            held.drain(..).for_each(|block| cache.put(block));
        });
    });
    group.finish();
}

fn two_threads(c: &mut Criterion) {
    let slab = slab();
    let mut group = c.benchmark_group("slab/two threads");
    let counter = AtomicU64::new(0);
    group.bench_function("yardstick: fetch_add on one counter", |b| {
        b.iter_custom(|iters| {
            on_two_threads(iters, |iters| {
                for _ in 0..iters {
                    black_box(&counter).fetch_add(1, Ordering::Relaxed);
                }
            })
        });
    });
    group.bench_function("slab take, drop", |b| {
        b.iter_custom(|iters| {
            on_two_threads(iters, |iters| {
                for _ in 0..iters {
                    let _ = slab.take(black_box(LEN)).map(used);
                }
            })
        });
    });
    group.bench_function("cache take, cache put", |b| {
        b.iter_custom(|iters| {
            on_two_threads(iters, |iters| {
                let mut cache = slab.cache(LEN).expect("a class");
                for _ in 0..iters {
                    if let Ok(block) = cache.take() {
                        cache.put(used(block));
                    }
                }
            })
        });
    });
    group.finish();
}

criterion_group!(benches, one_thread, two_threads);
criterion_main!(benches);
