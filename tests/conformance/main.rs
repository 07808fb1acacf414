//! The conformance suite: what every provider of queue pairs has to do, one rule at a time.
//!
//! `cargo test -p bellwire-tests --test conformance -- rc::` runs the rules whose names contain `rc::`. A run of all
//! rules compares the verdicts with those that the tree keeps in `tests/data/conformance`. `cargo xtask conformance`
//! writes them, the full tables to `target/conformance`, and docs/conformance.md.
//!
//! `provider.rs` lists the providers, and what each of them lacks.

mod matrix;
mod pages;
mod provider;
mod rule;
mod rules;
mod summary;
mod support;

use libtest_mimic::{Arguments, Completion, Trial};
use matrix::{Matrix, Verdict};
use pages::Kept;
use provider::{Provider, providers};
use rule::Rule;
use std::process::ExitCode;
use std::sync::Arc;

fn main() -> ExitCode {
    let args = Arguments::from_args();
    let bless = bless();
    let whole = args.filter.is_none() && args.skip.is_empty() && !args.ignored && !args.bench;
    let only_summary = args.filter.as_deref() == Some(summary::NAME);
    if bless && !whole && !only_summary {
        eprintln!(
            "BELLWIRE_BLESS=1 writes the verdicts of a run of all rules: leave the filter out"
        );
        return ExitCode::FAILURE;
    }
    let providers = providers();
    let matrix = Arc::new(Matrix::new(rules::groups(), providers));
    let mut trials = Vec::new();
    for (at, group) in matrix.groups.iter().enumerate() {
        for of in 0..group.rules.len() {
            trials.extend(providers.iter().map(|provider| {
                let matrix = matrix.clone();
                let put = move || put(&matrix, &matrix.groups[at].rules[of], provider);
                Trial::ignorable_test(group.rules[of].name.clone(), put).with_kind(provider.name)
            }));
        }
    }
    trials.push(Trial::test("known_differences_are_of_rules", {
        let matrix = matrix.clone();
        move || known_differences_are_of_rules(&matrix)
    }));
    if !(whole && bless) {
        trials.push(Trial::test(summary::NAME, {
            let matrix = matrix.clone();
            move || Ok(summary::check(&matrix.groups, bless)?)
        }));
    }
    if whole && let Some(kept) = provider::kept() {
        let matrix = matrix.clone();
        // The last: when its turn comes, every rule has been put or is with another thread.
        trials.push(Trial::test("the_verdicts_are_fresh", move || {
            matrix.wait()?;
            match bless {
                true => write(&matrix, kept),
                false => Ok(kept.check(&matrix)?),
            }
        }));
    }
    let conclusion = libtest_mimic::run(&args, trials);
    if !args.list {
        print!("{}", matrix.table());
    }
    conclusion.exit_code()
}

fn known_differences_are_of_rules(matrix: &Matrix) -> Result<(), libtest_mimic::Failed> {
    let rules = matrix.groups.iter().flat_map(|group| &group.rules);
    let rules: Vec<_> = rules.map(|rule| rule.name.as_str()).collect();
    let found = provider::otherwise_of_no_rule(&rules);
    match found.is_empty() {
        true => Ok(()),
        false => Err(format!("no rule begins so: {}", found.join(", ")).into()),
    }
}

/// Writes what the tree keeps of a run. In the guest the tree is read-only: `cargo xtask conformance --verbs` takes the
/// verdicts over, and has the summary written.
fn write(matrix: &Matrix, kept: Kept) -> Result<(), libtest_mimic::Failed> {
    kept.write(matrix)?;
    match std::env::var_os("BELLWIRE_VM_WORK") {
        Some(_) => Ok(()),
        None => Ok(summary::check(&matrix.groups, true)?),
    }
}

fn bless() -> bool {
    std::env::var_os("BELLWIRE_BLESS").is_some_and(|value| value == "1")
}

fn put(
    matrix: &Matrix,
    rule: &Rule,
    provider: &'static Provider,
) -> Result<Completion, libtest_mimic::Failed> {
    if let Some(feature) = rule.lacking(provider) {
        matrix.note(provider, &rule.name, Verdict::NotSupported);
        return Ok(Completion::ignored_with(format!(
            "not supported: lacks {feature}"
        )));
    }
    if let Some(instead) = provider.otherwise(&rule.name) {
        matrix.note(provider, &rule.name, Verdict::Otherwise);
        return Ok(Completion::ignored_with(format!("otherwise: {instead}")));
    }
    let outcome = rule.judge(provider);
    let verdict = match outcome {
        Ok(()) => Verdict::Yes,
        Err(_) => Verdict::No,
    };
    matrix.note(provider, &rule.name, verdict);
    outcome?;
    Ok(Completion::Completed)
}
