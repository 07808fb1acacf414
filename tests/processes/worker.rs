//! A process under load: a node of the fabric, with connections to some others.

use crate::flow::{BYTES, Counts, Flow, flow_of, init};
use bellwire::memory::Mapping;
use bellwire::soft::{HcaConfig, Mode};
use bellwire::{ConnectAttr, Cq, Device, Pd, Region};
use bellwire_tests::fixture::{ALL, DEADLINE};
use bellwire_tests::parent::{Parent, number};
use bellwire_tests::refuse::refuse;
use serde_json::{Value, json};
use std::time::Instant;

/// What it is started as.
pub const ROLE: &str = "worker";

/// Completions that are taken before anything else is looked at.
const AT_ONCE: usize = 64;

/// A node of the fabric under load.
pub struct Worker {
    // In the order in which they go.
    flows: Vec<Flow>,
    region: Region,
    cq: Cq,
    pub pd: Pd,
    pub parent: Parent,
    peers: Vec<u64>,
}

/// The device that is asked for.
fn device(order: &Value) -> Device {
    if order["membarrier"] == false {
        refuse(&[libc::SYS_membarrier], libc::EPERM);
    }
    let fabric = order["fabric"].as_str().expect("a name");
    let config = |mode| HcaConfig {
        mode,
        ..HcaConfig::default()
    };
    match order["device"].as_str() {
        Some("shared") => Device::open(&format!("soft:{fabric}")),
        Some("inline") => Device::join(fabric, config(Mode::Inline)),
        Some("engine") => Device::join(fabric, config(Mode::Engine { threads: 1 })),
        other => panic!("a device like {other:?}"),
    }
    .expect("a node of the fabric")
}

/// A pair of numbers in what was said.
fn pair(value: &Value, key: &str) -> (u64, u64) {
    let at = |at: usize| value[key][at].as_u64().expect("a number");
    (at(0), at(1))
}

impl Worker {
    /// One as ordered, with queue pairs that are not connected.
    pub fn new(parent: Parent, order: &Value) -> Self {
        let (us, seed) = (number(order, "index"), number(order, "seed"));
        let peers = order["peers"].as_array().expect("a list");
        let peers: Vec<u64> = peers.iter().flat_map(Value::as_u64).collect();
        let pd = device(order).alloc_pd();
        let (sends, receives) = init().cq_entries();
        let entries = (sends + receives) * peers.len() as u32;
        let mut cq = pd
            .device()
            .create_cq_for(entries, peers.len())
            .expect("a queue");
        let bytes = BYTES * peers.len();
        // What peers can map, and what they have to ask for.
        let memory = match us % 2 {
            0 => Mapping::shared("flows", bytes),
            _ => Mapping::anonymous(bytes),
        };
        let mapping = memory.build().expect("memory");
        let region = Region::new(&pd, mapping, ALL).expect("a region");
        let flow = |(at, &them)| Flow::new(&pd, &mut cq, &region, at, seed, (us, them));
        Self {
            flows: peers.iter().enumerate().map(flow).collect(),
            region,
            cq,
            pd,
            parent,
            peers,
        }
    }

    /// What the peers are to know.
    pub fn cards(&self) -> Value {
        let cards = self.flows.iter().map(|flow| flow.card(&self.region));
        cards.collect()
    }

    /// Connects all flows: each to the peer of its card, with its time limit and number of retries.
    pub fn connect(&mut self, order: &Value) {
        let cards = order["cards"].as_array().expect("cards");
        let limits = order["limits"].as_array().expect("limits");
        for ((flow, peer), limits) in self.flows.iter_mut().zip(cards).zip(limits) {
            let limit = |at: usize| limits[at].as_u64().expect("a number") as u8;
            let attr = ConnectAttr {
                timeout: limit(0),
                retry_cnt: limit(1),
                min_rnr_timer: 1,
                ..ConnectAttr::default()
            };
            flow.connect(&self.region, peer, &attr);
        }
    }

    /// Takes what completes. `false`: nothing does.
    fn poll(&mut self) -> bool {
        let (flows, region) = (&mut self.flows, &self.region);
        let over: Vec<bool> = flows.iter().map(Flow::is_over).collect();
        let polled = self.cq.poll(AT_ONCE, |completion| {
            let flow = flows
                .get_mut(flow_of(completion.wr_id))
                .expect("one of ours");
            flow.completed(region, &completion);
        });
        for ((flow, was), peer) in flows.iter().zip(over).zip(&self.peers) {
            if flow.is_over() && !was {
                let status = format!("{:?}", flow.failure.expect("it failed"));
                self.parent
                    .say("over", json!({"peer": peer, "first": status}));
            }
        }
        polled != 0
    }

    /// Polls until `done`, which has to be soon.
    fn poll_until(&mut self, what: &str, done: impl Fn(&Flow) -> bool) {
        let start = Instant::now();
        while !self.flows.iter().all(&done) {
            if !self.poll() {
                std::thread::yield_now();
            }
            assert!(start.elapsed() < DEADLINE, "{what} never came");
        }
    }

    /// Works until the parent says that it is enough; and does something `beside` that.
    pub fn work(&mut self, mut beside: impl FnMut()) {
        while self.parent.heard("finish").is_none() {
            for flow in &mut self.flows {
                flow.load(&self.region);
            }
            beside();
            if !self.poll() {
                std::thread::yield_now();
            }
        }
        self.flows.iter_mut().for_each(Flow::finish);
        self.poll_until("the last outcome", |flow| match flow.failure {
            Some(_) => flow.is_over(),
            None => flow.is_drained(),
        });
    }

    /// What each peer has to know of what was sent to it.
    fn counts(&self) -> Value {
        let flows = self.flows.iter().zip(&self.peers).map(|(flow, peer)| {
            let Counts { notices, adds } = flow.counts;
            let notices = [notices.0, notices.1];
            let adds = [adds.0, adds.1];
            json!({"peer": peer, "notices": notices, "adds": adds, "done": flow.done})
        });
        flows.collect()
    }

    /// Compares with the peers what was done, and lets everything go.
    pub fn settle(mut self) {
        self.parent.say("drained", self.counts());
        let start = Instant::now();
        // The others need answers until they are done as well.
        let order = loop {
            if let Some(order) = self.parent.heard("check") {
                break order;
            }
            self.poll();
            assert!(start.elapsed() < DEADLINE, "the others hang");
        };
        self.check(&order);
        let parent = self.parent;
        drop((self.flows, self.region, self.cq, self.pd));
        parent.say("dropped", Value::Null);
        parent.wait_for_end();
    }

    /// Compares what came with what each peer says that it sent; of one that is dead nothing is known. One may have been
    /// stopped until its peers gave up.
    fn check(&mut self, order: &Value) {
        let (theirs, stopped) = (&order["sent"], order["stopped"].as_u64());
        // Of those that are well all has been done, and what came is still to be looked at.
        let sent: Vec<u64> = (theirs.as_array().expect("a list").iter())
            .map(|sent| {
                if sent.is_null() {
                    0
                } else {
                    pair(sent, "notices").1
                }
            })
            .collect();
        let start = Instant::now();
        let short = |flow: &Flow, sent: u64| flow.failure.is_none() && flow.received < sent;
        while (self.flows.iter().zip(&sent)).any(|(flow, sent)| short(flow, *sent)) {
            self.poll();
            assert!(start.elapsed() < DEADLINE, "a message never came");
        }
        self.poll();
        let theirs = theirs.as_array().expect("a list");
        for ((flow, peer), theirs) in self.flows.iter().zip(&self.peers).zip(theirs) {
            if flow.failure.is_some() {
                flow.is_frozen(&self.region, stopped == Some(*peer));
            }
            if theirs.is_null() {
                continue;
            }
            let counter = flow.counter(&self.region);
            for (what, came, (posted, done)) in [
                ("messages", flow.received, pair(theirs, "notices")),
                ("fetch-and-adds", counter, pair(theirs, "adds")),
            ] {
                assert!(
                    (done..=posted).contains(&came),
                    "{came} {what}, of {posted} that were posted and {done} that were done"
                );
            }
        }
    }
}

/// Plays the role.
pub fn play() {
    let parent = Parent::start();
    parent.say("ready", Value::Null);
    let order = parent.hear("open");
    let mut worker = Worker::new(parent, &order);
    worker.parent.say("cards", worker.cards());
    worker.connect(&worker.parent.hear("connect"));
    worker.parent.say("connected", Value::Null);
    worker.parent.hear("go");
    worker.work(|| ());
    worker.settle();
}
