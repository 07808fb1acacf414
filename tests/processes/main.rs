//! Several processes on one fabric, and what happens to the others when one of them dies, stops, or
//! means ill. Each test starts this program again, in roles that talk to it by pipes.
//!
//! `kill` and `fuzz` take their rounds from seeds; one that fails prints the command that repeats it. By default
//! there are a few; the long form is
//!
//! ```text
//! BELLWIRE_ROUNDS=1000 cargo test --release -p bellwire-tests --test processes -- kill
//! ```
//!
//! and the same for `fuzz`.

mod fence;
mod flow;
mod fuzz;
mod gale;
mod hostile;
mod kill;
mod many;
mod noise;
mod prey;
mod script;
mod side;
#[path = "../storm/mod.rs"]
mod storm;
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
            side::ROLE => side::play(),
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
        trial("many_connections", many::connections),
        trial("storm_of_clients", gale::clients),
    ];
    libtest_mimic::run(&args, trials).exit_code()
}
