//! A process that may have no more descriptors while others connect to it: it waits until it may, without
//! spinning, and then takes them in. Its listener of links names the limit.

use bellwire::Device;
use bellwire::connect::cm::{ConnParam, EventChannel, Id, Listener, PortSpace, Retry};
use bellwire::fault::CmEvent;
use bellwire::soft::Mode;
use bellwire_tests::child::Child;
use bellwire_tests::fixture::{DEADLINE, End, fabric_name, init, node, until};
use bellwire_tests::leftovers::Home;
use bellwire_tests::parent::{Parent, number};
use bellwire_tests::readiness;
use serde_json::{Value, json};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

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
fn names_the_limit(listener: &mut Listener) {
    match listener.accept_within(DEADLINE) {
        Err(error) => assert!(error.to_string().contains("RLIMIT_NOFILE is"), "{error}"),
        Ok(incoming) => panic!(
            "{}",
            if incoming.is_some() {
                "accepted"
            } else {
                "silent"
            }
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
    let channel = EventChannel::on(&device).expect("a channel");
    let listener = channel.id(PortSpace::Tcp).expect("an id");
    listener.bind(("127.0.0.1", 0)).expect("a port");
    listener.listen(4).expect("a listener");
    let mut links =
        Listener::bind(&device, ("127.0.0.1", 0), 4, Retry::default()).expect("a listener");
    let (endpoint, qp) = {
        let end = End::new(&device.alloc_pd(), Mode::Inline, &init());
        (end.qp.endpoint(), end)
    };
    parent.say(
        "there",
        json!({"port": listener.port(), "links": links.port(), "lid": endpoint.lid}),
    );
    parent.hear("starve");
    let next = next_descriptor();
    limit(3);
    parent.say("starved", Value::Null);
    parent.hear("look");
    let before = processor_time();
    std::thread::sleep(WHILE);
    let none = channel.get(WHILE).expect("no error");
    assert!(none.is_none(), "{none:?}");
    assert!(!readiness::readable(channel.as_fd(), Duration::ZERO));
    let spent = processor_time() - before;
    names_the_limit(&mut links);
    // Enough for the connection, and not for what else it needs.
    limit(next + 1);
    names_the_limit(&mut links);
    limit(1024);
    parent.say("looked", json!({"spent": spent.as_millis() as u64}));
    let event = channel.get(DEADLINE).expect("no error").expect("a request");
    assert_eq!(event.kind().event(), CmEvent::ConnectRequest);
    parent.say("served", Value::Null);
    parent.hear("end");
    drop((event, listener, links, qp));
}

/// Asks for a connection with this port of the child.
fn ask(channel: &EventChannel, port: u16, end: &mut End) -> Id {
    let id = channel.id(PortSpace::Tcp).expect("an id");
    id.resolve_addr(None, ("127.0.0.1", port), DEADLINE)
        .expect("an address");
    until("the address", || {
        channel.try_get().expect("no error").is_some()
    });
    id.resolve_route(DEADLINE).expect("a route");
    until("the route", || {
        channel.try_get().expect("no error").is_some()
    });
    id.init_qp(&mut end.qp, bellwire::AccessFlags::empty())
        .expect("INIT");
    id.connect(&end.qp, &ConnParam::default()).expect("asked");
    id
}

/// Others connect meanwhile.
pub fn descriptors() {
    let fabric = fabric_name();
    let home = Home::new(&fabric);
    let mut child = Child::start(ROLE, "starved".to_owned(), &home.0);
    child.hear("ready");
    child.send("open", json!({"fabric": fabric}));
    let there = child.hear("there");
    child.send("starve", Value::Null);
    child.hear("starved");
    // A node that comes is not taken in, and does not wait for it.
    let device = node(&fabric, Mode::Inline);
    let channel = EventChannel::on(&device).expect("a channel");
    let _asked = ["port", "links"].map(|port| {
        let mut end = End::new(&device.alloc_pd(), Mode::Inline, &init());
        let id = ask(&channel, number(&there, port) as u16, &mut end);
        (id, end)
    });
    child.send("look", Value::Null);
    let spent = number(&child.hear("looked"), "spent");
    // Of a second, and not waited for: a thread that spins has nearly all of it.
    assert!(spent < 200, "{spent} ms of processor time");
    child.hear("served");
    child.send("end", Value::Null);
    child.end();
}
