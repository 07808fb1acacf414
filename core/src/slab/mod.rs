//! Fixed-size blocks of one registered memory region.
//!
//! ```text
//! region   │ class 0: 64 B × 4 │ class 1: 4 KiB × 2          │
//! metas    │ 0   1   2   3     │ 4            5              │   one record a block
//! class    head ─► 2 ─► 0 ─► ∎   head ─► 5 ─► ∎                 free blocks, a stack of indexes
//! ```
//!
//! A [`Block`] is one pointer, the unique owner of its memory, and returns to its slab when
//! dropped, from any thread. Free blocks are a stack (R. K. Treiber, *Systems Programming: Coping
//! with Parallelism*, 1986) whose head carries a tag: each removal changes it, so that a head read
//! before a removal never equals one after it. For that to fail, the 32 bits of the tag would have
//! to wrap within one stalled removal.
//!
//! | operation | atomic read-modify-writes |
//! |---|---|
//! | [`Slab::take`], drop of a [`Block`] | 1 each |
//! | [`SlabCache::take`], [`SlabCache::put`] | none; 1 for 32 blocks when it runs empty or full |
//! | [`Slab::give_back_raw`] | 2 |

mod block;
mod cache;
mod class;
mod error;
#[cfg(all(test, any(loom, miri)))]
mod loom;
#[cfg(all(test, not(loom)))]
mod tests;

pub use block::{Block, BlockMeta};
pub use cache::SlabCache;
pub use class::SlabClass;
pub use error::{LayoutError, RawFreeError, TakeError};

use crate::sync::atomic::Ordering;
use core::ptr::NonNull;

/// Blocks of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassLayout {
    /// Bytes of a block: a multiple of 64.
    pub size: u32,
    /// Number of blocks.
    pub count: u32,
}

/// Alignment of a region, and of classes whose size allows it.
const PAGE: usize = 4096;

impl ClassLayout {
    /// The alignment of the blocks: their size where it is a power of two, at most a page.
    const fn align(self) -> usize {
        let size = self.size as usize;
        if !size.is_power_of_two() {
            64
        } else if size < PAGE {
            size
        } else {
            PAGE
        }
    }

    /// Start and end of the class when it follows `offset`.
    fn place(self, offset: usize) -> Option<(usize, usize)> {
        let start = offset.checked_next_multiple_of(self.align())?;
        let bytes = (self.size as usize).checked_mul(self.count as usize)?;
        Some((start, start.checked_add(bytes)?))
    }
}

/// Bytes of the region that a layout needs; `None` when they overflow.
pub fn region_bytes(layout: &[ClassLayout]) -> Option<usize> {
    layout
        .iter()
        .try_fold(0, |end, class| class.place(end).map(|(_, end)| end))
}

/// Number of blocks of a layout, and of the records that it needs.
pub fn block_count(layout: &[ClassLayout]) -> usize {
    layout
        .iter()
        .fold(0, |sum, class| sum.saturating_add(class.count as usize))
}

/// The memory region that is divided into blocks.
#[derive(Clone, Copy, Debug)]
pub struct SlabRegion {
    /// Its start, aligned to 4096.
    pub start: NonNull<u8>,
    /// Its length in bytes.
    pub length: usize,
    /// The lkey, for local requests.
    pub lkey: u32,
    /// The rkey, for requests of peers.
    pub rkey: u32,
}

/// The blocks of one region. May be shared by all threads.
#[derive(Debug)]
pub struct Slab<'m> {
    metas: &'m [BlockMeta],
    classes: &'m [SlabClass],
    start: usize,
}

impl<'m> Slab<'m> {
    /// Divides `region` into blocks as `layout` says, smallest blocks first. `metas` and `classes`
    /// are the caller's memory for at least [`block_count`] and `layout.len()` records, created by
    /// [`Default`].
    ///
    /// # Errors
    /// [`LayoutError`], if the layout is invalid or does not fit.
    ///
    /// # Safety
    /// For `'m` the region is valid, initialised memory. It is only accessed through its blocks, by
    /// the devices to which these are posted, and by peers that were given a block by
    /// [`Block::expose`]: there is no other mapping of it, and no other request uses its keys.
    pub unsafe fn new(
        metas: &'m mut [BlockMeta],
        classes: &'m mut [SlabClass],
        region: SlabRegion,
        layout: &[ClassLayout],
    ) -> Result<Self, LayoutError> {
        check(metas.len(), classes.len(), region, layout)?;
        // The device accesses blocks by address.
        let address = region.start.as_ptr().expose_provenance();
        let (metas, classes) = (metas.as_mut_ptr(), classes.as_mut_ptr());
        let (mut end, mut first) = (0, 0);
        for (at, shape) in layout.iter().enumerate() {
            // `check` has verified that it fits.
            let (start, next) = shape.place(end).unwrap_or((end, end));
            // SAFETY: `check` has found enough records of both kinds, and they are borrowed
            // exclusively for `'m`.
            unsafe {
                let class = classes.add(at);
                (*class).set_up(*shape, start, first, metas);
                for block in 0..shape.count {
                    let offset = start + block as usize * shape.size as usize;
                    let index = first + block;
                    let place = region.start.add(offset);
                    (*metas.add(index as usize)).set_up(place, offset, region, class, index);
                }
            }
            end = next;
            first += shape.count;
        }
        // SAFETY: written through these pointers above, and only shared from here on.
        let (metas, classes) = unsafe {
            (
                core::slice::from_raw_parts(metas, first as usize),
                core::slice::from_raw_parts(classes, layout.len()),
            )
        };
        for class in classes {
            class.fill(metas);
        }
        Ok(Self {
            metas,
            classes,
            start: address,
        })
    }

    /// Takes a block of the smallest class whose blocks have at least `length` bytes. When that
    /// class is empty, larger ones are not tried, so that the cost of a request does not depend on
    /// other threads.
    ///
    /// # Errors
    /// [`TakeError`], if there is no block.
    #[inline]
    pub fn take(&self, length: u32) -> Result<Block<'m>, TakeError> {
        let class = self.class(length)?;
        class.pop().ok_or(TakeError::Empty { size: class.size() })
    }

    /// Creates a cache for one thread of the class that [`take`](Self::take) would use.
    ///
    /// # Errors
    /// [`TakeError::TooLarge`], if no class has blocks of `length` bytes.
    pub fn cache(&self, length: u32) -> Result<SlabCache<'m>, TakeError> {
        Ok(SlabCache::new(self.class(length)?))
    }

    #[inline]
    fn class(&self, length: u32) -> Result<&'m SlabClass, TakeError> {
        self.classes
            .iter()
            .find(|class| length <= class.size())
            .ok_or(TakeError::TooLarge {
                length,
                max: self.classes.last().map_or(0, SlabClass::size),
            })
    }

    /// Returns the block that starts at `addr` and was made raw by [`Block::into_raw`].
    ///
    /// # Errors
    /// [`RawFreeError`]; nothing was returned then. A block that is free already is detected: of
    /// two threads that return the same block exactly one succeeds.
    ///
    /// # Safety
    /// Nothing uses the block any more, and no request on it is in flight.
    pub unsafe fn give_back_raw(&self, addr: u64) -> Result<(), RawFreeError> {
        let meta = self.meta_at(addr)?;
        // AcqRel: of two threads only one sees TAKEN, and its accesses come after those of the
        // other.
        let turned = meta.state().compare_exchange(
            BlockMeta::TAKEN,
            BlockMeta::FREE,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        if turned.is_err() {
            return Err(RawFreeError::DoubleFree { addr });
        }
        // SAFETY: taken until just now, and the caller guarantees that nothing uses it.
        unsafe { meta.class().push(meta) };
        Ok(())
    }

    /// Returns ownership of the block that starts at `addr` and was made raw by
    /// [`Block::into_raw`].
    ///
    /// # Errors
    /// [`RawFreeError`]; `DoubleFree` if it is free.
    ///
    /// # Safety
    /// The caller owns the block.
    pub unsafe fn block_at(&self, addr: u64) -> Result<Block<'m>, RawFreeError> {
        let meta = self.meta_at(addr)?;
        // Relaxed: the caller owns the block, so nobody changes its state.
        if meta.state().load(Ordering::Relaxed) != BlockMeta::TAKEN {
            return Err(RawFreeError::DoubleFree { addr });
        }
        // SAFETY: the caller guarantees that it owns the block.
        Ok(unsafe { Block::from_raw(NonNull::from_ref(meta)) })
    }

    fn meta_at(&self, addr: u64) -> Result<&'m BlockMeta, RawFreeError> {
        let foreign = RawFreeError::Foreign { addr };
        let offset = (addr as usize).checked_sub(self.start).ok_or(foreign)?;
        let class = self
            .classes
            .iter()
            .find(|class| (class.start()..class.end()).contains(&offset))
            .ok_or(foreign)?;
        let within = offset - class.start();
        let size = class.size() as usize;
        if !within.is_multiple_of(size) {
            return Err(RawFreeError::Misaligned { addr });
        }
        let index = class.first() as usize + within / size;
        self.metas.get(index).ok_or(foreign)
    }

    /// Number of blocks of all classes.
    pub fn capacity(&self) -> usize {
        self.metas.len()
    }

    /// Number of free blocks that are in no [`SlabCache`]. Exact when no block is taken or returned
    /// meanwhile.
    pub fn free(&self) -> usize {
        self.classes
            .iter()
            .map(|class| class.walk(self.metas))
            .sum()
    }

    /// Number of blocks that are taken or in a [`SlabCache`]. Exact when no block is taken or
    /// returned meanwhile: zero then means that the region can no longer be accessed through a
    /// block.
    pub fn outstanding(&self) -> usize {
        self.capacity() - self.free()
    }
}

fn check(
    metas: usize,
    classes: usize,
    region: SlabRegion,
    layout: &[ClassLayout],
) -> Result<(), LayoutError> {
    if layout.is_empty() {
        return Err(LayoutError::NoClasses);
    }
    for class in layout {
        if class.size == 0 || !class.size.is_multiple_of(64) || class.count == 0 {
            return Err(LayoutError::BadClass(*class));
        }
    }
    if !layout.is_sorted_by(|a, b| a.size < b.size) {
        return Err(LayoutError::NotAscending);
    }
    let needed = block_count(layout);
    if needed > metas || needed >= BlockMeta::NONE as usize || layout.len() > classes {
        return Err(LayoutError::TooFewRecords {
            blocks: needed,
            metas,
            classes,
        });
    }
    if !region.start.as_ptr().addr().is_multiple_of(PAGE) {
        return Err(LayoutError::Misaligned);
    }
    match region_bytes(layout) {
        Some(bytes) if bytes <= region.length => Ok(()),
        bytes => Err(LayoutError::RegionTooSmall {
            needed: bytes.unwrap_or(usize::MAX),
            given: region.length,
        }),
    }
}
