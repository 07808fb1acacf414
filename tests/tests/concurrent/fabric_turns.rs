//! Threads that have to do with one peer: each sends and reads in turn with the others. A thread that did so for a while
//! is waited for by none of them, whatever it does then.

use bellwire::soft::Mode;
use bellwire::wqe::*;
use bellwire::wr::{SendFlags, WcStatus};
use bellwire::{ConnectAttr, Device};
use bellwire_tests::fixture::*;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// More messages than it takes until a thread holds the turn to send, or to read.
const HABIT: u64 = 300;

fn nodes() -> (Device, Device) {
    let fabric = fabric_name();
    (node(&fabric, Mode::Inline), node(&fabric, Mode::Inline))
}

fn connection(here: &Device, there: &Device) -> (End, End) {
    let end = |node: &Device| End::new(&node.alloc_pd(), Mode::Inline, &init());
    let (mut a, mut b) = (end(here), end(there));
    connect_with(&mut a.qp, &mut b.qp, &ConnectAttr::default());
    (a, b)
}

/// Sends the message of this number, without a completion, to an end that receives it.
fn send(a: &mut End, b: &mut End, number: u64) {
    b.receive(number, &[b.region.sge(0, 64)]);
    let bytes = number.to_ne_bytes();
    let none = SendFlags::empty();
    let posted = (a.qp.sq()).post_inline(number, (), Send {}, &bytes, none);
    posted.expect("room");
    a.qp.sq().ring();
}

/// All requests before are acknowledged; meanwhile the receiver's end polls, if it is there.
fn settled(a: &mut End, mut b: Option<&mut End>) {
    (a.qp.sq())
        .post_empty(u64::MAX, (), Nop {}, SIGNALED)
        .expect("room");
    a.qp.sq().ring();
    until("it is acknowledged", || {
        if let Some(b) = &mut b {
            assert!(b.cq.poll_one().is_none());
        }
        a.cq.poll_one().is_some_and(|done| {
            assert_eq!((done.wr_id, done.status()), (u64::MAX, WcStatus::Success));
            true
        })
    });
}

/// The next receive is that of this number.
fn received(b: &mut End, number: u64) {
    assert_eq!(b.outcome(), (number, WcStatus::Success));
}

/// Messages of which each is received by this thread, until it holds both turns.
fn habit(a: &mut End, b: &mut End) {
    for number in 0..HABIT {
        send(a, b, number);
        received(b, number);
        if number % 16 == 15 {
            settled(a, Some(b));
        }
    }
}

/// A thread that sends and receives, and then does neither, while this one does.
#[test]
fn a_thread_that_stops_is_not_waited_for() {
    let (here, there) = nodes();
    let (mut a, mut b) = connection(&here, &there);
    let (mut c, mut d) = connection(&here, &there);
    let (stopped, goes_on) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..4 {
                habit(&mut a, &mut b);
                // One is not acknowledged yet, or not even received.
                send(&mut a, &mut b, 1000);
                if round % 2 == 0 {
                    received(&mut b, 1000);
                }
                stopped.wait();
                goes_on.wait();
                if round % 2 == 1 {
                    received(&mut b, 1000);
                }
                settled(&mut a, Some(&mut b));
            }
        });
        for round in 0..4 {
            stopped.wait();
            match round {
                // Some, or so many that this thread holds the turns next.
                0 | 1 => {
                    for number in 0..3 {
                        send(&mut c, &mut d, number);
                        received(&mut d, number);
                    }
                    settled(&mut c, Some(&mut d));
                }
                _ => habit(&mut c, &mut d),
            }
            goes_on.wait();
        }
    });
}

/// What other threads do at the receiver's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    Nothing,
    /// Poll a queue to which nothing comes.
    Polls,
    /// Receive messages from the same peer all the time.
    Receives,
}

/// A receiver that has received, and polls no more: its requester is sent the acknowledgements nevertheless.
#[test]
fn what_was_received_is_acknowledged_although_its_reader_has_stopped() {
    for beside in [Beside::Nothing, Beside::Polls, Beside::Receives] {
        acknowledged_beside(beside);
    }
}

fn acknowledged_beside(beside: Beside) {
    let (here, there) = nodes();
    let (mut a, mut b) = connection(&here, &there);
    let (mut c, mut d) = connection(&here, &there);
    let mut nothing_here = cq_for(&there, &init());
    let (done, begun) = (&AtomicBool::new(false), &Barrier::new(2));
    // Relaxed, everywhere: only ends the loop.
    let goes_on = move || !done.load(Ordering::Relaxed);
    let reader = || {
        habit(&mut a, &mut b);
        for number in 0..3 {
            send(&mut a, &mut b, number);
            received(&mut b, number);
        }
    };
    thread::scope(|scope| scope.spawn(reader).join().expect("it received all"));
    thread::scope(|scope| {
        scope.spawn(move || {
            begun.wait();
            for number in (0..).take_while(|_| goes_on()) {
                match beside {
                    Beside::Nothing => break,
                    Beside::Polls => assert!(nothing_here.poll_one().is_none()),
                    Beside::Receives => {
                        send(&mut c, &mut d, number);
                        received(&mut d, number);
                        if number % 16 == 15 {
                            settled(&mut c, Some(&mut d));
                        }
                    }
                }
            }
        });
        begun.wait();
        settled(&mut a, None);
        done.store(true, Ordering::Relaxed);
    });
}

/// Each thread has a connection of the same two nodes, and sends in both directions, now and then so many in succession that
/// it holds the turns. All messages arrive, once and in order.
#[test]
fn threads_that_send_and_receive_beside_each_other() {
    let (here, there) = nodes();
    let ends: Vec<_> = (0..THREADS).map(|_| connection(&here, &there)).collect();
    thread::scope(|scope| {
        for (at, (mut a, mut b)) in ends.into_iter().enumerate() {
            let there = &there;
            scope.spawn(move || {
                let mut random = Random::new(at as u64);
                for number in 0..ROUNDS {
                    for message in 0..random.below(if number % 50 == 0 { 200 } else { 4 }) {
                        send(&mut a, &mut b, number);
                        received(&mut b, number);
                        send(&mut b, &mut a, number);
                        received(&mut a, number);
                        if message % 16 == 15 {
                            settled(&mut a, Some(&mut b));
                            settled(&mut b, Some(&mut a));
                        }
                    }
                    match random.below(40) {
                        0 => thread::sleep(Duration::from_micros(random.below(3000))),
                        1 => there.progress(),
                        2..8 => long(&mut a, &mut b, number),
                        _ => {}
                    }
                    settled(&mut a, Some(&mut b));
                    settled(&mut b, Some(&mut a));
                }
            });
        }
    });
}

const THREADS: usize = 3;
const ROUNDS: u64 = 300;

/// Of several lines, from registered memory.
fn long(a: &mut End, b: &mut End, number: u64) {
    const LENGTH: u32 = 700;
    let data = Random::new(number).bytes(LENGTH as usize);
    a.region.write(0, &data);
    b.receive(number, &[b.region.sge(1024, LENGTH)]);
    let sge = a.region.sge(0, LENGTH);
    a.go(number, Send {}, sge);
    received(b, number);
    let mut bytes = vec![0; data.len()];
    b.region.read(1024, &mut bytes);
    assert_eq!(bytes, data);
    until("it is acknowledged", || {
        assert!(b.cq.poll_one().is_none());
        a.cq.poll_one().is_some()
    });
}
