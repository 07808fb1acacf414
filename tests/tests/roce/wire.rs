//! Two ends of a reliable connection over a wire that loses, repeats, delays and damages packets. Whatever it does, each
//! request has one outcome, requests succeed in order, and the bytes are right.

use bellwire_core::qp::Mtu;
use bellwire_core::wr::WcStatus;
use bellwire_roce::icrc::{self, Addresses, Flow};
use bellwire_roce::packet::{MAX_HEADER, PORT, Packet, padding};
use bellwire_roce::{
    Access, Arrival, Atomic, Extra, Payload, Psn, Range, Refusal, Request, Requester,
    RequesterAttr, Responder, ResponderAttr, Results, Target, Transmit, Unplaceable, Verb,
};
use bellwire_tests::fixture::Random;
use std::collections::VecDeque;
use std::net::Ipv6Addr;
use std::time::Duration;

/// So many of 1,000.
fn happens(random: &mut Random, of_thousand: u64) -> bool {
    random.below(1000) < of_thousand
}

const RKEY: u32 = 77;
const MEMORY: u64 = 1 << 16;
const BASE: u64 = 0x7000_0000_0000;

/// The responder's memory, and its receives.
struct Memory {
    bytes: Vec<u8>,
    /// Receives that are posted; each takes as much as there is.
    receives: u32,
    taken: Option<Vec<u8>>,
    arrivals: Vec<(Arrival, Vec<u8>)>,
    invalidated: Vec<u32>,
}

impl Memory {
    fn new() -> Self {
        Self {
            bytes: (0..MEMORY).map(|at| at as u8).collect(),
            receives: 0,
            taken: None,
            arrivals: Vec::new(),
            invalidated: Vec::new(),
        }
    }

    fn slice(&mut self, range: Range) -> Result<&mut [u8], Refusal> {
        let start = range.addr.checked_sub(BASE).filter(|_| range.rkey == RKEY);
        let start = start.ok_or(Refusal::Access)? as usize;
        let end = start + range.length as usize;
        self.bytes.get_mut(start..end).ok_or(Refusal::Access)
    }
}

impl Target for Memory {
    fn take_receive(&mut self) -> Result<(), Refusal> {
        if self.taken.is_none() {
            self.receives = self.receives.checked_sub(1).ok_or(Refusal::NotReady)?;
            self.taken = Some(Vec::new());
        }
        Ok(())
    }

    fn place(&mut self, offset: u32, data: &[u8]) -> Result<(), Refusal> {
        let taken = self.taken.as_mut().expect("one was taken");
        taken.truncate(offset as usize);
        assert_eq!(taken.len(), offset as usize, "no byte is left out");
        taken.extend(data);
        Ok(())
    }

    fn deliver(&mut self, arrival: Arrival) -> Result<(), Refusal> {
        let taken = self.taken.take().expect("one was taken");
        self.invalidated.extend(arrival.invalidate);
        self.arrivals.push((arrival, taken));
        Ok(())
    }

    fn check(&mut self, range: Range, _: Access) -> Result<(), Refusal> {
        self.slice(range).map(|_| ())
    }

    fn write(&mut self, range: Range, data: &[u8]) -> Result<(), Refusal> {
        self.slice(range)?[..data.len()].copy_from_slice(data);
        Ok(())
    }

    fn atomic(&mut self, addr: u64, rkey: u32, atomic: Atomic) -> Result<u64, Refusal> {
        let length = 8;
        let slice = self.slice(Range { addr, rkey, length })?;
        let original = u64::from_ne_bytes(slice.try_into().unwrap());
        let new = match atomic {
            Atomic::CompareSwap { compare, swap } if original == compare => swap,
            Atomic::CompareSwap { .. } => original,
            Atomic::FetchAdd(add) => original.wrapping_add(add),
        };
        slice.copy_from_slice(&new.to_ne_bytes());
        Ok(original)
    }
}

/// The requester's memory: a buffer for each request.
struct Local(Vec<Vec<u8>>);

impl Results for Local {
    fn place(&mut self, id: u64, offset: u32, data: &[u8]) -> Result<(), Unplaceable> {
        let buffer = self.0.get_mut(id as usize).ok_or(Unplaceable)?;
        let end = offset as usize + data.len();
        buffer
            .get_mut(offset as usize..end)
            .ok_or(Unplaceable)?
            .copy_from_slice(data);
        Ok(())
    }
}

const FLOW: Flow = Flow {
    // With IPv4, one of 65,536 damaged packets passes.
    addresses: Addresses::V6(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST),
    source_port: 50000,
    destination_port: PORT,
};

/// The bytes of a packet.
fn encode(transmit: &Transmit, payload: &[u8]) -> Vec<u8> {
    let mut header = [0; MAX_HEADER];
    let length = transmit.header.encode(payload.len(), &mut header);
    let mut bytes = header[..length].to_vec();
    bytes.extend(payload);
    bytes.resize(bytes.len() + padding(payload.len()) + icrc::SIZE, 0);
    icrc::seal(&FLOW, 0, &mut bytes);
    bytes
}

/// What a wire does to packets, of 1,000 each.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    lost: u64,
    repeated: u64,
    reordered: u64,
    damaged: u64,
}

struct Wire {
    faults: Faults,
    /// Packets under way, and when each arrives.
    packets: VecDeque<(Duration, Vec<u8>)>,
}

impl Wire {
    fn send(&mut self, now: Duration, mut bytes: Vec<u8>, random: &mut Random) {
        if happens(random, self.faults.lost) {
            return;
        }
        if happens(random, self.faults.damaged) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << random.below(8);
        }
        let copies = 1 + usize::from(happens(random, self.faults.repeated));
        for _ in 0..copies {
            let late = match happens(random, self.faults.reordered) {
                true => random.below(200),
                false => 0,
            };
            let arrives = now + Duration::from_micros(10 + late);
            let at = self.packets.iter().position(|(other, _)| *other > arrives);
            let at = at.unwrap_or(self.packets.len());
            self.packets.insert(at, (arrives, bytes.clone()));
        }
    }

    fn next(&self) -> Option<Duration> {
        self.packets.front().map(|(time, _)| *time)
    }

    fn arrived(&mut self, now: Duration) -> Option<Vec<u8>> {
        if self.next()? > now {
            return None;
        }
        self.packets.pop_front().map(|(_, bytes)| bytes)
    }
}

/// A connection, and what a program would know of it.
struct World {
    random: Random,
    now: Duration,
    requester: Requester,
    responder: Responder,
    /// To the responder, and back.
    wires: [Wire; 2],
    local: Local,
    memory: Memory,
    /// What the memory has to be when all requests so far have been executed.
    model: Vec<u8>,
    posted: Vec<Request>,
    /// What each request brings when it is executed in its turn.
    expected: Vec<Vec<u8>>,
    completed: usize,
    /// How many of these succeeded: all before the first that did not.
    succeeded: usize,
}

const MTUS: [Mtu; 3] = [Mtu::Mtu256, Mtu::Mtu1024, Mtu::Mtu4096];

impl World {
    fn new(seed: u64, faults: Faults) -> Self {
        let mut random = Random::new(seed);
        let psn = Psn::new(random.number() as u32 | 0xff_ff00);
        let mtu = MTUS[random.below(3) as usize];
        let max_rd_atomic = 1 + random.below(4) as u8;
        let requester = RequesterAttr {
            dest_qp: 17,
            mtu,
            sq_psn: psn,
            timeout: 8,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic,
        };
        let responder = ResponderAttr {
            dest_qp: 18,
            mtu,
            rq_psn: psn,
            max_dest_rd_atomic: max_rd_atomic,
            min_rnr_timer: 1,
        };
        let memory = Memory::new();
        let wire = || Wire {
            faults,
            packets: VecDeque::new(),
        };
        Self {
            random,
            now: Duration::ZERO,
            requester: Requester::new(&requester, 64).unwrap(),
            responder: Responder::new(&responder).unwrap(),
            wires: [wire(), wire()],
            local: Local(Vec::new()),
            model: memory.bytes.clone(),
            memory,
            posted: Vec::new(),
            expected: Vec::new(),
            completed: 0,
            succeeded: 0,
        }
    }

    /// Posts any request, if there is room, and executes it in the model.
    fn post(&mut self) {
        let (id, random) = (self.posted.len() as u64, &mut self.random);
        let length = match random.below(4) {
            0 => random.below(10),
            1 => random.below(1000),
            _ => random.below(20_000),
        } as u32;
        let at = random.below((MEMORY - u64::from(length)) / 8) * 8;
        let (addr, rkey) = (BASE + at, RKEY);
        let imm = (id as u32).to_be_bytes();
        let (verb, length) = match random.below(9) {
            0 => (Verb::Send(Extra::Nothing), length),
            1 => (Verb::Send(Extra::Immediate(imm)), length),
            2 => (Verb::Send(Extra::Invalidate(id as u32)), length),
            3 | 4 => (
                Verb::Write {
                    addr,
                    rkey,
                    imm: None,
                },
                length,
            ),
            5 => (
                Verb::Write {
                    addr,
                    rkey,
                    imm: Some(imm),
                },
                length,
            ),
            6 => (Verb::Read { addr, rkey }, length),
            7 => (
                Verb::FetchAdd {
                    addr: BASE + at / 64 * 8,
                    rkey,
                    add: id,
                },
                8,
            ),
            _ => (
                Verb::CompareSwap {
                    addr: BASE + at / 64 * 8,
                    rkey,
                    compare: 0,
                    swap: id,
                },
                8,
            ),
        };
        let (solicited, fence) = (happens(random, 300), happens(random, 100));
        let request = Request {
            id,
            verb,
            length,
            solicited,
            fence,
        };
        if self.requester.post(request).is_err() {
            return;
        }
        let mut buffer = vec![0; length as usize];
        if !request.is_answered() {
            buffer.fill_with(|| random.number() as u8);
        }
        let mut expected = Vec::new();
        match verb {
            Verb::Send(_) => {}
            Verb::Write { addr, .. } => {
                let start = (addr - BASE) as usize;
                self.model[start..start + buffer.len()].copy_from_slice(&buffer);
            }
            Verb::Read { addr, .. } => {
                let start = (addr - BASE) as usize;
                expected = self.model[start..start + buffer.len()].to_vec();
            }
            Verb::FetchAdd { addr, .. } | Verb::CompareSwap { addr, .. } => {
                let start = (addr - BASE) as usize;
                let word = &mut self.model[start..start + 8];
                let original = u64::from_ne_bytes((&*word).try_into().unwrap());
                let new = match verb {
                    Verb::FetchAdd { add, .. } => original.wrapping_add(add),
                    Verb::CompareSwap { compare, swap, .. } if original == compare => swap,
                    _ => original,
                };
                word.copy_from_slice(&new.to_ne_bytes());
                expected = original.to_ne_bytes().to_vec();
            }
        }
        self.expected.push(expected);
        self.posted.push(request);
        self.local.0.push(buffer);
    }

    /// Everything that can happen without time.
    fn settle(&mut self) {
        while self.turn() {}
    }

    /// What each end does at once; whether something happened.
    fn turn(&mut self) -> bool {
        let mut happened = false;
        while let Some(transmit) = self.requester.poll_transmit(self.now) {
            happened = true;
            let payload = match transmit.payload {
                Payload::Request { id, span } => {
                    let start = span.offset as usize;
                    self.local.0[id as usize][start..start + span.length as usize].to_vec()
                }
                _ => Vec::new(),
            };
            self.wires[0].send(self.now, encode(&transmit, &payload), &mut self.random);
        }
        while let Some(transmit) = self.responder.poll_transmit() {
            happened = true;
            let payload = match transmit.payload {
                Payload::Memory { addr, rkey, length } => self
                    .memory
                    .slice(Range { addr, rkey, length })
                    .unwrap()
                    .to_vec(),
                _ => Vec::new(),
            };
            self.wires[1].send(self.now, encode(&transmit, &payload), &mut self.random);
        }
        while let Some(bytes) = self.wires[0].arrived(self.now) {
            happened = true;
            if let Ok(intact) = icrc::check(&FLOW, &bytes) {
                let packet = Packet::decode(intact.packet).unwrap();
                self.responder.receive(&packet, &mut self.memory).unwrap();
            }
        }
        while let Some(bytes) = self.wires[1].arrived(self.now) {
            happened = true;
            if let Ok(intact) = icrc::check(&FLOW, &bytes) {
                let packet = Packet::decode(intact.packet).unwrap();
                self.requester.receive(&packet, self.now, &mut self.local);
            }
        }
        while let Some(completion) = self.requester.poll_completion() {
            assert_eq!(completion.id, self.completed as u64, "in order, each once");
            self.completed += 1;
            match completion.status {
                WcStatus::Success => {
                    assert_eq!(self.succeeded + 1, self.completed, "none behind a failure");
                    self.succeeded += 1;
                }
                WcStatus::RetryExcErr => assert_eq!(self.succeeded + 1, self.completed),
                status => {
                    assert_eq!(status, WcStatus::WrFlushErr);
                    assert!(self.succeeded + 1 < self.completed);
                }
            }
        }
        happened
    }

    /// Until the next packet arrives or the next timer ends.
    fn pass_time(&mut self) {
        let times = [
            self.wires[0].next(),
            self.wires[1].next(),
            self.requester.poll_timeout(),
        ];
        let next = times.into_iter().flatten().min();
        self.now = next.expect("something is under way").max(self.now);
        self.requester.handle_timeout(self.now);
    }

    fn run(&mut self, requests: usize) {
        while self.completed < requests && !self.requester.has_failed() {
            if self.posted.len() < requests && happens(&mut self.random, 300) {
                self.post();
            }
            if happens(&mut self.random, 200) {
                self.memory.receives += 1;
            }
            self.settle();
            if self.completed < self.posted.len() && !self.requester.has_failed() {
                self.pass_time();
            }
        }
        self.settle();
        assert_eq!(self.completed, self.posted.len(), "each has one outcome");
        self.check();
    }

    /// What the program finds at the end.
    fn check(&self) {
        let consumes = |request: &&Request| {
            matches!(
                request.verb,
                Verb::Send(_) | Verb::Write { imm: Some(_), .. }
            )
        };
        let arrivals = &self.memory.arrivals;
        let sure = self.posted[..self.succeeded]
            .iter()
            .filter(consumes)
            .count();
        assert!(arrivals.len() >= sure, "what succeeded has arrived");
        for (request, (arrival, bytes)) in self.posted.iter().filter(consumes).zip(arrivals) {
            let sent = &self.local.0[request.id as usize];
            assert_eq!(arrival.length, request.length);
            assert_eq!(arrival.solicited, request.solicited);
            let (imm, invalidate) = match request.verb {
                Verb::Send(Extra::Immediate(imm)) => (Some(imm), None),
                Verb::Send(Extra::Invalidate(rkey)) => (None, Some(rkey)),
                Verb::Write { imm, .. } => (imm, None),
                _ => (None, None),
            };
            assert_eq!((arrival.imm, arrival.invalidate), (imm, invalidate));
            match arrival.is_write {
                true => assert!(bytes.is_empty()),
                false => assert!(bytes == sent, "the bytes of request {}", request.id),
            }
        }
        let is_atomic = |request: &&Request| request.is_answered() && !is_read(request);
        for request in self.posted[..self.succeeded].iter().filter(is_atomic) {
            let id = request.id as usize;
            assert_eq!(
                self.local.0[id], self.expected[id],
                "an atomic is executed once, in turn"
            );
        }
        if self.succeeded == self.posted.len() {
            assert_eq!(arrivals.len(), sure);
            assert!(self.memory.bytes == self.model, "the memory is right");
        }
    }
}

fn is_read(request: &Request) -> bool {
    matches!(request.verb, Verb::Read { .. })
}

fn runs(seeds: core::ops::Range<u64>, requests: usize, faults: Faults) {
    for seed in seeds {
        println!("seed {seed}, {faults:?}");
        World::new(seed, faults).run(requests);
    }
}

#[test]
fn nothing_is_sent_again_on_a_wire_without_faults() {
    for seed in 0..50 {
        let mut world = World::new(seed, Faults::default());
        world.memory.receives = 1000;
        world.run(100);
        for request in world.posted.iter().filter(|request| is_read(request)) {
            let id = request.id as usize;
            assert!(
                world.local.0[id] == world.expected[id],
                "a READ is executed in turn"
            );
        }
        let counters = world.requester.counters();
        assert_eq!(counters.retransmitted, 0, "seed {seed}: {counters:?}");
        assert_eq!(world.responder.counters().duplicates, 0);
    }
}

#[test]
fn losses() {
    for lost in [1, 10, 50, 300] {
        runs(
            0..20,
            60,
            Faults {
                lost,
                ..Faults::default()
            },
        );
    }
}

#[test]
fn packets_that_come_twice_or_late() {
    runs(
        0..20,
        100,
        Faults {
            repeated: 200,
            ..Faults::default()
        },
    );
    runs(
        0..20,
        100,
        Faults {
            reordered: 200,
            ..Faults::default()
        },
    );
}

#[test]
fn everything_at_once() {
    runs(
        0..300,
        60,
        Faults {
            lost: 50,
            repeated: 50,
            reordered: 50,
            damaged: 20,
        },
    );
}
