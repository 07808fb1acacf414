//! What one process can try on another, thing by thing: each kind of descriptor, each word that is
//! shared, each message; memory that goes and comes back, or whose pages never come. The other one's
//! requests all end, nothing of its memory is touched but what is open, and its other connections go on.

use crate::kinds::KINDS;
use crate::{attacker, target};
use bellwire_tests::child::Child;
use bellwire_tests::fixture::fabric_name;
use bellwire_tests::leftovers::{Home, most_memory};
use serde_json::{Value, json};
use std::fs;

/// Bytes that the victim may need at the most: far more than it has.
const SANE: u64 = 256 << 20;

/// Descriptors and mappings that may come and go by themselves.
const FEW: usize = 8;

/// Mappings that one peer may have made: as many as a node can show.
const MAPPINGS: usize = 512;

struct Siege {
    fabric: String,
    home: Home,
    target: Child,
}

fn count(pid: u32, what: &str) -> usize {
    let path = format!("/proc/{pid}/{what}");
    match what {
        "maps" => fs::read_to_string(path).expect("maps").lines().count(),
        _ => fs::read_dir(path).expect("descriptors").count(),
    }
}

impl Siege {
    /// Has the victim do something.
    fn ask(&mut self, mut order: Value, what: &str) -> Value {
        order["what"] = what.into();
        self.target.send("do", order);
        self.target.hear("done")
    }

    fn requests(&mut self, of: Value) -> Value {
        self.ask(json!({"of": of}), "requests")
    }

    /// One attack, by a process of its own.
    fn attack(&mut self, name: &str, attack: impl FnOnce(&mut Self, &mut Child) -> Value) {
        let mut attacker = Child::start(attacker::ROLE, name.to_owned(), &self.home.0);
        attacker.hear("ready");
        let pid = self.target.pid();
        let before = count(pid, "fd");
        attacker.send("open", json!({"fabric": self.fabric}));
        let card = attacker.hear("card");
        let ours = self.ask(json!({}), "meet");
        attacker.send("connect", ours);
        self.ask(json!({"card": card}), "connect");
        attacker.hear("connected");
        let came = attack(self, &mut attacker);
        // One for its socket, and what its link took.
        let (open, mapped) = (count(pid, "fd"), count(pid, "maps"));
        assert!(
            open <= before + FEW,
            "{name}: {open} descriptors, {before} before"
        );
        assert!(mapped < MAPPINGS + 400, "{name}: {mapped} mappings");
        attacker.kill();
        let latency = self.ask(json!({}), "check");
        let most = most_memory(pid);
        assert!(most < SANE, "{name}: {most} bytes");
        println!("{name}: {came}; the other connection's answers in us: {latency}");
    }

    fn act(attacker: &mut Child, step: &str) -> Value {
        attacker.send("act", json!({"step": step}));
        attacker.hear("acted")
    }
}

/// All attacks.
pub fn attacks() {
    let fabric = fabric_name();
    let home = Home::new(&fabric);
    let start = |role: &str| {
        let mut child = Child::start(role, role.to_owned(), &home.0);
        child.hear("ready");
        child
    };
    let (mut target, mut friend) = (start(target::ROLE), start(target::FRIEND));
    target.send("open", json!({"fabric": fabric, "seed": 1}));
    let ours = target.hear("card");
    friend.send("open", json!({"fabric": fabric}));
    let theirs = friend.hear("card");
    target.send("friend", theirs);
    friend.send("friend", ours);
    target.hear("connected");
    friend.hear("connected");
    target.send("go", Value::Null);
    let mut siege = Siege {
        fabric,
        home,
        target,
    };
    println!();
    siege.attack("nothing", |siege, _| {
        let came = siege.requests(json!({"rounds": 3}));
        let all = came.as_array().expect("a list");
        let good = |line: &Value| line.as_str().is_some_and(|line| line.ends_with("Success"));
        assert!(all.iter().all(good), "{came}");
        assert!(
            !siege.ask(json!({}), "mapped").is_null(),
            "nothing is mapped"
        );
        came
    });
    for (kind, (name, _)) in KINDS.iter().enumerate() {
        siege.attack(name, |siege, attacker| {
            attacker.send("act", json!({"step": "descriptor", "kind": kind}));
            match attacker.hear("acted") {
                Value::Null => siege.requests(json!({"rounds": 2})),
                skipped => skipped,
            }
        });
    }
    for (name, step) in [
        ("numbers and lengths that are none", "numbers"),
        ("each word that is shared", "words"),
        ("each message", "messages"),
    ] {
        siege.attack(name, |siege, attacker| {
            attacker.send("act", json!({"step": step}));
            let order = json!({"of": {"rounds": 4}, "what": "requests"});
            siege.target.send("do", order);
            let acted = attacker.hear("acted");
            json!([acted, siege.target.hear("done")])
        });
    }
    siege.attack("memory that goes, and is there again", |siege, attacker| {
        siege.requests(json!({"rounds": 2}));
        let place = siege.ask(json!({}), "mapped");
        assert!(!place.is_null(), "nothing is mapped");
        Siege::act(attacker, "hide");
        let occupied = siege.ask(json!({"place": place}), "occupy");
        Siege::act(attacker, "show");
        json!([occupied, siege.requests(json!({"rounds": 2}))])
    });
    siege.attack("as much memory as can be shown", |siege, attacker| {
        siege.requests(json!({"rounds": 1}));
        let many = Siege::act(attacker, "many");
        siege.requests(json!({
            "addr": many["first"], "rkey": many["rkey"], "step": many["step"], "rounds": many["count"],
            "what": "WRITE of 8",
        }))
    });
    siege.attack(
        "a message whose pages never come",
        |siege, attacker| match Siege::act(attacker, "withheld message") {
            Value::Null => siege.requests(json!({"rounds": 1})),
            skipped => skipped,
        },
    );
    siege.attack(
        "memory to be read whose pages never come",
        |siege, attacker| {
            let memory = Siege::act(attacker, "withheld memory");
            match &memory["skipped"] {
                Value::Null => siege.requests(json!({
                    "addr": memory["addr"], "rkey": memory["rkey"], "what": "READ",
                })),
                _ => memory,
            }
        },
    );
    siege.attack("a request that never ends", |siege, attacker| {
        siege.requests(json!({"rounds": 1}));
        Siege::act(attacker, "hold");
        let came = siege.ask(json!({"times": 4}), "register");
        // It was waited for, and meanwhile the others went on.
        let number = |of: &Value| of.as_u64().expect("a number");
        assert!(number(&came["meanwhile"]["count"]) > 2, "{came}");
        let [before, meanwhile] = ["before", "meanwhile"].map(|when| number(&came[when]["most"]));
        let longest = (number(&came["took"]) / 2).max(4 * before);
        assert!(meanwhile < longest, "{came}");
        came
    });
    siege.ask(json!({}), "end");
    let Siege { target, .. } = siege;
    friend.kill();
    target.end();
}
