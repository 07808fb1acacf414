//! Programs that work together in two processes.

use super::common::{Ran, command, ran, turn};
use std::io::Read;
use std::process::{Child, Stdio};
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

/// A program that listens for another process.
pub struct Listening {
    name: &'static str,
    /// Until its end.
    child: Option<Child>,
    _turn: MutexGuard<'static, ()>,
}

/// How long a process may outlive the one that it works with.
const PATIENCE: Duration = Duration::from_secs(300);

impl Listening {
    /// Starts one, and waits until it listens.
    pub fn start(name: &'static str, arguments: &[&str]) -> Self {
        Self::with_line(name, arguments).0
    }

    /// As [`start`](Self::start); also returns the line that says so.
    pub fn with_line(name: &'static str, arguments: &[&str]) -> (Self, String) {
        let turn = turn();
        let mut child = spawn(name, arguments);
        let stdout = child.stdout.as_mut().expect("piped");
        // No byte behind the line: the rest is read at the end.
        let byte = || {
            let mut byte = [0];
            stdout.read_exact(&mut byte).expect("a line");
            byte[0]
        };
        let line = std::iter::repeat_with(byte).take_while(|&byte| byte != b'\n');
        let line = String::from_utf8(line.collect()).expect("text");
        assert!(line.starts_with("listening"), "{line:?}");
        let listening = Self {
            name,
            child: Some(child),
            _turn: turn,
        };
        (listening, line)
    }

    /// Runs the program once more, as the other process, to its end.
    pub fn run(&self, arguments: &[&str]) -> Ran {
        end(spawn(self.name, arguments))
    }

    /// Starts the other process, and kills this one under it.
    pub fn killed_under(mut self, arguments: &[&str]) -> Ran {
        let mut other = spawn(self.name, arguments);
        std::thread::sleep(Duration::from_millis(500));
        if other.try_wait().expect("a child").is_some() {
            panic!(
                "it ended before the other was killed: {}",
                end(other).stderr
            );
        }
        self.kill();
        end(other)
    }

    /// What became of it, when the other process is through.
    pub fn end(mut self) -> Ran {
        end(self.child.take().expect("not ended yet"))
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts it, and reads what it says later.
fn spawn(name: &str, arguments: &[&str]) -> Child {
    let mut command = command(name, arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the program starts")
}

/// Waits for its end, but not for ever. It says less than a pipe holds.
fn end(mut child: Child) -> Ran {
    let since = Instant::now();
    while child.try_wait().expect("a child").is_none() {
        if since.elapsed() > PATIENCE {
            child.kill().expect("a child");
            panic!("it hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    ran(child.wait_with_output().expect("a child"))
}

/// A name to meet under that no other test has.
pub fn name(of: &str) -> String {
    format!("{of}-{}", std::process::id())
}
