//! Steps that use queues.

use crate::world::{Owned, Thing, World, any, keep, panics, perhaps_panic, take};
use bellwire::queue::{Plain, PostError};
use bellwire::recorder::DumpOptions;
use bellwire::state::QpState;
use bellwire::wqe::{BindMwInfo, Nop, RdmaRead, RdmaWrite, Send};
use bellwire::wr::{Remote, SendFlags};
use bellwire::{AccessFlags, Block, Cq, Cqs, QpSendQueue, RcSendQueue};
use bellwire_tests::fixture::Random;
use std::mem::{forget, swap};
use std::thread;

/// Posts something to a send queue; gives the block that it did not take.
fn post_to(
    random: &mut Random,
    sq: &mut RcSendQueue<'_>,
    remote: Remote,
    block: Option<Block<'static>>,
) -> (Result<(), PostError>, Option<Block<'static>>) {
    let (wr_id, length) = (random.number(), random.below(80) as u32);
    let mut flags = SendFlags::SIGNALED;
    if random.below(4) == 0 {
        flags = SendFlags::empty();
    }
    let rejected = match (random.below(14), block) {
        (0, Some(block)) => sq.post_block(wr_id, (), RdmaRead { remote }, block, length, flags),
        (1, Some(block)) => sq.post_block(wr_id, (), RdmaWrite { remote }, block, length, flags),
        (2..5, Some(block)) => sq.post_block(wr_id, (), Send {}, block, length, flags),
        (at, block) => {
            let bytes = [7; 40];
            let data = &bytes[..random.below(30) as usize];
            let posted = match at {
                5 => sq.post_inline(wr_id, (), RdmaWrite { remote }, data, flags),
                6 => sq.post_inline(wr_id, (), Send {}, data, flags),
                _ => sq.post_empty(wr_id, (), Nop {}, flags),
            };
            return (posted, block);
        }
    };
    match rejected {
        Ok(()) => (Ok(()), None),
        Err(rejected) => (Err(rejected.error), Some(rejected.block)),
    }
}

impl World<'_> {
    fn remote(&mut self) -> Remote {
        let nowhere = Remote {
            addr: self.random.number(),
            rkey: self.random.number() as u32,
        };
        *any(&mut self.random, &mut self.remotes).unwrap_or(&mut { nowhere })
    }

    fn block(&mut self) -> Option<Block<'static>> {
        take(&mut self.random, &mut self.blocks).map(|held| held.into_block())
    }

    fn posted(&mut self, posted: Result<(), PostError>, left: Option<Block<'static>>) {
        match posted {
            Ok(()) => self.tally.posted += 1,
            Err(_) => self.tally.refused += 1,
        }
        if let Some(block) = left {
            self.hold(block);
        }
    }

    pub fn post(&mut self) {
        let (remote, block) = (self.remote(), self.block());
        let random = &mut self.random;
        let (mut posted, mut left) = (Err(PostError::WrongState), block);
        match random.below(8) {
            ..5 => {
                if let Some(Owned { qp, .. }) = any(random, &mut self.qps) {
                    (posted, left) = post_to(random, &mut qp.sq(), remote, left);
                    if random.below(4) != 0 {
                        qp.sq().ring();
                    }
                }
            }
            at => {
                if let Some(block) = left.take() {
                    let wr_id = random.number();
                    let answer = match (any(random, &mut self.qps), any(random, &mut self.srqs)) {
                        (Some(owned), _) if at != 7 => {
                            let answer = owned.qp.rq().post_block(wr_id, block);
                            owned.qp.rq().ring();
                            answer.map_err(|rejected| (rejected.error, rejected.block))
                        }
                        (_, Some(srq)) => {
                            let answer = srq.post_block(wr_id, block);
                            srq.ring();
                            answer.map_err(|rejected| (rejected.error, rejected.block))
                        }
                        _ => Err((PostError::WrongState, block)),
                    };
                    match answer {
                        Ok(()) => posted = Ok(()),
                        Err((_, block)) => left = Some(block),
                    }
                }
            }
        }
        self.posted(posted, left);
    }

    pub fn poll(&mut self) {
        let Some(mut cq) = take(&mut self.random, &mut self.cqs) else {
            return;
        };
        match self.random.below(4) {
            0 => {
                if let Some(plain) = cq.plain() {
                    let keeps = self.random.below(4) == 0;
                    match keeps {
                        true => forget(plain),
                        false => Plain::take(plain),
                    }
                }
            }
            1 => {
                let mut completions = Vec::new();
                let random = &mut self.random;
                let panicked = panics(|| {
                    cq.poll(8, |completion| {
                        completions.push(completion);
                        perhaps_panic(random);
                    });
                });
                self.tally.panics += u64::from(panicked);
                completions
                    .into_iter()
                    .for_each(|completion| self.completed(completion));
            }
            _ => {
                if let Some(completion) = cq.poll_one() {
                    self.completed(completion);
                }
            }
        }
        keep(&mut self.random, &mut self.cqs, 6, cq);
    }

    pub fn blocks_in_and_out(&mut self) {
        let random = &mut self.random;
        let taken = match random.below(8) {
            ..3 => any(random, &mut self.slabs)
                .and_then(|slab| slab.take(random.below(300) as u32).ok()),
            3..5 => any(random, &mut self.caches).and_then(|cache| cache.take().ok()),
            5 => {
                if let (Some(cache), Some(held)) =
                    (any(random, &mut self.caches), self.blocks.pop())
                {
                    cache.put(held.into_block());
                }
                None
            }
            6 => {
                drop(take(random, &mut self.blocks).map(|held| held.into_block()));
                None
            }
            _ => {
                if let [a, .., b] = &mut self.blocks[..] {
                    swap(a, b);
                }
                None
            }
        };
        if let Some(block) = taken {
            self.hold(block);
        }
    }

    /// Two queues are lent, swapped, used, and one is forgotten.
    pub fn post_by_swapped_queues(&mut self) {
        let (remote, block) = (self.remote(), self.block());
        let random = &mut self.random;
        let len = self.qps.len() as u64;
        let pair = match len {
            0 => return self.posted(Err(PostError::WrongState), block),
            _ => [random.below(len) as usize, random.below(len) as usize],
        };
        let Ok([a, b]) = self.qps.get_disjoint_mut(pair) else {
            return self.posted(Err(PostError::WrongState), block);
        };
        let (mut one, mut other) = (a.qp.sq(), b.qp.sq());
        let number = one.qp_num();
        swap(&mut one, &mut other);
        assert_eq!(other.qp_num(), number);
        let (posted, left) = post_to(random, &mut one, remote, block);
        let again = post_to(random, &mut other, remote, None).0;
        if random.below(2) == 0 {
            one.ring();
        }
        QpSendQueue::ring(&mut other);
        forget(one);
        let (mut one, mut other) = (a.qp.rq(), b.qp.rq());
        swap(&mut one, &mut other);
        other.ring();
        forget(one);
        self.posted(posted, left);
        self.posted(again, None);
    }

    pub fn swap_objects(&mut self) {
        let random = &mut self.random;
        match random.below(6) {
            0 => {
                if let [a, .., b] = &mut self.qps[..] {
                    swap(&mut a.qp, &mut b.qp);
                    // Which completion queues are whose has changed too.
                    swap(&mut a.cqns, &mut b.cqns);
                }
            }
            1 => {
                // Queue pairs and the numbers of their completion queues go apart.
                if let [a, .., b] = &mut self.qps[..] {
                    swap(&mut a.qp, &mut b.qp);
                }
            }
            2 => {
                if let [a, .., b] = &mut self.cqs[..] {
                    swap(a, b);
                }
            }
            3 => {
                if let [a, .., b] = &mut self.srqs[..] {
                    swap(a, b);
                }
            }
            4 => {
                if let [a, .., b] = &mut self.caches[..] {
                    swap(a, b);
                }
            }
            _ => {
                if let [a, .., b] = &mut self.links[..] {
                    swap(a, b);
                }
            }
        }
    }

    pub fn bind(&mut self) {
        let random = &mut self.random;
        let (Some(window), Some(region), Some(owned)) = (
            any(random, &mut self.windows),
            any(random, &mut self.regions),
            any(random, &mut self.qps),
        ) else {
            return;
        };
        let part = region.sge(random.below(64) as usize * 8, 64);
        let info = BindMwInfo {
            lkey: part.lkey,
            addr: part.addr,
            length: [0, 64][random.below(2) as usize],
            access: AccessFlags::REMOTE_WRITE.bits(),
        };
        let flags = SendFlags::SIGNALED;
        let _ = window.post_bind(&mut owned.qp.sq(), 1, (), &info, flags);
        owned.qp.sq().ring();
        let remote = Remote {
            addr: part.addr,
            rkey: window.rkey(),
        };
        keep(random, &mut self.remotes, 8, remote);
    }

    /// Which completion queues of ours are those of a queue pair: its own, most often.
    fn cqs_of<'c>(cqs: &'c mut [Cq], cqns: (u32, u32)) -> Option<Cqs<'c>> {
        let find = |cqn| cqs.iter().position(|cq| cq.cqn() == cqn);
        let (first, second) = (find(cqns.0)?, find(cqns.1)?);
        match first == second {
            true => Some(Cqs::Shared(&mut cqs[first])),
            false => {
                let [send, recv] = cqs.get_disjoint_mut([first, second]).ok()?;
                Some(Cqs::Split(send, recv))
            }
        }
    }

    pub fn reset(&mut self) {
        let random = &mut self.random;
        let Some(mut owned) = take(random, &mut self.qps) else {
            return;
        };
        // One that failed, most often.
        if owned.qp.state() != QpState::Err && random.below(8) != 0 {
            return keep(random, &mut self.qps, 10, owned);
        }
        let Some(cqs) = Self::cqs_of(&mut self.cqs, owned.cqns) else {
            return drop(owned);
        };
        let mut blocks = Vec::new();
        let panicked = panics(|| {
            let _ = owned.qp.reset(cqs, |_, block| {
                blocks.extend(block);
                perhaps_panic(random);
            });
        });
        self.tally.panics += u64::from(panicked);
        keep(&mut self.random, &mut self.qps, 10, owned);
        for block in blocks {
            self.hold(block);
        }
        self.connect_last();
    }

    /// Both queues of a queue pair, and its completion queue, on three threads.
    pub fn split(&mut self) {
        // Threads cost most of all.
        if self.random.below(8) != 0 {
            return;
        }
        let (remote, block) = (self.remote(), self.block());
        let random = &mut self.random;
        let mut seeds = [(); 2].map(|()| Random::new(random.number()));
        let Some(owned) = any(random, &mut self.qps) else {
            return self.posted(Err(PostError::WrongState), block);
        };
        let (mut sq, mut rq) = owned.qp.split();
        let mut completions = Vec::new();
        let cqs = &mut self.cqs;
        thread::scope(|scope| {
            let [first, _] = &mut seeds;
            scope.spawn(move || {
                for _ in 0..8 {
                    let _ = post_to(first, &mut sq, remote, None);
                    sq.ring();
                }
            });
            scope.spawn(move || {
                if let Some(block) = block {
                    let _ = rq.post_block(1, block);
                    rq.ring();
                }
            });
            for cq in cqs {
                cq.poll(8, |completion| completions.push(completion));
            }
        });
        completions
            .into_iter()
            .for_each(|completion| self.completed(completion));
    }

    /// What costs much, and is rare.
    pub fn look_closely(&mut self) {
        let random = &mut self.random;
        match random.below(8) {
            0..3 => {
                if let Some(owned) = any(random, &mut self.qps)
                    && let Some(cqs) = Self::cqs_of(&mut self.cqs, owned.cqns)
                {
                    let _ = owned.qp.dump(cqs, &DumpOptions::default());
                }
            }
            3..5 => {
                if let Some(cq) = any(random, &mut self.cqs) {
                    let _ = cq.req_notify(false);
                }
            }
            5 => {
                if let Some(srq) = take(random, &mut self.srqs) {
                    let mut blocks = Vec::new();
                    let panicked = panics(|| {
                        if let Err((srq, _)) = srq.destroy(|_, block| {
                            blocks.extend(block);
                            perhaps_panic(random);
                        }) {
                            self.srqs.push(srq);
                        }
                    });
                    self.tally.panics += u64::from(panicked);
                    for block in blocks {
                        self.hold(block);
                    }
                }
            }
            6 => {
                // Of what is dropped together anything may go first.
                let gone: Vec<Thing> = (0..8).filter_map(|_| self.any_thing()).collect();
                drop(gone);
            }
            _ => {
                if random.below(4) == 0 {
                    self.break_something();
                }
            }
        }
    }
}
