//! Doorbell registers: those with a single owner, and those shared by several queues.
//!
//! Queues that share a register take its lock, and flush the write-combining buffer before they
//! release it.

use crate::barrier;
use crate::sync::{
    UnsafeCell,
    atomic::{AtomicBool, Ordering},
};
use core::ptr::NonNull;

mod sealed {
    pub trait Sealed {}
}

/// A doorbell register: two halves of [`size`](Self::size) bytes, used in turn. Sealed.
pub trait Register: sealed::Sealed {
    /// Bytes of a half; zero where the device takes no WQEs by BlueFlame.
    fn size(&self) -> usize;

    /// Runs `write` on the next half, which nothing else writes meanwhile. `flush`: it writes less
    /// than whole blocks.
    #[doc(hidden)]
    fn write(&mut self, flush: bool, write: impl FnOnce(NonNull<u64>));
}

/// A register with a single owner.
#[derive(Debug)]
pub struct Private {
    register: NonNull<u64>,
    /// Byte offset of the next half.
    half: usize,
    size: usize,
}

// SAFETY: `new` requires that the register belongs to this owner alone.
unsafe impl Send for Private {}
// SAFETY: nothing is done through a shared reference.
unsafe impl Sync for Private {}

impl Private {
    /// Creates a register with halves of `size` bytes.
    ///
    /// # Safety
    /// `register` is aligned to 8 and valid for writes of `2 * size` bytes (at least 8) as long as
    /// it is rung, and nothing else rings it meanwhile.
    pub unsafe fn new(register: NonNull<u64>, size: usize) -> Self {
        Self {
            register,
            half: 0,
            size,
        }
    }
}

impl sealed::Sealed for Private {}

impl Register for Private {
    #[inline(always)]
    fn size(&self) -> usize {
        self.size
    }

    #[inline(always)]
    fn write(&mut self, flush: bool, write: impl FnOnce(NonNull<u64>)) {
        // SAFETY: the half lies within the register.
        write(unsafe { self.register.byte_add(self.half) });
        if flush {
            barrier::flush_write_combining();
        } else {
            barrier::end_gathering();
        }
        self.half ^= self.size;
    }
}

/// The state of a register that several queues ring from any threads.
#[derive(Debug)]
pub struct SharedRegister {
    locked: AtomicBool,
    wait: fn(u32),
    /// Byte offset of the next half. Accessed only with the lock held.
    half: UnsafeCell<usize>,
    register: NonNull<u64>,
    size: usize,
}

// SAFETY: the half and the register are accessed only with the lock held.
unsafe impl Send for SharedRegister {}
// SAFETY: the half and the register are accessed only with the lock held.
unsafe impl Sync for SharedRegister {}

impl SharedRegister {
    /// Creates a shared register with halves of `size` bytes. A queue that finds another one writing calls `wait` until
    /// it is done, with how often it has tried: the other's thread may have been descheduled.
    ///
    /// # Safety
    /// The requirements of [`Private::new`], except that several queues may ring it, all through
    /// this value.
    pub unsafe fn new(register: NonNull<u64>, size: usize, wait: fn(u32)) -> Self {
        Self {
            locked: AtomicBool::new(false),
            wait,
            half: UnsafeCell::new(0),
            register,
            size,
        }
    }
}

/// A queue's reference to a register that it shares with other queues.
#[derive(Clone, Copy, Debug)]
pub struct Shared<'m>(pub &'m SharedRegister);

impl sealed::Sealed for Shared<'_> {}

impl Register for Shared<'_> {
    #[inline(always)]
    fn size(&self) -> usize {
        self.0.size
    }

    /// Flushes the write-combining buffer before the lock is released, so that bytes of other
    /// threads cannot mix with these.
    #[inline(always)]
    fn write(&mut self, _: bool, write: impl FnOnce(NonNull<u64>)) {
        let shared = self.0;
        // Acquire: pairs with the Release below. Relaxed: the lock was not taken.
        let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
        let mut tries = 0u32;
        while (shared.locked)
            .compare_exchange(false, true, acquire, relaxed)
            .is_err()
        {
            tries = tries.saturating_add(1);
            (shared.wait)(tries);
        }
        shared.half.with_mut(|half| {
            // SAFETY: the lock is held; the half lies within the register.
            unsafe {
                write(shared.register.byte_add(*half));
                *half ^= shared.size;
            }
        });
        barrier::flush_write_combining();
        // Release: pairs with the Acquire above.
        shared.locked.store(false, Ordering::Release);
    }
}

#[cfg(all(test, any(loom, miri)))]
mod loom_models {
    use super::*;
    use crate::sync::model::{Arc, check, thread};
    use std::boxed::Box;

    /// No two threads write the same half at once, and the halves alternate.
    #[test]
    fn one_at_a_time_writes_a_half() {
        check(|| {
            let memory = Box::into_raw(Box::new([0_u64; 64]));
            let register = NonNull::new(memory.cast()).expect("a box");
            // SAFETY: two halves of 256 bytes, freed below.
            let shared =
                Arc::new(unsafe { SharedRegister::new(register, 256, |_| thread::yield_now()) });
            let ring = |shared: Arc<SharedRegister>, value: u64| {
                // SAFETY: the model's threads end before it is dropped.
                let shared: &'static SharedRegister = unsafe { &*Arc::as_ptr(&shared) };
                Shared(shared).write(true, |half| {
                    // SAFETY: within the register, and the lock is held.
                    unsafe { half.write(half.read() + value) };
                });
            };
            let other = shared.clone();
            let thread = thread::spawn(move || ring(other, 1));
            ring(shared.clone(), 2);
            thread.join().expect("it ends");
            // SAFETY: nothing writes it any more.
            let memory = unsafe { Box::from_raw(memory) };
            assert_eq!(memory[0] + memory[32], 3);
            assert!(memory[0] != 0 && memory[32] != 0, "one half each");
        });
    }

    /// For each ordering the model fails without it.
    #[cfg(loom)]
    #[test]
    fn the_lock_needs_its_orderings() {
        let models: [fn(); 1] = [one_at_a_time_writes_a_half];
        crate::sync::needs_orderings(&models, "doorbell/register.rs", &[]);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::thread;
    use std::vec;

    #[test]
    fn threads_take_the_halves_of_a_shared_register_in_turn() {
        const ROUNDS: u64 = if cfg!(miri) { 50 } else { 10_000 };
        let mut memory = vec![0_u64; 64];
        let register = NonNull::new(memory.as_mut_ptr()).expect("a vector");
        // SAFETY: two halves of 256 bytes, which outlive the threads.
        let shared = unsafe { SharedRegister::new(register, 256, |_| thread::yield_now()) };
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut way = Shared(&shared);
                    for _ in 0..ROUNDS {
                        way.write(true, |half| {
                            // SAFETY: within the register, and the lock is held.
                            unsafe { half.write(half.read() + 1) };
                        });
                    }
                });
            }
        });
        assert_eq!((memory[0], memory[32]), (3 * ROUNDS / 2, 3 * ROUNDS / 2));
    }
}
