//! A victim's connections to a hostile node. They may fail in any way, and bring anything; but
//! each request is reported once, in order, and memory that was not opened stays as it is.

use crate::fence::{Fence, PART};
use crate::flow::init;
use crate::script::mix;
use bellwire::memory::Mapping;
use bellwire::queue::Completion;
use bellwire::state::QpState;
use bellwire::wqe::*;
use bellwire::wr::{Remote, Sge};
use bellwire::{AccessFlags, ConnectAttr, Cq, Endpoint, Pd, Qp, Region};
use bellwire_tests::fixture::{ALL, DEADLINE, SIGNALED, post, post_recv};
use bellwire_tests::parent::{card, number, read_card};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Connections of each victim to a hostile node.
pub const COUNT: usize = 4;

const RECEIVE: u64 = 1 << 47;
const AT: u32 = 48;
/// Requests under way.
const SENDS: usize = 6;
const RECEIVES: usize = 4;
/// Bytes of the open memory that requests of this side use, and as many at its end.
const OWN: usize = 16 << 10;
/// Steps between two looks for connections that have failed.
const OFTEN: u64 = 16;

/// What the victim's memory is filled with that nobody else is to see.
pub fn secret(seed: u64, victim: u64) -> u64 {
    mix(&[seed, victim, 2])
}

/// One of the connections.
struct Connection {
    qp: Qp,
    peer: Endpoint,
    remote: Remote,
    sends: VecDeque<u64>,
    receives: VecDeque<u64>,
}

/// All of them, and the memory.
pub struct Prey {
    connections: Vec<Connection>,
    /// Opened to everything, and mapped by peers.
    shared: Region,
    /// Opened to everything, with watched memory beside it.
    open: Fence,
    /// Opened to nobody but this side.
    local: Fence,
    /// Not opened at all.
    closed: Vec<u64>,
    cq: Cq,
    secret: u64,
    posted: u64,
    reported: u64,
    steps: u64,
    revived: u64,
}

impl Connection {
    fn connect(&mut self) {
        let attr = ConnectAttr::default();
        self.qp.init(&attr).expect("INIT");
        self.qp.connect(&self.peer, &attr).expect("RTS");
    }
}

impl Prey {
    pub fn new(pd: &Pd, seed: u64, us: u64) -> Self {
        let secret = secret(seed, us);
        let (sends, receives) = init().cq_entries();
        let entries = (sends + receives) * COUNT as u32;
        let mut cq = pd.device().create_cq_for(entries, COUNT).expect("a queue");
        let connection = |_| Connection {
            qp: pd.create_qp(&mut cq, &init()).expect("a queue pair"),
            peer: Endpoint::default(),
            remote: Remote::default(),
            sends: VecDeque::new(),
            receives: VecDeque::new(),
        };
        let mapping = Mapping::shared("prey", PART).build().expect("memory");
        Self {
            connections: (0..COUNT).map(connection).collect(),
            shared: Region::new(pd, mapping, ALL).expect("a region"),
            open: Fence::new(pd, ALL, secret),
            local: Fence::new(pd, AccessFlags::LOCAL_WRITE, secret),
            closed: vec![secret; PART / 8],
            cq,
            secret,
            posted: 0,
            reported: 0,
            steps: 0,
            revived: 0,
        }
    }

    /// For the hostile node: also the key of memory that is not for it.
    pub fn cards(&self) -> Value {
        let place = |mr: &bellwire::Mr| json!({"addr": mr.addr(), "rkey": mr.rkey()});
        let cards = self.connections.iter().map(|connection| {
            let mut card = card(&connection.qp, self.shared.remote(0));
            card["open"] = place(self.open.mr());
            card["local"] = place(self.local.mr());
            card["closed"] = json!(self.closed.as_ptr().addr());
            card
        });
        cards.collect()
    }

    pub fn connect(&mut self, cards: &Value) {
        for (at, card) in cards.as_array().expect("cards").iter().enumerate() {
            let connection = &mut self.connections[at];
            (connection.peer, connection.remote) = read_card(card);
            connection.connect();
        }
    }

    /// Connects again what has failed, so that there is always something to attack.
    fn revive(&mut self) {
        for connection in &mut self.connections {
            if connection.qp.state() != QpState::Err {
                continue;
            }
            let Connection {
                qp,
                sends,
                receives,
                ..
            } = connection;
            let reported = &mut self.reported;
            let reset = qp.reset(&mut self.cq, |wr_id, _| {
                *reported += 1;
                take(sends, receives, wr_id);
            });
            reset.expect("from any state");
            connection.connect();
            self.revived += 1;
        }
    }

    /// Posts what there is room for, and takes what completes.
    pub fn step(&mut self) {
        self.steps += 1;
        if self.steps.is_multiple_of(OFTEN) {
            self.revive();
        }
        let Self {
            connections,
            cq,
            reported,
            ..
        } = self;
        cq.poll(64, |completion| {
            *reported += 1;
            take_from(connections, &completion);
        });
        let (mr, shared) = (self.open.mr(), self.shared.sge(PART / 2, 64));
        let (addr, lkey) = (mr.addr(), mr.lkey());
        for (at, connection) in self.connections.iter_mut().enumerate() {
            let from = |offset: u64, length| Sge {
                addr: addr + offset,
                length,
                lkey,
            };
            let at = (at as u64) << AT;
            while connection.receives.len() < RECEIVES {
                let wr_id = at | RECEIVE | self.posted;
                post_recv(&mut connection.qp, wr_id, &[from(PART as u64 - 512, 512)])
                    .expect("room");
                connection.receives.push_back(wr_id);
                self.posted += 1;
            }
            connection.qp.rq().ring();
            while connection.sends.len() < SENDS {
                let wr_id = at | self.posted;
                let remote = connection.remote;
                let qp = &mut connection.qp;
                let posted = match self.posted % 5 {
                    0 => post(qp, wr_id, Send {}, from(0, 100), SIGNALED),
                    1 => post(qp, wr_id, RdmaWrite { remote }, from(0, 6000), SIGNALED),
                    2 => post(qp, wr_id, RdmaRead { remote }, from(8192, 6000), SIGNALED),
                    3 => {
                        let add = AtomicFetchAndAdd { remote, add: 1 };
                        post(qp, wr_id, add, from(4096, 8), SIGNALED)
                    }
                    _ => post(qp, wr_id, RdmaRead { remote }, shared, SIGNALED),
                };
                posted.expect("room");
                connection.sends.push_back(wr_id);
                self.posted += 1;
            }
            connection.qp.sq().ring();
        }
    }

    /// The hostile node is gone: all is reported, and nothing was touched that was not opened.
    pub fn end(&mut self) {
        for connection in &mut self.connections {
            connection.qp.to_error().expect("from any state");
        }
        let start = Instant::now();
        while self.reported != self.posted {
            let Self {
                connections,
                cq,
                reported,
                ..
            } = self;
            cq.poll(usize::MAX, |completion| {
                *reported += 1;
                take_from(connections, &completion);
            });
            assert!(start.elapsed() < DEADLINE, "a request was never reported");
        }
        assert!(self.cq.poll_one().is_none() && !self.cq.overrun());
        self.open.is_whole();
        self.local.is_untouched();
        assert!(self.closed.iter().all(|word| *word == self.secret));
    }

    /// How much the attack has met: connections that failed and were made again, and words that it
    /// has written to memory that was open.
    pub fn met(&self) -> Value {
        // Beyond what our own requests write to.
        let words = (0..PART / 16).map(|at| self.shared.word(at * 8));
        let written = words.filter(|word| word.load(Ordering::Relaxed) != 0);
        let written = written.count() + self.open.written(OWN, PART - OWN);
        json!({"revived": self.revived, "written": written})
    }
}

fn take_from(connections: &mut [Connection], completion: &Completion<'_>) {
    let of = &mut connections[(completion.wr_id >> AT) as usize];
    assert_eq!(completion.retired, 1);
    take(&mut of.sends, &mut of.receives, completion.wr_id);
}

/// A request was reported: it has to be the next of its queue.
fn take(sends: &mut VecDeque<u64>, receives: &mut VecDeque<u64>, wr_id: u64) {
    let queue = match wr_id & RECEIVE {
        0 => sends,
        _ => receives,
    };
    assert_eq!(queue.pop_front(), Some(wr_id), "the request reported next");
}

/// Where a card's memory is.
pub fn place(card: &Value, what: &str) -> Remote {
    Remote {
        addr: number(&card[what], "addr"),
        rkey: number(&card[what], "rkey") as u32,
    }
}
