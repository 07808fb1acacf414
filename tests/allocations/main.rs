//! The n-th allocation is refused, for every n of set-up, connecting, accepting, recovery and shut-down of devices,
//! nodes of a fabric, links, sets, and links by the communication manager and over TCP; then the n-th and all behind it.
//! Each time there is an error, or the library goes on without that memory; no process aborts, panics or hangs, nothing
//! is left, and the same works afterwards.
//!
//! `Arc`, threads and B-trees of the standard library end the process instead. That passes if the allocation is small,
//! and if the stack shows that an `Arc`, a thread or a B-tree needs the memory. Each call of set-up first looks whether there is memory for
//! all of them (`bellwire_provider::pinned::headroom`); `docs/bounds.md` has more.

mod places;
mod refusing;
mod scenarios;
mod walk;

use libtest_mimic::{Arguments, Trial};
use std::process::ExitCode;

/// The scenarios in which small allocations are not refused: the communication manager and exchanges over TCP have some
/// that end the process.
const BY_CONNECTING: [&str; 4] = ["cm", "cm_between", "several_by_cm", "tcp"];

fn main() -> ExitCode {
    refusing::prepare();
    let mut args = Arguments::from_args();
    // Each test makes children of this process, which has no other thread.
    args.test_threads = Some(1);
    let with_small = places::Places::have_lines();
    if !with_small {
        println!(
            "small allocations are refused without optimization only: cargo test -p bellwire-tests --test allocations"
        );
    }
    let trials = scenarios::SCENARIOS.iter().map(|&(name, scenario)| {
        let least = if BY_CONNECTING.contains(&name) || !with_small {
            walk::SMALL
        } else {
            0
        };
        let full = format!("each_allocation_is_refused::{name}");
        Trial::test(full, move || {
            walk::walk(name, least, scenario);
            Ok(())
        })
    });
    libtest_mimic::run(&args, trials.collect()).exit_code()
}
