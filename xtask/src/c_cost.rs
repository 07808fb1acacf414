//! `cargo xtask c-cost`: what a call costs through the C interface, beside the same from Rust:
//! nanoseconds, and instructions by Valgrind.

use std::{path::Path, process::ExitCode};

use anyhow::{Context, Result, ensure};

use crate::{
    callgrind::instructions,
    command::{command, shown, stream},
    install::{self, Place},
    page,
    run::Run,
    steps::need_packages,
    workspace::Workspace,
};

/// What the programs print a line of, in this order; the function that is measured, and what it is.
const CALLS: [(&str, &str, &str); 5] = [
    (
        "post",
        "*post_one_by_one*",
        "post a WRITE of 8 bytes inline",
    ),
    ("poll", "*poll_one_by_one*", "poll one completion"),
    ("poll-list", "*poll_all*", "poll 64 at once, each"),
    (
        "post-list",
        "*post_list*",
        "post 64 WRITEs by SGE at once and execute them, each",
    ),
    ("post-inline-list", "*post_inline_list*", "the same inline"),
];

/// The programs run in turns; of each figure the median counts.
const TURNS: usize = 9;

/// Requests of a batch of the programs.
const BATCH: u32 = 64;

/// Batches whose instructions are counted.
const BATCHES: u32 = 1000;

/// Of each call.
type Figures = [f64; CALLS.len()];

/// Compares, prints the table, and writes it to the page.
///
/// # Errors
/// What is lacking or does not build, or a program that failed.
pub fn c_cost(workspace: &Workspace) -> Result<ExitCode> {
    need_packages(&["gcc", "valgrind"])?;
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
    let mut cargo = command("cargo build --release -p bellwire-benches --example c-cost");
    let mut run = Run::default();
    ensure!(
        run.command(&mut cc) && run.command(&mut cargo),
        "it does not build"
    );
    let ours = workspace.target("release/examples/c-cost");
    let (mut c, mut rust) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        c.push(times(&theirs)?);
        rust.push(times(&ours)?);
    }
    let [c, rust] = [(&theirs, c), (&ours, rust)].map(|(program, times)| {
        let counted = counted(program)?;
        Ok::<_, anyhow::Error>((medians(&times), counted))
    });
    let text = table(&c?, &rust?);
    println!("{text}");
    page::write("c-cost", &text)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs a program.
fn times(program: &Path) -> Result<Figures> {
    let mut program = command(&program.display().to_string());
    println!("$ {}", shown(&program));
    let mut figures = Vec::new();
    let status = stream(&mut program, |line| figures.extend(figure(line)))?;
    ensure!(status.success(), "{}: {status}", shown(&program));
    (figures.try_into().ok()).context("it printed something else")
}

fn medians(times: &[Figures]) -> Figures {
    std::array::from_fn(|call| {
        let mut all: Vec<_> = times.iter().map(|figures| figures[call]).collect();
        all.sort_unstable_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
    })
}

/// Instructions of each call, for one request.
fn counted(program: &Path) -> Result<Figures> {
    let mut figures = Figures::default();
    for (figure, (call, function, _)) in figures.iter_mut().zip(CALLS) {
        let counted = instructions(function, |valgrind| {
            valgrind.arg(program).arg(call).arg(BATCHES.to_string());
        })?;
        *figure = counted as f64 / f64::from(BATCH * BATCHES);
    }
    Ok(figures)
}

/// The figure of a line, if it is one of the programs' own.
fn figure(line: &str) -> Option<f64> {
    let (name, figure) = line.trim_end().split_once(' ')?;
    let known = CALLS.iter().any(|(call, ..)| *call == name);
    known.then(|| figure.parse().ok())?
}

/// Of times and instructions.
fn table(c: &(Figures, Figures), rust: &(Figures, Figures)) -> String {
    let mut text = "| | C | Rust | more |\n|---|---|---|---|\n".to_owned();
    for (at, (.., what)) in CALLS.iter().enumerate() {
        let cell = |time: f64, count: f64| format!(" {time:.1} ns, {:.0} |", count.round() + 0.0);
        let (c, rust) = ([c.0[at], c.1[at]], [rust.0[at], rust.1[at]]);
        text += &format!("| {what} |");
        for [time, count] in [c, rust, [c[0] - rust[0], c[1] - rust[1]]] {
            text += &cell(time, count);
        }
        text += "\n";
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
        let text = table(&([7.3; 5], [40.0; 5]), &([5.6; 5], [41.0; 5]));
        let row = "| poll one completion | 7.3 ns, 40 | 5.6 ns, 41 | 1.7 ns, -1 |";
        assert!(text.contains(row), "{text}");
    }

    #[test]
    fn the_median_counts() {
        let times = [[3.0; 5], [1.0; 5], [2.0; 5]];
        assert_eq!(medians(&times), [2.0; 5]);
    }
}
