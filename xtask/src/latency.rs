//! Times of messages between two processes on a device of libibverbs: bellwire's perf beside
//! rdma-core's perftest, in turns, in one guest.

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::{
    command::command,
    vm::{Guest, Status},
    workspace::Workspace,
};

/// In each of them everything is measured once, so that what disturbs the guest for a while disturbs
/// all alike.
const ROUNDS: usize = 5;

const ITERATIONS: u32 = 500;

/// The operations as the script has them one after the other, and perftest's programs.
const OPERATIONS: [(&str, &str); 3] = [
    ("WRITE", "ib_write_lat"),
    ("READ", "ib_read_lat"),
    ("SEND", "ib_send_lat"),
];

/// Measures on the device, and gives the table. `perf` has been built.
///
/// # Errors
/// A program that failed, or printed something else.
pub fn latency(workspace: &Workspace, device: &str, index: &str, address: &str) -> Result<String> {
    let mut script = command("sh xtask/src/vm/latency.sh");
    script
        .arg(workspace.target("release/examples/perf"))
        .args([ITERATIONS.to_string(), ROUNDS.to_string()])
        .args([device, index, address]);
    let mut said = Said::default();
    let statuses = Guest::default().run(workspace, &[script], |line| said.read(line))?;
    ensure!(statuses == [Status(0)], "a program failed, see above");
    said.table(device)
}

/// Microseconds of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Times {
    least: f64,
    median: f64,
}

/// What the programs have printed, in the order of their runs.
#[derive(Default)]
struct Said {
    document: String,
    ours: Vec<Times>,
    theirs: Vec<Times>,
}

impl Said {
    fn read(&mut self, line: &str) {
        // The document begins and ends with lines of their own.
        if line.starts_with('{') || !self.document.is_empty() {
            self.document += line;
        }
        if line.starts_with('}') {
            self.ours.extend(perf(&std::mem::take(&mut self.document)));
        }
        self.theirs.extend(perftest(line));
    }

    fn table(&self, device: &str) -> Result<String> {
        let runs = ROUNDS * OPERATIONS.len();
        let complete = self.ours.len() == runs && self.theirs.len() == runs;
        ensure!(complete, "the programs printed something else");
        let mut text = format!("| µs, 8 bytes, on {device} | perftest | perf lat | ratio |\n");
        text += "|---|---|---|---|\n";
        for (at, (name, program)) in OPERATIONS.iter().enumerate() {
            let of = |times: &[Times]| calmest(times.iter().skip(at).step_by(OPERATIONS.len()));
            let (ours, theirs) = (of(&self.ours), of(&self.theirs));
            for (what, ours, theirs) in [
                ("least", ours.least, theirs.least),
                ("median", ours.median, theirs.median),
            ] {
                let ratio = ours / theirs;
                text += &format!(
                    "| {name}, {program}: {what} | {theirs:.1} | {ours:.1} | {ratio:.2} |\n"
                );
            }
        }
        Ok(text)
    }
}

/// The best of all rounds. In others the scheduler is measured; what could not be is infinite.
fn calmest<'a>(times: impl Iterator<Item = &'a Times>) -> Times {
    let none = Times {
        least: f64::INFINITY,
        median: f64::INFINITY,
    };
    times.fold(none, |best, times| Times {
        least: best.least.min(times.least),
        median: best.median.min(times.median),
    })
}

/// Those of a document of perf.
fn perf(document: &str) -> Option<Times> {
    let document: Value = serde_json::from_str(document).ok()?;
    let single = document.pointer("/results/0/latency/single")?;
    let microseconds = |name| Some(single.get(name)?.as_f64()? / 1e3);
    Some(Times {
        least: microseconds("min")?,
        median: microseconds("median")?,
    })
}

/// Those of a line of perftest: bytes, iterations, least, most, typical (it is the median) and average
/// time, deviation, and two percentiles.
fn perftest(line: &str) -> Option<Times> {
    let figures: Vec<f64> = (line.split_whitespace())
        .map(|word| word.parse().ok())
        .collect::<Option<_>>()?;
    match figures[..] {
        [_, iterations, least, _, median, _, _, _, _] if iterations == f64::from(ITERATIONS) => {
            Some(Times { least, median })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_measured_is_left_out() {
        let broken = perftest(&format!("8 {ITERATIONS} inf inf inf inf -nan inf inf"));
        let good = perftest(&format!("8 {ITERATIONS} 2 9 3 4 5 6 7"));
        assert_eq!(calmest([broken, good].iter().flatten()), good.unwrap());
    }

    #[test]
    fn the_figures_of_both_are_found() {
        let mut said = Said::default();
        for run in 0..ROUNDS * OPERATIONS.len() {
            said.read("server: ib_write_lat\n");
            let single = format!("\"min\": 9000.0, \"median\": {}", 12_000 + run);
            said.read("{\n");
            said.read(&format!(
                "  \"results\": [{{ \"latency\": {{ \"single\": {{ {single} }} }} }}]\n"
            ));
            said.read("}\n");
            said.read(" #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]\n");
            said.read(&format!(
                " 8 {ITERATIONS}  8.52  35.81  10.00  \t 10.25  \t1.0\t\t12.3 \t 31.2\n"
            ));
        }
        let table = said.table("rxe0").expect("all are there");
        for row in [
            "| READ, ib_read_lat: least | 8.5 | 9.0 | 1.06 |",
            "| READ, ib_read_lat: median | 10.0 | 12.0 | 1.20 |",
        ] {
            assert!(table.contains(row), "{table}");
        }
        said.read(&format!(" 8 {ITERATIONS} 1 2 3 4 5 6 7\n"));
        assert!(said.table("rxe0").is_err(), "one too many");
    }
}
