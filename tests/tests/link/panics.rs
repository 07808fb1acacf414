//! Functions of the program's that panic: what polls are given, hooks, and the exchange, by the poller and
//! in a thread. The program gets the panic; the link goes on, and each request is reported once.

use crate::world::{End, World, init, line};
use bellwire::connect::Message;
use bellwire::event::EventType;
use bellwire::fault::Fault;
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::fault::plan::EndReason;
use bellwire::link::{
    Exchange, ExchangeError, LinkEnd, LinkInit, LinkState, LocalExchange, RecoverIn, pair,
};
use bellwire::soft::Mode;
use bellwire::wqe::{RdmaWrite, Send};
use bellwire::wr::SendFlags;
use bellwire_tests::fixture::{DEADLINE, device, virtual_device};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

const QP_FATAL: Fault = Fault::Event(EventType::QpFatal);

const SOON: Duration = DEADLINE;

/// Whether it panicked.
fn panics<R>(call: impl FnOnce() -> R) -> bool {
    catch_unwind(AssertUnwindSafe(call)).is_err()
}

/// Polls both ends until they stand so; how often that panicked.
fn until(a: &mut End, b: &mut End, states: fn([LinkState; 2]) -> bool) -> u32 {
    let deadline = Instant::now() + SOON;
    let mut panicked = 0;
    while !states([a.state(), b.state()]) {
        for end in [&mut *a, &mut *b] {
            panicked += u32::from(panics(|| end.poll()));
        }
        assert!(Instant::now() < deadline, "{:?} {:?}", a.link, b.link);
        std::thread::yield_now();
    }
    panicked
}

fn both_ready(states: [LinkState; 2]) -> bool {
    states == [LinkState::Ready; 2]
}

/// Every call of what a poll is given panics in its turn: with executed requests, failed ones, flushed
/// ones, those of a recovery, and of the end.
#[test]
fn what_polls_are_given_panics() {
    for at in 0.. {
        let mut world = World::with(&init());
        let mut calls = 0;
        let (a, b) = (&mut world.a, &mut world.b);
        a.receive(0..3);
        b.receive(0..2);
        let remote = b.memory();
        b.go(10, Send {}, Replay::Surface);
        a.go(20, Send {}, Replay::IfSafe);
        a.stage(
            21,
            RdmaWrite { remote },
            SendFlags::empty(),
            Replay::Surface,
        );
        a.go(22, Send {}, Replay::Surface);
        // There is no receive for it.
        a.go(23, Send {}, Replay::Surface);
        a.go(24, RdmaWrite { remote }, Replay::IfSafe);
        let poll = |end: &mut End, calls: &mut usize| {
            let End { link, log, .. } = end;
            drop(catch_unwind(AssertUnwindSafe(|| {
                link.poll(64, |completion| {
                    log.push(line(completion));
                    *calls += 1;
                    assert!(*calls != at + 1, "a panic that is caught");
                })
            })));
        };
        for round in 0..200 {
            poll(&mut world.a, &mut calls);
            poll(&mut world.b, &mut calls);
            world
                .device
                .as_soft()
                .unwrap()
                .advance(Duration::from_millis(5));
            if round == 100 {
                world.a.link.report(QP_FATAL);
            }
        }
        assert_eq!(world.states(), [LinkState::Ready; 2]);
        for end in [&mut world.a, &mut world.b] {
            let End { link, log, .. } = end;
            while panics(|| {
                link.drain(Duration::ZERO, |completion| {
                    log.push(line(completion));
                    calls += 1;
                    assert!(calls != at + 1, "a panic that is caught");
                });
            }) {}
        }
        let mut sends: Vec<_> = world
            .a
            .sends()
            .into_iter()
            .map(|(wr_id, _)| wr_id)
            .collect();
        sends.sort_unstable();
        assert_eq!(sends, [20, 22, 23, 24]);
        world.all_reported([0, 0]);
        if at >= calls {
            assert!(calls > 8, "{calls}");
            return;
        }
    }
}

/// A hook that panics whenever it is called.
fn hooked(end: &mut End) {
    end.link
        .on_fault(|report| panic!("a panic that is caught: {}", report.fault));
    end.link
        .on_recovered(|report| panic!("a panic that is caught: {:?}", report.end));
}

fn ends_of(recover_in: RecoverIn) -> (End, End) {
    let pd = device(Mode::Inline).alloc_pd();
    let (here, there) = pair();
    let init = LinkInit {
        recover_in,
        ..init()
    };
    (
        End::new(&pd, init.clone(), here),
        End::new(&pd, init, there),
    )
}

/// The link connects, recovers, and works, whichever thread carries this out; the program gets the panics.
#[test]
fn hooks_panic() {
    for recover_in in [RecoverIn::Poll, RecoverIn::Thread] {
        let (mut a, mut b) = ends_of(recover_in);
        hooked(&mut a);
        hooked(&mut b);
        a.receive(0..3);
        // Of the first connection.
        assert!(until(&mut a, &mut b, both_ready) >= 2);
        for fault in [QP_FATAL, Fault::Event(EventType::CqErr)] {
            let remote = b.memory();
            a.go(10, RdmaWrite { remote }, Replay::Anyway);
            // By the poller it is called there and then.
            assert!(panics(|| a.link.report(fault)));
            assert!(until(&mut a, &mut b, both_ready) >= 1);
        }
        for end in [&mut a, &mut b] {
            end.link.on_fault(|_| ());
            end.link.on_recovered(|_| ());
        }
        a.link.report(QP_FATAL);
        assert_eq!(until(&mut a, &mut b, both_ready), 0);
        while a.sends().len() < 2 {
            a.poll();
        }
        assert_eq!(a.sends(), [(10, Outcome::Done); 2]);
        for end in [&mut a, &mut b] {
            let End { link, log, .. } = end;
            link.drain(SOON, |completion| log.push(line(completion)));
            assert_eq!((end.reported(), end.slab.outstanding()), (end.posted, 0));
        }
    }
}

/// What a hook that is replaced has with it panics when it is dropped, wherever that is: what the program
/// asked for behind it is done all the same.
#[test]
fn a_replaced_hook_panics() {
    struct Drops;
    impl Drop for Drops {
        fn drop(&mut self) {
            panic!("a panic that is caught");
        }
    }
    for recover_in in [RecoverIn::Poll, RecoverIn::Thread] {
        // In a thread it takes some to have both wait for it at once.
        for _ in 0..20 {
            let (mut a, b) = ends_of(recover_in);
            let drops = Drops;
            a.link.on_fault(move |_| _ = &drops);
            a.poll();
            let mut panicked = u32::from(panics(|| a.link.on_fault(|_| ())));
            a.receive(0..2);
            drop(b);
            panicked += u32::from(panics(|| a.link.close(Duration::ZERO)));
            for _ in 0..100 {
                panicked += u32::from(panics(|| a.poll()));
            }
            assert_eq!(panicked, 1);
            assert!(matches!(a.state(), LinkState::Ended(_)), "{:?}", a.link);
            assert_eq!(a.received(), [0, 1].map(|at| (at, Outcome::NotExecuted, 0)));
            assert_eq!(a.slab.outstanding(), 0);
        }
    }
}

/// It ends within its time, though a hook panics in the thread and the peer says nothing.
#[test]
fn a_link_whose_hook_panics_is_drained() {
    let (mut a, mut b) = ends_of(RecoverIn::Thread);
    a.receive(0..3);
    until(&mut a, &mut b, both_ready);
    // For the thread, which has it from the next poll on.
    a.link.report(QP_FATAL);
    a.poll();
    hooked(&mut a);
    a.link.report(Fault::Event(EventType::CqErr));
    let End { link, log, .. } = &mut a;
    let mut take = |completion| log.push(line(completion));
    let mut drained = 0;
    while panics(|| link.drain(Duration::from_secs(1), &mut take)) {
        drained += 1;
    }
    assert!(drained <= 3);
    assert_eq!(a.state(), LinkState::Ended(LinkEnd::Closed));
    assert_eq!((a.reported(), a.slab.outstanding()), (3, 0));
}

/// An exchange that panics at one of its calls, and at each after it.
struct Panicking {
    inner: LocalExchange,
    left: u32,
}

impl Panicking {
    fn call(&mut self) {
        assert!(self.left != 0, "a panic that is caught");
        self.left -= 1;
    }
}

impl Exchange for Panicking {
    fn send(&mut self, message: &[u8]) -> Result<(), ExchangeError> {
        self.call();
        self.inner.send(message)
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Option<usize>, ExchangeError> {
        assert!(into.len() >= Message::MAX_BYTES);
        self.call();
        self.inner.receive(into)
    }
}

/// Such a link has lost its peer, wherever it stood; the other end ends too.
#[test]
fn the_exchange_panics() {
    for left in 0..40 {
        let device = virtual_device(1);
        let pd = device.alloc_pd();
        let (inner, there) = pair();
        let mut world = World {
            a: End::new(&pd, init(), Panicking { inner, left }),
            b: End::new(&pd, init(), there),
            device,
        };
        world.a.receive(0..3);
        let mut panicked = 0;
        let lost = Some(EndReason::PeerLost);
        for round in 0..1000 {
            if round == 20 && world.a.state() == LinkState::Ready {
                let remote = world.b.memory();
                world.a.go(10, RdmaWrite { remote }, Replay::Surface);
                world.a.link.report(QP_FATAL);
            }
            panicked += u32::from(panics(|| world.a.poll()));
            world.b.poll();
            world
                .device
                .as_soft()
                .unwrap()
                .advance(Duration::from_millis(1));
            if world.a.state().why() == lost {
                break;
            }
        }
        assert_eq!((world.a.state().why(), panicked), (lost, 1), "{left}");
        assert!(world.a.link.exchange_error().is_some());
        assert_eq!(world.a.reported(), world.a.posted, "{:?}", world.a.log);
        assert_eq!(world.a.slab.outstanding(), 0);
    }
}
