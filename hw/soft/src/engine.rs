//! Engine mode: threads that execute posted entries, like a NIC's processing units. A doorbell notifies them
//! by setting a bit for its queue pair in a bitmap.

use super::hca::Hca;
use super::qp::MAX_QP;
use crate::error::Error;
use crate::pinned::{defaults, with_room};
use crate::sync::{
    MODELS,
    atomic::{AtomicU64, Ordering},
};
use bellwire_provider::backoff::sleep;
use crossbeam_utils::CachePadded;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

const BITS: usize = u64::BITS as usize;
const WORDS: usize = if MODELS { 2 } else { MAX_QP / BITS };

/// Rounds without work before a worker yields its processor, and before it sleeps.
const SPINS: u32 = 2_000;
const YIELDS: u32 = 4_000;
const SLEEP: Duration = Duration::from_micros(50);

/// Queue pairs whose doorbell was rung: a bit for each, and a summary bit for each word of bits.
#[derive(Debug)]
struct Rung {
    summary: [CachePadded<AtomicU64>; WORDS.div_ceil(BITS)],
    words: Box<[AtomicU64]>,
}

impl Rung {
    fn new() -> Result<Self, Error> {
        Ok(Self {
            summary: Default::default(),
            words: defaults(WORDS)?,
        })
    }

    /// Sets the bit of this index.
    #[inline(always)]
    fn set(&self, index: usize) {
        let word = index / BITS;
        // Release: pairs with the Acquire in `take`, so that the producer counter is visible. The word is set
        // before the summary, so that a worker that sees the summary bit sees the word's bit.
        self.words[word].fetch_or(1 << (index % BITS), Ordering::Release);
        self.summary[word / BITS].fetch_or(1 << (word % BITS), Ordering::Release);
    }

    /// Clears the bits, and passes their indices to `each`.
    #[inline(always)]
    fn take(&self, mut each: impl FnMut(usize)) {
        for (at, summary) in self.summary.iter().enumerate() {
            // Relaxed: a check before the exchange.
            if summary.load(Ordering::Relaxed) == 0 {
                continue;
            }
            // Acquire: pairs with the Release in `set`.
            for word in ones(summary.swap(0, Ordering::Acquire)) {
                let word = at * BITS + word;
                // Acquire: pairs with the Release in `set`.
                for bit in ones(self.words[word].swap(0, Ordering::Acquire)) {
                    each(word * BITS + bit);
                }
            }
        }
    }
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
            all.push(Rung::new()?);
        }
        Ok(Self {
            workers: all.into(),
            stop: AtomicBool::new(false),
        })
    }

    /// Notifies the worker of the queue pair at this index.
    #[inline(always)]
    pub fn kick(&self, index: usize) {
        self.workers[index % self.workers.len()].set(index);
    }

    pub fn stop(&self) {
        // Relaxed: the flag orders no other data.
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// The loop of a worker, which waits for doorbells and not for a thread: it sleeps sooner than [`Backoff`], and for a
/// shorter time.
///
/// [`Backoff`]: bellwire_provider::backoff::Backoff
#[expect(clippy::disallowed_methods, reason = "it sleeps in the end")]
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
            _ => sleep(SLEEP),
        }
    }
    // Entries that were posted before the stop are still completed.
    round(hca, rung);
}

/// Executes everything that was posted. Returns whether there was anything.
fn round(hca: &Hca, rung: &Rung) -> bool {
    let mut any = false;
    rung.take(|index| {
        // SAFETY: the table lives as long as the device, which outlives its workers.
        if let Some(ctx) = unsafe { hca.qps.find(index as u32) } {
            hca.execute_rung(ctx);
            any = true;
        }
    });
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

#[cfg(all(test, any(loom, miri)))]
mod loom_models {
    use super::*;
    use crate::sync::atomic::AtomicU32;
    use crate::sync::model::{Arc, check, thread};

    /// Two queue pairs: how far each has posted.
    struct World {
        rung: Rung,
        indices: [usize; 2],
        posted: [AtomicU32; 2],
    }

    impl World {
        fn execute(&self, executed: &mut [u32; 2]) {
            self.rung.take(|index| {
                let of = self.indices.iter().position(|known| *known == index);
                let of = of.expect("it was rung");
                executed[of] = self.posted[of].load(Ordering::Relaxed);
                assert_eq!(executed[of], 1, "what was posted is not seen");
            });
        }
    }

    /// What is posted before the doorbell is executed after it, by a round that is under way or by the next.
    fn no_doorbell_is_lost(indices: [usize; 2], set: fn(&Rung, usize)) {
        check(move || {
            let world = Arc::new(World {
                rung: Rung::new().expect("memory"),
                indices,
                posted: Default::default(),
            });
            let posters = [0, 1].map(|of| {
                let world = world.clone();
                thread::spawn(move || {
                    world.posted[of].store(1, Ordering::Relaxed);
                    set(&world.rung, indices[of]);
                })
            });
            let mut executed = [0; 2];
            world.execute(&mut executed);
            for poster in posters {
                poster.join().unwrap();
            }
            world.execute(&mut executed);
            assert_eq!(executed, [1, 1], "a doorbell is lost");
        });
    }

    #[test]
    fn loom_no_doorbell_is_lost() {
        // In one word, where perhaps only one of them is known to have set the summary bit, and in two.
        for indices in [[3, 4], [3, BITS + 1]] {
            no_doorbell_is_lost(indices, Rung::set);
        }
    }

    #[cfg(loom)]
    #[test]
    fn loom_the_bitmap_needs_each_ordering() {
        let models: [fn(); 1] = [loom_no_doorbell_is_lost];
        // They keep a summary from being seen before its word. Neither loom nor Miri reorders what a thread stores:
        // the model below does it for them.
        let unseen = [
            "self.summary[word / BITS].fetch_or(1 << (word % BITS), Ordering::Release);",
            "for word in ones(summary.swap(0, Ordering::Acquire)) {",
        ];
        crate::sync::needs_orderings(&models, "soft/src/engine.rs", &unseen);
    }

    /// The model detects a summary bit that is set too early.
    #[test]
    #[should_panic(expected = "a doorbell is lost")]
    #[cfg_attr(miri, ignore = "an order of the program, of which loom tries each")]
    fn loom_the_word_is_set_before_the_summary() {
        no_doorbell_is_lost([3, BITS + 1], |rung, index| {
            let word = index / BITS;
            rung.summary[0].fetch_or(1 << word, Ordering::Release);
            rung.words[word].fetch_or(1 << (index % BITS), Ordering::Release);
        });
    }
}
