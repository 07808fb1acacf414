//! Loom models of the rings: every interleaving, and every value that the memory model lets a load
//! return. Loom's cells fail a model that lets two threads access one slot.

use super::tests::Counted;
use super::{Full, mpsc, spsc};
use core::mem::MaybeUninit;
use loom::thread;
use std::boxed::Box;
use std::vec::Vec;

/// The halves of a ring for `'static` threads, and a closure that frees the ring afterwards.
macro_rules! leaked {
    ($ring:ident, $slots:expr, $start:expr) => {{
        let slots = Box::into_raw(
            (0..$slots)
                .map(|_| $ring::Slot::new())
                .collect::<Box<[_]>>(),
        );
        // SAFETY: the memory is freed only by the last lines of the model, after the ring.
        let memory = unsafe { &mut *slots };
        let ring = Box::into_raw(Box::new($ring::Ring::starting_at(memory, $start).unwrap()));
        // SAFETY: freed only by the last lines of the model, after the threads that use the halves
        // are joined.
        let (producer, consumer) = unsafe { &mut *ring }.split();
        let free = move || {
            // SAFETY: both came from `Box::into_raw`, and nothing borrows them any more.
            unsafe {
                drop(Box::from_raw(ring));
                drop(Box::from_raw(slots));
            }
        };
        (producer, consumer, free)
    }};
}

#[test]
fn loom_spsc_push_and_pop_across_the_wrap() {
    loom::model(|| {
        let (mut producer, mut consumer, free) = leaked!(spsc, 2, u32::MAX);
        let pushing = thread::spawn(move || {
            (1..=3)
                .filter(|n| producer.push(*n).is_ok())
                .collect::<Vec<_>>()
        });
        let mut popped: Vec<u32> = (0..3).filter_map(|_| consumer.pop()).collect();
        let pushed = pushing.join().unwrap();
        assert!(pushed.starts_with(&[1, 2]));
        popped.extend(core::iter::from_fn(|| consumer.pop()));
        assert_eq!(popped, pushed);
        free();
    });
}

#[test]
fn loom_spsc_batches_across_the_wrap() {
    loom::model(|| {
        let (mut producer, mut consumer, free) = leaked!(spsc, 2, u32::MAX);
        let pushing = thread::spawn(move || {
            let first = producer.push_slice(&[1, 2]);
            assert_eq!(first, 2);
            let mut rest = 3..6;
            producer.push_iter(rest.by_ref());
            rest.start
        });
        let mut popped = Vec::new();
        let mut out = [const { MaybeUninit::uninit() }; 2];
        popped.extend_from_slice(consumer.pop_slice(&mut out));
        consumer.pop_each(2, |n: u32| popped.push(n));
        let next = pushing.join().unwrap();
        consumer.pop_each(usize::MAX, |n| popped.push(n));
        assert!(popped.into_iter().eq(1..next));
        free();
    });
}

#[test]
fn loom_spsc_drops_what_is_left() {
    loom::model(|| {
        let counted = Counted::default();
        let (mut producer, mut consumer, free) = leaked!(spsc, 2, u32::MAX);
        let items: Vec<_> = (0..3).map(|_| counted.one()).collect();
        let pushing = thread::spawn(move || producer.push_iter(items));
        let popped = usize::from(consumer.pop().is_some());
        let pushed = pushing.join().unwrap();
        // Elements that did not fit were dropped with the iterator.
        assert_eq!(counted.dropped(), popped + 3 - pushed);
        free();
        assert_eq!((counted.made(), counted.dropped()), (3, 3));
    });
}

#[test]
fn loom_mpsc_two_producers_across_the_wrap() {
    loom::model(|| {
        let (producer, mut consumer, free) = leaked!(mpsc, 2, u32::MAX.into());
        let pushing = [1, 2].map(|n| {
            let producer = producer.clone();
            thread::spawn(move || producer.push(n))
        });
        let mut popped: Vec<u32> = consumer.pop().into_iter().collect();
        assert!(
            pushing
                .into_iter()
                .all(|thread| thread.join().unwrap().is_ok())
        );
        popped.extend(core::iter::from_fn(|| consumer.pop()));
        popped.sort_unstable();
        assert_eq!(popped, [1, 2]);
        free();
    });
}

/// The slots are freed while both producers find the ring full, so that one of them may see the new
/// head through the other.
#[test]
fn loom_mpsc_reuses_slots() {
    loom::model(|| {
        let counted = Counted::default();
        let (producer, mut consumer, free) = leaked!(mpsc, 2, u32::MAX.into());
        assert!(producer.push_all([counted.one(), counted.one()]).is_ok());
        let pushing = [(), ()].map(|()| {
            let (producer, item) = (producer.clone(), counted.one());
            thread::spawn(move || producer.push(item).is_ok())
        });
        assert_eq!(consumer.pop_each(2, drop), 2);
        let pushed = pushing
            .map(|thread| usize::from(thread.join().unwrap()))
            .iter()
            .sum::<usize>();
        assert_eq!(counted.dropped(), 2 + (2 - pushed));
        assert_eq!(consumer.pop_each(1, drop), pushed.min(1));
        free();
        assert_eq!((counted.made(), counted.dropped()), (4, 4));
    });
}

/// A batch is adjacent, pushes what fits or nothing, and is refused only when the ring was full.
#[test]
fn loom_mpsc_batches() {
    loom::model(|| {
        let (producer, mut consumer, free) = leaked!(mpsc, 2, u32::MAX.into());
        assert_eq!(producer.push(0), Ok(()));
        let other = producer.clone();
        let whole = thread::spawn(move || other.push_all([1, 2]) != Err(Full([1, 2])));
        let part = thread::spawn(move || producer.push_slice(&[11, 12]));
        let mut popped: Vec<u32> = consumer.pop().into_iter().collect();
        assert_eq!(popped, [0]);
        let (whole, part) = (whole.join().unwrap(), part.join().unwrap());
        consumer.pop_each(usize::MAX, |n| popped.push(n));
        match (whole, part) {
            (true, 0) => assert_eq!(popped, [0, 1, 2]),
            (false, 1) => assert_eq!(popped, [0, 11]),
            (false, 2) => assert_eq!(popped, [0, 11, 12]),
            other => panic!("{other:?} of two slots"),
        }
        free();
    });
}
