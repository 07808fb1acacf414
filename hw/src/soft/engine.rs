//! Engine mode: threads that execute what is rung, as a NIC's processing units do.

use super::hca::Hca;
use super::qp::MAX_QP;
use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const BITS: usize = u64::BITS as usize;
const WORDS: usize = MAX_QP / BITS;

/// Rounds without work before a worker yields its processor, and before it sleeps.
const SPINS: u32 = 2_000;
const YIELDS: u32 = 20_000;
const SLEEP: Duration = Duration::from_micros(50);

/// Which queue pairs were rung: a bit each, and a bit for each word of bits.
#[derive(Debug)]
struct Rung {
    summary: [CachePadded<AtomicU64>; WORDS / BITS],
    words: Box<[AtomicU64]>,
    /// Numbers of the queue pairs, since a bit only tells the index.
    qpns: Box<[std::sync::atomic::AtomicU32]>,
}

/// The workers' shared state.
#[derive(Debug)]
pub(super) struct Engine {
    workers: Box<[Rung]>,
    stop: AtomicBool,
}

impl Engine {
    pub fn new(workers: usize) -> Self {
        let rung = || Rung {
            summary: Default::default(),
            words: (0..WORDS).map(|_| AtomicU64::new(0)).collect(),
            qpns: (0..MAX_QP).map(|_| Default::default()).collect(),
        };
        Self {
            workers: (0..workers).map(|_| rung()).collect(),
            stop: AtomicBool::new(false),
        }
    }

    /// Tells the worker of a queue pair that it was rung.
    #[inline(always)]
    pub fn kick(&self, qpn: u32) {
        let index = qpn as usize & (MAX_QP - 1);
        let rung = &self.workers[index % self.workers.len()];
        // Relaxed: published by the bit.
        rung.qpns[index].store(qpn, Ordering::Relaxed);
        let word = index / BITS;
        // Release: partner of the worker's acquire; the producer counter comes before. The word
        // before the summary, so that a worker that sees the summary's bit sees the word's.
        rung.words[word].fetch_or(1 << (index % BITS), Ordering::Release);
        rung.summary[word / BITS].fetch_or(1 << (word % BITS), Ordering::Release);
    }

    pub fn stop(&self) {
        // Relaxed: a flag on its own.
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// A worker's life.
pub(super) fn work(hca: &Hca, worker: usize) {
    let Some(engine) = &hca.engine else { return };
    let rung = &engine.workers[worker];
    let mut idle = 0u32;
    // Relaxed: a flag on its own.
    while !engine.stop.load(Ordering::Relaxed) {
        let worked = round(hca, rung);
        // However much there is to execute, those that wait get their turn.
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
    // What was rung before the stop is still told.
    round(hca, rung);
}

/// Executes everything that was rung; whether there was anything.
fn round(hca: &Hca, rung: &Rung) -> bool {
    let mut any = false;
    for (at, summary) in rung.summary.iter().enumerate() {
        // Relaxed: a look before the exchange.
        if summary.load(Ordering::Relaxed) == 0 {
            continue;
        }
        // Acquire: partner of the release in `kick`.
        for word in ones(summary.swap(0, Ordering::Acquire)) {
            let word = at * BITS + word;
            // Acquire: as above.
            for bit in ones(rung.words[word].swap(0, Ordering::Acquire)) {
                // Relaxed: ordered by the bit.
                let qpn = rung.qpns[word * BITS + bit].load(Ordering::Relaxed);
                // SAFETY: the table lives as long as the device, which outlives its workers.
                let ctx = unsafe { hca.qps.get(qpn) };
                hca.execute(ctx, qpn);
                any = true;
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
