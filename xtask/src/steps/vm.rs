//! The step that boots a guest with real RDMA devices, and what runs there.

use std::{ffi::OsString, process::Command, time::Duration};

use anyhow::Result;

use crate::{
    command::{command, limited, shown},
    run::Run,
    vm::{Guest, Status, need_guest},
    workspace::Workspace,
};

pub fn vm(workspace: &Workspace) -> Result<Run> {
    in_guest(workspace, &Guest::default())
}

/// Rust tests that run in the guest, too: what cargo builds here, and what comes before and behind the
/// program there.
const TESTS: [(&str, &[&str], &[&str]); 2] = [
    // Under Debian's kernel, with hugepages.
    ("-p bellwire --lib", &[], &["memory::"]),
    // The conformance of libibverbs, on rxe, and whether its page is fresh.
    (
        "-p bellwire-tests --features verbs --test conformance",
        &["env", "BELLWIRE_VERBS_DEVICE=rxe0"],
        &["--test-threads=4"],
    ),
];

/// Far more than any of [`checks`] takes, also on a busy machine.
const CHECK_LIMIT: Duration = Duration::from_secs(400);

/// Runs what is to be run in the guest, in one boot.
///
/// # Errors
/// Those of [`Guest::run`].
pub fn in_guest(workspace: &Workspace, guest: &Guest) -> Result<Run> {
    need_guest()?;
    let mut run = Run::default();
    let mut checks = checks();
    for (selection, before, behind) in TESTS {
        for program in workspace.test_programs(selection)? {
            let words = before.iter().map(OsString::from);
            let mut words = words.chain([program.into()]);
            let mut test = Command::new(words.next().expect("the program, at the least"));
            test.args(words).args(behind);
            checks.push((test, Status(0)));
        }
    }
    let commands: Vec<_> = (checks.iter())
        .map(|(command, _)| limited(command, CHECK_LIMIT))
        .collect();
    let statuses = guest.run(workspace, &commands, |line| run.tests.read(line))?;
    for ((command, expected), status) in checks.iter().zip(statuses) {
        let line = shown(command);
        println!("in the guest: {line}: {status}");
        if status != *expected {
            let problem = format!("in the guest: `{line}`: {status}, not {expected}");
            run.problems.push(problem);
        }
    }
    run.must_have_found_tests();
    run.notes
        .push(format!("{} commands in the guest", checks.len()));
    Ok(run)
}

/// What runs, in this order, and how it has to end.
fn checks() -> Vec<(Command, Status)> {
    let pingpong = "ibv_rc_pingpong -g 1 -d";
    let pair = |server: &str, client: &str| {
        let mut pair = command("sh xtask/src/vm/pair.sh 18515");
        pair.arg(format!("{pingpong} {server}"))
            .arg(format!("{pingpong} {client}"));
        (pair, Status(0))
    };
    let sh = |script: &str, status| {
        let mut sh = command("sh -c");
        sh.arg(script);
        (sh, Status(status))
    };
    vec![
        (command("ibv_devices"), Status(0)),
        (command("sh xtask/src/vm/check.sh"), Status(0)),
        pair("rxe0", "rxe0 10.77.0.1"),
        pair("rxe1", "rxe2 10.78.0.1"),
        sh("exit 7", 7),
        sh("kill -SEGV $$", 139),
        sh("sleep 1000 & echo $! >/tmp/left", 0),
        sh("! kill -0 $(cat /tmp/left)", 0),
    ]
}
