//! Examining a completion queue's entries without polling them, while another thread may poll.

use bellwire_core::barrier;
use bellwire_core::cqe::{Cqe64, is_sw_owned};
use bellwire_core::port::DoorbellRecord;
use bellwire_core::queue::CqMemory;
use bellwire_provider::backoff::Backoff;
use std::sync::atomic::{AtomicBool, Ordering};

/// The index in the consumer record has 24 bits.
pub const CI_MASK: u32 = 0xff_ffff;

/// The entries of a completion queue, and the index up to which they were polled.
#[derive(Debug)]
pub struct Entries {
    memory: CqMemory<'static>,
    consumer: &'static DoorbellRecord,
    /// A thread on the control path examines or moves the entries.
    busy: AtomicBool,
}

impl Entries {
    pub(super) fn new(memory: CqMemory<'static>, consumer: &'static DoorbellRecord) -> Self {
        Self {
            memory,
            consumer,
            busy: AtomicBool::new(false),
        }
    }

    /// Runs `look` while no other thread on the control path examines or moves the entries.
    pub fn hold_still<R>(&self, look: impl FnOnce() -> R) -> R {
        struct Taken<'c>(&'c AtomicBool);
        impl Drop for Taken<'_> {
            fn drop(&mut self) {
                // Release: pairs with the Acquire when the next thread takes `busy`.
                self.0.store(false, Ordering::Release);
            }
        }
        let mut backoff = Backoff::between_polls();
        // Acquire: pairs with the Release in `drop`.
        while self.busy.swap(true, Ordering::Acquire) {
            backoff.wait();
        }
        let _taken = Taken(&self.busy);
        look()
    }

    /// Folds the entries that were not polled with `each`; returns the result, and the index after the last
    /// entry, of 24 bits. Another thread may poll meanwhile: an entry that was polled and overwritten is not
    /// counted.
    pub fn fold<T>(&self, start: impl Fn() -> T, mut each: impl FnMut(&mut T, &Cqe64)) -> (T, u32) {
        self.hold_still(|| {
            loop {
                let (mut sum, from) = (start(), self.consumer.load());
                let mut at = from;
                while at.wrapping_sub(from) < self.memory.count()
                    && let Some(cqe) = self.read(at)
                {
                    at = at.wrapping_add(1);
                    each(&mut sum, &cqe);
                }
                // Entries that were polled meanwhile may have been overwritten: then this has stopped too
                // early, and starts again. The entries are read before the index.
                barrier::from_device();
                let now = self.consumer.load();
                if at.wrapping_sub(now) & CI_MASK <= CI_MASK / 2 {
                    return (sum, at & CI_MASK);
                }
            }
        })
    }

    /// The entry at this index, if the device has written it.
    fn read(&self, index: u32) -> Option<Cqe64> {
        const LAST: usize = size_of::<Cqe64>() - 1;
        let entry = self.memory.entry(index);
        // SAFETY: within the ring. The device may write the entry meanwhile, therefore the read is volatile:
        // a torn entry has been polled, and is discarded.
        let op_own = unsafe { entry.cast::<u8>().add(LAST).read_volatile() };
        let owned = is_sw_owned(op_own, index, self.memory.count());
        owned.then(|| {
            barrier::from_device();
            // SAFETY: within the ring; a torn entry has been polled, and is discarded.
            unsafe { entry.read_volatile() }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pinned::Pinned;
    use bellwire_core::cqe::{CompletedWqe, owner_bit};

    const COUNT: u32 = 16;

    struct Ring {
        memory: CqMemory<'static>,
        consumer: &'static DoorbellRecord,
        entries: Entries,
        _ring: Pinned,
        _record: Box<DoorbellRecord>,
    }

    fn ring() -> Ring {
        let ring = Pinned::zeroed(COUNT as usize * 64).unwrap();
        // SAFETY: the memory is kept beside it, and used by the test alone.
        let memory = unsafe { CqMemory::new(ring.start(), COUNT, 64) }.expect("sizes");
        let record = Box::<DoorbellRecord>::default();
        // SAFETY: the record is kept beside it.
        let consumer = unsafe { &*std::ptr::from_ref(&*record) };
        Ring {
            memory,
            consumer,
            entries: Entries::new(memory, consumer),
            _ring: ring,
            _record: record,
        }
    }

    fn write(memory: CqMemory<'static>, index: u32) {
        let wqe = CompletedWqe {
            qpn: index & 0xffff,
            ..CompletedWqe::default()
        };
        let cqe = Cqe64::requester(wqe, 0, 0);
        // SAFETY: within the ring, and the previous entry there was polled.
        unsafe {
            Cqe64::publish(
                memory.entry(index),
                &cqe,
                cqe.op_own() | owner_bit(index, COUNT),
            )
        };
    }

    fn numbers(ring: &Ring) -> (Vec<u32>, u32) {
        ring.entries.fold(Vec::new, |all, cqe| all.push(cqe.qpn()))
    }

    #[test]
    fn what_was_not_polled_is_seen_on_every_lap() {
        let ring = ring();
        for index in 0..COUNT * 5 {
            ring.consumer.store(index & CI_MASK);
            assert_eq!(numbers(&ring), (vec![], index));
            write(ring.memory, index);
            assert_eq!(numbers(&ring), (vec![index], index + 1));
        }
    }

    #[test]
    fn a_full_ring_is_seen_once() {
        let ring = ring();
        (0..COUNT).for_each(|index| write(ring.memory, index));
        assert_eq!(numbers(&ring), ((0..COUNT).collect(), COUNT));
    }

    /// Whatever the record contains, no more entries are examined than the ring has, and the examination
    /// ends.
    #[test]
    fn a_wild_record_is_bounded() {
        let ring = ring();
        (0..COUNT).for_each(|index| write(ring.memory, index));
        for step in 0..10_000_u32 {
            ring.consumer.store(step.wrapping_mul(0x9e37_79b9));
            assert!(numbers(&ring).0.len() <= COUNT as usize);
        }
    }

    /// Another thread polls and the device writes meanwhile: the entries found are in order and without a
    /// gap.
    #[test]
    fn others_may_poll_meanwhile() {
        let ring = ring();
        std::thread::scope(|scope| {
            let (memory, consumer) = (ring.memory, ring.consumer);
            let polled = scope.spawn(move || {
                for index in 0..200_000_u32 {
                    // At least one entry is written and not polled.
                    write(memory, index);
                    consumer.store(index & CI_MASK);
                }
            });
            while !polled.is_finished() {
                let (seen, end) = numbers(&ring);
                let in_order = seen.windows(2).all(|two| two[1] == (two[0] + 1) & 0xffff);
                assert!(in_order && end <= 200_000, "{seen:?} {end}");
            }
        });
        assert_eq!(numbers(&ring), (vec![199_999 & 0xffff], 200_000));
    }
}
