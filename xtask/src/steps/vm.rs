//! The step that boots a guest with real RDMA devices, and the runs that it makes there.

use std::process::Command;

use anyhow::Result;

use crate::{
    command::{command, shown},
    run::Run,
    vm::{Guest, Status},
    workspace::Workspace,
};

pub fn vm(workspace: &Workspace) -> Result<Run> {
    in_guest(workspace, &Guest::default())
}

/// Runs what is to be run in the guest, in one boot.
///
/// # Errors
/// Those of [`Guest::run`].
pub fn in_guest(workspace: &Workspace, guest: &Guest) -> Result<Run> {
    let mut run = Run::default();
    let (commands, expected): (Vec<_>, Vec<_>) = checks().into_iter().unzip();
    let statuses = guest.run(workspace, &commands, |line| run.tests.read(line))?;
    for ((command, expected), status) in commands.iter().zip(expected).zip(statuses) {
        let line = shown(command);
        println!("in the guest: {line}: {status}");
        if status != expected {
            run.problems
                .push(format!("in the guest: `{line}`: {status}, not {expected}"));
        }
    }
    run.notes
        .push(format!("{} runs in the guest", commands.len()));
    Ok(run)
}

/// What runs, and how it has to end.
fn checks() -> Vec<(Command, Status)> {
    let good = |command| (command, Status(0));
    let mut checks = vec![good(command("ibv_devices"))];
    for device in ["rxe0", "rxe1", "rxe2"] {
        checks.push(good(command(&format!("ibv_devinfo -d {device}"))));
    }
    let pingpong = "ibv_rc_pingpong -g 1 -d";
    checks.push(good(pair(
        18515,
        &format!("{pingpong} rxe0"),
        &format!("{pingpong} rxe0 10.77.0.1"),
    )));
    checks.push(good(pair(
        18515,
        &format!("{pingpong} rxe1"),
        &format!("{pingpong} rxe2 10.78.0.1"),
    )));
    for (script, status) in [("exit 7", 7), ("kill -SEGV $$", 139)] {
        let mut failing = command("sh -c");
        failing.arg(script);
        checks.push((failing, Status(status)));
    }
    checks
}

/// Two programs that talk to each other; see `pair.sh`.
fn pair(port: u16, server: &str, client: &str) -> Command {
    let mut pair = command("sh xtask/src/vm/pair.sh");
    pair.arg(port.to_string()).arg(server).arg(client);
    pair
}
