//! A server and a client that connect by the software HCA's communication manager.

use bellwire::connect::cm::{ConnParam, Event, EventChannel, EventKind, Id, PortSpace};
use bellwire::fault::CmEvent;
use bellwire::wqe::Send;
use bellwire::wr::{Sge, WcStatus};
use bellwire::{AccessFlags, Device};
use bellwire_tests::fixture::{self, DEADLINE, End, node};
use std::time::Duration;

/// How long resolving may take.
pub const SOON: Duration = DEADLINE;

/// How long nothing has to come before it counts as nothing.
pub const QUIET: Duration = Duration::from_millis(20);

/// The devices of a server and a client, and the channels of both.
pub struct World {
    pub server: EventChannel,
    pub client: EventChannel,
    /// Of the client: what is injected befalls it. In [`alone`](Self::alone) the server's, too.
    pub device: Device,
}

/// A connection, from both ends.
pub struct Connection {
    pub listener: Id,
    pub accepted: Id,
    pub connected: Id,
    /// Of the server, with a receive posted.
    pub here: End,
    /// Of the client, with a receive posted.
    pub there: End,
}

impl World {
    /// One device within the process.
    pub fn alone() -> Self {
        let device = fixture::device(bellwire::soft::Mode::Inline);
        Self {
            server: EventChannel::on(&device).unwrap(),
            client: EventChannel::on(&device).unwrap(),
            device,
        }
    }

    /// Two nodes of a fabric.
    pub fn of_a_fabric() -> Self {
        let fabric = fixture::fabric_name();
        let [server, client] = [(); 2].map(|()| node(&fabric, bellwire::soft::Mode::Inline));
        Self {
            server: EventChannel::on(&server).unwrap(),
            client: EventChannel::on(&client).unwrap(),
            device: client,
        }
    }

    /// Somebody who listens, at a port that is free.
    pub fn listener(&self, space: PortSpace, backlog: u32) -> Id {
        let id = self.server.id(space).unwrap();
        id.bind(("0.0.0.0", 0)).unwrap();
        id.listen(backlog).unwrap();
        id
    }

    /// Somebody who knows the way to a port.
    pub fn caller(&self, space: PortSpace, port: u16) -> Id {
        let id = self.client.id(space).unwrap();
        id.resolve_addr(None, ("127.0.0.1", port), SOON).unwrap();
        self.client.sees(&id, CmEvent::AddrResolved);
        id.resolve_route(SOON).unwrap();
        self.client.sees(&id, CmEvent::RouteResolved);
        id
    }

    /// A queue pair of an id, in INIT, with a receive of 64 bytes.
    pub fn end(&self, id: &Id) -> End {
        let pd = id.device().unwrap().expect("bound").alloc_pd();
        let mut end = End::new(&pd, bellwire::soft::Mode::Inline, &fixture::init());
        id.init_qp(&mut end.qp, AccessFlags::REMOTE_WRITE).unwrap();
        let sge = end.place(1024);
        end.receive(100, &[sge]);
        end
    }

    /// A client's request, as the server gets it.
    pub fn request(&self, listener: &Id) -> Id {
        let event = self.server.expect(listener, CmEvent::ConnectRequest);
        match event.ack() {
            EventKind::ConnectRequest { id, .. } | EventKind::LookupRequest { id, .. } => id,
            other => panic!("{other:?}"),
        }
    }

    /// A connection is asked for, and the server has got the request.
    pub fn asked(&self) -> (Id, Id, Id, End) {
        let listener = self.listener(PortSpace::Tcp, 8);
        let connected = self.caller(PortSpace::Tcp, listener.port());
        let there = self.end(&connected);
        connected.connect(&there.qp, &ConnParam::default()).unwrap();
        let accepted = self.request(&listener);
        (listener, accepted, connected, there)
    }

    /// A connection.
    pub fn connection(&self) -> Connection {
        let (listener, accepted, connected, mut there) = self.asked();
        let mut here = self.end(&accepted);
        accepted
            .accept(&mut here.qp, &ConnParam::default())
            .unwrap();
        self.client.sees(&connected, CmEvent::ConnectResponse);
        connected.establish(&mut there.qp).unwrap();
        self.server.sees(&accepted, CmEvent::Established);
        Connection {
            listener,
            accepted,
            connected,
            here,
            there,
        }
    }
}

/// What these tests do with channels.
pub trait Expect {
    /// The next event: this one, of this id.
    fn expect(&self, id: &Id, event: CmEvent) -> Event;

    /// As [`expect`](Self::expect), and nothing more is of interest.
    fn sees(&self, id: &Id, event: CmEvent) {
        drop(self.expect(id, event));
    }

    /// Nothing comes.
    fn nothing(&self);
}

impl Expect for EventChannel {
    fn expect(&self, id: &Id, event: CmEvent) -> Event {
        let got = self.get(DEADLINE).unwrap().expect("an event");
        assert_eq!(got.kind().event(), event, "{got:?}");
        assert!(got.id() == id, "{got:?}");
        got
    }

    fn nothing(&self) {
        let got = self.get(QUIET).unwrap();
        assert!(got.is_none(), "{got:?}");
    }
}

/// What these tests do with ends.
pub trait Place {
    /// 64 bytes of its region.
    fn place(&self, at: usize) -> Sge;

    /// Everything that is posted is flushed: the receive, and a request that is posted now.
    fn is_flushed(&mut self);
}

impl Place for End {
    fn place(&self, at: usize) -> Sge {
        self.region.sge(at, 64)
    }

    fn is_flushed(&mut self) {
        let sge = self.place(0);
        self.go(7, Send {}, sge);
        let mut outcomes = [self.outcome(), self.outcome()];
        outcomes.sort_unstable_by_key(|(wr_id, _)| *wr_id);
        assert_eq!(
            outcomes,
            [(7, WcStatus::WrFlushErr), (100, WcStatus::WrFlushErr)]
        );
        self.nothing();
    }
}

impl Connection {
    /// A message goes each way.
    pub fn works(&mut self) {
        message(&mut self.here, &mut self.there);
        message(&mut self.there, &mut self.here);
    }
}

fn message(from: &mut End, to: &mut End) {
    let sge = from.place(0);
    from.go(1, Send {}, sge);
    assert_eq!(to.outcome(), (100, WcStatus::Success));
    assert_eq!(from.outcome(), (1, WcStatus::Success));
    let sge = to.place(1024);
    to.receive(100, &[sge]);
}

/// Makes a test of each function within a process, and between nodes of a fabric.
macro_rules! in_both_worlds {
    ($($name:ident),* $(,)?) => {
        mod alone {
            $(#[test] fn $name() { super::$name(&super::World::alone()) })*
        }
        mod on_a_fabric {
            $(#[test] fn $name() { super::$name(&super::World::of_a_fabric()) })*
        }
    };
}
pub(crate) use in_both_worlds;
