//! Schedules of faults on sets: 3 to 16 links whose completion queues are shared at one end, or at both. SENDs
//! go both ways on each; queue pairs, shared completion queues, the port and the device fail, links leave
//! and others take their slots.
//!
//! The rules: every request is reported once, by the handle of its own link; a message comes once, in order,
//! and from the link's own peer; one that is reported as executed has come, and one that is reported as not
//! executed has not; every block comes back; each link works again or has ended within its bound. What links
//! do by themselves is in the other schedules, with all operations.

use super::hca::Hca;
use super::number;
use bellwire::event::{Element, EventType};
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::fault::plan::Limits;
use bellwire::link::{
    JoinError, Link, LinkCompletion, LinkError, LinkId, LinkInit, LinkSet, LinkSetInit, LinkSetSrq,
    LinkState, NoLink, pair,
};
use bellwire::queue::PostError;
use bellwire::soft::{Fault, Script, Trigger};
use bellwire::wqe::{Send, opcode};
use bellwire::wr::{SendFlags, WcStatus};
use bellwire::{Block, ClassLayout, ConnectAttr, Pd, QpInit, Slab};
use bellwire_tests::fixture::{Random, slab};
use bellwire_tests::stand_in::Executed;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Schedules where nothing else is asked for.
const SCHEDULES: u64 = 300;

const MS: Duration = Duration::from_millis(1);
const BLOCK: u32 = 64;
/// Receives have this bit in their identifier.
const RECEIVE: u64 = 1 << 32;

/// Where a link is.
enum Place {
    Plain(Box<Link>),
    InSet(LinkId),
}

/// One end of a pair of links, and the program's log of it.
struct End {
    place: Place,
    sends: Vec<Option<Outcome>>,
    signaled: Vec<bool>,
    receives: Vec<Option<Outcome>>,
    /// The messages that came, by their numbers.
    came: Vec<u64>,
    retired: u64,
    /// Messages that the device has executed.
    executed: u64,
}

/// One end of all pairs.
struct Side {
    set: Option<LinkSet>,
    /// Supplies the buffers of its shared receive queue.
    srq: Option<Slab>,
    /// Buffers of messages that the program has not returned yet.
    held: Vec<Block<'static>>,
    ends: Vec<End>,
    of_id: HashMap<LinkId, usize>,
    /// Handles of links that were removed.
    gone: Vec<LinkId>,
}

struct World {
    random: Random,
    trace: bool,
    hca: Hca,
    pd: Pd,
    slab: Slab,
    sides: [Side; 2],
    limits: Limits,
    init: LinkInit,
    completions_lost: bool,
    /// Whose queue pair has a number.
    of_qp: HashMap<u32, (usize, usize)>,
    /// A queue pair came and went without being seen, and executed messages.
    unseen: bool,
    /// The device may fail.
    fatal: bool,
    now: Duration,
}

/// What the schedules met.
#[derive(Debug, Default)]
struct Met {
    recovered: u64,
    queues_replaced: u64,
    srqs_replaced: u64,
    removed: u64,
    in_doubt: u64,
    done: u64,
    talks: u64,
    /// Links of which it is not known what was executed.
    unseen: u64,
}

impl Side {
    fn state(&self, at: usize) -> LinkState {
        match (&self.ends[at].place, &self.set) {
            (Place::Plain(link), _) => link.state(),
            (Place::InSet(id), Some(set)) => set.state(*id).expect("in the set"),
            _ => unreachable!(),
        }
    }

    fn qp_num(&mut self, at: usize) -> Option<u32> {
        match (&self.ends[at].place, &mut self.set) {
            (Place::Plain(link), _) => link.qp_num(),
            // It may have been removed.
            (Place::InSet(id), Some(set)) => set.link(*id).ok()?.qp_num(),
            _ => unreachable!(),
        }
    }

    fn cqn(&self, at: usize) -> Option<u32> {
        match (&self.ends[at].place, &self.set) {
            (Place::Plain(link), _) => link.cqn(),
            (_, Some(set)) => set.cqns().next(),
            _ => unreachable!(),
        }
    }

    fn close(&mut self, at: usize, within: Duration) {
        match (&mut self.ends[at].place, &mut self.set) {
            (Place::Plain(link), _) => link.close(within),
            (Place::InSet(id), Some(set)) => set.close(*id, within).expect("in the set"),
            _ => unreachable!(),
        }
    }

    /// Polls all links; what was reported, by its end.
    fn poll(&mut self, limit: usize) -> Vec<(usize, LinkCompletion)> {
        let mut all = Vec::new();
        if let Some(set) = &mut self.set {
            let count = set.poll(limit, |id, one| all.push((self.of_id[&id], one)));
            assert_eq!(count, all.len());
            assert!(count <= limit);
            while set.next_change().is_some() {}
            return all;
        }
        for (at, end) in self.ends.iter_mut().enumerate() {
            if let Place::Plain(link) = &mut end.place {
                link.poll(limit, |one| all.push((at, one)));
            }
        }
        all
    }
}

impl End {
    /// A message came to the link `at` of a side.
    fn came(&mut self, block: &Block<'_>, side: usize, at: usize) {
        let word = |at: usize| {
            u64::from_le_bytes(block.as_slice()[8 * at..][..8].try_into().expect("eight"))
        };
        let from = (word(1), word(2));
        assert_eq!(from, (at as u64, 1 - side as u64), "of another link");
        let last = self.came.last().copied();
        assert!(last < Some(word(0)), "{} after {last:?}", word(0));
        self.came.push(word(0));
    }
}

impl World {
    fn new(seed: u64, trace: bool) -> Self {
        let hca = Hca::soft(seed);
        let mut random = Random::new(seed);
        (0..8).for_each(|_| _ = random.number());
        let pd = hca.device.alloc_pd();
        let layout = [ClassLayout {
            size: BLOCK,
            count: 2048,
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
        // Too small for all: it overruns in earnest.
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
            limits,
            init,
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
    fn queues(&self) -> [(Option<u32>, Option<u32>); 2] {
        [0, 1].map(|side| {
            let set = self.sides[side].set.as_ref();
            let cqn = set.and_then(|set| set.cqns().next());
            (cqn, set.and_then(|set| set.srqns().next()))
        })
    }

    fn say(&self, what: impl FnOnce() -> String) {
        if self.trace {
            println!("{:?}: {}", self.now, what());
        }
    }

    /// Makes the pair of links `at`, anew if there was one.
    fn connect(&mut self, at: usize) {
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
        true
    }

    fn advance(&mut self, by: Duration) {
        self.now = self.hca.advance(self.now, by);
        self.read_journal();
    }

    /// Counts the messages that the device has executed.
    fn read_journal(&mut self) {
        for (side, of) in self.sides.iter_mut().enumerate() {
            for at in 0..of.ends.len() {
                if let Some(number) = of.qp_num(at) {
                    self.of_qp.insert(number, (side, at));
                }
            }
        }
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

    fn receive(&mut self, side: usize, at: usize) {
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

    fn send(&mut self, side: usize, at: usize) -> Result<(), LinkError> {
        let mut block = self.slab.take(BLOCK).expect("enough for all queues");
        let policy = [Replay::Surface, Replay::IfSafe][self.random.below(2) as usize];
        let signaled = self.random.below(4) != 0;
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
        self.read_journal();
        Ok(())
    }

    fn poll(&mut self, side: usize, limit: usize) -> usize {
        let all = self.sides[side].poll(limit);
        let count = all.len();
        for (at, one) in all {
            self.take(side, at, one);
        }
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

    fn poll_both(&mut self) -> usize {
        self.poll(0, usize::MAX) + self.poll(1, usize::MAX)
    }

    fn any(&mut self) -> (usize, usize) {
        let side = self.random.below(2) as usize;
        let at = self.random.below(self.sides[side].ends.len() as u64) as usize;
        (side, at)
    }

    fn order_fault(&mut self) {
        let (side, at) = self.any();
        let (qp, cq) = (self.sides[side].qp_num(at), self.sides[side].cqn(at));
        let srq = (self.sides[side].set.as_ref()).and_then(|set| set.srqns().next());
        let nth = 1 + self.random.below(24);
        let later = Duration::from_micros(self.random.below(5_000));
        let trigger = match self.random.below(4) {
            0 => Trigger::Entry(nth),
            1 => Trigger::Modify(1 + self.random.below(24)),
            2 => Trigger::After(later),
            _ => Trigger::After(Duration::ZERO),
        };
        let script = Script::default();
        let script = match (self.random.below(110), qp, cq) {
            (100.., ..) => match srq {
                Some(srq) => script.with(trigger, Fault::SrqErr(srq)),
                None => return,
            },
            (0..35, Some(qp), _) => script.with(trigger, Fault::QpFatal(qp)),
            (35..55, _, Some(cq)) => script.with(trigger, Fault::CqOverrun(cq)),
            (55..60, _, Some(cq)) => {
                let raised = Fault::Raise(EventType::CqErr, Element::Cq(cq));
                script.with(trigger, raised)
            }
            (60..70, ..) => script.with(Trigger::Entry(nth), Fault::SendCqOverrun),
            (70..78, ..) => script.with(Trigger::Entry(nth), Fault::RecvCqOverrun),
            (78..86, ..) => {
                let fault = Fault::StatusAfter(WcStatus::RetryExcErr);
                script.with(Trigger::Entry(nth), fault)
            }
            (86..92, ..) => script.with(Trigger::Packet(nth), Fault::DropRequest),
            (92..98, ..) => script
                .with(trigger, Fault::PortDown)
                .with(Trigger::After(later + 5 * MS), Fault::PortUp),
            (98..100, ..) if self.fatal => script.with(trigger, Fault::DeviceFatal),
            _ => return,
        };
        self.say(|| format!("ordered: {:?}", script.steps()));
        for &(_, fault) in script.steps() {
            self.completions_lost |= matches!(
                fault,
                Fault::SendCqOverrun
                    | Fault::RecvCqOverrun
                    | Fault::CqOverrun(_)
                    | Fault::DeviceFatal
                    | Fault::Raise(EventType::CqErr, _)
            );
        }
        self.hca
            .inject(&script, |_| None)
            .expect("the software HCA");
        self.advance(Duration::from_nanos(1));
    }

    /// Removes a pair of links, whatever it does, and connects another in its slots.
    fn replace(&mut self, met: &mut Met) {
        let (_, at) = self.any();
        self.say(|| format!("{at} is replaced"));
        met.removed += 1;
        self.connect(at);
    }

    fn act(&mut self, met: &mut Met) {
        let (side, at) = self.any();
        match self.random.below(100) {
            0..35 => {
                for _ in 0..1 + self.random.below(4) {
                    if self.send(side, at).is_err() {
                        break;
                    }
                }
            }
            35..60 => (0..1 + self.random.below(4)).for_each(|_| self.receive(side, at)),
            60..85 => {
                let limit = 1 + self.random.below(16) as usize;
                self.poll(side, limit);
            }
            85..94 => {
                let time = Duration::from_micros(self.random.below(3_000));
                self.advance(time);
            }
            94..99 => self.order_fault(),
            // Nothing joins a device that has failed.
            _ if !self.fatal => self.replace(met),
            _ => {}
        }
    }

    fn recovers(&self) -> bool {
        let all =
            |side: &Side| (0..side.ends.len()).any(|at| side.state(at) == LinkState::Recovering);
        self.sides.iter().any(all)
    }

    /// Ends that do not work, or wait for a request: side, link, state, the first such request.
    fn waiting(&self) -> Vec<(usize, usize, LinkState, Option<usize>)> {
        let mut waiting = Vec::new();
        for (side, of) in self.sides.iter().enumerate() {
            for (at, end) in of.ends.iter().enumerate() {
                let mut all = end.sends.iter().zip(&end.signaled);
                let first = all.position(|(sent, signaled)| sent.is_none() && *signaled);
                let state = of.state(at);
                if state != LinkState::Ready || first.is_some() {
                    waiting.push((side, at, state, first));
                }
            }
        }
        waiting
    }

    fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let end = self.now + 2 * self.limits.max_duration();
        let mut pause = Duration::from_micros(100);
        while !done(self) {
            let polled: usize = (0..8).map(|_| self.poll_both()).sum();
            self.sides.iter_mut().for_each(|side| side.held.clear());
            if polled == 0 && !done(self) {
                self.advance(pause);
                pause = (pause * 2).min(10 * MS);
            } else {
                pause = Duration::from_micros(100);
            }
            assert!(self.now < end, "it still {what}: {:?}", self.waiting());
        }
    }

    /// A message each way on each link that works.
    fn talk(&mut self, met: &mut Met) {
        for at in 0..self.sides[0].ends.len() {
            if [0, 1]
                .iter()
                .any(|side| self.sides[*side].state(at) != LinkState::Ready)
            {
                continue;
            }
            for side in 0..2 {
                (0..8).for_each(|_| self.receive(1 - side, at));
                let _ = self.send(side, at);
            }
            met.talks += 1;
        }
        self.until_answered();
        // Also those that have no completion.
        let rest = self.now + 300 * MS;
        self.until("rests", |world| world.now >= rest && !world.recovers());
        // One by one, so that there is a buffer for each: nothing fails any more.
        for at in 0..self.sides[0].ends.len() {
            for side in 0..2 {
                let ready = |side: &Side| side.state(at) == LinkState::Ready;
                if !self.sides.iter().all(ready) {
                    continue;
                }
                while self.poll_both() != 0 {}
                self.receive(1 - side, at);
                let number = self.sides[side].ends[at].sends.len();
                if self.send(side, at).is_ok() {
                    self.until_answered();
                    let end = &self.sides[side].ends[at];
                    let outcome = end.sends[number];
                    let right = matches!(outcome, Some(Outcome::Done)) || !end.signaled[number];
                    assert!(right, "{side}.{at}: {outcome:?} at the end");
                }
            }
        }
    }

    fn until_answered(&mut self) {
        self.until("talks", |world| {
            world.sides.iter().all(|side| {
                side.ends.iter().enumerate().all(|(at, end)| {
                    let waits = end.sends.iter().zip(&end.signaled);
                    let waits = waits.filter(|(sent, signaled)| sent.is_none() && **signaled);
                    waits.count() == 0 || matches!(side.state(at), LinkState::Ended(_))
                })
            })
        });
    }

    fn live(&mut self, met: &mut Met) {
        if self.random.below(4) != 0 {
            self.until("connects", |world| !world.recovers());
        }
        for _ in 0..60 + self.random.below(200) {
            self.act(met);
        }
        if self.random.below(8) != 0 {
            self.hca.clear_faults();
            self.hca.port_up();
            self.until("recovers", |world| !world.recovers());
            self.talk(met);
        }
        let within = [Duration::ZERO, 10 * MS][self.random.below(2) as usize];
        for side in 0..2 {
            for at in 0..self.sides[side].ends.len() {
                self.sides[side].close(at, within);
            }
        }
        self.until("closes", |world| {
            let ended = |side: &Side| {
                (0..side.ends.len()).all(|at| matches!(side.state(at), LinkState::Ended(_)))
            };
            world.sides.iter().all(ended)
        });
        while self.poll_both() != 0 {}
        self.sides.iter_mut().for_each(|side| side.held.clear());
        // Each set looks for returned buffers.
        (0..4).for_each(|_| _ = self.poll_both());
    }

    /// Everything that was reported is true.
    fn check(&mut self, met: &mut Met) {
        for side in 0..2 {
            for at in 0..self.sides[side].ends.len() {
                let counters = {
                    let Side { set, ends, .. } = &mut self.sides[side];
                    match (&ends[at].place, set) {
                        (Place::Plain(link), _) => (link.counters(), link.unreported()),
                        (Place::InSet(id), Some(set)) => {
                            let link = set.link(*id).expect("in the set");
                            (link.counters(), link.unreported())
                        }
                        _ => unreachable!(),
                    }
                };
                let (Some(counters), unreported) = counters else {
                    unreachable!("nothing is in a thread")
                };
                let bound = self.limits.max_duration();
                assert!(counters.longest <= bound, "{:?}", counters.longest);
                met.recovered += counters.recovered;
                let (end, peer) = (&self.sides[side].ends[at], &self.sides[1 - side].ends[at]);
                let (mut done, mut in_doubt) = (0, 0);
                for (number, (outcome, signaled)) in end.sends.iter().zip(&end.signaled).enumerate()
                {
                    let came = peer.came.contains(&(number as u64));
                    let right = match outcome {
                        Some(Outcome::Done) => came || self.completions_lost,
                        Some(Outcome::NotExecuted | Outcome::Failed(_)) => !came,
                        Some(Outcome::InDoubt(_)) => true,
                        None => !signaled && (came || self.completions_lost),
                    };
                    assert!(right, "{side}.{at}: {number} is {outcome:?}, came: {came}");
                    // What is not reported was executed, and is retired by a later one.
                    done += u64::from(matches!(outcome, Some(Outcome::Done) | None));
                    in_doubt += u64::from(matches!(outcome, Some(Outcome::InDoubt(_))));
                }
                met.done += done;
                met.in_doubt += in_doubt;
                met.unseen += u64::from(self.unseen);
                if !self.unseen {
                    let executed = end.executed;
                    let right = (done..=done + in_doubt).contains(&executed);
                    assert!(
                        right,
                        "{side}.{at}: {executed} executed, {done} to {done} + {in_doubt}"
                    );
                }
                assert!(
                    end.receives.iter().all(Option::is_some),
                    "{side}.{at}: a receive"
                );
                let posted = (end.sends.len() + end.receives.len()) as u64;
                assert_eq!(end.retired + u64::from(unreported), posted, "{side}.{at}");
            }
            let Side { set, gone, .. } = &mut self.sides[side];
            if let Some(set) = set {
                assert!(gone.iter().all(|id| set.link(*id).is_err()));
            }
        }
        assert_eq!(self.slab.outstanding(), 0, "blocks were lost");
        for Side { set, srq, .. } in &mut self.sides {
            let (Some(mut set), Some(slab)) = (set.take(), srq) else {
                continue;
            };
            if !self.fatal {
                assert_eq!(set.receives_posted() as usize, slab.capacity());
            }
            drop(set);
            assert_eq!(slab.outstanding(), 0, "buffers were lost");
        }
    }
}

fn run(seed: u64, trace: bool, met: &mut Met) {
    let mut world = World::new(seed, trace);
    let before = world.queues();
    world.live(met);
    for (before, after) in before.into_iter().zip(world.queues()) {
        met.queues_replaced += u64::from(before.0 != after.0);
        met.srqs_replaced += u64::from(before.1 != after.1);
    }
    world.check(met);
}

#[test]
fn schedules_of_faults_on_sets() {
    let mut met = Met::default();
    if let Some(seed) = number("BELLWIRE_SEED") {
        run(seed, true, &mut met);
        println!("{met:?}");
        return;
    }
    let wanted = number("BELLWIRE_SET_SCHEDULES").unwrap_or(SCHEDULES);
    let mut broken = Vec::new();
    for seed in 0..wanted {
        if catch_unwind(AssertUnwindSafe(|| run(seed, false, &mut met))).is_err() {
            eprintln!("seed {seed} broke a rule, see above");
            broken.push(seed);
            if broken.len() == 10 {
                break;
            }
        }
    }
    println!("report: {wanted} schedules on sets, {met:?}");
    assert!(broken.is_empty(), "seeds that broke a rule: {broken:?}");
    if wanted >= SCHEDULES {
        let Met {
            recovered,
            queues_replaced,
            srqs_replaced,
            removed,
            in_doubt,
            done,
            talks,
            unseen,
        } = met;
        assert!(unseen < talks / 10, "{unseen}");
        for (what, count) in [
            ("recoveries", recovered),
            ("queues replaced", queues_replaced),
            ("shared receive queues replaced", srqs_replaced),
            ("links removed", removed),
            ("in doubt", in_doubt),
            ("done", done),
            ("messages at the end", talks),
        ] {
            assert!(count > wanted / 10, "{what}: {count}");
        }
    }
}
