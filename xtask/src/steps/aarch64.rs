//! bellwire for aarch64: built across, and run by qemu's user mode.
//!
//! It passes membarrier(2), memfds with their seals and process descriptors on to this machine's kernel, so
//! that two processes and links run as they are: in C, whose programs fork, and are built in seconds. It has
//! no filters of system calls and starts no aarch64 program from another: what the fabric does without
//! membarrier(2), and the tests of several processes in Rust, run on this machine, and in the guest of
//! `cargo xtask vm --arch aarch64`.
//!
//! The emulation orders memory as this machine does, so what it runs says that the code works there, not
//! that its barriers suffice. For those there are loom and Miri, the order in which `benches/steps` is seen
//! to store, and the rules in `core/src/barrier.rs`.

use std::{
    ffi::OsStr,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;

use super::{
    c::{PROGRAM_LIMIT, WARNINGS, args, is_cpp, programs},
    tools,
};
use crate::{
    command::{command, limited},
    install,
    run::Run,
    stepper::{self, PROCESSORS, Stepped},
    workspace::Workspace,
};

/// The target, as Rust calls it.
pub const TARGET: &str = "aarch64-unknown-linux-gnu";

/// The C compiler for it, and the folder of its C library.
const CC: &str = "aarch64-linux-gnu-gcc";
const SYSROOT: &str = "/usr/aarch64-linux-gnu";

/// Tests that say nothing about a processor, of modules without atomics or unsafe code; and those that spin
/// for long where threads are emulated.
const LEFT_OUT: [&str; 6] = [
    "fault::",
    "link::",
    "qp::",
    "threads_take_each_entry_once",
    "a_writer_and_a_reader_agree_on_every_byte",
    "packets_arrive_whole_and_in_order",
];

/// The operations of `benches/steps`. For each processor of [`PROCESSORS`]: instructions at the most, and the
/// order of its stores and barriers.
///
/// `ring` and `... record` are stores there, `register A to B` those to bytes A to B of a half of the
/// register, upwards.
type Expected = (&'static str, [(usize, &'static [&'static str]); 2]);

const EXPECTED: [Expected; 8] = [
    (
        "post a WRITE by SGE, ring",
        [(85, &RING_WHOLE), (98, &RING_WHOLE_X86)],
    ),
    (
        "post a WRITE of 28 bytes inline, ring",
        [(86, &RING_WHOLE), (86, &RING_WHOLE_X86)],
    ),
    (
        "post two WRITEs, ring once",
        [
            (
                146,
                &[
                    "send ring",
                    "stlr",
                    "dmb oshst",
                    "stlr",
                    "send record",
                    "dmb oshst",
                    "register 0 to 8",
                    "dsb st",
                ],
            ),
            (
                164,
                &[
                    "send ring",
                    "send record",
                    "sfence",
                    "register 0 to 8",
                    "sfence",
                ],
            ),
        ],
    ),
    (
        "post a receive, ring",
        [
            (
                73,
                &[
                    "receive ring",
                    "stlr",
                    "dmb oshst",
                    "stlr",
                    "receive record",
                ],
            ),
            (71, &["receive ring", "receive record"]),
        ],
    ),
    ("poll a send", [(54, &POLL), (46, &["consumer record"])]),
    ("poll a receive", [(60, &POLL), (49, &["consumer record"])]),
    ("poll an empty queue", [(16, &[]), (15, &[])]),
    (
        "arm",
        [
            (18, &["dmb oshst", "stlr", "arm record", "dmb oshst"]),
            (19, &["arm record", "sfence"]),
        ],
    ),
];

/// The entry, the ledger's counter, the record, and the whole entry in the register.
const RING_WHOLE: [&str; 9] = [
    "send ring",
    "stlr",
    "dmb oshst",
    "stlr",
    "send record",
    "dmb oshst",
    "st1",
    "register 0 to 64",
    "dgh",
];

const RING_WHOLE_X86: [&str; 4] = ["send ring", "send record", "sfence", "register 0 to 64"];

/// The owner bit, the entry, the consumer record, and the ledger's counter.
const POLL: [&str; 4] = ["dmb oshld", "stlr", "consumer record", "stlr"];

pub fn aarch64(workspace: &Workspace) -> Result<Run> {
    tools::need_packages(&tools::AARCH64)?;
    tools::rust_target(TARGET).need()?;
    let mut run = Run::default();
    let mut tests = cargo("test -p bellwire-core -p bellwire-soft --lib --no-fail-fast");
    tests.arg("--");
    for name in LEFT_OUT {
        tests.args(["--skip", name]);
    }
    run.command(&mut tests);
    run.must_have_found_tests();
    c(workspace, &mut run)?;
    steps(workspace, &mut run)?;
    Ok(run)
}

/// The C programs, with the shared library: the software HCA within a process and between two, and links
/// through faults.
fn c(workspace: &Workspace, run: &mut Run) -> Result<()> {
    if !run.command(&mut cargo("build -p bellwire-ffi")) {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let library = fs::canonicalize(workspace.target(&format!("{TARGET}/debug/libbellwire.so")))?;
    for name in ["libbellwire.so".to_owned(), install::soname(workspace)?] {
        symlink(&library, dir.path().join(name))?;
    }
    // The user mode forks one thread of an emulator that has several, and keeps what children are not to have.
    let is_left_out = |path: &Path| path.file_stem() == Some(OsStr::new("fork"));
    let sources: Vec<PathBuf> = (programs()?.into_iter())
        .filter(|path| !is_cpp(path) && !is_left_out(path))
        .collect();
    run.on_each_core(&sources, |source, run| {
        let program = dir.path().join(source.file_stem().unwrap_or_default());
        let mut build = command(CC);
        build
            .arg("-std=c11")
            .args(WARNINGS)
            .args(["-I", "include", "-I"]);
        build
            .args([source.parent().unwrap_or(Path::new(".")), source])
            .arg("-o")
            .arg(&program);
        build
            .arg("-L")
            .arg(dir.path())
            .args(["-lbellwire", "-pthread"]);
        if run.command(&mut build) {
            let mut start = command(&format!("qemu-aarch64 -L {SYSROOT} -E"));
            start
                .arg(format!("LD_LIBRARY_PATH={}", dir.path().display()))
                .arg(&program)
                .args(args(source));
            run.command(&mut limited(&start, PROGRAM_LIMIT));
        }
        Ok(())
    })
}

/// A cargo command that builds for aarch64, and runs what it builds.
pub(super) fn cargo(words: &str) -> Command {
    let mut cargo = command(&format!("cargo {words} --target {TARGET}"));
    let name = TARGET.to_uppercase().replace('-', "_");
    cargo.env(format!("CARGO_TARGET_{name}_LINKER"), CC).env(
        format!("CARGO_TARGET_{name}_RUNNER"),
        format!("qemu-aarch64 -L {SYSROOT}"),
    );
    cargo
}

/// Counts instructions, and compares the order of stores and barriers, on this machine and on aarch64.
fn steps(workspace: &Workspace, run: &mut Run) -> Result<()> {
    const BUILD: &str = "build --release -p bellwire-steps";
    let host = command(&format!("cargo {BUILD} --target x86_64-unknown-linux-gnu"));
    let targets = [TARGET, "x86_64-unknown-linux-gnu"];
    for (at, (processor, mut build)) in PROCESSORS.iter().zip([cargo(BUILD), host]).enumerate() {
        if !run.command(&mut build) {
            continue;
        }
        let program = workspace.target(&format!("{}/release/steps", targets[at]));
        let sysroot = if at == 0 { SYSROOT } else { "/" };
        let stepped = stepper::step(processor, sysroot, &program)?;
        for one in &stepped {
            println!(
                "{}: {}: {} instructions: {}",
                processor.name,
                one.name,
                one.instructions,
                one.order.join("; ")
            );
        }
        let expected = EXPECTED.map(|(name, of)| (name, of[at]));
        run.problems
            .extend(differences(processor.name, &stepped, &expected));
    }
    Ok(())
}

fn differences(
    processor: &str,
    stepped: &[Stepped],
    expected: &[(&str, (usize, &[&str]))],
) -> Vec<String> {
    let mut problems = Vec::new();
    if stepped.len() != expected.len() {
        problems.push(format!(
            "{processor}: {} operations, expected {}",
            stepped.len(),
            expected.len()
        ));
    }
    for (one, (name, (most, order))) in stepped.iter().zip(expected) {
        if one.name != *name || one.order != *order {
            problems.push(format!(
                "{processor}: {one:?}, expected {name:?}: {order:?}"
            ));
        }
        if one.instructions > *most {
            problems.push(format!(
                "{processor}: {name}: {} instructions, {most} at the most",
                one.instructions
            ));
        }
    }
    problems
}
