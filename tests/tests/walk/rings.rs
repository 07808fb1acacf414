//! Rings whose halves are swapped, forgotten, and panicked over.

use crate::world::{World, panics, perhaps_panic};
use bellwire::ring::{mpsc, spsc};
use std::mem::{forget, swap};

/// Its memory is freed once, or a sanitizer says so.
type Item = Box<u64>;

impl World<'_> {
    pub fn rings(&mut self) {
        let mut slots = <[spsc::Slot<Item>; 4]>::default();
        let mut others = <[spsc::Slot<Item>; 4]>::default();
        let rings = (spsc::Ring::new(&mut slots), spsc::Ring::new(&mut others));
        let (Ok(mut ring), Ok(mut other)) = rings else {
            return;
        };
        let random = &mut self.random;
        for _ in 0..2 {
            let (mut push, mut pop) = ring.split();
            let (mut there, mut here) = other.split();
            if random.below(2) == 0 {
                swap(&mut push, &mut there);
            }
            if random.below(2) == 0 {
                swap(&mut pop, &mut here);
            }
            let many = random.below(6);
            let panicked = panics(|| {
                push.push_iter((0..many).map(|item| {
                    perhaps_panic(random);
                    Box::new(item)
                }));
            });
            self.tally.panics += u64::from(panicked);
            let _ = there.push(Box::new(7));
            let panicked = panics(|| {
                pop.pop_each(3, |_| perhaps_panic(random));
            });
            self.tally.panics += u64::from(panicked);
            drop(here.pop());
            forget(pop);
        }
        if random.below(2) == 0 {
            swap(&mut ring, &mut other);
        }

        let mut slots = <[mpsc::Slot<Item>; 4]>::default();
        let Ok(mut ring) = mpsc::Ring::new(&mut slots) else {
            return;
        };
        for _ in 0..2 {
            let (push, mut pop) = ring.split();
            let also = push.clone();
            let _ = push.push_all([Box::new(1), Box::new(2)]);
            let _ = also.push(Box::new(3));
            let panicked = panics(|| {
                pop.pop_each(random.below(4) as usize, |_| perhaps_panic(random));
            });
            self.tally.panics += u64::from(panicked);
            forget(also);
        }
    }
}
