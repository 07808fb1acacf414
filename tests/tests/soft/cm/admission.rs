//! How many links a listener admits at a time, and for how long.

use super::world::SOON;
use bellwire::Device;
use bellwire::connect::cm::{Connector, Incoming, Listener, Retry};
use bellwire::fault::Fault;
use bellwire::fault::plan::EndReason;
use bellwire::link::{Exchange, Link, LinkInit, LinkState};
use bellwire::soft::Mode;
use bellwire_tests::fixture::{self, until};
use std::time::{Duration, Instant};

struct World {
    device: Device,
    listener: Listener,
}

impl World {
    fn new(backlog: u32, handshakes: u32, within: Duration) -> Self {
        let device = fixture::device(Mode::Inline);
        let at = ("127.0.0.1", 0);
        let mut listener = Listener::bind(&device, at, backlog, Retry::default()).unwrap();
        listener.limit_handshakes(handshakes, within);
        Self { device, listener }
    }

    fn link(&self, exchange: impl Exchange + 'static) -> Link {
        let init = LinkInit {
            qp: fixture::init(),
            check_every: 1,
            ..LinkInit::default()
        };
        Link::new(&self.device.alloc_pd(), init, exchange).unwrap()
    }

    fn ask(&self) -> Link {
        self.ask_with(Retry::default())
    }

    fn ask_with(&self, retry: Retry) -> Link {
        let at = ("127.0.0.1", self.listener.port());
        let connector = Connector::new(&self.device, at, retry);
        self.link(connector.exchange().unwrap())
    }

    /// The next link, while these ask.
    fn accept(&mut self, clients: &mut [Link]) -> Incoming {
        let mut incoming = None;
        until("a link", || {
            clients.iter_mut().for_each(poll);
            incoming = self.listener.accept().unwrap();
            incoming.is_some()
        });
        incoming.expect("it came")
    }
}

fn poll(link: &mut Link) {
    link.poll(16, |_| ());
}

#[test]
fn so_many_connect_at_a_time() {
    let mut world = World::new(8, 1, SOON);
    let mut clients: Vec<Link> = (0..2).map(|_| world.ask()).collect();
    let first = world.accept(&mut clients);
    let mut first = world.link(first);
    // The other one has asked long since.
    for _ in 0..1000 {
        clients.iter_mut().for_each(poll);
        assert!(world.listener.accept().unwrap().is_none());
    }
    let none = world.listener.accept_within(Duration::from_millis(5));
    assert!(none.unwrap().is_none());
    until("a link that works", || {
        poll(&mut first);
        clients.iter_mut().for_each(poll);
        first.state() == LinkState::Ready
    });
    let second = world.accept(&mut clients);
    let mut second = world.link(second);
    until("both links", || {
        [&mut first, &mut second].into_iter().for_each(poll);
        clients.iter_mut().for_each(poll);
        clients
            .iter()
            .all(|client| client.state() == LinkState::Ready)
    });
    // One that is dropped before it works makes room, too.
    let mut others: Vec<Link> = (0..2).map(|_| world.ask()).collect();
    drop(world.accept(&mut others));
    world.accept(&mut others);
}

#[test]
fn a_client_that_falls_silent_makes_room() {
    let mut world = World::new(8, 1, Duration::from_millis(100));
    let mut silent = [world.ask()];
    let incoming = world.accept(&mut silent);
    // From here on it does nothing.
    let mut link = world.link(incoming);
    until("the end of the silent client's link", || {
        poll(&mut link);
        matches!(link.state(), LinkState::Ended(_))
    });
    assert_eq!(link.state().why(), Some(EndReason::PeerLost));
    // Should it come back, it learns why.
    until("the end of the client's link", || {
        assert!(world.listener.accept().unwrap().is_none());
        poll(&mut silent[0]);
        matches!(silent[0].state(), LinkState::Ended(_))
    });
    let late = Fault::Errno(libc::ETIMEDOUT).without_circumstances();
    assert_eq!(silent[0].state().why(), Some(EndReason::PeerGaveUp(late)));
    let mut client = [world.ask()];
    let incoming = world.accept(&mut client);
    let mut served = world.link(incoming);
    until("a link that works", || {
        poll(&mut served);
        client.iter_mut().for_each(poll);
        served.state() == LinkState::Ready && client[0].state() == LinkState::Ready
    });
}

/// A program that does not poll what it has accepted keeps nobody out either.
#[test]
fn a_link_that_is_not_polled_makes_room() {
    let mut world = World::new(8, 1, Duration::from_millis(50));
    let mut first = [world.ask()];
    let _never_polled = world.accept(&mut first);
    let mut second = [world.ask()];
    world.accept(&mut second);
}

/// More than the backlog has room for are refused, and come again, each at another time.
#[test]
fn those_who_are_refused_come_again() {
    let mut world = World::new(2, 4, SOON);
    let mut clients: Vec<Link> = (0..20).map(|_| world.ask()).collect();
    let mut servers = Vec::new();
    until("all links", || {
        clients.iter_mut().for_each(poll);
        servers.iter_mut().for_each(poll);
        if let Some(incoming) = world.listener.accept().unwrap() {
            servers.push(world.link(incoming));
        }
        clients
            .iter()
            .all(|client| client.state() == LinkState::Ready)
    });
    assert_eq!(servers.len(), clients.len());
}

/// Who asks again because nobody has answered, and finds that another has its place, waits as any other.
#[test]
fn those_who_lose_their_place_wait_anew() {
    let mut world = World::new(1, 1, SOON);
    let mut first = [world.ask()];
    let connecting = world.accept(&mut first);
    let impatient = Retry {
        step: Duration::from_millis(20),
        pause: Duration::from_millis(20),
        longest: Duration::from_millis(20),
        attempts: 1000,
    };
    let mut clients = vec![world.ask_with(impatient)];
    // It waits, and asks again, a few times.
    let begin = Instant::now();
    until("some attempts", || {
        clients.iter_mut().for_each(poll);
        assert!(world.listener.accept().unwrap().is_none());
        begin.elapsed() > 5 * impatient.step
    });
    // One of them has the place that the other leaves, in turn.
    clients.push(world.ask_with(impatient));
    let begin = Instant::now();
    until("some attempts", || {
        clients.iter_mut().for_each(poll);
        assert!(world.listener.accept().unwrap().is_none());
        begin.elapsed() > 10 * impatient.step
    });
    drop(connecting);
    let mut servers = Vec::new();
    until("both links", || {
        clients.iter_mut().for_each(poll);
        servers.iter_mut().for_each(poll);
        if let Some(incoming) = world.listener.accept().unwrap() {
            servers.push(world.link(incoming));
        }
        (clients.iter()).all(|client| client.state() == LinkState::Ready)
    });
}
