//! One of two processes with many connections to each other. The active side does the operations.

use crate::script::mix;
use bellwire::memory::Mapping;
use bellwire::wqe::{Inline, Operation, Payload, Rc, RdmaRead, RdmaWrite, Send, Supports};
use bellwire::wr::{Remote, WcStatus};
use bellwire::{Cq, Device, Pd, Qp, QpInit, Region};
use bellwire_tests::fixture::{ALL, SIGNALED, post, post_recv, until, wait};
use bellwire_tests::parent::{Parent, card, number, read_card};
use bellwire_tests::patience::lasting;
use serde_json::{Value, json};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// What it is started as.
pub const ROLE: &str = "side";

/// Of a connection's memory: what the peer's WRITE leaves, what its SEND leaves, what it READs, and
/// what our READ brings.
const WRITTEN: usize = 0;
const SENT: usize = 8;
const SOURCE: usize = 16;
const BROUGHT: usize = 24;
const BYTES: usize = 32;

fn init() -> QpInit {
    QpInit {
        max_send_wr: 4,
        max_recv_wr: 4,
        ..QpInit::default()
    }
}

/// Bytes of this process that are resident, its share of what it shares.
fn resident() -> u64 {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").expect("a rollup");
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    kib.expect("a size").parse::<u64>().expect("a number") << 10
}

/// A word that distinguishes a place of one connection, of one side, from all others.
fn word(active: bool, place: usize, connection: usize) -> u64 {
    mix(&[active.into(), place as u64, connection as u64])
}

struct Side {
    qps: Vec<Qp>,
    remotes: Vec<Remote>,
    cq: Cq,
    region: Region,
    _pd: Pd,
    active: bool,
}

impl Side {
    /// Does an operation on a connection, and waits for it.
    fn go<O: Operation, P: Payload>(&mut self, at: usize, operation: O, payload: P)
    where
        Rc: Supports<O>,
    {
        let qp = &mut self.qps[at];
        post(qp, at as u64, operation, payload, SIGNALED).expect("room");
        qp.sq().ring();
        let done = wait(&mut self.cq);
        assert_eq!((done.wr_id, done.status()), (at as u64, WcStatus::Success));
    }

    fn there(&self, at: usize, place: usize) -> Remote {
        Remote {
            addr: self.remotes[at].addr + place as u64,
            rkey: self.remotes[at].rkey,
        }
    }

    fn write(&mut self, at: usize) {
        let remote = self.there(at, WRITTEN);
        let value = word(self.active, WRITTEN, at).to_ne_bytes();
        self.go(at, RdmaWrite { remote }, Inline(&value));
    }

    fn read(&mut self, at: usize) {
        let remote = self.there(at, SOURCE);
        let sge = self.region.sge(at * BYTES + BROUGHT, 8);
        self.go(at, RdmaRead { remote }, sge);
    }

    fn send(&mut self, at: usize) {
        let value = word(self.active, SENT, at).to_ne_bytes();
        self.go(at, Send {}, Inline(&value));
    }

    fn holds(&self, at: usize, place: usize, value: u64) {
        let there = self.region.word(at * BYTES + place);
        assert_eq!(there.load(Ordering::Acquire), value, "{place} of {at}");
    }

    /// A WRITE, a SEND and a READ on each, then times: all on one, and in turn over all.
    fn work(&mut self, operations: u64) -> Value {
        for at in 0..self.qps.len() {
            self.write(at);
            self.send(at);
            self.read(at);
            self.holds(at, BROUGHT, word(!self.active, SOURCE, at));
        }
        let count = self.qps.len();
        let mut time = |operation: fn(&mut Self, usize)| {
            let mut over = |connections: usize| {
                let start = Instant::now();
                for number in 0..operations {
                    operation(self, number as usize % connections);
                }
                start.elapsed().as_nanos() as u64
            };
            json!({"one": over(1), "all": over(count)})
        };
        json!({"WRITE": time(Self::write), "READ": time(Self::read)})
    }

    /// Takes a SEND of each.
    fn wait(&mut self) {
        let mut polled = 0;
        let (cq, count) = (&mut self.cq, self.qps.len());
        until("a SEND on each connection", || {
            polled += cq.poll(usize::MAX, |done| {
                assert_eq!(done.status(), WcStatus::Success, "{done:?}");
            });
            polled == count
        });
        for at in 0..count {
            self.holds(at, SENT, word(!self.active, SENT, at));
            // It was before the SEND.
            self.holds(at, WRITTEN, word(!self.active, WRITTEN, at));
        }
    }
}

/// Plays the role.
pub fn play() {
    let parent = Parent::start();
    parent.say("ready", Value::Null);
    let order = parent.hear("open");
    let count = number(&order, "count") as usize;
    let fabric = order["fabric"].as_str().expect("a name");
    let device = Device::open(&format!("soft:{fabric}")).expect("a node");
    let pd = device.alloc_pd();
    let before = resident();
    let (sends, receives) = init().cq_entries();
    let mut cq = device
        .create_cq_for((sends + receives) * count as u32, count)
        .expect("a queue");
    let mapping = Mapping::shared("many", count * BYTES)
        .build()
        .expect("memory");
    let region = Region::new(&pd, mapping, ALL).expect("a region");
    let create = |_| pd.create_qp(&mut cq, &init()).expect("a queue pair");
    let qps: Vec<Qp> = (0..count).map(create).collect();
    let card = |(at, qp)| card(qp, region.remote(at * BYTES));
    let cards: Value = qps.iter().enumerate().map(card).collect();
    parent.say("cards", cards);
    let order = parent.hear("connect");
    let active = order["active"] == true;
    let mut side = Side {
        qps,
        remotes: Vec::new(),
        cq,
        region,
        _pd: pd,
        active,
    };
    let attr = lasting();
    for (at, card) in order["cards"].as_array().expect("cards").iter().enumerate() {
        let (endpoint, remote) = read_card(card);
        side.remotes.push(remote);
        let source = side.region.word(at * BYTES + SOURCE);
        source.store(word(active, SOURCE, at), Ordering::Relaxed);
        let receive = side.region.sge(at * BYTES + SENT, 8);
        let qp = &mut side.qps[at];
        qp.init(&attr).expect("INIT");
        post_recv(qp, at as u64, &[receive]).expect("room");
        qp.rq().ring();
        qp.connect(&endpoint, &attr).expect("RTS");
    }
    let bytes = |before: u64| resident().saturating_sub(before);
    parent.say("connected", json!({"bytes": bytes(before)}));
    parent.hear("go");
    let times = if active {
        side.work(number(&order, "operations"))
    } else {
        side.wait();
        Value::Null
    };
    parent.say("used", json!({"bytes": bytes(before), "times": times}));
    parent.hear("drop");
    drop(side);
    drop(device);
    parent.say("dropped", Value::Null);
    parent.wait_for_end();
}
