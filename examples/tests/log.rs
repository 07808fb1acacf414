//! The guide's log: a replica is killed, the log goes on, and the replica catches up when it returns.

#[expect(dead_code, reason = "other tests run programs to their end")]
mod common;

use common::command;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

/// A process that ends with the test, and the lines that it prints.
struct Running(Child, Lines<BufReader<ChildStdout>>);

impl Running {
    fn start(mut command: Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        Self(child, lines)
    }

    /// The next line that begins like this.
    fn line(&mut self, begins: &str) -> String {
        let mut lines = self.1.by_ref().map_while(Result::ok);
        let line = lines.find(|line| line.starts_with(begins));
        line.unwrap_or_else(|| panic!("ended before it printed {begins:?}"))
    }

    fn kill(&mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it has ended");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _ended = self.0.wait();
    }
}

#[test]
fn a_log_survives_the_death_of_a_replica() {
    let folder = tempfile::tempdir().unwrap();
    let fabric = format!("soft:log-{}", std::process::id());
    let file = |name| folder.path().join(name).display().to_string();
    let files = [file("one"), file("two")];
    let replica = |file: &str, port: &str| {
        let mut replica = Running::start(command("log", &["replica", &fabric, port, file]));
        let line = replica.line("replica: ");
        let port = line.rsplit(' ').next().expect("a port").to_owned();
        (replica, port, line)
    };
    let (_one, first, _) = replica(&files[0], "0");
    let (mut two, second, _) = replica(&files[1], "0");
    let mut primary = Running::start(command("log", &["primary", &fabric, &first, &second]));
    let mut input = primary.0.stdin.take().expect("piped");
    let mut write = |numbers: std::ops::Range<u32>| {
        for number in numbers {
            writeln!(input, "record {number}").expect("it reads");
        }
    };
    write(0..100);
    primary.line("primary: 100 committed");
    two.kill();
    write(100..200);
    primary.line("primary: 200 committed");
    let (_two, _, line) = replica(&files[1], &second);
    assert!(!line.starts_with("replica: 200 "), "{line}");
    drop(input);
    primary.line("primary: both have 200");
    let expected: String = (0..200)
        .map(|number| format!("record {number}\n"))
        .collect();
    for file in &files {
        assert_eq!(std::fs::read_to_string(file).unwrap(), expected);
    }
}
