//! A progress bar for people: on stderr, and only when that is a terminal.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, stderr};

/// A progress bar, or nothing. It goes when dropped.
#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    /// A bar of `total` steps; `template` is indicatif's.
    pub fn new(total: u64, template: &str) -> Self {
        if !stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let bar = ProgressBar::new(total);
        // A template that indicatif cannot read leaves its own style.
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self(bar)
    }

    /// The current task.
    pub fn say(&self, what: String) {
        self.0.set_message(what);
    }

    /// So many steps are done.
    pub fn add(&self, steps: u64) {
        self.0.inc(steps);
    }

    /// Prints a line above the bar, or just prints it, on stdout.
    ///
    /// # Errors
    /// What the output answers.
    pub fn line(&self, text: &str) -> std::io::Result<()> {
        use std::io::Write;
        self.0.suspend(|| writeln!(std::io::stdout(), "{text}"))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
