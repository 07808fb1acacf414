//! Children of fork: what they inherit does nothing, what they open is theirs, and their parent does not notice
//! them.

use super::Area;
use bellwire::connect::cm::{EventChannel, PortSpace};
use bellwire::connect::tcp::{self, TcpError};
use bellwire::link::{Link, LinkInit, LinkSet, LinkSetInit, pair};
use bellwire::soft::Mode;
use bellwire::wqe::{Inline, Send};
use bellwire::wr::WcStatus;
use bellwire::{ClassLayout, ConnectAttr, Device, QpInit};
use bellwire_tests::child::Child;
use bellwire_tests::fixture::{
    self, DEADLINE, ENGINE, End, SIGNALED, fabric_name, init, node, slab,
};
use bellwire_tests::leftovers::Home;
use bellwire_tests::parent::{Parent, card, number, read_card};
use serde_json::{Value, json};
use std::any::Any;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

/// The roles and tests of this area.
pub const AREA: Area = Area {
    roles: &[
        ("fork-parent", parent),
        ("fork-dropper", dropper),
        ("fork-leaver", leaver),
    ],
    tests: TESTS,
};

const TESTS: &[(&str, fn())] = &[
    ("children_open_the_fabric_again_under_load", || {
        under_load("inline")
    }),
    (
        "children_open_the_fabric_again_under_load_of_an_engine",
        || under_load("engine"),
    ),
    ("children_drop_what_they_inherit", children_drop),
    (
        "children_keep_no_connection_of_their_parent",
        children_keep_nothing,
    ),
];

/// Messages of each child to each of its two peers.
const MESSAGES: u64 = 1000;

/// Children, one after the other.
const CHILDREN: u64 = 8;

/// Children that drop what they inherit.
const DROPPERS: u64 = 20;

/// Receives that a peer keeps posted.
const DEPTH: u64 = 16;

/// What ends a stream of numbers.
const LAST: u64 = u64::MAX;

/// Retries until the peer has receives: it may have no processor for long.
fn patient() -> ConnectAttr {
    ConnectAttr {
        rnr_retry: 7,
        ..ConnectAttr::default()
    }
}

/// An end with receives, which is not connected yet.
fn receiving(device: &Device, mode: Mode) -> End {
    let mut end = End::new(&device.alloc_pd(), mode, &init());
    end.qp.init(&patient()).expect("INIT");
    (0..DEPTH).for_each(|place| repost(&mut end, place));
    end
}

fn repost(end: &mut End, place: u64) {
    let sge = end.region.sge(place as usize * 64, 64);
    end.receive(place, &[sge]);
}

fn connect(end: &mut End, card: &Value) {
    let (endpoint, _) = read_card(card);
    end.qp.connect(&endpoint, &patient()).expect("RTS");
}

fn card_of(end: &End) -> Value {
    card(&end.qp, end.region.remote(0))
}

fn send(end: &mut End, message: u64) {
    end.post(message, Send {}, Inline(&message.to_ne_bytes()), SIGNALED)
        .expect("room");
    end.qp.sq().ring();
    assert_eq!(end.outcome(), (message, WcStatus::Success));
}

/// Receives messages in order until the last: how many.
fn receive_all(end: &mut End) -> u64 {
    for next in 0.. {
        let place = next % DEPTH;
        assert_eq!(end.outcome(), (place, WcStatus::Success));
        let mut bytes = [0; 8];
        end.region.read(place as usize * 64, &mut bytes);
        match u64::from_ne_bytes(bytes) {
            LAST => return next,
            message => assert_eq!(message, next),
        }
        repost(end, place);
    }
    unreachable!("the loop ends with the last message")
}

fn send_all(end: &mut End, count: u64) {
    (0..count).for_each(|message| send(end, message));
    send(end, LAST);
}

/// A child of fork, which ends by itself: at once, or by exit(3), which runs handlers and destructors.
struct Forked(i32);

impl Forked {
    fn new(by_exit: bool, run: impl FnOnce()) -> Self {
        // SAFETY: the child goes on with copies of all values, and without the other threads; that this works is
        // what is tested.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            // SAFETY: a plain system call. A child that waits for ever is a failure.
            unsafe { libc::alarm(60) };
            let run = std::panic::AssertUnwindSafe(run);
            let code = i32::from(std::panic::catch_unwind(run).is_err());
            // SAFETY: both end the process.
            unsafe {
                match by_exit {
                    true => libc::exit(code),
                    false => libc::_exit(code),
                }
            }
        }
        Self(pid)
    }

    fn succeeds(self) {
        let mut status = 0;
        // SAFETY: the status is writable.
        assert_eq!(unsafe { libc::waitpid(self.0, &mut status, 0) }, self.0);
        assert_eq!(status, 0, "the child failed: {status:#x}");
    }
}

/// Lines of JSON between a child and its parent.
struct Lines(BufReader<UnixStream>);

impl Lines {
    fn pair() -> (Self, Self) {
        let (a, b) = UnixStream::pair().expect("a pair");
        (Self(BufReader::new(a)), Self(BufReader::new(b)))
    }

    fn say(&mut self, value: &Value) {
        writeln!(self.0.get_mut(), "{value}").expect("the other end listens");
    }

    fn hear(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a line");
        serde_json::from_str(&line).expect("JSON")
    }
}

/// What a child does: opens the fabric, and sends to its parent and to another process.
fn afresh(fabric: &str, mut parent: Lines) {
    let device = Device::open(&format!("soft:{fabric}")).expect("a node");
    assert!(!device.is_inherited());
    let mut ends = [(); 2].map(|()| receiving(&device, Mode::Inline));
    for end in &mut ends {
        parent.say(&card_of(end));
        connect(end, &parent.hear());
    }
    parent.hear();
    let [to_parent, to_other] = &mut ends;
    send_all(to_parent, MESSAGES);
    send_all(to_other, MESSAGES);
    // Answers, so that this end has received as well.
    assert_eq!(receive_all(to_parent), MESSAGES);
}

/// A process with a connection that works all the time, objects that come and go, and children.
fn parent() {
    let said = Parent::start();
    let order = said.hear("open");
    let fabric = order["fabric"].as_str().expect("a name").to_owned();
    let mode = match order["mode"].as_str() {
        Some("engine") => ENGINE,
        _ => Mode::Inline,
    };
    let device = match mode {
        Mode::Inline => Device::open(&format!("soft:{fabric}")).expect("a node"),
        Mode::Engine { .. } => node(&fabric, mode),
    };
    let mut load = receiving(&device, mode);
    said.say("load", card_of(&load));
    connect(&mut load, &said.hear("load"));
    let stop = AtomicBool::new(false);
    let stopped = || stop.load(Ordering::Relaxed);
    let count = std::thread::scope(|scope| {
        let loaded = scope.spawn(|| {
            let mut count = 0;
            while !stopped() {
                send(&mut load, count);
                count += 1;
            }
            send(&mut load, LAST);
            count
        });
        // Takes the locks of the library again and again: a fork comes while they are held.
        scope.spawn(|| {
            while !stopped() {
                let again = Device::open(&format!("soft:{fabric}")).expect("a node");
                let soft = Device::open("soft").expect("the process's device");
                for device in [again, soft] {
                    drop(End::new(&device.alloc_pd(), mode, &QpInit::default()));
                }
            }
        });
        for child in 0..CHILDREN {
            let (mut ours, theirs) = Lines::pair();
            let forked = Forked::new(child % 2 == 0, || afresh(&fabric, theirs));
            let mut end = receiving(&device, mode);
            let of_child = ours.hear();
            ours.say(&card_of(&end));
            connect(&mut end, &of_child);
            said.say("child", ours.hear());
            ours.say(&said.hear("peer"));
            ours.say(&Value::Null);
            assert_eq!(receive_all(&mut end), MESSAGES);
            send_all(&mut end, MESSAGES);
            forked.succeeds();
        }
        stop.store(true, Ordering::Relaxed);
        loaded.join().expect("no request fails")
    });
    said.say("count", json!({"sent": count}));
    said.wait_for_end();
}

/// Children exchange messages with their parent and with this process, and no message of the parent is lost.
fn under_load(mode: &str) {
    let fabric = fabric_name();
    let home = Home::new(&fabric);
    let device = node(&fabric, Mode::Inline);
    let mut child = Child::start("fork-parent", "the parent".to_owned(), &home.0);
    child.send("open", json!({"fabric": fabric, "mode": mode}));
    let mut load = receiving(&device, Mode::Inline);
    let theirs = child.hear("load");
    connect(&mut load, &theirs);
    child.send("load", card_of(&load));
    let loaded = std::thread::spawn(move || receive_all(&mut load));
    for _ in 0..CHILDREN {
        let theirs = child.hear("child");
        let mut end = receiving(&device, Mode::Inline);
        connect(&mut end, &theirs);
        child.send("peer", card_of(&end));
        assert_eq!(receive_all(&mut end), MESSAGES);
    }
    let sent = number(&child.hear("count"), "sent");
    assert_eq!(loaded.join().expect("no receive fails"), sent);
    assert!(sent > 0);
    child.end();
}

/// A value of each kind that a program can have.
fn everything(fabric: &str) -> Vec<Box<dyn Any + std::marker::Send>> {
    let mut all: Vec<Box<dyn Any + std::marker::Send>> = Vec::new();
    for device in [
        Device::open("soft").expect("a device"),
        Device::open(&format!("soft:{fabric}")).expect("a node"),
        node(fabric, ENGINE),
        fixture::device(ENGINE),
    ] {
        let pd = device.alloc_pd();
        let blocks = slab(
            &pd,
            &[ClassLayout {
                size: 256,
                count: 8,
            }],
        );
        all.push(Box::new(blocks.take(256).expect("a block")));
        all.push(Box::new(blocks));
        let (a, b) = fixture::pair_with(&device, Mode::Inline, &ConnectAttr::default());
        all.push(Box::new((a, b)));
        all.push(Box::new(device.create_comp_channel().expect("a channel")));
        let channel = EventChannel::on(&device).expect("a channel");
        let listener = channel.id(PortSpace::Tcp).expect("an id");
        listener.bind(("127.0.0.1", 0)).expect("a port");
        listener.listen(1).expect("a listener");
        all.push(Box::new((listener, channel)));
        let (here, there) = pair();
        let of_link = || LinkInit {
            waitable: true,
            ..LinkInit::default()
        };
        let of_set = || LinkSetInit {
            links: 4,
            waitable: true,
            ..LinkSetInit::default()
        };
        all.push(Box::new(Link::new(&pd, of_link(), here).expect("a link")));
        all.push(Box::new(Link::new(&pd, of_link(), there).expect("a link")));
        all.push(Box::new(LinkSet::new(&pd, of_set()).expect("a set")));
        all.push(Box::new((pd, device)));
    }
    all
}

/// A process whose children drop all that it has, while its threads hold locks.
fn dropper() {
    let said = Parent::start();
    let fabric = said.hear("open")["fabric"]
        .as_str()
        .expect("a name")
        .to_owned();
    let mut all = Some(everything(&fabric));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    drop(everything(&fabric));
                }
            });
        }
        for child in 0..DROPPERS {
            let all = &mut all;
            let fabric = &fabric;
            let forked = Forked::new(child % 2 == 0, move || {
                drop(all.take());
                // What is opened afresh works beside what was dropped.
                drop(everything(fabric));
            });
            forked.succeeds();
            said.say("child", json!(child));
        }
        stop.store(true, Ordering::Relaxed);
    });
    // It all works on: links connect, and are closed.
    drop(all);
    said.say("done", Value::Null);
    said.wait_for_end();
}

/// No destructor waits, writes, or ends the process.
fn children_drop() {
    let fabric = fabric_name();
    let home = Home::new(&fabric);
    let mut child = Child::start("fork-dropper", "the parent".to_owned(), &home.0);
    child.send("open", json!({"fabric": fabric}));
    for _ in 0..DROPPERS {
        child.hear("child");
    }
    child.hear("done");
    child.end();
}

/// The sockets and memory files that this process has open.
fn descriptors() -> usize {
    let open = std::fs::read_dir("/proc/self/fd").expect("descriptors");
    let targets = open.flatten().flat_map(|fd| std::fs::read_link(fd.path()));
    let of_library = |target: &std::path::PathBuf| {
        let target = target.to_string_lossy();
        target.starts_with("socket:") || target.contains("memfd:")
    };
    targets.filter(of_library).count()
}

/// A process that closes everything, while a child of its lives on.
fn leaver() {
    let said = Parent::start();
    let before = descriptors();
    let order = said.hear("open");
    let fabric = order["fabric"].as_str().expect("a name");
    let port = number(&order, "port") as u16;
    let device = Device::open(&format!("soft:{fabric}")).expect("a node");
    let mut end = receiving(&device, Mode::Inline);
    // The device's memory: no other process is given its descriptor.
    let blocks = slab(
        &device.alloc_pd(),
        &[ClassLayout {
            size: 4096,
            count: 8,
        }],
    );
    let tcp = tcp::Connection::connect("127.0.0.1", port, DEADLINE).expect("a connection");
    let listening = tcp::Listener::bind(Some("127.0.0.1"), 0).expect("a port");
    let channel = EventChannel::on(&device).expect("a channel");
    let listener = channel.id(PortSpace::Tcp).expect("an id");
    listener.bind(("127.0.0.1", 0)).expect("a port");
    listener.listen(1).expect("a listener");
    said.say("card", card_of(&end));
    connect(&mut end, &said.hear("connect"));
    send(&mut end, 0);
    let lid = device.query_port(1).expect("a port").lid;
    assert!(descriptors() > before);
    let (mut ours, mut theirs) = Lines::pair();
    let forked = Forked::new(false, move || {
        // Beside its own end of the pair, what was there before and is no socket of the library: the test's own
        // region, which lends its descriptor to the program.
        theirs.say(&json!(descriptors()));
        theirs.hear();
    });
    // The two ends of the pair, and the memory of the end's region.
    assert_eq!(ours.hear(), json!(before + 3));
    drop((end, blocks, tcp, listening, listener, channel, device));
    said.say("closed", json!({"lid": lid}));
    said.hear("end");
    ours.say(&Value::Null);
    forked.succeeds();
    said.wait_for_end();
}

/// Peers notice that a process has closed its connections, and another node gets its place, although a child of
/// the process lives on.
fn children_keep_nothing() {
    let fabric = fabric_name();
    let home = Home::new(&fabric);
    let device = node(&fabric, Mode::Inline);
    let listener = tcp::Listener::bind(Some("127.0.0.1"), 0).expect("a port");
    let mut child = Child::start("fork-leaver", "the parent".to_owned(), &home.0);
    child.send("open", json!({"fabric": fabric, "port": listener.port()}));
    let mut tcp = listener.accept(DEADLINE).expect("a connection");
    let mut end = receiving(&device, Mode::Inline);
    let theirs = child.hear("card");
    connect(&mut end, &theirs);
    child.send("connect", card_of(&end));
    assert_eq!(end.outcome(), (0, WcStatus::Success));
    let closed = child.hear("closed");
    let gone = tcp.receive(&mut [0], DEADLINE);
    assert!(matches!(gone, Err(TcpError::Closed { .. })), "{gone:?}");
    let next = node(&fabric, Mode::Inline);
    let lid = next.query_port(1).expect("a port").lid;
    assert_eq!(u64::from(lid), number(&closed, "lid"));
    child.send("end", Value::Null);
    child.end();
}
