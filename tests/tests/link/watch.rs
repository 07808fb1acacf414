//! What no completion reports: requests that miss their deadline, and peers that are lost while nothing is in
//! flight.

use crate::set::world::{SetWorld, set_init};
use crate::sleep::{sleepers, wakes};
use crate::world::{End, World, init};
use bellwire::event::{Element, EventType};
use bellwire::fault::Fault as LinkFault;
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::link::{LinkInit, LinkState, pair};
use bellwire::soft::{Fault, Mode, Script, Trigger};
use bellwire::wqe::{RdmaWrite, Send};
use bellwire::wr::SendFlags;
use bellwire::{ConnectAttr, Device, Error};
use bellwire_tests::fixture::device;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const UNSIGNALED: SendFlags = SendFlags::empty();
const STEP: Duration = Duration::from_millis(20);
const DEADLINE: Duration = Duration::from_secs(1);
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// For as long as any test waits for a keep-alive.
const FOR_EVER: Duration = Duration::from_secs(1 << 20);

/// Links that wait for receives without end.
fn with_deadline() -> LinkInit {
    LinkInit {
        connect: ConnectAttr {
            rnr_retry: 7,
            ..init().connect
        },
        request_deadline: Some(DEADLINE),
        ..init()
    }
}

fn with_keep_alive() -> LinkInit {
    LinkInit {
        keep_alive: Some(KEEP_ALIVE),
        ..init()
    }
}

fn faults(end: &mut End) -> Receiver<LinkFault> {
    let (send, faults) = channel();
    end.link
        .on_fault(move |report| send.send(report.fault).unwrap());
    faults
}

/// How often the clock moves on in this time.
fn steps(time: Duration) -> u32 {
    time.as_nanos().div_ceil(STEP.as_nanos()) as u32
}

fn advance(device: &Device, time: Duration) {
    device.as_soft().unwrap().advance(time);
}

/// Polls both, and moves the clock on, until a fault is found. Returns it, and when.
fn first(world: &mut World, faults: &Receiver<LinkFault>) -> (LinkFault, Duration) {
    for step in 0..10_000 {
        world.poll();
        if let Ok(fault) = faults.try_recv() {
            return (fault, STEP * step);
        }
        advance(&world.device, STEP);
    }
    panic!("no fault");
}

/// Polls both, and moves the clock on.
fn pass(world: &mut World, time: Duration) {
    for _ in 0..steps(time) {
        world.poll();
        advance(&world.device, STEP);
    }
}

/// Lets the next entry of a queue pair take for ever: as if its answer were lost, and nothing noticed.
fn hangs(device: &Device, qp_num: u32) {
    let trigger = Trigger::EntryOf { qp_num, nth: 1 };
    let script = Script::default().with(trigger, Fault::Delay(FOR_EVER));
    device.as_soft().unwrap().inject(&script).unwrap();
}

#[test]
fn a_send_without_its_receive_misses_its_deadline() {
    let mut world = World::with(&with_deadline());
    let found = faults(&mut world.a);
    world.a.go(10, Send {}, Replay::Surface);
    let (fault, took) = first(&mut world, &found);
    assert_eq!(fault, LinkFault::DeadlineMissed);
    assert!((DEADLINE..DEADLINE * 2).contains(&took), "{took:?}");
    world.settle();
    assert_eq!(world.a.sends(), [(10, Outcome::NotExecuted)]);
    assert_eq!(world.a.link.epoch(), 2);
    world.talk();
    world.all_reported([0, 0]);
}

/// It is posted again, and executed when its receive is there; without one it is reported when it was tried
/// for as long as a recovery may take.
#[test]
fn what_missed_its_deadline_is_posted_again() {
    for comes in [true, false] {
        let mut world = World::with(&with_deadline());
        let found = faults(&mut world.a);
        world.a.go(10, Send {}, Replay::IfSafe);
        let (fault, _) = first(&mut world, &found);
        assert_eq!(fault, LinkFault::DeadlineMissed);
        if comes {
            world.settle();
            world.b.receive([1]);
        }
        let mut took = Duration::ZERO;
        while world.a.sends().is_empty() {
            pass(&mut world, STEP);
            took += STEP;
        }
        let outcome = match comes {
            true => Outcome::Done,
            false => Outcome::NotExecuted,
        };
        assert_eq!(world.a.sends(), [(10, outcome)]);
        let limits = init().limits;
        let bound = limits.max_duration() + limits.recovery + 2 * DEADLINE;
        assert!(took < bound, "{took:?}");
        world.settle();
        world.talk();
        world.all_reported([0, 0]);
    }
}

/// Requests posted at any time between the checks: none is found early, each in time.
#[test]
fn each_request_has_the_whole_of_its_time() {
    for at in 0..8 {
        let mut world = World::with(&with_deadline());
        let found = faults(&mut world.a);
        let remote = world.b.memory();
        // These complete, and are noted by checks before the one that does not.
        for wr_id in 0..=at {
            world.a.go(wr_id, RdmaWrite { remote }, Replay::Surface);
            pass(&mut world, DEADLINE / 7);
        }
        world.a.go(100, Send {}, Replay::Surface);
        world.a.go(101, RdmaWrite { remote }, Replay::Surface);
        let (fault, took) = first(&mut world, &found);
        assert_eq!(fault, LinkFault::DeadlineMissed);
        assert!((DEADLINE..DEADLINE * 2).contains(&took), "{at}: {took:?}");
        world.settle();
        world.all_reported([0, 0]);
    }
}

/// Traffic for much longer than the deadline, and unsignalled requests that nothing retires for as long.
#[test]
fn what_completes_is_no_fault() {
    let mut world = World::with(&with_deadline());
    let found = faults(&mut world.a);
    let remote = world.b.memory();
    for round in 0..20 {
        world.a.go(round, RdmaWrite { remote }, Replay::Surface);
        pass(&mut world, DEADLINE / 3);
    }
    for wr_id in 30..33 {
        let write = RdmaWrite { remote };
        world.a.stage(wr_id, write, UNSIGNALED, Replay::Surface);
        world.a.link.ring();
        pass(&mut world, DEADLINE);
    }
    pass(&mut world, DEADLINE * 4);
    world.a.go(40, RdmaWrite { remote }, Replay::Surface);
    pass(&mut world, STEP);
    assert_eq!(world.a.log.last().map(|line| line.retired), Some(4));
    assert!(found.try_recv().is_err());
    assert_eq!(world.a.link.epoch(), 1);
    world.all_reported([0, 0]);
}

/// An idle link asks its peer again and again: nothing of that is reported, and what is reported next counts
/// only the program's requests.
#[test]
fn keep_alives_are_never_reported() {
    let mut world = World::with(&with_keep_alive());
    let (a, b) = (faults(&mut world.a), faults(&mut world.b));
    let remote = world.b.memory();
    for unsignaled in 0..4 {
        for wr_id in 0..unsignaled {
            let write = RdmaWrite { remote };
            world.a.stage(wr_id, write, UNSIGNALED, Replay::Surface);
        }
        world.a.link.ring();
        let before = sent(&mut world.a);
        pass(&mut world, KEEP_ALIVE * 5);
        let asked = sent(&mut world.a) - before;
        // Once in each half, and once more where the checks are late.
        assert!((8..=10).contains(&asked), "{asked}");
        assert!(world.a.log.is_empty(), "{:?}", world.a.log);
        assert_eq!(world.a.link.unreported(), unsignaled as u32);
        world.a.go(10, RdmaWrite { remote }, Replay::Surface);
        pass(&mut world, STEP);
        let reported: Vec<_> = world.a.log.drain(..).map(|line| line.retired).collect();
        assert_eq!(reported, [unsignaled as u32 + 1]);
        world.a.posted = 0;
        world.talk();
        world.all_reported([0, 0]);
        world.a.log.clear();
        world.b.log.clear();
        (world.a.posted, world.b.posted) = (0, 0);
    }
    assert!(a.try_recv().is_err() && b.try_recv().is_err());
    assert_eq!(world.a.link.epoch(), 1);
}

/// Counter of the send queue, whose entries are one block each.
fn sent(end: &mut End) -> u32 {
    let record = end.link.dump(&Default::default()).unwrap();
    record.send_queue.counter
}

#[test]
fn a_peer_that_is_lost_while_nothing_is_in_flight() {
    let mut world = World::with(&with_keep_alive());
    world.a.receive(0..2);
    let found = faults(&mut world.a);
    hangs(&world.device, world.a.link.qp_num().unwrap());
    let (fault, took) = first(&mut world, &found);
    assert_eq!(fault, LinkFault::KeepAliveMissed);
    assert!(took <= KEEP_ALIVE + 4 * STEP, "{took:?}");
    world.settle();
    // This peer is there after all.
    world.talk();
    world.all_reported([2, 0]);
}

/// A peer that sends is there, whatever happens to the keep-alive.
#[test]
fn what_comes_from_the_peer_shows_that_it_is_there() {
    let mut world = World::with(&with_keep_alive());
    let found = faults(&mut world.a);
    hangs(&world.device, world.a.link.qp_num().unwrap());
    for wr_id in 0..20 {
        world.a.receive([wr_id]);
        pass(&mut world, KEEP_ALIVE / 4);
        world.b.go(100 + wr_id, Send {}, Replay::Surface);
    }
    assert!(found.try_recv().is_err());
    let (fault, _) = first(&mut world, &found);
    assert_eq!(fault, LinkFault::KeepAliveMissed);
    world.settle();
    world.talk();
    world.all_reported([0, 0]);
}

/// The queue pair, or the completion queue, fails while a keep-alive is in flight and requests are before and
/// behind it: each has its outcome, the keep-alive none.
#[test]
fn a_fault_while_a_keep_alive_is_in_flight() {
    for overrun in [false, true] {
        for behind in 0..3 {
            let mut world = World::with(&with_keep_alive());
            let remote = world.b.memory();
            let write = RdmaWrite { remote };
            world.a.stage(1, write, UNSIGNALED, Replay::Surface);
            world.a.stage(2, write, UNSIGNALED, Replay::Surface);
            world.a.link.ring();
            world.poll();
            hangs(&world.device, world.a.link.qp_num().unwrap());
            pass(&mut world, KEEP_ALIVE * 3 / 4);
            for wr_id in 0..behind {
                world.a.go(10 + wr_id, write, Replay::IfSafe);
            }
            world.poll();
            let fault = match overrun {
                true => Fault::CqOverrun(world.a.link.cqn().unwrap()),
                false => Fault::QpFatal(world.a.link.qp_num().unwrap()),
            };
            let script = Script::default().with(Trigger::After(Duration::ZERO), fault);
            world.device.as_soft().unwrap().inject(&script).unwrap();
            advance(&world.device, Duration::from_nanos(1));
            world.settle();
            world.talk();
            let known = |id: u64| (1..=2).contains(&id) || id >= 10;
            let all_known = world.a.log.iter().all(|line| known(line.wr_id));
            assert!(all_known, "{:?}", world.a.log);
            world.all_reported([0, 0]);
        }
    }
}

/// An event after which the queue pair works on leaves the keep-alive that is in flight: it completes on the data
/// path, and is not reported.
#[test]
fn an_event_while_a_keep_alive_is_in_flight() {
    for event in [EventType::PkeyChange, EventType::PortErr] {
        let mut world = World::with(&with_keep_alive());
        let before = world.a.link.qp_num();
        let trigger = Trigger::EntryOf {
            qp_num: before.unwrap(),
            nth: 1,
        };
        let script = Script::default().with(trigger, Fault::Delay(KEEP_ALIVE / 2));
        world.device.as_soft().unwrap().inject(&script).unwrap();
        pass(&mut world, KEEP_ALIVE * 3 / 4);
        let raise = Fault::Raise(event, Element::Port(1));
        let script = Script::default().with(Trigger::After(Duration::ZERO), raise);
        world.device.as_soft().unwrap().inject(&script).unwrap();
        pass(&mut world, KEEP_ALIVE * 2);
        assert_eq!(world.a.link.qp_num(), before);
        world.talk();
        world.all_reported([0, 0]);
        let log = &world.a.log;
        assert!(log.iter().all(|line| line.wr_id != 0), "{event}: {log:?}");
    }
}

/// The close of a link while a keep-alive is in flight.
#[test]
fn a_close_while_a_keep_alive_is_in_flight() {
    let mut world = World::with(&with_keep_alive());
    world.a.receive(0..2);
    hangs(&world.device, world.a.link.qp_num().unwrap());
    pass(&mut world, KEEP_ALIVE * 3 / 4);
    world.a.link.close(Duration::from_millis(50));
    world.settle();
    assert!(matches!(world.a.state(), LinkState::Ended(_)));
    world.all_reported([0, 0]);
}

#[test]
fn times_of_zero_are_refused() {
    for (what, init) in [
        (
            "request_deadline",
            LinkInit {
                request_deadline: Some(Duration::ZERO),
                ..init()
            },
        ),
        (
            "keep_alive",
            LinkInit {
                keep_alive: Some(Duration::ZERO),
                ..init()
            },
        ),
    ] {
        let pd = device(Mode::Inline).alloc_pd();
        let (here, _there) = pair();
        let refused = bellwire::link::Link::new(&pd, init, here).unwrap_err();
        let is_it = matches!(refused, Error::TooLarge { what: found, given: 0, .. } if found.starts_with(what));
        assert!(is_it, "{refused:?}");
    }
}

/// A link that sleeps wakes by itself when a deadline is missed, and to ask its peer.
#[test]
fn sleepers_wake_in_time() {
    let pd = device(Mode::Inline).alloc_pd();
    let short = Some(Duration::from_millis(40));
    for (request_deadline, keep_alive) in [(short, None), (None, short)] {
        let (here, there) = pair();
        let sleeping = LinkInit {
            connect: with_deadline().connect,
            request_deadline,
            keep_alive,
            ..sleepers()
        };
        let mut a = End::new(&pd, sleeping, here);
        let mut b = End::new(&pd, with_deadline(), there);
        while [a.state(), b.state()] != [LinkState::Ready; 2] {
            a.link.arm().unwrap();
            a.poll();
            b.poll();
        }
        let found = faults(&mut a);
        match keep_alive {
            None => a.go(10, Send {}, Replay::Surface),
            Some(_) => hangs(pd.device(), a.link.qp_num().unwrap()),
        }
        let fault = loop {
            a.link.arm().unwrap();
            while a.poll() != 0 {}
            if let Ok(fault) = found.try_recv() {
                break fault;
            }
            // Far longer than it takes: nothing else wakes it.
            assert!(wakes(&a, 60_000));
        };
        let expected = match keep_alive {
            None => LinkFault::DeadlineMissed,
            Some(_) => LinkFault::KeepAliveMissed,
        };
        assert_eq!(fault, expected);
        drop(b);
        while !matches!(a.state(), LinkState::Ended(_)) {
            a.link.arm().unwrap();
            a.poll();
        }
        while a.poll() != 0 {}
        assert_eq!(a.reported(), a.posted);
    }
}

/// A set: one link misses a deadline, another loses its peer, the others work, and are asked, meanwhile.
#[test]
fn links_of_a_set() {
    let init = LinkInit {
        keep_alive: Some(KEEP_ALIVE),
        ..with_deadline()
    };
    let mut world = SetWorld::unconnected(5, set_init(5), &init);
    world.settle();
    world.all_ready();
    let (send, found) = channel();
    for at in 0..world.clients.len() {
        let id = world.clients[at].0;
        let send = send.clone();
        let mut link = world.set.link(id).unwrap();
        link.on_fault(move |report| send.send((at, report.fault)).unwrap());
    }
    let id = world.clients[0].0;
    world.send(id, 10, Replay::Surface);
    let lost = world.qp_num(1);
    hangs(&world.device, lost);
    let mut missed = Vec::new();
    for _ in 0..steps(KEEP_ALIVE * 3) {
        world.poll();
        missed.extend(found.try_iter());
        advance(&world.device, STEP);
    }
    world.settle();
    world.all_ready();
    missed.sort_by_key(|(at, _)| *at);
    let expected = [
        (0, LinkFault::DeadlineMissed),
        (1, LinkFault::KeepAliveMissed),
    ];
    assert_eq!(missed, expected);
    assert_eq!(world.sends(id), [(10, Outcome::NotExecuted)]);
    for (at, epoch) in [2, 2, 1, 1, 1].into_iter().enumerate() {
        let id = world.clients[at].0;
        assert_eq!(world.set.link(id).unwrap().epoch(), epoch, "{at}");
    }
    world.all_reported();
    world.talk();
}

/// As [`keep_alives_are_never_reported`], in a set, whose links fail together afterwards.
#[test]
fn keep_alives_in_a_set() {
    let mut world = SetWorld::unconnected(3, set_init(3), &with_keep_alive());
    world.settle();
    for _ in 0..steps(KEEP_ALIVE * 4) {
        world.poll();
        advance(&world.device, STEP);
    }
    world.talk();
    let qps: Vec<_> = (0..3).map(|at| world.qp_num(at)).collect();
    for qp_num in qps {
        hangs(&world.device, qp_num);
    }
    for _ in 0..steps(KEEP_ALIVE * 3 / 4) {
        world.poll();
        advance(&world.device, STEP);
    }
    world.forget();
    let id = world.clients[0].0;
    world
        .set
        .report(id, LinkFault::Event(EventType::CqErr))
        .unwrap();
    world.settle();
    world.all_ready();
    world.all_reported();
    world.talk();
}
