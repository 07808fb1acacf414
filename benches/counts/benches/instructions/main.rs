//! Instructions of each data path operation, counted by Valgrind and held to a limit: a change that
//! makes one costlier has to raise its limit, and say why.
//!
//! Each figure is for [`REQUESTS`] requests, so that what happens once weighs little.
//!
//! What goes through a device (`soft_`, `link_`, `fabric_`, `many_`) has the price of choosing its provider
//! at run time in it, some 12 instructions for a doorbell and 20 for a doorbell and a poll: a build has all
//! providers, and a library that is built without the feature `hardware` takes that much less.
#![allow(missing_docs, reason = "gungraun's macros make undocumented items")]

mod between;
mod links;
mod rings;
mod within;

use bellwire_benches::{End, SMALL};
use bellwire_core::queue::PostError;
use bellwire_core::wqe::*;
use bellwire_core::wr::{Remote, SendFlags};
use between::between_processes;
use gungraun::{Callgrind, EventKind, LibraryBenchmarkConfig, main};
use links::by_links;
use rings::on_rings;
use std::hint::black_box;
use within::within_a_process;

const REQUESTS: u64 = 32;
const SIGNALED: SendFlags = SendFlags::SIGNALED;

/// At the most `each` instructions a request.
pub(crate) fn limit(each: u64) -> LibraryBenchmarkConfig {
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(Callgrind::default().hard_limits([(EventKind::Ir, each * REQUESTS)]));
    config
}

#[inline(always)]
pub(crate) fn writes(mut ends: (End, End)) -> (End, End) {
    let remote = ends.1.region.remote(64);
    for wr_id in 0..REQUESTS {
        let data: &[u8; 8] = black_box(&[7; 8]);
        let none = SendFlags::empty();
        let _ = ends
            .0
            .qp
            .sq()
            .post_inline(wr_id, (), RdmaWrite { remote }, data, none);
        ends.0.qp.sq().ring();
    }
    ends
}

/// Signalled requests of one element, each of which is polled.
#[inline(always)]
pub(crate) fn one_sided<O: Operation>(
    mut ends: (End, End),
    operation: impl Fn(Remote) -> O,
    length: u32,
) -> (End, End)
where
    Rc: Supports<O>,
{
    for wr_id in 0..REQUESTS {
        let (operation, sge) = (
            operation(ends.1.region.remote(64)),
            ends.0.region.sge(0, length),
        );
        // SAFETY: the region outlives the queue pair's use of it.
        let posted = unsafe { (ends.0.qp.sq()).post(wr_id, (), operation, sge, SIGNALED) };
        posted.expect("room");
        ends.0.qp.sq().ring();
        assert!(ends.0.cq.poll_one().expect("executed").result.is_ok());
    }
    ends
}

#[inline(always)]
pub(crate) fn receive(end: &mut End) -> Result<(), PostError> {
    // SAFETY: the region outlives the queue pair's use of it.
    unsafe { end.qp.rq().post(1, &[end.region.sge(0, 64)])? };
    end.qp.rq().ring();
    Ok(())
}

/// The queue pair of a request, one after another from all over `count`. Each has a whole lap of its
/// send queue: once in each it looks anew at what has been polled.
pub(crate) fn of_many(request: u64, count: usize) -> usize {
    let lap = request / u64::from(SMALL.max_send_wr);
    lap as usize * 3_313 % count
}

main!(library_benchmark_groups = [on_rings, within_a_process, between_processes, by_links]);
