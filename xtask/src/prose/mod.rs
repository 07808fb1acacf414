//! Plain English, where a person reads: spelling, and constructions that a reader has to read twice.
//!
//! The pages have none of them. In other files each rule has a number of places that are left; it may only fall.

mod rules;
mod spelling;
mod text;

use std::fs;

use anyhow::{Context as _, Result};

use self::{
    rules::{Compiled, RULES, Rule},
    text::{Kind, paragraphs},
};
use crate::{
    command::{GIT, output_of},
    run::{Run, Skip},
};

/// Generated declarations, recorded data, and examples of wrong sentences.
const NOT_READ: [&str; 3] = ["hw/sys/src/", "tests/data/", "xtask/src/prose/"];

/// Places that break a rule.
struct Broken {
    path: String,
    line: usize,
    what: String,
}

/// Reads every file that git has.
///
/// # Errors
/// Git sees no checkout; a file cannot be read.
pub fn prose() -> Result<Run> {
    let Some(files) = output_of(&format!("{GIT} ls-files")) else {
        return Err(Skip::lacking(
            "git sees no checkout here",
            "install git, and test in a clone",
        ));
    };
    let rules = RULES.each_ref().map(|rule| rule.compiled());
    let mut broken = RULES.each_ref().map(|_| Vec::new());
    let mut misspelt = Vec::new();
    for path in files.lines() {
        let Some(kind) = Kind::of(path).filter(|_| !is_in(path, &NOT_READ)) else {
            continue;
        };
        let file = fs::read_to_string(path).with_context(|| path.to_owned())?;
        check(path, kind, &file, &rules, &mut broken);
        for (line, text) in (1..).zip(file.lines()) {
            misspelt.extend(spelling::misspelt(text).map(|what| Broken {
                path: path.to_owned(),
                line,
                what,
            }));
        }
    }
    let mut run = Run::default();
    judge(&rules::SPELLING, misspelt, &mut run);
    for (rule, broken) in RULES.iter().zip(broken) {
        judge(rule, broken, &mut run);
    }
    Ok(run)
}

fn is_in(path: &str, places: &[&str]) -> bool {
    places.iter().any(|place| path.starts_with(place))
}

fn check<const N: usize>(
    path: &str,
    kind: Kind,
    file: &str,
    rules: &[Compiled; N],
    broken: &mut [Vec<Broken>; N],
) {
    let at = |line| {
        move |what| Broken {
            path: path.to_owned(),
            line,
            what,
        }
    };
    let paragraphs = paragraphs(kind, file);
    for (rule, broken) in rules.iter().zip(broken) {
        for paragraph in &paragraphs {
            let found = rule.in_text(kind, &paragraph.text);
            broken.extend(found.into_iter().map(at(paragraph.line)));
        }
        if path.ends_with(".rs") {
            for (line, text) in (1..).zip(file.lines()) {
                broken.extend(rule.in_code(text).into_iter().map(at(line)));
            }
        }
    }
}

/// Holds the places against the number that may be left, and shows the places that have to go.
fn judge(rule: &Rule, broken: Vec<Broken>, run: &mut Run) {
    let Rule {
        name,
        instead,
        left,
        ..
    } = *rule;
    let show = |places: &[Broken]| {
        for Broken { path, line, what } in places {
            println!("{path}:{line}: {name}: {what}");
        }
    };
    let (clean, rest): (Vec<_>, Vec<_>) =
        (broken.into_iter()).partition(|place| is_in(&place.path, rule.clean));
    if !clean.is_empty() {
        show(&clean);
        let count = clean.len();
        let problem = format!("{name}: {count} places in files that have none; {instead}");
        run.problems.push(problem);
    }
    let count = rest.len();
    println!("{name}: {count} left");
    if count > left {
        show(&rest);
        let problem = format!("{name}: {count} places, and {left} may be left; {instead}");
        run.problems.push(problem);
    } else if count < left {
        let note = format!("{name}: {count} left; set that number in xtask/src/prose/rules.rs");
        run.notes.push(note);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(paths: &[&str]) -> Vec<Broken> {
        let at = |path: &&str| Broken {
            path: (*path).to_owned(),
            line: 1,
            what: String::new(),
        };
        paths.iter().map(at).collect()
    }

    #[test]
    fn numbers_may_only_fall() {
        let rule = Rule {
            clean: &["docs/"],
            left: 1,
            ..rules::SPELLING
        };
        let judged = |paths: &[&str]| {
            let mut run = Run::default();
            judge(&rule, broken(paths), &mut run);
            (run.problems.len(), run.notes.len())
        };
        assert_eq!(judged(&["a"]), (0, 0));
        assert_eq!(judged(&[]), (0, 1));
        assert_eq!(judged(&["a", "b"]), (1, 0));
        assert_eq!(judged(&["a", "docs/b"]), (1, 0));
    }
}
