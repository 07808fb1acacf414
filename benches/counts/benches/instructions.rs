//! Instructions of each data path operation, counted by Valgrind and held to a limit: a change that
//! makes one costlier has to raise its limit, and say why.
//!
//! Each figure is for [`REQUESTS`] requests, so that what happens once weighs little.
//!
//! What goes through a device (`soft_`, `link_`, `fabric_`, `many_`) has the price of choosing its provider
//! at run time in it, some 12 instructions for a doorbell and 20 for a doorbell and a poll: a build has all
//! providers, and a library that is built without the feature `hardware` takes that much less.
#![allow(missing_docs, reason = "gungraun's macros make undocumented items")]

use bellwire::Ah;
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::{Cq, Srq};
use bellwire_benches::{
    End, Links, Many, MemoryDevice, QKEY, SMALL, Sets, Station, ends, links, nodes, nodes_on_srq,
    stations,
};
use bellwire_core::queue::SendRequest;
use bellwire_core::wqe::*;
use bellwire_core::wr::{Remote, SendFlags, Sge};
use gungraun::{
    Callgrind, EventKind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main,
};
use std::hint::black_box;

const REQUESTS: u64 = 32;
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

/// At the most `each` instructions a request.
fn limit(each: u64) -> LibraryBenchmarkConfig {
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(Callgrind::default().hard_limits([(EventKind::Ir, each * REQUESTS)]));
    config
}

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

// Through the software HCA: post, execute, and nothing to poll.
#[library_benchmark(config = limit(148))]
#[bench::run(connected())]
fn soft_write_8_inline(ends: (End, End)) -> (End, End) {
    writes(ends)
}

#[inline(always)]
fn writes(mut ends: (End, End)) -> (End, End) {
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

// Both ends' work for a SEND: post, execute, poll both sides, post a receive again.
#[library_benchmark(config = limit(599))]
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
#[library_benchmark(config = limit(301))]
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

#[library_benchmark(config = limit(361))]
#[bench::run(linked())]
fn link_write_8_inline_and_poll(mut links: Links) -> Links {
    let remote = links.region.remote(64);
    for wr_id in 0..REQUESTS {
        let data: &[u8; 8] = black_box(&[7; 8]);
        let write = RdmaWrite { remote };
        let _ = links
            .a
            .post_inline(wr_id, write, data, SIGNALED, Replay::IfSafe);
        links.a.ring();
        let polled = links.a.poll(16, |completion| {
            assert!(completion.outcome == Outcome::Done);
            black_box(completion.wr_id);
        });
        assert_eq!(polled, 1);
    }
    links
}

/// Two links that have talked.
fn linked() -> Links {
    let mut links = links();
    let remote = links.region.remote(64);
    let write = RdmaWrite { remote };
    let posted = links
        .a
        .post_inline(0, write, &[7; 8], SIGNALED, Replay::IfSafe);
    posted.expect("room");
    links.a.ring();
    while links.a.poll(1, drop) == 0 {}
    links
}

// From and to registered memory.
#[library_benchmark(config = limit(342))]
#[bench::run(connected())]
fn soft_write_64_and_poll(ends: (End, End)) -> (End, End) {
    one_sided(ends, |remote| RdmaWrite { remote }, 64)
}

#[library_benchmark(config = limit(312))]
#[bench::run(connected())]
fn soft_read_8_and_poll(ends: (End, End)) -> (End, End) {
    one_sided(ends, |remote| RdmaRead { remote }, 8)
}

// WRITE and SEND between nodes of a fabric, whose memory both have mapped.
#[library_benchmark(config = limit(150))]
#[bench::run(met())]
fn fabric_write_8_inline(ends: (End, End)) -> (End, End) {
    writes(ends)
}

// From and to registered memory.
#[library_benchmark(config = limit(379))]
#[bench::run(met())]
fn fabric_write_64_and_poll(ends: (End, End)) -> (End, End) {
    one_sided(ends, |remote| RdmaWrite { remote }, 64)
}

#[library_benchmark(config = limit(337))]
#[bench::run(met())]
fn fabric_read_8_and_poll(ends: (End, End)) -> (End, End) {
    one_sided(ends, |remote| RdmaRead { remote }, 8)
}

/// Signalled requests of one element, each of which is polled.
#[inline(always)]
fn one_sided<O: Operation>(
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

// The sender's part.
#[library_benchmark(config = limit(203))]
#[bench::run(met())]
fn fabric_send_8_inline(mut ends: (End, End)) -> (End, End) {
    for wr_id in 0..REQUESTS {
        let data: &[u8; 8] = black_box(&[7; 8]);
        let none = SendFlags::empty();
        let _ = ends.0.qp.sq().post_inline(wr_id, (), Send {}, data, none);
        ends.0.qp.sq().ring();
    }
    ends
}

// Both parts, with the receive posted. The poll that finds the packet receives it without the device's lock.
#[library_benchmark(config = limit(645))]
#[bench::run(met())]
fn fabric_send_8_inline_and_receive(mut ends: (End, End)) -> (End, End) {
    for wr_id in 0..REQUESTS {
        let _ = receive(&mut ends.1);
        let data: &[u8; 8] = black_box(&[7; 8]);
        let none = SendFlags::empty();
        let _ = ends.0.qp.sq().post_inline(wr_id, (), Send {}, data, none);
        ends.0.qp.sq().ring();
        poll_received(&mut ends.1.cq);
    }
    ends
}

/// Posts requests by `post`, each of which consumes a receive at the other end, whose completion is polled.
#[inline(always)]
fn messages(
    mut ends: (End, End),
    mut post: impl FnMut(&mut End, &End, u64) -> Result<(), bellwire_core::queue::PostError>,
) -> (End, End) {
    for wr_id in 0..REQUESTS {
        let _ = receive(&mut ends.1);
        post(&mut ends.0, &ends.1, wr_id).expect("room");
        ends.0.qp.sq().ring();
        poll_received(&mut ends.1.cq);
    }
    ends
}

// Received from a shared receive queue.
#[library_benchmark(config = limit(896))]
#[bench::run(met_on_srq())]
fn fabric_send_8_inline_and_receive_on_srq(ends: (End, End, Srq)) -> (End, End, Srq) {
    sends_to_srq(ends, SendFlags::empty())
}

#[inline(always)]
fn sends_to_srq(mut ends: (End, End, Srq), flags: SendFlags) -> (End, End, Srq) {
    let (from, to, srq) = (&mut ends.0, &mut ends.1, &mut ends.2);
    for wr_id in 0..REQUESTS {
        // SAFETY: the region outlives the queue's use of it.
        let posted = unsafe { srq.post(1, &[to.region.sge(0, 64)]) };
        posted.expect("room");
        srq.ring();
        let data: &[u8; 8] = black_box(&[7; 8]);
        let posted = (from.qp.sq()).post_inline(wr_id, (), Send {}, data, flags);
        posted.expect("room");
        from.qp.sq().ring();
        poll_received(&mut to.cq);
    }
    ends
}

/// Two nodes' ends that have talked.
fn met_on_srq() -> (End, End, Srq) {
    let mut ends = sends_to_srq(nodes_on_srq(), SIGNALED);
    for _ in 0..REQUESTS {
        while ends.0.cq.poll_one().is_none() {
            assert!(ends.1.cq.poll_one().is_none());
        }
    }
    ends
}

// From registered memory, in a packet of two lines.
#[library_benchmark(config = limit(836))]
#[bench::run(met())]
fn fabric_send_64_and_receive(ends: (End, End)) -> (End, End) {
    messages(ends, |end, _, wr_id| {
        let sge = end.region.sge(0, 64);
        // SAFETY: the region outlives the queue pair's use of it.
        let posted = unsafe { (end.qp.sq()).post(wr_id, (), Send {}, sge, SendFlags::empty()) };
        posted.map(drop)
    })
}

// Of registered memory, which the receiver copies from there. How many polls there were before is not always the same, and
// each 256th takes the lock to look after what waits: the limit has room for one such poll, 76 instructions a request.
#[library_benchmark]
#[bench::of_4096(args = (shown(4096)), config = limit(1560))]
#[bench::of_8192(args = (shown(8192)), config = limit(1945))]
fn fabric_send_and_receive((ends, length): ((End, End), u32)) -> (End, End) {
    send_longer(ends, length)
}

#[library_benchmark(config = limit(1038))]
#[bench::run(met())]
fn fabric_write_with_imm_8_inline_and_receive(ends: (End, End)) -> (End, End) {
    messages(ends, |end, peer, wr_id| {
        let data: &[u8; 8] = black_box(&[7; 8]);
        let write = RdmaWriteWithImm {
            remote: peer.region.remote(64),
            imm: 7.into(),
        };
        let posted = (end.qp.sq()).post_inline(wr_id, (), write, data, SendFlags::empty());
        posted.map(drop)
    })
}

// A hundred connections send into one process, one after the other. Each has an acknowledgement to be noted, where one
// connection has one for all.
#[library_benchmark(config = limit(660))]
#[bench::run(met_by(100))]
fn fabric_send_8_inline_and_receive_of_100(mut all: Vec<(End, End)>) -> Vec<(End, End)> {
    for request in 0..REQUESTS {
        let (from, to) = &mut all[request as usize * 3 % 100];
        let _ = receive(to);
        let data: &[u8; 8] = black_box(&[7; 8]);
        let none = SendFlags::empty();
        let _ = from.qp.sq().post_inline(0, (), Send {}, data, none);
        from.qp.sq().ring();
        poll_received(&mut to.cq);
    }
    all
}

// Both parts of a datagram of registered memory, with the receive posted, and room for one poll as above.
#[library_benchmark(config = limit(1950))]
#[bench::run(introduced())]
fn fabric_datagram_64_and_receive(stations: (Station, Station, Ah)) -> (Station, Station, Ah) {
    datagrams(stations)
}

#[inline(always)]
fn datagrams((mut from, mut to, ah): (Station, Station, Ah)) -> (Station, Station, Ah) {
    let address = ah.to(to.qp.qp_num(), QKEY);
    for wr_id in 0..REQUESTS {
        // SAFETY: the regions outlive the queue pairs' use of them.
        unsafe {
            let posted = to.qp.rq().post(1, &[to.region.sge(0, 128)]);
            posted.expect("room");
            to.qp.rq().ring();
            let sge = from.region.sge(0, 64);
            let posted = (from.qp.sq()).post(wr_id, address, Send {}, sge, SIGNALED);
            posted.expect("room");
        }
        from.qp.sq().ring();
        assert!(from.cq.poll_one().expect("executed").result.is_ok());
        poll_received(&mut to.cq);
    }
    (from, to, ah)
}

/// Queue pairs of two nodes that have sent datagrams.
fn introduced() -> (Station, Station, Ah) {
    datagrams(stations())
}

/// SENDs of one element, each of which is received.
#[inline(always)]
fn send_longer(mut ends: (End, End), length: u32) -> (End, End) {
    for wr_id in 0..REQUESTS {
        let (from, to) = (&mut ends.0, &mut ends.1);
        // SAFETY: the regions outlive the queue pairs' use of them.
        unsafe {
            let posted = to.qp.rq().post(1, &[to.region.sge(0, length)]);
            posted.expect("room");
            to.qp.rq().ring();
            let sge = from.region.sge(0, length);
            let posted = (from.qp.sq()).post(wr_id, (), Send {}, sge, SendFlags::empty());
            posted.expect("room");
        }
        from.qp.sq().ring();
        poll_received(&mut to.cq);
    }
    ends
}

/// Two nodes' ends that have sent such messages, with their length.
fn shown(length: u32) -> ((End, End), u32) {
    let mut ends = send_longer(met(), length);
    // One is signalled, so that the queue has room.
    let posted = ends.0.qp.sq().post_empty(0, (), Nop {}, SIGNALED);
    posted.expect("room");
    ends.0.qp.sq().ring();
    while ends.0.cq.poll_one().is_none() {
        assert!(ends.1.cq.poll_one().is_none());
    }
    (ends, length)
}

/// Polls a message that has been sent. The poll that finds the packet receives it, unless another thread is reading, or
/// two nodes that have not talked yet are being connected: on a busy machine that takes many polls.
#[inline(always)]
fn poll_received(cq: &mut Cq) {
    for _ in 0..1 << 24 {
        if let Some(received) = cq.poll_one() {
            assert!(received.result.is_ok());
            return;
        }
    }
    panic!("not received");
}

/// Two nodes' ends that have talked, and found each other's memory.
fn met() -> (End, End) {
    met_by(1).swap_remove(0)
}

/// So many connections of two nodes.
fn met_by(connections: usize) -> Vec<(End, End)> {
    let mut all = nodes(connections);
    for (from, to) in &mut all {
        let remote = to.region.remote(64);
        for wr_id in 0..4 {
            let write = RdmaWrite { remote };
            let mut sq = from.qp.sq();
            let posted = sq.post_inline(wr_id, (), write, &[7; 8], SIGNALED);
            posted.expect("room");
            sq.ring();
            // The first travels in a packet.
            while from.cq.poll_one().is_none() {
                assert!(to.cq.poll_one().is_none());
            }
        }
        receive(to).expect("room");
        let posted = (from.qp.sq()).post_inline(0, (), Send {}, &[7; 8], SIGNALED);
        posted.expect("room");
        from.qp.sq().ring();
        while to.cq.poll_one().is_none() {}
        // A WRITE behind one that is not acknowledged travels in a packet.
        while from.cq.poll_one().is_none() {
            assert!(to.cq.poll_one().is_none());
        }
    }
    all
}

#[inline(always)]
fn receive(end: &mut End) -> Result<(), bellwire_core::queue::PostError> {
    // SAFETY: the region outlives the queue pair's use of it.
    unsafe { end.qp.rq().post(1, &[end.region.sge(0, 64)])? };
    end.qp.rq().ring();
    Ok(())
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

/// The queue pair of a request, one after another from all over `count`. Each has a whole lap of its
/// send queue: once in each it looks anew at what has been polled.
fn of_many(request: u64, count: usize) -> usize {
    let lap = request / u64::from(SMALL.max_send_wr);
    lap as usize * 3_313 % count
}

// However many queue pairs there are, an operation takes as many instructions: one limit.
#[library_benchmark(config = limit(321))]
#[bench::of_1(Many::new(1))]
#[bench::of_100(Many::new(100))]
#[bench::of_10000(Many::new(10_000))]
fn many_write_8_inline_and_poll(mut many: Many) -> Many {
    for request in 0..REQUESTS {
        many.write(of_many(request, many.count()));
    }
    many
}

#[library_benchmark(config = limit(695))]
#[bench::of_1(Many::new(1))]
#[bench::of_100(Many::new(100))]
#[bench::of_10000(Many::new(10_000))]
fn many_send_8_inline_and_receive(mut many: Many) -> Many {
    for request in 0..REQUESTS {
        many.send(of_many(request, many.count()));
    }
    many
}

// The same by links of a set. The limit for many links is 2 % above the limit for one.

/// Instructions of a request with one link in the set, of which each run has one check of its events in it.
mod of_one {
    pub const WRITE: u64 = 503;
    pub const SEND: u64 = 1036;
    pub const SEND_ON_SRQ: u64 = 1707;
}

/// With one link, or with many: whose limit is 2 % above what one takes.
fn set_limit(of_one: u64, many: bool) -> LibraryBenchmarkConfig {
    let mut config = limit(if many { of_one * 102 / 100 } else { of_one });
    config.pass_through_env(MANY_LINKS);
    config
}

/// How many links are many, by this variable; a thousand if it is not set, because ten thousand take some 12 s to
/// connect under Valgrind, in each benchmark.
const MANY_LINKS: &str = "BELLWIRE_SET_LINKS";

fn many_links() -> usize {
    let given = std::env::var(MANY_LINKS).ok();
    given.map_or(1000, |links| links.parse().expect("a number"))
}

#[library_benchmark]
#[bench::of_1(args = (Sets::new(1)), config = set_limit(of_one::WRITE, false))]
#[bench::of_100(args = (Sets::new(100)), config = set_limit(of_one::WRITE, true))]
#[bench::of_many(args = (Sets::new(many_links())), config = set_limit(of_one::WRITE, true))]
fn set_write_8_inline_and_poll(mut sets: Sets) -> Sets {
    for request in 0..REQUESTS {
        sets.write(of_many(request, sets.count()));
    }
    sets
}

#[library_benchmark]
#[bench::of_1(args = (Sets::new(1)), config = set_limit(of_one::SEND, false))]
#[bench::of_100(args = (Sets::new(100)), config = set_limit(of_one::SEND, true))]
#[bench::of_many(args = (Sets::new(many_links())), config = set_limit(of_one::SEND, true))]
fn set_send_8_inline_and_receive(mut sets: Sets) -> Sets {
    for request in 0..REQUESTS {
        sets.send(of_many(request, sets.count()));
    }
    sets
}

// The receive is of a shared receive queue, which polls refill; how many a link holds is limited.
#[library_benchmark]
#[bench::of_1(args = (Sets::on_srq(1)), config = set_limit(of_one::SEND_ON_SRQ, false))]
#[bench::of_100(args = (Sets::on_srq(100)), config = set_limit(of_one::SEND_ON_SRQ, true))]
#[bench::of_many(args = (Sets::on_srq(many_links())), config = set_limit(of_one::SEND_ON_SRQ, true))]
fn set_send_8_inline_and_receive_on_srq(mut sets: Sets) -> Sets {
    for request in 0..REQUESTS {
        sets.send(of_many(request, sets.count()));
    }
    sets
}

library_benchmark_group!(
    name = data_path;
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
        poll_empty,
        soft_write_8_inline,
        soft_send_8_inline_and_receive,
        soft_write_8_inline_and_poll,
        soft_write_64_and_poll,
        soft_read_8_and_poll,
        link_write_8_inline_and_poll,
        fabric_write_8_inline,
        fabric_write_64_and_poll,
        fabric_read_8_and_poll,
        fabric_send_8_inline,
        fabric_send_8_inline_and_receive,
        fabric_send_8_inline_and_receive_of_100,
        fabric_send_8_inline_and_receive_on_srq,
        fabric_send_64_and_receive,
        fabric_send_and_receive,
        fabric_datagram_64_and_receive,
        fabric_write_with_imm_8_inline_and_receive,
        many_write_8_inline_and_poll,
        many_send_8_inline_and_receive,
        set_write_8_inline_and_poll,
        set_send_8_inline_and_receive,
        set_send_8_inline_and_receive_on_srq
);
main!(library_benchmark_groups = data_path);
