//! `cargo xtask cost`: instructions of an operation on a device of libibverbs, by bellwire and by a C
//! program that uses libibverbs itself, in a guest whose clock counts instructions; and times between
//! two processes beside perftest's, in one with two processors.

use std::{fs, process::ExitCode};

use anyhow::{Context, Result, ensure};

use crate::{
    command::command,
    latency::latency,
    page,
    run::Run,
    steps::need_packages,
    vm::{Guest, Machine, Status},
    workspace::Workspace,
};

const DEVICE: &str = "rxe0";
const GID_INDEX: &str = "1";
const ADDRESS: &str = "10.77.0.1";

/// What the programs print a line of, in this order.
const OPERATIONS: [&str; 3] = ["WRITE", "READ", "SEND"];

/// Compares, prints the tables, and writes them to the page.
///
/// # Errors
/// What is lacking, or a program that failed.
pub fn cost(workspace: &Workspace) -> Result<ExitCode> {
    need_packages(&["gcc", "libibverbs-dev"])?;
    let (folder, ours) = (
        workspace.target("cost"),
        workspace.target("release/examples/cost"),
    );
    fs::create_dir_all(&folder)?;
    let theirs = folder.join("cost-c");
    let mut run = Run::default();
    let mut cc =
        command("cc -std=gnu11 -O2 -Wall -Wextra -Werror benches/verbs/cost.c -libverbs -o");
    let mut cargo = command("cargo build --release -p bellwire-benches --example cost");
    let mut perf = command("cargo build --release -p bellwire-examples --example perf");
    if !run.command(cc.arg(&theirs)) || !run.command(&mut cargo) || !run.command(&mut perf) {
        return Ok(ExitCode::FAILURE);
    }
    let [mut c, mut rust] = [theirs, ours].map(|program| command(&program.display().to_string()));
    c.args([DEVICE, GID_INDEX]);
    rust.arg(DEVICE);
    let guest = Guest {
        machine: Machine::counting(),
        ..Guest::default()
    };
    let mut figures = Vec::new();
    let statuses = guest.run(workspace, &[c, rust], |line| figures.extend(figure(line)))?;
    ensure!(statuses == [Status(0); 2], "a program failed, see above");
    let (c, rust) = (figures.get(..3), figures.get(3..6));
    let (c, rust) = c.zip(rust).context("the programs printed something else")?;
    let mut text = table(c, rust);
    text += "\n";
    text += &latency(workspace, DEVICE, GID_INDEX, ADDRESS)?;
    println!("{text}");
    page::write("cost", &text)?;
    Ok(ExitCode::SUCCESS)
}

/// The figure of a line, if it is one of the programs' own.
fn figure(line: &str) -> Option<f64> {
    let (name, figure) = line.trim_end().split_once(' ')?;
    OPERATIONS.contains(&name).then(|| figure.parse().ok())?
}

fn table(c: &[f64], rust: &[f64]) -> String {
    let mut text = format!("| instructions, on {DEVICE} | libibverbs, in C | bellwire | more |\n");
    text += "|---|---|---|---|\n";
    for ((name, c), rust) in OPERATIONS.iter().zip(c).zip(rust) {
        let more = (rust / c - 1.0) * 100.0;
        text += &format!("| {name} of 8 bytes | {c:.0} | {rust:.0} | {more:.1} % |\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_programs_lines_are_figures() {
        assert_eq!(figure("WRITE 13985.2\n"), Some(13985.2));
        assert_eq!(figure("SEND 1"), Some(1.0));
        for other in ["WRITE x", "WRITES 1", "WRITE", ""] {
            assert_eq!(figure(other), None);
        }
    }

    #[test]
    fn a_table_says_how_much_more() {
        let text = table(&[100.0, 200.0, 300.0], &[102.0, 200.0, 330.0]);
        assert!(text.contains("| WRITE of 8 bytes | 100 | 102 | 2.0 % |"));
        assert!(text.contains("| SEND of 8 bytes | 300 | 330 | 10.0 % |"));
    }
}
