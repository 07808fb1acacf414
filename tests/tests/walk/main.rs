//! A random walk over the safe interface: objects are made, dropped, swapped, forgotten and moved to other
//! threads in any order, and the program's functions panic wherever they are called. Without `unsafe` there
//! is nothing that this could break; under AddressSanitizer it is seen that nothing is, and by what stands
//! in the blocks that each has one owner.
//!
//! `BELLWIRE_WALK_SEED=…` takes another way, `BELLWIRE_WALK_STEPS=…` another number of steps.

#![forbid(unsafe_code)]
#![expect(
    clippy::forget_non_drop,
    reason = "that of what is lent makes no difference, and should not"
)]

mod links;
mod making;
mod using;
mod world;

use std::env;
use std::sync::Mutex;
use std::thread;
use std::time::Instant;
use world::{Parcels, World};

/// Steps of all threads together.
const STEPS: u64 = 1_000_000;

const THREADS: u64 = 2;

fn number(name: &str, otherwise: u64) -> u64 {
    env::var(name).map_or(otherwise, |value| value.parse().expect("a number"))
}

#[test]
fn safe_steps_in_any_order() {
    let (seed, steps) = (
        number("BELLWIRE_WALK_SEED", 1),
        number("BELLWIRE_WALK_STEPS", STEPS),
    );
    println!("BELLWIRE_WALK_SEED={seed}");
    let begun = Instant::now();
    let parcels = Parcels::default();
    let tally = Mutex::new(world::Tally::default());
    thread::scope(|scope| {
        for walker in 0..THREADS {
            let (parcels, tally) = (&parcels, &tally);
            scope.spawn(move || {
                let mut world = World::new(seed * THREADS + walker, parcels);
                for _ in 0..steps / THREADS {
                    world.step();
                }
                tally.lock().expect("nobody panics").add(&world.tally);
            });
        }
    });
    drop(parcels);
    let tally = tally.into_inner().expect("nobody panics");
    println!(
        "report: {steps} steps, {tally:?}, {:.1} s",
        begun.elapsed().as_secs_f64()
    );
    // What is refused breaks nothing, and shows nothing.
    assert!(tally.executed > steps / 1000, "{tally:?}");
    assert!(tally.flushed > steps / 1000, "{tally:?}");
    assert!(tally.panics > steps / 10_000, "{tally:?}");
    assert!(tally.moved > steps / 1000, "{tally:?}");
}
