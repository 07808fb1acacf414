//! Runs steps beside each other: each in a process of its own, two at a time, where neither disturbs the
//! other.

use std::{
    fs::{self, File},
    path::Path,
    process::Command,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

use super::{Company, Step};
use crate::{
    command::{stream_both, under},
    report::Row,
    run::{Outcome, Run},
};

/// Steps that run at the same time: most use two cores in part, and one at their ends.
const AT_ONCE: usize = 2;

/// How much a patient step goes behind others, as `nice` says it: it keeps a quarter of what both want.
const NICE: &str = "5";

/// Which of a list of steps run, and which have ended, by their places in it.
struct Schedule<'a> {
    steps: &'a [&'a Step],
    begun: Vec<bool>,
    ended: Vec<bool>,
}

impl<'a> Schedule<'a> {
    fn new(steps: &'a [&'a Step]) -> Self {
        Self {
            steps,
            begun: vec![false; steps.len()],
            ended: vec![false; steps.len()],
        }
    }

    fn running(&self) -> impl Iterator<Item = &'a Step> {
        let states = self.begun.iter().zip(&self.ended);
        let running = self.steps.iter().zip(states);
        running.filter_map(|(step, (begun, ended))| (*begun && !*ended).then_some(*step))
    }

    /// The first that may start now.
    fn next(&mut self) -> Option<usize> {
        let next =
            (0..self.steps.len()).find(|&at| !self.begun[at] && self.may_start(self.steps[at]))?;
        self.begun[next] = true;
        Some(next)
    }

    fn may_start(&self, step: &Step) -> bool {
        let left = |name: &str| {
            let mut all = self.steps.iter().zip(&self.ended);
            all.any(|(step, ended)| step.name == name && !ended)
        };
        let aside = |step: &Step| matches!(step.company, Company::Aside);
        let full = self.running().filter(|other| !aside(other)).count() >= AT_ONCE;
        if full && !aside(step) || step.after.iter().any(|name| left(name)) {
            return false;
        }
        // Those that want nobody beside them come when all others have ended, so that none waits for them.
        let others_left = || {
            let mut all = self.steps.iter().zip(&self.ended);
            all.any(|(step, ended)| !ended && !matches!(step.company, Company::Alone))
        };
        (self.running()).all(|other| get_along(step, other))
            && !(matches!(step.company, Company::Alone) && others_left())
    }

    fn ended(&mut self, at: usize) {
        self.ended[at] = true;
    }
}

/// Whether two steps may run beside each other.
fn get_along(one: &Step, other: &Step) -> bool {
    let builds_there = |folder: &&str| other.builds.contains(folder);
    let company = match (one.company, other.company) {
        (Company::Alone, _) | (_, Company::Alone) => false,
        (Company::Sensitive, company) | (company, Company::Sensitive) => {
            matches!(company, Company::Patient | Company::Aside)
        }
        _ => true,
    };
    company && !one.builds.iter().any(builds_there)
}

/// Runs all of them, each in a process that `start` makes of it, and says how each ended, in their order. What
/// they print gets their name before each line.
///
/// # Errors
/// There is no folder for their results.
pub fn run(steps: &[&Step], start: impl Fn(&Step, &Path) -> Command + Sync) -> Result<Vec<Row>> {
    let results = tempfile::tempdir()?;
    let (results, start) = (results.path(), &start);
    let mut schedule = Schedule::new(steps);
    let mut rows: Vec<Option<Row>> = steps.iter().map(|_| None).collect();
    let (over, ends) = mpsc::channel();
    thread::scope(|scope| {
        loop {
            while let Some(at) = schedule.next() {
                let (step, over) = (steps[at], over.clone());
                scope.spawn(move || {
                    let row = one(step, &results.join(step.name), start);
                    over.send((at, row)).expect("somebody waits for it");
                });
            }
            if schedule.running().next().is_none() {
                break;
            }
            let (at, row) = ends.recv().expect("a step that runs ends");
            rows[at] = Some(row);
            schedule.ended(at);
        }
    });
    let row = |row: Option<Row>| row.expect("all have run");
    Ok(rows.into_iter().map(row).collect())
}

/// Runs one in its process.
fn one(step: &Step, result: &Path, start: impl Fn(&Step, &Path) -> Command) -> Row {
    let mut process = start(step, result);
    if matches!(step.company, Company::Patient) {
        process = under(&format!("nice -n {NICE}"), &process);
    }
    let label = format!("{:>12} | ", step.name);
    let begun = Instant::now();
    let ended = stream_both(&mut process, &label, |_| (), |_| ());
    let took = begun.elapsed();
    let failed = |problem: String| {
        println!("{label}FAILED: {problem}");
        let problems = vec![problem];
        Outcome::Ran(Run {
            problems,
            ..Run::default()
        })
    };
    let outcome = match (&ended, read(result)) {
        (_, Ok(outcome)) => outcome,
        (Ok(ended), Err(error)) => {
            failed(format!("it left no result: {}: {error:#}", ended.status))
        }
        (Err(error), _) => failed(format!("{error:#}")),
    };
    Row {
        step: step.name,
        took,
        cpu: Some(ended.map_or(Duration::ZERO, |ended| ended.cpu)),
        outcome,
    }
}

/// Leaves the result of a step for the process that waits for it.
///
/// # Errors
/// It cannot be written.
pub fn leave(outcome: &Outcome, result: &Path) -> Result<()> {
    let file = File::create(result).with_context(|| result.display().to_string())?;
    Ok(serde_json::to_writer(file, outcome)?)
}

fn read(result: &Path) -> Result<Outcome> {
    let text = fs::read(result).with_context(|| result.display().to_string())?;
    Ok(serde_json::from_slice(&text)?)
}

#[cfg(test)]
mod tests {
    use super::{super::STEPS, *};
    use crate::steps::step;

    const fn named(name: &'static str) -> Step {
        step(name, "", |_| Ok(Run::default()))
    }

    fn names(schedule: &Schedule<'_>) -> Vec<&'static str> {
        schedule.running().map(|step| step.name).collect()
    }

    #[test]
    fn two_run_at_once_in_their_order() {
        let steps = ["a", "b", "c"].map(named);
        let steps: Vec<_> = steps.iter().collect();
        let mut schedule = Schedule::new(&steps);
        assert_eq!([(); 3].map(|()| schedule.next()), [Some(0), Some(1), None]);
        schedule.ended(1);
        assert_eq!(
            (schedule.next(), names(&schedule)),
            (Some(2), vec!["a", "c"])
        );
    }

    #[test]
    fn what_is_aside_does_not_count() {
        let steps = [
            named("a").company(Company::Aside),
            named("b"),
            named("c"),
            named("d").company(Company::Aside),
            named("e"),
            named("f").company(Company::Alone),
        ];
        let steps: Vec<_> = steps.iter().collect();
        let mut schedule = Schedule::new(&steps);
        let begun: Vec<_> = std::iter::from_fn(|| schedule.next()).collect();
        assert_eq!(begun, [0, 1, 2, 3]);
        schedule.ended(0);
        assert_eq!(schedule.next(), None);
        schedule.ended(1);
        assert_eq!((schedule.next(), schedule.next()), (Some(4), None));
        schedule.ended(2);
        schedule.ended(4);
        assert_eq!(schedule.next(), None, "the last waits for what is aside");
        schedule.ended(3);
        assert_eq!(schedule.next(), Some(5));
    }

    #[test]
    fn a_step_waits_for_those_that_it_comes_after() {
        let steps = [
            named("a"),
            named("b").after(&["a", "not among them"]),
            named("c"),
        ];
        let steps: Vec<_> = steps.iter().collect();
        let mut schedule = Schedule::new(&steps);
        assert_eq!((schedule.next(), schedule.next()), (Some(0), Some(2)));
        schedule.ended(2);
        assert_eq!(schedule.next(), None);
        schedule.ended(0);
        assert_eq!(schedule.next(), Some(1));
    }

    #[test]
    fn one_builds_in_a_folder_at_a_time() {
        let [a, b, c] = [&["x"][..], &["y", "x"], &["z"]];
        let steps = [
            named("a").builds(a),
            named("b").builds(b),
            named("c").builds(c),
        ];
        assert!(!get_along(&steps[0], &steps[1]));
        assert!(get_along(&steps[0], &steps[2]) && get_along(&steps[1], &steps[2]));
    }

    #[test]
    fn the_sensitive_have_patient_company_alone() {
        let sensitive = named("a").company(Company::Sensitive);
        for (company, fits) in [
            (Company::Patient, true),
            (Company::Any, false),
            (Company::Sensitive, false),
            (Company::Alone, false),
            (Company::Aside, true),
        ] {
            let other = named("b").company(company);
            assert_eq!(get_along(&sensitive, &other), fits);
            assert_eq!(get_along(&other, &sensitive), fits);
        }
    }

    #[test]
    fn those_alone_come_last() {
        let steps = [
            named("a").company(Company::Alone),
            named("b"),
            named("c").company(Company::Alone),
        ];
        let steps: Vec<_> = steps.iter().collect();
        let mut schedule = Schedule::new(&steps);
        assert_eq!((schedule.next(), schedule.next()), (Some(1), None));
        schedule.ended(1);
        assert_eq!((schedule.next(), schedule.next()), (Some(0), None));
        schedule.ended(0);
        assert_eq!((schedule.next(), schedule.next()), (Some(2), None));
    }

    /// Whichever of two ends first.
    #[test]
    fn every_step_gets_its_turn() {
        let steps: Vec<_> = STEPS.iter().collect();
        let known = |name: &str| STEPS.iter().any(|step| step.name == name);
        assert!(
            STEPS
                .iter()
                .flat_map(|step| step.after)
                .all(|name| known(name))
        );
        for ends_first in [0, 1] {
            let (mut schedule, mut running) = (Schedule::new(&steps), Vec::new());
            let mut count = 0;
            loop {
                running.extend(std::iter::from_fn(|| schedule.next()));
                if running.is_empty() {
                    break;
                }
                let aside = |at: &&usize| matches!(steps[**at].company, Company::Aside);
                assert!(running.iter().filter(|at| !aside(at)).count() <= AT_ONCE);
                schedule.ended(running.remove(ends_first.min(running.len() - 1)));
                count += 1;
            }
            assert_eq!(count, STEPS.len());
        }
    }

    #[test]
    fn fails_where_it_is_told() {
        assert!(std::env::var_os("BELLWIRE_TEST_STEP").is_none());
    }

    #[test]
    fn results_come_from_processes() {
        let steps = [
            named("good"),
            named("bad"),
            named("gone").company(Company::Patient),
        ];
        let steps: Vec<_> = steps.iter().collect();
        let process = |step: &Step, result: &Path| {
            let mut run = Run::default();
            if step.name == "bad" {
                run.problems.push("it is".to_owned());
            }
            if step.name != "gone" {
                leave(&Outcome::Ran(run), result).unwrap();
            }
            // As the command line has it: a program of this process.
            let mut shell = Command::new(format!("/proc/{}/exe", std::process::id()));
            shell.args([
                "--exact",
                "steps::schedule::tests::fails_where_it_is_told",
                "--nocapture",
            ]);
            shell.env("BELLWIRE_TEST_STEP", "fails");
            shell
        };
        let rows = super::run(&steps, process).unwrap();
        let problems = |row: &Row| match &row.outcome {
            Outcome::Ran(run) => run.problems.clone(),
            Outcome::Skipped(_) => vec!["skipped".to_owned()],
        };
        assert_eq!(
            rows.iter().map(|row| row.step).collect::<Vec<_>>(),
            ["good", "bad", "gone"]
        );
        assert!(problems(&rows[0]).is_empty());
        assert_eq!(problems(&rows[1]), ["it is"]);
        assert!(problems(&rows[2])[0].starts_with("it left no result: exit status: 101"));
        assert!(rows.iter().all(|row| row.cpu.is_some()));
    }
}
