//! A node that joins and connects as any other, and then does one bad thing, in every way that there is.

use crate::kinds::{self, KINDS};
use crate::script::mix;
use crate::shared::Shared;
use crate::wire::{
    ACKS, ANSWER, DATAGRAM, HEADER, Header, KEY, KEYS, MEMORIES, MEMORY, PULLED, REQUEST, SCRAMBLE,
    SPEAKING, face, line, packets, packets_from, place, section,
};
use bellwire::memory::Mapping;
use bellwire::wqe::opcode;
use bellwire::{AccessFlags, ConnectAttr, Cq, Device, Mr, Pd, Qp, QpInit, Region};
use bellwire_tests::fixture::{ALL, post_recv, until};
use bellwire_tests::parent::{Parent, card, number, read_card};
use serde_json::{Value, json};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

/// What it is started as.
pub const ROLE: &str = "attacker";

/// What its memory is called, where a process lists what it has mapped.
pub const MEMORY_NAME: &str = "attacked-memory";

const RECEIVES: u32 = 32;

/// Words that mean something, or nearly.
const WORDS: [u32; 10] = [
    0,
    1,
    2,
    3,
    0xff,
    0x1_0001,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_fffe,
    0xffff_ffff,
];

struct Attacker {
    qp: Qp,
    cq: Cq,
    region: Region,
    pd: Pd,
    victim: Value,
    /// What we write and the victim reads, and the other way round.
    link: Shared,
    theirs: Shared,
    keys: Shared,
    /// Where the entry of our memory is, in what we show.
    entry: usize,
    /// What has to stay.
    held: Vec<kinds::Held>,
    withheld: Vec<(Mr, std::os::fd::OwnedFd)>,
}

fn init() -> QpInit {
    QpInit {
        max_recv_wr: RECEIVES,
        ..QpInit::default()
    }
}

impl Attacker {
    /// Does what one does on a connection.
    fn serve(&mut self) {
        let (cq, qp, sge) = (&mut self.cq, &mut self.qp, self.region.sge(0, 8192));
        let done = cq.poll(16, drop);
        for _ in 0..done {
            // There may be no room, or no more connection.
            let _full = post_recv(qp, 1, &[sge]);
        }
        qp.rq().ring();
    }

    fn serve_for(&mut self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            self.serve();
            std::thread::yield_now();
        }
    }

    fn put_wide(&self, at: usize, value: u64) {
        self.keys.put(at, &value.to_le_bytes());
    }

    /// Lets all peers look again at what is shown.
    fn kick(&self) {
        let mapping = Mapping::shared("kick", 4096).build().expect("memory");
        drop(Region::new(&self.pd, mapping, ALL).expect("a region"));
    }

    /// Another descriptor stands where that of our memory stood.
    fn descriptor(&mut self, kind: usize) -> Value {
        let (held, bytes) = match KINDS[kind].1() {
            Ok(made) => made,
            Err(error) => return json!({"skipped": error.to_string()}),
        };
        let entry = self.entry;
        self.keys.write(entry + 4, held.number());
        self.put_wide(entry + 16, bytes as u64);
        self.put_wide(entry + 24, kinds::file_number(held.number()));
        if !held.closed {
            self.held.push(held);
        }
        Value::Null
    }

    /// Numbers that are none of a descriptor, and lengths that are none.
    fn numbers(&mut self) -> Value {
        let entry = self.entry;
        for (number, length) in [
            (u32::MAX, 1 << 16),
            (i32::MAX as u32, 1 << 16),
            (0, u64::MAX >> 1),
            (self.keys.read(entry + 4), 0),
            (self.keys.read(entry + 4), u64::MAX),
            (self.keys.read(entry + 4), 1 << 62),
        ] {
            self.keys.write(entry + 4, number);
            self.put_wide(entry + 16, length);
            self.serve_for(Duration::from_millis(5));
        }
        Value::Null
    }

    /// Every word of a segment that means something, and of what it shows of its keys and memory.
    fn words(&mut self) -> Value {
        let ours = self.qp.qp_num();
        let of_segment = (0..HEADER).step_by(64);
        let of_face = (0..8).map(|word| face(ours) + 4 * word);
        let places: Vec<usize> = (of_segment.chain(of_face)).chain([section(ours)]).collect();
        let mut tried = self.sweep(self.link, &places);
        let entry = self.entry;
        let rkey = self.region.remote(0).rkey;
        let key = (0..KEYS)
            .step_by(KEY)
            .find(|at| self.keys.read(*at) == rkey);
        let key = key.expect("it is shown");
        let behind = SCRAMBLE;
        let of_keys = (0..KEY).step_by(4).map(|at| key + at);
        let of_memory = (0..MEMORY).step_by(4).map(|at| entry + at);
        let scramble = [behind, behind + 4];
        let places: Vec<usize> = of_keys.chain(of_memory).chain(scramble).collect();
        tried += self.sweep(self.keys, &places);
        json!({"words": tried})
    }

    fn sweep(&mut self, memory: Shared, places: &[usize]) -> usize {
        for &at in places {
            let before = memory.read(at);
            for value in WORDS {
                memory.write(at, value);
                self.serve();
            }
            memory.write(at, before);
        }
        places.len() * WORDS.len()
    }

    /// Writes a packet where the victim looks for one, and waits a little until it has.
    fn send(&mut self, header: Header, bytes: &[u8]) {
        let position = self.theirs.read(0);
        for (index, part) in bytes.chunks(4).enumerate() {
            self.link.put(place(position, 4 * index), part);
        }
        let lines = (24 + bytes.len()).div_ceil(64) as u32;
        self.link.write(line(position.wrapping_add(lines)), 0);
        let start = line(position);
        for (index, word) in header.words().into_iter().enumerate() {
            self.link.write(start + 4 + 4 * index, word);
        }
        std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
        self.link.write(start, position);
        let since = Instant::now();
        while self.theirs.read(0) == position && since.elapsed() < Duration::from_micros(300) {
            std::hint::spin_loop();
        }
    }

    /// An entry, as a requester sends it.
    fn entry_of(&self, op: u8, segments: usize, length: u32) -> Vec<u8> {
        let (src, to) = (self.qp.qp_num(), read_card(&self.victim).1);
        let mut bytes = vec![0; 16 * segments];
        bytes[3] = op;
        bytes[4..8].copy_from_slice(&(src << 8 | segments as u32).to_be_bytes());
        bytes[11] = 8;
        if segments > 2 {
            bytes[16..24].copy_from_slice(&to.addr.to_be_bytes());
            bytes[24..28].copy_from_slice(&to.rkey.to_be_bytes());
        }
        let last = bytes.len() - 16;
        bytes[last..last + 4].copy_from_slice(&length.to_be_bytes());
        bytes
    }

    fn header(&self, kind: u8, msn: u16, flags: u8, len: usize) -> Header {
        Header {
            kind,
            dst: number(&self.victim, "qp_num") as u32,
            msn,
            life: 1,
            flags,
            len: len as u16,
            taken: None,
            short: 0,
            src: self.qp.qp_num(),
        }
    }

    /// Shows the victim that the queue pair sends, and packets that the victim expects.
    fn speak(&self) {
        let src = self.qp.qp_num();
        let psn = self.qp.endpoint().psn;
        self.link.write(packets(src), packets_from(psn));
        self.link.write(face(src), 1 | SPEAKING);
    }

    /// Requests of every operation with every flag, each as the next, as one that was, and as one that is
    /// to come; answers of every kind; and what behind the entry could be believed.
    fn messages(&mut self) -> Value {
        let src = self.qp.qp_num();
        self.speak();
        let ops = [
            opcode::NOP,
            opcode::SEND,
            opcode::SEND_IMM,
            opcode::SEND_INVAL,
            opcode::RDMA_WRITE,
            opcode::RDMA_WRITE_IMM,
            opcode::RDMA_READ,
            opcode::ATOMIC_CS,
            opcode::ATOMIC_FA,
            opcode::UMR,
            0xff,
        ];
        let ours = self.region.remote(0).addr;
        let behind: [&[u64]; 8] = [
            &[],
            &[ours, 100],
            &[ours, 6000],
            &[ours, u64::MAX],
            &[u64::MAX, 1 << 31],
            // Parts: the first, one in the middle, one beyond the end.
            &[0, 8000, 1, 2],
            &[4096, 8000, 1, 2],
            &[u64::MAX - 8, 1 << 31, 1, 2],
        ];
        let mut tried = 0u64;
        for op in ops {
            for flags in 0..32u8 {
                for (at, behind) in behind.iter().enumerate() {
                    let length = WORDS[(tried % WORDS.len() as u64) as usize];
                    let segments = [1, 2, 3, 4][mix(&[tried]) as usize % 4];
                    let mut bytes = self.entry_of(op, segments, length);
                    bytes.extend(behind.iter().flat_map(|word| word.to_ne_bytes()));
                    let msn = [0, 1, u16::MAX][at % 3];
                    let mut header = self.header(REQUEST, msn, flags, bytes.len());
                    // Whether or not it is a short one, and whatever it has.
                    header.short = [0, 0, 1, 12, 32, 33, 127][mix(&[tried, 1]) as usize % 7];
                    // Of whom it says that it is, too.
                    header.src = [src, src, src ^ 1, u32::MAX][mix(&[tried, 2]) as usize % 4];
                    self.send(header, &bytes);
                    tried += 1;
                }
            }
        }
        // Also what a READ brings, and what is none.
        for kind in [ANSWER, ACKS, DATAGRAM, 4, 5] {
            for status in 0..8u8 {
                for length in [0usize, 15, 16, 17, 40, 4112, 5000] {
                    for word in [0u64, 1, 4096, 6000, 1 << 31, u64::MAX] {
                        let mut bytes = vec![status; length];
                        if let Some(front) = bytes.first_chunk_mut::<16>() {
                            front[8..].copy_from_slice(&word.to_ne_bytes());
                            if kind == 5 {
                                front[..8].copy_from_slice(&word.to_ne_bytes());
                            }
                        }
                        let msn = mix(&[tried]) as u16 % 4;
                        let header = self.header(kind, msn, 0, length);
                        self.send(header, &bytes);
                        tried += 1;
                    }
                }
            }
        }
        json!({"messages": tried})
    }

    /// A message in memory of ours whose pages never come.
    fn withheld_message(&mut self) -> Value {
        let at = match self.withhold() {
            Ok(at) => at,
            Err(error) => return json!({"skipped": error.to_string()}),
        };
        self.speak();
        let mut bytes = self.entry_of(opcode::SEND, 2, 6000);
        bytes.extend([at, 6000].iter().flat_map(|word| word.to_ne_bytes()));
        let header = self.header(REQUEST, 0, PULLED, bytes.len());
        self.send(header, &bytes);
        Value::Null
    }

    /// Memory of ours whose pages never come, for READs.
    fn withheld_memory(&mut self) -> Value {
        let at = match self.withhold() {
            Ok(at) => at,
            Err(error) => return json!({"skipped": error.to_string()}),
        };
        let rkey = self.withheld.last().map(|(mr, _)| mr.rkey());
        json!({"addr": at, "rkey": rkey})
    }

    fn withhold(&mut self) -> std::io::Result<u64> {
        // SAFETY: at an address of the kernel's choice.
        let at = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(std::ptr::null_mut(), kinds::BYTES, access, flags, -1, 0)
        };
        assert_ne!(at, libc::MAP_FAILED);
        let held = kinds::withhold(at.cast(), kinds::BYTES)?;
        let place = NonNull::new(at.cast()).expect("mapped");
        // Registering would wait for pages that never come.
        let access = ALL | AccessFlags::ON_DEMAND;
        // SAFETY: it stays, and nobody here touches it.
        let mr = unsafe { self.pd.register(place, kinds::BYTES, access) }.expect("a registration");
        self.withheld.push((mr, held));
        Ok(at.expose_provenance() as u64)
    }

    /// As many pieces of memory as can be shown, all behind one key.
    fn many(&mut self) -> Value {
        let ours = self.region.remote(0);
        let of_key = (0..KEYS)
            .step_by(KEY)
            .find(|at| self.keys.read(*at) == ours.rkey);
        let key = of_key.expect("it is shown");
        // Address and length.
        self.put_wide(key + 16, 0);
        self.put_wide(key + 24, u64::MAX >> 1);
        // What is behind the table means something else; and so does our memory's own entry.
        let mut entries = 0u64;
        for at in (MEMORIES..SCRAMBLE)
            .step_by(MEMORY)
            .filter(|at| *at != self.entry)
        {
            let memory = kinds::memory(4096, 0, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW);
            let Ok(memory) = memory else { break };
            let fd = std::os::fd::IntoRawFd::into_raw_fd(memory) as u32;
            self.keys.write(at + 4, fd);
            self.put_wide(at + 24, kinds::file_number(fd));
            self.put_wide(at + 8, FIRST + entries * 4096);
            self.put_wide(at + 16, 4096);
            self.keys.write(at, 1);
            entries += 1;
        }
        json!({"first": FIRST, "step": 4096, "count": entries, "rkey": ours.rkey})
    }

    fn act(&mut self, order: &Value) -> Value {
        match order["step"].as_str().expect("a step") {
            "descriptor" => self.descriptor(number(order, "kind") as usize),
            "numbers" => self.numbers(),
            "words" => self.words(),
            "messages" => self.messages(),
            "hide" | "show" => {
                let generation = if order["step"] == "hide" { 2 } else { 1 };
                self.keys.write(self.entry, generation);
                self.kick();
                Value::Null
            }
            "hold" => {
                self.link.write(section(self.qp.qp_num()), 1);
                Value::Null
            }
            "many" => self.many(),
            "withheld message" => self.withheld_message(),
            "withheld memory" => self.withheld_memory(),
            "nothing" => Value::Null,
            step => panic!("no such step: {step}"),
        }
    }
}

/// Where the entry of a piece of memory is, in what is shown.
fn entry_of(keys: &Shared, addr: u64) -> usize {
    let wide = |at| u64::from(keys.read(at)) | u64::from(keys.read(at + 4)) << 32;
    let mut entries = (MEMORIES..SCRAMBLE).step_by(MEMORY);
    let ours = |at: &usize| wide(at + 8) == addr && keys.read(*at) % 2 == 1;
    entries.find(ours).expect("it is shown")
}

/// The segment in which this queue pair shows the other end that it sends: there are others, of other peers.
fn segment_of(writable: bool, qpn: u32) -> Shared {
    let mut found = None;
    until("a queue pair that sends", || {
        let all = Shared::all("memfd:bellwire-link", writable);
        found = all
            .into_iter()
            .find(|of| of.read(face(qpn)) & SPEAKING != 0);
        found.is_some()
    });
    found.expect("it was found")
}

/// Where the many pieces of memory are said to be.
const FIRST: u64 = 1 << 40;

/// Plays the role.
pub fn play() {
    let parent = Parent::start();
    parent.say("ready", Value::Null);
    let order = parent.hear("open");
    let fabric = order["fabric"].as_str().expect("a name").to_owned();
    let device = Device::open(&format!("soft:{fabric}")).expect("a node");
    let pd = device.alloc_pd();
    let (sends, receives) = init().cq_entries();
    let mut cq = device.create_cq(4 * (sends + receives)).expect("a queue");
    let qp = pd.create_qp(&mut cq, &init()).expect("a queue pair");
    let mapping = Mapping::shared(MEMORY_NAME, kinds::BYTES)
        .build()
        .expect("memory");
    let region = Region::new(&pd, mapping, ALL).expect("a region");
    parent.say("card", card(&qp, region.remote(0)));
    let victim = parent.hear("connect");
    let all = Shared::all("memfd:bellwire-keys", true);
    let keys = *all.first().expect("what we show");
    let (mut qp, peer) = (qp, read_card(&victim).0);
    let attr = ConnectAttr::default();
    qp.init(&attr).expect("INIT");
    for _ in 0..RECEIVES {
        post_recv(&mut qp, 1, &[region.sge(0, 8192)]).expect("room");
    }
    qp.rq().ring();
    qp.connect(&peer, &attr).expect("RTS");
    let mut attacker = Attacker {
        link: segment_of(true, qp.qp_num()),
        theirs: segment_of(false, peer.qp_num),
        keys,
        entry: entry_of(&keys, region.remote(0).addr),
        qp,
        cq,
        region,
        pd,
        victim,
        held: Vec::new(),
        withheld: Vec::new(),
    };
    parent.say("connected", Value::Null);
    loop {
        attacker.serve();
        if let Some(order) = parent.heard("act") {
            let acted = attacker.act(&order);
            parent.say("acted", acted);
        }
        std::thread::yield_now();
    }
}
