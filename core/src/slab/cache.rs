//! A thread's cache of free blocks.

use super::block::{Block, BlockMeta};
use super::class::SlabClass;
use super::error::TakeError;
use crate::sync::atomic::Ordering;
use core::marker::PhantomData;

/// Number of blocks moved between a cache and its class at a time.
const BATCH: usize = 32;

/// Free blocks of one class for one thread: take and put need no atomic read-modify-write until the
/// cache is empty or full. Returns all its blocks when dropped. `Send`, not `Sync`.
#[derive(Debug)]
pub struct SlabCache<'m> {
    class: &'m SlabClass,
    count: usize,
    indexes: [u32; 2 * BATCH],
    /// Not `Sync`, because it has one owner at a time.
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

    /// Takes a block.
    ///
    /// # Errors
    /// [`TakeError::Empty`], if neither the cache nor the slab has one.
    #[inline(always)]
    pub fn take(&mut self) -> Result<Block<'m>, TakeError> {
        if self.count == 0 {
            self.refill()?;
        }
        self.count -= 1;
        // SAFETY: popped from the class, and not owned by anyone else since. `refill` and `put`
        // keep the index less than the array's length.
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

    /// Returns a block to the cache. One of another class goes to its own slab.
    #[inline(always)]
    pub fn put(&mut self, block: Block<'m>) {
        if !core::ptr::eq(block.meta().class(), self.class) {
            return drop(block);
        }
        if self.count == self.indexes.len() {
            self.spill();
        }
        let meta = block.meta();
        // Relaxed: only the owner changes the state.
        meta.state().store(BlockMeta::FREE, Ordering::Relaxed);
        let _not_dropped = block.into_raw();
        self.indexes[self.count] = meta.index();
        self.count += 1;
    }

    /// Returns the older half to the class.
    #[cold]
    #[inline(never)]
    fn spill(&mut self) {
        // SAFETY: these blocks belong to the cache.
        unsafe { self.class.push_many(&self.indexes[..BATCH]) };
        self.indexes.copy_within(BATCH.., 0);
        self.count -= BATCH;
    }
}

impl Drop for SlabCache<'_> {
    fn drop(&mut self) {
        // SAFETY: these blocks belong to the cache.
        unsafe { self.class.push_many(&self.indexes[..self.count]) };
    }
}
