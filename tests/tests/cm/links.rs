//! Links that find each other, for the first time and again, by the communication manager.

use bellwire::connect::cm::{Connector, Listener, Retry};
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::fault::plan::Limits;
use bellwire::memory::Mapping;
use bellwire::recovery::{Link, LinkInit, LinkState};
use bellwire::soft::{Fault, Mode, Script, Trigger};
use bellwire::wqe::Send;
use bellwire::{AccessFlags, ClassLayout, Device, Region, Slab};
use bellwire_tests::fixture::{self, SIGNALED, until};
use std::time::Duration;

const PORT: u16 = 7471;

/// The devices of a server and a client, and memory for messages.
struct World {
    server: Device,
    client: Device,
}

/// A link, and what it has been told.
struct End {
    link: Link,
    slab: Slab,
    /// Messages that came, and requests that were executed.
    came: Vec<u8>,
    sent: u64,
}

impl End {
    fn new(device: &Device, exchange: impl bellwire::recovery::Exchange + 'static) -> Self {
        let pd = device.alloc_pd();
        let layout = [ClassLayout {
            size: 64,
            count: 32,
        }];
        let mapping = Mapping::anonymous(Slab::bytes(&layout).unwrap());
        let region = Region::new(&pd, mapping.build().unwrap(), AccessFlags::LOCAL_WRITE).unwrap();
        let init = LinkInit {
            qp: fixture::init(),
            // Faults come one after the other here.
            limits: Limits {
                settle: Duration::ZERO,
                ..Limits::default()
            },
            look_every: 1,
            ..LinkInit::default()
        };
        let mut end = Self {
            link: Link::new(&pd, init, exchange).unwrap(),
            slab: Slab::new(region, &layout).unwrap(),
            came: Vec::new(),
            sent: 0,
        };
        (0..8).for_each(|_| end.receive());
        end
    }

    fn receive(&mut self) {
        let block = self.slab.take(64).unwrap();
        self.link.post_recv_block(1, block).unwrap();
        self.link.ring_recv();
    }

    fn poll(&mut self) {
        let (came, sent) = (&mut self.came, &mut self.sent);
        let mut consumed = 0;
        self.link.poll(16, |told| {
            assert_eq!(told.outcome, Outcome::Done, "{told:?}");
            match told.block {
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
        }
    }

    fn of_a_fabric() -> Self {
        let fabric = fixture::fabric_name();
        Self {
            server: fixture::node(&fabric, Mode::Inline),
            client: fixture::node(&fabric, Mode::Inline),
        }
    }

    fn listener(&self) -> Listener {
        Listener::bind(&self.server, ("0.0.0.0", PORT), 4, retry()).unwrap()
    }

    fn ask(&self) -> End {
        let connector = Connector::new(&self.client, ("127.0.0.1", PORT), retry());
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
    device.inject(&script).unwrap();
    device.progress();
}

fn links_recover(world: &World) {
    let mut listener = world.listener();
    let (mut client, mut server) = world.pair(&mut listener);
    for round in 0..30 {
        let epoch = client.link.epoch();
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
        message(&mut client, &mut server, 10 + round);
        message(&mut server, &mut client, 50 + round);
    }
    // Nothing was told twice, or lost.
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

fn ends(end: &mut End) {
    until("the end", || {
        end.link.poll(16, |_| ());
        matches!(end.link.state(), LinkState::Ended(_))
    });
}

#[test]
fn nobody_is_asked_for_ever() {
    let mut client = World::alone().ask();
    ends(&mut client);
    assert!(client.link.exchange_error().is_some());
}

#[test]
fn a_link_that_is_let_go_of_ends_the_other() {
    let world = World::alone();
    let mut listener = world.listener();
    let (mut client, server) = world.pair(&mut listener);
    drop(server);
    ends(&mut client);
    // It does not come back as another.
    assert!(listener.accept().unwrap().is_none());
    let (client, mut server) = world.pair(&mut listener);
    drop(client);
    ends(&mut server);
}

#[test]
fn nobody_is_waited_for_when_none_comes() {
    let mut listener = World::alone().listener();
    let none = listener.accept_within(Duration::from_millis(5)).unwrap();
    assert!(none.is_none());
}
