//! Memory that the ends lend to each other, and what becomes of it.
//!
//! Messages and WRITEs of these exchanges have lengths that no other request has.

use super::end::End;
use bellwire::fault::outcome::{Doubt, Outcome, Replay};
use bellwire::link::{Cancel, CancelError, LinkCompletion, LinkState};
use bellwire::memory::{Mapping, Pages};
use bellwire::wqe::{RdmaWrite, Send, SendWithInv};
use bellwire::wr::{Remote, SendFlags};
use bellwire::{AccessFlags, ClassLayout, Pd, Region, Slab};
use bellwire_tests::fixture::{Random, SIGNALED};
use std::time::Duration;

/// A message that lends memory.
pub const REQUEST: usize = 240;
/// The answer to it, which gives the memory back.
pub const ANSWER: usize = 246;
/// What the peer writes to the memory.
const WRITTEN: usize = 244;

/// Requests that lend memory have this bit in their identifiers, and their number below it.
pub const LENDS: u64 = 1 << 33;
/// What an end posts because it was lent memory.
pub const BORROWS: u64 = 1 << 34;

const LENGTH: u32 = 256;
const AT_MOST: usize = 60;
/// The bytes of memory before it is lent.
const BEFORE: u8 = 0x33;

/// Whether data of this length belongs to such an exchange.
pub const fn is_of_lending(length: u64) -> bool {
    matches!(length as usize, REQUEST | ANSWER | WRITTEN)
}

/// What the peer writes into the memory of an exchange.
const fn pattern(index: usize) -> u8 {
    0x80 | index as u8
}

/// An exchange for which memory was lent.
#[derive(Clone, Debug, Default)]
struct Lent {
    outcome: Option<Outcome>,
    ended: bool,
    cancelled: bool,
    deadline: Option<Duration>,
    /// The answer came, and says whether the peer wrote.
    answer: Option<bool>,
}

/// Memory that the peer has lent.
#[derive(Clone, Copy, Debug)]
struct Offer {
    index: usize,
    remote: Remote,
    writable: bool,
}

/// Both sides of the exchanges of an end.
pub struct Lending {
    slab: Slab,
    lent: Vec<Lent>,
    /// Memory of the peer, also of exchanges that were answered.
    offers: Vec<Offer>,
    unanswered: Vec<Offer>,
    /// Requests posted for these exchanges.
    pub posted: u64,
}

impl Lending {
    pub fn new(pd: &Pd) -> Self {
        let layout = [ClassLayout {
            size: LENGTH,
            count: 96,
        }];
        let bytes = Slab::bytes(&layout).expect("a layout");
        let mapping = Mapping::anonymous(bytes).pages(Pages::Base).build();
        let region = Region::new(pd, mapping.expect("memory"), AccessFlags::LOCAL_WRITE);
        Self {
            slab: Slab::with_grants(region.expect("a region"), &layout).expect("a slab"),
            lent: Vec::new(),
            offers: Vec::new(),
            unanswered: Vec::new(),
            posted: 0,
        }
    }

    /// Outcomes of exchanges.
    pub fn outcomes(&self) -> impl Iterator<Item = Outcome> {
        self.lent.iter().filter_map(|lent| lent.outcome)
    }

    /// Adds an exchange that is reported as answered, and was not.
    pub fn forge(&mut self) {
        let outcome = Some(Outcome::Done);
        self.lent.push(Lent {
            outcome,
            ..Lent::default()
        });
    }

    /// Nothing is under way any more; `peer` is the other end's.
    pub fn check(&self, peer: &Self, now: Duration) {
        assert_eq!(self.slab.outstanding(), 0, "blocks that were lent are lost");
        for (index, lent) in self.lent.iter().enumerate() {
            let came = peer.offers.iter().any(|offer| offer.index == index);
            let right = match lent.outcome {
                Some(Outcome::Done) => lent.ended || lent.answer.is_some(),
                Some(Outcome::NotExecuted | Outcome::Failed(_)) => !came,
                Some(Outcome::InDoubt(Doubt::Cancelled)) => lent.cancelled,
                Some(Outcome::InDoubt(Doubt::DeadlinePassed)) => {
                    lent.deadline.is_some_and(|at| at <= now)
                }
                Some(Outcome::InDoubt(_)) => true,
                None => false,
            };
            assert!(right, "{index}, came: {came}: {lent:?}");
        }
    }
}

impl End {
    /// Does something with memory that is lent, at random. Returns whether it was posted.
    pub fn lend_or_borrow(&mut self, random: &mut Random, now: Duration) -> bool {
        match random.below(10) {
            0..4 => self.lend(random),
            4..8 => self.borrow(random),
            _ => {
                self.end_some(random, now);
                false
            }
        }
    }

    fn lend(&mut self, random: &mut Random) -> bool {
        let index = self.lending.lent.len();
        if index == AT_MOST {
            return false;
        }
        let (read, write) = (AccessFlags::REMOTE_READ, AccessFlags::REMOTE_WRITE);
        let access = [read | write, write, read][random.below(3) as usize];
        let slab = &self.lending.slab;
        let mut block = slab.take(LENGTH).expect("enough for all");
        block.as_mut_slice().fill(BEFORE);
        let grant = slab.grant(block, LENGTH, access).expect("it can be lent");
        let message = |remote: Remote| {
            let mut bytes = [0; REQUEST];
            bytes[0] = index as u8;
            bytes[1] = u8::from(access.contains(write));
            bytes[2..10].copy_from_slice(&remote.addr.to_le_bytes());
            bytes[10..14].copy_from_slice(&remote.rkey.to_le_bytes());
            bytes
        };
        let wr_id = LENDS | index as u64;
        let flags = SendFlags::empty();
        if self
            .link
            .post_grant(wr_id, grant, Send {}, message, flags)
            .is_err()
        {
            return false;
        }
        self.lending.lent.push(Lent::default());
        self.lending.posted += 1;
        true
    }

    /// Writes to memory that the peer has lent, answers, or both; rarely to memory that it has back.
    fn borrow(&mut self, random: &mut Random) -> bool {
        let stale = random.below(24) == 0;
        let (offer, again) = match (self.lending.unanswered.pop(), self.lending.offers.last()) {
            (_, Some(offer)) if stale => (*offer, true),
            (Some(offer), _) => (offer, false),
            (None, _) => return false,
        };
        let (addr, rkey) = (offer.remote.addr, offer.remote.rkey);
        let writes = (offer.writable || again) && random.below(3) != 0;
        let mut posted = false;
        if writes {
            let remote = Remote { addr, rkey };
            let bytes = [pattern(offer.index); WRITTEN];
            let write = RdmaWrite { remote };
            let flags = [SIGNALED, SendFlags::empty()][random.below(2) as usize];
            let result = self
                .link
                .post_inline(BORROWS, write, &bytes, flags, Replay::Surface);
            posted = result.is_ok();
            self.lending.posted += u64::from(posted);
        }
        if again || random.below(4) != 0 {
            let mut bytes = [0; ANSWER];
            bytes[0] = offer.index as u8;
            bytes[1] = u8::from(posted);
            let answer = SendWithInv { rkey };
            let result = self
                .link
                .post_inline(BORROWS, answer, &bytes, SIGNALED, Replay::Surface);
            self.lending.posted += u64::from(result.is_ok());
            posted |= result.is_ok();
        }
        posted
    }

    /// Ends the exchange of one of the last requests.
    fn end_some(&mut self, random: &mut Random, now: Duration) {
        let back = 1 + random.below(6) as usize;
        let Some(index) = self.lending.lent.len().checked_sub(back) else {
            return;
        };
        let wr_id = LENDS | index as u64;
        let within = Duration::from_micros(random.below(4000));
        let how = random.below(3);
        let result = match how {
            0 => self.link.end_grant(wr_id),
            1 => self.link.cancel(wr_id),
            _ => self.link.cancel_after(wr_id, within),
        };
        let lent = &mut self.lending.lent[index];
        let right = match result {
            Ok(Cancel::Requested | Cancel::Completed | Cancel::Repeated) => lent.outcome.is_none(),
            Err(CancelError::NotFound) => lent.outcome.is_some(),
            Err(CancelError::Ended(_)) => matches!(self.link.state(), LinkState::Ended(_)),
            _ => false,
        };
        assert!(right, "{}: {result:?}, {lent:?}", self.at);
        if result == Ok(Cancel::Requested) {
            match how {
                0 => lent.ended = true,
                1 => lent.cancelled = true,
                _ => lent.deadline = Some(now + within),
            }
        }
    }

    /// Takes a message of such an exchange.
    pub fn take_message(&mut self, bytes: &[u8]) {
        let index = usize::from(bytes[0]);
        if bytes.len() == ANSWER {
            let lent = &mut self.lending.lent[index];
            match lent.outcome {
                None => lent.answer = Some(bytes[1] != 0),
                // It came with the end of the exchange.
                Some(Outcome::InDoubt(_)) => {}
                Some(Outcome::Done) if lent.ended => {}
                Some(_) => panic!("{index}: answered after its report: {lent:?}"),
            }
            return;
        }
        let known = self.lending.offers.iter().any(|offer| offer.index == index);
        assert!(!known, "{}: {index} was lent twice", self.at);
        let offer = Offer {
            index,
            remote: Remote {
                addr: u64::from_le_bytes(bytes[2..10].try_into().expect("of eight bytes")),
                rkey: u32::from_le_bytes(bytes[10..14].try_into().expect("of four bytes")),
            },
            writable: bytes[1] != 0,
        };
        self.lending.offers.push(offer);
        self.lending.unanswered.push(offer);
    }

    /// Takes the report of a request of such an exchange.
    pub fn take_lent(&mut self, completion: LinkCompletion) {
        if completion.wr_id & BORROWS != 0 {
            assert!(completion.block.is_none(), "it was inline");
            return;
        }
        let index = (completion.wr_id & !LENDS) as usize;
        let lent = &mut self.lending.lent[index];
        let before = lent.outcome.replace(completion.outcome);
        assert_eq!(before, None, "{index}: reported before");
        let block = completion.block.expect("it was lent");
        let (bytes, rest) = block.as_slice().split_at(WRITTEN);
        let all = |byte| bytes.iter().all(|&found| found == byte);
        assert!(
            rest.iter().all(|&byte| byte == BEFORE),
            "{index}: written behind its end"
        );
        let right = match lent.answer {
            Some(true) => all(pattern(index)),
            // What the peer wrote before its answer is there; it may have written before that.
            _ => bytes
                .iter()
                .all(|&byte| byte == BEFORE || byte == pattern(index)),
        };
        assert!(right, "{index}: {lent:?} with {:x?}", &bytes[..8]);
        self.keep(block);
    }
}
