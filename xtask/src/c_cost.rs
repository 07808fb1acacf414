//! `cargo xtask c-cost`: what a call costs through the C interface, beside the same from Rust.

use std::{path::Path, process::ExitCode};

use anyhow::{Context, Result, ensure};

use crate::{
    command::{command, shown, stream},
    install::{self, Place},
    page,
    run::Run,
    workspace::Workspace,
};

/// What the programs print a line of, in this order; and what it is.
const CALLS: [(&str, &str); 5] = [
    ("post", "post a WRITE of 8 bytes inline"),
    ("poll", "poll one completion"),
    ("poll-list", "poll 64 at once, each"),
    (
        "post-list",
        "post 64 WRITEs by SGE at once and execute them, each",
    ),
    ("post-inline-list", "the same inline"),
];

/// The programs run in turns; of each figure the least counts.
const TURNS: usize = 5;

/// Compares, prints the table, and writes it to the page.
///
/// # Errors
/// What does not build, or a program that failed.
pub fn c_cost(workspace: &Workspace) -> Result<ExitCode> {
    let dir = workspace.root().join(workspace.target("c-cost"));
    let place = Place::in_prefix(&dir);
    install::put(workspace, &place, false)?;
    let theirs = dir.join("cost");
    let libdir = place.libdir();
    let mut cc = command("cc -std=c11 -O2 -Wall -Wextra -Werror -pedantic benches/c_abi/cost.c");
    cc.arg(format!("-I{}", dir.join("include").display()))
        .arg(format!("-L{}", libdir.display()))
        .arg(format!("-Wl,-rpath,{}", libdir.display()))
        .arg("-lbellwire")
        .arg("-o")
        .arg(&theirs);
    let mut cargo = command("cargo build --release -p bellwire-benches --bin c-cost");
    let mut run = Run::default();
    ensure!(
        run.command(&mut cc) && run.command(&mut cargo),
        "it does not build"
    );
    let ours = workspace.target("release/c-cost");
    let (mut c, mut rust) = ([f64::MAX; 5], [f64::MAX; 5]);
    for _ in 0..TURNS {
        measure(&theirs, &mut c)?;
        measure(&ours, &mut rust)?;
    }
    let text = table(&c, &rust);
    println!("{text}");
    page::write("c-cost", &text)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs a program, and keeps what is less than before.
fn measure(program: &Path, least: &mut [f64; 5]) -> Result<()> {
    let mut program = command(&program.display().to_string());
    println!("$ {}", shown(&program));
    let mut figures = Vec::new();
    let status = stream(&mut program, |line| figures.extend(figure(line)))?;
    ensure!(status.success(), "{}: {status}", shown(&program));
    let figures: [f64; 5] = (figures.try_into().ok()).context("it printed something else")?;
    for (least, figure) in least.iter_mut().zip(figures) {
        *least = least.min(figure);
    }
    Ok(())
}

/// The figure of a line, if it is one of the programs' own.
fn figure(line: &str) -> Option<f64> {
    let (name, figure) = line.trim_end().split_once(' ')?;
    let known = CALLS.iter().any(|(call, _)| *call == name);
    known.then(|| figure.parse().ok())?
}

fn table(c: &[f64; 5], rust: &[f64; 5]) -> String {
    let mut text = "| ns | C | Rust | more |\n|---|---|---|---|\n".to_owned();
    for ((_, what), (c, rust)) in CALLS.iter().zip(c.iter().zip(rust)) {
        text += &format!("| {what} | {c:.1} | {rust:.1} | {:.1} |\n", c - rust);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_programs_lines_are_figures() {
        assert_eq!(figure("poll-list 9.91\n"), Some(9.91));
        for other in ["poll-list x", "polls 1", "poll", ""] {
            assert_eq!(figure(other), None);
        }
    }

    #[test]
    fn a_table_says_how_much_more() {
        let text = table(&[7.3; 5], &[5.6; 5]);
        assert!(text.contains("| poll one completion | 7.3 | 5.6 | 1.7 |"));
    }
}
