//! The tables of `docs/bounds.md`: each row states what the code has, and names a test that there is.

use crate::Area;
use std::fs;
use std::path::{Path, PathBuf};

pub const AREA: Area = Area {
    roles: &[],
    tests: &[("bounds::the_tables_are_true", tables)],
};

const PAGE: &str = include_str!("../../docs/bounds.md");

/// The columns of the tables.
const HEAD: &str =
    "| resource | share of a peer | bound of the sum | at the bound | constants | test |";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// What is between backquotes.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

fn source(path: &str) -> Result<String, String> {
    let text = fs::read_to_string(root().join(path));
    let text = text.map_err(|error| format!("{path}: {error}"))?;
    // As it reads, however it is broken into lines.
    Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Whether the code has this: a field as it is, or a constant with this value, whatever its type.
fn has(code: &str, stated: &str) -> bool {
    let Some((name, value)) = stated.split_once(" = ") else {
        return code.contains(stated);
    };
    let name = name.split(':').next().unwrap_or(name);
    let mut constants = code.split("const ").skip(1);
    constants.any(|constant| {
        let definition = constant.split(';').next().unwrap_or_default();
        let of_it = definition
            .strip_prefix(name)
            .is_some_and(|rest| rest.starts_with(':'));
        of_it && definition.ends_with(&format!("= {value}"))
    })
}

/// What is wrong about a row.
fn check(row: &str) -> Result<(), String> {
    let row = row.strip_prefix('|').and_then(|row| row.strip_suffix('|'));
    let cells: Vec<&str> = row.unwrap_or_default().split('|').map(str::trim).collect();
    let [resource, share, bound, then, constants, test] = cells[..] else {
        return Err(format!("{} columns", cells.len()));
    };
    if resource.is_empty() || then.is_empty() || share.is_empty() && bound.is_empty() {
        return Err("it states no bound".to_owned());
    }
    let (mut path, mut stated) = ("", 0);
    for word in quoted(constants) {
        if word.ends_with(".rs") {
            path = word;
        } else if has(&source(path)?, word) {
            stated += 1;
        } else {
            return Err(format!("{path} has no `{word}`"));
        }
    }
    let tested = quoted(test);
    let [path, name] = tested[..] else {
        return Err("it names no test".to_owned());
    };
    match (stated, source(path)?.contains(&format!("fn {name}("))) {
        (0, _) => Err("it names no constant".to_owned()),
        (_, false) => Err(format!("{path} has no test {name}")),
        (_, true) => Ok(()),
    }
}

fn tables() {
    let mut rows = 0;
    let mut wrong = Vec::new();
    for table in PAGE.split(HEAD).skip(1) {
        let lines = table
            .lines()
            .skip(2)
            .take_while(|line| line.starts_with('|'));
        for row in lines {
            rows += 1;
            wrong.extend(check(row).err().map(|why| format!("{why}: {row}")));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(rows >= 20, "{rows} rows");
    // What is not stated is noticed.
    assert!(!has("const A: usize = 64;", "A = 65") && has("const A: usize = 64;", "A = 64"));
}
