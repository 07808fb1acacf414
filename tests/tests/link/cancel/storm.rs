//! Thousands of requests that are cancelled in flight.
//!
//! After its report nobody writes to the memory of a request: neither to the block that came back here, nor to the
//! target of a WRITE at the peer.

use bellwire::connect::RemoteMemory;
use bellwire::fault::outcome::{Doubt, Outcome, Replay};
use bellwire::fault::plan::Limits;
use bellwire::link::{Cancel, Link, LinkInit, LinkState, pair};
use bellwire::memory::Mapping;
use bellwire::wqe::{RdmaRead, RdmaWrite, Send};
use bellwire::{Block, ClassLayout, ConnectAttr, Pd, QpInit, Region, Slab};
use bellwire_tests::fixture::{ALL, DEADLINE, SIGNALED, slab};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Bytes of a request.
const BYTES: usize = 256;
/// Most blocks that are kept after they came back, and what they are filled with.
const KEPT: usize = 512;
const LEFT: u8 = 0xee;

struct Storm {
    /// Requests of a round.
    round: usize,
    a: Link,
    b: Link,
    slab: Slab,
    /// The peer's.
    region: Region,
    /// What it holds, as far as the reports tell.
    places: Vec<u8>,
    back: VecDeque<Block<'static>>,
    outcomes: Vec<Option<Outcome>>,
    requested: u64,
    taken_back: u64,
}

/// Cancels so many requests in flight, between two links of a protection domain, in rounds of so many. Returns how many
/// did not complete before.
pub fn storm(pd: &Pd, round: usize, cancels: u64) -> u64 {
    let layout = [ClassLayout {
        size: BYTES as u32,
        count: (2 * round + KEPT) as u32,
    }];
    let mapping = Mapping::anonymous(round * BYTES).build().unwrap();
    let region = Region::new(pd, mapping, ALL).unwrap();
    let (here, there) = pair();
    let init = LinkInit {
        qp: QpInit {
            max_send_wr: 2 * round as u32,
            max_recv_wr: 4,
            ..QpInit::default()
        },
        // A message without a receive is waited for.
        connect: ConnectAttr {
            rnr_retry: 7,
            ..ConnectAttr::default()
        },
        limits: Limits {
            settle: Duration::ZERO,
            ..Limits::default()
        },
        check_every: 1,
        ..LinkInit::default()
    };
    let remote = region.remote(0);
    let memory = RemoteMemory {
        addr: remote.addr,
        length: region.len() as u64,
        rkey: remote.rkey,
    };
    let init_b = LinkInit {
        memory,
        ..init.clone()
    };
    let mut storm = Storm {
        round,
        a: Link::new(pd, init, here).unwrap(),
        b: Link::new(pd, init_b, there).unwrap(),
        slab: slab(pd, &layout),
        places: vec![0; round * BYTES],
        region,
        back: VecDeque::new(),
        outcomes: Vec::new(),
        requested: 0,
        taken_back: 0,
    };
    storm.until(|storm| [storm.a.state(), storm.b.state()] == [LinkState::Ready; 2]);
    for number in 0.. {
        match number % 2 {
            0 => storm.behind_a_message(number),
            _ => storm.racing(number),
        }
        if storm.requested >= cancels {
            break;
        }
    }
    storm.look_back(usize::MAX);
    storm.look();
    storm.taken_back
}

impl Storm {
    fn poll(&mut self) {
        let Self {
            a, outcomes, back, ..
        } = self;
        a.poll(usize::MAX, |completion| {
            let place = &mut outcomes[completion.wr_id as usize];
            let before = place.replace(completion.outcome);
            assert_eq!(before, None, "{} was reported before", completion.wr_id);
            if let Some(mut block) = completion.block {
                block.as_mut_slice().fill(LEFT);
                back.push_back(block);
            }
        });
        self.b.poll(16, drop);
        if self.back.len() > KEPT {
            self.look_back(self.back.len() - KEPT);
        }
    }

    /// Returns blocks that nobody has written to since they came back.
    fn look_back(&mut self, count: usize) {
        let count = count.min(self.back.len());
        for block in self.back.drain(..count) {
            let left = block.as_slice().iter().all(|&byte| byte == LEFT);
            assert!(left, "a block changed after its report");
        }
    }

    /// The peer's memory is as the reports had it.
    fn look(&self) {
        let mut found = vec![0; self.places.len()];
        self.region.read(0, &mut found);
        assert!(
            found == self.places,
            "the peer's memory changed after a report"
        );
    }

    fn until(&mut self, done: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            self.poll();
            assert!(start.elapsed() < DEADLINE, "{:?}", self.outcomes);
            let ended = [self.a.state(), self.b.state()].map(|state| state.why());
            assert_eq!(ended, [None; 2]);
            std::thread::yield_now();
        }
    }

    /// Until each request is reported, and both ends work.
    fn until_reported(&mut self) {
        self.until(|storm| {
            let ready = [storm.a.state(), storm.b.state()] == [LinkState::Ready; 2];
            ready && storm.outcomes.iter().all(Option::is_some)
        });
    }

    fn pattern(round: usize, at: usize) -> u8 {
        (round * 7 + at * 3 + 1) as u8
    }

    /// Stages a WRITE, or a READ, of a place of its own.
    fn stage(&mut self, round: usize, at: usize, reads: bool) {
        let mut block = self.slab.take(BYTES as u32).expect("enough");
        let remote = self.region.remote(at * BYTES);
        let wr_id = at as u64;
        let length = BYTES as u32;
        let (flags, policy) = (SIGNALED, Replay::Anyway);
        let posted = match reads {
            true => {
                let read = RdmaRead { remote };
                self.a.post_block(wr_id, read, block, length, flags, policy)
            }
            false => {
                block.as_mut_slice().fill(Self::pattern(round, at));
                let write = RdmaWrite { remote };
                self.a
                    .post_block(wr_id, write, block, length, flags, policy)
            }
        };
        posted.unwrap();
    }

    fn cancel(&mut self, at: usize) {
        let result = self.a.cancel(at as u64);
        assert_eq!(result, Ok(Cancel::Requested));
        self.requested += 1;
    }

    /// Behind a message for which there is no receive: none of them is begun.
    fn behind_a_message(&mut self, number: usize) {
        self.outcomes = vec![None; self.round];
        let posted = (self.a).post_inline(0, Send {}, b"first", SIGNALED, Replay::IfSafe);
        posted.unwrap();
        (1..self.round).for_each(|at| self.stage(number, at, at % 2 == 0));
        self.a.ring();
        // Sometimes while the device tries to send it.
        (0..number % 5).for_each(|_| self.poll());
        self.look();
        let first = !number.is_multiple_of(4);
        (usize::from(first)..self.round).for_each(|at| self.cancel(at));
        self.until(|storm| storm.outcomes[1..].iter().all(Option::is_some));
        if first {
            let block = self.slab.take(64).expect("enough");
            self.until(|storm| storm.b.state() == LinkState::Ready);
            self.b.post_recv_block(0, block).unwrap();
            self.b.ring_recv();
        }
        self.until_reported();
        let mut expected = vec![Some(Outcome::NotExecuted); self.round];
        if first {
            expected[0] = Some(Outcome::Done);
        }
        assert_eq!(self.outcomes, expected);
        self.taken_back += (self.round - usize::from(first)) as u64;
        self.look();
    }

    /// While the device executes them: every second one is cancelled.
    fn racing(&mut self, number: usize) {
        self.outcomes = vec![None; self.round];
        (0..self.round).for_each(|at| self.stage(number, at, at % 4 >= 2));
        self.a.ring();
        (0..self.round).step_by(2).for_each(|at| self.cancel(at));
        self.until_reported();
        for at in 0..self.round {
            let outcome = self.outcomes[at];
            let place = at * BYTES..(at + 1) * BYTES;
            let right = match outcome {
                Some(Outcome::Done) => true,
                Some(Outcome::NotExecuted | Outcome::InDoubt(Doubt::Cancelled)) => at % 2 == 0,
                _ => false,
            };
            assert!(right, "{at}: {outcome:?}");
            self.taken_back += u64::from(outcome != Some(Outcome::Done));
            if at % 4 >= 2 {
                continue;
            }
            let mut found = vec![0; BYTES];
            self.region.read(place.start, &mut found);
            let pattern = Self::pattern(number, at);
            if outcome == Some(Outcome::Done) {
                assert!(found.iter().all(|&byte| byte == pattern), "{at}: done");
            }
            // In doubt: not, in part or wholly written. From here on it stays as it is.
            let before = &self.places[place.clone()];
            let mixed = found.iter().zip(before);
            let mut of_either = mixed.map(|(found, before)| found == before || *found == pattern);
            assert!(of_either.all(|is| is), "{at}: {outcome:?}");
            self.places[place].copy_from_slice(&found);
        }
    }
}
