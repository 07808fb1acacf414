//! A block, and the record behind it.

use super::SlabRegion;
use super::class::SlabClass;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::wr::{Remote, Sge};
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
use static_assertions::const_assert;

/// The record of one block. Created by [`Default`] in memory that the caller gives to
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
    /// The free block below this one in the stack.
    next: AtomicU32,
    state: AtomicU32,
}

const_assert!(cfg!(loom) || size_of::<BlockMeta>() == 64);
const_assert!(size_of::<Option<Block<'static>>>() == size_of::<usize>());

// SAFETY: all but the atomics is written once, before the slab is made.
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
    /// `class` is set up, and lives as long as this record.
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
        // SAFETY: the caller's promise.
        self.capacity = unsafe { (*class).size() };
        self.index = index;
    }

    #[inline(always)]
    pub(super) fn class(&self) -> &SlabClass {
        // SAFETY: set when the slab was made; the class has the same lifetime as this record.
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

/// A block of registered memory, and its only owner. Returns to its slab when dropped, from any
/// thread.
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
        // SAFETY: from a slab's records, which live for `'m`.
        unsafe { self.meta.as_ref() }
    }

    /// Where it starts, as requests name it.
    #[inline(always)]
    pub fn addr(&self) -> u64 {
        self.meta().place.as_ptr().addr() as u64
    }

    /// Where it starts.
    #[inline(always)]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.meta().place
    }

    /// Its bytes.
    #[inline(always)]
    pub fn capacity(&self) -> u32 {
        self.meta().capacity
    }

    /// Bytes from the region's start.
    #[inline(always)]
    pub fn offset(&self) -> u64 {
        self.meta().offset
    }

    /// The key for requests of this side.
    #[inline(always)]
    pub fn lkey(&self) -> u32 {
        self.meta().lkey
    }

    /// An element of its first `length` bytes (at the most all) for the raw posting path.
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
        // SAFETY: valid and initialised by the slab's contract; this owner is the only one.
        unsafe { NonNull::slice_from_raw_parts(self.as_ptr(), self.capacity() as usize).as_ref() }
    }

    /// Its bytes, to write.
    #[inline(always)]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { NonNull::slice_from_raw_parts(self.as_ptr(), self.capacity() as usize).as_mut() }
    }

    /// What a peer needs to reach the block.
    ///
    /// # Safety
    /// The key opens the whole region. As long as a peer that has it may write to this block, or to
    /// another of the slab, these are accessed only by [`load_u64`](Self::load_u64) and
    /// [`read_volatile`](Self::read_volatile), and are not given back while the peer may still use
    /// them.
    #[inline(always)]
    pub unsafe fn expose(&self) -> Remote {
        Remote {
            addr: self.addr(),
            rkey: self.meta().rkey,
        }
    }

    /// The word at byte `offset`, as a peer's WRITE leaves it. `None` when it is not aligned to 8, or
    /// not within the block.
    #[inline(always)]
    pub fn load_u64(&self, offset: u32, ordering: core::sync::atomic::Ordering) -> Option<u64> {
        let last = self.capacity().checked_sub(size_of::<u64>() as u32)?;
        if offset > last || !offset.is_multiple_of(8) {
            return None;
        }
        // SAFETY: within the block, and aligned as blocks are.
        let word = unsafe {
            core::sync::atomic::AtomicU64::from_ptr(
                self.as_ptr().add(offset as usize).cast().as_ptr(),
            )
        };
        Some(word.load(ordering))
    }

    /// Copies bytes that a peer may be writing: each is what it was at some time. `false`, and nothing
    /// copied, when they do not lie within the block.
    pub fn read_volatile(&self, offset: u32, to: &mut [u8]) -> bool {
        let room = (self.capacity() as usize).checked_sub(offset as usize);
        if room.is_none_or(|room| to.len() > room) {
            return false;
        }
        for (at, byte) in to.iter_mut().enumerate() {
            // SAFETY: within the block.
            *byte = unsafe { self.as_ptr().add(offset as usize + at).read_volatile() };
        }
        true
    }

    /// Gives up ownership without returning the block: [`from_raw`](Self::from_raw),
    /// [`Slab::block_at`](super::Slab::block_at) or
    /// [`Slab::give_back_raw`](super::Slab::give_back_raw) end that.
    #[inline(always)]
    pub fn into_raw(self) -> NonNull<BlockMeta> {
        core::mem::ManuallyDrop::new(self).meta
    }

    /// The block of a record.
    ///
    /// # Safety
    /// The record is from [`into_raw`](Self::into_raw), of a slab that lives for `'m`, and is used
    /// once.
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
        // Relaxed: published by the push; the owner is the only one to turn it.
        meta.state().store(BlockMeta::FREE, Ordering::Relaxed);
        // SAFETY: owned until here, and not used any more.
        unsafe { meta.class().push(meta) };
    }
}

/// Tag and index of a stack's head.
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
