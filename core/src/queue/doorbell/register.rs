//! Doorbell registers: those of one owner, and those that several queues ring.

use crate::barrier;
use crate::sync::{
    UnsafeCell,
    atomic::{AtomicBool, Ordering},
    spin,
};
use core::ptr::NonNull;

mod sealed {
    pub trait Sealed {}
}

/// A doorbell register: two halves of [`size`](Self::size) bytes, used in turn. Sealed.
pub trait Register: sealed::Sealed {
    /// Bytes of a half; zero where the device takes no entries.
    fn size(&self) -> usize;

    /// Runs `write` on the half that is next, which nobody else writes meanwhile. `flush`: what it
    /// writes is not whole lines.
    #[doc(hidden)]
    fn write(&mut self, flush: bool, write: impl FnOnce(NonNull<u64>));
}

/// A register of one owner.
#[derive(Debug)]
pub struct Private {
    register: NonNull<u64>,
    /// Byte offset of the half that is next.
    half: usize,
    size: usize,
}

// SAFETY: the register belongs to this owner alone, by `new`'s contract.
unsafe impl Send for Private {}
// SAFETY: nothing is done by a shared reference.
unsafe impl Sync for Private {}

impl Private {
    /// # Safety
    /// `register` is aligned to 8 and valid for writes of `2 * size` bytes (at least 8) as long as it is
    /// rung, and nobody else rings it meanwhile.
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
        }
        self.half ^= self.size;
    }
}

/// A register that several queues ring, from any threads: what they have in common.
#[derive(Debug)]
pub struct SharedRegister {
    locked: AtomicBool,
    /// Byte offset of the half that is next: of whoever has locked.
    half: UnsafeCell<usize>,
    register: NonNull<u64>,
    size: usize,
}

// SAFETY: the half and the register are of whoever has locked.
unsafe impl Send for SharedRegister {}
// SAFETY: as above.
unsafe impl Sync for SharedRegister {}

impl SharedRegister {
    /// # Safety
    /// As [`Private::new`], but that all who ring it do so by this.
    pub unsafe fn new(register: NonNull<u64>, size: usize) -> Self {
        Self {
            locked: AtomicBool::new(false),
            half: UnsafeCell::new(0),
            register,
            size,
        }
    }
}

/// One queue's way to a register that it shares with others.
#[derive(Clone, Copy, Debug)]
pub struct Shared<'m>(pub &'m SharedRegister);

impl sealed::Sealed for Shared<'_> {}

impl Register for Shared<'_> {
    #[inline(always)]
    fn size(&self) -> usize {
        self.0.size
    }

    /// Nobody else's bytes come between these in the write-combining buffer: they leave it before the
    /// lock is given up.
    #[inline(always)]
    fn write(&mut self, _: bool, write: impl FnOnce(NonNull<u64>)) {
        let shared = self.0;
        // Acquire: partner of the release below. Relaxed: nothing was taken.
        let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
        while (shared.locked)
            .compare_exchange(false, true, acquire, relaxed)
            .is_err()
        {
            spin();
        }
        shared.half.with_mut(|half| {
            // SAFETY: locked; the half lies within the register.
            unsafe {
                write(shared.register.byte_add(*half));
                *half ^= shared.size;
            }
        });
        barrier::flush_write_combining();
        // Release: partner of the acquire above.
        shared.locked.store(false, Ordering::Release);
    }
}

#[cfg(all(loom, test))]
mod loom_models {
    use super::*;
    use loom::sync::Arc;
    use std::boxed::Box;

    /// Nobody writes the half that another writes, and the halves alternate.
    #[test]
    fn one_at_a_time_writes_a_half() {
        loom::model(|| {
            let memory = Box::into_raw(Box::new([0_u64; 64]));
            let register = NonNull::new(memory.cast()).expect("a box");
            // SAFETY: two halves of 256 bytes, freed below.
            let shared = Arc::new(unsafe { SharedRegister::new(register, 256) });
            let ring = |shared: Arc<SharedRegister>, value: u64| {
                // SAFETY: the model's threads end before it is gone.
                let shared: &'static SharedRegister = unsafe { &*Arc::as_ptr(&shared) };
                Shared(shared).write(true, |half| {
                    // SAFETY: within the register, and locked.
                    unsafe { half.write(half.read() + value) };
                });
            };
            let other = shared.clone();
            let thread = loom::thread::spawn(move || ring(other, 1));
            ring(shared.clone(), 2);
            thread.join().expect("it ends");
            // SAFETY: nobody writes any more.
            let memory = unsafe { Box::from_raw(memory) };
            assert_eq!(memory[0] + memory[32], 3);
            assert!(memory[0] != 0 && memory[32] != 0, "one half each");
        });
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
        // SAFETY: two halves of 256 bytes, which stay.
        let shared = unsafe { SharedRegister::new(register, 256) };
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut way = Shared(&shared);
                    for _ in 0..ROUNDS {
                        way.write(true, |half| {
                            // SAFETY: within the register, and locked.
                            unsafe { half.write(half.read() + 1) };
                        });
                    }
                });
            }
        });
        assert_eq!((memory[0], memory[32]), (3 * ROUNDS / 2, 3 * ROUNDS / 2));
    }
}
