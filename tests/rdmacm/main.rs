//! librdmacm on Soft-RoCE, in the guest of `cargo xtask vm`: each event of the communication manager by
//! what causes it in practice, and what becomes of the connection and its requests.
//!
//! All 16 are caused. Two of them librdmacm makes itself, of queue pairs on ids, as the library does in its
//! place: CONNECT_ERROR when rxe does not take one to RTS (`on_id`), MULTICAST_ERROR when it does not
//! attach one to a group (`events`). Linux has no cause for either on RoCE: a group that it cannot join it
//! refuses at once, and PortSpace::Ipoib cannot be bound there.
//!
//! A program of its own, not one with `rxe`: librdmacm keeps devices open until the process ends, and
//! Linux takes no rxe device away that is open.

mod bad_input;
mod events;
mod gale;
#[path = "../rxe/guest.rs"]
mod guest;
mod lifetimes;
mod links;
mod on_id;
mod options;
mod removal;
#[path = "../storm/mod.rs"]
mod storm;
mod support;

use std::process::ExitCode;

fn main() -> ExitCode {
    if std::env::var(bellwire_tests::child::ROLE).is_ok_and(|role| role == storm::ROLE) {
        storm::play();
        return ExitCode::SUCCESS;
    }
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
        ("gale", &gale::TESTS),
    ])
}
