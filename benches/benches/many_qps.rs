//! What 10,000 queue pairs on one device cost: set-up time, memory, and time of an operation, beside
//! those of 100 and of one. Each has 4 sends and 4 receives; all share four completion queues.
//!
//! "All in turn" goes round all queue pairs, so that with many each is cold in the caches; "one of
//! them" stays at one while the others idle.
#![allow(
    missing_docs,
    reason = "criterion's macros make undocumented functions"
)]

use bellwire_benches::Many;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use std::time::{Duration, Instant};

const MANY: usize = 10_000;

/// Gives the system back what was freed, so that using it again is measured as growth.
fn trim() {
    // SAFETY: takes no memory that is in use.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Prints what setting `count` up took, and what is taking them down.
fn measured(count: usize) {
    trim();
    let many = Many::new(count);
    let set_up = many.set_up;
    let start = Instant::now();
    drop(many);
    let destroy = start.elapsed();
    let each = |time: Duration| time.as_secs_f64() * 1e6 / count as f64;
    println!(
        "{count} queue pairs, each: create {:.2} us, connect {:.2} us, destroy {:.2} us; memory \
         {} bytes, and {} bytes of the completion queues",
        each(set_up.create),
        each(set_up.connect),
        each(destroy),
        set_up.qp_bytes / count as u64,
        set_up.cq_bytes / count as u64,
    );
}

fn set_up(_: &mut Criterion) {
    // The largest first, while the allocator has no free memory at all.
    measured(MANY);
    measured(MANY / 10);
}

fn operations(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("many queue pairs");
    for count in [1, 100, MANY] {
        let mut many = Many::new(count);
        let mut next = 0;
        let mut turn = || {
            let at = next;
            next = if at + 1 == count { 0 } else { at + 1 };
            at
        };
        group.bench_function(
            BenchmarkId::new("WRITE 8 B inline, all in turn", count),
            |b| b.iter(|| many.write(turn())),
        );
        group.bench_function(
            BenchmarkId::new("WRITE 8 B inline, one of them", count),
            |b| b.iter(|| many.write(count / 3)),
        );
        group.bench_function(
            BenchmarkId::new("SEND 8 B and receive, all in turn", count),
            |b| b.iter(|| many.send(turn())),
        );
        group.bench_function(
            BenchmarkId::new("SEND 8 B and receive, one of them", count),
            |b| b.iter(|| many.send(count / 3)),
        );
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = set_up, operations
}
criterion_main!(benches);
