//! librdmacm on Soft-RoCE, in the guest of `cargo xtask vm`: each event of the communication manager by
//! what causes it in life, and what becomes of the connection and its requests.
//!
//! Two events rxe has no cause for: CONNECT_ERROR, which librdmacm and Linux tell of queue pairs of
//! their own and of iWARP, and MULTICAST_ERROR, since on RoCE a group that cannot be joined is refused
//! at once. The software HCA has them (`tests/cm`).
//!
//! A program of its own, not one with `rxe`: librdmacm keeps devices open until the process ends, and
//! Linux takes no rxe device away that is open.

mod bad_input;
#[allow(dead_code, reason = "`rxe` needs more of it")]
#[path = "../rxe/cable.rs"]
mod cable;
#[allow(dead_code, reason = "`rxe` needs more of it")]
#[path = "../rxe/ends.rs"]
mod ends;
mod events;
#[path = "../rxe/guest.rs"]
mod guest;
mod lifetimes;
mod links;
mod on_id;
mod options;
mod removal;
mod support;

use std::process::ExitCode;

fn main() -> ExitCode {
    if removal::is_child() {
        removal::child();
        return ExitCode::SUCCESS;
    }
    guest::run(&[
        // Before anything is open.
        ("removal", &removal::TESTS),
        ("events", &events::TESTS),
        ("on_id", &on_id::TESTS),
        ("options", &options::TESTS),
        ("lifetimes", &lifetimes::TESTS),
        ("links", &links::TESTS),
        ("bad_input", &bad_input::TESTS),
    ])
}
