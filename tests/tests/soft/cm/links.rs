//! Links that find each other, for the first time and again, by the communication manager.

use bellwire::connect::cm::{Connector, Listener, Retry};
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::fault::plan::{EndReason, Limits};
use bellwire::link::{Link, LinkEnd, LinkInit, LinkState};
use bellwire::soft::{Fault, Mode, Script, Trigger};
use bellwire::wqe::Send;
use bellwire::{ClassLayout, Device, Slab};
use bellwire_tests::fixture::{self, SIGNALED, until};
use bellwire_tests::mute::Mute;
use std::time::{Duration, Instant};

const PORT: u16 = 7471;

/// The devices of a server and a client, and memory for messages.
struct World {
    server: Device,
    client: Device,
    retry: Retry,
}

/// A link, and what it has reported.
struct End {
    link: Link,
    slab: Slab,
    /// Messages that came, and requests that were executed.
    came: Vec<u8>,
    sent: u64,
}

impl End {
    fn new(device: &Device, exchange: impl bellwire::link::Exchange + 'static) -> Self {
        let mut end = Self::without_receives(device, exchange);
        (0..8).for_each(|_| end.receive());
        end
    }

    fn without_receives(
        device: &Device,
        exchange: impl bellwire::link::Exchange + 'static,
    ) -> Self {
        let pd = device.alloc_pd();
        let layout = [ClassLayout {
            size: 64,
            count: 32,
        }];
        let init = LinkInit {
            qp: fixture::init(),
            // Faults come one after the other here.
            limits: Limits {
                settle: Duration::ZERO,
                ..Limits::default()
            },
            check_every: 1,
            ..LinkInit::default()
        };
        Self {
            link: Link::new(&pd, init, exchange).unwrap(),
            slab: fixture::slab(&pd, &layout),
            came: Vec::new(),
            sent: 0,
        }
    }

    fn receive(&mut self) {
        let block = self.slab.take(64).unwrap();
        self.link.post_recv_block(1, block).unwrap();
        self.link.ring_recv();
    }

    fn poll(&mut self) {
        let (came, sent) = (&mut self.came, &mut self.sent);
        let mut consumed = 0;
        self.link.poll(16, |completion| {
            assert_eq!(completion.outcome, Outcome::Done, "{completion:?}");
            match completion.block {
                Some(block) => {
                    consumed += 1;
                    came.push(block.as_slice()[0]);
                }
                None => *sent += 1,
            }
        });
        for _ in 0..consumed {
            if self.link.state() == LinkState::Ready {
                self.receive();
            }
        }
    }

    fn send(&mut self, byte: u8) {
        let posted = self
            .link
            .post_inline(2, Send {}, &[byte], SIGNALED, Replay::IfSafe);
        posted.unwrap();
        self.link.ring();
    }
}

/// Polls both until something is so.
fn both(what: &str, a: &mut End, b: &mut End, mut so: impl FnMut(&mut End, &mut End) -> bool) {
    until(what, || {
        a.poll();
        b.poll();
        so(a, b)
    });
}

fn message(from: &mut End, to: &mut End, byte: u8) {
    both("links that work", from, to, |from, to| {
        [from, to].map(|end| end.link.state()) == [LinkState::Ready; 2]
    });
    let sent = from.sent + 1;
    from.send(byte);
    both("a message", from, to, |from, to| {
        from.sent == sent && to.came.last() == Some(&byte)
    });
}

fn retry() -> Retry {
    Retry {
        step: Duration::from_secs(1),
        attempts: 3,
        ..Retry::default()
    }
}

impl World {
    fn alone() -> Self {
        let device = fixture::device(Mode::Inline);
        Self {
            server: device.clone(),
            client: device,
            retry: retry(),
        }
    }

    fn of_a_fabric() -> Self {
        let fabric = fixture::fabric_name();
        Self {
            server: fixture::node(&fabric, Mode::Inline),
            client: fixture::node(&fabric, Mode::Inline),
            retry: retry(),
        }
    }

    fn listener(&self) -> Listener {
        Listener::bind(&self.server, ("0.0.0.0", PORT), 4, self.retry).unwrap()
    }

    fn ask(&self) -> End {
        let connector = Connector::new(&self.client, ("127.0.0.1", PORT), self.retry);
        End::new(&self.client, connector.exchange().unwrap())
    }

    fn accept(&self, listener: &mut Listener, client: &mut End) -> End {
        let mut incoming = None;
        until("a link", || {
            client.poll();
            incoming = listener.accept().unwrap();
            incoming.is_some()
        });
        End::new(&self.server, incoming.expect("it came"))
    }

    fn pair(&self, listener: &mut Listener) -> (End, End) {
        let mut client = self.ask();
        let mut server = self.accept(listener, &mut client);
        message(&mut client, &mut server, 1);
        message(&mut server, &mut client, 2);
        (client, server)
    }
}

fn break_qp(device: &Device, end: &End) {
    let qp_num = end.link.qp_num().expect("it works");
    let script = Script::default().with(Trigger::After(Duration::ZERO), Fault::QpFatal(qp_num));
    device.as_soft().unwrap().inject(&script).unwrap();
    device.progress();
}

fn links_recover(world: &World) {
    let mut listener = world.listener();
    let (mut client, mut server) = world.pair(&mut listener);
    for round in 0..30 {
        let epoch = client.link.epoch();
        let numbers = [&client, &server].map(|end| end.link.qp_num());
        if round % 3 != 1 {
            break_qp(&world.client, &client);
        }
        if round % 3 != 0 {
            break_qp(&world.server, &server);
        }
        both(
            "another connection",
            &mut client,
            &mut server,
            |client, server| client.link.epoch() > epoch && server.link.epoch() > epoch,
        );
        both(
            "links that work",
            &mut client,
            &mut server,
            |client, server| [client, server].map(|end| end.link.state()) == [LinkState::Ready; 2],
        );
        for (end, before) in [&client, &server].into_iter().zip(numbers) {
            assert_ne!(end.link.qp_num(), before, "a number that had a connection");
        }
        message(&mut client, &mut server, 10 + round);
        message(&mut server, &mut client, 50 + round);
    }
    // Nothing was reported twice, or lost.
    let sent: Vec<u8> = (10..40).collect();
    assert_eq!(server.came, [&[1], &sent[..]].concat());
    assert_eq!((client.sent, server.sent), (31, 31));
}

#[test]
fn links_recover_alone() {
    links_recover(&World::alone());
}

#[test]
fn links_recover_on_a_fabric() {
    links_recover(&World::of_a_fabric());
}

#[test]
fn a_listener_has_many() {
    let world = World::alone();
    let mut listener = world.listener();
    let mut pairs: Vec<_> = (0..6).map(|_| world.pair(&mut listener)).collect();
    for (client, _) in pairs.iter().step_by(2) {
        break_qp(&world.client, client);
    }
    for (client, server) in &mut pairs {
        message(client, server, 7);
        message(server, client, 8);
    }
    // Who comes when enough wait comes again.
    let mut clients: Vec<End> = (0..6).map(|_| world.ask()).collect();
    let mut servers = Vec::new();
    until("all links", || {
        clients.iter_mut().for_each(End::poll);
        servers.iter_mut().for_each(End::poll);
        if let Some(incoming) = listener.accept().unwrap() {
            servers.push(End::new(&world.server, incoming));
        }
        clients
            .iter()
            .all(|end| end.link.state() == LinkState::Ready)
    });
    assert_eq!(servers.len(), 6);
}

/// Attempts that fail at once do not use up the time in which the peer may come.
#[test]
fn attempts_take_the_time_that_was_promised() {
    let world = World::alone();
    let retry = Retry {
        step: Duration::from_secs(20),
        attempts: 2,
        pause: Duration::from_millis(1),
        longest: Duration::from_millis(1),
    };
    let connector = Connector::new(&world.client, ("127.0.0.1", PORT), retry);
    let mut client = End::new(&world.client, connector.exchange().unwrap());
    let start = Instant::now();
    // Far more than two attempts.
    until("a while", || {
        client.poll();
        start.elapsed() > Duration::from_millis(200)
    });
    let mut listener = world.listener();
    let mut server = world.accept(&mut listener, &mut client);
    message(&mut client, &mut server, 1);
}

fn ends(end: &mut End) {
    until("the end", || {
        end.link.poll(16, |_| ());
        matches!(end.link.state(), LinkState::Ended(_))
    });
}

/// Connectors are polled so that somebody is there to be accepted; both ends post their receives then.
#[test]
fn receives_are_posted_when_somebody_has_come() {
    for world in [World::alone(), World::of_a_fabric()] {
        let mut listener = world.listener();
        let connector = Connector::new(&world.client, ("127.0.0.1", PORT), world.retry);
        let exchange = connector.exchange().unwrap();
        let mut client = End::without_receives(&world.client, exchange);
        let mut incoming = None;
        until("somebody", || {
            client.poll();
            incoming = listener.accept().unwrap();
            incoming.is_some()
        });
        let mut server = End::without_receives(&world.server, incoming.expect("it came"));
        server.poll();
        (0..8).for_each(|_| client.receive());
        (0..8).for_each(|_| server.receive());
        for byte in 1..9 {
            message(&mut server, &mut client, byte);
            message(&mut client, &mut server, byte);
        }
    }
}

#[test]
fn receives_that_wait_for_a_peer_are_reported_when_none_comes() {
    let world = World::alone();
    let connector = Connector::new(&world.client, ("127.0.0.1", PORT), world.retry);
    let mut client = End::without_receives(&world.client, connector.exchange().unwrap());
    client.poll();
    (0..4).for_each(|_| client.receive());
    let mut reported = Vec::new();
    until("the end", || {
        client
            .link
            .poll(16, |it| reported.push((it.wr_id, it.outcome)));
        matches!(client.link.state(), LinkState::Ended(_))
    });
    assert_eq!(reported, [(1, Outcome::NotExecuted); 4]);
    assert_eq!(client.slab.outstanding(), 0);
}

#[test]
fn nobody_is_asked_for_ever() {
    let mut client = World::alone().ask();
    ends(&mut client);
    assert!(client.link.exchange_error().is_some());
}

/// How a link ends.
fn end_of(end: &mut End) -> LinkEnd {
    ends(end);
    match end.link.state() {
        LinkState::Ended(end) => end,
        state => panic!("{state:?}"),
    }
}

const PEER_CLOSED: Option<EndReason> = Some(EndReason::PeerClosed);
const PEER_LOST: Option<EndReason> = Some(EndReason::PeerLost);
const PEER_RESTARTED: Option<EndReason> = Some(EndReason::PeerRestarted);

fn worlds() -> [World; 2] {
    [World::alone(), World::of_a_fabric()].map(|world| World {
        // Each peer is waited for longer than these tests last.
        retry: Retry {
            step: fixture::DEADLINE,
            ..retry()
        },
        ..world
    })
}

#[test]
fn a_link_that_is_closed_ends_the_other() {
    for world in worlds() {
        let mut listener = world.listener();
        let (mut client, server) = world.pair(&mut listener);
        let (there, here) = (client.link.peer_addr(), server.link.peer_addr());
        assert_eq!(there, Some(([127, 0, 0, 1], PORT).into()));
        assert!(here.is_some_and(|addr| addr.ip().is_loopback()), "{here:?}");
        drop(server);
        until("the end", || {
            assert!(listener.accept().unwrap().is_none());
            client.link.poll(16, |_| ());
            matches!(client.link.state(), LinkState::Ended(_))
        });
        assert_eq!(end_of(&mut client).why(), PEER_CLOSED);
        let (client, mut server) = world.pair(&mut listener);
        drop(client);
        assert_eq!(end_of(&mut server).why(), PEER_CLOSED);
        let (mut client, mut server) = world.pair(&mut listener);
        client.link.drain(Duration::from_secs(1), |_| ());
        assert_eq!(end_of(&mut server).why(), PEER_CLOSED);
    }
}

/// A link that this end throws out learns why, also after this end has dropped its own.
#[test]
fn a_link_that_is_given_up_tells_the_other_why() {
    let fault = bellwire::fault::Fault::RecvLimitExceeded;
    let why = Some(EndReason::PeerGaveUp(fault.without_circumstances()));
    for world in worlds() {
        let mut listener = world.listener();
        for dropped in [false, true] {
            let (mut client, mut server) = world.pair(&mut listener);
            server.link.report(fault);
            assert_eq!(end_of(&mut server).why(), Some(EndReason::Fault(fault)));
            let _server = (!dropped).then_some(server);
            until("the end", || {
                assert!(listener.accept().unwrap().is_none());
                client.link.poll(16, |_| ());
                matches!(client.link.state(), LinkState::Ended(_))
            });
            assert_eq!(end_of(&mut client).why(), why);
        }
        let (mut client, mut server) = world.pair(&mut listener);
        client.link.report(fault);
        assert_eq!(end_of(&mut client).why(), Some(EndReason::Fault(fault)));
        assert_eq!(end_of(&mut server).why(), why);
    }
}

#[test]
fn a_connector_that_is_gone_is_lost_at_once() {
    for world in worlds() {
        let mut listener = world.listener();
        let connector = Connector::new(&world.client, ("127.0.0.1", PORT), world.retry);
        let mut client = End::new(&world.client, Mute(connector.exchange().unwrap()));
        let mut server = world.accept(&mut listener, &mut client);
        message(&mut client, &mut server, 1);
        // One that only connects again is not.
        break_qp(&world.client, &client);
        let epoch = server.link.epoch();
        both("a recovery", &mut client, &mut server, |_, server| {
            server.link.epoch() > epoch
        });
        message(&mut server, &mut client, 2);
        drop(client);
        assert_eq!(end_of(&mut server).why(), PEER_LOST);
    }
}

/// The listener at the address now is not the one that closed the link in good order.
#[test]
fn a_listener_that_comes_back_as_another_has_restarted() {
    for world in worlds() {
        let mut listener = world.listener();
        let (mut client, server) = world.pair(&mut listener);
        drop((server, listener));
        let mut listener = world.listener();
        until("the end", || {
            assert!(listener.accept().unwrap().is_none());
            client.link.poll(16, |_| ());
            matches!(client.link.state(), LinkState::Ended(_))
        });
        assert_eq!(end_of(&mut client).why(), PEER_RESTARTED);
        // A new link is one of the new listener's.
        world.pair(&mut listener);
    }
}

#[test]
fn nobody_is_waited_for_when_none_comes() {
    let mut listener = World::alone().listener();
    let none = listener.accept_within(Duration::from_millis(5)).unwrap();
    assert!(none.is_none());
}
