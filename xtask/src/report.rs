//! The end of a test run: the table of steps, the warnings, the sums.

use std::{fmt::Write, mem, time::Duration};

use crate::run::Outcome;

/// A step that is over.
pub struct Row {
    /// The step's name.
    pub step: &'static str,
    /// Wall-clock time that it took.
    pub took: Duration,
    /// Processor time, where it ran in a process of its own.
    pub cpu: Option<Duration>,
    /// How it ended.
    pub outcome: Outcome,
}

impl Row {
    /// Itself, and the steps that it has carried out on the way, which `named` knows by their names.
    pub fn with_parts(mut self, named: impl Fn(&str) -> &'static str) -> Vec<Self> {
        let mut rows = Vec::new();
        if let Outcome::Ran(run) = &mut self.outcome {
            rows.extend(mem::take(&mut run.parts).into_iter().map(|part| Self {
                step: named(&part.step),
                took: part.took,
                cpu: None,
                outcome: Outcome::Ran(part.run),
            }));
        }
        rows.insert(0, self);
        rows
    }
}

/// The sums over all steps: Rust tests one by one, any other step as one.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Totals {
    passed: u64,
    failed: u64,
    skipped: u64,
}

impl Totals {
    /// Sums up the steps.
    pub fn of(rows: &[Row]) -> Self {
        let mut totals = Self::default();
        for row in rows {
            match &row.outcome {
                Outcome::Skipped(_) => totals.skipped += 1,
                Outcome::Ran(run) => {
                    let tests = &run.tests;
                    let good = run.problems.is_empty();
                    let counts_as_one = tests.ran() + tests.ignored == 0;
                    totals.passed += tests.passed + u64::from(good && counts_as_one);
                    totals.failed += tests.failed().max(u64::from(!good));
                    totals.skipped += tests.ignored;
                }
            }
        }
        totals
    }

    /// Whether nothing failed.
    pub fn good(&self) -> bool {
        self.failed == 0
    }

    /// `N passed, N failed, N skipped`
    pub fn line(&self) -> String {
        format!(
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.skipped
        )
    }
}

/// The table step → time → processor time → result.
pub fn table(rows: &[Row]) -> String {
    let width = rows.iter().map(|row| row.step.len()).max().unwrap_or(0);
    let mut text = String::new();
    for row in rows {
        let (step, took) = (row.step, row.took.as_secs_f64());
        let result = result(&row.outcome);
        let cpu = match row.cpu {
            Some(cpu) => format!("{:7.1} s CPU", cpu.as_secs_f64()),
            None => " ".repeat(13),
        };
        writeln!(text, "{step:width$}  {took:7.1} s  {cpu}  {result}")
            .expect("writing to a String");
    }
    text
}

/// How long all took, and how long the processors were busy with it.
pub fn times(rows: &[Row], took: Duration) -> String {
    let cpu: Duration = rows.iter().filter_map(|row| row.cpu).sum();
    let (took, cpu) = (took.as_secs_f64(), cpu.as_secs_f64());
    format!("{took:.0} s in all, {cpu:.0} s of processors")
}

/// What did not run for want of something on the machine, one line each.
pub fn warnings(rows: &[Row]) -> String {
    let mut text = String::new();
    for row in rows {
        if let Outcome::Skipped(skip) = &row.outcome {
            writeln!(text, "WARNING: {}: {skip}", row.step).expect("writing to a String");
        }
    }
    text
}

/// Why steps failed, in the words of the programs that did.
pub fn excerpts(rows: &[Row]) -> String {
    let mut text = String::new();
    for row in rows {
        if let Outcome::Ran(run) = &row.outcome
            && run.excerpt.lines().next().is_some()
        {
            writeln!(text, "== why {} failed ==", row.step).expect("writing to a String");
            for line in run.excerpt.lines() {
                writeln!(text, "{line}").expect("writing to a String");
            }
        }
    }
    text
}

fn result(outcome: &Outcome) -> String {
    let run = match outcome {
        Outcome::Skipped(skip) => return skip.to_string(),
        Outcome::Ran(run) => run,
    };
    let mut text = if run.problems.is_empty() {
        "passed".to_owned()
    } else {
        let problems = run.problems.iter().chain(&run.tests.names);
        let problems: Vec<_> = problems.map(String::as_str).collect();
        format!("failed: {}", problems.join("; "))
    };
    let mut notes = run.notes.clone();
    if run.tests.ran() > 0 {
        let (passed, failed) = (run.tests.passed, run.tests.failed());
        notes.insert(0, format!("tests: {passed} passed, {failed} failed"));
    }
    if run.tests.not_supported > 0 {
        let rules = run.tests.not_supported;
        notes.push(format!("{rules} rules not supported by a provider"));
    }
    if !notes.is_empty() {
        write!(text, " ({})", notes.join("; ")).expect("writing to a String");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        libtest::Counts,
        run::{Part, Run, Skip},
    };

    fn row(step: &'static str, outcome: Outcome) -> Row {
        let took = Duration::from_millis(1250);
        let cpu = (step != "fmt").then_some(2 * took);
        Row {
            step,
            took,
            cpu,
            outcome,
        }
    }

    fn ran(tests: Counts, problems: &[&str]) -> Outcome {
        let problems = problems.iter().map(|&problem| problem.to_owned()).collect();
        Outcome::Ran(Run {
            tests,
            problems,
            ..Run::default()
        })
    }

    fn rows() -> Vec<Row> {
        let unit = Counts {
            passed: 7,
            failed: 2,
            ignored: 4,
            not_supported: 3,
            unfinished: 1,
            names: vec!["a::b".to_owned()],
            ..Counts::default()
        };
        let skip = Skip {
            reason: "no nightly".to_owned(),
            get: "rustup".to_owned(),
        };
        vec![
            row("fmt", ran(Counts::default(), &[])),
            row("clippy", ran(Counts::default(), &["one", "two"])),
            row("unit", ran(unit, &["3 failed"])),
            row("miri", Outcome::Skipped(skip)),
        ]
    }

    #[test]
    fn a_step_that_another_one_carried_out_has_a_row() {
        let part = Part {
            step: "inner".to_owned(),
            took: Duration::from_secs(1),
            run: Run {
                problems: vec!["broken".to_owned()],
                ..Run::default()
            },
        };
        let outer = Run {
            parts: vec![part],
            ..Run::default()
        };
        let rows = row("outer", Outcome::Ran(outer)).with_parts(|name| {
            assert_eq!(name, "inner");
            "inner"
        });
        let steps: Vec<_> = rows.iter().map(|row| row.step).collect();
        assert_eq!(steps, ["outer", "inner"]);
        assert_eq!(Totals::of(&rows).line(), "1 passed, 1 failed, 0 skipped");
    }

    #[test]
    fn tests_count_each_and_other_steps_once() {
        let totals = Totals::of(&rows());
        assert_eq!(totals.line(), "8 passed, 4 failed, 5 skipped");
        assert!(!totals.good());
    }

    #[test]
    fn passing_tests_of_a_step_that_failed_otherwise_still_count() {
        let tests = Counts {
            passed: 5,
            ..Counts::default()
        };
        let totals = Totals::of(&[row("doc", ran(tests, &["rustdoc warned"]))]);
        assert_eq!(totals.line(), "5 passed, 1 failed, 0 skipped");
    }

    #[test]
    fn the_table_says_what_became_of_each_step() {
        assert_eq!(
            table(&rows()),
            "\
fmt         1.2 s                 passed
clippy      1.2 s      2.5 s CPU  failed: one; two
unit        1.2 s      2.5 s CPU  failed: 3 failed; a::b (tests: 7 passed, 3 failed; 3 rules not supported by a provider)
miri        1.2 s      2.5 s CPU  could not run: no nightly; to get it: rustup
"
        );
    }

    #[test]
    fn times_are_summed() {
        let all = times(&rows(), Duration::from_secs(7));
        assert_eq!(all, "7 s in all, 8 s of processors");
    }

    #[test]
    fn only_what_the_machine_lacks_is_warned_of() {
        assert_eq!(
            warnings(&rows()),
            "WARNING: miri: could not run: no nightly; to get it: rustup\n"
        );
    }
}
