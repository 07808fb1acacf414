//! Reads the summary lines that Rust's test harness prints.

use serde::{Deserialize, Serialize};

/// What the harnesses behind one stream of output reported, summed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed.
    pub failed: u64,
    /// Tests marked `#[ignore]`, or that found what they need lacking.
    pub ignored: u64,
    /// Of those, rules of the conformance suite that a provider does not support.
    pub not_supported: u64,
    /// Test programs that began and have not printed a summary: at the end, these died.
    pub unfinished: u64,
    /// The names of tests that failed.
    pub names: Vec<String>,
    /// Whether the next line may be one of those.
    pub listing: bool,
}

impl Counts {
    /// Takes in one line of output; lines that are not the harness's are passed over.
    pub fn read(&mut self, line: &str) {
        let line = line.trim_end();
        let listing = std::mem::replace(&mut self.listing, line == "failures:");
        if let Some(name) = line.strip_prefix("    ").filter(|_| listing) {
            self.names.push(name.to_owned());
            self.listing = true;
        } else if is_start(line) {
            self.unfinished += 1;
        } else if is_not_supported(line) {
            self.not_supported += 1;
        } else if let Some((passed, failed, ignored)) = summary(line) {
            self.unfinished = self.unfinished.saturating_sub(1);
            self.passed += passed;
            self.failed += failed;
            self.ignored += ignored;
        }
    }

    /// Takes in what another stream reported.
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        self.not_supported += other.not_supported;
        self.unfinished += other.unfinished;
        self.names.extend(other.names);
    }

    /// Tests that ran to a result, and test programs that died before theirs.
    pub fn ran(&self) -> u64 {
        self.passed + self.failed()
    }

    /// Failures: failed tests, and test programs that died (at least one of their tests failed).
    pub fn failed(&self) -> u64 {
        self.failed + self.unfinished
    }
}

/// `running 3 tests`
fn is_start(line: &str) -> bool {
    line.strip_prefix("running ")
        .and_then(|rest| rest.strip_suffix(" tests").or(rest.strip_suffix(" test")))
        .is_some_and(|number| number.parse::<u64>().is_ok())
}

/// `test [soft-engine] timers::rc::a_rule ... ignored (not supported: lacks virtual clock)`
fn is_not_supported(line: &str) -> bool {
    line.starts_with("test ") && line.contains(" ... ignored (not supported")
}

/// `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s`
fn summary(line: &str) -> Option<(u64, u64, u64)> {
    let rest = line.strip_prefix("test result: ")?;
    let (_, counts) = rest.split_once(". ")?;
    let mut fields = counts.split("; ");
    let mut field = |label: &str| {
        let (number, name) = fields.next()?.split_once(' ')?;
        (name == label).then(|| number.parse().ok()).flatten()
    };
    Some((field("passed")?, field("failed")?, field("ignored")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(output: &str) -> Counts {
        let mut counts = Counts::default();
        output.lines().for_each(|line| counts.read(line));
        counts
    }

    #[test]
    fn sums_several_harnesses() {
        let counts = read(
            "\nrunning 3 tests\ntest a ... ok\n\ntest result: ok. 2 passed; 0 failed; \
             1 ignored; 0 measured; 7 filtered out; finished in 0.00s\n\nrunning 1 test\n\
             test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; \
             finished in 1.52s\n",
        );
        let expected = Counts {
            passed: 2,
            failed: 1,
            ignored: 1,
            ..Counts::default()
        };
        assert_eq!(counts, expected);
        assert_eq!(counts.ran(), 3);
    }

    #[test]
    fn a_program_that_died_counts_as_a_failure() {
        let counts = read(
            "running 40 tests\ntest a ... ok\nrunning 0 tests\n\
             test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n",
        );
        assert_eq!(counts.failed(), 1);
        assert_eq!(counts.ran(), 1);
    }

    #[test]
    fn those_that_failed_are_named() {
        let counts = read(
            "running 2 tests\ntest a::b ... FAILED\n\nfailures:\n\n---- a::b stdout ----\n    no\n\n\
             failures:\n    a::b\n    c\n\n    d\n\
             test result: FAILED. 0 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out\n",
        );
        assert_eq!(counts.names, ["a::b", "c"]);
    }

    #[test]
    fn what_a_provider_does_not_support_is_counted() {
        let counts = read(
            "running 3 tests\ntest [soft] rc::a   ... ok\n\
             test [soft] rc::b   ... ignored (not supported: lacks NOP)\ntest c ... ignored\n\
             test result: ok. 1 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out\n",
        );
        assert_eq!((counts.ignored, counts.not_supported), (2, 1));
        assert_eq!(counts.ran(), 1, "neither passed nor failed");
    }

    #[test]
    fn other_lines_are_not_counted() {
        let counts = read(
            "running the tests\nrunning 3 tests now\ntest result: fine\n\
             test result: ok. many passed; 0 failed; 0 ignored\n\
             said: test result: ok. 1 passed; 0 failed; 0 ignored\n",
        );
        assert_eq!(counts, Counts::default());
    }
}
