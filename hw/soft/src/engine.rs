//! Engine mode: threads that execute posted entries, like a NIC's processing units. A doorbell notifies them
//! by setting a bit for its queue pair in a bitmap.

use super::hca::Hca;
use super::qp::MAX_QP;
use crate::error::Error;
use crate::pinned::{defaults, with_room};
use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const BITS: usize = u64::BITS as usize;
const WORDS: usize = MAX_QP / BITS;

/// Rounds without work before a worker yields its processor, and before it sleeps.
const SPINS: u32 = 2_000;
const YIELDS: u32 = 20_000;
const SLEEP: Duration = Duration::from_micros(50);

/// Queue pairs whose doorbell was rung: a bit for each, and a summary bit for each word of bits.
#[derive(Debug)]
struct Rung {
    summary: [CachePadded<AtomicU64>; WORDS / BITS],
    words: Box<[AtomicU64]>,
}

/// The workers' shared state.
#[derive(Debug)]
pub(super) struct Engine {
    workers: Box<[Rung]>,
    stop: AtomicBool,
}

impl Engine {
    pub fn new(workers: usize) -> Result<Self, Error> {
        let mut all = with_room(workers)?;
        for _ in 0..workers {
            all.push(Rung {
                summary: Default::default(),
                words: defaults(WORDS)?,
            });
        }
        Ok(Self {
            workers: all.into(),
            stop: AtomicBool::new(false),
        })
    }

    /// Notifies the worker of the queue pair at this index.
    #[inline(always)]
    pub fn kick(&self, index: usize) {
        let rung = &self.workers[index % self.workers.len()];
        let word = index / BITS;
        // Release: pairs with the worker's Acquire, so that the producer counter is visible. The word is set
        // before the summary, so that a worker that sees the summary bit sees the word's bit.
        rung.words[word].fetch_or(1 << (index % BITS), Ordering::Release);
        rung.summary[word / BITS].fetch_or(1 << (word % BITS), Ordering::Release);
    }

    pub fn stop(&self) {
        // Relaxed: the flag orders no other data.
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// The loop of a worker.
pub(super) fn work(hca: &Hca, worker: usize) {
    let Some(engine) = &hca.engine else { return };
    let rung = &engine.workers[worker];
    let mut idle = 0u32;
    // Relaxed: the flag orders no other data.
    while !engine.stop.load(Ordering::Relaxed) {
        let worked = round(hca, rung);
        // Waiting requests get their turn, however much there is to execute.
        if hca.waiting() {
            hca.progress();
        }
        if worked {
            idle = 0;
            continue;
        }
        idle = idle.saturating_add(1);
        match idle {
            0..SPINS => std::hint::spin_loop(),
            SPINS..YIELDS => std::thread::yield_now(),
            _ => std::thread::sleep(SLEEP),
        }
    }
    // Entries that were posted before the stop are still completed.
    round(hca, rung);
}

/// Executes everything that was posted. Returns whether there was anything.
fn round(hca: &Hca, rung: &Rung) -> bool {
    let mut any = false;
    for (at, summary) in rung.summary.iter().enumerate() {
        // Relaxed: a check before the exchange.
        if summary.load(Ordering::Relaxed) == 0 {
            continue;
        }
        // Acquire: pairs with the Release in `kick`.
        for word in ones(summary.swap(0, Ordering::Acquire)) {
            let word = at * BITS + word;
            // Acquire: pairs with the Release in `kick`.
            for bit in ones(rung.words[word].swap(0, Ordering::Acquire)) {
                // SAFETY: the table lives as long as the device, which outlives its workers.
                if let Some(ctx) = unsafe { hca.qps.find((word * BITS + bit) as u32) } {
                    hca.execute(ctx);
                    any = true;
                }
            }
        }
    }
    any
}

fn ones(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        (word != 0).then(|| {
            let bit = word.trailing_zeros() as usize;
            word &= word - 1;
            bit
        })
    })
}
