//! What a reader of the end of a run has to see of a command that failed: the lines that say why.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// The most lines that are kept, of the last failures.
const MOST: usize = 200;

/// Lines that are kept from one that says why a program failed.
const FROM_EACH: usize = 20;

/// The lines that say why a program failed, and some behind each.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Excerpt {
    lines: VecDeque<String>,
    /// Lines still to keep.
    left: usize,
}

impl Excerpt {
    /// Reads a line that a command has printed.
    pub fn read(&mut self, line: &str) {
        let line = line.trim_end();
        if says_why(line) {
            self.left = FROM_EACH;
        }
        // Where in the standard library a panic passed helps nobody.
        if self.left == 0 || line.contains("/rustc/") || line.contains("/registry/src/") {
            return;
        }
        self.left -= 1;
        self.lines.push_back(line.to_owned());
        if self.lines.len() > MOST {
            self.lines.pop_front();
        }
    }

    /// Adds those of another run.
    pub fn add(&mut self, other: Self) {
        self.lines.extend(other.lines);
        let surplus = self.lines.len().saturating_sub(MOST);
        self.lines.drain(..surplus);
    }

    /// The lines, oldest first.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }
}

/// Whether a line says why a program failed: a panic, a finding of a sanitizer or of Miri, an error of the
/// compiler.
fn says_why(line: &str) -> bool {
    let within = [
        " panicked at ",
        "ERROR: AddressSanitizer",
        "ERROR: LeakSanitizer",
        "WARNING: ThreadSanitizer",
        "test panicked: ",
        "signal: ",
    ];
    line.starts_with("error: ")
        || line.starts_with("error[")
        || within.iter().any(|part| line.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(output: &str) -> Vec<String> {
        let mut excerpt = Excerpt::default();
        output.lines().for_each(|line| excerpt.read(line));
        excerpt.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_panic_is_kept_with_what_it_says() {
        let lines = of("test a ... ok\nthread 'main' panicked at a.rs:1:2:\nno room\n at /rustc/x");
        assert_eq!(lines, ["thread 'main' panicked at a.rs:1:2:", "no room"]);
    }

    #[test]
    fn lines_that_say_nothing_are_not_kept() {
        assert!(of("running 3 tests\ntest b ... ok\nwarning: slow").is_empty());
    }

    #[test]
    fn the_last_failures_are_kept_when_there_are_many() {
        let many: String = (0..MOST).map(|at| format!("error: {at}\n1\n2\n")).collect();
        let lines = of(&many);
        assert_eq!(lines.len(), MOST);
        assert_eq!(lines[MOST - 3], format!("error: {}", MOST - 1));
    }
}
