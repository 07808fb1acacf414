//! Random worlds on the inline software HCA with a virtual clock: random topologies, operations and
//! faults, and a model beside them that knows what may become of each request.
//!
//! Everything in a world follows from its seed. A world that breaks a rule names the seed, and
//! `BELLWIRE_SEED=… cargo test -p bellwire-tests --test random -- --nocapture` runs it alone, with a
//! trace. `BELLWIRE_OPERATIONS` asks for more than the million.

mod actor;
mod completions;
mod lives;
mod message;
mod model;
mod requests;
mod tally;
mod topology;
mod world;

use bellwire::wr::WcStatus;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tally::Tally;
use world::World;

/// Requests that a whole run posts at the least.
const OPERATIONS: u64 = 1_000_000;

/// Runs the world of a seed to its end.
fn run(seed: u64, trace: bool) -> Tally {
    let mut world = World::new(seed, trace);
    world.live();
    world.end()
}

fn seed_from(text: &str) -> u64 {
    let hex = text
        .strip_prefix("0x")
        .map(|hex| u64::from_str_radix(hex, 16));
    hex.unwrap_or_else(|| text.parse())
        .expect("BELLWIRE_SEED is a number")
}

#[test]
fn a_million_operations() {
    if let Ok(seed) = std::env::var("BELLWIRE_SEED") {
        let tally = run(seed_from(&seed), true);
        println!("{tally:#?}");
        return;
    }
    let wanted = std::env::var("BELLWIRE_OPERATIONS").map_or(OPERATIONS, |text| {
        text.parse().expect("a number of operations")
    });
    let mut all = Tally::default();
    let mut worlds = 0;
    while all.operations < wanted {
        // Neighbouring seeds are far apart once the generator has spread them.
        let seed = 0x5eed_0000 + worlds;
        let outcome = catch_unwind(AssertUnwindSafe(|| run(seed, false)));
        let Ok(tally) = outcome else {
            panic!(
                "world {seed:#x} broke a rule, see above. Alone: BELLWIRE_SEED={seed:#x} cargo test -p \
                 bellwire-tests --test random a_million -- --nocapture"
            );
        };
        all.add(&tally);
        worlds += 1;
    }
    println!("{worlds} worlds: {all:#?}");
    idle_nowhere(&all);
}

/// What a run of a million has to have met, or it tests less than it says.
fn idle_nowhere(all: &Tally) {
    for status in [
        WcStatus::Success,
        WcStatus::LocLenErr,
        WcStatus::LocProtErr,
        WcStatus::WrFlushErr,
        WcStatus::RemInvReqErr,
        WcStatus::RemAccessErr,
        WcStatus::RemOpErr,
        WcStatus::RetryExcErr,
        WcStatus::RnrRetryExcErr,
        WcStatus::FatalErr,
        WcStatus::GeneralErr,
    ] {
        assert!(
            all.sends.contains_key(status.name()) || all.receives.contains_key(status.name()),
            "{status} was never met"
        );
    }
    for (what, count) in [
        ("reported by reset", all.reported_by_reset),
        ("unsignalled, reported by a later one", all.passed_over),
        ("received through shared queues", all.shared),
        ("datagrams received", all.datagrams),
        ("blocks that came back", all.blocks),
        ("lives", all.lives),
        ("events", all.events),
    ] {
        assert!(count > 100, "{what}: {count}");
    }
}

#[test]
fn the_same_seed_is_the_same_world() {
    for seed in 0..20 {
        assert_eq!(run(seed, false), run(seed, false), "{seed}");
    }
}

/// The model sees what it is there to see.
#[test]
fn a_broken_rule_is_seen() {
    let mut sends = model::Sends::default();
    for wr_id in 1..=4 {
        sends.posted(wr_id, wr_id == 4);
    }
    let broken = |complete: &dyn Fn(&mut model::Sends)| {
        let mut sends = sends.clone();
        catch_unwind(AssertUnwindSafe(|| complete(&mut sends))).is_err()
    };
    assert!(!broken(&|sends| sends.completed(4, 4, true)));
    assert!(
        broken(&|sends| sends.completed(4, 3, true)),
        "a wrong count"
    );
    assert!(broken(&|sends| sends.completed(5, 1, true)), "never posted");
    assert!(
        broken(&|sends| sends.completed(1, 1, true)),
        "reported though unsignalled"
    );
    assert!(
        !broken(&|sends| sends.completed(1, 1, false)),
        "an error is reported"
    );
    let twice = |sends: &mut model::Sends| {
        sends.completed(4, 4, true);
        sends.completed(4, 1, true);
    };
    assert!(broken(&twice), "twice");
    let mut inbox = model::Inbox::default();
    inbox.message(7, 1, true);
    let again = catch_unwind(AssertUnwindSafe(|| inbox.clone().message(7, 1, false)));
    assert!(again.is_err(), "a duplicate");
    let gap = catch_unwind(AssertUnwindSafe(|| inbox.clone().message(7, 3, true)));
    assert!(gap.is_err(), "a gap on a reliable connection");
}

/// How often each status was met.
pub type Statuses = BTreeMap<&'static str, u64>;
