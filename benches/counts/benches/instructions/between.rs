//! Between nodes of a fabric, as between processes: what both ends take together.

use super::{REQUESTS, SIGNALED, limit, one_sided, receive, writes};
use bellwire::{Ah, Cq, Srq};
use bellwire_benches::{
    End, FanIn, QKEY, Station, clients, gathering_nodes, nodes, nodes_on_srq, stations,
};
use bellwire_core::queue::PostError;
use bellwire_core::wqe::*;
use bellwire_core::wr::SendFlags;
use gungraun::{library_benchmark, library_benchmark_group};
use std::hint::black_box;

// WRITE and SEND between nodes of a fabric, whose memory both have mapped.
#[library_benchmark(config = limit(150))]
#[bench::run(met())]
fn fabric_write_8_inline(ends: (End, End)) -> (End, End) {
    writes(ends)
}

// From and to registered memory.
#[library_benchmark(config = limit(383))]
#[bench::run(met())]
fn fabric_write_64_and_poll(ends: (End, End)) -> (End, End) {
    one_sided(ends, |remote| RdmaWrite { remote }, 64)
}

#[library_benchmark(config = limit(364))]
#[bench::run(met())]
fn fabric_read_8_and_poll(ends: (End, End)) -> (End, End) {
    one_sided(ends, |remote| RdmaRead { remote }, 8)
}

// The sender's part.
#[library_benchmark(config = limit(169))]
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
// Here and below, 40 instructions check the message's queue pair: nothing that was checked of an earlier message is kept.
#[library_benchmark(config = limit(436))]
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

// The same with the completion of the SEND, so with the acknowledgement for which its requester waits.
#[library_benchmark(config = limit(948))]
#[bench::run(met())]
fn fabric_send_8_inline_signaled_and_receive(mut ends: (End, End)) -> (End, End) {
    for wr_id in 0..REQUESTS {
        let _ = receive(&mut ends.1);
        let data: &[u8; 8] = black_box(&[7; 8]);
        let _ = (ends.0.qp.sq()).post_inline(wr_id, (), Send {}, data, SIGNALED);
        ends.0.qp.sq().ring();
        poll_received(&mut ends.1.cq);
        poll_received(&mut ends.0.cq);
    }
    ends
}

/// Posts requests by `post`, each of which consumes a receive at the other end, whose completion is polled.
#[inline(always)]
fn messages(
    mut ends: (End, End),
    mut post: impl FnMut(&mut End, &End, u64) -> Result<(), PostError>,
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
#[library_benchmark(config = limit(640))]
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
    let mut ends = nodes_on_srq();
    for _ in 0..HABIT.div_ceil(REQUESTS) {
        ends = sends_to_srq(ends, SIGNALED);
        for _ in 0..REQUESTS {
            while ends.0.cq.poll_one().is_none() {
                assert!(ends.1.cq.poll_one().is_none());
            }
        }
    }
    ends
}

// Still in a packet of one line.
#[library_benchmark(config = limit(467))]
#[bench::run(met())]
fn fabric_send_24_inline_and_receive(ends: (End, End)) -> (End, End) {
    messages(ends, |end, _, wr_id| {
        let data: &[u8; 24] = black_box(&[7; 24]);
        let none = SendFlags::empty();
        let posted = (end.qp.sq()).post_inline(wr_id, (), Send {}, data, none);
        posted.map(drop)
    })
}

// From registered memory, in a packet of two lines.
#[library_benchmark(config = limit(920))]
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
// each 256th takes the lock to look after what waits: the limit has room for one such poll, 89 instructions a request.
#[library_benchmark]
#[bench::of_4096(args = (shown(4096)), config = limit(1730))]
#[bench::of_8192(args = (shown(8192)), config = limit(2114))]
fn fabric_send_and_receive((ends, length): ((End, End), u32)) -> (End, End) {
    send_longer(ends, length)
}

#[library_benchmark(config = limit(697))]
#[bench::run(met())]
fn fabric_send_with_imm_8_inline_and_receive(ends: (End, End)) -> (End, End) {
    messages(ends, |end, _, wr_id| {
        let data: &[u8; 8] = black_box(&[7; 8]);
        let send = SendWithImm { imm: 7.into() };
        let posted = (end.qp.sq()).post_inline(wr_id, (), send, data, SendFlags::empty());
        posted.map(drop)
    })
}

#[library_benchmark(config = limit(942))]
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

/// SENDs that are rung at a time, and how many of them there are for each that is signalled.
const BATCH: u64 = 16;
const EACH: u64 = 8;

// Both parts of SENDs that are rung together, with the receives posted. The first one that is signalled is acknowledged at
// once, the next one with those behind it.
#[library_benchmark(config = limit(517))]
#[bench::run(met())]
fn fabric_send_8_inline_and_receive_sixteen_at_once(mut ends: (End, End)) -> (End, End) {
    for _ in 0..REQUESTS / BATCH {
        let (from, to) = (&mut ends.0, &mut ends.1);
        for left in (0..BATCH).rev() {
            let _ = receive(to);
            let data: &[u8; 8] = black_box(&[7; 8]);
            let flags = match left % EACH {
                0 => SIGNALED,
                _ => SendFlags::empty(),
            };
            let _ = from.qp.sq().post_inline(left, (), Send {}, data, flags);
        }
        from.qp.sq().ring();
        let taken = |cq: &mut Cq, mut left| {
            while left != 0 {
                left -= cq.poll(left, |done| assert!(done.result.is_ok()));
            }
        };
        taken(&mut to.cq, BATCH as usize);
        taken(&mut from.cq, (BATCH / EACH) as usize);
    }
    ends
}

// A hundred connections send into one process, one after the other. Each has an acknowledgement to be noted, where one
// connection has one for all.
#[library_benchmark(config = limit(476))]
#[bench::run(met_by(100))]
fn fabric_send_8_inline_and_receive_of_100(all: Vec<(End, End)>) -> Vec<(End, End)> {
    sends_of::<100>(all, SendFlags::empty())
}

// Four nodes send to one, as several processes to a server, of which each poll looks for the packets of all.
#[library_benchmark(config = limit(520))]
#[bench::run(met_clients())]
fn fabric_send_8_inline_and_receive_of_4_nodes(all: Vec<(End, End)>) -> Vec<(End, End)> {
    sends_of::<CLIENTS>(all, SendFlags::empty())
}

// The same with the completions of the SENDs.
#[library_benchmark(config = limit(1077))]
#[bench::run(met_clients())]
fn fabric_send_8_inline_signaled_and_receive_of_4_nodes(all: Vec<(End, End)>) -> Vec<(End, End)> {
    sends_of::<CLIENTS>(all, SIGNALED)
}

// Of connections that share a completion queue on each side, each message of the next one. Many are received by a poll, which
// acknowledges five of them at a time, and as many completed. With room for one poll that looks after what waits. The
// limit has 5 % of slack: builds in other folders count up to a sixth less.
#[library_benchmark(config = limit(3 * 1070))]
#[bench::run(in_turn())]
fn fabric_send_8_inline_signaled_and_receive_in_turn(mut connections: FanIn) -> FanIn {
    connections.run_in_turn(3 * REQUESTS);
    connections
}

fn in_turn() -> FanIn {
    let mut connections = FanIn::new(12, false);
    connections.run_in_turn(12 * HABIT);
    connections
}

#[inline(always)]
fn sends_of<const COUNT: usize>(mut all: Vec<(End, End)>, flags: SendFlags) -> Vec<(End, End)> {
    for request in 0..REQUESTS as usize {
        let (from, to) = &mut all[request * 3 % COUNT];
        let _ = receive(to);
        let data: &[u8; 8] = black_box(&[7; 8]);
        let _ = from.qp.sq().post_inline(0, (), Send {}, data, flags);
        from.qp.sq().ring();
        poll_received(&mut to.cq);
        if flags == SIGNALED {
            poll_received(&mut from.cq);
        }
    }
    all
}

// Both parts of a datagram of registered memory, with the receive posted, and room for one poll as above.
#[library_benchmark(config = limit(2033))]
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
    (0..HABIT.div_ceil(REQUESTS)).fold(stations(), |stations, _| datagrams(stations))
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

// Of two elements, as a header and a page, whose data is longer than what a packet carries, with room for two polls as above.
#[library_benchmark(config = limit(2080))]
#[bench::run(gathered())]
fn fabric_send_64_and_4096_and_receive(ends: (End, End)) -> (End, End) {
    send_header_and_page(ends)
}

#[inline(always)]
fn send_header_and_page(mut ends: (End, End)) -> (End, End) {
    for wr_id in 0..REQUESTS {
        let (from, to) = (&mut ends.0, &mut ends.1);
        // SAFETY: the regions outlive the queue pairs' use of them.
        unsafe {
            let posted = to.qp.rq().post(1, &[to.region.sge(0, 64 + 4096)]);
            posted.expect("room");
            to.qp.rq().ring();
            let list = [from.region.sge(0, 64), from.region.sge(4096, 4096)];
            let posted = (from.qp.sq()).post(wr_id, (), Send {}, &list[..], SendFlags::empty());
            posted.expect("room");
        }
        from.qp.sq().ring();
        poll_received(&mut to.cq);
    }
    ends
}

fn gathered() -> (End, End) {
    heard(send_header_and_page(gathering_nodes()))
}

/// One request is signalled, so that the queue has room.
fn heard(mut ends: (End, End)) -> (End, End) {
    let posted = ends.0.qp.sq().post_empty(0, (), Nop {}, SIGNALED);
    posted.expect("room");
    ends.0.qp.sq().ring();
    while ends.0.cq.poll_one().is_none() {
        assert!(ends.1.cq.poll_one().is_none());
    }
    ends
}

/// Two nodes' ends that have sent such messages, with their length.
fn shown(length: u32) -> ((End, End), u32) {
    let ends = heard(send_longer(met(), length));
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

/// More messages than it takes until a thread holds the turn to send, or to read.
const HABIT: u64 = 100;

/// So many connections of two nodes.
fn met_by(connections: usize) -> Vec<(End, End)> {
    that_met(nodes(connections), 1)
}

const CLIENTS: usize = 4;

/// A connection of each of four nodes with another one.
fn met_clients() -> Vec<(End, End)> {
    that_met(clients(CLIENTS), CLIENTS as u64)
}

/// The receiver has so many `peers`.
fn that_met(mut all: Vec<(End, End)>, peers: u64) -> Vec<(End, End)> {
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
    // Until the thread that sends and the one that reads hold the turns to do so.
    let connections = all.len();
    for message in 0..HABIT * peers {
        let (from, to) = &mut all[message as usize % connections];
        receive(to).expect("room");
        let posted = (from.qp.sq()).post_inline(0, (), Send {}, &[7; 8], SIGNALED);
        posted.expect("room");
        from.qp.sq().ring();
        poll_received(&mut to.cq);
        while from.cq.poll_one().is_none() {
            assert!(to.cq.poll_one().is_none());
        }
    }
    all
}

library_benchmark_group!(
    name = between_processes;
    benchmarks =
        fabric_write_8_inline,
        fabric_write_64_and_poll,
        fabric_read_8_and_poll,
        fabric_send_8_inline,
        fabric_send_8_inline_and_receive,
        fabric_send_8_inline_signaled_and_receive,
        fabric_send_8_inline_and_receive_on_srq,
        fabric_send_with_imm_8_inline_and_receive,
        fabric_send_24_inline_and_receive,
        fabric_send_64_and_receive,
        fabric_send_and_receive,
        fabric_send_64_and_4096_and_receive,
        fabric_write_with_imm_8_inline_and_receive,
        fabric_send_8_inline_and_receive_sixteen_at_once,
        fabric_send_8_inline_and_receive_of_100,
        fabric_send_8_inline_and_receive_of_4_nodes,
        fabric_send_8_inline_signaled_and_receive_of_4_nodes,
        fabric_send_8_inline_signaled_and_receive_in_turn,
        fabric_datagram_64_and_receive
);
