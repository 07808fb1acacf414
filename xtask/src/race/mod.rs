//! `cargo xtask race`: bellwire between two processes against UCX over shared memory and iceoryx2, on the same two
//! processors, in short turns.
//!
//! A virtual machine migrates: a cache line that crosses in 30 ns in one second takes 260 in the next. So the bare line
//! is measured before and after each turn, a turn counts only if both agree, and turns are compared with those of the
//! same placement only.

mod counts;
mod line;
mod runners;
mod turns;

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;

use crate::command::command;
use crate::page;
use crate::run::Run;
use crate::steps::{need_package, need_packages};
use line::{Line, Placement};
use runners::{LATENCY, RATE, Runner};
use turns::{Figures, Turn};

/// What of the race can be chosen.
#[derive(Args, Debug)]
pub struct Options {
    /// The two processors
    #[arg(long, value_delimiter = ',', num_args = 1, default_value = "0,1")]
    cpus: Vec<usize>,
    /// Turns of each that a placement needs to be concluded from
    #[arg(long, default_value_t = 15)]
    turns: usize,
    /// Most minutes to wait until each placement that is seen has them
    #[arg(long, default_value_t = 20)]
    minutes: u64,
}

const SIZES: [(&str, u64); 4] = [("8 B", 8), ("64 B", 64), ("4 KiB", 4096), ("64 KiB", 65536)];
const RATES: [(&str, u64); 2] = [("8 B", 8), ("4 KiB", 4096)];

/// Runs the race, prints its tables, and writes them to the page.
///
/// # Errors
/// What is lacking, or a program that failed.
pub fn race(options: &Options) -> Result<ExitCode> {
    need_package("ucx-utils", "ucx_perftest")?;
    need_package("valgrind", "valgrind")?;
    need_packages(&["libucx-dev"])?;
    let &[first, second] = &options.cpus[..] else {
        anyhow::bail!("--cpus takes two processors, such as 0,1");
    };
    let cpus = [first, second];
    let mut run = Run::default();
    let built = [
        "cargo build --release -p bellwire-examples --example perf",
        "cargo build --release --manifest-path benches/rivals/Cargo.toml --target-dir target/rivals",
        "cc -O2 -o target/rivals/ucx benches/rivals/ucx.c -lucp -lucs",
    ];
    if !built.iter().all(|line| run.command(&mut command(line))) {
        return Ok(ExitCode::FAILURE);
    }
    let text = format!("{}{}", times(options, cpus)?, counts::table()?);
    println!("{text}");
    page::write("race", &text)?;
    Ok(ExitCode::SUCCESS)
}

/// Everything that is measured once in each round.
fn entrants() -> impl Iterator<Item = (Runner, u64)> {
    let of = |runners: &'static [Runner], sizes: &'static [(&str, u64)]| {
        let sizes = sizes.iter();
        sizes.flat_map(move |&(_, size)| runners.iter().map(move |&runner| (runner, size)))
    };
    of(&LATENCY, &SIZES).chain(of(&RATE, &RATES))
}

/// Races until each placement that is seen has enough turns of each, or the time is over.
fn times(options: &Options, cpus: [usize; 2]) -> Result<String> {
    let line = Line::new(cpus);
    let (start, mut figures, mut apart) = (Instant::now(), Figures::default(), 0);
    let limit = Duration::from_secs(options.minutes * 60);
    let enough = |figures: &Figures| {
        let seen = Placement::ALL.map(|at| figures.rounds(at));
        let mut seen = seen.into_iter().filter(|&rounds| rounds != 0).peekable();
        seen.peek().is_some() && seen.all(|rounds| rounds >= options.turns)
    };
    while !enough(&figures) && start.elapsed() < limit {
        for (runner, size) in entrants() {
            let before = line.measure()?;
            let result = runner
                .run(size, cpus)
                .with_context(|| format!("{} of {size} bytes", runner.name))?;
            match Turn::new(before, line.measure()?, result) {
                Some(turn) => figures.add(runner, size, turn),
                None => apart += 1,
            }
        }
        let seen = Placement::ALL.map(|at| format!("{at}: {}", figures.rounds(at)));
        println!("{:?}: rounds with {}", start.elapsed(), seen.join(", "));
    }
    Ok(tables(&figures, options.turns, apart))
}

/// The tables of each placement that was seen.
fn tables(figures: &Figures, wanted: usize, apart: usize) -> String {
    let mut text = String::new();
    for placement in Placement::ALL {
        let turns = figures.rounds(placement);
        if turns == 0 {
            continue;
        }
        let lines = figures.lines(placement);
        let _ = writeln!(
            text,
            "**{placement}** (a bare line crosses in {:.0} to {:.0} ns; {turns} turn{} of each{})\n",
            lines.start(),
            lines.end(),
            if turns == 1 { "" } else { "s" },
            if turns < wanted {
                ", too few to conclude from"
            } else {
                ""
            },
        );
        table(
            &mut text,
            "one way, ns: least, median",
            &LATENCY,
            &SIZES,
            |runner, size| {
                let turns = figures.turns(placement, runner, size);
                format!("{:.0}, {:.0}", turns::least(&turns), turns::median(&turns))
            },
        );
        table(
            &mut text,
            "million messages a second: most, median",
            &RATE,
            &RATES,
            |runner, size| {
                let turns = figures.turns(placement, runner, size);
                format!("{:.2}, {:.2}", turns::most(&turns), turns::median(&turns))
            },
        );
    }
    let _ = writeln!(
        text,
        "{apart} turns do not count, because the line crossed in another time behind them than before.\n"
    );
    text
}

fn table(
    text: &mut String,
    what: &str,
    runners: &[Runner],
    sizes: &[(&str, u64)],
    cell: impl Fn(Runner, u64) -> String,
) {
    table_head(text, what, sizes);
    for &runner in runners {
        let row: Vec<String> = sizes.iter().map(|&(_, size)| cell(runner, size)).collect();
        let _ = writeln!(text, "| {} | {} |", runner.name, row.join(" | "));
    }
    let _ = writeln!(text);
}

fn table_head(text: &mut String, what: &str, sizes: &[(&str, u64)]) {
    let columns: Vec<&str> = sizes.iter().map(|(name, _)| *name).collect();
    let _ = writeln!(text, "| {what} | {} |", columns.join(" | "));
    let _ = writeln!(text, "|---|{}", "---|".repeat(columns.len()));
}
