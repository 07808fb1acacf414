//! One step under way: the commands that it ran, the tests they held, what went wrong.

use std::{
    fmt,
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::{
    command::{limited, shown, stream_both, unattended},
    excerpt::Excerpt,
    libtest::Counts,
};

/// With nobody there to interrupt it, a command that hangs must not take the later steps with it. Far more than
/// any takes, also beside another step that goes first.
const COMMAND_LIMIT: Duration = Duration::from_secs(3 * 3600);

/// How long a command took is reported from here on.
pub const WORTH_REPORTING: Duration = Duration::from_secs(5);

/// What a step has done so far. A command that fails is noted, and the step goes on.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Run {
    /// The Rust tests that its commands ran.
    pub tests: Counts,
    /// What went wrong; a step without problems has passed.
    pub problems: Vec<String>,
    /// What the reader of a passed step should still know.
    pub notes: Vec<String>,
    /// The lines that say why commands failed.
    pub excerpt: Excerpt,
    /// Other steps that it has carried out on the way, reported as themselves.
    pub parts: Vec<Part>,
}

/// A step that another one has carried out.
#[derive(Debug, Serialize, Deserialize)]
pub struct Part {
    /// Its name.
    pub step: String,
    /// How long it took.
    pub took: Duration,
    /// How it ended.
    pub run: Run,
}

impl Run {
    /// Runs a command, counts the tests that it reports, and notes a failure, and what it says in
    /// lines that begin with `report: `. Returns whether it succeeded.
    pub fn command(&mut self, command: &mut Command) -> bool {
        let line = shown(command);
        println!("$ {line}");
        let mut guarded = unattended().then(|| limited(command, COMMAND_LIMIT));
        let failed_before = self.tests.failed();
        let begun = Instant::now();
        let (mut excerpt, mut errors) = (Excerpt::default(), Excerpt::default());
        let ended = stream_both(
            guarded.as_mut().unwrap_or(command),
            "",
            |line| {
                self.read(line);
                excerpt.read(line);
            },
            |line| errors.read(line),
        );
        let took = begun.elapsed();
        if took > WORTH_REPORTING {
            let cpu = ended.as_ref().map_or(Duration::ZERO, |ended| ended.cpu);
            let (took, cpu) = (took.as_secs_f64(), cpu.as_secs_f64());
            println!("took {took:.1} s, {cpu:.1} s of processors: {line}");
        }
        let failed = self.tests.failed() - failed_before;
        match ended {
            Ok(ended) if ended.status.success() && failed == 0 => return true,
            Ok(_) if failed > 0 => self.problems.push(format!("{failed} failed in `{line}`")),
            Ok(ended) => self.problems.push(format!("`{line}`: {}", ended.status)),
            Err(error) => self.problems.push(format!("`{line}`: {error:#}")),
        }
        self.excerpt.add(errors);
        self.excerpt.add(excerpt);
        false
    }

    /// Reads a line that a command has printed.
    pub fn read(&mut self, line: &str) {
        self.tests.read(line);
        if let Some(note) = line.trim_end().strip_prefix("report: ") {
            self.notes.push(note.to_owned());
        }
    }

    /// Runs commands at the same time, each as [`command`](Self::command) does: for those that use one
    /// core.
    pub fn side_by_side(&mut self, commands: &mut [Command]) {
        let runs = thread::scope(|scope| {
            let start = |command| {
                scope.spawn(move || {
                    let mut run = Self::default();
                    run.command(command);
                    run.must_have_found_tests();
                    run
                })
            };
            let started: Vec<_> = commands.iter_mut().map(start).collect();
            (started.into_iter())
                .map(|one| one.join().expect("a command's thread does not panic"))
                .collect::<Vec<_>>()
        });
        for run in runs {
            self.add(run);
        }
    }

    /// Does the same for each item, as many at a time as there are cores, in a run of its own.
    ///
    /// # Errors
    /// The first of `work`'s; the rest of that core's items are left out.
    pub fn on_each_core<T: Sync>(
        &mut self,
        items: &[T],
        work: impl Fn(&T, &mut Self) -> Result<()> + Sync,
    ) -> Result<()> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let next = AtomicUsize::new(0);
        let on_one = || {
            let mut run = Self::default();
            // Relaxed: only the number counts.
            while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                work(item, &mut run)?;
            }
            Ok(run)
        };
        let runs: Vec<Result<Self>> = thread::scope(|scope| {
            let started: Vec<_> = (0..cores).map(|_| scope.spawn(on_one)).collect();
            (started.into_iter())
                .map(|one| one.join().expect("the work does not panic"))
                .collect()
        });
        for run in runs {
            self.add(run?);
        }
        Ok(())
    }

    fn add(&mut self, run: Self) {
        self.tests.add(run.tests);
        self.problems.extend(run.problems);
        self.notes.extend(run.notes);
        self.excerpt.add(run.excerpt);
    }

    /// Makes "no test ran" a failure: a filter or a path that matches nothing proves nothing.
    pub fn must_have_found_tests(&mut self) {
        if self.tests.ran() == 0 && self.problems.is_empty() {
            self.problems
                .push("no test was found, and there must be some".to_owned());
        }
    }
}

/// Why a step does not run. Returned as an error, so that `?` ends the step.
#[derive(Debug, Serialize, Deserialize)]
pub struct Skip {
    /// What is lacking.
    pub reason: String,
    /// How to get it.
    pub get: String,
}

impl Skip {
    /// The machine lacks something that the step needs.
    pub fn lacking(reason: impl Into<String>, get: impl Into<String>) -> anyhow::Error {
        let (reason, get) = (reason.into(), get.into());
        Self { reason, get }.into()
    }
}

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reason, get } = self;
        write!(f, "could not run: {reason}; to get it: {get}")
    }
}

impl std::error::Error for Skip {}

/// How a step ended.
#[derive(Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// It ran, and its commands may have failed.
    Ran(Run),
    /// It did not run.
    Skipped(Skip),
}

impl From<Result<Run>> for Outcome {
    fn from(result: Result<Run>) -> Self {
        match result.map_err(|error| error.downcast::<Skip>()) {
            Ok(run) => Self::Ran(run),
            Err(Ok(skip)) => Self::Skipped(skip),
            Err(Err(error)) => Self::Ran(Run {
                problems: vec![format!("{error:#}")],
                ..Run::default()
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::command;
    use anyhow::Context;

    fn shell(script: &str) -> Command {
        let mut shell = command("sh -c");
        shell.arg(script);
        shell
    }

    #[test]
    fn failures_are_noted_and_the_run_goes_on() {
        let mut run = Run::default();
        assert!(!run.command(&mut shell("exit 101")));
        assert!(!run.command(&mut command("/no/such/program")));
        assert!(run.command(&mut command("true")));
        assert_eq!(run.problems.len(), 2);
    }

    #[test]
    fn what_a_command_reports_is_noted() {
        let mut run = Run::default();
        assert!(run.command(&mut shell(
            "echo; echo report: 7 schedules; echo a report: no"
        )));
        assert_eq!(run.notes, ["7 schedules"]);
    }

    #[test]
    fn failed_tests_count_whatever_the_exit_status() {
        let mut run = Run::default();
        let line = "test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured";
        assert!(!run.command(&mut shell(&format!("echo running 6 tests; echo '{line}'"))));
        assert_eq!((run.tests.passed, run.tests.failed()), (4, 2));
        assert!(run.problems[0].starts_with("2 failed in"));
        assert_eq!(run.excerpt.lines().count(), 0);
    }

    #[test]
    fn why_a_command_failed_is_kept() {
        let mut run = Run::default();
        let panic = "echo \"thread 'x' panicked at a.rs:1:2:\" >&2; echo why >&2; exit";
        assert!(run.command(&mut shell(&format!("{panic} 0"))));
        assert_eq!(run.excerpt.lines().count(), 0);
        assert!(!run.command(&mut shell(&format!("{panic} 101"))));
        let lines: Vec<_> = run.excerpt.lines().collect();
        assert_eq!(lines, ["thread 'x' panicked at a.rs:1:2:", "why"]);
    }

    #[test]
    fn finding_no_test_is_a_problem() {
        let mut run = Run::default();
        assert!(run.command(&mut shell(
            "echo running 0 tests; echo 'test result: ok. 0 passed; 0 failed; 0 ignored'"
        )));
        run.must_have_found_tests();
        assert_eq!(run.problems.len(), 1);
    }

    #[test]
    fn commands_side_by_side_are_summed() {
        let mut run = Run::default();
        let tests = |passed: u32| {
            shell(&format!(
                "echo running {passed} tests; \
                 echo 'test result: ok. {passed} passed; 0 failed; 0 ignored'; echo report: {passed}"
            ))
        };
        run.side_by_side(&mut [tests(3), shell("exit 3"), tests(4), command("true")]);
        assert_eq!((run.tests.passed, run.tests.failed()), (7, 0));
        assert_eq!(run.notes, ["3", "4"]);
        assert_eq!(run.problems.len(), 2, "{:?}", run.problems);
        assert!(run.problems[0].contains("exit"), "{:?}", run.problems);
        assert!(run.problems[1].starts_with("no test"), "{:?}", run.problems);
    }

    #[test]
    fn each_item_is_done_once() {
        let mut run = Run::default();
        let items: Vec<u32> = (0..20).collect();
        let done = run.on_each_core(&items, |item, run| {
            run.command(&mut shell(&format!(
                "echo report: {item}; exit {}",
                item % 2
            )));
            Ok(())
        });
        done.unwrap();
        run.notes.sort_by_key(|note| note.parse::<u32>().unwrap());
        assert!(
            run.notes
                .iter()
                .eq(items.iter().map(u32::to_string).collect::<Vec<_>>().iter())
        );
        assert_eq!(run.problems.len(), 10);
        let failed = run.on_each_core(&items, |item, _| {
            (*item != 7).then_some(()).context("seven")
        });
        assert!(failed.is_err());
    }

    #[test]
    fn a_skip_is_distinguished_from_an_error() {
        let skip: Result<Run> = Err(Skip::lacking("nothing", "buy it"));
        assert!(matches!(Outcome::from(skip), Outcome::Skipped(_)));
        let error: Result<Run> = Err(anyhow::anyhow!("broken"));
        assert!(matches!(Outcome::from(error), Outcome::Ran(run) if run.problems == ["broken"]));
    }
}
