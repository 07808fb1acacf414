//! Models of the free stack, for loom and Miri.

use super::*;
use crate::sync::model::{Arc, UnsafeCell, check, thread};
use std::boxed::Box;

#[repr(align(4096))]
struct Page(#[allow(dead_code, reason = "reached by pointer")] [u8; 4096]);

fn slab(count: u32) -> Arc<Slab<'static>> {
    let metas = (0..count)
        .map(|_| BlockMeta::default())
        .collect::<Box<[_]>>();
    let classes = Box::new([SlabClass::default()]);
    let region = SlabRegion {
        start: NonNull::from(Box::leak(Box::new(Page([0; 4096])))).cast(),
        length: 4096,
        lkey: 0,
        rkey: 0,
    };
    let layout = [ClassLayout { size: 64, count }];
    // SAFETY: leaked memory that only this model uses.
    Arc::new(unsafe {
        Slab::new(Box::leak(metas), Box::leak(classes), region, &layout).expect("fits")
    })
}

/// Only the owner of a block accesses its memory: plain writes and reads of it must not race. A
/// loom cell stands for the memory, which loom does not see.
fn own(block: &Block<'_>, owners: &[UnsafeCell<u32>]) {
    // SAFETY: the model checks that no other thread does this meanwhile.
    owners[block.offset() as usize / 64].with_mut(|count| unsafe { *count += 1 });
}

fn owners(count: usize) -> Arc<std::vec::Vec<UnsafeCell<u32>>> {
    Arc::new((0..count).map(|_| UnsafeCell::new(0)).collect())
}

/// One thread pops while another pops two blocks and pushes them in the other order: without the
/// tag the first would take the head for unchanged although its link has changed.
#[test]
fn a_stalled_pop_does_not_take_an_old_link() {
    check(|| {
        let (slab, cells) = (slab(2), owners(2));
        let other = {
            let (slab, cells) = (slab.clone(), cells.clone());
            thread::spawn(move || {
                let (a, b) = (slab.take(1), slab.take(1));
                a.iter().chain(&b).for_each(|block| own(block, &cells));
                drop(b);
                drop(a);
            })
        };
        let a = slab.take(1);
        let b = slab.take(1);
        a.iter().chain(&b).for_each(|block| own(block, &cells));
        if let (Ok(a), Ok(b)) = (&a, &b) {
            assert_ne!(a.addr(), b.addr());
        }
        drop((a, b));
        other.join().expect("no panic");
        assert_eq!(slab.outstanding(), 0);
    });
}

#[test]
fn a_batch_is_taken_whole_or_again() {
    check(|| {
        let (slab, cells) = (slab(3), owners(3));
        let other = {
            let (slab, cells) = (slab.clone(), cells.clone());
            thread::spawn(move || {
                let block = slab.take(1).ok();
                block.iter().for_each(|block| own(block, &cells));
            })
        };
        let mut cache = slab.cache(1).expect("a class");
        let blocks: std::vec::Vec<_> = core::iter::from_fn(|| cache.take().ok()).collect();
        blocks.iter().for_each(|block| own(block, &cells));
        assert!(blocks.len() >= 2);
        blocks.into_iter().for_each(|block| cache.put(block));
        drop(cache);
        other.join().expect("no panic");
        assert_eq!(slab.outstanding(), 0);
    });
}

#[test]
fn of_two_raw_frees_one_succeeds() {
    check(|| {
        let slab = slab(1);
        let block = slab.take(1).expect("not empty");
        let addr = block.addr();
        let _raw = block.into_raw();
        let other = {
            let slab = slab.clone();
            // SAFETY: nothing uses the block; the model checks that returning it twice is detected.
            thread::spawn(move || unsafe { slab.give_back_raw(addr) }.is_ok())
        };
        // SAFETY: nothing uses the block; the model checks that returning it twice is detected.
        let mine = unsafe { slab.give_back_raw(addr) }.is_ok();
        assert!(mine != other.join().expect("no panic"));
        assert_eq!(slab.outstanding(), 0);
    });
}

/// For each ordering a model fails without it.
#[cfg(loom)]
#[test]
fn the_free_stack_needs_its_orderings() {
    let models: [fn(); 2] = [
        a_stalled_pop_does_not_take_an_old_link,
        a_batch_is_taken_whole_or_again,
    ];
    // In `walk`, which the models call when all threads have ended.
    let unseen = ["let mut next = Head::index(self.head.word().load(Ordering::Acquire));"];
    crate::sync::needs_orderings(&models, "slab/class.rs", &unseen);
}
