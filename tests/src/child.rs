//! A process that a test starts: this program once more, in a role. Both sides say lines of JSON,
//! each an object with one key.

use crate::fixture::DEADLINE;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{self, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Names the role, in the environment.
pub const ROLE: &str = "BELLWIRE_TEST_ROLE";

/// A running child. Dropping it kills it.
pub struct Child {
    name: String,
    process: process::Child,
    input: Option<ChildStdin>,
    output: Receiver<String>,
}

impl Child {
    /// Starts one whose files, should it make any, are in `home`.
    pub fn start(role: &str, name: String, home: &Path) -> Self {
        let program = Command::new(std::env::current_exe().expect("a path"));
        Self::start_by(program, role, name, home)
    }

    /// Like [`start`](Self::start), by a command that starts a copy of this program.
    pub fn start_by(mut command: Command, role: &str, name: String, home: &Path) -> Self {
        command
            .env(ROLE, role)
            .current_dir(home)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        for place in ["HOME", "TMPDIR", "XDG_RUNTIME_DIR"] {
            command.env(place, home);
        }
        // SAFETY: a plain system call, between fork and exec. A stopped child cannot see that its
        // parent is gone.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            })
        };
        let mut process = command.spawn().expect("a child");
        let input = process.stdin.take();
        let lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let (sender, output) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            name,
            process,
            input,
            output,
        }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Says something to it, under this key.
    pub fn send(&mut self, key: &str, value: Value) {
        let input = self.input.as_mut().expect("not ended");
        if let Err(error) = writeln!(input, "{}", json!({ key: value })) {
            panic!("{} does not listen: {error}", self.name);
        }
    }

    /// What it says under this key, which has to be the next thing that it says.
    pub fn hear(&mut self, key: &str) -> Value {
        let line = match self.output.recv_timeout(DEADLINE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("{} hangs: no {key:?}", self.name),
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.process.wait().expect("a status");
                panic!("{} ended before {key:?}: {status}", self.name)
            }
        };
        let mut said: Value = serde_json::from_str(&line).expect("JSON");
        match said.get_mut(key) {
            Some(value) => value.take(),
            None => panic!("{} says {line}, not {key:?}", self.name),
        }
    }

    /// Asserts that it has said nothing that was not heard.
    pub fn is_silent(&mut self) {
        if let Ok(line) = self.output.try_recv() {
            panic!("{} says {line}", self.name);
        }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: a plain system call; the child has not been waited for.
        assert_eq!(unsafe { libc::kill(self.pid() as i32, signal) }, 0);
    }

    /// Kills it, and waits until it is gone.
    pub fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        self.process.wait().expect("a status");
    }

    /// Nothing is left to say: it ends by itself, with success.
    pub fn end(mut self) {
        self.input = None;
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.process.try_wait().expect("a status") {
                break status;
            }
            assert!(start.elapsed() < DEADLINE, "{} does not end", self.name);
            std::thread::sleep(Duration::from_millis(1));
        };
        assert!(status.success(), "{}: {status}", self.name);
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may be gone already.
        let _gone = self.process.kill();
        let _status = self.process.wait();
    }
}
