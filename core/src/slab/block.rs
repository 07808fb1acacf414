//! A block, and its record.

use super::SlabRegion;
use super::class::SlabClass;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::wr::{Remote, Sge};
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
use static_assertions::const_assert;

/// The record of one block. Created by [`Default`] in memory that the caller passes to
/// [`Slab::new`](super::Slab::new).
#[derive(Debug)]
#[repr(align(64))]
pub struct BlockMeta {
    place: NonNull<u8>,
    class: *const SlabClass,
    offset: u64,
    lkey: u32,
    rkey: u32,
    capacity: u32,
    index: u32,
    /// The next free block down in the stack.
    next: AtomicU32,
    state: AtomicU32,
}

const_assert!(cfg!(loom) || size_of::<BlockMeta>() == 64);
const_assert!(size_of::<Option<Block<'static>>>() == size_of::<usize>());

// SAFETY: everything except the atomics is written once, before the slab is created.
unsafe impl Sync for BlockMeta {}
// SAFETY: the pointers are to memory that outlives the slab.
unsafe impl Send for BlockMeta {}

impl Default for BlockMeta {
    fn default() -> Self {
        Self {
            place: NonNull::dangling(),
            class: core::ptr::null(),
            offset: 0,
            lkey: 0,
            rkey: 0,
            capacity: 0,
            index: 0,
            next: AtomicU32::new(Self::NONE),
            state: AtomicU32::new(Self::FREE),
        }
    }
}

impl BlockMeta {
    /// No block.
    pub(super) const NONE: u32 = u32::MAX;
    pub(super) const FREE: u32 = 0;
    pub(super) const TAKEN: u32 = 1;

    /// # Safety
    /// `class` is initialised, and lives as long as this record.
    pub(super) unsafe fn set_up(
        &mut self,
        place: NonNull<u8>,
        offset: usize,
        region: SlabRegion,
        class: *const SlabClass,
        index: u32,
    ) {
        self.place = place;
        self.class = class;
        self.offset = offset as u64;
        self.lkey = region.lkey;
        self.rkey = region.rkey;
        // SAFETY: the caller guarantees that `class` is initialised.
        self.capacity = unsafe { (*class).size() };
        self.index = index;
    }

    #[inline(always)]
    pub(super) fn class(&self) -> &SlabClass {
        // SAFETY: set when the slab was created; the class has the same lifetime as this record.
        unsafe { &*self.class }
    }

    #[inline(always)]
    pub(super) fn index(&self) -> u32 {
        self.index
    }

    #[inline(always)]
    pub(super) fn next(&self) -> &AtomicU32 {
        &self.next
    }

    #[inline(always)]
    pub(super) fn state(&self) -> &AtomicU32 {
        &self.state
    }
}

/// A block of registered memory and its unique owner. Returns to its slab when dropped, from any
/// thread.
///
/// While this value exists, only the program accesses its bytes, which are therefore available as
/// slices: no device and no peer reads or writes them. Posting moves it into the queue; then only
/// the device accesses them, until the completion returns the block. Memory that peers may access
/// at any time is not a block: it is copied, or read by words. A slab whose creator makes other
/// guarantees can expose its blocks to peers by [`expose`](Self::expose).
///
/// ```compile_fail
/// fn twice(block: bellwire_core::slab::Block<'_>) {
///     drop(block);
///     drop(block);
/// }
/// ```
#[repr(transparent)]
pub struct Block<'m> {
    meta: NonNull<BlockMeta>,
    slab: PhantomData<&'m BlockMeta>,
}

// SAFETY: the owner of its memory; the record is shared by atomics.
unsafe impl Send for Block<'_> {}
// SAFETY: shared references only read.
unsafe impl Sync for Block<'_> {}

impl fmt::Debug for Block<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block")
            .field("addr", &format_args!("{:#x}", self.addr()))
            .field("capacity", &self.capacity())
            .finish()
    }
}

impl<'m> Block<'m> {
    #[inline(always)]
    pub(super) fn meta(&self) -> &'m BlockMeta {
        // SAFETY: one of the slab's records, which live for `'m`.
        unsafe { self.meta.as_ref() }
    }

    /// Its start address, for work requests.
    #[inline(always)]
    pub fn addr(&self) -> u64 {
        self.meta().place.as_ptr().addr() as u64
    }

    /// A pointer to its start.
    #[inline(always)]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.meta().place
    }

    /// Its size in bytes.
    #[inline(always)]
    pub fn capacity(&self) -> u32 {
        self.meta().capacity
    }

    /// Its offset in bytes from the start of the region.
    #[inline(always)]
    pub fn offset(&self) -> u64 {
        self.meta().offset
    }

    /// The lkey, for local requests.
    #[inline(always)]
    pub fn lkey(&self) -> u32 {
        self.meta().lkey
    }

    /// A scatter/gather element of its first `length` bytes (at most all) for the raw `post`
    /// functions.
    #[inline(always)]
    pub fn sge(&self, length: u32) -> Sge {
        Sge {
            addr: self.addr(),
            length: length.min(self.capacity()),
            lkey: self.lkey(),
        }
    }

    /// Its bytes.
    #[inline(always)]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the contract of the slab guarantees valid and initialised memory; this is its
        // only owner.
        unsafe { NonNull::slice_from_raw_parts(self.as_ptr(), self.capacity() as usize).as_ref() }
    }

    /// Its bytes, to write.
    #[inline(always)]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: valid and initialised memory by the contract of the slab; this is its only owner,
        // borrowed mutably.
        unsafe { NonNull::slice_from_raw_parts(self.as_ptr(), self.capacity() as usize).as_mut() }
    }

    /// The address and rkey by which a peer can access the block.
    ///
    /// # Safety
    /// The rkey covers the whole region. As long as a peer that has it may write to this block, or
    /// to another one of the slab, these blocks are accessed only by [`load_u64`](Self::load_u64)
    /// and [`read_volatile`](Self::read_volatile), and are not returned while they may still be
    /// accessed. As long as a peer may read them, they are not written.
    #[inline(always)]
    pub unsafe fn expose(&self) -> Remote {
        Remote {
            addr: self.addr(),
            rkey: self.meta().rkey,
        }
    }

    /// Loads the word at byte `offset`, which a peer's RDMA WRITE may change. `None` when the
    /// offset is not aligned to 8, or not within the block.
    #[inline(always)]
    pub fn load_u64(&self, offset: u32, ordering: core::sync::atomic::Ordering) -> Option<u64> {
        let last = self.capacity().checked_sub(size_of::<u64>() as u32)?;
        if offset > last || !offset.is_multiple_of(8) {
            return None;
        }
        // SAFETY: within the block, and aligned because blocks are.
        let word = unsafe {
            core::sync::atomic::AtomicU64::from_ptr(
                self.as_ptr().add(offset as usize).cast().as_ptr(),
            )
        };
        Some(word.load(ordering))
    }

    /// Copies bytes that a peer may be writing. Each byte has a value that it had at some time
    /// during the call. Returns `false`, and copies nothing, when they are not within the block.
    pub fn read_volatile(&self, offset: u32, to: &mut [u8]) -> bool {
        let room = (self.capacity() as usize).checked_sub(offset as usize);
        if room.is_none_or(|room| to.len() > room) {
            return false;
        }
        // SAFETY: within the block, which consists of whole words. `to` does not overlap it,
        // because the block is borrowed shared; only peers to which it was exposed write it
        // meanwhile.
        unsafe { crate::shared::load(self.as_ptr().add(offset as usize).as_ptr(), to) };
        true
    }

    /// Gives up ownership without returning the block to its slab. [`from_raw`](Self::from_raw),
    /// [`Slab::block_at`](super::Slab::block_at) and
    /// [`Slab::give_back_raw`](super::Slab::give_back_raw) are the inverse.
    #[inline(always)]
    pub fn into_raw(self) -> NonNull<BlockMeta> {
        core::mem::ManuallyDrop::new(self).meta
    }

    /// The block of this record.
    ///
    /// # Safety
    /// The record comes from [`into_raw`](Self::into_raw), of a slab that lives for `'m`, and is
    /// used only once.
    #[inline(always)]
    pub unsafe fn from_raw(meta: NonNull<BlockMeta>) -> Self {
        Self {
            meta,
            slab: PhantomData,
        }
    }
}

impl Drop for Block<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        let meta = self.meta();
        // Relaxed: published by the push; only the owner changes the state.
        meta.state().store(BlockMeta::FREE, Ordering::Relaxed);
        // SAFETY: owned until here, and not used any more.
        unsafe { meta.class().push(meta) };
    }
}

/// Head of a stack: tag and index.
#[derive(Debug)]
pub(super) struct Head(AtomicU64);

impl Head {
    pub fn new() -> Self {
        Self(AtomicU64::new(Self::pack(0, BlockMeta::NONE)))
    }

    pub const fn pack(tag: u32, index: u32) -> u64 {
        (tag as u64) << 32 | index as u64
    }

    pub const fn tag(head: u64) -> u32 {
        (head >> 32) as u32
    }

    pub const fn index(head: u64) -> u32 {
        head as u32
    }

    #[inline(always)]
    pub fn word(&self) -> &AtomicU64 {
        &self.0
    }
}
