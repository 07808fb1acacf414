//! A process that may have no more descriptors while others connect to it: it waits until it may, without
//! spinning, and then takes them in. Its listeners name the limit, and so does what their peers read.

use bellwire::connect::cm::{
    ConnParam, Connector, Event, EventChannel, Id, Listener, PortSpace, Retry,
};
use bellwire::fault::CmEvent;
use bellwire::fault::plan::Limits;
use bellwire::link::{Link, LinkInit, LinkState};
use bellwire::soft::Mode;
use bellwire::{Device, Error};
use bellwire_tests::child::Child;
use bellwire_tests::fixture::{DEADLINE, End, fabric_name, init, node, until};
use bellwire_tests::leftovers::Home;
use bellwire_tests::parent::{Parent, number};
use bellwire_tests::readiness;
use serde_json::{Value, json};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What it is started as.
pub const ROLE: &str = "starved";

/// For how long it is looked at.
const WHILE: Duration = Duration::from_millis(500);

/// Descriptors from here on are refused, or allowed again.
fn limit(most: libc::rlim_t) {
    let limit = libc::rlimit {
        rlim_cur: most,
        rlim_max: 1024,
    };
    // SAFETY: a valid limit.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    assert_eq!(set, 0);
}

/// Processor time of all threads.
fn processor_time() -> Duration {
    // SAFETY: rusage is plain numbers, for which zero is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: a valid place for the answer.
    let got = unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    assert_eq!(got, 0);
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// The number of the next descriptor that is opened.
fn next_descriptor() -> libc::rlim_t {
    let file = File::open("/dev/null").expect("a descriptor");
    file.as_raw_fd() as libc::rlim_t
}

/// A peer waits, and the listener says what it lacks.
fn names_the_limit<T>(what: &str, accepted: Result<Option<T>, Error>) {
    match accepted {
        Err(error) => assert!(
            error.to_string().contains("RLIMIT_NOFILE is"),
            "{what}: {error}"
        ),
        Ok(got) => panic!(
            "{what}: {}",
            if got.is_some() { "accepted" } else { "silent" }
        ),
    }
}

/// Plays the role.
pub fn play() {
    let parent = Parent::start();
    parent.say("ready", Value::Null);
    let order = parent.hear("open");
    let fabric = order["fabric"].as_str().expect("a name");
    let device = Device::open(&format!("soft:{fabric}")).expect("a node");
    let open = || EventChannel::on(&device).expect("a channel");
    let (channel, lookups) = (open(), open());
    let listen = |channel: &EventChannel, space| {
        let listener = channel.id(space).expect("an id");
        listener.bind(("127.0.0.1", 0)).expect("a port");
        listener.listen(4).expect("a listener");
        listener
    };
    let listener = listen(&channel, PortSpace::Tcp);
    let services = listen(&lookups, PortSpace::Udp);
    let mut links =
        Listener::bind(&device, ("127.0.0.1", 0), 4, Retry::default()).expect("a listener");
    parent.say(
        "there",
        json!({"port": listener.port(), "services": services.port(), "links": links.port()}),
    );
    parent.hear("starve");
    let next = next_descriptor();
    limit(3);
    parent.say("starved", Value::Null);
    parent.hear("look");
    let before = processor_time();
    std::thread::sleep(WHILE);
    let start = Instant::now();
    let mut named = 0;
    while start.elapsed() < WHILE {
        names_the_limit("an id", channel.get(DEADLINE));
        named += 1;
    }
    let spent = processor_time() - before;
    // The descriptor is quiet between two errors, and links go on by themselves.
    while let Err(error) = channel.try_get() {
        println!("{error}");
    }
    assert!(!readiness::readable(channel.as_fd(), Duration::ZERO));
    names_the_limit("a lookup", lookups.get(DEADLINE));
    names_the_limit("a link", links.accept_within(DEADLINE));
    parent.say(
        "looked",
        json!({"spent": spent.as_millis() as u64, "named": named}),
    );
    // Enough for the connection, and not for what else it needs.
    parent.hear("allow one");
    limit(next + 1);
    parent.say("allowed", Value::Null);
    names_the_limit("an id", channel.get(DEADLINE));
    names_the_limit("a lookup", lookups.get(DEADLINE));
    names_the_limit("a link", links.accept_within(DEADLINE));
    // The peers ask one after the other: each is turned away.
    let turning_away = Arc::new(AtomicBool::new(true));
    let turns = std::thread::spawn({
        let turning_away = turning_away.clone();
        move || {
            // Relaxed: a flag on its own.
            while turning_away.load(Ordering::Relaxed) {
                let _named = (channel.try_get(), lookups.try_get(), links.accept());
                std::thread::sleep(Duration::from_millis(1));
            }
            (channel, links)
        }
    });
    parent.hear("allow all");
    turning_away.store(false, Ordering::Relaxed);
    let (channel, links) = turns.join().expect("no panic");
    limit(1024);
    parent.say("allowed", Value::Null);
    let event = loop {
        match channel.get(DEADLINE) {
            Ok(event) => break event.expect("a request"),
            // Of the last attempt before.
            Err(error) => println!("{error}"),
        }
    };
    assert_eq!(event.kind().event(), CmEvent::ConnectRequest);
    parent.say("served", Value::Null);
    parent.hear("end");
    drop((event, listener, services, links));
}

/// Waits for the next event, and returns it with its id.
fn next(channel: &EventChannel) -> Event {
    channel.get(DEADLINE).expect("no error").expect("an event")
}

/// An id for which the route to this port of the child is resolved.
fn routed(channel: &EventChannel, space: PortSpace, port: u16) -> Id {
    let id = channel.id(space).expect("an id");
    id.resolve_addr(None, ("127.0.0.1", port), DEADLINE)
        .expect("an address");
    assert_eq!(next(channel).kind().event(), CmEvent::AddrResolved);
    id.resolve_route(DEADLINE).expect("a route");
    assert_eq!(next(channel).kind().event(), CmEvent::RouteResolved);
    id
}

/// Asks for a connection with this port of the child.
fn ask(channel: &EventChannel, port: u16, end: &mut End) -> Id {
    let id = routed(channel, PortSpace::Tcp, port);
    id.init_qp(&mut end.qp, bellwire::AccessFlags::empty())
        .expect("INIT");
    id.connect(&end.qp, &ConnParam::default()).expect("asked");
    id
}

/// A link with this port of the child, which ends: why it could not connect.
fn why_no_link(device: &Device, port: u16, limits: Limits) -> String {
    let retry = Retry {
        step: Duration::from_millis(500),
        attempts: 2,
        ..Retry::default()
    };
    let connector = Connector::new(device, ("127.0.0.1", port), retry);
    let init = LinkInit {
        limits,
        ..LinkInit::default()
    };
    let exchange = connector.exchange().expect("an exchange");
    let mut link = Link::new(&device.alloc_pd(), init, exchange).expect("a link");
    until("the end", || {
        link.poll(16, drop);
        matches!(link.state(), LinkState::Ended(_))
    });
    let error = link.exchange_error().expect("a reason");
    error.to_string()
}

/// Others connect meanwhile.
pub fn descriptors() {
    let fabric = fabric_name();
    let home = Home::new(&fabric);
    let mut child = Child::start(ROLE, "starved".to_owned(), &home.0);
    child.hear("ready");
    child.send("open", json!({"fabric": fabric}));
    let there = child.hear("there");
    let [port, services, links] =
        ["port", "services", "links"].map(|name| number(&there, name) as u16);
    // It waits for a link with the child's node, which needs descriptors there.
    let device = node(&fabric, Mode::Inline);
    child.send("starve", Value::Null);
    child.hear("starved");
    // A node that comes is not taken in, and does not wait for it.
    drop(node(&fabric, Mode::Inline));
    let channel = EventChannel::on(&device).expect("a channel");
    let end = || End::new(&device.alloc_pd(), Mode::Inline, &init());
    let (mut first, mut second) = (end(), end());
    let asked = ask(&channel, port, &mut first);
    let looked = routed(&channel, PortSpace::Udp, services);
    looked.lookup(b"").expect("asked");
    let waiting = ask(&channel, links, &mut second);
    child.send("look", Value::Null);
    let said = child.hear("looked");
    let (spent, named) = (number(&said, "spent"), number(&said, "named"));
    // Of a second, and not waited for: a thread that spins has nearly all of it.
    assert!(spent < 200, "{spent} ms of processor time");
    assert!((1..=20).contains(&named), "{named} errors in a second");
    // No message can be sent by a process that cannot accept: the connector says what it knows.
    for limits in [Limits::default(), short()] {
        let why = why_no_link(&device, links, limits);
        assert!(why.contains("has not read the request"), "{why}");
        assert!(why.contains("no descriptor"), "{why}");
    }
    drop((asked, looked, waiting));
    while channel.try_get().expect("no error").is_some() {}

    child.send("allow one", Value::Null);
    child.hear("allowed");
    let mut third = end();
    let asked = ask(&channel, port, &mut third);
    let turned_away = next(&channel);
    let status = turned_away.kind().status();
    assert_eq!(
        (turned_away.kind().event(), status),
        (CmEvent::Rejected, 3),
        "{turned_away:?}"
    );
    says_what_is_lacking(asked.why_refused());
    let looked = routed(&channel, PortSpace::Udp, services);
    looked.lookup(b"").expect("asked");
    let turned_away = next(&channel);
    let status = turned_away.kind().status();
    assert_eq!(
        (turned_away.kind().event(), status),
        (CmEvent::Unreachable, 3),
        "{turned_away:?}"
    );
    says_what_is_lacking(looked.why_refused());
    for limits in [Limits::default(), short()] {
        says_what_is_lacking(Some(why_no_link(&device, links, limits)));
    }

    child.send("allow all", Value::Null);
    child.hear("allowed");
    let mut fourth = end();
    let _asked = ask(&channel, port, &mut fourth);
    child.hear("served");
    child.send("end", Value::Null);
    child.end();
}

/// A link gives up before its connector does.
fn short() -> Limits {
    Limits {
        recovery: Duration::from_millis(700),
        step: Duration::from_millis(600),
        ..Limits::default()
    }
}

fn says_what_is_lacking(why: Option<String>) {
    let why = why.expect("a reason");
    assert!(
        why.contains("the listener's process has no descriptor or no memory left"),
        "{why}"
    );
}
