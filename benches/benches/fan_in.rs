//! Messages of 8 bytes into one completion queue, between two nodes of a fabric: of one connection, and of a hundred in
//! turn, into receive queues of their own and into a shared one. Two processors, of which one sends and the other receives.
#![allow(
    missing_docs,
    reason = "criterion's macros make undocumented functions"
)]

use bellwire_benches::FanIn;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

fn messages(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("fan-in");
    group.throughput(Throughput::Elements(1));
    for (count, shared) in [(1, false), (100, false), (1, true), (100, true)] {
        let mut connections = FanIn::new(count, shared);
        let (all, receiver) = match shared {
            false => (
                BenchmarkId::from_parameter(count),
                BenchmarkId::new("receiver", count),
            ),
            true => (
                BenchmarkId::new("srq", count),
                BenchmarkId::new("srq receiver", count),
            ),
        };
        group.bench_function(all, |bencher| {
            bencher.iter_custom(|messages| connections.run(messages));
        });
        group.bench_function(receiver, |bencher| {
            bencher.iter_custom(|messages| connections.run_receiver(messages));
        });
    }
    group.finish();
}

criterion_group!(benches, messages);
criterion_main!(benches);
