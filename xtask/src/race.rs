//! `cargo xtask race`: bellwire between two processes against UCX over shared memory, on the same
//! two cores, in turns.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::command::{command, shown};
use crate::page;
use crate::run::Run;
use crate::steps::need_package;

/// Rounds: in each of them everything is measured once, so that what disturbs the machine for a while
/// disturbs all alike.
const ROUNDS: usize = 5;

/// How long a process that listens has until it does.
const READY: Duration = Duration::from_millis(300);

const SIZES: [(&str, u64); 4] = [("8 B", 8), ("64 B", 64), ("4 KiB", 4096), ("64 KiB", 65536)];
const RATES: [(&str, u64); 2] = [("8 B", 8), ("4 KiB", 4096)];

/// One who takes part.
#[derive(Clone, Copy)]
struct Runner {
    name: &'static str,
    of: Of,
}

#[derive(Clone, Copy)]
enum Of {
    /// `perf lat`, or `perf bw`, of an operation.
    Bellwire(&'static str),
    /// `ucx_perftest -t`.
    Ucx(&'static str),
}

const LATENCY: [Runner; 5] = [
    runner("bellwire WRITE", Of::Bellwire("write")),
    runner("UCX ucp_put_lat", Of::Ucx("ucp_put_lat")),
    runner("bellwire SEND", Of::Bellwire("send")),
    runner("UCX ucp_am_lat", Of::Ucx("ucp_am_lat")),
    runner("UCX tag_lat", Of::Ucx("tag_lat")),
];

const RATE: [Runner; 5] = [
    runner("bellwire WRITE", Of::Bellwire("write")),
    runner("UCX ucp_put_bw", Of::Ucx("ucp_put_bw")),
    runner("bellwire SEND", Of::Bellwire("send")),
    runner("UCX ucp_am_bw", Of::Ucx("ucp_am_bw")),
    runner("UCX tag_bw", Of::Ucx("tag_bw")),
];

const fn runner(name: &'static str, of: Of) -> Runner {
    Runner { name, of }
}

/// Figures by who, which size, what; one for each round.
type Figures = BTreeMap<(String, u64, &'static str), Vec<f64>>;

/// Runs the race, prints its table, and writes it to the page.
///
/// # Errors
/// What is lacking, or a program that failed.
pub fn race() -> Result<ExitCode> {
    need_package("ucx-utils", "ucx_perftest")?;
    let mut run = Run::default();
    if !run.command(&mut command(
        "cargo build --release -p bellwire-examples --example perf",
    )) {
        return Ok(ExitCode::FAILURE);
    }
    let mut figures = Figures::new();
    for round in 0..ROUNDS {
        println!("round {} of {ROUNDS}", round + 1);
        for (runners, sizes, latency) in [(&LATENCY, &SIZES[..], true), (&RATE, &RATES[..], false)]
        {
            for &(_, size) in sizes {
                for runner in runners {
                    measure(*runner, size, latency, &mut figures)
                        .with_context(|| format!("{} of {size} bytes", runner.name))?;
                }
            }
        }
    }
    let text = tables(&figures);
    println!("{text}");
    page::write("race", &text)?;
    Ok(ExitCode::SUCCESS)
}

fn measure(runner: Runner, size: u64, latency: bool, figures: &mut Figures) -> Result<()> {
    let mut note = |who: &str, what, figure| {
        let key = (who.to_owned(), size, what);
        figures.entry(key).or_default().push(figure);
    };
    match runner.of {
        Of::Bellwire(op) => {
            let result = bellwire(op, size, latency)?;
            let figure = |pointer: &str| {
                result
                    .pointer(pointer)
                    .and_then(Value::as_f64)
                    .with_context(|| format!("no {pointer} in {result}"))
            };
            if latency {
                note(runner.name, "ns", figure("/latency/block_ns")?);
                note("bare cache line", "ns", figure("/latency/bounce_ns")?);
            } else {
                note(runner.name, "M/s", figure("/rate/per_second")? / 1e6);
                note(runner.name, "GB/s", figure("/rate/bytes_per_second")? / 1e9);
            }
        }
        Of::Ucx(test) => {
            let (microseconds, per_second) = ucx(test, size, latency)?;
            if latency {
                note(runner.name, "ns", microseconds * 1e3);
            } else {
                note(runner.name, "M/s", per_second / 1e6);
                note(runner.name, "GB/s", per_second * size as f64 / 1e9);
            }
        }
    }
    Ok(())
}

/// A process that waits for its peer; it does not outlive this.
struct Listener(Child);

impl Listener {
    fn start(command: &mut Command) -> Result<Self> {
        let what = shown(command);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {what}"))?;
        std::thread::sleep(READY);
        Ok(Self(child))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Most have gone by themselves.
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{} failed: {}", shown(command), said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The first result of a run of `perf` between two processes.
fn bellwire(op: &str, size: u64, latency: bool) -> Result<Value> {
    const PERF: &str = "target/release/examples/perf";
    let name = format!("race-{}", std::process::id());
    let _listener = Listener::start(&mut command(&format!("{PERF} --listen {name}")))?;
    let what = if latency { "lat" } else { "bw" };
    let line =
        format!("{PERF} {what} --op {op} --size {size} --seconds 0.5 --json --connect {name}");
    let document: Value = serde_json::from_str(&output(&mut command(&line))?)?;
    let result = document.pointer("/results/0");
    result.cloned().context("perf gave no result")
}

/// Microseconds one way, and messages a second.
fn ucx(test: &str, size: u64, latency: bool) -> Result<(f64, f64)> {
    // As long as bellwire's, about.
    let count = match (latency, size) {
        (true, ..=64) => 1_000_000,
        (true, ..=4096) => 500_000,
        (true, _) => 50_000,
        (false, ..=64) => 4_000_000,
        (false, _) => 1_000_000,
    };
    let _listener = Listener::start(command("ucx_perftest -c 1").env("UCX_TLS", "posix"))?;
    let line = format!("ucx_perftest 127.0.0.1 -t {test} -s {size} -n {count} -c 0 -f");
    let text = output(command(&line).env("UCX_TLS", "posix"))?;
    // iterations, percentile, average and overall microseconds, average and overall MB/s, and
    // average and overall messages a second
    let figures: Vec<f64> = (text.lines().last().unwrap_or_default())
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    match figures[..] {
        [_, .., overall, _, _, _, rate] if figures.len() >= 7 => Ok((overall, rate)),
        _ => bail!("ucx_perftest printed something else:\n{text}"),
    }
}

fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

fn tables(figures: &Figures) -> String {
    let mut text = String::new();
    let figure = |who: &str, size, what| {
        let found = figures.get(&(who.to_owned(), size, what));
        found.map(|figures| median(figures)).unwrap_or(f64::NAN)
    };
    let head = |text: &mut String, first: &str, columns: &[String]| {
        let _ = writeln!(text, "| {first} | {} |", columns.join(" | "));
        let _ = writeln!(text, "|---|{}", "---|".repeat(columns.len()));
    };
    let sizes: Vec<String> = SIZES.iter().map(|(size, _)| (*size).to_owned()).collect();
    head(&mut text, "one way, ns", &sizes);
    let names = ["bare cache line"]
        .into_iter()
        .chain(LATENCY.map(|runner| runner.name));
    for name in names {
        let row = SIZES.map(|(_, size)| format!("{:.0}", figure(name, size, "ns")));
        let _ = writeln!(text, "| {name} | {} |", row.join(" | "));
    }
    let _ = writeln!(text);
    let columns: Vec<String> = (RATES.iter())
        .flat_map(|(size, _)| [format!("{size}, M/s"), format!("{size}, GB/s")])
        .collect();
    head(&mut text, "as many as there can be", &columns);
    for runner in RATE {
        let row: Vec<String> = (RATES.iter())
            .flat_map(|&(_, size)| ["M/s", "GB/s"].map(|what| (size, what)))
            .map(|(size, what)| format!("{:.2}", figure(runner.name, size, what)))
            .collect();
        let _ = writeln!(text, "| {} | {} |", runner.name, row.join(" | "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert!(median(&[]).is_nan());
    }
}
