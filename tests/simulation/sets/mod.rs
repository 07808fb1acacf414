//! Schedules of faults on sets: 3 to 16 links whose completion queues are shared at one end, or at both. SENDs
//! go both ways on each; queue pairs, shared completion queues, the port and the device fail, links leave
//! and others take their slots.
//!
//! The rules: every request is reported once, by the handle of its own link; a message comes once, in order,
//! and from the link's own peer; one that is reported as executed has come, and one that is reported as not
//! executed has not; every block comes back; each link works again or has ended within its bound. What links
//! do by themselves is in the other schedules, with all operations.

mod check;
mod schedule;
mod world;

use super::hca::Hca;
use super::{number, of_seeds};
use bellwire::fault::outcome::Outcome;
use bellwire::fault::plan::Limits;
use bellwire::link::{Link, LinkCompletion, LinkId, LinkInit, LinkSet, LinkState};
use bellwire::{Block, Pd, Slab};
use bellwire_tests::fixture::Random;
use std::collections::HashMap;
use std::time::Duration;

/// Schedules where nothing else is asked for, by `BELLWIRE_SET_SCHEDULES`; the step `simulation` runs more.
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
    /// Those that are signalled and not reported.
    unanswered: usize,
    /// The number of its queue pair, when it was last looked at.
    qp_num: Option<u32>,
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
    /// Room for what a poll reports.
    reported: Vec<(usize, LinkCompletion)>,
    limits: Limits,
    init: LinkInit,
    /// The completion queues are too small for all links: they overrun in earnest.
    small: bool,
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
    /// Messages that were executed when nothing failed any more.
    last_done: u64,
    /// Links of which it is not known what was executed.
    unseen: u64,
    /// Requests that were cancelled or given a deadline, in time.
    cancelled: u64,
}

impl Met {
    fn add(&mut self, more: &Self) {
        let Self {
            recovered,
            queues_replaced,
            srqs_replaced,
            removed,
            in_doubt,
            done,
            talks,
            last_done,
            unseen,
            cancelled,
        } = self;
        for (all, more) in [
            (recovered, more.recovered),
            (queues_replaced, more.queues_replaced),
            (srqs_replaced, more.srqs_replaced),
            (removed, more.removed),
            (in_doubt, more.in_doubt),
            (done, more.done),
            (talks, more.talks),
            (last_done, more.last_done),
            (unseen, more.unseen),
            (cancelled, more.cancelled),
        ] {
            *all += more;
        }
    }
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

    /// Polls all links; adds what was reported, by its end.
    fn poll(&mut self, limit: usize, all: &mut Vec<(usize, LinkCompletion)>) {
        if let Some(set) = &mut self.set {
            let count = set.poll(limit, |id, one| all.push((self.of_id[&id], one)));
            assert_eq!(count, all.len());
            assert!(count <= limit);
            while set.next_change().is_some() {}
            return;
        }
        for (at, end) in self.ends.iter_mut().enumerate() {
            if let Place::Plain(link) = &mut end.place {
                link.poll(limit, |one| all.push((at, one)));
            }
        }
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
    if let Some(seed) = number("BELLWIRE_SEED") {
        let mut met = Met::default();
        run(seed, true, &mut met);
        println!("{met:?}");
        return;
    }
    let wanted = number("BELLWIRE_SET_SCHEDULES").unwrap_or(SCHEDULES);
    let (met, broken) = of_seeds(wanted, |seed, met| run(seed, false, met), Met::add);
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
            last_done,
            unseen,
            cancelled,
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
            ("messages after that", last_done),
            ("cancelled", cancelled),
        ] {
            assert!(count > wanted / 10, "{what}: {count}");
        }
    }
}
