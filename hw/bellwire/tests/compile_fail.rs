//! What safe Rust must not let through: each program in `compile_fail/` is refused by the compiler, where
//! a line ends in `//~` and for the reason that stands behind it: the number of an error, or the text of
//! one that has none.
//!
//! trybuild compares whole messages, which change from one compiler to the next. So it only writes down
//! here what the compiler says, into a copy of each program's folder; reason and line are compared.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

/// Where the copies are, for the process that compiles them.
const COPIES: &str = "BELLWIRE_TEST_COMPILE_FAIL";

#[test]
fn programs_that_must_not_compile_do_not() {
    if let Some(copies) = env::var_os(COPIES) {
        return trybuild::TestCases::new().compile_fail(Path::new(&copies).join("*.rs"));
    }
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compile_fail");
    let copies = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut names = Vec::new();
    for entry in fs::read_dir(programs).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_owned();
        fs::copy(&path, copies.path().join(&name)).unwrap();
        names.push(name);
    }
    assert!(names.len() > 8, "programs are missing: {names:?}");

    let mut compile = Command::new(env::current_exe().unwrap());
    compile
        .args(["--exact", "programs_that_must_not_compile_do_not"])
        .env(COPIES, copies.path())
        .env("TRYBUILD", "overwrite");
    let said = compile.output().unwrap();
    let said = String::from_utf8_lossy(&said.stdout) + String::from_utf8_lossy(&said.stderr);
    let mut wrong = Vec::new();
    for name in names {
        let program = copies.path().join(name);
        let text = fs::read_to_string(&program).unwrap();
        let Ok(messages) = fs::read_to_string(program.with_extension("stderr")) else {
            wrong.push(format!("{} compiles", program.display()));
            continue;
        };
        let (expected, found) = (expected(&text), found(&messages));
        assert!(!expected.is_empty(), "{}: why?", program.display());
        if expected != found {
            wrong.push(format!(
                "{messages}\n{}: expected {expected:?}, found {found:?}",
                program.display()
            ));
        }
    }
    assert!(wrong.is_empty(), "{said}\n{}", wrong.join("\n"));
}

/// Lines, and why each is refused, as the program has it.
fn expected(text: &str) -> BTreeSet<(usize, String)> {
    (1..)
        .zip(text.lines())
        .filter_map(|(line, text)| Some((line, text.split_once("//~ ")?.1.trim().to_owned())))
        .collect()
}

/// The same, as the compiler has it: `error[E0499]: text`, or without a number, and below it
/// ` --> path:line:column`.
fn found(messages: &str) -> BTreeSet<(usize, String)> {
    let mut reason = None;
    let mut all = BTreeSet::new();
    for message in messages.lines() {
        if let Some(error) = message.strip_prefix("error") {
            reason = match error.strip_prefix('[') {
                Some(numbered) => numbered.split_once(']').map(|(number, _)| number),
                None => error.strip_prefix(": "),
            };
        } else if let Some((_, place)) = message.split_once("--> ")
            && let Some(reason) = reason.take()
        {
            let line = place.rsplit(':').nth(1).and_then(|line| line.parse().ok());
            all.insert((line.expect("path:line:column"), reason.to_owned()));
        }
    }
    all
}
