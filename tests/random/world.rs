//! One world: what there is, what happens in it, and whether that may be.

use super::Statuses;
use super::actor::{AnyQp, Data, Kind, Op, To};
use super::model::{Inbox, Receives, Sends};
use bellwire::queue::{Completion, Imm, PostError};
use bellwire::soft::{Fault, Script, Trigger};
use bellwire::state::{AhAttr, QpState};
use bellwire::wr::{Remote, SendFlags, Sge, WcOpcode, WcStatus};
use bellwire::{
    Ah, ClassLayout, ConnectAttr, Cq, Device, Pd, QpInit, Region, Slab, Srq, SrqInit, XrcTarget,
};
use bellwire_tests::fixture::{Random, region, virtual_device};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Bytes of a place for one message.
const PLACE: usize = 256;
const PLACES: usize = 1024;
/// Behind the places: words that peers write to and count in, four to a flow.
const WORDS: usize = PLACE * PLACES;
const HEADER: usize = 32;
const GRH: usize = 40;
const STEPS: u64 = 3000;

/// What happened, in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub operations: u64,
    pub sends: Statuses,
    pub receives: Statuses,
    pub told_by_reset: u64,
    pub passed_over: u64,
    pub shared: u64,
    pub datagrams: u64,
    pub blocks: u64,
    pub lives: u64,
    pub events: u64,
    pub faults: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in [
            (&mut self.sends, &other.sends),
            (&mut self.receives, &other.receives),
        ] {
            for (status, count) in theirs {
                *mine.entry(status).or_default() += count;
            }
        }
        for (mine, theirs) in [
            (&mut self.operations, other.operations),
            (&mut self.told_by_reset, other.told_by_reset),
            (&mut self.passed_over, other.passed_over),
            (&mut self.shared, other.shared),
            (&mut self.datagrams, other.datagrams),
            (&mut self.blocks, other.blocks),
            (&mut self.lives, other.lives),
            (&mut self.events, other.events),
            (&mut self.faults, other.faults),
        ] {
            *mine += theirs;
        }
    }
}

/// What is known of a request in flight.
struct Held {
    actor: usize,
    /// Where its bytes are, if they are in a place.
    place: Option<usize>,
    what: What,
}

enum What {
    Receive { shared: bool },
    Message { flow: u64, seq: u64 },
    Write { value: u64 },
    Read { at_least: u64 },
    Add,
    Nothing,
}

struct Actor {
    kind: Kind,
    qp: AnyQp,
    cq: usize,
    signals_all: bool,
    /// Its receives come from the world's shared queue.
    shared: bool,
    peer: Option<usize>,
    sends: Sends,
    receives: Receives,
    inbox: Inbox,
    /// A send failed in this life (or before this life's SQE was left).
    failed: bool,
    life: u64,
    seq: BTreeMap<u64, u64>,
    /// Of its words at the peer: what was written last, what is known to be there, adds posted, told
    /// as done, and told as anything else.
    wrote: u64,
    written: u64,
    added: (u64, u64, u64),
    acknowledged: BTreeMap<u64, u64>,
}

pub struct World {
    seed: u64,
    random: Random,
    /// Says what happens.
    trace: bool,
    device: Device,
    region: Region,
    slab: Option<Slab>,
    cqs: Vec<Cq>,
    actors: Vec<Actor>,
    srq: Srq,
    srq_flying: Receives,
    xrc: Option<(XrcTarget, Srq, usize)>,
    xrc_flying: Receives,
    xrc_inbox: Inbox,
    ah: Ah,
    places: Vec<usize>,
    held: HashMap<u64, Held>,
    next: u64,
    connect: ConnectAttr,
    ended: bool,
    tally: Tally,
}

fn sum(bytes: &[u8]) -> u64 {
    // FNV-1a.
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// A message that tells where it belongs.
fn message(flow: u64, seq: u64, length: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..length).map(|at| (at as u64 ^ seq) as u8).collect();
    bytes[..8].copy_from_slice(&flow.to_ne_bytes());
    bytes[8..16].copy_from_slice(&seq.to_ne_bytes());
    bytes[16..24].copy_from_slice(&(length as u64).to_ne_bytes());
    let check = sum(&bytes[HEADER..]) ^ sum(&bytes[..24]);
    bytes[24..32].copy_from_slice(&check.to_ne_bytes());
    bytes
}

/// The flow and number of a message that has arrived whole.
fn read(bytes: &[u8]) -> (u64, u64) {
    let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight"));
    let (flow, seq) = (word(0), word(8));
    assert_eq!(
        bytes,
        message(flow, seq, bytes.len()),
        "a message is corrupt"
    );
    (flow, seq)
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
        let bytes = Slab::bytes(&layout).expect("a layout");
        let slab = Slab::new(region(&pd, bytes), &layout).expect("a slab");
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

    fn populate(&mut self, pd: &Pd) {
        for _ in 0..1 + self.random.below(3) {
            let kind = [Kind::Rc, Kind::Rc, Kind::Uc][self.random.below(3) as usize];
            let at = self.actors.len();
            self.create(pd, kind, Some(at + 1));
            self.create(pd, kind, Some(at));
            self.introduce(at);
        }
        for _ in 0..self.random.below(4) {
            let at = self.actors.len();
            self.create(pd, Kind::Ud, None);
            self.introduce(at);
        }
        if self.random.below(2) == 0 {
            let xrcd = self.device.open_xrcd();
            let cq = self.cqs.len();
            let mut arrivals = self.device.create_cq(64).expect("a queue");
            let sizes = SrqInit {
                max_wr: 16,
                ..SrqInit::default()
            };
            let srq = pd.create_xrc_srq(&xrcd, &mut arrivals, &sizes);
            self.cqs.push(arrivals);
            let target = xrcd.create_target().expect("a target");
            self.xrc = Some((target, srq.expect("a shared queue"), cq));
            let at = self.actors.len();
            self.create(pd, Kind::Xrc, None);
            self.introduce(at);
        }
    }

    fn create(&mut self, pd: &Pd, kind: Kind, peer: Option<usize>) {
        let init = QpInit {
            max_send_wr: 4 << self.random.below(3),
            max_recv_wr: 4 << self.random.below(3),
            max_send_sge: 2,
            max_recv_sge: 2,
            max_inline_data: 64,
            sq_sig_all: self.random.below(5) == 0,
            reserve_cq: true,
        };
        let shared = kind != Kind::Xrc && self.random.below(3) == 0;
        if self.cqs.is_empty() || self.random.below(2) == 0 {
            self.cqs.push(self.device.create_cq(2048).expect("a queue"));
        }
        let cq = self.random.below(self.cqs.len() as u64) as usize;
        // The target's arrivals have room for their own.
        let cq = if self.cqs[cq].capacity() < 2048 {
            0
        } else {
            cq
        };
        let (srq, on) = (&self.srq, &mut self.cqs[cq]);
        macro_rules! qp {
            ($kind:ident) => {
                AnyQp::$kind(if shared {
                    pd.create_qp_on_srq(on, srq, &init).expect("a queue pair")
                } else {
                    pd.create_qp_of(on, &init).expect("a queue pair")
                })
            };
        }
        let qp = match kind {
            Kind::Rc => qp!(Rc),
            Kind::Uc => qp!(Uc),
            Kind::Ud => qp!(Ud),
            Kind::Xrc => AnyQp::Xrc(pd.create_qp_of(on, &init).expect("a queue pair")),
        };
        self.actors.push(Actor {
            kind,
            qp,
            cq,
            signals_all: init.sq_sig_all,
            shared,
            peer,
            sends: Sends::default(),
            receives: Receives::Own(Default::default()),
            inbox: Inbox::default(),
            failed: false,
            life: 0,
            seq: BTreeMap::new(),
            wrote: 0,
            written: 0,
            added: (0, 0, 0),
            acknowledged: BTreeMap::new(),
        });
    }

    /// Brings an actor (and its peer) from RESET to RTS.
    fn introduce(&mut self, at: usize) {
        let attr = self.connect;
        self.tally.lives += 1;
        match self.actors[at].peer {
            Some(peer) => {
                let ends = [(at, peer), (peer, at)];
                for (one, _) in ends {
                    self.actors[one].qp.init(&attr).expect("INIT");
                }
                for (one, other) in ends {
                    let endpoint = self.actors[other].qp.endpoint();
                    self.actors[one].qp.connect(&endpoint, &attr).expect("RTS");
                }
            }
            None if self.actors[at].kind == Kind::Xrc => {
                let (target, ..) = self.xrc.as_ref().expect("there is a target");
                let qp = &mut self.actors[at].qp;
                qp.init(&attr).expect("INIT");
                target.init(&attr).expect("INIT");
                qp.connect(&target.endpoint(), &attr).expect("RTS");
                target.connect(&qp.endpoint(), &attr).expect("RTS");
            }
            None => {
                let qp = &mut self.actors[at].qp;
                qp.init(&attr).expect("INIT");
                qp.connect(&Default::default(), &attr).expect("RTS");
            }
        }
    }

    fn say(&self, text: impl FnOnce() -> String) {
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

    fn someone(&mut self) -> usize {
        self.random.below(self.actors.len() as u64) as usize
    }

    fn step(&mut self) {
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
                self.device.advance(time);
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
    fn watch(&mut self) {
        while let Ok(event) = self.device.get_async_event() {
            self.tally.events += 1;
            self.say(|| format!("event {} of {}", event.event_type(), event.element()));
        }
    }

    /// A place for bytes.
    fn place(&mut self) -> Option<usize> {
        self.places.pop()
    }

    fn sge(&self, place: usize, length: usize) -> Sge {
        self.region.sge(place * PLACE, length as u32)
    }

    /// The words that this actor writes to at its peer.
    fn word(&self, at: usize, which: usize) -> Remote {
        self.region.remote(WORDS + at * 32 + which * 8)
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn receive(&mut self, at: usize) {
        let Some(place) = self.place() else { return };
        let wr_id = self.number();
        // Now and then one that is too short, or of a key that there is not.
        let (length, spoil) = match self.random.below(150) {
            0 => (16, false),
            1 => (PLACE, true),
            _ => (PLACE, false),
        };
        let mut sge = self.sge(place, length);
        if spoil {
            sge.lkey ^= 0x1000;
        }
        let actor = &mut self.actors[at];
        let (shared, posted) = if actor.kind == Kind::Xrc {
            let (_, srq, _) = self.xrc.as_mut().expect("there is a target");
            // SAFETY: the memory is a region's, which is only ever copied in and out.
            let posted = unsafe { srq.post(wr_id, &[sge]) };
            srq.ring();
            (true, posted)
        } else if actor.shared {
            // SAFETY: as above.
            let posted = unsafe { self.srq.post(wr_id, &[sge]) };
            self.srq.ring();
            (true, posted)
        } else {
            (false, actor.qp.post_recv(wr_id, &[sge]))
        };
        match posted {
            Ok(()) => {
                self.tally.operations += 1;
                match (actor.kind, shared) {
                    (Kind::Xrc, _) => self.xrc_flying.posted(wr_id),
                    (_, true) => self.srq_flying.posted(wr_id),
                    (_, false) => actor.receives.posted(wr_id),
                }
                let what = What::Receive { shared };
                self.held.insert(
                    wr_id,
                    Held {
                        actor: at,
                        place: Some(place),
                        what,
                    },
                );
                self.say(|| format!("{at}: receive {wr_id}"));
            }
            Err(error) => {
                let full = error == PostError::QueueFull || error == PostError::WrongState;
                assert!(full, "{error}");
                self.places.push(place);
            }
        }
    }

    fn send(&mut self, at: usize) {
        let wr_id = self.number();
        let kind = self.actors[at].kind;
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, self.random.below(3) != 0);
        flags.set(SendFlags::FENCE, self.random.below(10) == 0);
        flags.set(SendFlags::SOLICITED, self.random.below(10) == 0);
        let choice = match kind {
            Kind::Ud => self.random.below(60),
            Kind::Uc => self.random.below(80),
            _ => self.random.below(100),
        };
        let Some(place) = self.place() else { return };
        let spoiled = self.random.below(400) == 0;
        let mut remote = self.word(at, usize::from(choice >= 90));
        if spoiled {
            match (choice, self.random.below(2)) {
                // A misaligned atomic.
                (90.., 0) => remote.addr += 4,
                _ => remote.rkey ^= 0x1000,
            }
        }
        let (op, what, bytes) = match choice {
            0..57 => {
                let (flow, to) = self.flow(at);
                let seq = self.actors[at].seq.get(&flow).map_or(1, |seq| seq + 1);
                let length = HEADER + self.random.below(150) as usize;
                let op = match self.random.below(2) {
                    0 => Op::Send,
                    _ => Op::SendImm(seq as u32),
                };
                let bytes = message(flow, seq, length);
                return self.send_message(at, to, (flow, seq), wr_id, op, &bytes, place, flags);
            }
            57..60 => (Op::Nop, What::Nothing, None),
            60..68 => {
                // A message whose number is its immediate.
                let (flow, to) = self.flow(at);
                let seq = self.actors[at].seq.get(&flow).map_or(1, |seq| seq + 1);
                let op = Op::WriteImm(self.word(at, 2), seq as u32);
                let bytes = seq.to_ne_bytes();
                return self.send_message(at, to, (flow, seq), wr_id, op, &bytes, place, flags);
            }
            68..80 => {
                let value = self.actors[at].wrote + 1;
                (Op::Write(remote), What::Write { value }, Some(value))
            }
            80..90 => {
                let at_least = self.actors[at].written;
                (Op::Read(remote), What::Read { at_least }, None)
            }
            _ => (Op::Add(remote), What::Add, None),
        };
        let bytes = bytes.map(u64::to_ne_bytes);
        let data = match (&what, &bytes) {
            (What::Write { .. }, Some(bytes)) => Data::Inline(bytes),
            (What::Nothing, _) => Data::Nothing,
            _ => Data::Sge(self.sge(place, 8)),
        };
        let to = self.srqn(at).map_or(To::Peer, To::Queue);
        let posted = match kind {
            Kind::Ud => {
                let to = To::Datagram(&self.ah, 1, 1);
                self.actors[at].qp.post(wr_id, &to, op, data, flags)
            }
            _ => self.actors[at].qp.post(wr_id, &to, op, data, flags),
        };
        if self.took(at, wr_id, posted, flags, place, what) && !spoiled {
            let actor = &mut self.actors[at];
            match op {
                Op::Write(_) => actor.wrote += 1,
                Op::Add(_) => actor.added.0 += 1,
                _ => {}
            }
        } else if let (Op::Add(_), Some(_)) = (op, self.held.get(&wr_id)) {
            self.actors[at].added.0 += 1;
        } else if let (Op::Write(_), Some(held)) = (op, self.held.get_mut(&wr_id)) {
            held.what = What::Nothing;
        }
    }

    fn srqn(&self, at: usize) -> Option<u32> {
        let xrc = self.actors[at].kind == Kind::Xrc;
        (xrc.then_some(self.xrc.as_ref()).flatten()).map(|(_, srq, _)| srq.srq_num())
    }

    /// A flow of messages: from whom, to whom, in which lives.
    fn flow(&mut self, at: usize) -> (u64, usize) {
        let to = match self.actors[at].kind {
            Kind::Ud => {
                let uds: Vec<usize> = (0..self.actors.len())
                    .filter(|&other| self.actors[other].kind == Kind::Ud)
                    .collect();
                uds[self.random.below(uds.len() as u64) as usize]
            }
            Kind::Xrc => at,
            _ => self.actors[at].peer.expect("connected"),
        };
        (Self::name(at, to, self.actors[at].life), to)
    }

    fn name(from: usize, to: usize, life: u64) -> u64 {
        (from as u64) << 56 | (to as u64) << 48 | life
    }

    #[allow(clippy::too_many_arguments, reason = "a request has many parts")]
    fn send_message(
        &mut self,
        at: usize,
        to: usize,
        (flow, seq): (u64, u64),
        wr_id: u64,
        op: Op,
        bytes: &[u8],
        place: usize,
        flags: SendFlags,
    ) {
        let kind = self.actors[at].kind;
        self.region.write(place * PLACE, bytes);
        let block = self.random.below(4) == 0;
        let block = block.then(|| self.slab.as_ref()?.take(256).ok()).flatten();
        let data = match block {
            Some(mut block) => {
                block.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
                Data::Block(block, bytes.len() as u32)
            }
            None if bytes.len() <= 64 => Data::Inline(bytes),
            None => {
                let mut sge = self.sge(place, bytes.len());
                if self.random.below(300) == 0 {
                    sge.lkey ^= 0x1000;
                }
                Data::Sge(sge)
            }
        };
        let posted = match kind {
            Kind::Ud => {
                let (qpn, qkey) = (self.actors[to].qp.qp_num(), self.connect.qkey);
                let address = To::Datagram(&self.ah, qpn, qkey);
                self.actors[at].qp.post(wr_id, &address, op, data, flags)
            }
            _ => {
                let address = self.srqn(at).map_or(To::Peer, To::Queue);
                self.actors[at].qp.post(wr_id, &address, op, data, flags)
            }
        };
        if self.took(at, wr_id, posted, flags, place, What::Message { flow, seq }) {
            self.actors[at].seq.insert(flow, seq);
        }
    }

    /// Notes a request that the queue took.
    fn took(
        &mut self,
        at: usize,
        wr_id: u64,
        posted: Result<(), PostError>,
        flags: SendFlags,
        place: usize,
        what: What,
    ) -> bool {
        if let Err(error) = posted {
            let full = error == PostError::QueueFull || error == PostError::WrongState;
            assert!(full, "{error}");
            self.places.push(place);
            return false;
        }
        self.tally.operations += 1;
        let signaled = flags.contains(SendFlags::SIGNALED) || self.actors[at].signals_all;
        self.actors[at].sends.posted(wr_id, signaled);
        self.held.insert(
            wr_id,
            Held {
                actor: at,
                place: Some(place),
                what,
            },
        );
        self.say(|| format!("{at}: send {wr_id}, {flags:?}"));
        if self.random.below(3) != 0 {
            self.actors[at].qp.ring();
        }
        true
    }

    fn poll(&mut self, cq: usize, limit: usize) -> usize {
        for count in 0..limit {
            let Some(completion) = self.cqs[cq].poll_one() else {
                return count;
            };
            self.told(completion);
        }
        limit
    }

    fn told(&mut self, completion: Completion<'static>) {
        let wr_id = completion.wr_id;
        let status = completion.status();
        self.say(|| format!("told {wr_id}: {status}"));
        let held = self.held.remove(&wr_id).expect("told, and not in flight");
        self.places.extend(held.place);
        match held.what {
            What::Receive { .. } => self.received(&held, completion),
            _ => self.sent(&held, completion),
        }
    }

    fn received(&mut self, held: &Held, completion: Completion<'static>) {
        let status = completion.status();
        *self.tally.receives.entry(status.name()).or_default() += 1;
        let by_target = self.xrc.as_ref().map(|(target, ..)| target.qp_num());
        let by_target = by_target == Some(completion.qp_num);
        let by = self
            .actors
            .iter()
            .position(|actor| actor.qp.qp_num() == completion.qp_num);
        let shared = matches!(held.what, What::Receive { shared: true });
        self.tally.shared += u64::from(shared);
        match (by_target, shared) {
            (true, _) => self.xrc_flying.told(completion.wr_id),
            (_, true) => self.srq_flying.told(completion.wr_id),
            (_, false) => {
                assert_eq!(by, Some(held.actor), "a receive of another queue pair");
                self.actors[held.actor].receives.told(completion.wr_id);
            }
        }
        let Ok(done) = completion.result else { return };
        assert!(done.opcode.is_recv(), "a receive completes as one");
        if done.opcode == WcOpcode::RecvRdmaWithImm {
            let Imm::Data(imm) = done.imm() else {
                panic!("it was sent with an immediate");
            };
            let to = by.filter(|_| !by_target);
            let from = match to {
                Some(to) => self.actors[to].peer,
                None => self.actors.iter().position(|actor| actor.kind == Kind::Xrc),
            };
            let from = from.expect("somebody sent it");
            let flow = Self::name(from, to.unwrap_or(from), self.actors[from].life);
            let reliable = self.actors[from].kind.reliable();
            let inbox = match to {
                Some(to) => &mut self.actors[to].inbox,
                None => &mut self.xrc_inbox,
            };
            return inbox.message(flow, imm.get().into(), reliable);
        }
        let place = held.place.expect("receives have a place");
        let length = done.byte_len().expect("receives have a length") as usize;
        let by = by.filter(|_| !by_target);
        let datagram = by.is_some_and(|by| self.actors[by].kind == Kind::Ud);
        let head = if datagram { GRH } else { 0 };
        let mut bytes = vec![0; length - head];
        self.region.read(place * PLACE + head, &mut bytes);
        let (flow, seq) = read(&bytes);
        if let Imm::Data(imm) = done.imm() {
            assert_eq!(imm.get(), seq as u32, "the immediate of another message");
        }
        let sender = (flow >> 56) as usize;
        let reliable = self.actors[sender].kind.reliable();
        if datagram {
            self.tally.datagrams += 1;
            assert_eq!(done.src_qp(), Some(self.actors[sender].qp.qp_num()));
        }
        let inbox = match by {
            Some(by) => &mut self.actors[by].inbox,
            None => &mut self.xrc_inbox,
        };
        inbox.message(flow, seq, reliable);
    }

    fn sent(&mut self, held: &Held, completion: Completion<'static>) {
        let status = completion.status();
        *self.tally.sends.entry(status.name()).or_default() += 1;
        self.tally.blocks += u64::from(completion.block.is_some());
        let at = held.actor;
        assert_eq!(completion.qp_num, self.actors[at].qp.qp_num());
        let success = status == WcStatus::Success;
        let front = self.passed(at, completion.wr_id, completion.retired);
        for wr_id in front {
            let passed = self
                .held
                .remove(&wr_id)
                .expect("passed over, and not in flight");
            self.tally.passed_over += 1;
            self.places.extend(passed.place);
            self.done(at, &passed, None);
        }
        let actor = &mut self.actors[at];
        actor
            .sends
            .told(completion.wr_id, completion.retired, success);
        if success {
            assert!(!actor.failed, "a success behind a failure");
            let opcode = completion.result.expect("a success").opcode;
            assert!(!opcode.is_recv());
            self.done(at, held, Some(opcode));
        } else {
            let flushed = matches!(status, WcStatus::WrFlushErr | WcStatus::FatalErr);
            assert!(flushed || !actor.failed, "{status} behind a failure");
            actor.failed = true;
            self.undone(at, held);
        }
    }

    /// The unsignalled requests that a completion passes over.
    fn passed(&self, at: usize, wr_id: u64, retired: u32) -> Vec<u64> {
        self.actors[at].sends.before(wr_id, retired)
    }

    /// A request is known to have been executed.
    fn done(&mut self, at: usize, held: &Held, opcode: Option<WcOpcode>) {
        let word = |world: &Self, which: usize| {
            let offset = WORDS + at * 32 + which * 8;
            world.region.word(offset).load(Ordering::Acquire)
        };
        let reliable = self.actors[at].kind.reliable();
        match held.what {
            What::Message { flow, seq } => {
                self.actors[at].acknowledged.insert(flow, seq);
            }
            What::Write { value } if reliable => {
                let there = word(self, 0);
                let actor = &mut self.actors[at];
                assert!(
                    (value..=actor.wrote).contains(&there),
                    "written {value}, found {there}"
                );
                actor.written = value;
            }
            What::Read { at_least } if opcode.is_some() => {
                let mut bytes = [0; 8];
                let place = held.place.expect("results have a place");
                self.region.read(place * PLACE, &mut bytes);
                let found = u64::from_ne_bytes(bytes);
                let newest = self.actors[at].wrote;
                assert!(
                    (at_least..=newest).contains(&found),
                    "read {found}, of {at_least} and more"
                );
            }
            What::Add => {
                let there = word(self, 1);
                let actor = &mut self.actors[at];
                actor.added.1 += 1;
                let (posted, done, doubt) = actor.added;
                assert!(
                    (done..=posted).contains(&there),
                    "{there} adds, {done} done, {doubt} in doubt"
                );
            }
            _ => {}
        }
    }

    /// What became of a request is not known, or it was not executed.
    fn undone(&mut self, at: usize, held: &Held) {
        if matches!(held.what, What::Add) {
            self.actors[at].added.2 += 1;
        }
    }

    /// Leaves SQE, SQD and ERR.
    fn mend(&mut self, at: usize) {
        match self.actors[at].qp.state() {
            QpState::Sqe | QpState::Sqd => {
                if self.actors[at].qp.state() == QpState::Sqe {
                    // What failed is told before what comes next.
                    self.drain();
                }
                if self.actors[at].qp.go_to(QpState::Rts).is_ok() {
                    self.actors[at].failed = false;
                }
            }
            QpState::Err => self.again(at),
            _ => {}
        }
    }

    /// Goes where the verbs let it go.
    fn turn(&mut self, at: usize) {
        match self.random.below(4) {
            0 => self.actors[at].qp.fail().expect("from every state"),
            1 => self.again(at),
            _ => {
                // Refused unless it is in RTS.
                let _ = self.actors[at].qp.go_to(QpState::Sqd);
            }
        }
    }

    /// Polls until nothing is left.
    fn drain(&mut self) {
        for cq in 0..self.cqs.len() {
            while self.poll(cq, 64) == 64 {}
        }
    }

    /// Ends an actor's life, and its peer's, and begins the next.
    fn again(&mut self, at: usize) {
        self.drain();
        let ends: Vec<usize> = [Some(at), self.actors[at].peer]
            .into_iter()
            .flatten()
            .collect();
        for &end in &ends {
            if !self.reset(end) {
                return;
            }
        }
        for &end in &ends {
            self.settled(end);
        }
        if self.actors[at].kind == Kind::Xrc {
            let (target, ..) = self.xrc.as_ref().expect("there is a target");
            let attr = bellwire::state::QpAttr::default();
            let reset = bellwire::state::QpAttrMask::STATE;
            target.modify(&attr, reset).expect("RESET");
        }
        self.introduce(at);
    }

    /// To RESET; `false`: the device is dead.
    fn reset(&mut self, at: usize) -> bool {
        self.say(|| format!("{at}: reset"));
        let mut told = Vec::new();
        let actor = &mut self.actors[at];
        let reset = actor.qp.reset(&mut self.cqs[actor.cq], |wr_id, block| {
            told.push((wr_id, block));
        });
        if reset.is_err() {
            assert!(told.is_empty() && self.ended);
            return false;
        }
        for (wr_id, block) in told {
            self.tally.told_by_reset += 1;
            self.tally.blocks += u64::from(block.is_some());
            let held = self
                .held
                .remove(&wr_id)
                .expect("told by a reset, and not in flight");
            self.places.extend(held.place);
            match held.what {
                What::Receive { shared } => {
                    assert!(!shared, "a shared receive stays where it is");
                    self.actors[at].receives.told(wr_id);
                }
                _ => {
                    self.actors[at].sends.cleared(wr_id);
                    self.undone(at, &held);
                }
            }
        }
        let actor = &mut self.actors[at];
        assert_eq!(
            (actor.sends.flying(), actor.receives.flying()),
            (0, 0),
            "lost"
        );
        actor.failed = false;
        actor.life += 1;
        true
    }

    /// At the end of a life everything acknowledged has arrived, and every add is accounted for.
    fn settled(&mut self, at: usize) {
        let actor = &self.actors[at];
        if actor.kind.reliable() && !self.ended {
            let inbox = match actor.peer {
                Some(peer) => &self.actors[peer].inbox,
                None => &self.xrc_inbox,
            };
            for (&flow, &seq) in &actor.acknowledged {
                assert!(
                    inbox.last(flow) >= seq,
                    "message {seq} was acknowledged, and is not there"
                );
            }
        }
        let counted = self
            .region
            .word(WORDS + at * 32 + 8)
            .load(Ordering::Acquire);
        let (_, done, doubt) = actor.added;
        assert!(
            (done..=done + doubt).contains(&counted),
            "{counted} adds, {done} done, {doubt} in doubt"
        );
        self.actors[at].acknowledged.clear();
    }

    fn fault(&mut self) {
        self.tally.faults += 1;
        let at = self.someone();
        let qpn = self.actors[at].qp.qp_num();
        let packet = Trigger::Packet(1 + self.random.below(5));
        let fault = match self.random.below(80) {
            0..10 => Fault::DropRequest,
            10..20 => Fault::DropAck,
            20..30 => Fault::Delay(Duration::from_micros(self.random.below(500))),
            30..36 => Fault::RemoteAccess,
            36..44 => Fault::Rnr,
            44..48 => Fault::Status(WcStatus::GeneralErr),
            48..52 => Fault::QpFatal(qpn),
            52..60 => return self.device.set_port_up(false),
            60..78 => return self.device.set_port_up(true),
            78 => {
                self.ended = true;
                match self.random.below(2) {
                    0 => Fault::CqOverrun(self.cqs[self.actors[at].cq].cqn()),
                    _ => Fault::SrqErr(self.srq.srq_num()),
                }
            }
            _ => {
                self.ended = true;
                Fault::DeviceFatal
            }
        };
        self.say(|| format!("{fault:?} at {packet:?}"));
        let trigger = if self.ended {
            Trigger::After(Duration::ZERO)
        } else {
            packet
        };
        let script = Script::default().with(trigger, fault);
        self.device.inject(&script).expect("a good script");
        if self.ended {
            self.device.advance(Duration::from_nanos(1));
        }
    }

    /// Ends the world: everything is told, and nothing is left.
    pub fn end(mut self) -> Tally {
        for actor in &mut self.actors {
            actor.qp.fail().expect("from every state");
            actor.qp.ring();
        }
        self.drain();
        self.watch();
        let mut alive = true;
        for at in 0..self.actors.len() {
            alive &= self.reset(at);
        }
        for at in 0..self.actors.len() {
            if alive {
                self.settled(at);
            }
        }
        let Self {
            actors,
            srq,
            xrc,
            mut held,
            cqs,
            slab,
            mut tally,
            ..
        } = self;
        if !alive {
            // A dead device resets nothing: what is left was executed, and nobody asked to be told.
            for actor in &actors {
                for wr_id in actor.sends.silent() {
                    held.remove(&wr_id).expect("in flight");
                }
            }
        }
        drop(actors);
        let mut clear = |srq: Srq| {
            let told = srq.destroy(|wr_id, _| {
                tally.told_by_reset += 1;
                let what = held
                    .remove(&wr_id)
                    .expect("told at the end, and not in flight")
                    .what;
                assert!(matches!(what, What::Receive { shared: true }));
            });
            assert!(told.is_ok(), "the shared queue is used by nobody");
        };
        clear(srq);
        if let Some((target, srq, _)) = xrc {
            drop(target);
            clear(srq);
        }
        assert!(held.is_empty(), "{} requests were never told", held.len());
        drop(cqs);
        let outstanding = slab.map_or(0, |slab| slab.outstanding());
        assert_eq!(outstanding, 0, "blocks were lost");
        tally
    }
}
