//! Slabs: registered regions cut into blocks.

use crate::error::Error;
use crate::link::{Grant, GrantError};
use crate::pd::{Mr, Region};
use crate::pinned::defaults;
use crate::pinned::headroom;
use bellwire_core::access::AccessFlags;
use bellwire_core::slab::{
    self, Block, BlockMeta, ClassLayout, SlabClass, SlabRegion, TakeError, block_count,
    region_bytes,
};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

/// The access flags that a region with exclusively owned blocks may have. With any other flag a request could
/// access a block that its owner accesses as a slice, and the software HCA executes requests in this process.
const OWN: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::ON_DEMAND)
    .union(AccessFlags::HUGETLB)
    .union(AccessFlags::RELAXED_ORDERING);

/// A registered region cut into blocks. Clones are the same slab, and all threads may share it.
///
/// The region is deregistered and unmapped when the last clone and the last cache are dropped. If blocks are
/// still in use then, the region is never freed: a block never loses its memory.
/// [`outstanding`](Self::outstanding) returns the number of blocks in use.
#[derive(Clone, Debug)]
pub struct Slab {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    core: slab::Slab<'static>,
    parts: ManuallyDrop<Parts>,
}

/// The memory that `core` borrows.
#[derive(Debug)]
struct Parts {
    /// The registration that windows on blocks are bound to. Its keys are not given out. Dropped before the memory.
    lent: Option<Mr>,
    region: Arc<Region>,
    metas: *mut [BlockMeta],
    classes: *mut [SlabClass],
}

// SAFETY: only the owner uses the pointers, and what they point to may be shared.
unsafe impl Send for Parts {}
// SAFETY: only the owner uses the pointers, and what they point to may be shared.
unsafe impl Sync for Parts {}

impl Drop for Parts {
    fn drop(&mut self) {
        // SAFETY: from `Box::into_raw`; `core`, which borrowed them, was dropped before.
        unsafe {
            drop(Box::from_raw(self.metas));
            drop(Box::from_raw(self.classes));
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.core.outstanding() == 0 {
            // SAFETY: dropped once; no block is in use, and caches keep this alive, so nothing borrows the
            // records or accesses the memory.
            unsafe { ManuallyDrop::drop(&mut self.parts) };
        }
    }
}

impl Slab {
    /// The size in bytes of a region for this layout.
    ///
    /// # Errors
    /// [`Error::BadRegion`]: the size overflows.
    pub fn bytes(layout: &[ClassLayout]) -> Result<usize, Error> {
        let overflow = Error::BadRegion {
            addr: 0,
            length: u64::MAX,
        };
        region_bytes(layout).ok_or(overflow)
    }

    /// Cuts a region into blocks, the smallest first.
    ///
    /// A block's bytes belong to its owner alone, so the region must be inaccessible to others: it must be
    /// anonymous memory, or memory of [`Device::mapping`](crate::Device::mapping), which has no descriptor
    /// that can be passed on and cannot be mapped a second time; and it must be registered without access for
    /// peers or windows. Memory that peers access is a [`Region`], whose bytes are copied.
    ///
    /// # Errors
    /// [`Error::NotExclusive`]: others can access the region; [`Error::Slab`]: the layout is impossible, or
    /// does not fit.
    pub fn new(region: Region, layout: &[ClassLayout]) -> Result<Self, Error> {
        headroom()?;
        let open = region.mr().access() - OWN;
        if !open.is_empty() || region.mapping().fd().is_some() {
            return Err(Error::NotExclusive {
                access: open,
                shared: region.mapping().fd().is_some(),
            });
        }
        // SAFETY: the region is moved in here, and not lent out. It has no other mapping in this process,
        // since its descriptor was passed to nothing else and is sealed against writers, and its keys allow
        // only requests that are posted with a block. A fabric passes it to other processes, which read
        // posted blocks.
        unsafe { Self::of_shared(Arc::new(region), layout) }
    }

    /// Cuts a region like [`new`](Self::new), into blocks that can be lent to peers ([`grant`](Self::grant)). The memory
    /// is registered twice: once for the device, and once for the windows of grants, by a key that is not given out.
    ///
    /// # Errors
    /// Those of [`new`](Self::new) and [`Pd::register`](crate::Pd::register).
    pub fn with_grants(region: Region, layout: &[ClassLayout]) -> Result<Self, Error> {
        let mr = region.mr();
        let access = mr.access() | AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND;
        let start = NonNull::new(region.mapping().as_ptr());
        let lent = match start {
            // SAFETY: the registration is dropped before the region, in this function or with the slab. Windows are
            // bound to it only for blocks that a grant owns meanwhile.
            Some(start) => Some(unsafe { mr.pd().register(start, region.len(), access)? }),
            None => None,
        };
        let mut slab = Self::new(region, layout)?;
        if let Some(inner) = Arc::get_mut(&mut slab.inner) {
            inner.parts.lent = lent;
        }
        Ok(slab)
    }

    /// A grant of the first `length` bytes of a block: memory lent to a peer for one exchange, see
    /// [`Grant`]. `access` has the peer's rights: [`REMOTE_READ`](AccessFlags::REMOTE_READ),
    /// [`REMOTE_WRITE`](AccessFlags::REMOTE_WRITE) and [`REMOTE_ATOMIC`](AccessFlags::REMOTE_ATOMIC).
    ///
    /// # Errors
    /// [`GrantError`], with the block.
    pub fn grant(
        &self,
        block: Block<'static>,
        length: u32,
        access: AccessFlags,
    ) -> Result<Grant, (GrantError, Block<'static>)> {
        let Some(lent) = &self.inner.parts.lent else {
            return Err((GrantError::NotLendable, block));
        };
        if block.addr().wrapping_sub(lent.addr()) >= lent.length() {
            return Err((GrantError::Foreign, block));
        }
        Grant::of_block(lent, block, length, access)
    }

    /// Cuts a region into blocks like [`new`](Self::new). Other owners may keep the region alive, and peers or
    /// other mappings may reach its memory.
    ///
    /// # Errors
    /// [`Error::Slab`]: the layout is impossible, or does not fit.
    ///
    /// # Safety
    /// As long as there is a clone, a cache or a block of this slab, the region is not cut again, and is read
    /// and written only:
    ///
    /// - through the blocks,
    /// - by devices that a block is posted to,
    /// - by peers that a block was exposed to ([`Block::expose`]).
    ///
    /// The promise covers other mappings of the memory. It also covers requests and windows that use the
    /// region's keys, the program's own requests included.
    pub unsafe fn of_shared(region: Arc<Region>, layout: &[ClassLayout]) -> Result<Self, Error> {
        let metas: Box<[BlockMeta]> = defaults(block_count(layout).min(region.len() / 64))?;
        let classes: Box<[SlabClass]> = defaults(layout.len())?;
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
            lent: None,
            region,
            metas: Box::into_raw(metas),
            classes: Box::into_raw(classes),
        };
        // SAFETY: records and region are dropped after `core`, and not while a block is in use. The caller
        // guarantees that nothing else accesses the region's memory.
        let core =
            unsafe { slab::Slab::new(&mut *parts.metas, &mut *parts.classes, shape, layout)? };
        Ok(Self {
            inner: Arc::new(Inner {
                core,
                parts: ManuallyDrop::new(parts),
            }),
        })
    }

    /// Takes a block of the smallest class whose blocks have at least `length` bytes.
    ///
    /// # Errors
    /// [`TakeError`].
    #[inline]
    pub fn take(&self, length: u32) -> Result<Block<'static>, TakeError> {
        self.inner.core.take(length)
    }

    /// Creates a cache for one thread: taking and putting blocks need no atomic read-modify-write operation.
    ///
    /// # Errors
    /// [`TakeError::TooLarge`].
    pub fn cache(&self, length: u32) -> Result<SlabCache, TakeError> {
        Ok(SlabCache {
            core: self.inner.core.cache(length)?,
            _slab: self.clone(),
        })
    }

    /// Returns the block that starts at `addr`, and that [`Block::into_raw`] made raw.
    ///
    /// # Errors
    /// [`slab::RawFreeError`]: the block is free already, `addr` is not in this slab, or not the start of a
    /// block.
    ///
    /// # Safety
    /// The block is no longer used, and no request with it is in flight.
    pub unsafe fn give_back_raw(&self, addr: u64) -> Result<(), slab::RawFreeError> {
        // SAFETY: the caller guarantees that the block is no longer used.
        unsafe { self.inner.core.give_back_raw(addr) }
    }

    /// The block that starts at `addr`, and that [`Block::into_raw`] made raw.
    ///
    /// # Errors
    /// Those of [`give_back_raw`](Self::give_back_raw).
    ///
    /// # Safety
    /// The caller owns the block.
    #[inline]
    pub unsafe fn block_at(&self, addr: u64) -> Result<Block<'static>, slab::RawFreeError> {
        // SAFETY: the caller guarantees that it owns the block.
        unsafe { self.inner.core.block_at(addr) }
    }

    /// The number of blocks in use, or in a cache. Exact while no thread takes or returns blocks.
    pub fn outstanding(&self) -> usize {
        self.inner.core.outstanding()
    }

    /// The number of blocks.
    pub fn capacity(&self) -> usize {
        self.inner.core.capacity()
    }

    /// The registration.
    pub fn mr(&self) -> &Mr {
        self.inner.parts.region.mr()
    }
}

/// A cache of free blocks of one class, for one thread. `Send`, not `Sync`.
#[derive(Debug)]
pub struct SlabCache {
    // Dropped before the slab: it returns its blocks.
    core: slab::SlabCache<'static>,
    _slab: Slab,
}

impl SlabCache {
    /// Takes a block.
    ///
    /// # Errors
    /// [`TakeError::Empty`]: neither the cache nor the slab has one.
    #[inline(always)]
    pub fn take(&mut self) -> Result<Block<'static>, TakeError> {
        self.core.take()
    }

    /// Puts a block back. A block of another class or slab is returned to its own.
    #[inline(always)]
    pub fn put(&mut self, block: Block<'static>) {
        self.core.put(block);
    }
}
