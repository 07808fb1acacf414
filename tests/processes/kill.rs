//! Processes under load, of which one is killed or stopped at a random instant.

use crate::script::KINDS;
use crate::worker;
use bellwire_tests::child::Child;
use bellwire_tests::fixture::{Random, fabric_name, until};
use bellwire_tests::leftovers::{Holdings, Home, files, sockets};
use bellwire_tests::patience::lasting;
use serde_json::{Value, json};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Rounds of the short form.
const ROUNDS: u64 = 12;

/// What happens to one of the processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It dies.
    Killed,
    /// It stops until its peers have given up, and goes on.
    Stopped,
    /// It stops and goes on; its peers wait for ever.
    Paused,
    /// It dies before its peers are connected to it.
    KilledEarly,
}

const FATES: [Fate; 4] = [Fate::Killed, Fate::Stopped, Fate::Paused, Fate::KilledEarly];

/// Puts the rounds of a test, or that of the seed that the environment names. `true`: all of them.
pub fn seeds(test: &str, rounds: u64, mut round: impl FnMut(u64)) -> bool {
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        Some(
            text.parse::<u64>()
                .unwrap_or_else(|_| panic!("{name} is a number")),
        )
    };
    if let Some(seed) = number("BELLWIRE_SEED") {
        round(seed);
        return false;
    }
    let rounds = number("BELLWIRE_ROUNDS").unwrap_or(rounds);
    for seed in 0..rounds {
        if catch_unwind(AssertUnwindSafe(|| round(seed))).is_err() {
            panic!(
                "round {seed} of {rounds} failed, see above. Alone: BELLWIRE_SEED={seed} cargo test -p \
                 bellwire-tests --test processes -- {test}"
            );
        }
    }
    true
}

/// All rounds.
pub fn rounds() {
    let mut done = [0; KINDS.len()];
    let all = seeds("kill", ROUNDS, |seed| {
        for (all, round) in done.iter_mut().zip(round(seed)) {
            *all += round;
        }
    });
    eprintln!("{KINDS:?} were done {done:?} times");
    assert!(!all || done.iter().all(|done| *done > 0));
}

/// The processes that each is connected to: a ring, and some more.
fn topology(random: &mut Random, count: usize) -> Vec<Vec<usize>> {
    let mut peers = vec![Vec::new(); count];
    for a in 0..count {
        for b in 0..a {
            if a == b + 1 || (a == count - 1 && b == 0) || random.below(3) == 0 {
                peers[a].push(b);
                peers[b].push(a);
            }
        }
    }
    peers
}

/// A round: what its processes did, of each kind of step.
fn round(seed: u64) -> [u64; KINDS.len()] {
    let mut random = Random::new(seed);
    let count = 2 + random.below(7) as usize;
    // Neighbouring seeds meet all of them.
    let fate = FATES[(seed % FATES.len() as u64) as usize];
    let mut round = Round::start(seed, &mut random, count, fate);
    round.connect();
    let victim = round.victim;
    match fate {
        Fate::KilledEarly => {
            round.go();
            round.await_failures_of_peers();
        }
        Fate::Killed => {
            round.go();
            pause(&mut random, 60);
            round.child(victim).kill();
            round.processes[victim] = None;
            round.await_failures_of_peers();
        }
        Fate::Stopped => {
            round.go();
            pause(&mut random, 60);
            round.child(victim).signal(libc::SIGSTOP);
            round.await_failures_of_peers();
            pause(&mut random, 20);
            round.child(victim).signal(libc::SIGCONT);
            for _ in round.peers[victim].clone() {
                round.await_failure(victim);
            }
        }
        Fate::Paused => {
            round.go();
            pause(&mut random, 30);
            round.child(victim).signal(libc::SIGSTOP);
            pause(&mut random, 300);
            round.child(victim).signal(libc::SIGCONT);
        }
    }
    // The others go on for a while.
    pause(&mut random, 30);
    round.finish()
}

fn pause(random: &mut Random, millis: u64) {
    std::thread::sleep(Duration::from_micros(random.below(1000 * millis)));
}

/// The processes of a round.
struct Round {
    fabric: String,
    /// `None`: it was killed.
    processes: Vec<Option<Child>>,
    /// What each held before it had a device.
    before: Vec<Holdings>,
    peers: Vec<Vec<usize>>,
    victim: usize,
    fate: Fate,
    home: Home,
}

impl Round {
    fn start(seed: u64, random: &mut Random, count: usize, fate: Fate) -> Self {
        let fabric = fabric_name();
        let home = Home::new(&fabric);
        let peers = topology(random, count);
        let start = |at| Child::start(worker::ROLE, format!("process {at}"), &home.0);
        let mut processes: Vec<Child> = (0..count).map(start).collect();
        let mut before = Vec::new();
        for process in &mut processes {
            process.hear("ready");
            before.push(Holdings::of(process.pid()));
        }
        for (at, process) in processes.iter_mut().enumerate() {
            let device = ["shared", "shared", "inline", "engine"][random.below(4) as usize];
            // Two neighbours without it, two with it, and so on.
            let membarrier = (seed + at as u64 / 2).is_multiple_of(2);
            process.send(
                "open",
                json!({
                    "fabric": fabric, "device": device, "membarrier": membarrier, "index": at,
                    "seed": seed, "peers": peers[at],
                }),
            );
        }
        Self {
            fabric,
            processes: processes.into_iter().map(Some).collect(),
            before,
            peers,
            victim: random.below(count as u64) as usize,
            fate,
            home,
        }
    }

    fn child(&mut self, at: usize) -> &mut Child {
        self.processes[at].as_mut().expect("alive")
    }

    fn alive(&mut self) -> impl Iterator<Item = (usize, &mut Child)> {
        let all = self.processes.iter_mut().enumerate();
        all.flat_map(|(at, process)| Some((at, process.as_mut()?)))
    }

    /// Connects all queue pairs.
    fn connect(&mut self) {
        let cards: Vec<Value> = self
            .alive()
            .map(|(_, process)| process.hear("cards"))
            .collect();
        if self.fate == Fate::KilledEarly {
            let victim = self.victim;
            self.child(victim).kill();
            self.processes[victim] = None;
        }
        let (victim, fate) = (self.victim, self.fate);
        // Half a second for the victim. The others do not give each other up, however busy the machine is.
        let lasting = lasting();
        let limits = |at: usize, peer: usize| match fate {
            Fate::Paused => (0, 7),
            _ if at == victim || peer == victim => (15, 3),
            _ => (lasting.timeout, lasting.retry_cnt),
        };
        let peers = self.peers.clone();
        for (at, process) in self.alive() {
            let of_peer = |peer: &usize| {
                let ours = peers[*peer].iter().position(|of| *of == at);
                cards[*peer][ours.expect("both ways")].clone()
            };
            let cards: Vec<Value> = peers[at].iter().map(of_peer).collect();
            let limits = peers[at].iter().map(|peer| limits(at, *peer));
            let limits: Vec<(u8, u8)> = limits.collect();
            process.send("connect", json!({"limits": limits, "cards": cards}));
        }
    }

    /// Lets them all begin, once all are connected.
    fn go(&mut self) {
        for (_, process) in self.alive() {
            process.hear("connected");
            // Else there would be nothing to be left over. A thread may be without its name yet.
            until("a node", || Holdings::of(process.pid()).include_a_node());
        }
        assert!(!sockets(&self.fabric).is_empty());
        self.alive()
            .for_each(|(_, process)| process.send("go", Value::Null));
    }

    /// Waits until each peer of the victim knows of its failure.
    fn await_failures_of_peers(&mut self) {
        let victim = self.victim;
        for peer in self.peers[victim].clone() {
            self.await_failure(peer);
        }
    }

    /// Waits until a process knows that a connection failed, as it has to.
    fn await_failure(&mut self, at: usize) {
        let victim = self.victim;
        let over = self.child(at).hear("over");
        assert_eq!(over["first"], "RetryExcErr", "process {at}: {over}");
        // Connections between other processes must not fail.
        assert!(
            at == victim || over["peer"] == victim,
            "process {at}: {over}"
        );
    }

    /// Ends the load, compares what was sent with what came, and looks for what is left.
    fn finish(mut self) -> [u64; KINDS.len()] {
        self.alive()
            .for_each(|(_, process)| process.send("finish", Value::Null));
        let mut counts = vec![Value::Null; self.processes.len()];
        for (at, process) in self.alive() {
            counts[at] = process.hear("drained");
        }
        let peers = self.peers.clone();
        let stopped = (self.fate == Fate::Stopped).then_some(self.victim);
        for (at, process) in self.alive() {
            let sent = |peer: &usize| {
                let theirs = counts[*peer].as_array()?;
                theirs.iter().find(|of| of["peer"] == at).cloned()
            };
            let theirs: Vec<Option<Value>> = peers[at].iter().map(sent).collect();
            process.send("check", json!({"sent": theirs, "stopped": stopped}));
        }
        let before = self.before.clone();
        for (at, process) in self.alive() {
            process.hear("dropped");
            process.is_silent();
            before[at].are_all_of(process.pid());
        }
        let fabric = self.fabric.clone();
        until("the end of the fabric's sockets", || {
            sockets(&fabric).is_empty()
        });
        let left = files(&self.home.0, &self.fabric);
        assert!(left.is_empty(), "{left:?}");
        self.processes.into_iter().flatten().for_each(Child::end);
        done(&counts)
    }
}

/// Steps that were done, of each kind.
fn done(counts: &[Value]) -> [u64; KINDS.len()] {
    let flows = counts.iter().flat_map(|counts| counts.as_array());
    let mut all = [0; KINDS.len()];
    for flow in flows.flatten() {
        for (all, done) in all.iter_mut().zip(flow["done"].as_array().expect("a list")) {
            *all += done.as_u64().expect("a number");
        }
    }
    all
}
