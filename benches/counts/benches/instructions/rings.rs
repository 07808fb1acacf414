//! Rings alone: what posts and polls take, with nobody who executes.

use super::{REQUESTS, SIGNALED, limit};
use bellwire_benches::MemoryDevice;
use bellwire_core::queue::SendRequest;
use bellwire_core::wqe::*;
use bellwire_core::wr::{Remote, Sge};
use gungraun::{library_benchmark, library_benchmark_group};
use std::hint::black_box;

const REMOTE: Remote = Remote {
    addr: 0x1000,
    rkey: 7,
};
const SGE: Sge = Sge {
    addr: 0x2000,
    length: 64,
    lkey: 5,
};

fn device() -> Box<MemoryDevice> {
    Box::new(MemoryDevice::new(60))
}

fn completing(blocks: u32) -> Box<MemoryDevice> {
    let mut device = device();
    device.complete_sends(REQUESTS as u32, blocks, 1);
    device
}

fn sent() -> Box<MemoryDevice> {
    let mut device = completing(1);
    for wr_id in 0..REQUESTS {
        device
            .sq
            .post_empty(wr_id, (), Nop {}, SIGNALED)
            .expect("room");
    }
    device.sq.ring();
    device
}

fn received() -> Box<MemoryDevice> {
    let mut device = device();
    device.complete_receives(REQUESTS as u32, 64);
    for wr_id in 0..REQUESTS {
        // SAFETY: there is no device that would touch the memory.
        unsafe { device.rq.post(wr_id, &[SGE]).expect("room") };
    }
    device.rq.ring();
    device
}

/// Stages, rings and polls inline WRITEs of `data`.
#[inline(always)]
fn write_inline(mut device: Box<MemoryDevice>, data: &[u8]) -> Box<MemoryDevice> {
    for wr_id in 0..REQUESTS {
        let write = RdmaWrite {
            remote: black_box(REMOTE),
        };
        let posted = device.sq.post_inline(wr_id, (), write, data, SIGNALED);
        posted.expect("room");
        device.sq.ring();
        poll(&mut device);
    }
    device
}

// What fits into one block.
#[library_benchmark(config = limit(126))]
#[bench::run(completing(1))]
fn write_28_inline_stage_ring_poll(device: Box<MemoryDevice>) -> Box<MemoryDevice> {
    let data: &[u8; 28] = black_box(&[7; 28]);
    write_inline(device, data)
}

#[library_benchmark(config = limit(148))]
#[bench::run(completing(2))]
fn write_32_inline_stage_ring_poll(device: Box<MemoryDevice>) -> Box<MemoryDevice> {
    let data: &[u8; 32] = black_box(&[7; 32]);
    write_inline(device, data)
}

// The same, of a length that the compiler does not know.
#[library_benchmark(config = limit(172))]
#[bench::run(completing(2))]
fn write_any_inline_stage_ring_poll(device: Box<MemoryDevice>) -> Box<MemoryDevice> {
    let data: &[u8] = black_box(&[7; 32]);
    write_inline(device, data)
}

#[library_benchmark(config = limit(139))]
#[bench::run(completing(1))]
fn write_64_sge_stage_ring_poll(mut device: Box<MemoryDevice>) -> Box<MemoryDevice> {
    for wr_id in 0..REQUESTS {
        let write = RdmaWrite {
            remote: black_box(REMOTE),
        };
        // SAFETY: there is no device that would touch the memory.
        let posted = unsafe { device.sq.post(wr_id, (), write, black_box(SGE), SIGNALED) };
        posted.expect("room");
        device.sq.ring();
        poll(&mut device);
    }
    device
}

#[library_benchmark(config = limit(65))]
#[bench::run(device())]
fn write_64_sge_stage(mut device: Box<MemoryDevice>) -> Box<MemoryDevice> {
    for wr_id in 0..REQUESTS {
        let write = RdmaWrite {
            remote: black_box(REMOTE),
        };
        // SAFETY: there is no device that would touch the memory.
        let posted = unsafe { device.sq.post(wr_id, (), write, black_box(SGE), SIGNALED) };
        posted.expect("room");
    }
    device
}

/// Identifiers of a list.
fn identifiers() -> Vec<u64> {
    (0..REQUESTS).collect()
}

// Of flags that are not known when this is compiled.
#[library_benchmark(config = limit(71))]
#[bench::run(device(), identifiers())]
fn write_64_sge_stage_list(
    mut device: Box<MemoryDevice>,
    list: Vec<u64>,
) -> (Box<MemoryDevice>, Vec<u64>) {
    let request = |&wr_id: &u64| {
        Some(SendRequest {
            wr_id,
            address: (),
            operation: RdmaWrite {
                remote: black_box(REMOTE),
            },
            payload: black_box(SGE),
            flags: black_box(SIGNALED),
        })
    };
    // SAFETY: there is no device that would touch the memory.
    let posted = unsafe { device.sq.post_list(&list, request) };
    assert!(posted.is_ok());
    (device, list)
}

#[library_benchmark(config = limit(44))]
#[bench::run(device())]
fn receive_stage(mut device: Box<MemoryDevice>) -> Box<MemoryDevice> {
    for wr_id in 0..REQUESTS {
        // SAFETY: there is no device that would touch the memory.
        let posted = unsafe { device.rq.post(wr_id, &[black_box(SGE)]) };
        posted.expect("room");
    }
    device
}

#[inline(always)]
fn poll(device: &mut MemoryDevice) {
    let completion = device.cq.poll_one().expect("prepared");
    assert!(completion.result.is_ok());
    black_box(completion.wr_id);
}

#[library_benchmark(config = limit(51))]
#[bench::sends(sent())]
fn poll_send(mut device: Box<MemoryDevice>) -> Box<MemoryDevice> {
    for _ in 0..REQUESTS {
        poll(&mut device);
    }
    device
}

#[library_benchmark(config = limit(34))]
#[bench::sends(sent())]
fn poll_send_batch(mut device: Box<MemoryDevice>) -> Box<MemoryDevice> {
    let polled = device.cq.poll(REQUESTS as usize, |completion| {
        assert!(completion.result.is_ok());
        black_box(completion.wr_id);
    });
    assert_eq!(polled as u64, REQUESTS);
    device
}

#[library_benchmark(config = limit(54))]
#[bench::receives(received())]
fn poll_receive(mut device: Box<MemoryDevice>) -> Box<MemoryDevice> {
    for _ in 0..REQUESTS {
        poll(&mut device);
    }
    device
}

#[library_benchmark(config = limit(18))]
#[bench::run(device())]
fn poll_empty(mut device: Box<MemoryDevice>) -> Box<MemoryDevice> {
    for _ in 0..REQUESTS {
        assert!(black_box(&mut device).cq.poll_one().is_none());
    }
    device
}

library_benchmark_group!(
    name = on_rings;
    benchmarks =
        write_28_inline_stage_ring_poll,
        write_32_inline_stage_ring_poll,
        write_any_inline_stage_ring_poll,
        write_64_sge_stage_ring_poll,
        write_64_sge_stage,
        write_64_sge_stage_list,
        receive_stage,
        poll_send,
        poll_send_batch,
        poll_receive,
        poll_empty
);
