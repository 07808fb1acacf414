//! The step that boots a guest with real RDMA devices, and what runs there.

use std::{
    fs, mem,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Duration,
};

use anyhow::{Context as _, Result};

use super::{
    aarch64, bless,
    c::{Installed, NVMF_SOURCE},
    tests::{EXAMPLES_BUILT, build_examples, build_roce_examples, optimized},
    tools::{NVMF, NVMF_GUEST, need_packages},
};
use crate::{
    command::{command, limited, shown},
    excerpt::Excerpt,
    run::{Part, Run, Skip},
    vm::{Arch, Guest, Status, need_guest},
    workspace::Workspace,
};

pub fn vm(workspace: &Workspace) -> Result<Run> {
    in_guest(workspace, &Guest::default())
}

/// What `vm` carries out as the step `nvmf`, in a guest of its own.
pub fn nvmf(workspace: &Workspace) -> Result<Run> {
    need_guest(Arch::default())?;
    need_packages(&[&NVMF[..], &NVMF_GUEST].concat())?;
    let (mut run, mut nvmf) = (Run::default(), Nvmf::default());
    let dir = c_folder(workspace)?;
    nvmf.build(&Installed::in_folder(workspace, &dir)?);
    carry_out(workspace, &Guest::default(), &[], &mut nvmf, &mut run)?;
    Ok(nvmf.run)
}

/// The NVMe-oF target: the commands in the guest, and what became of them.
#[derive(Default)]
struct Nvmf {
    checks: Vec<(Command, Status)>,
    run: Run,
    took: Duration,
}

impl Nvmf {
    fn build(&mut self, library: &Installed<'_>) {
        if let Some(programs) = library.project(NVMF_SOURCE, &mut self.run) {
            let mut script = command("sh examples/nvmf/guest.sh");
            script.arg(programs).args(NVMF_PARTS);
            self.checks.push((script, Status(0)));
        }
    }

    /// Takes a line that the script has printed; whether it was one.
    fn read(&mut self, line: &str) -> bool {
        if let Some(note) = line.strip_prefix("report: nvmf: ") {
            self.run.notes.push(note.trim_end().to_owned());
        } else if let Some(took) = line.strip_prefix("nvmf: ") {
            let seconds = took.split(" took ").nth(1);
            let seconds = seconds.and_then(|rest| rest.split(' ').next()?.parse().ok());
            self.took += Duration::from_secs(seconds.unwrap_or(0));
        } else {
            return false;
        }
        true
    }
}

/// Rust tests that run in the guest, too.
struct Tests {
    /// What cargo builds here.
    selection: &'static str,
    /// The arguments there.
    args: &'static [&'static str],
    /// What is in their environment.
    env: &'static [(&'static str, &'static str)],
}

impl Tests {
    /// Builds them, and says how to run them in the guest.
    fn commands(&self, workspace: &Workspace, arch: Arch) -> Result<Vec<Command>> {
        let test = format!("test {}", self.selection);
        let programs = workspace.test_programs(match arch {
            Arch::X86_64 => command(&format!("cargo {test}")),
            Arch::Aarch64 => aarch64::cargo(&test),
        })?;
        let command = |program| {
            let mut test = Command::new(program);
            test.args(self.args).envs(self.env.iter().copied());
            test
        };
        Ok(programs.into_iter().map(command).collect())
    }
}

/// The device of libibverbs that is judged.
const DEVICE: (&str, &str) = ("BELLWIRE_VERBS_DEVICE", "rxe0");

/// Without what newer devices have: `ibv_post_send` and `ibv_poll_cq`.
const PLAIN: (&str, &str) = ("BELLWIRE_VERBS_PLAIN", "1");

/// The conformance of libibverbs, on rxe, and whether its verdicts are those that the tree keeps.
const CONFORMANCE: Tests = Tests {
    selection: optimized!("--test conformance"),
    args: &["--test-threads=4"],
    env: &[DEVICE],
};

/// Without the rules that post nothing, or hardly anything.
const CONFORMANCE_PLAIN: Tests = Tests {
    args: &["--test-threads=4", "--skip=transitions::"],
    env: &[DEVICE, PLAIN],
    ..CONFORMANCE
};

/// Links that recover. They cut the cable, too.
const LINKS: Tests = Tests {
    selection: optimized!("--test link"),
    args: &[
        "device::",
        "--ignored",
        "--test-threads=1",
        "--skip=device::stand_in::",
    ],
    env: &[DEVICE, SET_LINKS],
};

/// Links in a set on a device; two hundred, take half a minute more in the guest.
pub(super) const SET_LINKS: (&str, &str) = ("BELLWIRE_DEVICE_LINKS", "32");

/// Faults by what causes them in practice. They cut cables, and remove devices and add them again:
/// nothing runs beside them.
const CAUSES: Tests = Tests {
    selection: optimized!("--test rxe"),
    args: &[],
    env: &[],
};

const TESTS: [Tests; 7] = [
    // Under Debian's kernel, with hugepages. One small crate: not optimized, it is built soonest.
    Tests {
        selection: "-p bellwire-memory --lib",
        args: &[],
        env: &[],
    },
    CONFORMANCE,
    CONFORMANCE_PLAIN,
    CAUSES,
    Tests {
        env: &[PLAIN],
        ..CAUSES
    },
    // Connections by the communication manager. They take devices away, too.
    Tests {
        selection: optimized!("--test rdmacm"),
        ..CAUSES
    },
    LINKS,
];

/// In a guest on aarch64, which is for a weak memory model: what has the most to do with it. The packages are fewer
/// than those of the others, so that less is built across.
macro_rules! across {
    ($target:literal) => {
        concat!("--profile optimized -p bellwire-tests --test ", $target)
    };
}

const TESTS_AARCH64: [Tests; 7] = [
    // Between processes, of which some may not use membarrier(2).
    Tests {
        selection: across!("processes"),
        args: &["kill"],
        env: &[],
    },
    Tests {
        selection: across!("processes"),
        args: &["sleepers"],
        env: &[],
    },
    Tests {
        selection: across!("conformance"),
        ..CONFORMANCE
    },
    Tests {
        selection: across!("conformance"),
        ..CONFORMANCE_PLAIN
    },
    Tests {
        selection: across!("rxe"),
        ..CAUSES
    },
    Tests {
        selection: across!("rdmacm"),
        ..CAUSES
    },
    Tests {
        selection: across!("link"),
        ..LINKS
    },
];

/// Scripts that run examples in the guest.
const SCRIPTS: [&str; 4] = [
    // pingpong against rdma-core's programs.
    "sh examples/pingpong/interop.sh rxe0 1 10.77.0.1",
    // mover through an overrun, and a cable that is cut.
    "sh examples/mover/rxe.sh",
    // rping and datagrams against rdma-core's rping, udaddy and mckey.
    "sh examples/rping/interop.sh",
    // echo by librdmacm.
    "sh examples/echo/rxe.sh",
];

/// Far more than any of the commands takes, also on a busy machine.
const CHECK_LIMIT: Duration = Duration::from_secs(2 * 3600);

/// What the NVMe-oF target's script does.
const NVMF_PARTS: [&str; 5] = ["disk", "faults", "hosts", "reverse", "replicated"];

/// Runs all checks and tests of the guest, in one boot.
///
/// # Errors
/// Those of [`Guest::run`].
pub fn in_guest(workspace: &Workspace, guest: &Guest) -> Result<Run> {
    need_guest(guest.machine.arch)?;
    let arch = guest.machine.arch;
    let mut run = Run::default();
    let mut checks = checks();
    let mut nvmf = Nvmf::default();
    let tests = match arch {
        Arch::X86_64 => {
            checks.extend(programs(workspace, &mut nvmf, &mut run)?);
            &TESTS[..]
        }
        Arch::Aarch64 => &TESTS_AARCH64,
    };
    for tests in tests {
        let commands = tests.commands(workspace, arch)?;
        checks.extend(commands.into_iter().map(|test| (test, Status(0))));
    }
    carry_out(workspace, guest, &checks, &mut nvmf, &mut run)?;
    run.must_have_found_tests();
    run.notes
        .push(format!("{} commands in the guest", checks.len()));
    if arch == Arch::X86_64 {
        run.parts.push(Part {
            step: "nvmf".to_owned(),
            took: nvmf.took,
            run: nvmf.run,
        });
    }
    Ok(run)
}

/// Runs the checks, and then those of the NVMe-oF target, in one boot.
fn carry_out(
    workspace: &Workspace,
    guest: &Guest,
    checks: &[(Command, Status)],
    nvmf: &mut Nvmf,
    run: &mut Run,
) -> Result<()> {
    let of_nvmf = mem::take(&mut nvmf.checks);
    let commands: Vec<_> = (checks.iter().chain(&of_nvmf))
        .map(|(command, _)| limited(command, CHECK_LIMIT))
        .collect();
    let mut excerpt = Excerpt::default();
    let read = |line: &str| {
        if !nvmf.read(line) {
            run.read(line);
        }
        excerpt.read(line);
    };
    let statuses = match guest.run(workspace, &commands, read) {
        Ok(statuses) => statuses,
        Err(error) if error.is::<Skip>() => return Err(error),
        Err(error) => {
            // What is known of the guest until then is part of the result.
            nvmf.run.problems.push(format!("{error:#}"));
            run.problems.push(format!("{error:#}"));
            run.excerpt.add(excerpt);
            return Ok(());
        }
    };
    let (first, rest) = statuses.split_at(checks.len());
    judge(checks, first, run);
    judge(&of_nvmf, rest, &mut nvmf.run);
    for run in [run, &mut nvmf.run] {
        if !run.problems.is_empty() {
            run.excerpt.add(mem::take(&mut excerpt));
        }
    }
    Ok(())
}

/// What has to be true of the commands' ends.
fn judge(checks: &[(Command, Status)], statuses: &[Status], run: &mut Run) {
    for ((command, expected), status) in checks.iter().zip(statuses) {
        let line = shown(command);
        println!("in the guest: {line}: {status}");
        if status != expected {
            let problem = format!("in the guest: `{line}`: {status}, not {expected}");
            run.problems.push(problem);
        }
    }
}

/// Where programs in C are built: below the target folder, which the guest sees.
fn c_folder(workspace: &Workspace) -> Result<PathBuf> {
    let dir = workspace.root().join(workspace.target("vm/c"));
    fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    Ok(dir)
}

/// Builds examples and programs in C, and says how to run them.
fn programs(
    workspace: &Workspace,
    nvmf: &mut Nvmf,
    run: &mut Run,
) -> Result<Vec<(Command, Status)>> {
    need_packages(&[&NVMF[..], &NVMF_GUEST].concat())?;
    let mut checks = Vec::new();
    if run.command(&mut build_examples()) {
        let built = workspace.root().join(workspace.target(EXAMPLES_BUILT));
        for script in SCRIPTS {
            let mut script = command(script);
            script.env("BELLWIRE_EXAMPLES", &built);
            checks.push((script, Status(0)));
        }
    }
    if run.command(&mut build_roce_examples()) {
        let built = workspace.root().join(workspace.target(EXAMPLES_BUILT));
        let mut script = command("sh xtask/src/vm/roce.sh");
        script.arg(built);
        checks.push((script, Status(0)));
    }
    let dir = c_folder(workspace)?;
    let library = Installed::in_folder(workspace, &dir)?;
    checks.extend(c_programs(&library, run)?);
    nvmf.build(&library);
    Ok(checks)
}

/// Programs in C, on devices of libibverbs: a test of the interface, and the examples.
fn c_programs(library: &Installed<'_>, run: &mut Run) -> Result<Vec<(Command, Status)>> {
    let mut build = |source| {
        let program = library.program(source, run)?;
        Ok::<_, anyhow::Error>(program.map(|program| program.display().to_string()))
    };
    let (
        Some(device),
        Some(fork),
        Some(waits),
        Some(xrc),
        Some(cm),
        Some(link),
        Some(hello),
        Some(pingpong),
        Some(kv),
    ) = (
        build("ffi-c/tests/c/device.c")?,
        build("ffi-c/tests/c/fork.c")?,
        build("ffi-c/tests/c/waits.c")?,
        build("ffi-c/tests/c/xrc.c")?,
        build("ffi-c/tests/c/cm.c")?,
        build("ffi-c/tests/c/link_cm.c")?,
        build("examples/c/hello.c")?,
        build("examples/c/pingpong.c")?,
        build("examples/c/kv.c")?,
    )
    else {
        return Ok(Vec::new());
    };
    // By an entry of the GID table: the IPv4 address.
    let mut checks = vec![
        (command(&format!("{device} rxe0 1")), Status(0)),
        (command(&format!("{fork} on rxe0")), Status(0)),
        (command(&format!("{waits} rxe0 10.77.0.1")), Status(0)),
        (command(&format!("{xrc} rxe0 none")), Status(0)),
        (command(&format!("{cm} rdma 10.77.0.1")), Status(0)),
        (command(&format!("{link} rxe0 10.77.0.1")), Status(0)),
        (command(&format!("{hello} rxe0")), Status(0)),
    ];
    for (server, client, host) in [("rxe0", "rxe0", "10.77.0.1"), ("rxe1", "rxe2", "10.78.0.1")] {
        checks.push(pair(
            18516,
            &format!("{pingpong} -d {server} -n 200 -s 3000"),
            &format!("{pingpong} -d {client} -n 200 -s 3000 {host}"),
        ));
        checks.push(pair(
            18517,
            &format!("{kv} serve {server} 18517 1"),
            &format!("{kv} check {client} {host} 18517 50"),
        ));
    }
    Ok(checks)
}

/// Two command lines that talk to each other, the second as soon as the first listens at the port.
fn pair(port: u16, server: &str, client: &str) -> (Command, Status) {
    let mut pair = command(&format!("sh xtask/src/vm/pair.sh {port}"));
    pair.args([server, client]);
    (pair, Status(0))
}

/// Has the conformance suite write the verdicts of libibverbs in the guest, and takes them over: into the tree, and
/// the full table to `target/conformance`.
///
/// # Errors
/// Those of [`Guest::run`]; a rule that does not hold.
pub fn bless_conformance(workspace: &Workspace) -> Result<ExitCode> {
    let tables = workspace.target("conformance");
    let taken = [
        ("verbs.txt", Path::new("tests/data/conformance")),
        ("verbs.md", tables.as_path()),
    ];
    let work = workspace.target("vm/work");
    let mut commands = CONFORMANCE.commands(workspace, Arch::default())?;
    commands.iter_mut().for_each(|test| {
        test.env("BELLWIRE_BLESS", "1");
    });
    let guest = Guest {
        work: Some(work.clone()),
        ..Guest::default()
    };
    let statuses = guest.run(workspace, &commands, |_| ())?;
    if statuses.iter().any(|status| *status != Status(0)) {
        return Ok(ExitCode::FAILURE);
    }
    fs::create_dir_all(&tables)?;
    for (name, folder) in taken {
        let written = work.join(name);
        fs::copy(&written, folder.join(name)).with_context(|| written.display().to_string())?;
    }
    bless(&format!("{} -- the_summary_is_fresh", super::CONFORMANCE))
}

/// What runs, in this order, and how it has to end.
fn checks() -> Vec<(Command, Status)> {
    let pingpong = "ibv_rc_pingpong -g 1 -d";
    let pingpongs = |server: &str, client: &str| {
        let [server, client] = [server, client].map(|args| format!("{pingpong} {args}"));
        pair(18515, &server, &client)
    };
    let sh = |script: &str, status| {
        let mut sh = command("sh -c");
        sh.arg(script);
        (sh, Status(status))
    };
    vec![
        sh("echo report: the guest runs $(uname -sr)", 0),
        (command("ibv_devices"), Status(0)),
        (command("sh xtask/src/vm/check.sh"), Status(0)),
        pingpongs("rxe0", "rxe0 10.77.0.1"),
        pingpongs("rxe1", "rxe2 10.78.0.1"),
        sh("exit 7", 7),
        sh("kill -SEGV $$", 139),
        sh("sleep 1000 & echo $! >/tmp/left", 0),
        sh("! kill -0 $(cat /tmp/left)", 0),
    ]
}
