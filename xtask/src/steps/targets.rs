//! The step for targets other than the one that everything runs on.

use std::{
    env, fs,
    process::{self, Command},
    time::Duration,
};

use anyhow::{Result, ensure};

use super::{
    tests::{EXAMPLES_BUILT, build_examples},
    tools::{self, BIG_ENDIAN, MUSL_32},
};
use crate::{
    command::{command, limited},
    run::Run,
    workspace::Workspace,
};

/// In the environment, "all": checks every target, and runs what runs here.
const ALL_VAR: &str = "BELLWIRE_TARGETS";

/// Checked in each run: another C library and 32 bits at once, and the other order of bytes.
const ALWAYS: [&str; 2] = [MUSL_32, BIG_ENDIAN];

const MUSL_64: &str = "x86_64-unknown-linux-musl";

/// Every target of docs/platforms.md but the one that everything runs on.
const ALL: [&str; 9] = [
    MUSL_64,
    "aarch64-unknown-linux-gnu",
    "aarch64-unknown-linux-musl",
    "i686-unknown-linux-gnu",
    MUSL_32,
    "armv7-unknown-linux-gnueabihf",
    BIG_ENDIAN,
    "powerpc64le-unknown-linux-gnu",
    "riscv64gc-unknown-linux-gnu",
];

/// Far more than a program takes.
const LIMIT: Duration = Duration::from_secs(120);

/// $1 listens, $2 connects, under the name $3. The second is started again until the first listens.
const PAIR: &str = r#"
"$1" --listen "$3" & listener=$!
tries=0
until "$2" lat --op send --iters 1000 --warmup 10 --connect "$3"; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || { kill $listener; exit 1; }
    sleep 0.1
done
wait $listener
"#;

pub fn targets(workspace: &Workspace) -> Result<Run> {
    let asked = env::var(ALL_VAR).ok();
    ensure!(
        matches!(asked.as_deref(), None | Some("all")),
        "{ALL_VAR} is `all`, or not set"
    );
    let all = asked.is_some();
    let targets: &[&str] = if all { &ALL } else { &ALWAYS };
    let mut check = command("cargo check -p bellwire");
    for target in targets {
        tools::rust_target(target).need()?;
        check.args(["--target", target]);
    }
    let mut run = Run::default();
    if run.command(&mut check) && all {
        run_musl(workspace, &mut run)?;
        core_on_big_endian(workspace, &mut run)?;
    }
    Ok(run)
}

/// Runs programs of musl, of 64 and 32 bits, alone and with a program of glibc and 64 bits at the other end.
fn run_musl(workspace: &Workspace, run: &mut Run) -> Result<()> {
    let musl = [MUSL_64, MUSL_32];
    // Its functions are in musl's libc, and rustup's parts have no such file.
    let libraries = workspace.root().join(workspace.target("musl"));
    fs::create_dir_all(&libraries)?;
    fs::write(libraries.join("libdl.a"), "!<arch>\n")?;
    let mut build = command("cargo build -p bellwire-examples --example hello --example perf");
    for target in musl {
        build.args(["--target", target]);
        // It needs no libraries of the system for 32 bits.
        let variable = format!("CARGO_TARGET_{}", target.to_uppercase().replace('-', "_"));
        build.env(format!("{variable}_LINKER"), "rust-lld");
        let search = format!("-Lnative={}", libraries.display());
        build.env(format!("{variable}_RUSTFLAGS"), search);
    }
    if !run.command(&mut build) || !run.command(&mut build_examples()) {
        return Ok(());
    }
    let native = workspace.target(EXAMPLES_BUILT).join("perf");
    for target in musl {
        let built = workspace.target(&format!("{target}/debug/examples"));
        run.command(&mut limited(&Command::new(built.join("hello")), LIMIT));
        let perf = built.join("perf");
        for (turn, [listener, client]) in [[&native, &perf], [&perf, &native]].iter().enumerate() {
            let mut pair = command("sh -c");
            pair.args([PAIR, "pair"]).args([listener, client]);
            pair.arg(format!("targets-{}-{target}-{turn}", process::id()));
            run.command(&mut limited(&pair, LIMIT));
        }
    }
    Ok(())
}

/// Core's tests of what it writes to queues and reads from them, as Miri runs them.
fn core_on_big_endian(workspace: &Workspace, run: &mut Run) -> Result<()> {
    for tool in tools::for_miri() {
        tool.need()?;
    }
    let mut test = command("cargo +nightly miri test --lib -p bellwire-core --target");
    test.args([BIG_ENDIAN, "--", "wqe::", "cqe::", "be::"]);
    test.env(
        "MIRIFLAGS",
        "-Zmiri-permissive-provenance -Zmiri-ignore-leaks",
    );
    workspace.build_apart(&mut test, "miri");
    run.command(&mut test);
    run.must_have_found_tests();
    Ok(())
}
