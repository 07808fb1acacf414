//! A server whose links are all in one epoll, as a new user would write it, under clients in other
//! processes: idle for a while, then all at once, while peers close their links, are killed, and come
//! back. Each message is answered, each end is reported, under its right name, and what a message costs
//! is printed.
//!
//! The short form idles for two seconds, the long one for as many as the environment says:
//!
//! ```text
//! BELLWIRE_IDLE_SECONDS=60 cargo test --release -p bellwire-tests --test server
//! ```
//!
//! `BELLWIRE_LINKS=96` has as many links, of six processes.

mod client;
mod message;
mod scenario;
mod sleeper;

use libtest_mimic::{Arguments, Trial};
use std::process::ExitCode;

fn main() -> ExitCode {
    if let Ok(role) = std::env::var(bellwire_tests::child::ROLE) {
        match role.as_str() {
            client::ROLE => client::play(),
            _ => panic!("no such role: {role}"),
        }
        return ExitCode::SUCCESS;
    }
    let trial = Trial::test("links_in_one_epoll", || {
        scenario::play();
        Ok(())
    });
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit_code()
}
