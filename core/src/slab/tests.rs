use super::*;
use crate::random::Random;
use std::boxed::Box;
use std::collections::HashMap;
use std::vec::Vec;

#[repr(align(4096))]
struct Page(#[allow(dead_code, reason = "reached by pointer")] [u8; 4096]);

const LAYOUT: &[ClassLayout] = &[
    ClassLayout {
        size: 64,
        count: 40,
    },
    ClassLayout {
        size: 192,
        count: 3,
    },
    ClassLayout {
        size: 4096,
        count: 2,
    },
];

fn region(pages: usize) -> SlabRegion {
    let memory: Vec<Page> = (0..pages).map(|_| Page([0; 4096])).collect();
    let memory = Box::leak(memory.into_boxed_slice());
    SlabRegion {
        length: pages * 4096,
        start: NonNull::from(memory).cast(),
        lkey: 5,
        rkey: 6,
    }
}

fn records<T: Default>(count: usize) -> &'static mut [T] {
    Box::leak((0..count).map(|_| T::default()).collect())
}

fn slab() -> Slab<'static> {
    // SAFETY: leaked memory that only this test uses.
    unsafe { Slab::new(records(45), records(3), region(4), LAYOUT).expect("fits") }
}

#[test]
fn blocks_are_apart_aligned_and_within() {
    let slab = slab();
    let mut blocks = Vec::new();
    for class in LAYOUT {
        for _ in 0..class.count {
            let mut block = slab.take(class.size).expect("not empty");
            assert_eq!((block.capacity(), block.lkey()), (class.size, 5));
            assert!(block.addr().is_multiple_of(class.align() as u64));
            assert_eq!(block.addr() - slab.start as u64, block.offset());
            block.as_mut_slice().fill(blocks.len() as u8);
            blocks.push(block);
        }
        assert_eq!(
            slab.take(class.size).unwrap_err(),
            TakeError::Empty { size: class.size }
        );
    }
    assert_eq!((slab.free(), slab.outstanding()), (0, 45));
    for (at, block) in blocks.iter().enumerate() {
        assert!(block.as_slice().iter().all(|&byte| byte == at as u8));
    }
    blocks.sort_by_key(Block::addr);
    let apart = blocks
        .windows(2)
        .all(|pair| pair[0].addr() + u64::from(pair[0].capacity()) <= pair[1].addr());
    assert!(apart && blocks[44].offset() + 4096 <= 4 * 4096);
    drop(blocks);
    assert_eq!(slab.outstanding(), 0);
    let error = slab.take(4097).unwrap_err();
    assert_eq!(
        error,
        TakeError::TooLarge {
            length: 4097,
            max: 4096
        }
    );
}

#[test]
fn layouts_that_cannot_be_are_refused() {
    let make = |metas, classes, region, layout: &[ClassLayout]| {
        // SAFETY: leaked memory that only this test uses.
        unsafe { Slab::new(records(metas), records(classes), region, layout) }.map(|_| ())
    };
    let class = |size, count| ClassLayout { size, count };
    assert_eq!(make(1, 1, region(1), &[]), Err(LayoutError::NoClasses));
    for bad in [class(0, 1), class(64, 0), class(100, 1)] {
        assert_eq!(
            make(1, 1, region(1), &[bad]),
            Err(LayoutError::BadClass(bad))
        );
    }
    let twice = [class(64, 1), class(64, 1)];
    assert_eq!(
        make(2, 2, region(1), &twice),
        Err(LayoutError::NotAscending)
    );
    let few = make(3, 1, region(1), &[class(64, 4)]);
    assert!(matches!(
        few,
        Err(LayoutError::TooFewRecords {
            blocks: 4,
            metas: 3,
            ..
        })
    ));
    let small = make(2, 1, region(1), &[class(4096, 2)]);
    assert_eq!(
        small,
        Err(LayoutError::RegionTooSmall {
            needed: 8192,
            given: 4096
        })
    );
    let mut shifted = region(2);
    // SAFETY: within the two pages.
    shifted.start = unsafe { shifted.start.add(64) };
    assert_eq!(
        make(1, 1, shifted, &[class(64, 1)]),
        Err(LayoutError::Misaligned)
    );
    let huge = make(9, 1, region(1), &[class(u32::MAX - 63, u32::MAX)]);
    assert!(matches!(huge, Err(LayoutError::TooFewRecords { .. })));
}

#[test]
fn the_raw_path_reports_what_is_wrong() {
    let slab = slab();
    let block = slab.take(64).expect("not empty");
    let addr = block.addr();
    let _raw = block.into_raw();
    // SAFETY: the block belongs to the test, and nothing else uses it.
    unsafe {
        assert_eq!(
            slab.give_back_raw(addr + 8),
            Err(RawFreeError::Misaligned { addr: addr + 8 })
        );
        assert_eq!(
            slab.give_back_raw(8),
            Err(RawFreeError::Foreign { addr: 8 })
        );
        let beyond = addr + (1 << 30);
        assert_eq!(
            slab.give_back_raw(beyond),
            Err(RawFreeError::Foreign { addr: beyond })
        );
        assert_eq!(slab.block_at(addr).expect("taken").into_raw(), _raw);
        assert_eq!(slab.give_back_raw(addr), Ok(()));
        assert_eq!(
            slab.give_back_raw(addr),
            Err(RawFreeError::DoubleFree { addr })
        );
        assert!(slab.block_at(addr).is_err());
    }
    assert_eq!(slab.outstanding(), 0);
}

#[test]
fn a_caches_free_blocks_are_free_to_the_raw_path() {
    let slab = slab();
    let mut cache = slab.cache(1).expect("a class");
    let block = cache.take().expect("not empty");
    let addr = block.addr();
    cache.put(block);
    // SAFETY: the block is free; the test checks that this is detected.
    let again = unsafe { slab.give_back_raw(addr) };
    assert_eq!(again, Err(RawFreeError::DoubleFree { addr }));
    let larger = slab.take(192).expect("not empty");
    cache.put(larger);
    drop(cache);
    assert_eq!(slab.outstanding(), 0);
}

#[test]
fn caches_refill_spill_and_give_everything_back() {
    let slab = slab();
    let (mut one, mut two) = (
        slab.cache(64).expect("class"),
        slab.cache(64).expect("class"),
    );
    let mut blocks: Vec<_> = std::iter::from_fn(|| one.take().ok()).collect();
    assert_eq!(blocks.len(), 40);
    assert_eq!(two.take().unwrap_err(), TakeError::Empty { size: 64 });
    while let Some(block) = blocks.pop() {
        two.put(block);
    }
    assert_eq!(slab.free(), 5, "all in the cache");
    drop(one);
    drop(two);
    assert_eq!(slab.outstanding(), 0);
}

/// Compares with a model: whatever the order, no block is taken twice and none is lost.
#[test]
fn random_use_loses_and_doubles_nothing() {
    let slab = slab();
    let mut cache = slab.cache(64).expect("class");
    let mut out: HashMap<u64, Block<'_>> = HashMap::new();
    let mut random = Random(1);
    for step in 0..if cfg!(miri) { 150 } else { 100_000 } {
        let any = out.keys().nth(random.below(out.len().max(1))).copied();
        match random.below(5) {
            0 => drop(any.and_then(|addr| out.remove(&addr))),
            1 => any
                .into_iter()
                .for_each(|addr| cache.put(out.remove(&addr).expect("there"))),
            2 => {
                if let Ok(block) = cache.take() {
                    assert!(out.insert(block.addr(), block).is_none(), "{step}");
                }
            }
            _ => {
                if let Ok(block) = slab.take(random.below(4200) as u32) {
                    assert!(out.insert(block.addr(), block).is_none(), "{step}");
                }
            }
        }
    }
    drop((cache, out));
    assert_eq!(slab.outstanding(), 0);
}

#[test]
fn threads_share_it() {
    let slab = slab();
    let rounds = if cfg!(miri) { 15 } else { 50_000 };
    std::thread::scope(|scope| {
        let (give, got) = std::sync::mpsc::channel::<Block<'_>>();
        scope.spawn(|| got.into_iter().for_each(drop));
        for thread in 0..2u8 {
            let (slab, give) = (&slab, give.clone());
            scope.spawn(move || {
                for _ in 0..rounds {
                    let Ok(mut block) = slab.take(64) else {
                        std::thread::yield_now();
                        continue;
                    };
                    block.as_mut_slice().fill(thread);
                    std::hint::spin_loop();
                    assert!(block.as_slice().iter().all(|&byte| byte == thread));
                    if give.send(block).is_err() {
                        break;
                    }
                }
            });
        }
        drop(give);
    });
    assert_eq!(slab.outstanding(), 0);
}

#[test]
fn what_peers_write_is_read_by_words_or_bytes() {
    let slab = slab();
    let mut block = slab.take(64).expect("not empty");
    block.as_mut_slice()[8..16].copy_from_slice(&7u64.to_ne_bytes());
    let ordering = core::sync::atomic::Ordering::Acquire;
    assert_eq!(block.load_u64(8, ordering), Some(7));
    assert_eq!(block.load_u64(57, ordering), None);
    assert_eq!(block.load_u64(64, ordering), None);
    assert_eq!(block.load_u64(4, ordering), None);
    let mut bytes = [1; 9];
    assert!(block.read_volatile(55, &mut bytes) && bytes == [0; 9]);
    assert!(!block.read_volatile(56, &mut bytes));
    assert_eq!((block.sge(10).length, block.sge(100).length), (10, 64));
}
