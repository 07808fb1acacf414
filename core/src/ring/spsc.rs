//! A bounded ring from one thread to one other thread.
//!
//! Each side keeps a private index and publishes it with one store. It reads the other side's index
//! only when the last value that it read says that the ring is full, or empty (P. P. C. Lee, T. Bu,
//! G. Chandranmenon, "A Lock-Free, Cache-Efficient Multi-Core Synchronization Mechanism for
//! Line-Rate Network Traffic Monitoring", IPDPS 2010). Every operation is wait-free.
//!
//! ```
//! use bellwire_core::ring::spsc::{Ring, Slot};
//!
//! let mut slots = [const { Slot::new() }; 64];
//! let mut ring = Ring::new(&mut slots)?;
//! let (mut producer, mut consumer) = ring.split();
//! std::thread::scope(|threads| {
//!     threads.spawn(move || (0..10).for_each(|n| producer.push(n).unwrap()));
//!     let mut next = 0;
//!     while next < 10 {
//!         if let Some(n) = consumer.pop() {
//!             assert_eq!(n, next);
//!             next += 1;
//!         }
//!     }
//! });
//! # Ok::<(), bellwire_core::ring::RingSizeError>(())
//! ```
//!
//! There is one producer and one consumer at a time. A second pair cannot be created:
//!
//! ```compile_fail,E0499
//! # use bellwire_core::ring::spsc::{Ring, Slot};
//! # let mut slots = [const { Slot::<u32>::new() }; 2];
//! # let mut ring = Ring::new(&mut slots).unwrap();
//! let (mut producer, _consumer) = ring.split();
//! let (mut second, _) = ring.split();
//! let _ = (producer.push(1), second.push(2));
//! ```
//!
//! A half cannot be cloned:
//!
//! ```compile_fail,E0599
//! # use bellwire_core::ring::spsc::{Ring, Slot};
//! # let mut slots = [const { Slot::<u32>::new() }; 2];
//! # let mut ring = Ring::new(&mut slots).unwrap();
//! let (producer, _consumer) = ring.split();
//! let second = producer.clone();
//! ```
//!
//! No half outlives the ring or its memory:
//!
//! ```compile_fail,E0597
//! # use bellwire_core::ring::spsc::{Ring, Slot};
//! let mut consumer = {
//!     let mut slots = [const { Slot::<u32>::new() }; 2];
//!     let mut ring = Ring::new(&mut slots).unwrap();
//!     ring.split().1
//! };
//! consumer.pop();
//! ```

use super::{Cursor, Full, OwnLine, RingSize, RingSizeError};
use crate::sync::UnsafeCell;
use crate::sync::atomic::{AtomicU32, Ordering};
use core::mem::MaybeUninit;
use crossbeam_utils::CachePadded;

/// Room for one element. Any bytes are a valid slot, so other memory may be cast to slots if it is
/// aligned for `T`.
#[repr(transparent)]
pub struct Slot<T>(UnsafeCell<MaybeUninit<T>>);

impl<T> Slot<T> {
    /// An empty slot.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self(UnsafeCell::new(MaybeUninit::uninit()))
    }

    /// An empty slot (loom's cells cannot be created in constants).
    #[cfg(loom)]
    pub fn new() -> Self {
        Self(UnsafeCell::new(MaybeUninit::uninit()))
    }

    /// # Safety
    /// No other thread uses the slot meanwhile.
    #[inline(always)]
    unsafe fn write(&self, item: T) {
        // SAFETY: the pointer is the cell's own, and the caller guarantees exclusive access.
        self.0
            .with_mut(|cell| unsafe { cell.write(MaybeUninit::new(item)) });
    }

    /// # Safety
    /// No other thread writes the slot meanwhile. An initialised element is moved out at most once.
    #[inline(always)]
    unsafe fn read(&self) -> MaybeUninit<T> {
        // SAFETY: the pointer is the cell's own, and the caller guarantees that nobody writes.
        self.0.with(|cell| unsafe { cell.read() })
    }
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// The indexes that the two sides publish, each on a cache line of its own.
struct Indexes {
    /// The next slot to pop. Stored by the consumer.
    head: CachePadded<AtomicU32>,
    /// The next slot to push. Stored by the producer.
    tail: CachePadded<AtomicU32>,
}

/// A ring over the caller's memory. Split it to use it. Dropping it drops the elements left in it.
pub struct Ring<'m, T> {
    indexes: Indexes,
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

    /// Creates an empty ring whose first index is `start`.
    pub(super) fn starting_at(slots: &'m mut [Slot<T>], start: u32) -> Result<Self, RingSizeError> {
        let size = RingSize::new(slots.len())?;
        let index = || CachePadded::new(AtomicU32::new(start));
        Ok(Self {
            indexes: Indexes {
                head: index(),
                tail: index(),
            },
            slots,
            size,
        })
    }

    /// Returns the two halves. They continue where an earlier pair stopped.
    ///
    /// The halves borrow the ring. Where they must live apart from it (behind a C handle), put the
    /// ring in memory that outlives them and borrow it through a pointer: the caller then
    /// guarantees the borrow.
    pub fn split(&mut self) -> (Producer<'_, T>, Consumer<'_, T>) {
        let Self {
            indexes,
            slots,
            size,
        } = self;
        // Relaxed: `&mut self` is ordered after everything that earlier halves did.
        let head = Cursor::new(indexes.head.load(Ordering::Relaxed));
        let tail = Cursor::new(indexes.tail.load(Ordering::Relaxed));
        (
            Producer {
                tail,
                head_seen: head,
                size: *size,
                slots,
                indexes,
                _own_line: OwnLine::default(),
            },
            Consumer {
                head,
                tail_seen: tail,
                size: *size,
                slots,
                indexes,
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

/// The pushing half of a [`Ring`]. It may be moved to another thread, but not shared.
pub struct Producer<'r, T> {
    tail: Cursor,
    head_seen: Cursor,
    size: RingSize,
    slots: &'r [Slot<T>],
    indexes: &'r Indexes,
    _own_line: OwnLine,
}

// SAFETY: there is only one producer, and the slots that it writes belong to the consumer only
// after `publish`. Elements cross threads, so they must be Send.
unsafe impl<T: Send> Send for Producer<'_, T> {}

impl<T> Producer<'_, T> {
    /// Pushes one element.
    ///
    /// # Errors
    /// [`Full`], which returns the element.
    #[inline]
    pub fn push(&mut self, item: T) -> Result<(), Full<T>> {
        if self.room(1) == 0 {
            return Err(Full(item));
        }
        // SAFETY: there is room.
        unsafe { self.stage(item) };
        self.publish();
        Ok(())
    }

    /// Pushes as many of `items` as fit, starting with the first, and returns how many. The
    /// consumer sees them all at once.
    #[inline]
    pub fn push_slice(&mut self, items: &[T]) -> usize
    where
        T: Copy,
    {
        let count = items.len().min(self.room(items.len()));
        if count == 0 {
            return 0;
        }
        let (run, rest) = runs(self.slots, self.tail, self.size, count);
        let (items, more) = items[..count].split_at(run.len());
        for (slots, items) in [(run, items), (rest, more)] {
            for (slot, item) in slots.iter().zip(items) {
                // SAFETY: these are `count` free slots.
                unsafe { slot.write(*item) };
            }
        }
        self.tail = self.tail.advance(count as u32);
        self.publish();
        count
    }

    /// Pushes the elements of `items` until it ends or the ring is full, and returns how many. The
    /// consumer sees them all at once.
    ///
    /// Takes no element from `items` that does not fit: pass `items.by_ref()` to keep the rest.
    #[inline]
    pub fn push_iter(&mut self, items: impl IntoIterator<Item = T>) -> usize {
        /// Publishes when dropped, so that elements pushed before a panic of the iterator are not
        /// lost.
        struct Staging<'a, 'r, T>(&'a mut Producer<'r, T>);
        impl<T> Drop for Staging<'_, '_, T> {
            #[inline(always)]
            fn drop(&mut self) {
                self.0.publish();
            }
        }

        let items = items.into_iter();
        let room = self.room(items.size_hint().1.unwrap_or(usize::MAX));
        if room == 0 {
            return 0;
        }
        let staging = Staging(self);
        let mut count = 0;
        for item in items.take(room) {
            // SAFETY: `take` ends when there is no more room.
            unsafe { staging.0.stage(item) };
            count += 1;
        }
        count
    }

    /// The number of free slots; exact if it seems to be less than `wanted`.
    #[inline(always)]
    fn room(&mut self, wanted: usize) -> usize {
        let room = (self.size.get() - self.tail.distance(self.head_seen)) as usize;
        if room >= wanted {
            return room;
        }
        // Acquire: pairs with the Release in `Consumer::publish`, so that the consumer has read the
        // slots before they are overwritten.
        self.head_seen = Cursor::new(self.indexes.head.load(Ordering::Acquire));
        (self.size.get() - self.tail.distance(self.head_seen)) as usize
    }

    /// Writes the next slot, which `publish` then makes visible to the consumer.
    ///
    /// # Safety
    /// There is room.
    #[inline(always)]
    unsafe fn stage(&mut self, item: T) {
        // SAFETY: a slot's number is less than the ring's size; the slot is free, so it belongs to
        // the producer.
        unsafe {
            self.slots
                .get_unchecked(self.tail.slot(self.size))
                .write(item)
        };
        self.tail = self.tail.advance(1);
    }

    #[inline(always)]
    fn publish(&mut self) {
        // Release: pairs with the Acquire in `Consumer::filled`, so that the slots are written
        // before they are visible.
        self.indexes
            .tail
            .store(self.tail.index(), Ordering::Release);
    }
}

/// The popping half of a [`Ring`]. It may be moved to another thread, but not shared.
pub struct Consumer<'r, T> {
    head: Cursor,
    tail_seen: Cursor,
    size: RingSize,
    slots: &'r [Slot<T>],
    indexes: &'r Indexes,
    _own_line: OwnLine,
}

// SAFETY: there is only one consumer, and the slots that it reads belong to the producer only after
// `publish`. Elements cross threads, so they must be Send.
unsafe impl<T: Send> Send for Consumer<'_, T> {}

impl<T> Consumer<'_, T> {
    /// Pops the oldest element, or `None` when the ring is empty.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.filled(1) == 0 {
            return None;
        }
        // SAFETY: there is an element.
        let item = unsafe { self.take() };
        self.publish();
        Some(item)
    }

    /// Pops as many elements as there are and as fit into `out`, oldest first, and returns them as
    /// the first part of `out`. The caller has to drop them.
    #[inline]
    pub fn pop_slice<'o>(&mut self, out: &'o mut [MaybeUninit<T>]) -> &'o mut [T] {
        let count = out.len().min(self.filled(out.len()));
        if count == 0 {
            return &mut [];
        }
        let (run, rest) = runs(self.slots, self.head, self.size, count);
        let out = &mut out[..count];
        let (places, more) = out.split_at_mut(run.len());
        for (slots, places) in [(run, places), (rest, more)] {
            for (slot, place) in slots.iter().zip(places) {
                // SAFETY: these are `count` filled slots, which are not read again.
                *place = unsafe { slot.read() };
            }
        }
        self.head = self.head.advance(count as u32);
        self.publish();
        // SAFETY: an element has been moved into each place of `out`.
        unsafe { core::slice::from_raw_parts_mut(out.as_mut_ptr().cast(), count) }
    }

    /// Pops at most `most` elements, oldest first, passes each to `each`, and returns how many
    /// there were. Their slots are free when this returns.
    #[inline]
    pub fn pop_each(&mut self, most: usize, mut each: impl FnMut(T)) -> usize {
        /// Publishes when dropped, so that a panic of the closure pops nothing twice.
        struct Taking<'a, 'r, T>(&'a mut Consumer<'r, T>);
        impl<T> Drop for Taking<'_, '_, T> {
            #[inline(always)]
            fn drop(&mut self) {
                self.0.publish();
            }
        }

        let count = most.min(self.filled(most));
        if count == 0 {
            return 0;
        }
        let taking = Taking(self);
        for _ in 0..count {
            // SAFETY: there are `count` elements.
            each(unsafe { taking.0.take() });
        }
        count
    }

    /// The number of elements in the ring; exact if it seems to be less than `wanted`.
    #[inline(always)]
    fn filled(&mut self, wanted: usize) -> usize {
        let filled = self.tail_seen.distance(self.head) as usize;
        if filled >= wanted {
            return filled;
        }
        // Acquire: pairs with the Release in `Producer::publish`, so that the slots are written
        // before they are read.
        self.tail_seen = Cursor::new(self.indexes.tail.load(Ordering::Acquire));
        self.tail_seen.distance(self.head) as usize
    }

    /// Moves the next element out of its slot, which `publish` then returns to the producer.
    ///
    /// # Safety
    /// There is an element.
    #[inline(always)]
    unsafe fn take(&mut self) -> T {
        // SAFETY: a slot's number is less than the ring's size; the slot is filled, so it belongs
        // to the consumer, and `head` moves past it.
        let item = unsafe {
            self.slots
                .get_unchecked(self.head.slot(self.size))
                .read()
                .assume_init()
        };
        self.head = self.head.advance(1);
        item
    }

    #[inline(always)]
    fn publish(&mut self) {
        // Release: pairs with the Acquire in `Producer::room`, so that the slots are read before
        // they are overwritten.
        self.indexes
            .head
            .store(self.head.index(), Ordering::Release);
    }
}

/// The `count` slots from `at` on, in two slices where they wrap. `count` is at most the size.
#[inline(always)]
fn runs<T>(
    slots: &[Slot<T>],
    at: Cursor,
    size: RingSize,
    count: usize,
) -> (&[Slot<T>], &[Slot<T>]) {
    let start = at.slot(size);
    let first = count.min(at.run(size) as usize);
    // SAFETY: `start + first` is at most the size, which is the number of slots, and so is the rest
    // of `count`.
    unsafe {
        (
            slots.get_unchecked(start..start + first),
            slots.get_unchecked(..count - first),
        )
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
