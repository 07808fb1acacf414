use super::*;
use crate::ring::tests::{Counted, STARTS};
use static_assertions::{assert_impl_all, assert_not_impl_any};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{thread, vec::Vec};

assert_impl_all!(Producer<'static, u8>: Send, Sync, Clone);
assert_impl_all!(Consumer<'static, u8>: Send);
assert_not_impl_any!(Consumer<'static, u8>: Sync, Clone);
assert_not_impl_any!(Producer<'static, std::rc::Rc<u8>>: Send, Sync);
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
        let mut ring = Ring::starting_at(&mut memory, start.into()).unwrap();
        assert_eq!(ring.capacity(), 4);
        let (producer, mut consumer) = ring.split();
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
    let mut ring = Ring::starting_at(&mut memory, u32::MAX.into()).unwrap();
    let (producer, mut consumer) = ring.split();
    for n in 0..4 {
        assert_eq!(producer.push_slice(&[n, 99]), 1);
        assert_eq!(producer.push(99), Err(Full(99)));
        assert_eq!(consumer.pop(), Some(n));
        assert_eq!(consumer.pop(), None);
    }
}

#[test]
fn old_memory_holds_no_elements() {
    let mut memory = slots::<_, 4>();
    let mut ring = Ring::new(&mut memory).unwrap();
    assert_eq!(ring.split().0.push_slice(&[1, 2, 3]), 3);
    drop(ring);
    let mut ring = Ring::new(&mut memory).unwrap();
    assert_eq!(ring.split().1.pop(), None);
}

#[test]
fn batches_cross_the_wrap() {
    for start in STARTS {
        let mut memory = slots::<_, 8>();
        let mut ring = Ring::starting_at(&mut memory, start.into()).unwrap();
        let (producer, mut consumer) = ring.split();
        let mut out = [const { MaybeUninit::uninit() }; 8];
        assert_eq!(producer.push_slice(&[]), 0);
        assert_eq!(producer.push_all([]), Ok(()));
        assert_eq!(consumer.pop_slice(&mut out), []);
        assert_eq!(producer.push_slice(&[0, 1, 2, 3, 4]), 5);
        assert_eq!(consumer.pop_slice(&mut out[..2]), [0, 1]);
        assert_eq!(producer.push_slice(&[5, 6, 7, 8, 9, 99, 99]), 5);
        assert_eq!(producer.push_slice(&[99]), 0);
        let mut seen = Vec::new();
        assert_eq!(consumer.pop_each(3, |n| seen.push(n)), 3);
        assert_eq!(producer.push_all([99; 4]), Err(Full([99; 4])));
        assert_eq!(producer.push_all([10, 11, 12]), Ok(()));
        assert_eq!(consumer.pop_each(usize::MAX, |n| seen.push(n)), 8);
        assert_eq!(consumer.pop_each(usize::MAX, |n| seen.push(n)), 0);
        assert!(seen.into_iter().eq(2..13));
        assert_eq!(producer.push_all([99; 9]), Err(Full([99; 9])));
        assert_eq!(consumer.pop(), None);
    }
}

#[test]
fn a_second_pair_goes_on_where_the_first_stopped() {
    let mut memory = slots::<_, 4>();
    let mut ring = Ring::new(&mut memory).unwrap();
    let (producer, mut consumer) = ring.split();
    assert_eq!(producer.push_slice(&[1, 2, 3]), 3);
    assert_eq!(consumer.pop(), Some(1));
    let (producer, mut consumer) = ring.split();
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
        let mut ring = Ring::starting_at(&mut memory, (u32::MAX - 4).into()).unwrap();
        let (producer, mut consumer) = ring.split();
        assert!(producer.push_all([(); 6].map(|()| counted.one())).is_ok());
        drop(consumer.pop());
        let mut out = [const { MaybeUninit::uninit() }; 2];
        for item in consumer.pop_slice(&mut out) {
            // SAFETY: the popped elements belong to the caller, and `out` does not drop them.
            unsafe { core::ptr::drop_in_place(item) };
        }
        assert_eq!(consumer.pop_each(1, drop), 1);
        assert_eq!(counted.dropped(), 4);
        assert!(producer.push_all([(); 7].map(|()| counted.one())).is_err());
        assert_eq!((counted.made(), counted.dropped()), (13, 11));
        assert!(producer.push(counted.one()).is_ok());
    }
    assert_eq!((counted.made(), counted.dropped()), (14, 14));
}

#[test]
fn a_panic_in_the_closure_repeats_nothing() {
    let counted = Counted::default();
    {
        let mut memory = slots::<_, 4>();
        let mut ring = Ring::new(&mut memory).unwrap();
        let (producer, mut consumer) = ring.split();
        assert!(producer.push_all([(); 4].map(|()| counted.one())).is_ok());
        let each = |_| panic!("first");
        assert!(catch_unwind(AssertUnwindSafe(|| consumer.pop_each(4, each))).is_err());
        assert_eq!(counted.dropped(), 1);
        assert!(producer.push(counted.one()).is_ok());
        assert!(producer.push(counted.one()).is_err());
        assert_eq!(consumer.pop_each(9, drop), 4);
    }
    assert_eq!((counted.made(), counted.dropped()), (6, 6));
}

#[test]
fn many_threads_lose_nothing_and_each_keeps_its_order() {
    const COUNT: u32 = if cfg!(miri) { 100 } else { 100_000 };
    const PRODUCERS: u32 = 3;
    let mut memory = slots::<_, 16>();
    let mut ring = Ring::starting_at(&mut memory, (u32::MAX - 100).into()).unwrap();
    let (producer, mut consumer) = ring.split();
    thread::scope(|threads| {
        for id in 0..PRODUCERS {
            let producer = producer.clone();
            threads.spawn(move || {
                let mut next = 0;
                while next < COUNT {
                    let pushed = match next % 3 {
                        0 => u32::from(producer.push((id, next)).is_ok()),
                        1 if next + 1 < COUNT => {
                            2 * u32::from(producer.push_all([(id, next), (id, next + 1)]).is_ok())
                        }
                        _ => {
                            let batch = [0, 1, 2, 3, 4].map(|n| (id, next + n));
                            let fits = batch.len().min((COUNT - next) as usize);
                            producer.push_slice(&batch[..fits]) as u32
                        }
                    };
                    next += pushed;
                    if pushed == 0 {
                        thread::yield_now();
                    }
                }
            });
        }
        let mut nexts = [0; PRODUCERS as usize];
        let mut check = |(id, n): (u32, u32)| {
            let next = &mut nexts[id as usize];
            assert_eq!(n, *next);
            *next += 1;
        };
        let mut out = [const { MaybeUninit::uninit() }; 7];
        let mut total = 0;
        while total < COUNT * PRODUCERS {
            let popped = match total % 3 {
                0 => consumer.pop().map_or(0, |item| {
                    check(item);
                    1
                }),
                1 => consumer.pop_each(5, &mut check),
                _ => {
                    let popped = consumer.pop_slice(&mut out);
                    popped.iter().copied().for_each(&mut check);
                    popped.len()
                }
            };
            total += popped as u32;
            if popped == 0 {
                thread::yield_now();
            }
        }
        assert_eq!(consumer.pop(), None);
        assert_eq!(nexts, [COUNT; PRODUCERS as usize]);
    });
}
