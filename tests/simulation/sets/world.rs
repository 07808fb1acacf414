//! The pairs of links of a schedule: they connect, send, receive and are polled.

use super::super::hca::Hca;
use super::{BLOCK, End, MS, Place, RECEIVE, Side, World};
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::fault::plan::Limits;
use bellwire::link::{
    Cancel, CancelError, JoinError, Link, LinkCompletion, LinkError, LinkInit, LinkSet,
    LinkSetInit, LinkSetSrq, NoLink, pair,
};
use bellwire::queue::PostError;
use bellwire::wqe::{Send, opcode};
use bellwire::wr::SendFlags;
use bellwire::{ClassLayout, ConnectAttr, QpInit};
use bellwire_tests::fixture::{Random, slab};
use bellwire_tests::stand_in::Executed;
use std::collections::HashMap;
use std::time::Duration;

impl World {
    pub(super) fn new(seed: u64, trace: bool) -> Self {
        let hca = Hca::soft(seed);
        let mut random = Random::new(seed);
        (0..8).for_each(|_| _ = random.number());
        let pd = hca.device.alloc_pd();
        let layout = [ClassLayout {
            size: BLOCK,
            count: 1024,
        }];
        let limits = hca.limits(random.number());
        let qp = QpInit {
            max_send_wr: 8,
            max_recv_wr: 8,
            max_inline_data: 64,
            ..QpInit::default()
        };
        let init = LinkInit {
            qp,
            connect: ConnectAttr {
                timeout: 8,
                retry_cnt: 2,
                rnr_retry: 2,
                ..ConnectAttr::default()
            },
            limits,
            max_steps_per_poll: [1, 2, u32::MAX][random.below(3) as usize],
            check_every: 1,
            request_deadline: seed.is_multiple_of(4).then_some(20 * MS),
            keep_alive: [None, Some(4 * MS), Some(40 * MS)][(seed % 3) as usize],
            ..LinkInit::default()
        };
        let links = 3 + random.below(14) as u32;
        let small = random.below(8) == 0;
        let fatal = random.below(8) == 0;
        let set = |random: &mut Random| {
            let srq = (random.below(2) == 0).then(|| {
                let count = 1 + random.below(64) as u32;
                let layout = [ClassLayout { size: BLOCK, count }];
                LinkSetSrq {
                    slab: slab(&pd, &layout),
                    length: BLOCK,
                    max_held: (random.below(4) == 0).then(|| 1 + random.below(8) as u32),
                }
            });
            let init = LinkSetInit {
                links,
                qp,
                srq: srq.clone(),
                cq_entries: small.then(|| 8 + random.below(32) as u32),
                check_every: 1 + random.below(3) as u32,
                links_per_poll: [1, 3, 16][random.below(3) as usize],
                ..LinkSetInit::default()
            };
            let set = LinkSet::new(&pd, init).expect("a set");
            (set, srq.map(|srq| srq.slab))
        };
        let sets = [
            Some(set(&mut random)),
            (random.below(2) == 0).then(|| set(&mut random)),
        ];
        let sides = sets.map(|set| {
            let (set, srq) = set.unzip();
            (set, srq.flatten())
        });
        let sides = sides.map(|(set, srq)| Side {
            set,
            srq,
            held: Vec::new(),
            ends: Vec::new(),
            of_id: HashMap::new(),
            gone: Vec::new(),
        });
        let mut world = Self {
            slab: slab(&pd, &layout),
            random,
            trace,
            hca,
            pd,
            sides,
            reported: Vec::new(),
            limits,
            init,
            small,
            completions_lost: small,
            of_qp: HashMap::new(),
            unseen: false,
            fatal,
            now: Duration::ZERO,
        };
        for at in 0..links as usize {
            world.connect(at);
        }
        world
    }

    /// Numbers of the sets' queues.
    pub(super) fn queues(&self) -> [(Option<u32>, Option<u32>); 2] {
        [0, 1].map(|side| {
            let set = self.sides[side].set.as_ref();
            let cqn = set.and_then(|set| set.cqns().next());
            (cqn, set.and_then(|set| set.srqns().next()))
        })
    }

    pub(super) fn say(&self, what: impl FnOnce() -> String) {
        if self.trace {
            println!("{:?}: {}", self.now, what());
        }
    }

    /// Makes the pair of links `at`, anew if there was one.
    pub(super) fn connect(&mut self, at: usize) {
        // A fault may strike the new queue pair itself.
        let end = self.now + self.limits.max_duration();
        while !self.joined(at) {
            self.poll_both();
            self.advance(MS);
            assert!(self.now < end, "no link can join");
        }
    }

    fn joined(&mut self, at: usize) -> bool {
        let (here, there) = pair();
        for side in &mut self.sides {
            if let Some(Place::InSet(id)) = side.ends.get(at).map(|end| &end.place)
                && let Some(set) = &mut side.set
                && side.of_id.remove(id).is_some()
            {
                set.remove(*id).expect("in the set");
                assert_eq!(set.remove(*id), Err(NoLink));
                side.gone.push(*id);
            }
        }
        for (side, exchange) in self.sides.iter_mut().zip([here, there]) {
            let init = LinkInit {
                limits: Limits {
                    seed: self.random.number(),
                    ..self.limits
                },
                ..self.init.clone()
            };
            let place = match &mut side.set {
                Some(set) => {
                    let id = match set.join(init, exchange) {
                        Ok(id) => id,
                        Err(JoinError::Full { .. }) => panic!("there is room"),
                        Err(_) => return false,
                    };
                    assert!(!side.gone.contains(&id), "a handle came back");
                    side.of_id.insert(id, at);
                    Place::InSet(id)
                }
                None => match Link::new(&self.pd, init, exchange) {
                    Ok(link) => Place::Plain(Box::new(link)),
                    Err(_) => return false,
                },
            };
            let end = End {
                place,
                sends: Vec::new(),
                signaled: Vec::new(),
                unanswered: 0,
                qp_num: None,
                receives: Vec::new(),
                came: Vec::new(),
                retired: 0,
                executed: 0,
            };
            match side.ends.get_mut(at) {
                Some(old) => *old = end,
                None => side.ends.push(end),
            }
        }
        (0..2).for_each(|side| self.note_qps(side));
        true
    }

    pub(super) fn advance(&mut self, by: Duration) {
        self.now = self.hca.advance(self.now, by);
        self.read_journal();
    }

    /// Notes whose queue pairs those of a side are: links change them when they are polled, and when they join.
    fn note_qps(&mut self, side: usize) {
        let of = &mut self.sides[side];
        for at in 0..of.ends.len() {
            let number = of.qp_num(at);
            let before = std::mem::replace(&mut of.ends[at].qp_num, number);
            if let Some(number) = number
                && before != Some(number)
            {
                self.of_qp.insert(number, (side, at));
            }
        }
    }

    /// Counts the messages that the device has executed.
    fn read_journal(&mut self) {
        for Executed { qp_num, opcode, .. } in self.hca.journal() {
            // The link's own are WRITEs.
            if opcode == opcode::SEND {
                match self.of_qp.get(&qp_num) {
                    Some(&(side, at)) => self.sides[side].ends[at].executed += 1,
                    None => self.unseen = true,
                }
            }
        }
    }

    pub(super) fn receive(&mut self, side: usize, at: usize) {
        if self.sides[side].srq.is_some() {
            return self.refused(side, at);
        }
        let block = self.slab.take(BLOCK).expect("enough for all queues");
        let Side { set, ends, .. } = &mut self.sides[side];
        let end = &mut ends[at];
        let wr_id = RECEIVE | end.receives.len() as u64;
        let posted = match (&mut end.place, set) {
            (Place::Plain(link), _) => {
                let posted = link.post_recv_block(wr_id, block);
                link.ring_recv();
                posted
            }
            (Place::InSet(id), Some(set)) => {
                let mut link = set.link(*id).expect("in the set");
                let posted = link.post_recv_block(wr_id, block);
                link.ring_recv();
                posted
            }
            _ => unreachable!(),
        };
        if posted.is_ok() {
            end.receives.push(None);
        }
    }

    /// A link on a shared receive queue takes no receive of the program's. Returns buffers instead.
    fn refused(&mut self, side: usize, at: usize) {
        let block = self.slab.take(BLOCK).expect("enough for all queues");
        let Side {
            set, ends, held, ..
        } = &mut self.sides[side];
        if let (Place::InSet(id), Some(set)) = (&ends[at].place, set) {
            let mut link = set.link(*id).expect("in the set");
            let refused = link.post_recv_block(0, block).expect_err("it has none");
            let error = LinkError::Post(PostError::NoRecvQueue);
            assert_eq!(refused.error, error);
        }
        held.truncate(self.random.below(1 + held.len() as u64) as usize);
    }

    pub(super) fn send(&mut self, side: usize, at: usize) -> Result<(), LinkError> {
        let signaled = self.random.below(4) != 0;
        self.send_this(side, at, signaled)
    }

    pub(super) fn send_this(
        &mut self,
        side: usize,
        at: usize,
        signaled: bool,
    ) -> Result<(), LinkError> {
        let mut block = self.slab.take(BLOCK).expect("enough for all queues");
        let policy = [Replay::Surface, Replay::IfSafe][self.random.below(2) as usize];
        let flags = match signaled {
            true => SendFlags::SIGNALED,
            false => SendFlags::empty(),
        };
        let Side { set, ends, .. } = &mut self.sides[side];
        let end = &mut ends[at];
        let wr_id = end.sends.len() as u64;
        for (word, value) in [wr_id, at as u64, side as u64].into_iter().enumerate() {
            block.as_mut_slice()[8 * word..][..8].copy_from_slice(&value.to_le_bytes());
        }
        let posted = match (&mut end.place, set) {
            (Place::Plain(link), _) => {
                let posted = link.post_block(wr_id, Send {}, block, 24, flags, policy);
                link.ring();
                posted
            }
            (Place::InSet(id), Some(set)) => {
                let mut link = set.link(*id).expect("in the set");
                let posted = link.post_block(wr_id, Send {}, block, 24, flags, policy);
                link.ring();
                posted
            }
            _ => unreachable!(),
        };
        posted.map_err(|refused| refused.error)?;
        end.sends.push(None);
        end.signaled.push(signaled);
        end.unanswered += usize::from(signaled);
        self.read_journal();
        Ok(())
    }

    /// Cancels a request at random, or gives it a deadline. Returns how many are taken back.
    pub(super) fn cancel(&mut self, side: usize, at: usize) -> u64 {
        let recv = self.random.below(3) == 0;
        let within = (self.random.below(2) == 0).then(|| {
            let most = 4 * MS;
            most.mul_f64(self.random.below(100) as f64 / 100.0)
        });
        let back = 1 + self.random.below(6) as usize;
        let Side { set, srq, ends, .. } = &mut self.sides[side];
        let end = &mut ends[at];
        let (outcomes, bit) = match recv {
            true => (&end.receives, RECEIVE),
            false => (&end.sends, 0),
        };
        // One that was never posted is unknown.
        let number = outcomes.len().saturating_sub(back);
        let outcome = outcomes.get(number).copied().flatten();
        let known = number < outcomes.len();
        let wr_id = bit | number as u64;
        let result = match (&mut end.place, set) {
            (Place::Plain(link), _) => match (recv, within) {
                (false, None) => link.cancel(wr_id),
                (false, Some(within)) => link.cancel_after(wr_id, within),
                (true, None) => link.cancel_recv(wr_id),
                (true, Some(within)) => link.cancel_recv_after(wr_id, within),
            },
            (Place::InSet(id), Some(set)) => match (recv, within) {
                (false, None) => set.cancel(*id, wr_id),
                (false, Some(within)) => set.cancel_after(*id, wr_id, within),
                (true, None) => set.cancel_recv(*id, wr_id),
                (true, Some(within)) => set.cancel_recv_after(*id, wr_id, within),
            },
            _ => unreachable!(),
        };
        let retired = !recv && end.signaled.get(number) == Some(&false);
        let right = match result {
            Ok(Cancel::Requested | Cancel::Completed | Cancel::Repeated) => {
                known && outcome.is_none()
            }
            Err(CancelError::NotFound) => !known || outcome.is_some() || retired,
            Err(CancelError::Ended(_)) => true,
            Err(CancelError::NoRecvQueue) => recv && srq.is_some(),
            _ => false,
        };
        assert!(right, "{side}.{at}: {wr_id:#x}: {result:?}, {outcome:?}");
        self.say(|| format!("{side}.{at}: cancel {wr_id:#x} {within:?}: {result:?}"));
        u64::from(result == Ok(Cancel::Requested))
    }

    pub(super) fn poll(&mut self, side: usize, limit: usize) -> usize {
        let mut all = std::mem::take(&mut self.reported);
        self.sides[side].poll(limit, &mut all);
        let count = all.len();
        for (at, one) in all.drain(..) {
            self.take(side, at, one);
        }
        self.reported = all;
        self.note_qps(side);
        self.read_journal();
        count
    }

    fn take(&mut self, side: usize, at: usize, one: LinkCompletion) {
        self.say(|| format!("{side}.{at}: {:#x} {:?}", one.wr_id, one.outcome));
        let keeps = self.random.below(2) == 0;
        let Side {
            srq, held, ends, ..
        } = &mut self.sides[side];
        let end = &mut ends[at];
        end.retired += u64::from(one.retired);
        if one.is_recv() && srq.is_some() {
            let block = one.block.expect("of the slab");
            let expected = (block.addr(), Outcome::Done);
            assert_eq!((one.wr_id, one.outcome), expected);
            end.came(&block, side, at);
            if keeps {
                held.push(block);
            }
            return;
        }
        let number = (one.wr_id & !RECEIVE) as usize;
        let recv = one.wr_id & RECEIVE != 0;
        assert_eq!(recv, one.is_recv(), "{one:?}");
        end.unanswered -= usize::from(!recv && end.signaled[number]);
        let places = if recv {
            &mut end.receives
        } else {
            &mut end.sends
        };
        let before = places[number].replace(one.outcome);
        assert_eq!(before, None, "{side}.{at}: reported before: {one:?}");
        let block = one.block.expect("posted with one");
        if recv && one.outcome == Outcome::Done {
            end.came(&block, side, at);
        }
    }

    pub(super) fn poll_both(&mut self) -> usize {
        self.poll(0, usize::MAX) + self.poll(1, usize::MAX)
    }
}
