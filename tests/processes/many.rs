//! Many connections between two processes: all work, and what each costs is printed.

use crate::side;
use bellwire_tests::child::Child;
use bellwire_tests::fixture::{fabric_name, until};
use bellwire_tests::leftovers::{Holdings, Home, files, sockets};
use bellwire_tests::parent::number;
use serde_json::{Value, json};

/// Connections.
const COUNT: u64 = 1000;
/// Operations of each measurement.
const OPERATIONS: u64 = 20_000;
/// Bytes that a connection may cost a process at the most.
const SANE: u64 = 64 << 10;

/// The two ends are asked in turn: only one of them works while operations are measured.
pub fn connections() {
    let fabric = fabric_name();
    let home = Home::new(&fabric);
    let mut sides = ["active", "passive"].map(|name| {
        let mut child = Child::start(side::ROLE, name.to_owned(), &home.0);
        child.hear("ready");
        child
    });
    let before = [0, 1].map(|at| Holdings::of(sides[at].pid()));
    let mut ask = |key: &str, values: [Value; 2], answer: &str| {
        for (side, value) in sides.iter_mut().zip(values) {
            side.send(key, value);
        }
        [0, 1].map(|at: usize| sides[at].hear(answer))
    };
    let order = json!({"fabric": fabric, "count": COUNT});
    let [active, passive] = ask("open", [order.clone(), order], "cards");
    let connect = |active: bool, cards: Value| json!({"active": active, "operations": OPERATIONS, "cards": cards});
    let orders = [connect(true, passive), connect(false, active)];
    let memory = ask("connect", orders, "connected");
    let used = ask("go", [Value::Null, Value::Null], "used");
    for (name, (made, used)) in ["active", "passive"].iter().zip(memory.iter().zip(&used)) {
        let made = number(made, "bytes") / COUNT;
        let then = number(used, "bytes") / COUNT;
        println!("{name}: {made} bytes for each of {COUNT} connections, {then} when each was used");
        assert!(then > 0 && then < SANE, "{then} bytes");
    }
    for (what, times) in used[0]["times"].as_object().expect("times") {
        let [one, all] = ["one", "all"].map(|of| number(times, of) as f64);
        println!(
            "{what}: {:.0} ns on one connection, {:.2} times as long in turn over {COUNT}",
            one / OPERATIONS as f64,
            all / one
        );
    }
    ask("drop", [Value::Null, Value::Null], "dropped");
    for (side, before) in sides.iter().zip(&before) {
        before.are_all_of(side.pid());
    }
    until("the end of the fabric's sockets", || {
        sockets(&fabric).is_empty()
    });
    assert!(files(&home.0, &fabric).is_empty());
    sides.into_iter().for_each(Child::end);
}
