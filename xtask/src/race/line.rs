//! The bare cache line: how long it takes from one processor to the other, and what that says about where they are.

use std::fmt;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_setaffinity};

/// Where the two processors are, by the time of a line. A virtual machine's own topology does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Placement {
    /// Threads of one core, which share its first cache.
    Siblings,
    /// Cores that share a cache.
    Shared,
    /// Cores that share none.
    Apart,
}

impl Placement {
    pub const ALL: [Self; 3] = [Self::Siblings, Self::Shared, Self::Apart];

    /// By the nanoseconds that a line takes. A sibling's line stays in the first cache (some 20 ns there and back on
    /// every recent x86 processor), a shared last cache answers within 40 to 100, another one's later.
    pub fn of(nanoseconds: f64) -> Self {
        match nanoseconds {
            ..25.0 => Self::Siblings,
            25.0..100.0 => Self::Shared,
            _ => Self::Apart,
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Siblings => "siblings of one core",
            Self::Shared => "a shared cache",
            Self::Apart => "no shared cache",
        })
    }
}

/// Measures the line between two processors.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    cpus: [usize; 2],
}

#[repr(align(128))]
struct Word(AtomicU64);

const BLOCKS: usize = 15;
const TRIPS: u64 = 2_000;

impl Line {
    pub fn new(cpus: [usize; 2]) -> Self {
        Self { cpus }
    }

    /// Nanoseconds one way: the median of some blocks.
    ///
    /// # Errors
    /// This process may not run on those processors.
    pub fn measure(self) -> Result<f64> {
        let words = [const { Word(AtomicU64::new(0)) }; 2];
        let [there, back] = &words;
        let last = BLOCKS as u64 * TRIPS;
        thread::scope(|scope| {
            let answers = scope.spawn(move || {
                let pinned = pin(self.cpus[1]);
                for trip in 1..=last {
                    wait(there, trip);
                    // Release: pairs with the Acquire in `wait`.
                    back.0.store(trip, Ordering::Release);
                }
                pinned
            });
            let asks = scope.spawn(move || {
                let pinned = pin(self.cpus[0]);
                let mut blocks = [0.0; BLOCKS];
                for (at, block) in blocks.iter_mut().enumerate() {
                    let start = Instant::now();
                    for trip in 1..=TRIPS {
                        let trip = at as u64 * TRIPS + trip;
                        // Release: pairs with the Acquire in `wait`.
                        there.0.store(trip, Ordering::Release);
                        wait(back, trip);
                    }
                    *block = start.elapsed().as_secs_f64() * 1e9 / (2 * TRIPS) as f64;
                }
                blocks.sort_by(f64::total_cmp);
                pinned.map(|()| blocks[BLOCKS / 2])
            });
            let joined =
                |error| anyhow::anyhow!("a thread that measures the line failed: {error:?}");
            answers.join().map_err(joined)??;
            asks.join().map_err(joined)?
        })
    }
}

fn wait(word: &Word, value: u64) {
    // Acquire: pairs with the Release of the other thread.
    while word.0.load(Ordering::Acquire) != value {
        spin_loop();
    }
}

fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("cannot run on processor {cpu}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_that_is_not_there_is_refused() {
        let error = Line::new([0, CpuSet::MAX_CPU - 1]).measure().unwrap_err();
        assert!(
            error.to_string().contains("cannot run on processor"),
            "{error}"
        );
    }

    #[test]
    fn placements_are_told_apart() {
        let found = [12.0, 52.0, 217.0].map(Placement::of);
        assert_eq!(found, Placement::ALL);
    }
}
