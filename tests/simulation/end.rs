//! One end: its link, its memory, and the program's own log of what it posted and what was reported to it.

use super::exchange::Slow;
use super::lent::{BORROWS, LENDS, Lending, is_of_lending};
use super::request::{BLOCK, Id, Kind, MEMORY, REQUESTS, Request, SHARED, opened};
use bellwire::connect::RemoteMemory;
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::link::{Cancel, CancelError, Link, LinkCompletion, LinkError, LinkInit, LinkState};
use bellwire::memory::{Mapping, Pages};
use bellwire::queue::Imm;
use bellwire::wr::SendFlags;
use bellwire::{Block, ClassLayout, Pd, Region, Slab};
use bellwire_tests::fixture::{ALL, Random, slab};
use std::collections::VecDeque;
use std::time::Duration;

/// Receives have this bit in their identifier, and their number below it.
const RECEIVE: u64 = 1 << 32;

/// Blocks that came back and are kept, and their bytes.
const KEPT: usize = 24;
const LEFT: u8 = 0xee;

/// One end.
pub struct End {
    pub at: usize,
    pub link: Link,
    /// Blocks that came back, as they were left then: nobody writes to them any more. They are dropped before their slab,
    /// which would keep their memory.
    back: VecDeque<Block<'static>>,
    pub slab: Slab,
    /// Memory that is lent to the peer, or by it.
    pub lending: Lending,
    /// What the peer works on.
    pub region: Region,
    /// Sends, by their identifiers.
    pub requests: Vec<Request>,
    /// Receives, by their numbers.
    pub receives: Vec<Option<Outcome>>,
    /// Of everything reported.
    pub retired: u64,
    /// The last message that came.
    last_message: Option<usize>,
}

fn memory(pd: &Pd, bytes: usize) -> Region {
    let mapping = Mapping::anonymous(bytes).pages(Pages::Base);
    Region::new(pd, mapping.build().expect("memory"), ALL).expect("a region")
}

impl End {
    pub fn new(pd: &Pd, at: usize, init: LinkInit, exchange: Slow) -> Self {
        let layout = [ClassLayout {
            size: BLOCK as u32,
            count: 96,
        }];
        let region = memory(pd, MEMORY);
        let init = LinkInit {
            memory: opened(&region),
            ..init
        };
        Self {
            at,
            link: Link::new(pd, init, exchange).expect("a link"),
            slab: slab(pd, &layout),
            lending: Lending::new(pd),
            region,
            requests: Vec::new(),
            receives: Vec::new(),
            retired: 0,
            last_message: None,
            back: VecDeque::new(),
        }
    }

    pub fn state(&self) -> LinkState {
        self.link.state()
    }

    pub fn ready(&self) -> bool {
        self.state() == LinkState::Ready
    }

    /// A request at random, staged; what refuses it.
    pub fn stage(&mut self, random: &mut Random, peer: RemoteMemory) -> Result<(), LinkError> {
        let kind = Kind::ALL[random.below(Kind::ALL.len() as u64) as usize];
        let mut flags = SendFlags::empty();
        if random.below(100) < 60 {
            flags |= SendFlags::SIGNALED;
        }
        if random.below(100) < 10 {
            flags |= SendFlags::FENCE;
        }
        let policy = [Replay::Surface, Replay::IfSafe, Replay::Anyway][random.below(3) as usize];
        let inline = !kind.has_result() && random.below(2) == 0;
        self.stage_this(random, peer, kind, flags, policy, inline)
    }

    pub fn stage_this(
        &mut self,
        random: &mut Random,
        peer: RemoteMemory,
        kind: Kind,
        flags: SendFlags,
        policy: Replay,
        inline: bool,
    ) -> Result<(), LinkError> {
        let index = self.requests.len();
        if index == REQUESTS {
            return Ok(());
        }
        let id = Id {
            end: self.at,
            index,
        };
        let place = match kind {
            kind if kind.is_atomic() => id.word(),
            // What was written before, by whichever request.
            Kind::Read => random.below((REQUESTS + SHARED) as u64) as usize * BLOCK,
            _ if random.below(3) == 0 => (REQUESTS + random.below(SHARED as u64) as usize) * BLOCK,
            _ => index * BLOCK,
        };
        let request = Request {
            id,
            kind,
            flags,
            inline,
            policy,
            at: place,
            outcome: None,
            executed: 0,
            received: false,
            found: Vec::new(),
            cancelled: None,
            deadline: None,
        };
        let block = match inline {
            true => None,
            false => Some(self.slab.take(BLOCK as u32).expect("enough for the queue")),
        };
        request.post(&mut self.link, peer, block)?;
        self.requests.push(request);
        Ok(())
    }

    /// Stages receives, and rings.
    pub fn receive(&mut self, count: u64) {
        for _ in 0..count {
            let wr_id = RECEIVE | self.receives.len() as u64;
            let block = self.slab.take(BLOCK as u32).expect("enough for the queue");
            if self.link.post_recv_block(wr_id, block).is_err() {
                break;
            }
            self.receives.push(None);
        }
        self.link.ring_recv();
    }

    /// Takes what was reported; of messages that came, whose each is.
    pub fn take(&mut self, completion: LinkCompletion) -> Option<Id> {
        self.retired += u64::from(completion.retired);
        if completion.wr_id & RECEIVE == 0 {
            assert!(
                !completion.is_recv(),
                "reported as a receive: {completion:?}"
            );
            self.take_send(completion);
            return None;
        }
        assert!(completion.is_recv(), "reported as a send: {completion:?}");
        let at = (completion.wr_id & !RECEIVE) as usize;
        let before = self.receives[at].replace(completion.outcome);
        assert_eq!(
            before, None,
            "receive {at} of {} was reported before",
            self.at
        );
        let block = completion.block.expect("posted with a block");
        if completion.outcome != Outcome::Done {
            assert!(completion.success.is_none());
            self.keep(block);
            return None;
        }
        let success = completion.success.expect("it was received");
        let length = success.byte_len().expect("of a receive") as usize;
        if is_of_lending(length as u64) {
            self.take_message(&block.as_slice()[..length]);
            self.keep(block);
            return None;
        }
        let id = Id::of_length(length as u64).expect("of a known length");
        assert_ne!(id.end, self.at, "its own message");
        if let Imm::Data(imm) = success.imm() {
            assert_eq!(imm, id.imm());
        }
        // A WRITE's data goes elsewhere.
        if completion.opcode == bellwire::wr::WcOpcode::Recv {
            assert_eq!(block.as_slice()[..length], id.bytes(), "{id:?} is garbled");
        }
        assert!(
            self.last_message.is_none_or(|last| last < id.index),
            "{id:?} came after {:?}",
            self.last_message
        );
        self.last_message = Some(id.index);
        self.keep(block);
        Some(id)
    }

    fn take_send(&mut self, completion: LinkCompletion) {
        if completion.wr_id & (LENDS | BORROWS) != 0 {
            return self.take_lent(completion);
        }
        let request = &mut self.requests[completion.wr_id as usize];
        let before = request.outcome.replace(completion.outcome);
        assert_eq!(before, None, "reported before: {request:?}");
        assert_eq!(
            completion.block.is_some(),
            !request.inline,
            "its block: {request:?}"
        );
        let mut back = None;
        if let Some(block) = completion.block {
            let bytes = &block.as_slice()[..request.length()];
            if !request.kind.has_result() {
                assert_eq!(bytes, request.id.bytes(), "changed: {request:?}");
            } else if completion.outcome == Outcome::Done {
                // Each atomic has a word of its own, which was zero before it.
                let expected = match request.kind {
                    Kind::Read => &request.found[..],
                    _ => &[0; 8],
                };
                assert_eq!(bytes, expected, "a wrong result: {request:?}");
            }
            back = Some(block);
        }
        if completion.outcome == Outcome::Done {
            let executed = request.executed > 0 || request.kind.is_atomic();
            assert!(executed, "reported as done: {request:?}");
        }
        if let Some(block) = back {
            self.keep(block);
        }
    }

    /// Keeps a block that came back, and looks whether those before it are as they were left.
    pub fn keep(&mut self, mut block: Block<'static>) {
        block.as_mut_slice().fill(LEFT);
        self.back.push_back(block);
        if self.back.len() > KEPT {
            self.check_back(1);
        }
    }

    /// Nobody writes to a block after the report of its request.
    pub fn check_back(&mut self, count: usize) {
        let count = count.min(self.back.len());
        for block in self.back.drain(..count) {
            let left = block.as_slice().iter().all(|&byte| byte == LEFT);
            assert!(left, "{}: a block changed after it came back", self.at);
        }
    }

    /// Writes to a block that came back.
    pub fn spoil(&mut self) {
        let block = self.back.back_mut().expect("one came back");
        block.as_mut_slice()[7] ^= 1;
    }

    /// Cancels some requests at random, or gives them deadlines.
    pub fn cancel(&mut self, random: &mut Random, now: Duration) -> u64 {
        let mut requested = 0;
        for _ in 0..1 + random.below(3) {
            let recv = random.below(4) == 0;
            let posted = match recv {
                true => self.receives.len(),
                false => self.requests.len(),
            };
            // Mostly such as are not reported.
            let back = 1 + random.below(12) as usize;
            let Some(index) = posted.checked_sub(back) else {
                continue;
            };
            let within = Duration::from_micros(random.below(4000));
            let wr_id = index as u64;
            let cancels = random.below(2) == 0;
            let result = match (recv, cancels) {
                (false, true) => self.link.cancel(wr_id),
                (false, false) => self.link.cancel_after(wr_id, within),
                (true, true) => self.link.cancel_recv(RECEIVE | wr_id),
                (true, false) => self.link.cancel_recv_after(RECEIVE | wr_id, within),
            };
            let (outcome, retires) = match recv {
                true => (self.receives[index], true),
                false => {
                    let request = &self.requests[index];
                    (request.outcome, request.signaled())
                }
            };
            let right = match result {
                Ok(Cancel::Requested | Cancel::Completed | Cancel::Repeated) => outcome.is_none(),
                // An unsignalled request may have been retired.
                Err(CancelError::NotFound) => outcome.is_some() || !retires,
                Err(CancelError::Ended(_)) => matches!(self.state(), LinkState::Ended(_)),
                _ => false,
            };
            assert!(right, "{}: {wr_id}: {result:?}, {outcome:?}", self.at);
            if result == Ok(Cancel::Requested) {
                requested += 1;
                if let Some(request) = self.requests.get_mut(index).filter(|_| !recv) {
                    match cancels {
                        true => request.cancelled = Some(request.executed),
                        false => request.deadline = Some(now + within),
                    }
                }
            }
        }
        requested
    }
}
