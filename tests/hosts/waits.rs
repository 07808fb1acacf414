//! Signals: waits under timers, waits that a signal ends, and threads of the library that take none.

use crate::Area;
use bellwire::connect::cm::{EventChannel, Listener, Retry};
use bellwire::connect::tcp;
use bellwire::fault::Fault;
use bellwire::link::{Link, LinkInit, LinkSet, LinkSetInit, LinkState, RecoverIn, Wait, pair};
use bellwire::soft::{HcaConfig, Mode};
use bellwire::{CqInit, Device, Error};
use bellwire_tests::child::Child;
use bellwire_tests::fixture::{DEADLINE, fabric_name, node};
use bellwire_tests::parent::Parent;
use serde_json::json;
use std::collections::BTreeSet;
use std::fs::read_to_string;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub const AREA: Area = Area {
    roles: &[
        ("waits-timer", timer_role),
        ("waits-signal", signal_role),
        ("waits-threads", threads_role),
    ],
    tests: &[
        ("waits_with_a_limit_end_in_time", with_a_limit),
        ("waits_without_a_limit_end_with_a_signal", without_a_limit),
        ("threads_of_the_library_take_no_signal", threads),
    ],
};

/// The limit of each wait.
const LIMIT: Duration = Duration::from_millis(60);

/// Signals that were handled. A handler may do little else.
static SIGNALS: AtomicU32 = AtomicU32::new(0);

extern "C" fn on_signal(_number: libc::c_int) {
    // Relaxed: a count.
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

/// Handles a signal, as signal(2) has it: with SA_RESTART.
fn handle(signal: libc::c_int) {
    let handler = on_signal as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: the handler only counts.
    assert_ne!(unsafe { libc::signal(signal, handler) }, libc::SIG_ERR);
}

/// A SIGALRM to this process each so many microseconds; zero: none any more.
fn set_timer(micros: i64) {
    let every = libc::timeval {
        tv_sec: 0,
        tv_usec: micros,
    };
    let timer = libc::itimerval {
        it_interval: every,
        it_value: every,
    };
    // SAFETY: reads one struct.
    let set = unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()) };
    assert_eq!(set, 0);
}

/// Starts a role and waits until it has ended well.
fn play(role: &str) {
    let home = tempfile::tempdir().expect("a folder");
    let mut child = Child::start(role, role.to_owned(), home.path());
    let said = child.hear("done");
    println!("{role}: {said}");
    child.end();
}

/// A link that works and sleeps, and its peer.
fn links(device: &Device) -> (Link, Link) {
    let pd = device.alloc_pd();
    let (here, there) = pair();
    let init = LinkInit {
        waitable: true,
        recover_in: RecoverIn::Thread,
        ..LinkInit::default()
    };
    let mut ends = [here, there].map(|end| Link::new(&pd, init.clone(), end).unwrap());
    let start = Instant::now();
    while ends.iter().any(|end| end.state() != LinkState::Ready) {
        assert!(start.elapsed() < DEADLINE, "the links do not connect");
        ends.iter_mut().for_each(|end| _ = end.poll(1, drop));
    }
    let [here, there] = ends;
    (here, there)
}

fn set(device: &Device) -> LinkSet {
    let init = LinkSetInit {
        links: 2,
        waitable: true,
        ..LinkSetInit::default()
    };
    LinkSet::new(&device.alloc_pd(), init).unwrap()
}

/// Everything that can be waited for, and a wait for each: with a limit, or without.
type Waiting<'w> = (&'static str, Box<dyn FnMut(Option<Duration>) -> Ended + 'w>);

/// How a wait has ended.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    TimeIsOver,
    BySignal,
    Otherwise(String),
}

impl Ended {
    fn of<T>(result: Result<Option<T>, Error>) -> Self {
        match result {
            Ok(None) => Self::TimeIsOver,
            Ok(Some(_)) => Self::Otherwise("something came".to_owned()),
            Err(Error::Interrupted) => Self::BySignal,
            Err(error) => Self::Otherwise(error.to_string()),
        }
    }
}

/// Calls `each` with every wait.
fn each_wait(mut each: impl FnMut(Waiting<'_>)) {
    let device = Device::soft(HcaConfig::default());
    let channel = EventChannel::on(&device).unwrap();
    each((
        "cm::EventChannel::get",
        Box::new(move |limit| Ended::of(channel.get(limit.unwrap_or(Duration::MAX)))),
    ));
    let mut listener = Listener::bind(&device, ("127.0.0.1", 0), 1, Retry::default()).unwrap();
    each((
        "cm::Listener::accept_within",
        Box::new(move |limit| Ended::of(listener.accept_within(limit.unwrap_or(Duration::MAX)))),
    ));
    let listener = tcp::Listener::bind(Some("127.0.0.1"), 0).unwrap();
    let accept = |limit: Option<Duration>| match listener.accept(limit.unwrap_or(Duration::MAX)) {
        Err(tcp::TcpError::TimedOut { .. }) => Ended::TimeIsOver,
        Err(tcp::TcpError::Interrupted) => Ended::BySignal,
        other => Ended::Otherwise(format!("{other:?}")),
    };
    each(("tcp::Listener::accept", Box::new(accept)));
    let how = |timeout| Wait {
        spin: Duration::ZERO,
        timeout,
        others: &[],
    };
    let found = |count: usize| (count != 0).then_some(count);
    let (mut link, _peer) = links(&device);
    let wait = |limit| Ended::of(link.wait(1, &how(limit), drop).map(found));
    each(("Link::wait", Box::new(wait)));
    let mut set = set(&device);
    let wait = |limit| Ended::of(set.wait(1, &how(limit), |_, _| ()).map(found));
    each(("LinkSet::wait", Box::new(wait)));
}

/// Of a connection with a silent peer, whose limits have no end.
fn with_a_silent_peer(act: impl FnOnce(&mut tcp::Connection)) {
    let listener = tcp::Listener::bind(Some("127.0.0.1"), 0).unwrap();
    let mut here = tcp::Connection::connect("localhost", listener.port(), DEADLINE).unwrap();
    let _there = listener.accept(DEADLINE).unwrap();
    act(&mut here);
}

fn timer_role() {
    handle(libc::SIGALRM);
    let mut ended = Vec::new();
    for micros in [1_000, 10_000] {
        each_wait(|(what, mut wait)| {
            let before = SIGNALS.load(Ordering::Relaxed);
            let start = Instant::now();
            set_timer(micros);
            let end = wait(Some(LIMIT));
            set_timer(0);
            assert!(start.elapsed() >= LIMIT, "{what} ends early");
            assert_eq!(end, Ended::TimeIsOver, "{what}");
            assert!(SIGNALS.load(Ordering::Relaxed) > before, "no signal");
            ended.push(what);
        });
        with_a_silent_peer(|peer| {
            set_timer(micros);
            let late = peer.barrier(LIMIT);
            set_timer(0);
            assert!(
                matches!(late, Err(tcp::TcpError::TimedOut { .. })),
                "{late:?}"
            );
        });
    }
    Parent::start().say("done", json!(ended));
}

fn with_a_limit() {
    play("waits-timer");
}

/// Calls `wait` while another thread signals this one, again and again: the first may come too early.
fn signalled(wait: impl FnOnce() -> Ended) -> Ended {
    // SAFETY: takes nothing.
    let this = unsafe { libc::pthread_self() };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Relaxed: the flag orders no other data.
            while !done.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
                // SAFETY: the thread waits for this one.
                unsafe { libc::pthread_kill(this, libc::SIGUSR1) };
            }
        });
        let ended = wait();
        done.store(true, Ordering::Relaxed);
        ended
    })
}

fn signal_role() {
    handle(libc::SIGUSR1);
    let mut ended = Vec::new();
    for mode in [Mode::Inline, Mode::Engine { threads: 1 }] {
        let device = Device::soft(HcaConfig {
            mode,
            ..HcaConfig::default()
        });
        let channel = device.create_comp_channel().unwrap();
        let _cq = device.create_cq_with(&CqInit {
            channel: Some(&channel),
            ..CqInit::new(4)
        });
        let get = || Ended::of(channel.get_cq_event().map(Some));
        assert_eq!(signalled(get), Ended::BySignal, "get_cq_event");
        let get = || Ended::of(device.get_async_event().map(Some));
        assert_eq!(signalled(get), Ended::BySignal, "get_async_event");
        ended.extend(["get_cq_event", "get_async_event"]);
    }
    each_wait(|(what, mut wait)| {
        assert_eq!(signalled(|| wait(None)), Ended::BySignal, "{what}");
        ended.push(what);
    });
    Parent::start().say("done", json!(ended));
}

fn without_a_limit() {
    play("waits-signal");
}

/// The threads of this process except the first: the name of each, and the signals that it blocks.
fn others() -> Vec<(String, u64)> {
    let this = std::process::id().to_string();
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let ids = tasks.map(|task| task.unwrap().file_name().into_string().unwrap());
    let status = ids
        .filter(|id| *id != this)
        .filter_map(|id| read_to_string(format!("/proc/self/task/{id}/status")).ok());
    let field = |status: &str, name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.expect("a field").trim().to_owned()
    };
    status
        .map(|status| {
            let blocked = u64::from_str_radix(&field(&status, "SigBlk:"), 16).unwrap();
            (field(&status, "Name:"), blocked)
        })
        .collect()
}

/// Everything that starts a thread, and a SIGTERM that has to reach sigwait(3).
fn threads_role() {
    let term = libc::SIGTERM;
    let fabric = fabric_name();
    let engine = Device::soft(HcaConfig {
        mode: Mode::Engine { threads: 2 },
        ..HcaConfig::default()
    });
    let node = node(&fabric, Mode::Inline);
    // Links that sleep, and whose listener has a thread that waits for their events.
    let mut listener = Listener::bind(&node, ("127.0.0.1", 0), 1, Retry::default()).unwrap();
    let at = ("127.0.0.1", listener.port());
    let connector = bellwire::connect::cm::Connector::new(&node, at, Retry::default());
    let init = LinkInit {
        waitable: true,
        recover_in: RecoverIn::Thread,
        ..LinkInit::default()
    };
    let pd = node.alloc_pd();
    let mut client = Link::new(&pd, init.clone(), connector.exchange().unwrap()).unwrap();
    let start = Instant::now();
    let incoming = loop {
        assert!(start.elapsed() < DEADLINE, "nobody connects");
        client.poll(1, drop);
        if let Some(incoming) = listener.accept().unwrap() {
            break incoming;
        }
    };
    let mut server = Link::new(&pd, init, incoming).unwrap();
    while [client.state(), server.state()] != [LinkState::Ready; 2] {
        assert!(start.elapsed() < DEADLINE, "the links do not connect");
        client.poll(1, drop);
        server.poll(1, drop);
    }
    // It recovers for as long as its peer is not polled.
    client.report(Fault::PeerRecovery);
    client.poll(1, drop);
    let due = [
        "bellwire-hca0",
        "bellwire-hca1",
        "bellwire-link",
        "bellwire-links",
        "bellwire-node",
    ];
    // A thread names itself.
    let names = loop {
        assert!(start.elapsed() < DEADLINE, "{:?}", others());
        let _resolved = tcp::Connection::connect("localhost", 1, DEADLINE);
        let names: BTreeSet<String> = others().into_iter().map(|(name, _)| name).collect();
        if due.iter().all(|name| names.contains(*name)) {
            break names;
        }
        client.poll(1, drop);
    };
    for (name, blocked) in others() {
        for signal in [
            libc::SIGHUP,
            libc::SIGINT,
            term,
            libc::SIGUSR1,
            libc::SIGALRM,
        ] {
            assert!(blocked >> (signal - 1) & 1 == 1, "{name} takes {signal}");
        }
        assert!(blocked >> (libc::SIGSEGV - 1) & 1 == 0, "{name} blocks it");
    }
    // From here on only sigwait takes it, and no thread of the library is started with this mask.
    // SAFETY: the set is emptied before it is used; the calls read and write these two values.
    let taken = unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, term);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        assert_eq!(libc::kill(libc::getpid(), term), 0);
        let mut taken = 0;
        assert_eq!(libc::sigwait(&raw const set, &raw mut taken), 0);
        taken
    };
    assert_eq!(taken, term);
    drop((engine, server, client));
    Parent::start().say("done", json!(names));
}

fn threads() {
    play("waits-threads");
}
