//! The conformance suite: what every provider of queue pairs has to do, one rule at a time, and a
//! page that says which provider does what.
//!
//! `cargo test -p bellwire-tests --test conformance -- rc::` puts the rules whose names have `rc::`
//! in them; the page is checked when all are put. `cargo xtask conformance` writes it.
//!
//! `provider.rs` lists the providers, and what each of them lacks.

mod matrix;
mod provider;
mod rule;
mod rules;
mod support;

use libtest_mimic::{Arguments, Completion, Trial};
use matrix::{Matrix, Verdict};
use provider::{Provider, providers};
use rule::Rule;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

fn main() -> ExitCode {
    let args = Arguments::from_args();
    let bless = bless();
    let whole = args.filter.is_none() && args.skip.is_empty() && !args.ignored && !args.bench;
    if bless && !whole {
        eprintln!("BELLWIRE_BLESS=1 writes the page of a whole run: leave the filter out");
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
    if whole && let Some((name, renew)) = provider::page() {
        let matrix = matrix.clone();
        let page = page(name);
        // The last: when its turn comes, every rule has been put or is with another thread.
        trials.push(Trial::test("the_page_is_fresh", move || {
            Ok(matrix.check_page(&page, renew, bless)?)
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

/// Where the verdicts are kept. The guest of `cargo xtask vm` writes them into its own folder.
fn page(name: &str) -> PathBuf {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    match std::env::var_os("BELLWIRE_VM_WORK") {
        Some(work) if bless() => Path::new(&work).join(name),
        _ => docs.join(name),
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
