//! A bounded ring from many threads to a single owner.
//!
//! Each slot carries a stamp that says when it is filled, as in D. Vyukov's bounded MPMC queue
//! (<https://www.1024cores.net/home/lock-free-algorithms/queues/bounded-mpmc-queue>). Because there
//! is one consumer, slots are freed in order, by one index for the whole ring instead of a stamp
//! each: popping needs no read-modify-write, and by reading that index once a producer finds a run
//! of free slots, which it takes with one compare-and-swap.
//!
//! ```text
//! push:  tail ── compare-and-swap ──▶ positions are mine ─▶ write elements ─▶ stamp = position + 1
//! pop:   stamp at head = head + 1 ?  ─▶ read element ─▶ store head
//! ```
//!
//! # What lock-free means here
//!
//! Producers never wait for one another: a push retries only when another one has succeeded (after
//! a bounded number of pause instructions), and fails at once when the ring is full. A pop never
//! waits. But elements are popped in the order of their positions: a producer that is preempted
//! between taking its positions and stamping them (a few stores, with no call and no panic in
//! between) hides its own elements and all later ones from the consumer until it runs again.
//! Meanwhile other producers can push until the ring is full, and [`Consumer::pop`] returns `None`.
//! So, like Vyukov's queue, the ring as a whole is not lock-free; do not kill a thread that may be
//! pushing.
//!
//! ```
//! use bellwire_core::ring::mpsc::{Ring, Slot};
//!
//! let mut slots = [const { Slot::new() }; 64];
//! let mut ring = Ring::new(&mut slots)?;
//! let (producer, mut consumer) = ring.split();
//! std::thread::scope(|threads| {
//!     for _ in 0..2 {
//!         threads.spawn(|| (0..10).for_each(|n| producer.push(n).unwrap()));
//!     }
//!     let (mut count, mut sum) = (0, 0);
//!     while count < 20 {
//!         count += consumer.pop_each(8, |n| sum += n);
//!     }
//!     assert_eq!(sum, 90);
//! });
//! # Ok::<(), bellwire_core::ring::RingSizeError>(())
//! ```
//!
//! There is one consumer:
//!
//! ```compile_fail,E0599
//! # use bellwire_core::ring::mpsc::{Ring, Slot};
//! # let mut slots = [const { Slot::<u32>::new() }; 2];
//! # let mut ring = Ring::new(&mut slots).unwrap();
//! let (_producer, consumer) = ring.split();
//! let second = consumer.clone();
//! ```

use super::{Cursor, Full, OwnLine, RingSize, RingSizeError};
use crate::sync::UnsafeCell;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::mem::MaybeUninit;
use crossbeam_utils::{Backoff, CachePadded};

/// Room for one element, and its stamp. Any initialised bytes are a valid slot, so other memory
/// (zeroed, for example) may be cast to slots if it is aligned for them.
pub struct Slot<T> {
    /// The low half of the last position written to this slot, plus one.
    stamp: AtomicU32,
    item: UnsafeCell<MaybeUninit<T>>,
}

impl<T> Slot<T> {
    /// An empty slot.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self {
            stamp: AtomicU32::new(0),
            item: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// An empty slot (loom's cells cannot be created in constants).
    #[cfg(loom)]
    pub fn new() -> Self {
        Self {
            stamp: AtomicU32::new(0),
            item: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// Positions are 64-bit indexes, which never wrap: a producer that is preempted between reading the
/// tail and swapping it cannot mistake a later tail for the one that it read.
struct Positions {
    /// The next position to pop. Stored by the consumer.
    head: CachePadded<AtomicU64>,
    producers: CachePadded<Producers>,
}

/// The indexes shared by the producers, on one cache line.
struct Producers {
    /// The next position to push.
    tail: AtomicU64,
    /// A head that some producer has read: it saves the others fetching the line that the consumer
    /// writes. It may be older than the head, even older than its own earlier values; a producer
    /// that finds too little room reads the head itself.
    head_seen: AtomicU64,
}

/// A ring over the caller's memory. Split it to use it. Dropping it drops the elements left in it.
pub struct Ring<'m, T> {
    positions: Positions,
    slots: &'m mut [Slot<T>],
    size: RingSize,
}

impl<'m, T> Ring<'m, T> {
    /// Creates an empty ring that holds as many elements as there are slots.
    ///
    /// # Errors
    /// When the number of slots is zero, not a power of two, or above [`RingSize::MAX`].
    pub fn new(slots: &'m mut [Slot<T>]) -> Result<Self, RingSizeError> {
        Self::starting_at(slots, 0)
    }

    /// Creates an empty ring whose first position is `start`.
    pub(super) fn starting_at(slots: &'m mut [Slot<T>], start: u64) -> Result<Self, RingSizeError> {
        let size = RingSize::new(slots.len())?;
        for ahead in 0..size.get() {
            let position = Cursor::new(start as u32).advance(ahead);
            // Any stamp except the one that means "filled". Relaxed: the slots are not shared yet.
            slots[position.slot(size)]
                .stamp
                .store(position.index(), Ordering::Relaxed);
        }
        let producers = Producers {
            tail: AtomicU64::new(start),
            head_seen: AtomicU64::new(start),
        };
        let positions = Positions {
            head: CachePadded::new(AtomicU64::new(start)),
            producers: CachePadded::new(producers),
        };
        Ok(Self {
            positions,
            slots,
            size,
        })
    }

    /// Returns the two halves; the producer can be cloned. They continue where an earlier pair
    /// stopped.
    ///
    /// The halves borrow the ring. Where they must live apart from it (behind a C handle), put the
    /// ring in memory that outlives them and borrow it through a pointer: the caller then
    /// guarantees the borrow.
    pub fn split(&mut self) -> (Producer<'_, T>, Consumer<'_, T>) {
        let Self {
            positions,
            slots,
            size,
        } = self;
        // Relaxed: `&mut self` is ordered after everything that earlier halves did.
        let head = positions.head.load(Ordering::Relaxed);
        (
            Producer {
                positions,
                slots,
                size: *size,
            },
            Consumer {
                head,
                published: &positions.head,
                slots,
                size: *size,
                _own_line: OwnLine::default(),
            },
        )
    }

    /// The number of elements that fit.
    pub fn capacity(&self) -> u32 {
        self.size.get()
    }
}

impl<T> Drop for Ring<'_, T> {
    fn drop(&mut self) {
        if core::mem::needs_drop::<T>() {
            self.split().1.pop_each(usize::MAX, drop);
        }
    }
}

/// The pushing half of a [`Ring`]. Clone it, or share it between threads.
pub struct Producer<'r, T> {
    positions: &'r Positions,
    slots: &'r [Slot<T>],
    size: RingSize,
}

// SAFETY: a producer writes only slots whose positions it took from the shared tail. Elements cross
// threads, so they must be Send.
unsafe impl<T: Send> Send for Producer<'_, T> {}
// SAFETY: two calls of `push` through one reference are no different from calls through two clones.
unsafe impl<T: Send> Sync for Producer<'_, T> {}

impl<T> Clone for Producer<'_, T> {
    fn clone(&self) -> Self {
        Self { ..*self }
    }
}

impl<T> Producer<'_, T> {
    /// Pushes one element.
    ///
    /// # Errors
    /// [`Full`], which returns the element.
    #[inline]
    pub fn push(&self, item: T) -> Result<(), Full<T>> {
        let Some((position, _)) = self.reserve(1, 1) else {
            return Err(Full(item));
        };
        // SAFETY: the position has just been reserved.
        unsafe { self.fill(position, item) };
        Ok(())
    }

    /// Pushes all of `items`, adjacent to each other, or none.
    ///
    /// # Errors
    /// [`Full`], which returns them, when they do not all fit.
    #[inline]
    pub fn push_all<const N: usize>(&self, items: [T; N]) -> Result<(), Full<[T; N]>> {
        let Some((first, _)) = self.reserve(N, N) else {
            return Err(Full(items));
        };
        for (position, item) in (first..).zip(items) {
            // SAFETY: `N` positions from `first` have just been reserved.
            unsafe { self.fill(position, item) };
        }
        Ok(())
    }

    /// Pushes as many of `items` as fit, starting with the first, adjacent to each other, and
    /// returns how many.
    #[inline]
    pub fn push_slice(&self, items: &[T]) -> usize
    where
        T: Copy,
    {
        let Some((first, count)) = self.reserve(1, items.len()) else {
            return 0;
        };
        for (position, item) in (first..).zip(&items[..count]) {
            // SAFETY: `count` positions from `first` have just been reserved.
            unsafe { self.fill(position, *item) };
        }
        count
    }

    /// Takes at least `least` and at most `most` positions; returns the first one and their number.
    #[inline(always)]
    fn reserve(&self, least: usize, most: usize) -> Option<(u64, usize)> {
        let Producers {
            tail: shared_tail,
            head_seen,
        } = &*self.positions.producers;
        // Relaxed: the tail orders no access to elements. The head says which slots are free, the
        // stamps say which are filled.
        let mut tail = shared_tail.load(Ordering::Relaxed);
        let backoff = Backoff::new();
        loop {
            // Acquire: pairs with the Release below.
            let seen = head_seen.load(Ordering::Acquire);
            let mut room = self.room(seen, tail);
            if room < most {
                // Acquire: pairs with the Release in `Consumer::publish`, so that the consumer has
                // read the slots before they are overwritten.
                let head = self.positions.head.load(Ordering::Acquire);
                if head != seen {
                    // Release: pairs with the Acquire above; passes on what the Acquire of the head
                    // has seen.
                    head_seen.store(head, Ordering::Release);
                }
                room = self.room(head, tail);
            }
            let count = room.min(most);
            if count < least {
                return None;
            }
            // Relaxed, like the load of the tail. A tail older than the head yields too much room,
            // but then the tail has changed and the swap fails.
            match shared_tail.compare_exchange_weak(
                tail,
                tail.wrapping_add(count as u64),
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some((tail, count)),
                Err(now) => {
                    // Lets the other producer complete its next push while it has the cache line.
                    // The tail is not loaded again, because that would fetch the line for reading,
                    // and then once more for the swap.
                    backoff.spin();
                    tail = now;
                }
            }
        }
    }

    /// The number of free slots between a head and a tail; zero if an old head is more than the
    /// ring's size behind.
    #[inline(always)]
    fn room(&self, head: u64, tail: u64) -> usize {
        let end = head.wrapping_add(u64::from(self.size.get()));
        (end.wrapping_sub(tail) as i64).max(0) as usize
    }

    /// Writes the element at a position, and stamps it as filled.
    ///
    /// # Safety
    /// The position comes from `reserve`, and is filled only once.
    #[inline(always)]
    unsafe fn fill(&self, position: u64, item: T) {
        let position = Cursor::new(position as u32);
        // SAFETY: a slot's number is less than the ring's size.
        let slot = unsafe { self.slots.get_unchecked(position.slot(self.size)) };
        // SAFETY: the slot belongs to this producer until it is stamped.
        slot.item
            .with_mut(|cell| unsafe { cell.write(MaybeUninit::new(item)) });
        // Release: pairs with the Acquire in `Consumer::take`, so that the element is written
        // before it is visible.
        slot.stamp
            .store(position.advance(1).index(), Ordering::Release);
    }
}

/// The popping half of a [`Ring`]. It may be moved to another thread, but not shared.
pub struct Consumer<'r, T> {
    head: u64,
    published: &'r AtomicU64,
    slots: &'r [Slot<T>],
    size: RingSize,
    _own_line: OwnLine,
}

// SAFETY: there is only one consumer, and the slots that it reads belong to a producer only after
// `publish`. Elements cross threads, so they must be Send.
unsafe impl<T: Send> Send for Consumer<'_, T> {}

impl<T> Consumer<'_, T> {
    /// Pops the oldest element. `None` when the ring is empty, or while the producer of the oldest
    /// element is still writing it.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let item = self.take()?;
        self.publish();
        Some(item)
    }

    /// Pops as many elements as are ready and fit into `out`, oldest first, and returns them as the
    /// first part of `out`. The caller has to drop them.
    #[inline]
    pub fn pop_slice<'o>(&mut self, out: &'o mut [MaybeUninit<T>]) -> &'o mut [T] {
        let mut count = 0;
        for place in &mut *out {
            let Some(item) = self.take() else { break };
            place.write(item);
            count += 1;
        }
        if count > 0 {
            self.publish();
        }
        // SAFETY: `count` is at most the length of `out`, and that many elements have been moved
        // into it.
        unsafe { core::slice::from_raw_parts_mut(out.as_mut_ptr().cast(), count) }
    }

    /// Pops at most `most` elements, oldest first, passes each to `each`, and returns how many
    /// there were. Their slots are free when this returns.
    #[inline]
    pub fn pop_each(&mut self, most: usize, mut each: impl FnMut(T)) -> usize {
        /// Publishes when dropped, so that a panic of the closure pops nothing twice.
        struct Taking<'a, 'r, T> {
            consumer: &'a mut Consumer<'r, T>,
            count: usize,
        }
        impl<T> Drop for Taking<'_, '_, T> {
            #[inline(always)]
            fn drop(&mut self) {
                if self.count > 0 {
                    self.consumer.publish();
                }
            }
        }

        let mut taking = Taking {
            consumer: self,
            count: 0,
        };
        while taking.count < most {
            let Some(item) = taking.consumer.take() else {
                break;
            };
            taking.count += 1;
            each(item);
        }
        taking.count
    }

    /// Moves the next element out of its slot, which `publish` then returns to the producers.
    #[inline(always)]
    fn take(&mut self) -> Option<T> {
        let position = Cursor::new(self.head as u32);
        // SAFETY: a slot's number is less than the ring's size.
        let slot = unsafe { self.slots.get_unchecked(position.slot(self.size)) };
        // Acquire: pairs with the Release in `Producer::fill`, so that the element is written
        // before it is read.
        if slot.stamp.load(Ordering::Acquire) != position.advance(1).index() {
            return None;
        }
        self.head = self.head.wrapping_add(1);
        // SAFETY: the slot is filled, so it belongs to the consumer, and `head` has moved past it.
        Some(slot.item.with(|cell| unsafe { cell.read().assume_init() }))
    }

    #[inline(always)]
    fn publish(&mut self) {
        // Release: pairs with the Acquire in `Producer::reserve`, so that the slots are read before
        // they are overwritten.
        self.published.store(self.head, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
