//! One schedule: two ends, what they do, and what goes wrong.

use super::end::End;
use super::exchange::Slow;
use super::hca::Hca;
use super::request::{Kind, MEMORY, Request, opened};
use super::tally::Tally;
use bellwire::fault::outcome::Replay;
use bellwire::fault::plan::{EndReason, Limits, Step};
use bellwire::link::{LinkEnd, LinkInit, LinkState, pair};
use bellwire::recorder::DumpOptions;
use bellwire::{ConnectAttr, QpInit};
use bellwire_tests::fixture::{Random, SIGNALED};
use std::collections::HashMap;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

/// Two links on a device whose clock moves only when it is advanced, and everything that is known of them.
pub struct World {
    pub random: Random,
    seed: u64,
    trace: bool,
    pub hca: Hca,
    pub ends: [End; 2],
    pub limits: Limits,
    /// What the memory of each end is to hold, as the journal has it.
    pub memory: [Vec<u8>; 2],
    /// Whose queue pair has which number.
    pub qps: HashMap<u32, usize>,
    /// The last request of each end that was executed for the first time.
    pub newest: [Option<usize>; 2],
    /// Atomics that the device executed, of both ends: fetch-and-adds, compare-and-swaps.
    pub atomics: [u64; 2],
    /// Completions may have been lost with a completion queue.
    pub completions_lost: bool,
    cancels: bool,
    lends: bool,
    pub now: Duration,
    pub tally: Tally,
}

/// How the two links are made.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Of a recovery, in a poll.
    max_steps_per_poll: u32,
    check_every: u32,
    /// Looks until a message of the exchange is seen, at the most.
    delay: u64,
    /// Entries of completion queues that are too small.
    cq_entries: [Option<u32>; 2],
    /// Messages until the exchange is cut.
    cut_after: [Option<u64>; 2],
    /// One message in so many is lost.
    lost_one_in: Option<u64>,
    /// Whether what failed queue pairs did is kept.
    dumps: bool,
    request_deadline: Option<Duration>,
    keep_alive: Option<Duration>,
    /// Whether programs cancel requests, and give them deadlines.
    cancels: bool,
    /// Whether programs lend memory to each other.
    lends: bool,
}

impl Shape {
    pub const PLAIN: Self = Self {
        max_steps_per_poll: u32::MAX,
        check_every: 1,
        delay: 0,
        cq_entries: [None; 2],
        cut_after: [None; 2],
        lost_one_in: None,
        dumps: false,
        request_deadline: None,
        keep_alive: None,
        cancels: false,
        lends: false,
    };

    pub fn of_seed(seed: u64) -> Self {
        let mut random = random(!seed);
        let cq_entries = [(); 2].map(|()| match random.below(12) {
            0 => Some(4 + random.below(16) as u32),
            _ => None,
        });
        let cut_after = [(); 2].map(|()| match random.below(50) {
            0 => Some(random.below(8)),
            _ => None,
        });
        Self {
            max_steps_per_poll: [1, 2, u32::MAX][random.below(3) as usize],
            check_every: 1 + random.below(3) as u32,
            delay: [0, 0, 3, 20][random.below(4) as usize],
            cq_entries,
            cut_after,
            lost_one_in: (random.below(20) == 0).then_some(8),
            dumps: random.below(8) == 0,
            request_deadline: (random.below(4) == 0).then_some(20 * MS),
            keep_alive: [None, None, Some(4 * MS), Some(40 * MS)][random.below(4) as usize],
            cancels: random.below(2) == 0,
            lends: random.below(2) == 0,
        }
    }
}

impl Shape {
    /// Every message of the exchange arrives: nobody waits for one in real time.
    pub fn without_losses(self) -> Self {
        Self {
            lost_one_in: None,
            ..self
        }
    }
}

/// Neighbouring seeds begin alike.
fn random(seed: u64) -> Random {
    let mut random = Random::new(seed);
    (0..8).for_each(|_| _ = random.number());
    random
}

impl World {
    pub fn new(seed: u64, trace: bool, shape: Shape) -> Self {
        Self::on(Hca::soft(seed), seed, trace, shape)
    }

    pub fn on(hca: Hca, seed: u64, trace: bool, shape: Shape) -> Self {
        let mut random = random(seed);
        let pd = hca.device.alloc_pd();
        let limits = hca.limits(random.number());
        let exchanges = pair();
        let real = hca.is_real();
        let mut end = |at: usize, inner| {
            let init = LinkInit {
                qp: QpInit {
                    max_send_wr: 16,
                    max_recv_wr: 16,
                    max_inline_data: 250,
                    ..QpInit::default()
                },
                connect: ConnectAttr {
                    timeout: 8,
                    retry_cnt: 2,
                    rnr_retry: 2,
                    ..ConnectAttr::default()
                },
                limits: Limits {
                    seed: random.number(),
                    ..limits
                },
                max_steps_per_poll: shape.max_steps_per_poll,
                check_every: shape.check_every,
                cq_entries: shape.cq_entries[at],
                dump: shape.dumps.then(DumpOptions::default),
                // On a busy host anything may take that long.
                request_deadline: shape.request_deadline.filter(|_| !real),
                keep_alive: shape.keep_alive.filter(|_| !real),
                ..LinkInit::default()
            };
            let delays = Random::new(random.number());
            let (cut, lost) = (shape.cut_after[at], shape.lost_one_in);
            let exchange = Slow::new(inner, delays, shape.delay, cut, lost);
            End::new(&pd, at, init, exchange)
        };
        let ends = [end(0, exchanges.0), end(1, exchanges.1)];
        let mut world = Self {
            random,
            seed,
            trace,
            hca,
            ends,
            limits,
            memory: [vec![0; MEMORY], vec![0; MEMORY]],
            qps: HashMap::new(),
            newest: [None; 2],
            atomics: [0; 2],
            completions_lost: shape.cq_entries != [None; 2],
            cancels: shape.cancels,
            lends: shape.lends,
            now: Duration::ZERO,
            tally: Tally::default(),
        };
        world.note_qps();
        world
    }

    pub fn say(&self, what: impl FnOnce() -> String) {
        if self.trace {
            println!("{:?}: {}", self.now, what());
        }
    }

    pub fn note_qps(&mut self) {
        for end in &self.ends {
            if let Some(qp_num) = end.link.qp_num() {
                self.qps.insert(qp_num, end.at);
            }
        }
    }

    pub fn advance(&mut self, by: Duration) {
        self.now = self.hca.advance(self.now, by);
        self.read_journal(None);
    }

    /// Polls an end; how much was reported.
    pub fn poll(&mut self, at: usize, limit: usize) -> usize {
        let before = self.ends[at].state();
        let mut all = Vec::new();
        let count = self.ends[at]
            .link
            .poll(limit, |completion| all.push(completion));
        assert_eq!(count, all.len());
        if count > 0 {
            // What completed is noted a little later.
            self.hca.settle();
        }
        self.read_journal(Some(at));
        for completion in all {
            self.say(|| {
                let (wr_id, outcome) = (completion.wr_id, completion.outcome);
                format!(
                    "{at}: reported {wr_id:#x} {:?} {outcome:?}, {}",
                    completion.opcode, completion.retired
                )
            });
            self.tally.completed(&completion);
            let came = self.ends[at].take(completion);
            if let Some(id) = came {
                let request = &mut self.ends[id.end].requests[id.index];
                assert!(
                    request.executed > 0,
                    "it came, and was not executed: {request:?}"
                );
                assert!(!request.received, "it came twice: {request:?}");
                request.received = true;
            }
        }
        let after = self.ends[at].state();
        if before != after {
            let epoch = self.ends[at].link.epoch();
            self.say(|| format!("{at}: {before:?} to {after:?}, epoch {epoch}"));
        }
        self.note_qps();
        count
    }

    pub fn poll_both(&mut self) -> usize {
        self.poll(0, usize::MAX) + self.poll(1, usize::MAX)
    }

    pub fn ring(&mut self, at: usize) {
        self.ends[at].link.ring();
        self.hca.settle();
        self.read_journal(Some(at));
    }

    /// Runs the schedule.
    pub fn live(&mut self) {
        let faults = 1 + self.random.below(5);
        let actions = 20 + self.random.below(60);
        for _ in 0..faults / 2 {
            self.order_fault(false);
        }
        for end in 0..2 {
            let count = self.random.below(12);
            self.ends[end].receive(count);
        }
        // Else what is posted is refused at first.
        if self.random.below(4) != 0 {
            self.settle();
        }
        for _ in 0..actions {
            self.act(faults, actions);
        }
        // Else it is closed in the midst of it.
        match self.random.below(8) {
            0 => {}
            1 => self.settle(),
            _ => {
                self.hca.clear_faults();
                self.hca.port_up();
                self.settle();
                self.talk();
            }
        }
    }

    fn act(&mut self, faults: u64, actions: u64) {
        let at = self.random.below(2) as usize;
        if self.random.below(actions) < faults.div_ceil(2) {
            let now = self.random.below(2) == 0;
            self.order_fault(now);
        }
        // Much can happen while the other end recovers, but not everything.
        if self.recovers() && self.random.below(3) == 0 {
            for _ in 0..1 + self.random.below(8) {
                self.poll_both();
            }
            let time = Duration::from_micros(self.random.below(20_000));
            self.advance(time);
        }
        if self.cancels && self.random.below(6) == 0 {
            let end = &mut self.ends[at];
            self.tally.cancelled += end.cancel(&mut self.random, self.now);
        }
        if self.lends && self.random.below(3) == 0 {
            let end = &mut self.ends[at];
            if end.lend_or_borrow(&mut self.random, self.now) {
                self.ring(at);
            }
            self.read_journal(Some(at));
        }
        match self.random.below(100) {
            0..35 => self.batch(at),
            35..50 => {
                let count = 1 + self.random.below(6);
                self.ends[at].receive(count);
                self.read_journal(Some(at));
            }
            50..85 => {
                let limit = 1 + self.random.below(8) as usize;
                self.poll(at, limit);
            }
            85..90 => {
                self.poll_both();
            }
            _ => {
                let time = Duration::from_micros(self.random.below(2000));
                self.advance(time);
            }
        }
    }

    fn batch(&mut self, at: usize) {
        let count = 1 + self.random.below(5);
        let peer = opened(&self.ends[1 - at].region);
        for _ in 0..count {
            if self.ends[at].stage(&mut self.random, peer).is_err() {
                break;
            }
        }
        // Else with a later batch, or never.
        if self.random.below(8) != 0 {
            self.ring(at);
        }
    }

    fn recovers(&self) -> bool {
        self.ends
            .iter()
            .any(|end| end.state() == LinkState::Recovering)
    }

    /// Polls until neither end recovers. Neither may take longer than its bound.
    pub fn settle(&mut self) {
        self.until("recovers", |world| !world.recovers());
    }

    /// Polls both for a while, whatever they do.
    pub fn push_on(&mut self) {
        let rounds = if self.hca.is_real() { 20 } else { 60 };
        for _ in 0..rounds {
            (0..4).for_each(|_| _ = self.poll_both());
            self.advance(MS);
        }
        // Where time passes by itself nothing says how long it takes.
        if self.hca.is_real() {
            self.until("waits", |world| {
                let all = world.ends.iter().flat_map(|end| &end.requests);
                let waits = |request: &Request| request.signaled() && request.outcome.is_none();
                !world.ends.iter().all(End::ready) || !all.into_iter().any(waits)
            });
        }
    }

    /// Polls both, and moves the clock on where nothing happens at the present time.
    fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let end = self.now + 2 * self.limits.max_duration();
        let mut pause = Duration::from_micros(100);
        while !done(self) {
            let polled = (0..8).map(|_| self.poll_both()).sum::<usize>();
            if polled == 0 && !done(self) {
                self.advance(pause);
                pause = (pause * 2).min(20 * MS);
            } else {
                pause = Duration::from_micros(100);
            }
            assert!(
                self.now < end,
                "it still {what}: {:?}",
                self.ends.each_ref().map(End::state)
            );
        }
    }

    /// Traffic flows again: a message each way, and everything before it.
    pub fn talk(&mut self) {
        for at in 0..2 {
            if !self.ends[at].ready() || !self.ends[1 - at].ready() {
                continue;
            }
            // Whatever waits for receives finds them.
            self.ends[1 - at].receive(16);
            let peer = opened(&self.ends[1 - at].region);
            let posted = self.ends[at].requests.len();
            let _ = self.ends[at].stage_this(
                &mut self.random,
                peer,
                Kind::Send,
                SIGNALED,
                Replay::IfSafe,
                true,
            );
            self.ring(at);
            if self.ends[at].requests.len() > posted {
                // Everything before it is reported as well, if later: it may have been posted again.
                self.until("talks", |world| {
                    let end = &world.ends[at];
                    let waits = |request: &Request| request.signaled() && request.outcome.is_none();
                    let ended = matches!(end.state(), LinkState::Ended(_));
                    ended || !end.requests.iter().any(waits)
                });
                self.tally.talks += 1;
            }
        }
    }

    /// Ends both, and holds everything against the journal.
    pub fn end(mut self) -> Tally {
        self.close();
        self.check();
        self.tally
    }

    pub fn close(&mut self) {
        let within =
            [Duration::ZERO, 10 * MS, self.limits.max_duration()][self.random.below(3) as usize];
        for at in 0..2 {
            let state = self.ends[at].state();
            // What was posted fits the queue that it is posted to again.
            let full = matches!(
                state,
                LinkState::Ended(LinkEnd::GaveUp {
                    why: EndReason::Failed(Step::RepostReceives, _),
                    ..
                })
            );
            assert!(!full, "{state:?}");
            self.tally.state(state, self.seed);
            self.ends[at].link.close(within);
            if self.random.below(2) == 0 {
                self.poll_both();
            }
        }
        self.until("closes", |world| {
            world
                .ends
                .iter()
                .all(|end| matches!(end.state(), LinkState::Ended(_)))
        });
        self.poll_both();
        self.hca.settle();
        self.read_journal(None);
    }
}
