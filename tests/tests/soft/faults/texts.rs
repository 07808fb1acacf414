//! The texts of errors, as their sources have them: each literal that says what failed and what to do.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{fs, io};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
/// Crates whose errors reach programs.
const CRATES: [&str; 6] = [
    "core/src",
    "hw/memory/src",
    "hw/provider/src",
    "hw/verbs/src",
    "hw/bellwire/src",
    "ffi-c/src",
];

/// The Rust files below a folder, without those of tests, in order.
fn files(folder: &Path, to: &mut Vec<PathBuf>) -> io::Result<()> {
    let entries = fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
    let mut entries: Vec<PathBuf> = entries.collect::<io::Result<_>>()?;
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        match path.is_dir() {
            true if name != "tests" => files(&path, to)?,
            false if name.ends_with(".rs") && name != "tests.rs" => to.push(path),
            _ => {}
        }
    }
    Ok(())
}

/// The source without comments and its own tests.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let text = text
        .split("\n#[cfg(test)]\nmod ")
        .next()
        .unwrap_or_default();
    let text = text.split("\n#[cfg(all(test").next().unwrap_or_default();
    let lines = text.lines();
    let code = lines.filter(|line| !line.trim_start().starts_with("//"));
    code.collect::<Vec<_>>().join("\n")
}

/// The string literal that begins at the start of `text`, as the compiler reads it, and what follows it.
fn literal(text: &str) -> Option<(String, &str)> {
    let mut rest = text.strip_prefix('"')?;
    let mut value = String::new();
    loop {
        let mut chars = rest.chars();
        match chars.next()? {
            '"' => return Some((value, chars.as_str())),
            '\\' => match chars.next()? {
                '\n' => {
                    rest = chars.as_str().trim_start();
                    continue;
                }
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
        rest = chars.as_str();
    }
}

/// The literals of a source, each with the code before it.
fn literals(code: &str) -> Vec<(&str, String)> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(at) = rest.find('"') {
        let (before, text) = rest.split_at(at);
        // A character, not a text.
        if before.ends_with('\'') {
            rest = &text[1..];
            continue;
        }
        let Some((value, after)) = literal(text) else {
            break;
        };
        found.push((before, value));
        rest = after;
    }
    found
}

/// Whether a literal is more than a name.
fn is_text(value: &str) -> bool {
    value.split_whitespace().count() >= 3
}

/// Whether a file has an error whose texts are all its literals.
fn has_error(code: &str) -> bool {
    let displays = code.match_indices("fmt::Display for ");
    let mut names = displays.map(|(at, front)| {
        let name = &code[at + front.len()..];
        &name[..name.find(|c: char| !c.is_alphanumeric()).unwrap_or(0)]
    });
    code.contains("thiserror::Error")
        || names.any(|name| {
            name.ends_with("Error") || ["Refused", "NoLink", "Cause", "Advice"].contains(&name)
        })
}

/// What the code before a literal makes of it in a file that has other literals, too.
fn wrapped(before: &str, value: &str) -> Option<String> {
    let before = before.trim_end();
    let before = before.strip_suffix("format!(").unwrap_or(before).trim_end();
    let refused = before.ends_with(',')
        && before
            .rsplit_once("Failure::new(")
            .is_some_and(|(_, code)| code.trim_start().starts_with("BW_E"));
    match () {
        () if refused => Some(value.to_owned()),
        () if before.ends_with("instead:") => Some(format!("the device cannot …: {value}")),
        () => None,
    }
}

/// The texts of each file.
pub fn texts(to: &mut String) {
    to.push_str(
        "## Texts of errors\n\n\
         What calls print that fail (`Display` in Rust, `bw_last_error` in C), by the file that has them. \
         Braces are filled in. Each says what to do; an error of the system that it ends with is among the \
         error numbers above.\n\n",
    );
    for folder in CRATES {
        let mut paths = Vec::new();
        files(&Path::new(ROOT).join(folder), &mut paths).unwrap();
        for path in paths {
            let code = code(&path);
            let all = has_error(&code);
            let texts = literals(&code).into_iter().filter_map(|(before, value)| {
                let panics = ["expect(", "panic!("]
                    .iter()
                    .any(|call| before.ends_with(call));
                let text = match all && !panics {
                    true => Some(value.clone()),
                    false => wrapped(before, &value),
                };
                text.filter(|_| is_text(&value))
            });
            let mut texts: Vec<String> = texts.collect();
            texts.dedup();
            if texts.is_empty() {
                continue;
            }
            let name = path.strip_prefix(ROOT).unwrap().display();
            write!(to, "`{name}`:\n\n").unwrap();
            for text in texts {
                writeln!(
                    to,
                    "- {}",
                    text.trim().trim_start_matches([';', ',', ':', ' '])
                )
                .unwrap();
            }
            to.push('\n');
        }
    }
}

/// The result codes of C: number, name, and the text of `bw_strerror`.
pub fn codes(to: &mut String) {
    let code = code(&Path::new(ROOT).join("ffi-c/src/code.rs"));
    to.push_str(
        "## Result codes of C\n\n\
         `bw_error`: `bw_error_name` returns the name of a code, `bw_strerror` the text. Of a call that is \
         not on the data path, `bw_last_error` says more.\n\n| code | text |\n|---|---|\n",
    );
    let texts = literals(&code);
    for (front, rest) in code.match_indices(" = ").map(|(at, _)| code.split_at(at)) {
        let name = front
            .rsplit_once(char::is_whitespace)
            .map_or(front, |(_, name)| name);
        let number = rest[3..].split(',').next().unwrap_or_default();
        let (true, Ok(number)) = (name.starts_with("BW_"), number.parse::<i32>()) else {
            continue;
        };
        let arm = |before: &str| {
            let before = before.trim_end().trim_end_matches('c').trim_end();
            let before = before.trim_end_matches('{').trim_end();
            before.strip_suffix("=>").is_some_and(|arm| {
                arm.trim_end()
                    .rsplit_once(char::is_whitespace)
                    .map(|(_, last)| last)
                    == Some(name)
            })
        };
        let text = texts.iter().find(|(before, _)| arm(before));
        let (_, text) = text.unwrap_or_else(|| panic!("{name} has no text"));
        writeln!(to, "| {name} ({number}) | {text} |").unwrap();
    }
    to.push('\n');
}
