use super::*;
use crate::ring::tests::{Counted, STARTS};
use static_assertions::{assert_impl_all, assert_not_impl_any};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{thread, vec::Vec};

assert_impl_all!(Producer<'static, u8>: Send);
assert_impl_all!(Consumer<'static, u8>: Send);
assert_not_impl_any!(Producer<'static, u8>: Sync, Clone);
assert_not_impl_any!(Consumer<'static, u8>: Sync, Clone);
assert_not_impl_any!(Producer<'static, std::rc::Rc<u8>>: Send);
assert_not_impl_any!(Consumer<'static, std::rc::Rc<u8>>: Send);

fn slots<T, const N: usize>() -> [Slot<T>; N] {
    [const { Slot::new() }; N]
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    for slots in [0, 3, 12] {
        let mut memory: Vec<Slot<u8>> = (0..slots).map(|_| Slot::new()).collect();
        assert_eq!(Ring::new(&mut memory).err(), Some(RingSizeError { slots }));
    }
}

#[test]
fn full_then_empty_on_every_lap() {
    for start in STARTS {
        let mut memory = slots::<_, 4>();
        let mut ring = Ring::starting_at(&mut memory, start).unwrap();
        assert_eq!(ring.capacity(), 4);
        let (mut producer, mut consumer) = ring.split();
        for lap in 0..5 {
            for n in 0..4 {
                assert_eq!(producer.push(lap * 4 + n), Ok(()));
            }
            assert_eq!(producer.push(99), Err(Full(99)));
            for n in 0..4 {
                assert_eq!(consumer.pop(), Some(lap * 4 + n));
            }
            assert_eq!(consumer.pop(), None);
        }
    }
}

#[test]
fn one_slot() {
    let mut memory = slots::<_, 1>();
    let mut ring = Ring::starting_at(&mut memory, u32::MAX).unwrap();
    let (mut producer, mut consumer) = ring.split();
    for n in 0..4 {
        assert_eq!(producer.push_slice(&[n, 99]), 1);
        assert_eq!(producer.push(99), Err(Full(99)));
        assert_eq!(consumer.pop(), Some(n));
        assert_eq!(consumer.pop(), None);
    }
}

#[test]
fn batches_take_what_fits_and_cross_the_wrap() {
    for start in STARTS {
        let mut memory = slots::<_, 8>();
        let mut ring = Ring::starting_at(&mut memory, start).unwrap();
        let (mut producer, mut consumer) = ring.split();
        let mut out = [const { MaybeUninit::uninit() }; 8];
        assert_eq!(producer.push_slice(&[]), 0);
        assert_eq!(consumer.pop_slice(&mut out), []);
        assert_eq!(producer.push_slice(&[0, 1, 2, 3, 4]), 5);
        assert_eq!(consumer.pop_slice(&mut out[..2]), [0, 1]);
        assert_eq!(producer.push_slice(&[5, 6, 7, 8, 9, 99, 99]), 5);
        assert_eq!(producer.push_slice(&[99]), 0);
        assert_eq!(consumer.pop_slice(&mut out), [2, 3, 4, 5, 6, 7, 8, 9]);

        let mut items = 10..25;
        assert_eq!(producer.push_iter(items.by_ref().take(3)), 3);
        assert_eq!(producer.push_iter(items.by_ref()), 5);
        assert_eq!(producer.push_iter(items.by_ref()), 0);
        assert_eq!(items, 18..25);
        let mut seen = Vec::new();
        assert_eq!(consumer.pop_each(3, |n| seen.push(n)), 3);
        assert_eq!(consumer.pop_each(usize::MAX, |n| seen.push(n)), 5);
        assert_eq!(consumer.pop_each(usize::MAX, |n| seen.push(n)), 0);
        assert!(seen.into_iter().eq(10..18));
    }
}

#[test]
fn a_second_pair_goes_on_where_the_first_stopped() {
    let mut memory = slots::<_, 4>();
    let mut ring = Ring::new(&mut memory).unwrap();
    let (mut producer, mut consumer) = ring.split();
    assert_eq!(producer.push_slice(&[1, 2, 3]), 3);
    assert_eq!(consumer.pop(), Some(1));
    let (mut producer, mut consumer) = ring.split();
    assert_eq!(producer.push_slice(&[4, 5, 99]), 2);
    let mut seen = Vec::new();
    consumer.pop_each(9, |n| seen.push(n));
    assert_eq!(seen, [2, 3, 4, 5]);
}

#[test]
fn every_element_is_dropped_once() {
    let counted = Counted::default();
    {
        let mut memory = slots::<_, 8>();
        let mut ring = Ring::starting_at(&mut memory, u32::MAX - 4).unwrap();
        let (mut producer, mut consumer) = ring.split();
        assert_eq!(producer.push_iter((0..20).map(|_| counted.one())), 8);
        drop(consumer.pop());
        let mut out = [const { MaybeUninit::uninit() }; 2];
        for item in consumer.pop_slice(&mut out) {
            // SAFETY: the popped elements belong to the caller, and `out` does not drop them.
            unsafe { core::ptr::drop_in_place(item) };
        }
        assert_eq!(consumer.pop_each(1, drop), 1);
        assert!(producer.push(counted.one()).is_ok());
        assert_eq!((counted.made(), counted.dropped()), (9, 4));
    }
    assert_eq!((counted.made(), counted.dropped()), (9, 9));
}

#[test]
fn a_panic_in_the_callers_code_loses_nothing_and_repeats_nothing() {
    let counted = Counted::default();
    {
        let mut memory = slots::<_, 8>();
        let mut ring = Ring::new(&mut memory).unwrap();
        let (mut producer, mut consumer) = ring.split();
        let items = (0..8).map(|n| {
            if n == 5 {
                panic!("sixth")
            } else {
                counted.one()
            }
        });
        assert!(catch_unwind(AssertUnwindSafe(|| producer.push_iter(items))).is_err());
        let mut left = 2;
        let each = |_| {
            left -= 1;
            assert_ne!(left, 0, "second");
        };
        assert!(catch_unwind(AssertUnwindSafe(|| consumer.pop_each(8, each))).is_err());
        assert_eq!(counted.dropped(), 2);
        assert_eq!(consumer.pop_each(8, drop), 3);
        assert_eq!(producer.push_iter((0..9).map(|_| counted.one())), 8);
    }
    assert_eq!((counted.made(), counted.dropped()), (13, 13));
}

#[test]
fn two_threads_lose_and_reorder_nothing() {
    const COUNT: u32 = if cfg!(miri) { 200 } else { 400_000 };
    let mut memory = slots::<_, 16>();
    let mut ring = Ring::starting_at(&mut memory, u32::MAX - 100).unwrap();
    let (mut producer, mut consumer) = ring.split();
    thread::scope(|threads| {
        threads.spawn(move || {
            let mut items = 0..COUNT;
            while !items.is_empty() {
                let before = items.start;
                match before % 3 {
                    0 => items.start += u32::from(producer.push(before).is_ok()),
                    1 => drop(producer.push_iter(items.by_ref().take(5))),
                    _ => {
                        let batch = [0, 1, 2].map(|n| before + n);
                        let batch = &batch[..batch.len().min(items.len())];
                        items.start += producer.push_slice(batch) as u32;
                    }
                }
                if items.start == before {
                    thread::yield_now();
                }
            }
        });
        let mut next = 0;
        let mut check = |n| {
            assert_eq!(n, next);
            next += 1;
            next
        };
        let mut out = [const { MaybeUninit::uninit() }; 7];
        let mut last = 0;
        while last < COUNT {
            let before = last;
            match last % 3 {
                0 => last = consumer.pop().map_or(last, &mut check),
                1 => drop(consumer.pop_each(5, |n| last = check(n))),
                _ => consumer
                    .pop_slice(&mut out)
                    .iter()
                    .for_each(|n| last = check(*n)),
            }
            if last == before {
                thread::yield_now();
            }
        }
        assert_eq!(consumer.pop(), None);
    });
}
