//! Who takes part: the programs of a turn, two processes each.

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::command::{command, shown};

/// How long a process that listens has until it does.
const READY: Duration = Duration::from_millis(300);

/// How long a turn measures, about.
const SECONDS: f64 = 0.2;

/// One who takes part, in latency or in rate.
#[derive(Clone, Copy, Debug)]
pub struct Runner {
    pub name: &'static str,
    of: Of,
}

#[derive(Clone, Copy, Debug)]
enum Of {
    /// `perf lat` of an operation.
    BellwireLatency(&'static str),
    /// `perf bw` of an operation.
    BellwireRate(&'static str),
    /// `ucx_perftest -t`.
    UcxLatency(&'static str),
    UcxRate(&'static str),
    /// `rivals ask`.
    Iceoryx,
}

pub const LATENCY: [Runner; 6] = [
    runner("bellwire WRITE", Of::BellwireLatency("write")),
    runner("UCX ucp_put_lat", Of::UcxLatency("ucp_put_lat")),
    runner("bellwire SEND", Of::BellwireLatency("send")),
    runner("UCX ucp_am_lat", Of::UcxLatency("ucp_am_lat")),
    runner("UCX tag_lat", Of::UcxLatency("tag_lat")),
    runner("iceoryx2", Of::Iceoryx),
];

pub const RATE: [Runner; 5] = [
    runner("bellwire WRITE, many", Of::BellwireRate("write")),
    runner("UCX ucp_put_bw", Of::UcxRate("ucp_put_bw")),
    runner("bellwire SEND, many", Of::BellwireRate("send")),
    runner("UCX ucp_am_bw", Of::UcxRate("ucp_am_bw")),
    runner("UCX tag_bw", Of::UcxRate("tag_bw")),
];

const fn runner(name: &'static str, of: Of) -> Runner {
    Runner { name, of }
}

impl Runner {
    /// Nanoseconds one way, or million messages a second.
    pub fn run(self, size: u64, cpus: [usize; 2]) -> Result<f64> {
        match self.of {
            Of::BellwireLatency(op) => bellwire("lat", op, size, cpus, "/latency/block_ns"),
            Of::BellwireRate(op) => Ok(bellwire("bw", op, size, cpus, "/rate/per_second")? / 1e6),
            Of::UcxLatency(test) => Ok(ucx(test, size, true, cpus)?.0 * 1e3),
            Of::UcxRate(test) => Ok(ucx(test, size, false, cpus)?.1 / 1e6),
            Of::Iceoryx => iceoryx(size, cpus),
        }
    }
}

/// A process that waits for its peer; it does not outlive this.
struct Listener(Child);

impl Listener {
    fn start(command: &mut Command) -> Result<Self> {
        let what = shown(command);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
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

/// A name that no other turn has.
fn name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Relaxed: only makes the names differ.
    let turn = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("race-{}-{turn}", std::process::id())
}

/// A figure of `perf`'s first result. It takes the first two processors that it may run on.
fn bellwire(what: &str, op: &str, size: u64, cpus: [usize; 2], figure: &str) -> Result<f64> {
    let ([first, second], name) = (cpus, name());
    let perf = format!("taskset -c {first},{second} target/release/examples/perf");
    let _listener = Listener::start(&mut command(&format!("{perf} --listen {name}")))?;
    let line = format!(
        "{perf} {what} --op {op} --size {size} --seconds {SECONDS} --json --connect {name}"
    );
    let document: Value = serde_json::from_str(&output(&mut command(&line))?)?;
    let result = document
        .pointer("/results/0")
        .context("perf gave no result")?;
    let found = result.pointer(figure).and_then(Value::as_f64);
    found.with_context(|| format!("no {figure} in {result}"))
}

/// Microseconds one way, and messages a second.
fn ucx(test: &str, size: u64, latency: bool, cpus: [usize; 2]) -> Result<(f64, f64)> {
    // As long as bellwire's, about.
    let count = match (latency, size) {
        (true, ..=64) => 500_000,
        (true, ..=4096) => 200_000,
        (true, _) => 20_000,
        (false, ..=64) => 2_000_000,
        (false, _) => 500_000,
    };
    let [first, second] = cpus;
    let listens = format!("ucx_perftest -c {second}");
    let _listener = Listener::start(command(&listens).env("UCX_TLS", "posix"))?;
    let line = format!("ucx_perftest 127.0.0.1 -t {test} -s {size} -n {count} -c {first} -f");
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

fn iceoryx(size: u64, cpus: [usize; 2]) -> Result<f64> {
    const RIVALS: &str = "target/rivals/release/rivals";
    let ([first, second], name) = (cpus, name());
    let answers = format!("taskset -c {second} {RIVALS} answer {name} {size}");
    let _listener = Listener::start(&mut command(&answers))?;
    let asks = format!("taskset -c {first} {RIVALS} ask {name} {size} --seconds {SECONDS}");
    let text = output(&mut command(&asks))?;
    let last = text.lines().last().unwrap_or_default();
    last.parse()
        .with_context(|| format!("rivals printed something else:\n{text}"))
}
