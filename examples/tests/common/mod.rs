//! Running the example programs as a user does.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Builds the program, if it is not up to date, in the profile of the test: `cargo test` builds
/// examples that have tests of their own only as tests.
fn program(name: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
    let target = target.expect("the tests' folder is in the target folder");
    let profile = if cfg!(debug_assertions) {
        "debug"
    } else {
        "release"
    };
    let mut build = Command::new(env!("CARGO"));
    build
        .args(["build", "--quiet", "--package", env!("CARGO_PKG_NAME")])
        .args(["--example", name, "--target-dir"])
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    if profile == "release" {
        build.arg("--release");
    }
    let built = build.output().expect("cargo starts");
    let errors = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{errors}");
    target.join(profile).join("examples").join(name)
}

/// What became of it.
pub struct Ran {
    /// Exit status; `None` when a signal ended it.
    pub status: Option<i32>,
    /// What it printed.
    pub stdout: String,
    /// What it complained of.
    pub stderr: String,
}

/// One at a time: threads that poll for each other want a core each.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The program, with its arguments.
pub fn command(name: &str, arguments: &[&str]) -> Command {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    // A file of tests has one program.
    let mut command = Command::new(PROGRAM.get_or_init(|| program(name)));
    command.args(arguments);
    command
}

/// Runs a program to its end.
pub fn run(name: &str, arguments: &[&str]) -> Ran {
    let _turn = turn();
    let output = command(name, arguments).output();
    ran(output.expect("the program starts"))
}

/// What became of a process that has ended.
pub fn ran(output: Output) -> Ran {
    Ran {
        status: output.status.code(),
        stdout: String::from_utf8(output.stdout).expect("text"),
        stderr: String::from_utf8(output.stderr).expect("text"),
    }
}
