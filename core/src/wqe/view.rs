//! Reading send WQEs, as a device does. Sizes found in a WQE never lead outside the ring.

use super::build::SendRing;
use super::segment::{
    AddressVector, AtomicSegment, BASIC_BLOCK, CtrlSegment, DataSegment, INLINE_FLAG, RaddrSegment,
    SEGMENT, XrcSegment,
};
use super::umr::Umr;
use crate::be::Be32;
use crate::wr::{Remote, Sge};
use core::ptr::NonNull;

/// A send WQE in its ring.
#[derive(Clone, Copy, Debug)]
pub struct SendWqe<'m> {
    ring: SendRing<'m>,
    counter: u32,
    ctrl: CtrlSegment,
}

/// One data segment of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data<'m> {
    /// Local memory.
    Pointer(Sge),
    /// Bytes inline in the WQE; the second slice is not empty where they wrap around the end of the
    /// ring.
    Inline(&'m [u8], &'m [u8]),
}

impl<'m> SendWqe<'m> {
    /// The WQE that starts at `counter`.
    ///
    /// # Safety
    /// The WQE has been posted, and the poster does not write to it as long as the view lives.
    #[inline(always)]
    pub unsafe fn read(ring: SendRing<'m>, counter: u32) -> Self {
        // SAFETY: a block starts with a control segment, and the caller guarantees that nobody
        // writes it.
        let ctrl = unsafe { ring.block(counter).cast::<CtrlSegment>().read() };
        Self {
            ring,
            counter,
            ctrl,
        }
    }

    /// Its opcode, one of [`opcode`](super::opcode).
    #[inline(always)]
    pub fn opcode(&self) -> u8 {
        self.ctrl.opmod_idx_opcode.get() as u8
    }

    /// The 16-bit counter that the poster wrote.
    #[inline(always)]
    pub fn index(&self) -> u16 {
        (self.ctrl.opmod_idx_opcode.get() >> 8) as u16
    }

    /// Number of the queue pair to which it was posted.
    #[inline(always)]
    pub fn qpn(&self) -> u32 {
        self.ctrl.qpn_ds.get() >> 8
    }

    /// Its size in segments.
    #[inline(always)]
    pub fn ds(&self) -> u32 {
        self.ctrl.qpn_ds.get() & 0x3f
    }

    /// Its size in basic blocks.
    #[inline(always)]
    pub fn blocks(&self) -> u32 {
        const SEGMENTS: u32 = (BASIC_BLOCK / SEGMENT) as u32;
        // A shift, because `div_ceil` would test the remainder.
        (self.ds() + SEGMENTS - 1) >> SEGMENTS.ilog2()
    }

    /// The flag byte, [`fm_ce_se`](super::fm_ce_se).
    #[inline(always)]
    pub fn fm_ce_se(&self) -> u8 {
        self.ctrl.signature_flags.get() as u8
    }

    /// Immediate data, or key to invalidate.
    #[inline(always)]
    pub fn imm(&self) -> Be32 {
        self.ctrl.imm
    }

    /// Its control segment.
    pub(super) fn ctrl(&self) -> CtrlSegment {
        self.ctrl
    }

    #[inline(always)]
    fn place(&self, offset: usize) -> NonNull<u8> {
        let block = self
            .ring
            .block(self.counter.wrapping_add((offset / BASIC_BLOCK) as u32));
        // SAFETY: within this block of the ring.
        unsafe { block.add(offset % BASIC_BLOCK) }
    }

    /// # Safety
    /// S is one of the segment types, for which every bit pattern is valid.
    #[inline(always)]
    pub(super) unsafe fn segment<S: Copy>(&self, offset: usize) -> S {
        debug_assert!(offset % BASIC_BLOCK + size_of::<S>() <= BASIC_BLOCK);
        // SAFETY: within one block, whose memory is the ring's and initialised; every bit pattern
        // is a valid S.
        unsafe { self.place(offset).cast::<S>().read() }
    }

    /// The remote address segment at byte `offset`.
    #[inline(always)]
    pub fn remote(&self, offset: usize) -> Remote {
        // SAFETY: every bit pattern is a valid remote address segment.
        unsafe { self.segment::<RaddrSegment>(offset) }.into()
    }

    /// The atomic segment at byte `offset`: swap or add operand, and compare operand.
    #[inline(always)]
    pub fn atomic(&self, offset: usize) -> (u64, u64) {
        // SAFETY: every bit pattern is a valid atomic segment.
        let atomic = unsafe { self.segment::<AtomicSegment>(offset) };
        (atomic.swap_add.get(), atomic.compare.get())
    }

    /// The address vector of a datagram.
    #[inline(always)]
    pub fn address_vector(&self) -> AddressVector {
        // SAFETY: every bit pattern is a valid address vector.
        unsafe { self.segment(SEGMENT) }
    }

    /// The number of the shared receive queue of an XRC request.
    #[inline(always)]
    pub fn xrc_srqn(&self) -> u32 {
        // SAFETY: every bit pattern is a valid XRC segment.
        let xrc = unsafe { self.segment::<XrcSegment>(SEGMENT) };
        xrc.xrc_srqn.get() & 0xff_ffff
    }

    /// Its bytes; the second slice is not empty where it wraps around the end of the ring.
    pub fn bytes(&self) -> (&'m [u8], &'m [u8]) {
        self.span(0, self.ds() as usize * SEGMENT)
    }

    /// `len` bytes from `offset` on.
    #[inline(always)]
    fn span(&self, offset: usize, len: usize) -> (&'m [u8], &'m [u8]) {
        let place = self.place(offset);
        let ring_bytes = self.ring.blocks() as usize * BASIC_BLOCK;
        let first = self.ring.block(0);
        let room = ring_bytes - (place.addr().get() - first.addr().get());
        let head = len.min(room);
        // SAFETY: `head` bytes from `place` on, and the rest from the start of the ring on, lie in
        // the ring; a WQE of at most 63 segments is shorter than any ring that holds it, and the
        // caller of `read` guarantees that nobody writes to it.
        unsafe {
            (
                NonNull::slice_from_raw_parts(place, head).as_ref(),
                NonNull::slice_from_raw_parts(first, (len - head).min(ring_bytes)).as_ref(),
            )
        }
    }

    /// Whether it has a size, and fits into its ring.
    #[inline(always)]
    pub(super) fn is_in_ring(&self) -> bool {
        (1..=self.ring.blocks()).contains(&self.blocks())
    }

    /// The decoded UMR work; `None` for other WQEs, and for UMR work that this crate does not post.
    /// Checked only for consistency with itself.
    pub fn umr(&self) -> Option<Umr> {
        Umr::read(self)
    }

    /// The data from byte `offset` to the end of the WQE.
    #[inline(always)]
    pub fn data(&self, offset: usize) -> SgeList<'m> {
        SgeList {
            wqe: *self,
            offset,
            end: self.ds() as usize * SEGMENT,
        }
    }
}

/// Iterator over the data of a WQE.
#[derive(Clone, Copy, Debug)]
pub struct SgeList<'m> {
    wqe: SendWqe<'m>,
    offset: usize,
    end: usize,
}

impl<'m> SgeList<'m> {
    /// Whether no more data follows.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.offset >= self.end
    }

    /// Total number of bytes; `u64`, because the sum is unbounded.
    #[inline]
    pub fn total(self) -> u64 {
        self.map(|data| match data {
            Data::Pointer(sge) => u64::from(sge.length),
            Data::Inline(head, tail) => (head.len() + tail.len()) as u64,
        })
        .sum()
    }
}

impl<'m> Iterator for SgeList<'m> {
    type Item = Data<'m>;

    #[inline(always)]
    fn next(&mut self) -> Option<Data<'m>> {
        if self.is_empty() {
            return None;
        }
        // SAFETY: every bit pattern is a valid data segment.
        let segment = unsafe { self.wqe.segment::<DataSegment>(self.offset) };
        let byte_count = segment.byte_count.get();
        if byte_count & INLINE_FLAG == 0 {
            self.offset += SEGMENT;
            return Some(Data::Pointer(segment.into()));
        }
        let start = self.offset + size_of::<Be32>();
        let len = ((byte_count & !INLINE_FLAG) as usize).min(self.end - start);
        self.offset = (start + len).next_multiple_of(SEGMENT);
        if start + len <= BASIC_BLOCK {
            let place = self.wqe.place(start);
            // SAFETY: within the first block; the caller of `read` guarantees that nobody writes to
            // it.
            let bytes = unsafe { NonNull::slice_from_raw_parts(place, len).as_ref() };
            return Some(Data::Inline(bytes, &[]));
        }
        let (head, tail) = self.wqe.span(start, len);
        Some(Data::Inline(head, tail))
    }
}
