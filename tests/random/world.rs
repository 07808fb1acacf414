//! One world: what there is, and what happens next.

use super::actor::{AnyQp, Kind};
use super::model::{Inbox, Receives, Sends};
use super::tally::Tally;
use bellwire::state::AhAttr;
use bellwire::wr::{Remote, Sge};
use bellwire::{Ah, ClassLayout, ConnectAttr, Cq, Device, Region, Slab, Srq, SrqInit, XrcTarget};
use bellwire_tests::fixture::{Random, region, slab, virtual_device};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// Bytes of a place for one message.
pub const PLACE: usize = 256;
pub const PLACES: usize = 1024;
/// Behind the places: words that peers write to and count in, four to a flow.
pub const WORDS: usize = PLACE * PLACES;
pub const GRH: usize = 40;
const STEPS: u64 = 3000;

/// What is known of a request in flight.
pub struct Held {
    pub actor: usize,
    /// Where its bytes are, if they are in a place.
    pub place: Option<usize>,
    pub what: What,
}

pub enum What {
    Receive { shared: bool },
    Message { flow: u64, seq: u64 },
    Write { value: u64 },
    Read { at_least: u64 },
    Add,
    Nothing,
}

pub struct Actor {
    pub kind: Kind,
    pub qp: AnyQp,
    pub cq: usize,
    pub signals_all: bool,
    /// Its receives come from the world's shared queue.
    pub shared: bool,
    pub peer: Option<usize>,
    pub sends: Sends,
    pub receives: Receives,
    pub inbox: Inbox,
    /// A send failed in this life (or before this life's SQE was left).
    pub failed: bool,
    pub life: u64,
    pub seq: BTreeMap<u64, u64>,
    /// Of its words at the peer: what was written last, what is known to be there, adds posted, reported
    /// as done, and reported as anything else.
    pub wrote: u64,
    pub written: u64,
    pub added: (u64, u64, u64),
    pub acknowledged: BTreeMap<u64, u64>,
}

pub struct World {
    pub seed: u64,
    pub random: Random,
    /// Says what happens.
    pub trace: bool,
    pub device: Device,
    pub region: Region,
    pub slab: Option<Slab>,
    pub cqs: Vec<Cq>,
    pub actors: Vec<Actor>,
    pub srq: Srq,
    pub srq_flying: Receives,
    pub xrc: Option<(XrcTarget, Srq, usize)>,
    pub xrc_flying: Receives,
    pub xrc_inbox: Inbox,
    pub ah: Ah,
    pub places: Vec<usize>,
    pub held: HashMap<u64, Held>,
    pub next: u64,
    pub connect: ConnectAttr,
    pub ended: bool,
    pub tally: Tally,
}

impl World {
    pub fn new(seed: u64, trace: bool) -> Self {
        let mut random = Random::new(seed);
        let device = virtual_device(seed);
        device.set_async_nonblocking(true).expect("a descriptor");
        let pd = device.alloc_pd();
        let layout = [ClassLayout {
            size: 256,
            count: 64,
        }];
        let slab = slab(&pd, &layout);
        let memory = region(&pd, WORDS + 64 * 32);
        let connect = ConnectAttr {
            timeout: 8 + random.below(3) as u8,
            retry_cnt: random.below(4) as u8,
            rnr_retry: [0, 1, 3, 7][random.below(4) as usize],
            min_rnr_timer: 1 + random.below(4) as u8,
            ..ConnectAttr::default()
        };
        let srq = pd
            .create_srq(&SrqInit {
                max_wr: 4 + random.below(40) as u32,
                max_sge: 2,
                srq_limit: 0,
            })
            .expect("a shared queue");
        let ah = pd
            .create_ah(&AhAttr {
                dlid: device.query_port(1).expect("a port").lid,
                port_num: 1,
                ..AhAttr::default()
            })
            .expect("an address handle");
        let mut world = Self {
            seed,
            random,
            trace,
            region: memory,
            slab: Some(slab),
            cqs: Vec::new(),
            actors: Vec::new(),
            srq,
            srq_flying: Receives::Shared(Default::default()),
            xrc: None,
            xrc_flying: Receives::Shared(Default::default()),
            xrc_inbox: Inbox::default(),
            ah,
            places: (0..PLACES).collect(),
            held: HashMap::new(),
            next: 1,
            connect,
            ended: false,
            tally: Tally::default(),
            device,
        };
        world.populate(&pd);
        world
    }

    pub fn say(&self, text: impl FnOnce() -> String) {
        if self.trace {
            println!("{:#x}: {}", self.seed, text());
        }
    }

    pub fn live(&mut self) {
        for _ in 0..STEPS {
            if self.ended {
                break;
            }
            self.step();
        }
    }

    pub fn someone(&mut self) -> usize {
        self.random.below(self.actors.len() as u64) as usize
    }

    pub fn step(&mut self) {
        let at = self.someone();
        match self.random.below(100) {
            0..45 => self.send(at),
            45..68 => self.receive(at),
            68..82 => {
                let limit = 1 + self.random.below(8) as usize;
                let cq = self.random.below(self.cqs.len() as u64) as usize;
                self.poll(cq, limit);
            }
            82..86 => self.actors[at].qp.ring(),
            86..89 => {
                let time = Duration::from_micros(1 << self.random.below(12));
                self.device.as_soft().unwrap().advance(time);
            }
            89..91 => self.watch(),
            91..95 => self.mend(at),
            95..97 => self.turn(at),
            97..99 => self.fault(),
            _ => {
                let limit = self.random.below(u64::from(self.srq.query().max_wr)) as u32;
                self.srq.modify(limit).expect("within the queue");
            }
        }
    }

    /// Asynchronous events are what the verbs allow here; none is about what there is not.
    pub fn watch(&mut self) {
        while let Ok(event) = self.device.get_async_event() {
            self.tally.events += 1;
            self.say(|| format!("event {} of {}", event.event_type(), event.element()));
        }
    }

    /// A place for bytes.
    pub fn place(&mut self) -> Option<usize> {
        self.places.pop()
    }

    pub fn sge(&self, place: usize, length: usize) -> Sge {
        self.region.sge(place * PLACE, length as u32)
    }

    /// The words that this actor writes to at its peer.
    pub fn word(&self, at: usize, which: usize) -> Remote {
        self.region.remote(WORDS + at * 32 + which * 8)
    }

    pub fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}
