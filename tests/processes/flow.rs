//! One end of a connection under load: posts its script's steps, and checks what is reported to it, and what
//! comes from the other end, against both scripts.

use crate::script::{KINDS, Kind, LONGEST, Script, Step, mix, pattern};
use bellwire::be::Be32;
use bellwire::queue::{Completion, Imm};
use bellwire::wqe::*;
use bellwire::wr::{Remote, SendFlags, Sge, WcOpcode, WcStatus};
use bellwire::{ConnectAttr, Cq, Pd, Qp, QpInit, Region};
use bellwire_tests::fixture::{SIGNALED, post, post_recv};
use bellwire_tests::parent::{card, read_card};
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

/// Steps under way.
const WINDOW: u64 = 8;
/// Receives posted: fewer, so that some steps meet none.
const RECEIVES: u64 = 6;
/// A place is written again when what was there has been checked: that may be so many behind.
const TARGETS: u64 = WINDOW + RECEIVES;

/// Where things are in a flow's memory.
const OUT: usize = 0;
const IN: usize = OUT + WINDOW as usize * LONGEST;
const TARGET: usize = IN + RECEIVES as usize * LONGEST;
const COUNTER: usize = TARGET + TARGETS as usize * LONGEST;
const SOURCE: usize = COUNTER + 8;
const RESULT: usize = SOURCE + LONGEST;
const OLD: usize = RESULT + WINDOW as usize * LONGEST;
/// Bytes of a flow's memory.
pub const BYTES: usize = (OLD + WINDOW as usize * 8).next_multiple_of(4096);

/// What memory holds that nothing has been written to.
const BLANK: u8 = 0xee;
/// What memory is overwritten with when its request was reported.
const SPOILT: u8 = 0xdd;

const FLOW: u32 = 48;
const RECEIVE: u64 = 1 << 47;

/// The flow that a request belongs to.
pub fn flow_of(wr_id: u64) -> usize {
    (wr_id >> FLOW) as usize
}

/// What flows need of a queue pair.
pub fn init() -> QpInit {
    QpInit {
        // Two for each step, and one to end with.
        max_send_wr: 2 * WINDOW as u32 + 1,
        max_recv_wr: RECEIVES as u32,
        max_send_sge: 2,
        max_recv_sge: 1,
        max_inline_data: 28,
        ..QpInit::default()
    }
}

/// A send request that is under way.
struct Posted {
    wr_id: u64,
    /// What is done when it is.
    step: Option<Step>,
}

/// What was counted on one end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Posted, and reported as done: steps that take a receive.
    pub notices: (u64, u64),
    /// Posted, and reported as done: fetch-and-adds.
    pub adds: (u64, u64),
}

/// One end of a connection.
pub struct Flow {
    qp: Qp,
    at: usize,
    /// Where its memory starts.
    base: usize,
    remote: Remote,
    ours: Script,
    theirs: Script,
    /// What the peer's memory has that is only read.
    their_source: u64,
    posted: VecDeque<Posted>,
    receives: VecDeque<u64>,
    posted_steps: u64,
    done_steps: u64,
    wr_ids: u64,
    pub counts: Counts,
    /// Steps done, of each kind.
    pub done: [u64; KINDS.len()],
    /// Notices that came.
    pub received: u64,
    /// How the first request that failed did.
    pub failure: Option<WcStatus>,
    /// What was in the memory that the peer may write to, when this end had failed for good.
    frozen: Option<Vec<u8>>,
}

impl Flow {
    /// One to be connected. `ends`: who we are, and who the peer is.
    pub fn new(
        pd: &Pd,
        cq: &mut Cq,
        region: &Region,
        at: usize,
        seed: u64,
        ends: (u64, u64),
    ) -> Self {
        let (us, them) = ends;
        let base = at * BYTES;
        region.write(base, &vec![BLANK; BYTES]);
        region.word(base + COUNTER).store(0, Ordering::Relaxed);
        let source = |of, to| mix(&[seed, of, to, 1]);
        region.write(base + SOURCE, &pattern(source(us, them), LONGEST));
        Self {
            qp: pd.create_qp(cq, &init()).expect("a queue pair"),
            at,
            base,
            remote: Remote::default(),
            ours: Script::new(seed, us, them),
            theirs: Script::new(seed, them, us),
            their_source: source(them, us),
            posted: VecDeque::new(),
            receives: VecDeque::new(),
            posted_steps: 0,
            done_steps: 0,
            wr_ids: 0,
            counts: Counts::default(),
            done: [0; KINDS.len()],
            received: 0,
            failure: None,
            frozen: None,
        }
    }

    /// For the peer.
    pub fn card(&self, region: &Region) -> Value {
        card(&self.qp, region.remote(self.base))
    }

    /// Connects to the end that this card is of.
    pub fn connect(&mut self, region: &Region, peer: &Value, attr: &ConnectAttr) {
        let (endpoint, remote) = read_card(peer);
        self.remote = remote;
        self.qp.init(attr).expect("INIT");
        for slot in 0..RECEIVES {
            self.post_receive(region, slot);
        }
        self.qp.rq().ring();
        self.qp.connect(&endpoint, attr).expect("RTS");
    }

    fn post_receive(&mut self, region: &Region, number: u64) {
        let wr_id = (self.at as u64) << FLOW | RECEIVE | number;
        let slot = self.base + IN + (number % RECEIVES) as usize * LONGEST;
        post_recv(&mut self.qp, wr_id, &[region.sge(slot, LONGEST as u32)]).expect("room");
        self.receives.push_back(wr_id);
    }

    /// Posts steps as far as the window goes.
    pub fn load(&mut self, region: &Region) {
        let before = self.posted_steps;
        while self.failure.is_none() && self.posted_steps - self.done_steps < WINDOW {
            let step = self.ours.step();
            self.post(region, step);
            self.posted_steps += 1;
        }
        if self.posted_steps != before {
            self.qp.sq().ring();
        }
    }

    /// Posts a last request, which is reported when all are done.
    pub fn finish(&mut self) {
        if self.failure.is_none() {
            let wr_id = self.wr_id(None);
            post(&mut self.qp, wr_id, Nop {}, NoPayload, SIGNALED).expect("room");
            self.qp.sq().ring();
        }
    }

    fn wr_id(&mut self, step: Option<Step>) -> u64 {
        let wr_id = (self.at as u64) << FLOW | self.wr_ids;
        self.wr_ids += 1;
        self.posted.push_back(Posted { wr_id, step });
        wr_id
    }

    fn there(&self, offset: usize) -> Remote {
        Remote {
            addr: self.remote.addr + offset as u64,
            rkey: self.remote.rkey,
        }
    }

    fn target(&self, step: &Step) -> Remote {
        let slot = step.notice.unwrap_or_default() % TARGETS;
        self.there(TARGET + slot as usize * LONGEST)
    }

    /// A step's place in one of the parts of our memory that have one for each in the window.
    fn place(&self, part: usize, step: &Step) -> usize {
        self.base + part + (step.number % WINDOW) as usize * LONGEST
    }

    fn old(&self, step: &Step) -> usize {
        self.base + OLD + (step.number % WINDOW) as usize * 8
    }

    fn post(&mut self, region: &Region, step: Step) {
        let flags = if step.signaled {
            SIGNALED
        } else {
            SendFlags::empty()
        };
        let silent = SendFlags::empty();
        let part = match step.kind {
            Kind::Read => RESULT,
            _ => OUT,
        };
        let place = self.place(part, &step);
        let sge = |from: usize, to: usize| region.sge(place + from, (to - from) as u32);
        let whole: &[Sge] = &[sge(0, step.cut), sge(step.cut, step.length)];
        if step.notice.is_some() {
            region.write(place, &pattern(step.key, step.length));
        }
        self.counts.notices.0 += u64::from(step.notice.is_some());
        let target = self.target(&step);
        let notice = step.notice.unwrap_or_default();
        let posted = match step.kind {
            Kind::Send => {
                let wr_id = self.wr_id(Some(step));
                post(&mut self.qp, wr_id, Send {}, whole, flags)
            }
            Kind::Write => {
                let wr_id = self.wr_id(None);
                let write = RdmaWrite { remote: target };
                post(&mut self.qp, wr_id, write, whole, silent).expect("room");
                let wr_id = self.wr_id(Some(step));
                let bytes = notice.to_le_bytes();
                post(&mut self.qp, wr_id, Send {}, Inline(&bytes), flags)
            }
            Kind::WriteWithImm => {
                let wr_id = self.wr_id(Some(step));
                let imm = Be32::new(notice as u32);
                let write = RdmaWriteWithImm {
                    remote: target,
                    imm,
                };
                post(&mut self.qp, wr_id, write, whole, flags)
            }
            Kind::Read => {
                region.write(place, &vec![BLANK; step.length]);
                let wr_id = self.wr_id(Some(step));
                let remote = self.there(SOURCE);
                post(&mut self.qp, wr_id, RdmaRead { remote }, whole, flags)
            }
            Kind::Add => {
                self.counts.adds.0 += 1;
                let wr_id = self.wr_id(Some(step));
                let remote = self.there(COUNTER);
                let old = region.sge(self.old(&step), 8);
                let add = AtomicFetchAndAdd { remote, add: 1 };
                post(&mut self.qp, wr_id, add, old, flags)
            }
        };
        posted.expect("room");
    }

    /// Takes a completion of one of its requests.
    pub fn completed(&mut self, region: &Region, completion: &Completion<'_>) {
        if completion.wr_id & RECEIVE != 0 {
            self.receive_completed(region, completion);
        } else {
            self.send_completed(region, completion);
        }
        if self.is_over() && self.frozen.is_none() {
            self.frozen = Some(self.writable(region));
        }
    }

    fn receive_completed(&mut self, region: &Region, completion: &Completion<'_>) {
        let expected = self.receives.pop_front();
        assert_eq!(
            expected,
            Some(completion.wr_id),
            "the receive reported next"
        );
        match (completion.status(), self.failure) {
            (WcStatus::Success, None) => self.arrived(region, completion),
            (WcStatus::WrFlushErr, Some(_)) => {}
            (status, failure) => panic!("a receive: {status:?}, after {failure:?}"),
        }
    }

    fn send_completed(&mut self, region: &Region, completion: &Completion<'_>) {
        for left in (0..completion.retired).rev() {
            let posted = self.posted.pop_front().expect("nothing is reported twice");
            if left == 0 {
                assert_eq!(posted.wr_id, completion.wr_id, "the request reported next");
            }
            match (left, completion.status(), self.failure) {
                (1.., _, None) | (0, WcStatus::Success, None) => {
                    if let Some(step) = posted.step {
                        self.done(region, &step);
                    }
                }
                (0, status, None) => self.failure = Some(status),
                (0, WcStatus::WrFlushErr, Some(_)) => {}
                (_, status, failure) => panic!("a request: {status:?}, after {failure:?}"),
            }
            if let (Some(step), Some(_)) = (posted.step, self.failure) {
                // It is ours again: whatever the peer still makes of it is not what was sent.
                let place = self.place(OUT, &step);
                region.write(place, &vec![SPOILT; step.length]);
            }
        }
    }

    /// A step of ours succeeded.
    fn done(&mut self, region: &Region, step: &Step) {
        self.done_steps += 1;
        self.counts.notices.1 += u64::from(step.notice.is_some());
        let kind = KINDS.iter().position(|kind| *kind == step.kind);
        self.done[kind.expect("one of them")] += 1;
        match step.kind {
            Kind::Read => {
                let source = &pattern(self.their_source, LONGEST)[..step.length];
                same(region, self.place(RESULT, step), source, step);
            }
            Kind::Add => {
                let old = region.word(self.old(step)).load(Ordering::Acquire);
                assert_eq!(old, self.counts.adds.1, "what {step:?} found");
                self.counts.adds.1 += 1;
            }
            _ => {}
        }
    }

    /// Something has taken a receive: it has to be the next of the peer's steps that do.
    fn arrived(&mut self, region: &Region, completion: &Completion<'_>) {
        let step = self.theirs.notice();
        let number = step.notice.unwrap_or_default();
        assert_eq!(self.received, number);
        let success = completion.result.as_ref().expect("a success");
        let slot = self.base + IN + (number % RECEIVES) as usize * LONGEST;
        let target = self.base + TARGET + (number % TARGETS) as usize * LONGEST;
        let (opcode, imm) = (success.opcode, success.imm());
        let length = success.byte_len().expect("of a receive") as usize;
        let bytes = pattern(step.key, step.length);
        let mut into_slot = 0;
        match step.kind {
            Kind::Send => {
                assert_eq!((opcode, imm), (WcOpcode::Recv, Imm::None), "{step:?}");
                assert_eq!(length, step.length, "{step:?}");
                same(region, slot, &bytes, &step);
                into_slot = length;
            }
            Kind::Write => {
                assert_eq!((opcode, imm), (WcOpcode::Recv, Imm::None), "{step:?}");
                assert_eq!(length, 8, "{step:?}");
                same(region, slot, &number.to_le_bytes(), &step);
                same(region, target, &bytes, &step);
                into_slot = length;
            }
            _ => {
                let imm = Imm::Data(Be32::new(number as u32));
                let expected = (WcOpcode::RecvRdmaWithImm, imm);
                assert_eq!((opcode, imm), expected, "{step:?}");
                assert_eq!(length, step.length, "{step:?}");
                same(region, target, &bytes, &step);
            }
        }
        // Nothing behind the message was touched.
        same(
            region,
            slot + into_slot,
            &vec![BLANK; LONGEST - into_slot],
            &step,
        );
        region.write(slot, &vec![BLANK; into_slot]);
        self.received += 1;
        self.post_receive(region, number + RECEIVES);
        self.qp.rq().ring();
    }

    /// Everything that was posted has been reported.
    pub fn is_drained(&self) -> bool {
        self.posted.is_empty()
    }

    /// It has failed, and everything has been reported.
    pub fn is_over(&self) -> bool {
        self.failure.is_some() && self.posted.is_empty() && self.receives.is_empty()
    }

    /// Fetch-and-adds of the peer's that were done.
    pub fn counter(&self, region: &Region) -> u64 {
        region.word(self.base + COUNTER).load(Ordering::Acquire)
    }

    /// Asserts that nothing was written since the failure was reported. A peer that `was_stopped` may have been so between
    /// the check of a request and its execution, which it finished when it went on: that of one.
    pub fn is_frozen(&self, region: &Region, was_stopped: bool) {
        let frozen = self.frozen.as_ref().expect("it has failed");
        let now = self.writable(region);
        if was_stopped && (self.is_by_one_write(frozen, &now) || is_by_one_add(frozen, &now)) {
            return;
        }
        let changed = || (frozen.iter().zip(&now)).map(|(before, now)| before != now);
        if let Some(first) = changed().position(|changed| changed) {
            let count = changed().filter(|changed| *changed).count();
            let at = IN + first;
            let part = match at {
                COUNTER.. => format!("byte {} of the counter", at - COUNTER),
                TARGET.. => format!(
                    "byte {} of target {}",
                    (at - TARGET) % LONGEST,
                    (at - TARGET) / LONGEST
                ),
                _ => format!("byte {} of receive {}", first % LONGEST, first / LONGEST),
            };
            panic!("{count} bytes were written after the failure, from {part} on");
        }
    }

    /// Whether what was in that memory before became what there is now by one of the WRITEs that the peer may have posted.
    fn is_by_one_write(&self, before: &[u8], now: &[u8]) -> bool {
        let mut script = self.theirs.clone();
        let steps = std::iter::repeat_with(|| script.notice()).take(WINDOW as usize);
        let mut writes = steps.filter(|step| matches!(step.kind, Kind::Write | Kind::WriteWithImm));
        writes.any(|step| {
            let slot = step.notice.unwrap_or_default() % TARGETS;
            let at = TARGET - IN + slot as usize * LONGEST;
            let there = at..at + step.length;
            let bytes = pattern(step.key, step.length);
            let written = now[there.clone()].iter().zip(&bytes);
            let is_its_own = |((now, its), before)| now == its || now == before;
            before[..at] == now[..at]
                && before[there.end..] == now[there.end..]
                && written.zip(&before[there]).all(is_its_own)
        })
    }

    /// What is in the memory that the peer may write to.
    fn writable(&self, region: &Region) -> Vec<u8> {
        let mut bytes = vec![0; COUNTER + 8 - IN];
        region.read(self.base + IN, &mut bytes);
        bytes
    }
}

/// Whether this became that by one of the peer's fetch-and-adds.
fn is_by_one_add(before: &[u8], now: &[u8]) -> bool {
    let counter = |bytes: &[u8]| {
        let word = bytes[COUNTER - IN..].try_into().expect("eight bytes");
        u64::from_ne_bytes(word)
    };
    before[..COUNTER - IN] == now[..COUNTER - IN] && counter(now) == counter(before) + 1
}

#[track_caller]
fn same(region: &Region, at: usize, expected: &[u8], step: &Step) {
    let mut got = vec![0; expected.len()];
    region.read(at, &mut got);
    let differs = got.iter().zip(expected).position(|(got, is)| got != is);
    assert_eq!(differs, None, "first byte of {step:?} that is not its own");
}
