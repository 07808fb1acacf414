//! Limits of the process: descriptors, address space, threads, and locked memory, each limited to every value from
//! what is in use to "enough", while a device is opened, links connect, are accepted and recover. Each value too small is
//! an error that names the limit, or ends the link with its error number; nothing is left behind; and links that were
//! there before go on.

use crate::Area;
use bellwire::Device;
use bellwire::memory::{Mapping, Pages};
use bellwire::soft::HcaConfig;
use bellwire_tests::child::Child;
use bellwire_tests::fixture::fabric_name;
use bellwire_tests::leftovers::Home;
use bellwire_tests::links::{LinkEnd, links, operations};
use bellwire_tests::parent::Parent;
use scenarios::{SCENARIOS, Scenario};
use serde_json::{Value, json};
use std::fs;

#[path = "../allocations/scenarios.rs"]
mod scenarios;

pub const AREA: Area = Area {
    roles: &[("limited", play), ("small stack", on_small_stacks)],
    tests: &[
        ("limits::descriptors", || walk("RLIMIT_NOFILE")),
        ("limits::address_space", || walk("RLIMIT_AS")),
        ("limits::threads", || walk("RLIMIT_NPROC")),
        ("limits::locked_memory", || walk("RLIMIT_MEMLOCK")),
        ("limits::small_stacks", small_stacks),
    ],
};

/// The first of some users that have no other processes, one for each scenario: the limit of threads counts those of all
/// processes of a user, and is none for root.
const NOBODY_ELSE: libc::uid_t = 61_235;

/// A limit, and how it is walked.
struct Limit {
    resource: libc::__rlimit_resource_t,
    /// What an error says that names it, or the number that ended a link.
    names: &'static [&'static str],
    /// What is in use.
    used: fn() -> u64,
    step: u64,
}

const LIMITS: &[(&str, Limit)] = &[
    (
        "RLIMIT_NOFILE",
        Limit {
            resource: libc::RLIMIT_NOFILE,
            names: &["RLIMIT_NOFILE is", "Errno(24)"],
            used: || 0,
            step: 1,
        },
    ),
    (
        "RLIMIT_AS",
        Limit {
            resource: libc::RLIMIT_AS,
            names: &["RLIMIT_AS is", "Errno(12)"],
            used: address_space,
            step: 64 << 10,
        },
    ),
    (
        "RLIMIT_NPROC",
        Limit {
            resource: libc::RLIMIT_NPROC,
            names: &["RLIMIT_NPROC is", "Errno(11)"],
            used: || count("/proc/self/task") as u64,
            step: 1,
        },
    ),
    (
        "RLIMIT_MEMLOCK",
        Limit {
            resource: libc::RLIMIT_MEMLOCK,
            names: &["RLIMIT_MEMLOCK is"],
            used: || 0,
            step: 4096,
        },
    ),
];

fn count(folder: &str) -> usize {
    fs::read_dir(folder).expect("a process").count()
}

/// Address space in use, in bytes.
fn address_space() -> u64 {
    let text = fs::read_to_string("/proc/self/statm").expect("a process");
    let pages = text
        .split(' ')
        .next()
        .and_then(|pages| pages.parse::<u64>().ok());
    pages.expect("a number") * 4096
}

/// Changes the limit, and returns what it was.
fn limit_to(resource: libc::__rlimit_resource_t, soft: u64) -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a valid place for the answer, and a valid question.
    unsafe {
        assert_eq!(libc::getrlimit(resource, &mut limit), 0);
        let before = std::mem::replace(&mut limit.rlim_cur, soft.min(limit.rlim_max));
        assert_eq!(libc::setrlimit(resource, &limit), 0);
        before
    }
}

/// Locks memory.
fn lock() -> Result<(), String> {
    let mapping = Mapping::anonymous(64 << 10).pages(Pages::Base).lock(true);
    mapping.build().map(drop).map_err(|error| error.to_string())
}

/// A process for each scenario, because what one has made for all stays.
fn walk(name: &str) {
    let lock: &[(&str, Scenario)] = &[("locks", lock)];
    let all = match name {
        "RLIMIT_MEMLOCK" => lock,
        _ => SCENARIOS,
    };
    let start = |(at, (what, _)): (usize, &(&'static str, Scenario))| {
        let home = Home::new(&fabric_name());
        let mut child = Child::start("limited", format!("{what} under {name}"), &home.0);
        child.send("plan", json!({"limit": name, "scenario": at}));
        (*what, child, home)
    };
    // All at once, as most of their time is time-outs.
    let children: Vec<_> = all.iter().enumerate().map(start).collect();
    let mut wrong = Vec::new();
    for (what, mut child, _home) in children {
        let said = child.hear("walked");
        println!("{name}: {what}: {said}");
        let bad = said["wrong"].as_array().into_iter().flatten();
        wrong.extend(bad.map(|bad| format!("{what}: {bad}")));
        child.end();
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The stack that every call can do with, in bytes: docs/platforms.md. Code that is not optimized takes more.
const STACK: usize = if cfg!(debug_assertions) {
    256 << 10
} else {
    48 << 10
};

/// A process whose stack is too small gets a signal.
fn small_stacks() {
    let home = Home::new(&fabric_name());
    let mut child = Child::start("small stack", "small stack".to_owned(), &home.0);
    for (what, _) in SCENARIOS {
        assert_eq!(child.hear("done"), json!(what));
    }
    child.end();
}

fn on_small_stacks() {
    let parent = Parent::start();
    for (what, scenario) in SCENARIOS {
        let thread = std::thread::Builder::new().stack_size(STACK);
        let done = thread.spawn(scenario).expect("a thread").join();
        done.expect("no panic").expect("no limit");
        parent.say("done", json!(what));
    }
    parent.wait_for_end();
}

/// Plays the role.
fn play() {
    let parent = Parent::start();
    let plan = parent.hear("plan");
    let name = plan["limit"].as_str().expect("a name");
    let (_, limit) = LIMITS.iter().find(|(of, _)| *of == name).expect("a limit");
    let at = plan["scenario"].as_u64().expect("a number") as usize;
    let (what, scenario): (&str, Scenario) = match name {
        "RLIMIT_MEMLOCK" => ("locks", lock),
        _ => SCENARIOS[at],
    };
    // SAFETY: no pointers. The right to exceed the limits of locks and threads goes with root's number.
    let common =
        unsafe { libc::geteuid() != 0 || libc::setuid(NOBODY_ELSE + at as libc::uid_t) == 0 };
    if !common {
        parent.say("walked", json!("skipped: cannot become another user"));
        return parent.wait_for_end();
    }
    let mut others = links();
    let mut walked = Walked::default();
    // What is made once for all.
    let _ = Device::try_soft(HcaConfig::default());
    scenario().expect("without a limit");
    let start = (limit.used)();
    let before = held();
    // Each value; where they are many, steps that grow with what is allowed.
    let step = |allowed: u64| match limit.step {
        1 => 1,
        step => step.max(allowed / 4 / step * step),
    };
    let next = |value: &u64| Some(value + step(value - start));
    for value in std::iter::successors(Some(start), next) {
        let hard = limit_to(limit.resource, value);
        let done = std::panic::catch_unwind(scenario);
        let good = operations(&mut others.0, &mut others.1, value);
        limit_to(limit.resource, hard);
        if !good {
            walked
                .wrong
                .push(format!("{value}: other links do not go on"));
        }
        match done {
            Ok(Ok(())) => {
                walked.enough = value - start;
                break;
            }
            Ok(Err(error)) => walked.error(limit, by_peer(what), value, error),
            Err(_) => walked.wrong.push(format!("{value}: a panic")),
        }
        if held() != before {
            walked
                .wrong
                .push(format!("{value}: it leaves {:?}, not {before:?}", held()));
        }
        if walked.wrong.len() > 8 {
            break;
        }
    }
    if let Err(error) = scenario() {
        walked.wrong.push(format!("without the limit: {error}"));
    }
    drop::<(LinkEnd, LinkEnd)>(others);
    parent.say("walked", walked.json());
    parent.wait_for_end();
}

/// What is said of a lack at the other end by links of the communication manager; the last, only between nodes.
const BY_CM: &[&str] = &[
    "no descriptor or no memory left",
    "no memory left for the link",
    "it has not asked for the next connection",
    "FaultsKeepComing",
];

/// How an end sees that the other one, in this process too, lacks something: nobody answers, or the connection breaks.
fn by_peer(scenario: &str) -> &'static [&'static str] {
    match scenario {
        "nodes" => &["RETRY_EXC_ERR"],
        // The listener says why, or the connector never got to ask again.
        "cm" | "several_by_cm" => &BY_CM[..3],
        "cm_between" => BY_CM,
        _ => &[],
    }
}

/// Descriptors, and threads.
fn held() -> (usize, usize) {
    (count("/proc/self/fd"), count("/proc/self/task"))
}

#[derive(Default)]
struct Walked {
    /// What was enough, beyond what was in use.
    enough: u64,
    errors: usize,
    /// One error of each text, apart from its numbers.
    texts: Vec<String>,
    wrong: Vec<String>,
}

impl Walked {
    fn error(&mut self, limit: &Limit, by_peer: &[&str], value: u64, error: String) {
        self.errors += 1;
        let mut names = limit.names.iter().chain(by_peer);
        if !names.any(|name| error.contains(name)) {
            self.wrong.push(format!("{value}: {error}"));
        }
        let text: String = error
            .chars()
            .filter(|char| !char.is_ascii_digit())
            .collect();
        if !self.texts.contains(&text) {
            self.texts.push(text);
        }
    }

    fn json(self) -> Value {
        json!({"enough": self.enough, "errors": self.errors, "texts": self.texts, "wrong": self.wrong})
    }
}
