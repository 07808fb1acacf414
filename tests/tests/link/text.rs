//! A program that does what the text of `Link::arm` says, and nothing else: arm, poll until the link
//! finds nothing, sleep until the descriptor is readable, whatever state the link is in. It is woken
//! whenever there is something for it, at each step of a connection and of a recovery.

use crate::modes::over_tcp_ends;
use crate::sleep::{is_readable, sleepers, strike_on, wakes};
use crate::world::{End, init};
use bellwire::Device;
use bellwire::connect::cm::{Connector, Listener, Retry};
use bellwire::event::{Element, EventType};
use bellwire::fault::Fault;
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::link::{Exchange, Link, LinkInit, LinkState, RecoverIn, pair};
use bellwire::soft::{self, Mode};
use bellwire::wqe::Send;
use bellwire_tests::fixture::{DEADLINE, ENGINE, device, virtual_device};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

const SOON: Duration = DEADLINE;

/// Until the descriptor is readable; `false`: it is not for so long that it never will be.
fn sleeps(end: &End) -> bool {
    wakes(end, SOON.as_millis() as i32)
}

fn turn(end: &mut End) {
    end.link.arm().unwrap();
    while end.poll() != 0 {}
}

/// Both ends do as the text says, each in a thread of its own; `done` is asked after each turn.
fn both_sleep(a: &mut End, b: &mut End, done: impl Fn(&mut End) -> bool + Sync) {
    let program = |end: &mut End| {
        turn(end);
        while !done(end) {
            assert!(
                sleeps(end),
                "asleep for ever: {:?} {:?}",
                end.state(),
                end.log
            );
            turn(end);
        }
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| program(b));
        program(a);
        other.join().unwrap();
    });
}

fn sleeping(recover_in: RecoverIn) -> LinkInit {
    LinkInit {
        recover_in,
        ..sleepers()
    }
}

/// A connection, messages, and recoveries from faults of one end, the other, or both.
fn through_recoveries(
    mode: Mode,
    recover_in: RecoverIn,
    ends: (impl Exchange + 'static, impl Exchange + 'static),
) {
    let device = device(mode);
    let pd = device.alloc_pd();
    let a = End::new(&pd, sleeping(recover_in), ends.0);
    let b = End::new(&pd, sleeping(recover_in), ends.1);
    go_through_recoveries(&device, a, b);
}

fn go_through_recoveries(device: &Device, mut a: End, mut b: End) {
    const ROUNDS: u64 = 8;
    both_sleep(&mut a, &mut b, |end| end.state() == LinkState::Ready);
    for end in [&mut a, &mut b] {
        end.receive(0..ROUNDS);
    }
    for round in 0..ROUNDS {
        // What is said is said before anybody looks again.
        for end in [&mut a, &mut b] {
            end.go(100 + round, Send {}, Replay::Surface);
        }
        both_sleep(&mut a, &mut b, |end| {
            end.log.len() >= 2 * (round as usize + 1)
        });
        if round % 4 != 0 {
            let script = soft::Fault::QpFatal(a.link.qp_num().unwrap());
            strike_on(device, script);
        }
        if round % 4 != 1 {
            b.link.report(Fault::PeerRecovery);
        }
        let epoch = a.link.epoch().min(b.link.epoch());
        both_sleep(&mut a, &mut b, |end| {
            end.state() == LinkState::Ready && end.link.epoch() > epoch
        });
    }
    let done = |end: &End| end.log.iter().all(|line| line.outcome == Outcome::Done);
    assert!(done(&a) && done(&b), "{:?} {:?}", a.log, b.log);
    // One closes, and the other hears of it.
    a.link.close(Duration::from_secs(1));
    let ended = |end: &mut End| matches!(end.state(), LinkState::Ended(_));
    let mut peer = b;
    std::thread::scope(|scope| {
        let other = scope.spawn(move || {
            turn(&mut peer);
            while !ended(&mut peer) {
                assert!(
                    sleeps(&peer),
                    "the end is slept through: {:?}",
                    peer.state()
                );
                turn(&mut peer);
            }
        });
        turn(&mut a);
        while !ended(&mut a) {
            assert!(sleeps(&a), "asleep for ever: {:?}", a.state());
            turn(&mut a);
        }
        drop(a);
        other.join().unwrap();
    });
}

#[test]
fn within_the_process() {
    through_recoveries(Mode::Inline, RecoverIn::Poll, pair());
}

#[test]
fn within_the_process_in_a_thread() {
    through_recoveries(Mode::Inline, RecoverIn::Thread, pair());
}

#[test]
fn on_an_engine() {
    through_recoveries(ENGINE, RecoverIn::Poll, pair());
}

#[test]
fn over_tcp() {
    through_recoveries(Mode::Inline, RecoverIn::Poll, over_tcp_ends());
}

#[test]
fn over_tcp_in_a_thread() {
    through_recoveries(ENGINE, RecoverIn::Thread, over_tcp_ends());
}

/// Both ends by the communication manager, whose listener has one descriptor for all of its links.
fn by_the_communication_manager(recover_in: RecoverIn) {
    let device = device(Mode::Inline);
    let pd = device.alloc_pd();
    let retry = Retry::default();
    let mut listener = Listener::bind(&device, ("127.0.0.1", 0), 16, retry).unwrap();
    let connector = Connector::new(&device, ("127.0.0.1", listener.port()), retry);
    let mut a = End::new(&pd, sleeping(recover_in), connector.exchange().unwrap());
    turn(&mut a);
    let incoming = loop {
        if is_readable(listener.as_fd(), 0) {
            if let Some(incoming) = listener.accept().unwrap() {
                break incoming;
            }
        } else {
            assert!(sleeps(&a), "asleep for ever");
            turn(&mut a);
        }
    };
    let b = End::new(&pd, sleeping(recover_in), incoming);
    go_through_recoveries(&device, a, b);
}

#[test]
fn by_cm() {
    by_the_communication_manager(RecoverIn::Poll);
}

#[test]
fn by_cm_in_a_thread() {
    by_the_communication_manager(RecoverIn::Thread);
}

/// Who accepts sleeps on the listener, whose links take what comes for all of them.
#[test]
fn a_request_that_a_link_took_wakes_who_accepts() {
    let device = device(Mode::Inline);
    let pd = device.alloc_pd();
    let retry = Retry::default();
    let mut listener = Listener::bind(&device, ("127.0.0.1", 0), 16, retry).unwrap();
    let connector = Connector::new(&device, ("127.0.0.1", listener.port()), retry);
    let start = Instant::now();
    let mut clients = Vec::new();
    let mut servers: Vec<Link> = Vec::new();
    for count in 1..=2 {
        let exchange = connector.exchange().unwrap();
        clients.push(Link::new(&pd, init(), exchange).unwrap());
        while servers.len() < count {
            clients
                .iter_mut()
                .for_each(|client| _ = client.poll(1, drop));
            servers
                .iter_mut()
                .for_each(|server| _ = server.poll(1, drop));
            if is_readable(listener.as_fd(), 0)
                && let Some(incoming) = listener.accept().unwrap()
            {
                servers.push(Link::new(&pd, init(), incoming).unwrap());
            }
            assert!(start.elapsed() < SOON, "nobody is accepted");
        }
    }
    let listener = is_readable(listener.as_fd(), 0);
    assert!(!listener, "there is nobody to accept");
}

/// The link becomes ready in a poll that comes after it was armed: there was nothing to arm then, and
/// the program goes to sleep.
#[test]
fn a_link_that_becomes_ready_within_the_poll_wakes() {
    let device = virtual_device(1);
    let pd = device.alloc_pd();
    let (here, there) = pair();
    let mut a = End::new(&pd, init(), here);
    let mut b = End::new(&pd, sleepers(), there);
    b.receive([0]);
    while b.state() != LinkState::Ready {
        a.poll();
        turn(&mut b);
    }
    while a.state() != LinkState::Ready {
        a.poll();
    }
    a.go(100, Send {}, Replay::Surface);
    assert!(wakes(&b, 0), "the message is slept through");
    turn(&mut b);
    assert_eq!(b.received(), [(0, Outcome::Done, 100)]);
    turn(&mut b);
    assert!(!wakes(&b, 0), "there is nothing to wake for");
}

/// What the program does itself, after it has armed and polled.
#[test]
fn a_fault_that_is_reported_and_a_close_wake() {
    let mut world = crate::world::World::with(&sleepers());
    turn(&mut world.b);
    assert!(!wakes(&world.b, 0));
    world.b.link.report(Fault::PeerRecovery);
    assert!(wakes(&world.b, 0));
    turn(&mut world.b);
    world.settle();
    turn(&mut world.b);
    turn(&mut world.b);
    assert!(!wakes(&world.b, 0));
    world.b.link.close(Duration::from_secs(1));
    assert!(wakes(&world.b, 0));
}

/// A silent peer: the time of a step is over, and nothing else happens.
#[test]
fn the_time_of_a_step_wakes() {
    let pd = device(Mode::Inline).alloc_pd();
    let (here, there) = pair();
    let mut init = sleepers();
    init.limits.exchange = Duration::from_millis(50);
    init.limits.attempts = 1;
    let mut a = End::new(&pd, init, here);
    let start = Instant::now();
    turn(&mut a);
    while a.state() == LinkState::Recovering {
        assert!(sleeps(&a), "asleep for ever");
        turn(&mut a);
    }
    assert!(start.elapsed() >= Duration::from_millis(50));
    drop(there);
}

fn epoll() -> OwnedFd {
    // SAFETY: takes a number.
    let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    assert!(fd >= 0);
    // SAFETY: just made, and nobody else's.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn add(epoll: &OwnedFd, fd: impl AsRawFd, number: u64) {
    let mut event = libc::epoll_event {
        events: libc::EPOLLIN as u32,
        u64: number,
    };
    let (epoll, fd) = (epoll.as_raw_fd(), fd.as_raw_fd());
    // SAFETY: open descriptors, and one entry.
    let added = unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &mut event) };
    let error = std::io::Error::last_os_error();
    assert_eq!(added, 0, "link {number}: {error}");
}

/// Those that are readable.
fn readable(epoll: &OwnedFd) -> Vec<u64> {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 1000];
    // SAFETY: as many entries.
    let count = unsafe {
        libc::epoll_wait(
            epoll.as_raw_fd(),
            events.as_mut_ptr(),
            events.len() as i32,
            0,
        )
    };
    let numbers = events[..count as usize].iter().map(|event| event.u64);
    let mut numbers: Vec<u64> = numbers.collect();
    numbers.sort_unstable();
    numbers
}

/// Linux lets a few hundred epolls wait for a descriptor that they have in common, and fewer when they
/// are in epolls in turn. An event wakes those whom it concerns, and nobody else.
#[test]
fn any_number_of_links_may_be_in_one_epoll() {
    const LINKS: u64 = 600;
    bellwire_tests::fixture::raise_descriptors();
    let device = device(Mode::Inline);
    let pd = device.alloc_pd();
    let (inner, outer) = (epoll(), epoll());
    let sleeper = LinkInit {
        qp: bellwire::QpInit {
            max_send_wr: 1,
            max_recv_wr: 1,
            ..init().qp
        },
        ..sleepers()
    };
    let mut peers = Vec::new();
    let mut links: Vec<Link> = (0..LINKS)
        .map(|number| {
            let (here, there) = pair();
            let awake = LinkInit {
                waitable: false,
                ..sleeper.clone()
            };
            peers.push(Link::new(&pd, awake, there).unwrap());
            let link = Link::new(&pd, sleeper.clone(), here).unwrap();
            add(&inner, link.fd().unwrap(), number);
            link
        })
        .collect();
    add(&outer, inner.as_fd(), 0);
    // Links that wake are polled, until none does.
    let settle = |links: &mut Vec<Link>, peers: &mut Vec<Link>| {
        let start = Instant::now();
        loop {
            peers.iter_mut().for_each(|peer| _ = peer.poll(1, drop));
            let woken = readable(&inner);
            for number in &woken {
                let link = &mut links[*number as usize];
                link.arm().unwrap();
                while link.poll(1, drop) != 0 {}
            }
            let ready = links.iter().all(|link| link.state() == LinkState::Ready);
            if woken.is_empty() && ready {
                return;
            }
            assert!(start.elapsed() < SOON, "{} are woken", woken.len());
        }
    };
    for link in &mut links {
        link.arm().unwrap();
        link.poll(1, drop);
    }
    settle(&mut links, &mut peers);
    assert!(readable(&outer).is_empty());

    let victim = LINKS - 1;
    let qpn = links[victim as usize].qp_num().unwrap();
    device
        .as_soft()
        .unwrap()
        .raise(EventType::CommEst, Element::Qp(qpn))
        .unwrap();
    assert_eq!(readable(&inner), [victim]);
    assert_eq!(readable(&outer), [0]);
    settle(&mut links, &mut peers);
    device
        .as_soft()
        .unwrap()
        .raise(EventType::PortActive, Element::Port(1))
        .unwrap();
    assert_eq!(readable(&inner).len() as u64, LINKS);
    settle(&mut links, &mut peers);
}
