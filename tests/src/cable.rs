//! What an administrator does: ip(8), rdma(8).

use crate::fixture::until;
use bellwire::{Device, PortState};
use std::process::Command;

/// Runs a command line, which has to succeed.
pub fn run(line: &str) {
    let mut words = line.split_whitespace();
    let program = words.next().expect("a program");
    let output = Command::new(program).args(words).output();
    let output = output.unwrap_or_else(|error| panic!("{line}: {error}"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {text}");
}

/// Something that was done, and is undone when this goes, however the test ends.
#[must_use]
pub struct Undo(Option<String>);

impl Undo {
    /// Does one thing, and will do the other.
    pub fn after(line: &str, undo: &str) -> Self {
        let undo = Self(Some(undo.to_owned()));
        run(line);
        undo
    }

    /// Undoes it now.
    pub fn now(mut self) {
        let line = self.0.take().expect("not undone yet");
        run(&line);
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if let Some(line) = self.0.take() {
            let mut words = line.split_whitespace();
            let program = words.next().unwrap_or_default();
            // The test has failed already, and says why.
            let _ = Command::new(program).args(words).status();
        }
    }
}

/// Cuts the cable, at this end: `veth1` or `veth2`.
pub fn cut(end: &str) -> Undo {
    let set = |to| format!("ip link set {end} {to}");
    Undo::after(&set("down"), &set("up"))
}

/// Waits until the port is in this state.
pub fn until_port(device: &Device, state: PortState) {
    until("the port's state", || {
        device.query_port(1).expect("port 1").state == state
    });
}
