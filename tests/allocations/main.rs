//! The n-th allocation is refused, for every n of set-up, connecting, accepting, recovery and shut-down of devices,
//! nodes of a fabric, links, sets, and links by the communication manager and over TCP; then the n-th and all behind it.
//! Each time there is an error, or the library goes on without that memory; no process aborts, panics or hangs, nothing
//! is left, and the same works afterwards.
//!
//! `Arc`, threads and B-trees of the standard library end the process instead. That passes if the allocation is small,
//! and if the stack shows that one of them has asked for it. Each call of set-up first looks whether there is memory for
//! all of them (`bellwire_provider::pinned::headroom`); `docs/bounds.md` has more.

mod places;
mod refusing;
mod scenarios;
mod walk;

use libtest_mimic::{Arguments, Trial};
use std::process::ExitCode;

fn main() -> ExitCode {
    refusing::prepare();
    let mut args = Arguments::from_args();
    // Each test makes children of this process, which has no other thread.
    args.test_threads = Some(1);
    let trials = scenarios::SCENARIOS.iter().map(|&(name, least, scenario)| {
        let full = format!("each_allocation_is_refused::{name}");
        Trial::test(full, move || {
            walk::walk(name, least, scenario);
            Ok(())
        })
    });
    libtest_mimic::run(&args, trials.collect()).exit_code()
}
