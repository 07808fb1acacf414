//! The free blocks of one size.

use super::ClassLayout;
use super::block::{Block, BlockMeta, Head};
use crate::sync::atomic::Ordering;
use core::ptr::NonNull;
use crossbeam_utils::CachePadded;

/// The free blocks of one size. Created by [`Default`] in memory that the caller gives to
/// [`Slab::new`](super::Slab::new).
#[derive(Debug)]
pub struct SlabClass {
    head: CachePadded<Head>,
    /// The slab's first record; indexes count from it.
    metas: *const BlockMeta,
    size: u32,
    count: u32,
    first: u32,
    start: usize,
}

// SAFETY: all but the head is written once, before the slab is made.
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

    /// Puts all blocks onto the stack, the first on top.
    pub(super) fn fill(&self, metas: &[BlockMeta]) {
        for index in (self.first..self.first + self.count).rev() {
            // SAFETY: made a moment ago, and owned by nobody.
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
    /// `index` is one of the slab's records.
    #[inline(always)]
    unsafe fn meta(&self, index: u32) -> &BlockMeta {
        // SAFETY: the caller's promise; records live as long as the class.
        unsafe { &*self.metas.add(index as usize) }
    }

    /// # Safety
    /// `index` has just been popped by the caller.
    #[inline(always)]
    pub(super) unsafe fn own<'m>(&self, index: u32) -> Block<'m> {
        // SAFETY: a popped index is one of the slab's.
        let meta = unsafe { self.meta(index) };
        // Relaxed: the owner is the only one to turn it.
        meta.state().store(BlockMeta::TAKEN, Ordering::Relaxed);
        // SAFETY: popped, so owned by nobody else.
        unsafe { Block::from_raw(NonNull::from_ref(meta)) }
    }

    /// Takes the topmost block.
    #[inline(always)]
    pub(super) fn pop<'m>(&self) -> Option<Block<'m>> {
        let mut popped = [0];
        // SAFETY: just popped.
        (self.pop_many(&mut popped) == 1).then(|| unsafe { self.own(popped[0]) })
    }

    /// Takes up to as many blocks as `to` has room for, and gives how many.
    #[inline(always)]
    pub(super) fn pop_many(&self, to: &mut [u32]) -> usize {
        // Acquire: partner of the release in `push_chain`; links and the blocks' memory are seen.
        let mut head = self.head.word().load(Ordering::Acquire);
        loop {
            let (mut next, mut count) = (Head::index(head), 0);
            // A stale chain may lead anywhere among the records. It is bounded by `to`, and thrown
            // away by the exchange, for whoever made it stale changed the tag.
            while count < to.len() && next != BlockMeta::NONE {
                to[count] = next;
                count += 1;
                // SAFETY: links are indexes of records, or none.
                // Relaxed: if the head has not changed, it was published before it.
                next = unsafe { self.meta(next) }.next().load(Ordering::Relaxed);
            }
            if count == 0 {
                return 0;
            }
            let new = Head::pack(Head::tag(head).wrapping_add(1), next);
            // Acquire: as the load. The exchange carries on the pushers' releases.
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

    /// Puts a block onto the stack.
    ///
    /// # Safety
    /// `meta` is of this class, was the caller's, and is not used any more.
    #[inline(always)]
    pub(super) unsafe fn push(&self, meta: &BlockMeta) {
        // SAFETY: the caller's promise.
        unsafe { self.push_chain(meta.index(), meta) };
    }

    /// Puts several blocks onto the stack at once.
    ///
    /// # Safety
    /// As [`push`](Self::push), for each.
    pub(super) unsafe fn push_many(&self, indexes: &[u32]) {
        let (Some(first), Some(last)) = (indexes.first(), indexes.last()) else {
            return;
        };
        for pair in indexes.windows(2) {
            // SAFETY: the caller's.
            // Relaxed: published by the exchange.
            unsafe { self.meta(pair[0]) }
                .next()
                .store(pair[1], Ordering::Relaxed);
        }
        // SAFETY: the caller's.
        unsafe { self.push_chain(*first, self.meta(*last)) };
    }

    /// # Safety
    /// The chain from `first` to `last` is the caller's.
    #[inline(always)]
    unsafe fn push_chain(&self, first: u32, last: &BlockMeta) {
        // Relaxed: only a guess for the exchange below.
        let mut head = self.head.word().load(Ordering::Relaxed);
        loop {
            // Relaxed: published by the exchange.
            last.next().store(Head::index(head), Ordering::Relaxed);
            let new = Head::pack(Head::tag(head), first);
            // Release: partner of the acquire in `pop_many`.
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

    /// Counts the stack.
    pub(super) fn walk(&self, metas: &[BlockMeta]) -> usize {
        // Acquire: as in `pop_many`.
        let mut next = Head::index(self.head.word().load(Ordering::Acquire));
        let mut count = 0;
        // Bounded, should somebody change it meanwhile.
        while next != BlockMeta::NONE && count < self.count as usize {
            count += 1;
            // Relaxed: published by the head.
            next = metas[next as usize].next().load(Ordering::Relaxed);
        }
        count
    }
}
