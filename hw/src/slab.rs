//! Slabs: registered regions cut into blocks.

use crate::error::Error;
use crate::pd::{Mr, Region};
use bellwire_core::slab::{
    self, Block, BlockMeta, ClassLayout, SlabClass, SlabRegion, TakeError, block_count,
    region_bytes,
};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

/// A registered region cut into blocks. Clones are the same one, and may be shared by all threads.
///
/// The region is deregistered and unmapped when the last clone and cache goes. Should blocks be out
/// then, it stays as it is for good: a block never loses its memory.
/// [`outstanding`](Self::outstanding) tells.
#[derive(Clone, Debug)]
pub struct Slab {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    core: slab::Slab<'static>,
    parts: ManuallyDrop<Parts>,
}

/// What `core` borrows.
#[derive(Debug)]
struct Parts {
    region: Arc<Region>,
    metas: *mut [BlockMeta],
    classes: *mut [SlabClass],
}

// SAFETY: the pointers are the owner's, and what they point to may be shared.
unsafe impl Send for Parts {}
// SAFETY: as above.
unsafe impl Sync for Parts {}

impl Drop for Parts {
    fn drop(&mut self) {
        // SAFETY: from `Box::into_raw`; nobody borrows them any more.
        unsafe {
            drop(Box::from_raw(self.metas));
            drop(Box::from_raw(self.classes));
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.core.outstanding() == 0 {
            // SAFETY: dropped once; no block is out, and caches keep this alive, so that nobody
            // borrows the records or reaches the memory.
            unsafe { ManuallyDrop::drop(&mut self.parts) };
        }
    }
}

impl Slab {
    /// Bytes of region that a layout needs.
    ///
    /// # Errors
    /// [`Error::BadRegion`] when they overflow.
    pub fn bytes(layout: &[ClassLayout]) -> Result<usize, Error> {
        let overflow = Error::BadRegion {
            addr: 0,
            length: u64::MAX,
        };
        region_bytes(layout).ok_or(overflow)
    }

    /// Cuts a region, smallest blocks first.
    ///
    /// # Errors
    /// [`Error::Slab`] when the layout cannot be, or does not fit.
    pub fn new(region: Region, layout: &[ClassLayout]) -> Result<Self, Error> {
        // SAFETY: moved in here, and not lent out.
        unsafe { Self::of_shared(Arc::new(region), layout) }
    }

    /// As [`new`](Self::new), of a region that others keep too: it goes with the last of them.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As long as there is a clone, a cache or a block of this slab, nobody reads or writes the region
    /// but through the blocks and the devices that these are posted to, and it is not cut again.
    pub unsafe fn of_shared(region: Arc<Region>, layout: &[ClassLayout]) -> Result<Self, Error> {
        let metas: Box<[BlockMeta]> = (0..block_count(layout).min(region.len() / 64))
            .map(|_| BlockMeta::default())
            .collect();
        let classes: Box<[SlabClass]> = layout.iter().map(|_| SlabClass::default()).collect();
        let mr = region.mr();
        let bad = Error::BadRegion {
            addr: mr.addr(),
            length: mr.length(),
        };
        let shape = SlabRegion {
            start: NonNull::new(region.mapping().as_ptr()).ok_or(bad)?,
            length: region.len(),
            lkey: mr.lkey(),
            rkey: mr.rkey(),
        };
        let parts = Parts {
            region,
            metas: Box::into_raw(metas),
            classes: Box::into_raw(classes),
        };
        // SAFETY: the records and the region go after `core`, and not while a block is out. Nobody
        // else reaches the region's memory, by the caller's promise.
        let core =
            unsafe { slab::Slab::new(&mut *parts.metas, &mut *parts.classes, shape, layout)? };
        Ok(Self {
            inner: Arc::new(Inner {
                core,
                parts: ManuallyDrop::new(parts),
            }),
        })
    }

    /// A block of the smallest class whose blocks have `length` bytes.
    ///
    /// # Errors
    /// [`TakeError`].
    #[inline]
    pub fn take(&self, length: u32) -> Result<Block<'static>, TakeError> {
        self.inner.core.take(length)
    }

    /// A front for one thread: taking and putting cost no atomic read-modify-write.
    ///
    /// # Errors
    /// [`TakeError::TooLarge`].
    pub fn cache(&self, length: u32) -> Result<SlabCache, TakeError> {
        Ok(SlabCache {
            core: self.inner.core.cache(length)?,
            _slab: self.clone(),
        })
    }

    /// Gives back the block that starts at `addr` and was made raw by [`Block::into_raw`].
    ///
    /// # Errors
    /// [`slab::RawFreeError`]: free already, foreign, or not a block's start.
    ///
    /// # Safety
    /// Nobody uses the block any more, and no request with it is in flight.
    pub unsafe fn give_back_raw(&self, addr: u64) -> Result<(), slab::RawFreeError> {
        // SAFETY: the caller's promise.
        unsafe { self.inner.core.give_back_raw(addr) }
    }

    /// The block that starts at `addr` and was made raw by [`Block::into_raw`].
    ///
    /// # Errors
    /// As [`give_back_raw`](Self::give_back_raw).
    ///
    /// # Safety
    /// The caller owns it.
    #[inline]
    pub unsafe fn block_at(&self, addr: u64) -> Result<Block<'static>, slab::RawFreeError> {
        // SAFETY: the caller's promise.
        unsafe { self.inner.core.block_at(addr) }
    }

    /// Blocks that are out, or in a cache. Exact when nobody takes or returns meanwhile.
    pub fn outstanding(&self) -> usize {
        self.inner.core.outstanding()
    }

    /// All blocks.
    pub fn capacity(&self) -> usize {
        self.inner.core.capacity()
    }

    /// The registration.
    pub fn mr(&self) -> &Mr {
        self.inner.parts.region.mr()
    }
}

/// Free blocks of one class for one thread. `Send`, not `Sync`.
#[derive(Debug)]
pub struct SlabCache {
    // Gives its blocks back before the slab goes.
    core: slab::SlabCache<'static>,
    _slab: Slab,
}

impl SlabCache {
    /// A block.
    ///
    /// # Errors
    /// [`TakeError::Empty`]: neither the cache nor the slab has one.
    #[inline(always)]
    pub fn take(&mut self) -> Result<Block<'static>, TakeError> {
        self.core.take()
    }

    /// Takes a block back. One of another class or slab goes to its own.
    #[inline(always)]
    pub fn put(&mut self, block: Block<'static>) {
        self.core.put(block);
    }
}
