//! Several processes on one fabric, and what happens to the others when one of them dies, stops, or
//! is hostile. Each test starts this program again, in roles that talk to it by pipes.
//!
//! `kill` and `fuzz` take their rounds from seeds; one that fails prints the command that repeats it. By default
//! there are a few; the long form is
//!
//! ```text
//! BELLWIRE_ROUNDS=1000 cargo test --release -p bellwire-tests --test processes -- kill
//! ```
//!
//! and the same for `fuzz`.

mod attacker;
mod crowd;
mod fence;
mod flow;
mod fuzz;
mod gale;
mod heir;
mod hostile;
mod intruder;
mod kill;
mod kinds;
mod links;
mod many;
mod neighbours;
mod noise;
mod prey;
mod rush;
mod script;
mod shared;
mod side;
mod siege;
mod sleepers;
mod starved;
#[path = "../storm/mod.rs"]
mod storm;
mod target;
mod victim;
mod wire;
mod worker;

use libtest_mimic::{Arguments, Trial};
use std::process::ExitCode;

fn main() -> ExitCode {
    if let Ok(role) = std::env::var(bellwire_tests::child::ROLE) {
        match role.as_str() {
            worker::ROLE => worker::play(),
            victim::ROLE => victim::play(),
            hostile::ROLE => hostile::play(),
            intruder::ROLE => intruder::play(),
            attacker::ROLE => attacker::play(),
            target::ROLE => target::play(),
            target::FRIEND => target::play_friend(),
            heir::ROLE => heir::play(),
            starved::ROLE => starved::play(),
            rush::ROLE => rush::play(),
            crowd::ROLE => crowd::play(),
            neighbours::ROLE => neighbours::play(),
            side::ROLE => side::play(),
            sleepers::ROLE => sleepers::play(),
            storm::ROLE => storm::play(),
            _ => panic!("no such role: {role}"),
        }
        return ExitCode::SUCCESS;
    }
    let mut args = Arguments::from_args();
    // Each of them keeps all processors busy.
    args.test_threads = Some(1);
    let trial = |name: &str, test: fn()| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    let trials = vec![
        trial("kill", kill::rounds),
        trial("fuzz", fuzz::rounds),
        trial("siege", siege::attacks),
        trial("claimed_places", intruder::claims_places),
        trial("claimed_endpoint", intruder::claims_an_endpoint),
        trial("sections_that_are_never_left", intruder::never_leaves),
        trial("flooded_sockets", intruder::floods),
        trial("silent_peers", intruder::says_nothing),
        trial("sleepers", sleepers::awake_each_other),
        trial("sleepers_without_membarrier", sleepers::without_membarrier),
        trial("many_connections", many::connections),
        trial("storm_of_links", rush::everybody_is_served),
        trial("crowd_of_links", crowd::of_links),
        trial("neighbours", neighbours::are_not_disturbed),
        trial("storm_of_clients", gale::clients),
        trial("killed_with_an_heir", heir::killed),
        trial("without_descriptors", starved::descriptors),
    ];
    libtest_mimic::run(&args, trials).exit_code()
}
