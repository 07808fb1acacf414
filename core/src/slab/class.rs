//! The free blocks of one size.

use super::ClassLayout;
use super::block::{Block, BlockMeta, Head};
use crate::sync::atomic::Ordering;
use core::ptr::NonNull;
use crossbeam_utils::CachePadded;

/// The free blocks of one size. Created by [`Default`] in memory that the caller passes to
/// [`Slab::new`](super::Slab::new).
#[derive(Debug)]
pub struct SlabClass {
    head: CachePadded<Head>,
    /// The first record of the slab, to which indexes are relative.
    metas: *const BlockMeta,
    size: u32,
    count: u32,
    first: u32,
    start: usize,
}

// SAFETY: everything except the head is written once, before the slab is created.
unsafe impl Sync for SlabClass {}
// SAFETY: the pointer is to memory that outlives the slab.
unsafe impl Send for SlabClass {}

impl Default for SlabClass {
    fn default() -> Self {
        Self {
            head: CachePadded::new(Head::new()),
            metas: core::ptr::null(),
            size: 0,
            count: 0,
            first: 0,
            start: 0,
        }
    }
}

impl SlabClass {
    pub(super) fn set_up(
        &mut self,
        layout: ClassLayout,
        start: usize,
        first: u32,
        metas: *const BlockMeta,
    ) {
        self.head = CachePadded::new(Head::new());
        self.metas = metas;
        self.size = layout.size;
        self.count = layout.count;
        self.first = first;
        self.start = start;
    }

    /// Pushes all blocks onto the stack, the first one last.
    pub(super) fn fill(&self, metas: &[BlockMeta]) {
        for index in (self.first..self.first + self.count).rev() {
            // SAFETY: the block was just created, and is not owned.
            unsafe { self.push(&metas[index as usize]) };
        }
    }

    #[inline(always)]
    pub(super) fn size(&self) -> u32 {
        self.size
    }

    pub(super) fn first(&self) -> u32 {
        self.first
    }

    pub(super) fn start(&self) -> usize {
        self.start
    }

    pub(super) fn end(&self) -> usize {
        self.start + self.size as usize * self.count as usize
    }

    /// # Safety
    /// `index` is the index of one of the slab's records.
    #[inline(always)]
    unsafe fn meta(&self, index: u32) -> &BlockMeta {
        // SAFETY: the caller guarantees that the index is valid; records live as long as the class.
        unsafe { &*self.metas.add(index as usize) }
    }

    /// # Safety
    /// The caller has just popped `index`.
    #[inline(always)]
    pub(super) unsafe fn own<'m>(&self, index: u32) -> Block<'m> {
        // SAFETY: a popped index is the index of a record.
        let meta = unsafe { self.meta(index) };
        // Relaxed: only the owner changes the state.
        meta.state().store(BlockMeta::TAKEN, Ordering::Relaxed);
        // SAFETY: popped, so not owned by anyone else.
        unsafe { Block::from_raw(NonNull::from_ref(meta)) }
    }

    /// Pops a block.
    #[inline(always)]
    pub(super) fn pop<'m>(&self) -> Option<Block<'m>> {
        let mut popped = [0];
        // SAFETY: just popped.
        (self.pop_many(&mut popped) == 1).then(|| unsafe { self.own(popped[0]) })
    }

    /// Pops at most as many blocks as `to` has room for, and returns how many.
    #[inline(always)]
    pub(super) fn pop_many(&self, to: &mut [u32]) -> usize {
        // Acquire: pairs with the Release in `push_chain`, so that links and the memory of blocks
        // are visible.
        let mut head = self.head.word().load(Ordering::Acquire);
        loop {
            let (mut next, mut count) = (Head::index(head), 0);
            // A stale chain may lead to any of the records. Its length is bounded by `to`, and the
            // exchange discards it, because the pop that made it stale has changed the tag.
            while count < to.len() && next != BlockMeta::NONE {
                to[count] = next;
                count += 1;
                // SAFETY: links are indexes of records, or `NONE`.
                // Relaxed: if the head has not changed, the link was published before the head.
                next = unsafe { self.meta(next) }.next().load(Ordering::Relaxed);
            }
            if count == 0 {
                return 0;
            }
            let new = Head::pack(Head::tag(head).wrapping_add(1), next);
            // Acquire: like the load. As a read-modify-write the exchange continues the release
            // sequences of the pushers.
            match self.head.word().compare_exchange_weak(
                head,
                new,
                Ordering::Acquire,
                Ordering::Acquire,
            ) {
                Ok(_) => return count,
                Err(now) => head = now,
            }
        }
    }

    /// Pushes a block onto the stack.
    ///
    /// # Safety
    /// `meta` is of this class, was owned by the caller, and is not used any more.
    #[inline(always)]
    pub(super) unsafe fn push(&self, meta: &BlockMeta) {
        // SAFETY: the caller guarantees that it owned the block.
        unsafe { self.push_chain(meta.index(), meta) };
    }

    /// Pushes several blocks onto the stack at once.
    ///
    /// # Safety
    /// The requirements of [`push`](Self::push), for each.
    pub(super) unsafe fn push_many(&self, indexes: &[u32]) {
        let (Some(first), Some(last)) = (indexes.first(), indexes.last()) else {
            return;
        };
        for pair in indexes.windows(2) {
            // SAFETY: the caller guarantees that it owned these blocks.
            // Relaxed: published by the exchange.
            unsafe { self.meta(pair[0]) }
                .next()
                .store(pair[1], Ordering::Relaxed);
        }
        // SAFETY: the caller guarantees that it owned these blocks.
        unsafe { self.push_chain(*first, self.meta(*last)) };
    }

    /// # Safety
    /// The caller owns the blocks of the chain from `first` to `last`.
    #[inline(always)]
    unsafe fn push_chain(&self, first: u32, last: &BlockMeta) {
        // Relaxed: only a guess for the exchange below.
        let mut head = self.head.word().load(Ordering::Relaxed);
        loop {
            // Relaxed: published by the exchange.
            last.next().store(Head::index(head), Ordering::Relaxed);
            let new = Head::pack(Head::tag(head), first);
            // Release: pairs with the Acquire in `pop_many`.
            match self.head.word().compare_exchange_weak(
                head,
                new,
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Counts the blocks on the stack.
    pub(super) fn walk(&self, metas: &[BlockMeta]) -> usize {
        // Acquire: pairs with the Release in `push_chain`.
        let mut next = Head::index(self.head.word().load(Ordering::Acquire));
        let mut count = 0;
        // Bounded, in case the stack changes meanwhile.
        while next != BlockMeta::NONE && count < self.count as usize {
            count += 1;
            // Relaxed: published by the head.
            next = metas[next as usize].next().load(Ordering::Relaxed);
        }
        count
    }
}
