//! A thread with a real-time priority that waits for one without, on the same processor: the other one runs only
//! while the first one sleeps. What is counted is the processor time that a wait takes: a wait that only yields takes
//! it until the kernel throttles the thread, by default after 950 ms.

use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::link::{
    Link, LinkId, LinkInit, LinkSet, LinkSetInit, LinkState, LocalExchange, pair,
};
use bellwire::soft::Mode;
use bellwire::wqe::{RdmaWrite, Send};
use bellwire::wr::WcStatus;
use bellwire::{ConnectAttr, Pd, Region};
use bellwire_tests::child::Child;
use bellwire_tests::fixture::{
    DEADLINE, End, SIGNALED, connect_with, device, fabric_name, init, node, pair_with, region,
};
use bellwire_tests::leftovers::Home;
use bellwire_tests::parent::Parent;
use serde_json::{Value, json};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// What it is started as.
const ROLE: &str = "realtime";

/// What `main` knows of this area.
pub const AREA: crate::Area = crate::Area {
    roles: &[(ROLE, play)],
    tests: &[
        ("realtime::a_region_is_destroyed", || run("region")),
        ("realtime::a_queue_pair_is_destroyed", || run("queue pair")),
        ("realtime::a_node_is_shared", || run("node")),
        ("realtime::a_link_is_drained", || run("link")),
        ("realtime::a_set_is_drained", || run("set")),
    ],
};

/// Far below what the kernel allows (`sched_rt_runtime_us`), and far above the tries before a sleep.
const MOST: Duration = Duration::from_millis(200);

/// How often the waiting thread meets the other one.
const ROUNDS: u32 = 20;

fn run(case: &str) {
    let name = fabric_name();
    let home = Home::new(&name);
    let mut child = Child::start(ROLE, case.to_owned(), &home.0);
    child.send("case", json!({ "case": case, "fabric": name }));
    let said = child.hear("worst");
    if let Some(why) = said.as_str() {
        println!("ignored: {why}");
        return;
    }
    let worst = Duration::from_nanos(said.as_u64().expect("a time"));
    println!("{case}: at most {worst:?} of the processor for a wait");
    assert!(worst < MOST, "{case}: {worst:?}");
    child.end();
}

fn play() {
    let parent = Parent::start();
    let case = parent.hear("case");
    let text = |key: &str| case[key].as_str().expect("a text").to_owned();
    if let Err(why) = prepare() {
        parent.say("worst", Value::String(why));
        return;
    }
    let worst = match text("case").as_str() {
        "region" => destroyed_region(),
        "queue pair" => destroyed_qp(),
        "node" => shared_node(&text("fabric")),
        "link" => drained_link(),
        "set" => drained_set(),
        other => panic!("no such case: {other}"),
    };
    parent.say("worst", json!(worst.as_nanos() as u64));
    parent.wait_for_end();
}

/// All threads run on one processor, and no thread runs away: the kernel ends the process after so much time without
/// sleep at a real-time priority, and in any case after a while.
fn prepare() -> Result<(), String> {
    let limit = libc::rlimit {
        rlim_cur: 5_000_000,
        rlim_max: 5_000_000,
    };
    // SAFETY: plain calls; the set is initialized before it is used.
    unsafe {
        libc::alarm(120);
        assert_eq!(libc::setrlimit(libc::RLIMIT_RTTIME, &limit), 0);
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let size = size_of_val(&set);
        assert_eq!(libc::sched_getaffinity(0, size, &mut set), 0);
        let first = (0..libc::CPU_SETSIZE as usize).find(|&cpu| libc::CPU_ISSET(cpu, &set));
        libc::CPU_ZERO(&mut set);
        libc::CPU_SET(first.expect("a processor"), &mut set);
        // This thread is also the one that will listen to the parent, and those that it starts inherit it.
        let tasks = std::fs::read_dir("/proc/self/task").expect("threads");
        for task in tasks {
            let name = task.expect("a thread").file_name();
            let tid = name.to_string_lossy().parse().expect("a number");
            assert_eq!(libc::sched_setaffinity(tid, size, &set), 0);
        }
    }
    thread::spawn(|| real_time(libc::SCHED_FIFO))
        .join()
        .expect("no panic")
}

/// Gives this thread a policy of the scheduler.
fn real_time(policy: i32) -> Result<(), String> {
    let param = libc::sched_param {
        sched_priority: i32::from(policy == libc::SCHED_FIFO),
    };
    // SAFETY: a plain call.
    match unsafe { libc::sched_setscheduler(0, policy, &param) } {
        0 => Ok(()),
        _ => Err(format!(
            "no real-time priority here: {}",
            std::io::Error::last_os_error()
        )),
    }
}

/// The processor time of this thread.
fn used() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the result is this function's.
    let done = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(done, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Runs `other` again and again in a thread without priority, and meanwhile `waits` in one that has it. The most
/// processor time that a round took.
fn meet(
    mut other: impl FnMut() + std::marker::Send,
    mut waits: impl FnMut() + std::marker::Send,
) -> Duration {
    let stop = &AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(move || {
            // Relaxed: orders nothing else.
            while !stop.load(Ordering::Relaxed) {
                other();
            }
        });
        let worst = scope.spawn(move || {
            real_time(libc::SCHED_FIFO).expect("as before");
            let worst = (0..ROUNDS).map(|round| {
                // The other one gets the processor, at another place of its work each time.
                thread::sleep(Duration::from_micros(3000 + 137 * u64::from(round)));
                let before = used();
                waits();
                used() - before
            });
            let worst = worst.max().expect("rounds");
            real_time(libc::SCHED_OTHER).expect("less");
            // Relaxed: orders nothing else.
            stop.store(true, Ordering::Relaxed);
            worst
        });
        worst.join().expect("no panic")
    })
}

/// Writes large pieces, in whose copy the thread is nearly all the time.
fn writes(mut ends: (End, End), pd: Pd, to: Region) -> impl FnMut() + std::marker::Send {
    let source = region(&pd, LARGE);
    move || {
        // All of both, so that the peer lives as long.
        let ends = &mut ends;
        let here = &mut ends.0;
        let remote = to.remote(0);
        here.go(1, RdmaWrite { remote }, source.sge(0, LARGE as u32));
        good(here);
    }
}

fn good(end: &mut End) {
    assert_eq!(end.outcome().1, WcStatus::Success);
}

const LARGE: usize = 1 << 20;

fn destroyed_region() -> Duration {
    let device = device(Mode::Inline);
    let ends = pair_with(&device, Mode::Inline, &ConnectAttr::default());
    let pd = ends.0.qp.pd().clone();
    let other = writes(ends, pd.clone(), region(&pd, LARGE));
    meet(other, move || drop(region(&pd, 4096)))
}

fn destroyed_qp() -> Duration {
    let device = device(Mode::Inline);
    let ends = pair_with(&device, Mode::Inline, &ConnectAttr::default());
    let pd = ends.0.qp.pd().clone();
    let other = writes(ends, pd.clone(), region(&pd, LARGE));
    meet(other, move || {
        let attr = ConnectAttr::default();
        let (mut a, mut b) = (
            End::new(&pd, Mode::Inline, &init()),
            End::new(&pd, Mode::Inline, &init()),
        );
        connect_with(&mut a.qp, &mut b.qp, &attr);
        let remote = b.region.remote(0);
        a.go(1, RdmaWrite { remote }, a.region.sge(0, 64));
        good(&mut a);
        a.reset();
    })
}

/// Two nodes of a fabric, in one process: each thread has a connection between them, and so both use one link.
fn shared_node(fabric: &str) -> Duration {
    let nodes = [(); 2].map(|()| node(fabric, Mode::Inline));
    let pds = nodes.each_ref().map(|node| node.alloc_pd());
    let connected = || {
        let [mut a, mut b] = pds.each_ref().map(|pd| End::new(pd, Mode::Inline, &init()));
        connect_with(&mut a.qp, &mut b.qp, &ConnectAttr::default());
        (a, b)
    };
    let [theirs, mut ours] = [connected(), connected()];
    let other = writes(theirs, pds[0].clone(), region(&pds[1], LARGE));
    let pd = pds[1].clone();
    meet(other, move || {
        ours.1.receive(2, &[ours.1.region.sge(0, 4096)]);
        ours.0.go(1, Send {}, ours.0.region.sge(0, 4096));
        good(&mut ours.0);
        good(&mut ours.1);
        drop(region(&pd, 4096));
    })
}

/// Two links that work, by links or a set of one.
fn connected(a: &mut impl Polls, b: &mut Link) {
    let start = Instant::now();
    while !(a.is_ready() && b.state() == LinkState::Ready) {
        assert!(start.elapsed() < DEADLINE, "the links do not connect");
        a.poll_all();
        b.poll(16, drop);
    }
}

trait Polls {
    fn is_ready(&self) -> bool;
    fn poll_all(&mut self);
    fn send(&mut self);
}

impl Polls for Link {
    fn is_ready(&self) -> bool {
        self.state() == LinkState::Ready
    }

    fn poll_all(&mut self) {
        self.poll(16, drop);
    }

    fn send(&mut self) {
        self.post_inline(1, Send {}, b"a message", SIGNALED, Replay::Surface)
            .expect("room");
        self.ring();
    }
}

impl Polls for (LinkSet, LinkId) {
    fn is_ready(&self) -> bool {
        matches!(self.0.state(self.1), Ok(LinkState::Ready))
    }

    fn poll_all(&mut self) {
        self.0.poll(16, |_, _| ());
    }

    fn send(&mut self) {
        let mut link = self.0.link(self.1).expect("joined");
        link.post_inline(1, Send {}, b"a message", SIGNALED, Replay::Surface)
            .expect("room");
        link.ring();
    }
}

/// Drains a link with a message that its peer receives when the other thread gets to post a receive. `make` gives the end that is drained, and `drain` drains it.
fn drained<E: Polls>(
    make: impl Fn(&Pd, LocalExchange) -> E + std::marker::Send,
    drain: impl Fn(E) + std::marker::Send,
) -> Duration {
    let pd = device(Mode::Inline).alloc_pd();
    let peer = &Mutex::new(None::<Link>);
    let memory = region(&pd, 4096);
    let other = move || {
        if let Some(link) = &mut *peer.lock().expect("no panic")
            && link.state() == LinkState::Ready
        {
            let sges = [memory.sge(0, 64)];
            // SAFETY: the key is the region's, whose memory is only copied in and out.
            let _full = unsafe { link.post_recv(2, &sges) };
            link.ring_recv();
            link.poll(16, drop);
        }
        // Not only while it holds the lock.
        (0..1000).for_each(|_| std::hint::spin_loop());
    };
    meet(other, move || {
        let (here, there) = pair();
        let mut end = make(&pd, here);
        let mut link = Link::new(&pd, LinkInit::default(), there).expect("a link");
        connected(&mut end, &mut link);
        // The peer has no receive for it.
        end.send();
        *peer.lock().expect("no panic") = Some(link);
        drain(end);
        *peer.lock().expect("no panic") = None;
    })
}

fn drained_link() -> Duration {
    let make = |pd: &Pd, here| Link::new(pd, LinkInit::default(), here).expect("a link");
    drained(make, |mut link| {
        let drained = link.drain(DEADLINE, |sent| assert_eq!(sent.outcome, Outcome::Done));
        assert_eq!(drained.reported, 1);
    })
}

fn drained_set() -> Duration {
    let make = |pd: &Pd, here| {
        let mut set = LinkSet::new(pd, LinkSetInit::default()).expect("a set");
        let id = set.join(LinkInit::default(), here).expect("a link");
        (set, id)
    };
    drained(make, |(mut set, _)| {
        let drained = set.drain(DEADLINE, |_, sent| assert_eq!(sent.outcome, Outcome::Done));
        assert_eq!(drained.reported, 1);
    })
}
