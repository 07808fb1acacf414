//! Requests of many connections, whose acknowledgements travel together: each completes once, also while some of the
//! connections end.

use bellwire::soft::Mode;
use bellwire::wqe::{Inline, Send};
use bellwire::wr::{SendFlags, WcStatus};
use bellwire::{ConnectAttr, Cq, Device, Qp, Region};
use bellwire_tests::fixture::*;
use std::time::Instant;

/// More than two packets hold acknowledgements of, and no multiple of what one holds.
const CONNECTIONS: usize = 13;

/// For ever without a timeout, so that nothing is sent twice.
fn connect(a: &mut Qp, b: &mut Qp) {
    let attr = ConnectAttr {
        timeout: 0,
        ..ConnectAttr::default()
    };
    connect_with(a, b, &attr);
}

fn connections(here: &Device, there: &Device) -> Vec<(End, End)> {
    let connected = |_| {
        let new = |device: &Device| End::new(&device.alloc_pd(), Mode::Inline, &init());
        let (mut a, mut b) = (new(here), new(there));
        connect(&mut a.qp, &mut b.qp);
        (a, b)
    };
    (0..CONNECTIONS).map(connected).collect()
}

/// Each sends a message, and all are received. The first poll reads the packets of all.
fn received(all: &mut [(End, End)], wr_id: u64) {
    for (a, b) in &mut *all {
        b.receive(wr_id, &[b.region.sge(0, 64)]);
        a.go(wr_id, Send {}, Inline(&[wr_id as u8; 8]));
    }
    for (_, b) in all {
        assert_eq!(b.outcome(), (wr_id, WcStatus::Success));
    }
}

fn acknowledged(all: &mut [(End, End)], wr_id: u64) {
    for (a, _) in all {
        assert_eq!(a.outcome(), (wr_id, WcStatus::Success));
    }
}

fn nodes() -> (Device, Device) {
    let fabric = fabric_name();
    (node(&fabric, Mode::Inline), node(&fabric, Mode::Inline))
}

#[test]
fn each_connection_has_its_own() {
    let (here, there) = nodes();
    let mut all = connections(&here, &there);
    for wr_id in 0..50 {
        received(&mut all, wr_id);
        acknowledged(&mut all, wr_id);
    }
    all.iter_mut().for_each(|(a, _)| a.nothing());
}

/// Acknowledgements of queue pairs that have failed, are in another life, or are gone are beside those of others.
#[test]
fn some_connections_end_before_theirs_is_read() {
    let (here, there) = nodes();
    let mut all = connections(&here, &there);
    received(&mut all, 0);
    acknowledged(&mut all, 0);
    for round in 1..40 {
        received(&mut all, round);
        let mut failed = Vec::new();
        for at in [
            round as usize % CONNECTIONS,
            (round as usize + 4) % CONNECTIONS,
        ] {
            let (a, b) = &mut all[at];
            a.qp.to_error().expect("from any state");
            let (wr_id, status) = a.outcome();
            assert_eq!(wr_id, round);
            // It may have been read before.
            assert!(
                matches!(status, WcStatus::Success | WcStatus::WrFlushErr),
                "{status:?}"
            );
            assert_eq!((a.reset(), b.reset()), (vec![], vec![]));
            failed.push(at);
        }
        let gone = (round as usize + 2) % CONNECTIONS;
        failed.push(gone);
        // Its queue pair is closed, and another one takes its place.
        all[gone] = connections(&here, &there).swap_remove(0);
        for (at, (a, b)) in all.iter_mut().enumerate() {
            match failed.contains(&at) {
                false => assert_eq!(a.outcome(), (round, WcStatus::Success), "{at}"),
                true if at == gone => {}
                true => connect(&mut a.qp, &mut b.qp),
            }
        }
        all.iter_mut()
            .for_each(|(a, _)| assert!(a.cq.poll_one().is_none()));
    }
    received(&mut all, 99);
    acknowledged(&mut all, 99);
}

/// As many queue pairs, with one completion queue.
struct Side {
    qps: Vec<Qp>,
    cq: Cq,
    region: Region,
}

impl Side {
    fn new(device: &Device, count: usize) -> Self {
        let pd = device.alloc_pd();
        let (sends, receives) = init().cq_entries();
        let entries = (sends + receives) * count as u32;
        let mut cq = device.create_cq_for(entries, count).expect("a queue");
        let qp = |_| pd.create_qp(&mut cq, &init()).expect("a queue pair");
        Self {
            qps: (0..count).map(qp).collect(),
            cq,
            region: region(&pd, 8),
        }
    }

    /// Polls so often, for as many completions at the most, each of a request with this number. How many there were.
    fn take(&mut self, wr_id: u64, most: usize, polls: usize) -> usize {
        let mut count = 0;
        for _ in 0..polls {
            count += self.cq.poll(most - count, |completion| {
                let outcome = (completion.wr_id, completion.status());
                assert_eq!(outcome, (wr_id, WcStatus::Success));
            });
        }
        count
    }

    /// Takes all that are left, without a pause: else the thread of the node would read, too.
    fn take_rest(&mut self, wr_id: u64, mut left: usize) {
        let start = Instant::now();
        while left != 0 {
            left -= self.take(wr_id, left, 1);
            assert!(start.elapsed() < DEADLINE, "{left} never complete");
        }
    }
}

fn senders(from: &mut [Side]) -> impl Iterator<Item = &mut Qp> {
    from.iter_mut().flat_map(|side| &mut side.qps)
}

/// Nodes that send to one, on so many connections, each so many messages at a time whose requesters wait. What a poll takes of
/// them is acknowledged when it ends; the rest is received by later polls, or by the thread of the receiver's node. In how
/// many rounds the acknowledgements are there at once: most, unless that thread reads just then. So many rounds are needed
/// because the first hundreds are received by other code, until the thread that polls holds the turn to read.
fn polled_and_acknowledged(nodes: usize, count: usize, each: usize, rounds: u64) -> u64 {
    let fabric = fabric_name();
    let from = || Side::new(&node(&fabric, Mode::Inline), count / nodes);
    let mut from: Vec<Side> = (0..nodes).map(|_| from()).collect();
    let mut to = Side::new(&node(&fabric, Mode::Inline), count);
    for (a, b) in senders(&mut from).zip(&mut to.qps) {
        connect(a, b);
    }
    let room = to.region.sge(0, 8);
    let messages = count * each;
    let mut at_once = 0;
    for round in 0..rounds {
        for b in &mut to.qps {
            (0..each).for_each(|_| post_recv(b, round, &[room]).expect("room"));
            b.rq().ring();
        }
        for a in senders(&mut from) {
            for _ in 0..each {
                post(a, round, Send {}, Inline(&[7; 8]), SIGNALED).expect("room");
            }
            a.sq().ring();
        }
        let most = 1 + round as usize * 7 % messages;
        let received = to.take(round, most, 1);
        let of_one = messages / nodes;
        let mut left = vec![of_one; nodes];
        for (side, left) in from.iter_mut().zip(&mut left) {
            *left -= side.take(round, of_one, 2 * of_one);
        }
        let acknowledged = messages - left.iter().sum::<usize>();
        at_once += u64::from(acknowledged >= received && received != 0);
        to.take_rest(round, messages - received);
        for (side, left) in from.iter_mut().zip(left) {
            side.take_rest(round, left);
        }
    }
    for cq in from.iter_mut().chain([&mut to]).map(|side| &mut side.cq) {
        nothing(cq, Mode::Inline);
    }
    at_once
}

#[test]
fn who_polls_several_has_acknowledged_them() {
    const ROUNDS: u64 = 1000;
    for (nodes, count, each) in [
        (1, 1, 16),
        (1, 2, 8),
        (1, 5, 1),
        (1, 6, 3),
        (1, 70, 1),
        (1, 70, 2),
        (2, 4, 3),
        // More than one has its turn for: then others are received behind some that wait.
        (2, 2, 12),
        (3, 3, 11),
    ] {
        let at_once = polled_and_acknowledged(nodes, count, each, ROUNDS);
        assert!(
            at_once > ROUNDS * 9 / 10,
            "{nodes}, {count}, {each}: {at_once}"
        );
    }
}

/// Many connections owe an acknowledgement that nobody waits for, as many as are noted at a time and more, when some come whose
/// requesters wait.
#[test]
fn a_requester_waits_where_many_do_not() {
    const COUNT: usize = 70;
    const WAITING: usize = 4;
    let (here, there) = nodes();
    let (mut a, mut b) = (Side::new(&here, COUNT), Side::new(&there, COUNT));
    for (a, b) in a.qps.iter_mut().zip(&mut b.qps) {
        connect(a, b);
    }
    let room = b.region.sge(0, 8);
    for round in 0..40 {
        let ends = a.qps.iter_mut().zip(&mut b.qps);
        for (at, (a, b)) in ends.enumerate() {
            post_recv(b, round, &[room]).expect("room");
            b.rq().ring();
            // In the first round no connection is known, and each waits.
            let flags = match round != 0 && at < COUNT - WAITING {
                true => SendFlags::empty(),
                false => SIGNALED,
            };
            post(a, round, Send {}, Inline(&[7; 8]), flags).expect("room");
            a.sq().ring();
        }
        b.take_rest(round, COUNT);
        a.take_rest(round, if round == 0 { COUNT } else { WAITING });
    }
}
