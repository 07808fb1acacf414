//! A process that dies while a child of its keeps every descriptor open: sockets, memory, all. Nobody takes
//! the child for it.

use bellwire::connect::cm::{ConnParam, EventChannel, EventKind, Id, PortSpace};
use bellwire::fault::CmEvent;
use bellwire::memory::Mapping;
use bellwire::soft::Mode;
use bellwire::wqe::{Inline, RdmaWrite};
use bellwire::wr::{Remote, WcStatus};
use bellwire::{AccessFlags, ConnectAttr, Device, Region};
use bellwire_tests::child::Child;
use bellwire_tests::fixture::{ALL, DEADLINE, End, SIGNALED, fabric_name, init, node, until};
use bellwire_tests::leftovers::Home;
use bellwire_tests::parent::{Parent, card, number, read_card};
use bellwire_tests::patience::lasting;
use serde_json::{Value, json};
use std::time::Duration;

/// What it is started as.
pub const ROLE: &str = "heir";

/// Makes a child that has all descriptors, until our standard input ends.
fn leave_an_heir() {
    // SAFETY: the child makes system calls only.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let mut bytes = [0u8; 64];
        // SAFETY: as many bytes are writable.
        while unsafe { libc::read(0, bytes.as_mut_ptr().cast(), bytes.len()) } > 0 {}
        // SAFETY: takes a number.
        unsafe { libc::_exit(0) };
    }
}

/// Plays the role.
pub fn play() {
    let parent = Parent::start();
    parent.say("ready", Value::Null);
    let order = parent.hear("open");
    let fabric = order["fabric"].as_str().expect("a name");
    let device = Device::open(&format!("soft:{fabric}")).expect("a node");
    let pd = device.alloc_pd();
    let mapping = Mapping::shared("heir", 4096).build().expect("memory");
    let region = Region::new(&pd, mapping, ALL).expect("a region");
    let mut end = End::new(&pd, Mode::Inline, &init());
    let channel = EventChannel::on(&device).expect("a channel");
    let listener = channel.id(PortSpace::Tcp).expect("an id");
    listener.bind(("127.0.0.1", 0)).expect("a port");
    listener.listen(4).expect("a listener");
    let port = listener.port();
    let card = card(&end.qp, region.remote(0));
    parent.say("there", json!({"card": card, "port": port}));
    let (endpoint, _) = read_card(&parent.hear("connect"));
    let attr = lasting();
    end.qp.init(&attr).expect("INIT");
    end.qp.connect(&endpoint, &attr).expect("RTS");
    parent.say("connected", Value::Null);
    let (accepted, qp) = accept(&channel);
    parent.say("accepted", Value::Null);
    parent.hear("leave");
    leave_an_heir();
    parent.say("left", Value::Null);
    // Until it is killed.
    std::thread::sleep(Duration::from_secs(1000));
    drop((accepted, qp, listener));
}

fn accept(channel: &EventChannel) -> (Id, End) {
    let event = channel.get(DEADLINE).expect("no error").expect("a request");
    let EventKind::ConnectRequest { id, .. } = event.ack() else {
        panic!("another kind");
    };
    let mut end = end_of(&id);
    id.accept(&mut end.qp, &ConnParam::default())
        .expect("accepted");
    until("the connection", || {
        let event = channel.get(DEADLINE).expect("no error");
        event.is_some_and(|event| event.kind().event() == CmEvent::Established)
    });
    (id, end)
}

pub fn end_of(id: &Id) -> End {
    let pd = id.device().expect("no error").expect("bound").alloc_pd();
    let mut end = End::new(&pd, Mode::Inline, &init());
    id.init_qp(&mut end.qp, AccessFlags::empty()).expect("INIT");
    end
}

/// The next event: this one.
pub fn sees(channel: &EventChannel, event: CmEvent) -> bellwire::connect::cm::Event {
    let got = channel.get(DEADLINE).expect("no error").expect("an event");
    assert_eq!(got.kind().event(), event, "{got:?}");
    got
}

pub fn route(channel: &EventChannel, port: u16) -> Id {
    let id = channel.id(PortSpace::Tcp).expect("an id");
    id.resolve_addr(None, ("127.0.0.1", port), DEADLINE)
        .expect("an address");
    drop(sees(channel, CmEvent::AddrResolved));
    id.resolve_route(DEADLINE).expect("a route");
    drop(sees(channel, CmEvent::RouteResolved));
    id
}

/// What a peer has that dies so.
struct Peer {
    child: Child,
    end: End,
    remote: Remote,
    channel: EventChannel,
    id: Id,
    end_of_id: End,
    port: u16,
    _home: Home,
}

impl Peer {
    fn new() -> Self {
        let fabric = fabric_name();
        let home = Home::new(&fabric);
        let device = node(&fabric, Mode::Inline);
        let mut child = Child::start(ROLE, "heir".to_owned(), &home.0);
        child.hear("ready");
        child.send("open", json!({"fabric": fabric}));
        let there = child.hear("there");
        let port = number(&there, "port") as u16;
        let pd = device.alloc_pd();
        let mut end = End::new(&pd, Mode::Inline, &init());
        child.send("connect", card(&end.qp, end.region.remote(0)));
        child.hear("connected");
        let (endpoint, remote) = read_card(&there["card"]);
        // Four seconds over all retries: one that lives answers by then, and one that is gone is known.
        let attr = ConnectAttr {
            timeout: 17,
            retry_cnt: 3,
            ..ConnectAttr::default()
        };
        end.qp.init(&attr).expect("INIT");
        end.qp.connect(&endpoint, &attr).expect("RTS");
        let channel = EventChannel::on(&device).expect("a channel");
        let id = route(&channel, port);
        let mut end_of_id = end_of(&id);
        id.connect(&end_of_id.qp, &ConnParam::default())
            .expect("asked");
        drop(sees(&channel, CmEvent::ConnectResponse));
        id.establish(&mut end_of_id.qp).expect("established");
        child.hear("accepted");
        let mut peer = Self {
            child,
            end,
            remote,
            channel,
            id,
            end_of_id,
            port,
            _home: home,
        };
        assert_eq!(peer.write(), WcStatus::Success);
        peer
    }

    /// Writes to its memory, by ourselves.
    fn write(&mut self) -> WcStatus {
        let write = RdmaWrite {
            remote: self.remote,
        };
        self.end
            .post(1, write, Inline(b"are you there?"), SIGNALED)
            .expect("room");
        self.end.qp.sq().ring();
        self.end.outcome().1
    }

    /// It is gone, and everybody knows.
    fn is_gone(&mut self) {
        let mut last = WcStatus::Success;
        until("the end of the connection", || {
            last = self.write();
            last != WcStatus::Success
        });
        assert_eq!(last, WcStatus::RetryExcErr);
        let event = sees(&self.channel, CmEvent::Disconnected);
        assert!(*event.id() == self.id);
        drop(sees(&self.channel, CmEvent::TimewaitExit));
        let _still_there = &self.end_of_id;
        // Its listener, too.
        let again = route(&self.channel, self.port);
        let end = end_of(&again);
        again
            .connect(&end.qp, &ConnParam::default())
            .expect("asked");
        const NO_SUCH_SERVICE: i32 = 8;
        let event = sees(&self.channel, CmEvent::Rejected);
        assert_eq!(event.status(), NO_SUCH_SERVICE);
    }
}

/// One that is killed.
pub fn killed() {
    let mut peer = Peer::new();
    peer.child.send("leave", Value::Null);
    peer.child.hear("left");
    peer.child.kill();
    peer.is_gone();
}
