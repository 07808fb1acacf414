//! A hostile node: it joins and connects as any other, then scribbles over everything that it shares
//! with its peers, and sends nonsense to their sockets.

use crate::noise;
use crate::prey::place;
use crate::shared::Shared;
use crate::wire::{
    self, ACKS, ANSWER, DATAGRAM, FACE, FACES, HEADER, Header, PART, PULLED, REQUEST, SPEAKING,
    face, line, section,
};
use bellwire::memory::Mapping;
use bellwire::queue::AttachError;
use bellwire::wqe::{RdmaRead, RdmaWrite, Send, opcode};
use bellwire::wr::Remote;
use bellwire::{ConnectAttr, Cq, Device, Error, Pd, Qp, Region};
use bellwire_tests::fixture::{ALL, Random, SIGNALED, init, post};
use bellwire_tests::parent::{Parent, card, number, read_card};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// What it is started as.
pub const ROLE: &str = "hostile";

/// Bytes of its own memory.
const BYTES: usize = 1 << 16;

/// How often the hostile process checks whether its packet was read.
const GLANCES: usize = 10;

/// Far longer than a thread waits for its processor.
const PATIENCE: Duration = Duration::from_secs(60);

struct Hostile {
    qps: Vec<Qp>,
    /// What the victims know them by; some are others by now.
    names: Vec<u32>,
    /// Of the first packets that the victims expect of them.
    psns: Vec<u32>,
    region: Region,
    cq: Cq,
    pd: Pd,
    /// Of the victims' queue pairs, as they stand beside ours.
    cards: Vec<Value>,
    random: Random,
    /// Where the memory of links is mapped.
    places: Vec<usize>,
    links: Vec<Shared>,
    keys: Vec<Shared>,
    /// What victims write.
    theirs: Vec<Shared>,
    packets: u64,
    relinks: u64,
}

impl Hostile {
    fn look(&mut self) {
        self.links = Shared::all("memfd:bellwire-link", true);
        self.theirs = Shared::all("memfd:bellwire-link", false);
        self.keys = Shared::all("memfd:bellwire-keys", true);
        // A new link's memory is elsewhere at first; where it goes then, there is always something.
        if self.places.is_empty() {
            let all = self.links.iter().chain(&self.theirs);
            self.places = all.map(|shared| shared.at).collect();
        }
        let places = &self.places;
        self.links.retain(|shared| places.contains(&shared.at));
        self.theirs.retain(|shared| places.contains(&shared.at));
    }

    fn pick(&mut self, of: &[u64]) -> u64 {
        of[self.random.below(of.len() as u64) as usize]
    }

    /// Words of which many mean something.
    fn word(&mut self) -> u32 {
        let wild = self.random.number();
        match self.random.below(5) {
            0 => wild as u32,
            1 => u32::MAX - self.random.below(3) as u32,
            2 => self.random.below(4) as u32,
            3 => 1 << self.random.below(32),
            _ => self.random.below(1 << 17) as u32,
        }
    }

    fn card(&mut self) -> (usize, Value) {
        let at = self.random.below(self.cards.len() as u64) as usize;
        (at, self.cards[at].clone())
    }

    /// An address and a key that belong together, or nearly.
    fn target(&mut self, card: &Value) -> Remote {
        let mut to = match self.random.below(8) {
            0..3 => read_card(card).1,
            3..6 => place(card, "open"),
            6 => place(card, "local"),
            _ => Remote {
                addr: number(card, "closed"),
                ..place(card, "open")
            },
        };
        let (before, behind) = (self.random.below(64), self.random.below(1 << 17));
        to.addr = match self.random.below(8) {
            0 => to.addr.wrapping_sub(before),
            1..5 => to.addr.wrapping_add(behind & !7),
            5 => self.random.number(),
            _ => to.addr,
        };
        if self.random.below(16) == 0 {
            to.rkey = self.word();
        }
        to
    }

    /// An entry as a requester sends it.
    fn entry(&mut self, src: u32, card: &Value) -> (Vec<u8>, u8) {
        let known = [
            opcode::SEND,
            opcode::SEND_IMM,
            opcode::SEND_INVAL,
            opcode::RDMA_WRITE,
            opcode::RDMA_WRITE_IMM,
            opcode::RDMA_READ,
            opcode::ATOMIC_CS,
            opcode::ATOMIC_FA,
            opcode::UMR,
            opcode::NOP,
        ];
        // What a peer in order might send, so that some of it is executed.
        let proper = self.random.below(2) == 0;
        let op = match self.random.below(12) {
            _ if proper => opcode::RDMA_WRITE,
            0 => self.random.below(256) as u8,
            _ => known[self.random.below(known.len() as u64) as usize],
        };
        let between = match op {
            opcode::RDMA_WRITE | opcode::RDMA_WRITE_IMM | opcode::RDMA_READ => 1,
            opcode::ATOMIC_CS | opcode::ATOMIC_FA => 2,
            opcode::UMR => 11,
            _ => 0,
        };
        let mut segments = 2 + between;
        if !proper && self.random.below(8) == 0 {
            segments = self.random.below(64) as usize;
        }
        let mut bytes = vec![0; 16 * segments.max(1)];
        bytes[3] = op;
        bytes[4..8].copy_from_slice(&(src << 8 | segments as u32).to_be_bytes());
        bytes[11] = 8;
        let to = match proper {
            true => read_card(card).1,
            false => self.target(card),
        };
        if between != 0 && bytes.len() >= 32 {
            bytes[16..24].copy_from_slice(&to.addr.to_be_bytes());
            bytes[24..28].copy_from_slice(&to.rkey.to_be_bytes());
        }
        let length = match self.random.below(8) {
            _ if proper => 8 + self.random.below(300) as u32,
            0 => self.word(),
            1..4 => self.random.below(300) as u32,
            _ => self.random.below(5000) as u32,
        };
        let inline = self.random.below(3) == 0;
        let last = bytes.len() - 16;
        let count = if inline { length | 1 << 31 } else { length };
        bytes[last..last + 4].copy_from_slice(&count.to_be_bytes());
        let flags = match self.random.below(6) {
            _ if proper => {
                bytes.extend(self.random.bytes(length as usize));
                1
            }
            0 => self.random.below(256) as u8,
            1 => 0,
            // Behind it: the data, or where the data is, which may be in the entry.
            2 => {
                if self.random.below(2) == 0 {
                    let addr = self.region.remote(0).addr;
                    bytes[last + 8..last + 16].copy_from_slice(&addr.to_be_bytes());
                    return (bytes, PULLED);
                }
                // Often as many as the entry says, which are then copied.
                let sound = self.random.below(2) == 0;
                let mut total = 0u64;
                for _ in 0..self.random.below(10) {
                    let addr = match self.random.below(30) {
                        0..10 if !sound => self.random.number(),
                        0 => self.random.number(),
                        _ => self.region.remote(0).addr,
                    };
                    let wild = self.word();
                    let length = match self.random.below(30) {
                        1.. if sound => self.pick(&[1, 64, 100, 4096]),
                        _ => self.pick(&[0, 100, 70_000, u64::from(wild), u64::MAX]),
                    };
                    total = total.wrapping_add(length);
                    bytes.extend(addr.to_ne_bytes());
                    bytes.extend(length.to_ne_bytes());
                }
                if sound {
                    bytes[last..last + 4].copy_from_slice(&(total as u32).to_be_bytes());
                }
                PULLED
            }
            // A part of it, often all.
            3 => {
                let data = self.random.below(u64::from(length).min(4096) + 1);
                let wild = self.random.number();
                let at = self.pick(&[0, 0, 0, 4096, wild]);
                let total = self.pick(&[data, data, 8192, wild]);
                bytes.extend(at.to_ne_bytes());
                bytes.extend(total.to_ne_bytes());
                bytes.extend(self.random.bytes(data as usize));
                PART
            }
            _ => {
                let data = self.random.below(u64::from(length).min(4500) + 1) as usize;
                bytes.extend(self.random.bytes(data));
                1
            }
        };
        (bytes, flags)
    }

    /// Writes a packet where the peer will look for one.
    fn packet(&mut self, link: Shared) {
        let (at, card) = self.card();
        let (src, dst) = (self.names[at], number(&card, "qp_num") as u32);
        let kind = self.pick(
            &[
                REQUEST, REQUEST, REQUEST, REQUEST, DATAGRAM, ANSWER, ACKS, ACKS,
            ]
            .map(u64::from),
        ) as u8;
        let (bytes, flags) = match kind {
            REQUEST => self.entry(src, &card),
            DATAGRAM => {
                let count = self.random.below(200) as usize;
                (self.random.bytes(count), self.random.below(8) as u8)
            }
            // Of the victim's queue pairs, and others; not always whole ones.
            ACKS => {
                let mut bytes = Vec::new();
                for _ in 0..self.random.below(7) {
                    let (_, card) = self.card();
                    let wild = self.random.number();
                    let qpn = self.pick(&[number(&card, "qp_num"), wild]);
                    let life = self.pick(&[1, 1, 2, 3]);
                    let taken = self.random.below(40) << 16 | life;
                    bytes.extend((qpn << 32 | taken).to_ne_bytes());
                }
                let cut = self.random.below(20).saturating_sub(15) as usize;
                bytes.truncate(bytes.len().saturating_sub(cut));
                (bytes, 0)
            }
            _ => {
                let mut bytes = self.random.bytes(16);
                bytes[0] = self.random.below(5) as u8;
                if self.random.below(2) == 0 {
                    let ours = self.region.remote(0).addr;
                    bytes[8..].copy_from_slice(&ours.to_ne_bytes());
                }
                (bytes, 0)
            }
        };
        let wild = self.random.number();
        let mut header = Header {
            kind,
            dst: if self.random.below(10) == 0 {
                self.word()
            } else {
                dst
            },
            // The first of a life is always taken.
            msn: self.pick(&[0, 0, 0, 1, 2, 3, wild]) as u16,
            life: self.pick(&[1, 2, 3, wild, wild, wild]) as u16,
            flags,
            len: bytes.len() as u16,
            taken: (self.random.below(3) == 0).then(|| {
                let life = self.pick(&[1, 1, 2, wild]) as u16;
                (life, self.random.below(40) as u16)
            }),
            // Whatever the packet is, and how long.
            short: match self.random.below(4) {
                0 => self.random.below(21) as u8,
                1 => self.random.below(128) as u8,
                _ => 0,
            },
            src: self.pick(&[src.into(), src.into(), src.into(), wild]) as u32,
        };
        // What makes no sense at all ends the link: now and then.
        match self.random.below(400) {
            0 => header.kind = self.random.below(256) as u8,
            1 => header.len = self.word() as u16,
            _ => {}
        }
        if kind != ANSWER && kind != ACKS {
            // Mostly what the victim expects.
            if self.random.below(8) != 0 {
                link.write(wire::packets(src), wire::packets_from(self.psns[at]));
            }
            link.write(face(src), u32::from(header.life) | SPEAKING);
        }
        // How far the peer has read is in what it writes; which of them it is, is tried.
        let readers = self.theirs.clone();
        if readers.is_empty() {
            return;
        }
        let reader = readers[self.random.below(readers.len() as u64) as usize];
        let position = reader.read(0);
        let start = line(position);
        for (index, part) in bytes.chunks(4).enumerate() {
            link.put(wire::place(position, 4 * index), part);
        }
        for (index, word) in header.words().into_iter().enumerate() {
            link.write(start + 4 + 4 * index, word);
        }
        std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
        link.write(start, position);
        self.packets += 1;
        // The victim has to get at it, before another stands in its place.
        for _ in 0..GLANCES {
            if reader.read(0) != position {
                break;
            }
            std::thread::yield_now();
        }
    }

    /// One bad thing.
    fn act(&mut self) {
        let Some(link) = self.links.get(self.random.below(2) as usize).copied() else {
            return;
        };
        let value = self.word();
        match self.random.below(40) {
            0 => {
                let bytes = self.random.below(64) as usize;
                let at = self.random.below(link.bytes as u64 - 64) as usize & !3;
                let noise = self.random.bytes(bytes);
                link.put(at, &noise);
            }
            // How far it has read, whether it wants to be woken, …
            1 => link.write(self.random.below(5) as usize * 128, value),
            2 => link.write(self.random.below(HEADER as u64) as usize, value),
            // Any word of a face that somebody looks at.
            3..5 => {
                let (at, _) = self.card();
                let word = self.random.below(FACE as u64 / 4 + 1) as usize;
                let name = self.names[at];
                let face = face(name) + 4 * word;
                link.write(if 4 * word < FACE { face } else { section(name) }, value);
            }
            5 => {
                let at = FACES + self.random.below((link.bytes - FACES) as u64) as usize;
                link.write(at, value);
            }
            6..8 => {
                if let Some(keys) = self.keys.first().copied() {
                    let at = self.random.below(keys.bytes as u64) as usize;
                    // Where most of what is used stands.
                    let at = if value.is_multiple_of(2) {
                        at % 4096
                    } else {
                        at
                    };
                    keys.write(at, value);
                }
            }
            8 => {
                // Something that its library does by itself.
                let (at, card) = self.card();
                let remote = self.target(&card);
                let sge = self.region.sge(0, self.random.below(9000) as u32);
                let qp = &mut self.qps[at];
                let _full = match self.random.below(3) {
                    0 => post(qp, 0, Send {}, sge, SIGNALED),
                    1 => post(qp, 0, RdmaWrite { remote }, sge, SIGNALED),
                    _ => post(qp, 0, RdmaRead { remote }, sge, SIGNALED),
                };
                self.qps[at].sq().ring();
                self.cq.poll(usize::MAX, drop);
            }
            _ => self.packet(link),
        }
    }

    /// A queue pair that is gone keeps its place on the completion queue until its completions were polled.
    /// Those behind one that another thread is about to write wait for that thread, which may have lost its
    /// processor.
    fn new_qp(&mut self) -> Qp {
        let end = Instant::now() + PATIENCE;
        loop {
            self.cq.poll(usize::MAX, drop);
            match self.pd.create_qp(&mut self.cq, &init()) {
                Ok(qp) => return qp,
                Err(Error::Attach(AttachError::TooManyQueues { .. })) if Instant::now() < end => {
                    std::thread::yield_now();
                }
                Err(error) => panic!("a queue pair: {error}, on {:?}", self.cq),
            }
        }
    }

    /// Where a peer has ended the link: makes another.
    fn relink(&mut self) {
        let (at, card) = self.card();
        let (endpoint, _) = read_card(&card);
        let attr = ConnectAttr::default();
        let mut qp = self.new_qp();
        qp.init(&attr).expect("INIT");
        qp.connect(&endpoint, &attr).expect("RTS");
        // The number of the one before is free for the next.
        self.qps[at] = qp;
        self.relinks += 1;
    }

    /// Whether something is to be read that a victim did not open.
    fn sees(&self, secret: u64) -> bool {
        let of = |shared: &Shared| {
            let all = (0..shared.bytes).step_by(8);
            let word = |at| u64::from(shared.read(at)) | u64::from(shared.read(at + 4)) << 32;
            all.map(word).any(|word| word == secret)
        };
        self.theirs.iter().any(of)
    }
}

/// Plays the role.
pub fn play() {
    let parent = Parent::start();
    parent.say("ready", Value::Null);
    let order = parent.hear("open");
    let fabric = order["fabric"].as_str().expect("a name").to_owned();
    let device = Device::open(&format!("soft:{fabric}")).expect("a node");
    let pd = device.alloc_pd();
    let count = number(&order, "count") as usize;
    let (sends, receives) = init().cq_entries();
    // Twice as many, for links that are made anew while those of others are still reported.
    let entries = (sends + receives) * 2 * count as u32;
    let mut cq = device.create_cq_for(entries, 2 * count).expect("a queue");
    let qps: Vec<Qp> = (0..count)
        .map(|_| pd.create_qp(&mut cq, &init()).expect("a queue pair"))
        .collect();
    let mapping = Mapping::shared("hostile", BYTES).build().expect("memory");
    let region = Region::new(&pd, mapping, ALL).expect("a region");
    let cards: Value = qps.iter().map(|qp| card(qp, region.remote(0))).collect();
    parent.say("cards", cards);
    let order = parent.hear("connect");
    let seed = number(&order, "seed");
    let mut hostile = Hostile {
        names: qps.iter().map(Qp::qp_num).collect(),
        psns: qps.iter().map(|qp| qp.endpoint().psn).collect(),
        qps,
        region,
        cq,
        pd,
        cards: order["cards"].as_array().expect("cards").clone(),
        random: Random::new(seed),
        places: Vec::new(),
        links: Vec::new(),
        keys: Vec::new(),
        theirs: Vec::new(),
        packets: 0,
        relinks: 0,
    };
    // What is written from there is seen.
    let noise = hostile.random.bytes(BYTES);
    hostile.region.write(0, &noise);
    let attr = ConnectAttr::default();
    for (qp, card) in hostile.qps.iter_mut().zip(&hostile.cards) {
        qp.init(&attr).expect("INIT");
        qp.connect(&read_card(card).0, &attr).expect("RTS");
    }
    parent.say("connected", Value::Null);
    parent.hear("go");
    hostile.look();
    let connected = hostile.links.len();
    let sizes = [&hostile.links, &hostile.keys].map(|of| of[0].bytes as u64);
    let noise = noise::start(&fabric, seed, sizes.to_vec());
    let end = Instant::now() + Duration::from_millis(number(&order, "millis"));
    while Instant::now() < end {
        for _ in 0..100 {
            hostile.act();
        }
        hostile.look();
        if hostile.links.len() < connected {
            hostile.relink();
            hostile.look();
        }
    }
    let secrets = order["secrets"].as_array().expect("a list");
    let seen = (secrets.iter().flat_map(Value::as_u64)).any(|secret| hostile.sees(secret));
    let said = noise.join().expect("the noise's thread");
    parent.say(
        "done",
        json!({
            "links": connected, "packets": hostile.packets, "relinks": hostile.relinks, "said": said,
            "seen": seen,
        }),
    );
    parent.wait_for_end();
}
