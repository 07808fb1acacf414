//! A process that is attacked by one peer and goes on talking to another. It reports what became of its
//! requests, and what of its memory; and how long the other peer's answers take.

use crate::attacker::MEMORY_NAME;
use crate::fence::Fence;
use crate::script::mix;
use bellwire::memory::Mapping;
use bellwire::state::QpState;
use bellwire::wqe::*;
use bellwire::wr::Remote;
use bellwire::{AccessFlags, ConnectAttr, Cq, Device, Endpoint, Pd, Qp, QpInit, Region};
use bellwire_tests::fixture::{ALL, DEADLINE, End, SIGNALED, init, post, post_recv};
use bellwire_tests::parent::{Parent, card, number, read_card};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What it is started as, and its other peer.
pub const ROLE: &str = "target";
pub const FRIEND: &str = "friend";

/// Bytes of the memory that is opened to attackers, and of what nobody is to touch.
const BYTES: usize = 1 << 16;

const RECEIVES: u64 = 4;
const RECEIVE: u64 = 1 << 40;

/// How long the peer may take: few retries, so that one that does not answer is known soon.
fn patience() -> ConnectAttr {
    ConnectAttr {
        timeout: 12,
        retry_cnt: 3,
        rnr_retry: 1,
        min_rnr_timer: 1,
        ..ConnectAttr::default()
    }
}

/// Answers of the other peer: how long each took.
struct Echo {
    stop: Arc<AtomicBool>,
    times: Arc<Mutex<Vec<Duration>>>,
    thread: JoinHandle<()>,
}

impl Echo {
    fn start(mut end: End) -> Self {
        let (stop, times) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let (stopped, all) = (stop.clone(), Arc::clone(&times));
        let thread = std::thread::spawn(move || {
            let mut wr_id = 0;
            // Relaxed: a flag on its own.
            while !stopped.load(Ordering::Relaxed) {
                end.receive(RECEIVE, &[end.region.sge(0, 64)]);
                let start = Instant::now();
                end.go(wr_id, Send {}, Inline(&wr_id.to_ne_bytes()));
                for _ in 0..2 {
                    let done = end.wait();
                    assert!(done.result.is_ok(), "the other connection failed: {done:?}");
                }
                let all: &Mutex<Vec<Duration>> = &all;
                all.lock().expect("no panic").push(start.elapsed());
                wr_id += 1;
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        Self {
            stop,
            times,
            thread,
        }
    }

    /// Those since the last time.
    fn take(&self) -> Value {
        let mut times = std::mem::take(&mut *self.times.lock().expect("no panic"));
        times.sort();
        let at = |part: usize| {
            times
                .get(times.len() * part / 100)
                .map_or(0, Duration::as_micros)
        };
        let most = times.last().map_or(0, Duration::as_micros);
        json!({"count": times.len(), "median": at(50) as u64, "most": most as u64})
    }

    fn end(self) {
        // Relaxed: a flag on its own.
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("answers");
    }
}

/// The connection to the hostile peer.
struct Attacked {
    qp: Qp,
    cq: Cq,
    peer: Endpoint,
    remote: Remote,
}

struct Target {
    pd: Pd,
    /// Opened to everybody who has a connection.
    open: Region,
    /// Opened to nobody.
    local: Fence,
    /// Not registered at all.
    closed: Vec<u64>,
    secret: u64,
    /// Where the attacker's memory was mapped, and what is there now.
    occupied: Option<(usize, usize)>,
}

impl Target {
    fn meet(&self) -> Attacked {
        let init = QpInit {
            max_recv_wr: 2 * RECEIVES as u32,
            ..init()
        };
        let (sends, receives) = init.cq_entries();
        let device = self.pd.device();
        let mut cq = device.create_cq(4 * (sends + receives)).expect("a queue");
        Attacked {
            qp: self.pd.create_qp(&mut cq, &init).expect("a queue pair"),
            cq,
            peer: Endpoint::default(),
            remote: Remote::default(),
        }
    }

    fn connect(&self, of: &mut Attacked) {
        let attr = patience();
        of.qp.init(&attr).expect("INIT");
        for number in 0..RECEIVES {
            let place = self.open.sge(BYTES / 2, 8192);
            post_recv(&mut of.qp, RECEIVE | number, &[place]).expect("room");
        }
        of.qp.rq().ring();
        if let Err(error) = of.qp.connect(&of.peer, &attr) {
            assert_eq!(of.qp.state(), QpState::Err, "{error}");
        }
    }

    /// Does a request, and waits for it, however it ends. What was broken is connected again before.
    fn request(&self, of: &mut Attacked, what: &str, remote: Remote) -> String {
        // What the attacker has sent may end the new connection before it is in RTS.
        for _ in 0..100 {
            if of.qp.state() == QpState::Rts {
                break;
            }
            of.qp.reset(&mut of.cq, |_, _| {}).expect("from any state");
            self.connect(of);
        }
        let (out, into) = (self.open.sge(0, 6000), self.open.sge(8192, 6000));
        let qp = &mut of.qp;
        let posted = match what {
            "WRITE of 8" => post(qp, 0, RdmaWrite { remote }, Inline(&[7; 8]), SIGNALED),
            "WRITE" => post(qp, 0, RdmaWrite { remote }, out, SIGNALED),
            "READ" => post(qp, 0, RdmaRead { remote }, into, SIGNALED),
            "ADD" => {
                let add = AtomicFetchAndAdd { remote, add: 1 };
                post(qp, 0, add, self.open.sge(8192, 8), SIGNALED)
            }
            "SEND of 8" => post(qp, 0, Send {}, Inline(&[7; 8]), SIGNALED),
            "SEND" => post(qp, 0, Send {}, out, SIGNALED),
            _ => panic!("no such request: {what}"),
        };
        posted.expect("room");
        qp.sq().ring();
        let start = Instant::now();
        let mut status = None;
        while status.is_none() {
            of.cq.poll(8, |done| {
                if done.wr_id & RECEIVE == 0 {
                    status = Some(done.status());
                }
            });
            assert!(start.elapsed() < DEADLINE, "{what} hangs");
        }
        format!("{:?}", status.expect("just so"))
    }

    fn go(&self, of: &mut Attacked, order: &Value) -> Value {
        let all = ["WRITE of 8", "WRITE", "READ", "ADD", "SEND of 8", "SEND"];
        let mut remote = of.remote;
        if let Some(addr) = order["addr"].as_u64() {
            remote.addr = addr;
            remote.rkey = number(order, "rkey") as u32;
        }
        let step = order["step"].as_u64().unwrap_or(0);
        let mut lines = Vec::new();
        for round in 0..order["rounds"].as_u64().unwrap_or(1) {
            remote.addr += if round == 0 { 0 } else { step };
            for what in all {
                if order["what"].as_str().is_none_or(|only| only == what) {
                    let status = self.request(of, what, remote);
                    let line = format!("{what}: {status}");
                    if !lines.contains(&line) {
                        lines.push(line);
                    }
                }
            }
        }
        json!(lines)
    }

    /// Where the attacker's memory is mapped here.
    fn mapped() -> Option<(usize, usize)> {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        let line = maps.lines().find(|line| line.contains(MEMORY_NAME))?;
        let (from, to) = line.split(' ').next()?.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        Some((number(from)?, number(to)?))
    }

    /// Waits until the attacker's memory is not mapped any more, and puts memory of ours in its place.
    fn occupy(&mut self, (from, to): (usize, usize)) -> Value {
        let start = Instant::now();
        while Self::mapped().is_some() {
            if start.elapsed() > Duration::from_secs(2) {
                return json!("it stays mapped");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // SAFETY: where nothing is.
        let at = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            let place = std::ptr::with_exposed_provenance_mut(from);
            libc::mmap(place, to - from, access, flags, -1, 0)
        };
        if at == libc::MAP_FAILED {
            return json!("something else is there");
        }
        self.occupied = Some((from, to));
        for word in self.occupied_words() {
            // SAFETY: ours, aligned.
            unsafe { word.write_volatile(self.secret) };
        }
        json!("occupied")
    }

    fn occupied_words(&self) -> impl Iterator<Item = *mut u64> + use<> {
        let (from, to) = self.occupied.unwrap_or_default();
        (from..to)
            .step_by(8)
            .map(std::ptr::with_exposed_provenance_mut)
    }

    /// Asserts that nothing was written to but what is open.
    fn check(&mut self) {
        self.local.is_untouched();
        assert!(self.closed.iter().all(|word| *word == self.secret));
        for word in self.occupied_words() {
            // SAFETY: ours, aligned.
            let there = unsafe { word.read_volatile() };
            assert_eq!(
                there, self.secret,
                "private memory was written to at {word:p}"
            );
        }
        if let Some((from, to)) = self.occupied.take() {
            // SAFETY: ours.
            unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(from), to - from) };
        }
    }

    /// Registers memory and takes it back.
    fn register(&self, times: u64) {
        for _ in 0..times {
            let mapping = Mapping::anonymous(4096).build().expect("memory");
            drop(Region::new(&self.pd, mapping, ALL).expect("a region"));
        }
    }
}

/// Plays the role.
pub fn play() {
    let parent = Parent::start();
    parent.say("ready", Value::Null);
    let order = parent.hear("open");
    let device = Device::open(&format!(
        "soft:{}",
        order["fabric"].as_str().expect("a name")
    ));
    let pd = device.expect("a node").alloc_pd();
    let secret = mix(&[number(&order, "seed")]);
    let mut target = Target {
        open: bellwire_tests::fixture::region(&pd, BYTES),
        local: Fence::new(&pd, AccessFlags::LOCAL_WRITE, secret),
        closed: vec![secret; BYTES / 8],
        pd,
        secret,
        occupied: None,
    };
    let mut end = End::new(&target.pd, bellwire::soft::Mode::Inline, &init());
    parent.say("card", card(&end.qp, end.region.remote(0)));
    let friend = parent.hear("friend");
    // It has to be there however long it takes.
    let attr = ConnectAttr {
        timeout: 18,
        rnr_retry: 7,
        ..ConnectAttr::default()
    };
    end.qp.init(&attr).expect("INIT");
    end.qp.connect(&read_card(&friend).0, &attr).expect("RTS");
    parent.say("connected", Value::Null);
    parent.hear("go");
    let echo = Echo::start(end);
    let mut attacked = None;
    loop {
        let order = parent.hear("do");
        let done = match order["what"].as_str().expect("something") {
            "meet" => {
                let of = attacked.insert(target.meet());
                card(&of.qp, target.open.remote(0))
            }
            "connect" => {
                let of = attacked.as_mut().expect("met");
                (of.peer, of.remote) = read_card(&order["card"]);
                target.connect(of);
                Value::Null
            }
            "requests" => target.go(attacked.as_mut().expect("met"), &order["of"]),
            "mapped" => json!(Target::mapped()),
            "occupy" => {
                let of = |at: usize| order["place"][at].as_u64().expect("an address") as usize;
                target.occupy((of(0), of(1)))
            }
            "register" => {
                let before = echo.take();
                let start = Instant::now();
                target.register(number(&order, "times"));
                let took = start.elapsed().as_micros() as u64;
                json!({"took": took, "meanwhile": echo.take(), "before": before})
            }
            "check" => {
                target.check();
                attacked = None;
                echo.take()
            }
            "end" => break,
            what => panic!("no such thing: {what}"),
        };
        parent.say("done", done);
    }
    echo.end();
    parent.say("done", Value::Null);
    parent.wait_for_end();
}

/// Plays the other peer: says back what it gets.
pub fn play_friend() {
    let parent = Parent::start();
    parent.say("ready", Value::Null);
    let order = parent.hear("open");
    let device = Device::open(&format!(
        "soft:{}",
        order["fabric"].as_str().expect("a name")
    ));
    let pd = device.expect("a node").alloc_pd();
    let mut end = End::new(&pd, bellwire::soft::Mode::Inline, &init());
    parent.say("card", card(&end.qp, end.region.remote(0)));
    let target = parent.hear("friend");
    let attr = ConnectAttr {
        timeout: 18,
        rnr_retry: 7,
        ..ConnectAttr::default()
    };
    end.qp.init(&attr).expect("INIT");
    for number in 0..2 {
        end.receive(RECEIVE | number, &[end.region.sge(0, 64)]);
    }
    end.qp.connect(&read_card(&target).0, &attr).expect("RTS");
    parent.say("connected", Value::Null);
    // Until it is killed.
    loop {
        let Some(done) = end.cq.poll_one() else {
            std::thread::yield_now();
            continue;
        };
        let (wr_id, ok) = (done.wr_id, done.result.is_ok());
        if wr_id & RECEIVE != 0 && ok {
            end.receive(wr_id, &[end.region.sge(0, 64)]);
            end.go(0, Send {}, Inline(&[1; 8]));
        }
    }
}
