//! Messages of 8 bytes into one completion queue, between two nodes of a fabric: of one connection, and of a hundred in
//! turn. Two processors, of which one sends and the other receives.
#![allow(
    missing_docs,
    reason = "criterion's macros make undocumented functions"
)]

use bellwire_benches::FanIn;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

fn messages(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("fan-in");
    group.throughput(Throughput::Elements(1));
    for count in [1, 100] {
        let mut connections = FanIn::new(count);
        group.bench_function(BenchmarkId::from_parameter(count), |bencher| {
            bencher.iter_custom(|messages| connections.run(messages));
        });
        group.bench_function(BenchmarkId::new("receiver", count), |bencher| {
            bencher.iter_custom(|messages| connections.run_receiver(messages));
        });
    }
    group.finish();
}

criterion_group!(benches, messages);
criterion_main!(benches);
