//! Within a process, through the software HCA: the requester's thread executes.

use super::{REQUESTS, SIGNALED, limit, of_many, one_sided, receive, writes};
use bellwire_benches::{End, Many, ends};
use bellwire_core::wqe::*;
use bellwire_core::wr::SendFlags;
use gungraun::{library_benchmark, library_benchmark_group};
use std::hint::black_box;

// Through the software HCA: post, execute, and nothing to poll.
#[library_benchmark(config = limit(152))]
#[bench::run(connected())]
fn soft_write_8_inline(ends: (End, End)) -> (End, End) {
    writes(ends)
}

// Both ends' work for a SEND: post, execute, poll both sides, post a receive again.
#[library_benchmark(config = limit(589))]
#[bench::run(receiving())]
fn soft_send_8_inline_and_receive(mut ends: (End, End)) -> (End, End) {
    for wr_id in 0..REQUESTS {
        let data: &[u8; 8] = black_box(&[7; 8]);
        let _ = ends
            .0
            .qp
            .sq()
            .post_inline(wr_id, (), Send {}, data, SIGNALED);
        ends.0.qp.sq().ring();
        let received = ends.1.cq.poll_one().expect("executed");
        assert!(received.result.is_ok());
        let _ = receive(&mut ends.1);
        let sent = ends.0.cq.poll_one().expect("executed");
        assert!(sent.result.is_ok());
    }
    ends
}

// A WRITE and its completion: by the queues themselves, and by a link.
#[library_benchmark(config = limit(315))]
#[bench::run(connected())]
fn soft_write_8_inline_and_poll(mut ends: (End, End)) -> (End, End) {
    let remote = ends.1.region.remote(64);
    for wr_id in 0..REQUESTS {
        let data: &[u8; 8] = black_box(&[7; 8]);
        let write = RdmaWrite { remote };
        let mut sq = ends.0.qp.sq();
        let _ = sq.post_inline(wr_id, (), write, data, SIGNALED);
        sq.ring();
        let polled = ends.0.cq.poll(16, |completion| {
            assert!(completion.result.is_ok());
            black_box(completion.wr_id);
        });
        assert_eq!(polled, 1);
    }
    ends
}

// From and to registered memory.
#[library_benchmark(config = limit(369))]
#[bench::run(connected())]
fn soft_write_64_and_poll(ends: (End, End)) -> (End, End) {
    one_sided(ends, |remote| RdmaWrite { remote }, 64)
}

#[library_benchmark(config = limit(334))]
#[bench::run(connected())]
fn soft_read_8_and_poll(ends: (End, End)) -> (End, End) {
    one_sided(ends, |remote| RdmaRead { remote }, 8)
}

/// Two ends that have talked: the first packet of a connection is an event.
fn connected() -> (End, End) {
    let mut ends = ends();
    let remote = ends.1.region.remote(64);
    let write = RdmaWrite { remote };
    let posted = ends
        .0
        .qp
        .sq()
        .post_inline(0, (), write, &[7; 8], SendFlags::empty());
    posted.expect("room");
    ends.0.qp.sq().ring();
    ends
}

fn receiving() -> (End, End) {
    let mut ends = connected();
    receive(&mut ends.1).expect("room");
    ends
}

// However many queue pairs there are, an operation takes as many instructions: one limit.
#[library_benchmark(config = limit(323))]
#[bench::of_1(Many::new(1))]
#[bench::of_100(Many::new(100))]
#[bench::of_10000(Many::new(10_000))]
fn many_write_8_inline_and_poll(mut many: Many) -> Many {
    for request in 0..REQUESTS {
        many.write(of_many(request, many.count()));
    }
    many
}

#[library_benchmark(config = limit(680))]
#[bench::of_1(Many::new(1))]
#[bench::of_100(Many::new(100))]
#[bench::of_10000(Many::new(10_000))]
fn many_send_8_inline_and_receive(mut many: Many) -> Many {
    for request in 0..REQUESTS {
        many.send(of_many(request, many.count()));
    }
    many
}

library_benchmark_group!(
    name = within_a_process;
    benchmarks =
        soft_write_8_inline,
        soft_send_8_inline_and_receive,
        soft_write_8_inline_and_poll,
        soft_write_64_and_poll,
        soft_read_8_and_poll,
        many_write_8_inline_and_poll,
        many_send_8_inline_and_receive
);
