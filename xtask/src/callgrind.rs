//! Instructions that a program takes within some of its functions, counted by Valgrind.

use std::process::Command;

use anyhow::{Context, Result};

use crate::command::command;

/// Instructions within the functions whose names match `functions`, those that they call included.
/// `program` adds the program to run, its arguments and environment.
///
/// # Errors
/// Valgrind cannot be started, or said something else.
pub fn instructions(functions: &str, program: impl FnOnce(&mut Command)) -> Result<u64> {
    total(|valgrind| {
        valgrind.arg(format!("--toggle-collect={functions}"));
        program(valgrind);
    })
}

/// All instructions of a program. `program` adds it, its arguments and environment.
///
/// # Errors
/// As [`instructions`].
pub fn total(program: impl FnOnce(&mut Command)) -> Result<u64> {
    let mut valgrind = command("valgrind --tool=callgrind --callgrind-out-file=/dev/null");
    valgrind.arg("--fair-sched=yes");
    program(&mut valgrind);
    let said = valgrind.output().context("cannot start valgrind")?;
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    collected(&said).with_context(|| format!("valgrind said: {said}"))
}

/// What Valgrind says that it collected.
fn collected(said: &str) -> Option<u64> {
    let line = said.lines().find(|line| line.contains("Collected : "))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_collected_is_read() {
        assert_eq!(
            collected("==7== Events    : Ir\n==7== Collected : 812\n"),
            Some(812)
        );
        assert_eq!(collected("==7== Collected\n"), None);
    }
}
