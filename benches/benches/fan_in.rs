//! Messages of 8 bytes into one completion queue, between two nodes of a fabric: of one connection, and of a hundred in
//! turn, into receive queues of their own and into a shared one; and of one connection of each of eight nodes. Two
//! processors, of which one sends and the other receives. And of one thread that does both, where each message is signalled and
//! of the next connection.
#![allow(
    missing_docs,
    reason = "criterion's macros make undocumented functions"
)]

use bellwire_benches::FanIn;
use criterion::measurement::WallTime;
use criterion::{
    BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main,
};

fn measure(
    group: &mut BenchmarkGroup<'_, WallTime>,
    mut connections: FanIn,
    [all, receiver]: [BenchmarkId; 2],
) {
    group.bench_function(all, |bencher| {
        bencher.iter_custom(|messages| connections.run(messages));
    });
    group.bench_function(receiver, |bencher| {
        bencher.iter_custom(|messages| connections.run_receiver(messages));
    });
}

fn messages(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("fan-in");
    group.throughput(Throughput::Elements(1));
    let of = BenchmarkId::from_parameter;
    for (count, shared, rows) in [
        (1, false, [of("1"), of("receiver/1")]),
        (100, false, [of("100"), of("receiver/100")]),
        (1, true, [of("srq/1"), of("srq receiver/1")]),
        (100, true, [of("srq/100"), of("srq receiver/100")]),
    ] {
        measure(&mut group, FanIn::new(count, shared), rows);
    }
    measure(
        &mut group,
        FanIn::of_nodes(8),
        [of("nodes/8"), of("nodes receiver/8")],
    );
    for count in [1, 100] {
        let mut connections = FanIn::new(count, false);
        group.bench_function(BenchmarkId::new("in turn", count), |bencher| {
            bencher.iter_custom(|messages| connections.run_in_turn(messages));
        });
    }
    group.finish();
}

criterion_group!(benches, messages);
criterion_main!(benches);
