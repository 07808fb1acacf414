//! A thread's own front on a class.

use super::block::{Block, BlockMeta};
use super::class::SlabClass;
use super::error::TakeError;
use crate::sync::atomic::Ordering;
use core::marker::PhantomData;

/// Blocks that go between a cache and its class at once.
const BATCH: usize = 32;

/// Free blocks of one class for one thread: taking and putting costs no atomic read-modify-write
/// until it runs empty or full. Gives everything back when dropped. `Send`, not `Sync`.
#[derive(Debug)]
pub struct SlabCache<'m> {
    class: &'m SlabClass,
    count: usize,
    indexes: [u32; 2 * BATCH],
    /// One owner at a time.
    not_sync: PhantomData<core::cell::Cell<()>>,
}

impl<'m> SlabCache<'m> {
    pub(super) fn new(class: &'m SlabClass) -> Self {
        Self {
            class,
            count: 0,
            indexes: [0; 2 * BATCH],
            not_sync: PhantomData,
        }
    }

    /// A block.
    ///
    /// # Errors
    /// [`TakeError::Empty`]: neither the cache nor the slab has one.
    #[inline(always)]
    pub fn take(&mut self) -> Result<Block<'m>, TakeError> {
        if self.count == 0 {
            self.refill()?;
        }
        self.count -= 1;
        // SAFETY: popped from the class, and nobody else's since. The index stays below the array's
        // length, by `refill` and `put`.
        Ok(unsafe { self.class.own(*self.indexes.get_unchecked(self.count)) })
    }

    #[cold]
    #[inline(never)]
    fn refill(&mut self) -> Result<(), TakeError> {
        self.count = self.class.pop_many(&mut self.indexes[..BATCH]);
        if self.count == 0 {
            return Err(TakeError::Empty {
                size: self.class.size(),
            });
        }
        Ok(())
    }

    /// Takes a block back. One of another class goes to its own slab.
    #[inline(always)]
    pub fn put(&mut self, block: Block<'m>) {
        if !core::ptr::eq(block.meta().class(), self.class) {
            return drop(block);
        }
        if self.count == self.indexes.len() {
            self.spill();
        }
        let meta = block.meta();
        // Relaxed: the owner is the only one to turn it.
        meta.state().store(BlockMeta::FREE, Ordering::Relaxed);
        let _not_dropped = block.into_raw();
        self.indexes[self.count] = meta.index();
        self.count += 1;
    }

    /// Gives the older half back to the class.
    #[cold]
    #[inline(never)]
    fn spill(&mut self) {
        // SAFETY: the cache's own.
        unsafe { self.class.push_many(&self.indexes[..BATCH]) };
        self.indexes.copy_within(BATCH.., 0);
        self.count -= BATCH;
    }
}

impl Drop for SlabCache<'_> {
    fn drop(&mut self) {
        // SAFETY: the cache's own.
        unsafe { self.class.push_many(&self.indexes[..self.count]) };
    }
}
