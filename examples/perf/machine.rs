//! The machine that the figures are of.

use super::clock::Clock;
use anyhow::Result;
use bellwire_examples::{Gone, Wait, allowed};
use serde::Serialize;
use std::fmt;
use std::fs::read_to_string;

/// Cores, clock, and which of them the two ends use.
#[derive(Debug)]
pub struct Machine {
    /// The cores of the leader and the follower: the same when there is only one.
    pub cpus: (usize, usize),
    pub clock: Clock,
    /// Threads that poll: ours and the device's.
    polling: usize,
    allowed: usize,
    model: String,
    clock_source: String,
}

/// Threads of ours that poll.
const OURS: usize = 2;

impl Machine {
    /// Looks at the machine, on which the ends use `cpus`. `device_threads` poll beside the two that measure.
    ///
    /// # Errors
    /// When the kernel does not say which cores there are.
    pub fn find(cpus: (usize, usize), device_threads: usize) -> Result<Self> {
        let allowed = allowed()?;
        let text = |path: &str| read_to_string(path).unwrap_or_default();
        let model = text("/proc/cpuinfo")
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
            .map_or_else(|| std::env::consts::ARCH.to_owned(), |m| m.1.to_owned());
        let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        Ok(Self {
            cpus,
            clock: Clock::calibrate(),
            polling: OURS + device_threads,
            allowed: allowed.len(),
            model,
            clock_source: text(source).trim().to_owned(),
        })
    }

    /// How the ends wait.
    pub fn wait<'a>(&self, gone: &'a dyn Gone) -> Wait<'a> {
        let crowded = self.crowded();
        Wait { crowded, gone }
    }

    fn crowded(&self) -> bool {
        self.allowed < self.polling
    }

    /// Why the figures mean little here, if they do.
    pub fn warning(&self) -> Option<String> {
        self.crowded().then(|| {
            format!(
                "{} threads poll and there {} {} core{}: they take turns, so the figures show the \
                 scheduler and mean little",
                self.polling,
                if self.allowed == 1 { "is" } else { "are" },
                self.allowed,
                if self.allowed == 1 { "" } else { "s" },
            )
        })
    }

    /// For the JSON document.
    pub fn facts(&self) -> MachineFacts {
        MachineFacts {
            model: self.model.clone(),
            cores: self.allowed,
            threads_on: [self.cpus.0, self.cpus.1],
            clock: self.clock.name(),
            clock_ns: self.clock.cost,
            clock_source: self.clock_source.clone(),
            crowded: self.crowded(),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (a, b) = self.cpus;
        writeln!(
            f,
            "machine  {}, {} core{} allowed; threads on cores {a} and {b}",
            self.model,
            self.allowed,
            if self.allowed == 1 { "" } else { "s" }
        )?;
        write!(
            f,
            "clock    {}, {:.0} ns a reading (one in each single sample); kernel clock source {}",
            self.clock.name(),
            self.clock.cost,
            self.clock_source
        )
    }
}

/// What a JSON document says of the machine.
#[derive(Debug, Serialize)]
pub struct MachineFacts {
    model: String,
    cores: usize,
    threads_on: [usize; 2],
    clock: String,
    clock_ns: f64,
    clock_source: String,
    crowded: bool,
}
