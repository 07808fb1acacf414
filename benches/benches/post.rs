//! Posting, ringing and polling on memory only: no device behind it. The doorbell is ConnectX's, on
//! ordinary memory; completion entries are prepared in bulk, outside of what is timed.
#![allow(
    missing_docs,
    reason = "criterion's macros make undocumented functions"
)]

use bellwire_benches::{ENTRIES, MemoryDevice};
use bellwire_core::be::Be32;
use bellwire_core::queue::Completion;
use bellwire_core::wqe::*;
use bellwire_core::wr::{Remote, SendFlags, Sge};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use std::time::{Duration, Instant};

const REMOTE: Remote = Remote {
    addr: 0x1000,
    rkey: 7,
};
const SGE: Sge = Sge {
    addr: 0x2000,
    length: 64,
    lkey: 5,
};
const SIGNALED: SendFlags = SendFlags::SIGNALED;

/// Requests between two preparations: of up to two blocks each, they fill half a ring.
const ROUND: u64 = ENTRIES as u64 / 4;

/// Times `run` in rounds; `prepare` before each is not timed. Both get the number of requests.
fn rounds(
    iterations: u64,
    device: &mut MemoryDevice,
    mut prepare: impl FnMut(&mut MemoryDevice, u64),
    mut run: impl FnMut(&mut MemoryDevice, u64),
) -> Duration {
    let mut total = Duration::ZERO;
    let mut left = iterations;
    while left != 0 {
        let now = left.min(ROUND);
        prepare(device, now);
        let start = Instant::now();
        run(device, now);
        total += start.elapsed();
        left -= now;
    }
    total
}

/// What every program does with a completion: looks whether there is one, whether it succeeded, and which
/// request it is of.
#[inline(always)]
fn take(completion: Option<Completion<'static>>) {
    let completion = completion.expect("prepared");
    assert!(completion.result.is_ok());
    black_box(completion.wr_id);
}

/// Takes all that is left in flight, not timed.
fn drain(device: &mut MemoryDevice, requests: u64) {
    device.cq.poll(requests as usize, drop);
}

fn bench(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    prepare: impl Fn(&mut MemoryDevice, u64),
    run: impl Fn(&mut MemoryDevice, u64),
) {
    let mut device = MemoryDevice::new(60);
    group.bench_function(name, |bencher| {
        bencher.iter_custom(|iterations| {
            rounds(iterations, &mut device, &prepare, |device, n| {
                run(device, n)
            })
        });
    });
}

/// Staging alone: the doorbell is rung, and what was staged retired, outside of the time.
fn stage<O: Operation>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    operation: O,
    payload: impl Payload,
) where
    Rc: Supports<O>,
{
    let mut device = MemoryDevice::new(60);
    group.bench_function(name, |bencher| {
        bencher.iter_custom(|iterations| {
            let mut total = Duration::ZERO;
            let mut left = iterations;
            while left != 0 {
                // Entries of up to 3 blocks.
                let now = left.min(ROUND / 2);
                let start = Instant::now();
                for wr_id in 0..now {
                    // SAFETY: there is no device that would touch the memory.
                    let _ = unsafe {
                        let (operation, payload) = (black_box(operation), black_box(payload));
                        device
                            .sq
                            .post(wr_id, (), operation, payload, SendFlags::empty())
                    };
                }
                total += start.elapsed();
                assert_eq!(u64::from(device.sq.staged()), now);
                retire_all(&mut device);
                left -= now;
            }
            total
        });
    });
}

/// A signaled NOP completes everything before it.
fn retire_all(device: &mut MemoryDevice) {
    device.complete_sends(1, 1, 1);
    let _ = device.sq.post_empty(0, (), Nop {}, SIGNALED);
    device.sq.ring();
    drain(device, 1);
}

fn staging(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("stage");
    let imm = Be32::new(9);
    let data: &[u8] = &[7; 32];
    stage(&mut group, "SEND 64 B by SGE", Send {}, SGE);
    stage(&mut group, "SEND 32 B inline", Send {}, Inline(data));
    stage(
        &mut group,
        "SEND_WITH_IMM 64 B by SGE",
        SendWithImm { imm },
        SGE,
    );
    stage(
        &mut group,
        "SEND_WITH_INV 64 B by SGE",
        SendWithInv { rkey: 3 },
        SGE,
    );
    stage(
        &mut group,
        "RDMA_WRITE 64 B by SGE",
        RdmaWrite { remote: REMOTE },
        SGE,
    );
    stage(
        &mut group,
        "RDMA_WRITE 32 B inline",
        RdmaWrite { remote: REMOTE },
        Inline(data),
    );
    stage(
        &mut group,
        "RDMA_WRITE_WITH_IMM 64 B by SGE",
        RdmaWriteWithImm {
            remote: REMOTE,
            imm,
        },
        SGE,
    );
    stage(
        &mut group,
        "RDMA_READ 64 B",
        RdmaRead { remote: REMOTE },
        SGE,
    );
    let swap = AtomicCmpAndSwp {
        remote: REMOTE,
        compare: 1,
        swap: 2,
    };
    stage(
        &mut group,
        "ATOMIC_CMP_AND_SWP",
        swap,
        Sge { length: 8, ..SGE },
    );
    let add = AtomicFetchAndAdd {
        remote: REMOTE,
        add: 1,
    };
    stage(
        &mut group,
        "ATOMIC_FETCH_AND_ADD",
        add,
        Sge { length: 8, ..SGE },
    );
    stage(&mut group, "LOCAL_INV", LocalInv { rkey: 3 }, NoPayload);
    stage(&mut group, "NOP", Nop {}, NoPayload);
    group.finish();
}

fn whole(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("post");
    let data = [7u8; 32];
    let write = RdmaWrite { remote: REMOTE };
    bench(
        &mut group,
        "stage + ring + poll, WRITE 32 B inline",
        |device, n| device.complete_sends(n as u32, 2, 1),
        |device, n| {
            for wr_id in 0..n {
                let _ = device
                    .sq
                    .post_inline(wr_id, (), write, black_box(&data), SIGNALED);
                device.sq.ring();
                take(device.cq.poll_one());
            }
        },
    );
    bench(
        &mut group,
        "stage + ring + poll, WRITE 64 B by SGE",
        |device, n| device.complete_sends(n as u32, 1, 1),
        |device, n| {
            for wr_id in 0..n {
                // SAFETY: there is no device that would touch the memory.
                let _ = unsafe { device.sq.post(wr_id, (), write, black_box(SGE), SIGNALED) };
                device.sq.ring();
                take(device.cq.poll_one());
            }
        },
    );
    bench(
        &mut group,
        "stage + ring + poll, WRITE 32 B inline, 1 in 64 signaled",
        |device, n| device.complete_sends(n as u32, 2, 64),
        |device, n| {
            for wr_id in 0..n {
                let last = wr_id % 64 == 63;
                let flags = if last { SIGNALED } else { SendFlags::empty() };
                let _ = device
                    .sq
                    .post_inline(wr_id, (), write, black_box(&data), flags);
                device.sq.ring();
                if last {
                    take(device.cq.poll_one());
                }
            }
            if n % 64 != 0 {
                retire_all(device);
            }
        },
    );
    bench(
        &mut group,
        "stage 32, ring once, poll 32, WRITE 64 B by SGE",
        |device, n| device.complete_sends(n as u32, 1, 1),
        |device, n| {
            for wr_id in 0..n {
                // SAFETY: there is no device that would touch the memory.
                let _ = unsafe { device.sq.post(wr_id, (), write, black_box(SGE), SIGNALED) };
                if wr_id % 32 == 31 || wr_id + 1 == n {
                    device.sq.ring();
                    device.cq.poll(32, |completion| take(Some(completion)));
                }
            }
        },
    );
    group.finish();
}

fn ringing(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ring");
    bench(
        &mut group,
        "stage NOP + ring (eight bytes)",
        |device, n| {
            drain(device, ROUND);
            device.complete_sends(n as u32, 1, 1);
        },
        |device, n| {
            for wr_id in 0..n {
                let _ = device.sq.post_empty(wr_id, (), Nop {}, SIGNALED);
                device.sq.ring();
            }
        },
    );
    bench(
        &mut group,
        "stage WRITE 32 B inline + ring (BlueFlame)",
        |device, n| {
            drain(device, ROUND);
            device.complete_sends(n as u32, 2, 1);
        },
        |device, n| {
            for wr_id in 0..n {
                let write = RdmaWrite { remote: REMOTE };
                let _ = device
                    .sq
                    .post_inline(wr_id, (), write, black_box(&[7u8; 32]), SIGNALED);
                device.sq.ring();
            }
        },
    );
    bench(
        &mut group,
        "receive + ring",
        |device, n| {
            drain(device, ROUND);
            device.complete_receives(n as u32, 64);
        },
        |device, n| {
            for wr_id in 0..n {
                // SAFETY: there is no device that would touch the memory.
                let _ = unsafe { device.rq.post(wr_id, &[black_box(SGE)]) };
                device.rq.ring();
            }
        },
    );
    group.finish();
}

fn polling(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("poll");
    let sends = |device: &mut MemoryDevice, n: u64| {
        device.complete_sends(n as u32, 1, 1);
        for wr_id in 0..n {
            let _ = device.sq.post_empty(wr_id, (), Nop {}, SIGNALED);
        }
        device.sq.ring();
    };
    let receives = |device: &mut MemoryDevice, n: u64| {
        device.complete_receives(n as u32, 64);
        for wr_id in 0..n {
            // SAFETY: there is no device that would touch the memory.
            let _ = unsafe { device.rq.post(wr_id, &[SGE]) };
        }
        device.rq.ring();
    };
    let one = |device: &mut MemoryDevice, n: u64| {
        for _ in 0..n {
            take(device.cq.poll_one());
        }
    };
    let batch = |device: &mut MemoryDevice, n: u64| {
        let mut left = n as usize;
        while left != 0 {
            left -= device
                .cq
                .poll(left.min(32), |completion| take(Some(completion)));
        }
    };
    bench(&mut group, "1 send completion", sends, one);
    bench(&mut group, "32 send completions, each", sends, batch);
    bench(&mut group, "1 receive completion", receives, one);
    bench(&mut group, "32 receive completions, each", receives, batch);
    let empty = |device: &mut MemoryDevice, n: u64| {
        for _ in 0..n {
            assert!(black_box(&mut device.cq).poll_one().is_none());
        }
    };
    bench(&mut group, "empty", |_, _| {}, empty);
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1));
    targets = whole, ringing, polling, staging
}
criterion_main!(benches);
