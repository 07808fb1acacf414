//! Faults of a real device, each caused by what causes it in practice: Soft-RoCE (rxe) of Linux 6.1, in
//! the guest of `cargo xtask vm`, where the tests may cut cables, add addresses and take devices away.
//!
//! Every test sees what is reported to whom, what is flushed behind it, that each posted request is
//! reported once, which state the queue pairs are left in, and that they work again after a reset. What the
//! device makes of it otherwise than the rules have it is said beside the test.
//!
//! Elsewhere than in the guest the tests are ignored, and say why.

mod absent;
mod addresses;
mod guest;
mod lacking;
mod late;
mod link;
mod namespaces;
mod overrun;
mod packets;
mod paths;
mod registrations;
mod shared;
mod statuses;

use std::process::ExitCode;

fn main() -> ExitCode {
    if bellwire_tests::witness::is_witness() {
        return ExitCode::SUCCESS;
    }
    if lacking::is_child() {
        lacking::child();
        return ExitCode::SUCCESS;
    }
    guest::run(&[
        ("statuses", &statuses::TESTS),
        ("overrun", &overrun::TESTS),
        ("shared", &shared::TESTS),
        ("link", &link::TESTS),
        ("addresses", &addresses::TESTS),
        ("namespaces", &namespaces::TESTS),
        ("paths", &paths::TESTS),
        ("late", &late::TESTS),
        ("registrations", &registrations::TESTS),
        ("absent", &absent::TESTS),
        ("lacking", &lacking::TESTS),
    ])
}
