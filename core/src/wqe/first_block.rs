//! Reading short send WQEs, by fewer instructions than [`SendWqe`](super::SendWqe) takes: nothing is copied, and
//! nothing wraps around the end of the ring.

use super::build::SendRing;
use super::segment::{BASIC_BLOCK, CtrlSegment, DataSegment, INLINE_FLAG, RaddrSegment, SEGMENT};
use super::view::Data;
use crate::be::Be32;
use crate::port::LastEntry;
use crate::wr::{Remote, Sge};
use core::marker::PhantomData;
use core::mem::offset_of;
use core::ptr::NonNull;

/// The first basic block of a send WQE, in its ring.
#[derive(Clone, Copy, Debug)]
pub struct FirstBlock<'m> {
    block: NonNull<u8>,
    ring: PhantomData<SendRing<'m>>,
}

impl<'m> FirstBlock<'m> {
    /// That of the WQE that starts at `counter`.
    ///
    /// # Safety
    /// The WQE has been posted, and the poster does not write to it for `'m`.
    #[inline(always)]
    pub unsafe fn read(ring: SendRing<'m>, counter: u32) -> Self {
        Self {
            block: ring.block(counter),
            ring: PhantomData,
        }
    }

    /// The one at this place of a ring.
    ///
    /// # Safety
    /// It is the first block of a WQE that has been posted, and the poster does not write to it for `'m`.
    #[inline(always)]
    pub unsafe fn of(block: NonNull<u8>) -> Self {
        Self {
            block,
            ring: PhantomData,
        }
    }

    /// # Safety
    /// Every bit pattern is a valid S.
    #[inline(always)]
    unsafe fn at<S: Copy>(&self, offset: usize) -> S {
        debug_assert!(offset + size_of::<S>() <= BASIC_BLOCK);
        // SAFETY: within the block, which is initialised, and aligned to 64.
        unsafe { self.block.add(offset).cast::<S>().read() }
    }

    /// Its opcode, one of [`opcode`](super::opcode).
    #[inline(always)]
    pub fn opcode(&self) -> u8 {
        // The low byte of a big-endian word.
        const LOW: usize = offset_of!(CtrlSegment, opmod_idx_opcode) + 3;
        // SAFETY: a byte.
        unsafe { self.at(LOW) }
    }

    /// Its size in segments.
    #[inline(always)]
    pub fn ds(&self) -> u32 {
        const LOW: usize = offset_of!(CtrlSegment, qpn_ds) + 3;
        // SAFETY: a byte.
        u32::from(unsafe { self.at::<u8>(LOW) } & 0x3f)
    }

    /// The flag byte, [`fm_ce_se`](super::fm_ce_se).
    #[inline(always)]
    pub fn fm_ce_se(&self) -> u8 {
        const LOW: usize = offset_of!(CtrlSegment, signature_flags) + 3;
        // SAFETY: a byte.
        unsafe { self.at(LOW) }
    }

    /// The remote address segment at byte `offset`.
    #[inline(always)]
    pub fn remote(&self, offset: usize) -> Remote {
        // SAFETY: every bit pattern is a valid remote address segment.
        unsafe { self.at::<RaddrSegment>(offset) }.into()
    }

    /// The data from byte `offset` on, if it is one piece of inline data that ends with the WQE and within this
    /// block, and is not empty.
    #[inline(always)]
    pub fn inline(&self, offset: usize) -> Option<&'m [u8]> {
        let start = offset + size_of::<Be32>();
        // SAFETY: every bit pattern is a valid word.
        let count = unsafe { self.at::<Be32>(offset) }.get();
        // Without the flag, far too long.
        let len = (count ^ INLINE_FLAG) as usize;
        // A shift, because `div_ceil` would test the remainder.
        let segments = (start + len + SEGMENT - 1) >> SEGMENT.ilog2();
        (segments == self.ds() as usize).then_some(())?;
        self.data(offset, len)
    }

    /// The data from byte `offset` on, if it is one piece that ends with the WQE and is not empty: inline data, which
    /// may reach beyond this block, or one element.
    ///
    /// # Safety
    /// This block and those behind it, `blocks` in all, lie one behind the other in the ring, and are as
    /// [`read`](Self::read) requires.
    #[inline(always)]
    pub unsafe fn piece(&self, offset: usize, blocks: u32) -> Option<Data<'m>> {
        debug_assert!(offset.is_multiple_of(SEGMENT) && offset < BASIC_BLOCK);
        // SAFETY: every bit pattern is a valid segment, which is within the block.
        let segment = unsafe { self.at::<DataSegment>(offset) };
        let count = segment.byte_count.get();
        let ds = self.ds() as usize;
        if count & INLINE_FLAG == 0 {
            let ends = ds * SEGMENT == offset + SEGMENT && count != 0;
            return ends.then(|| Data::Pointer(segment.into()));
        }
        let (start, len) = (offset + size_of::<Be32>(), (count & !INLINE_FLAG) as usize);
        let ends = (start + len).div_ceil(SEGMENT) == ds && len != 0;
        if !ends || ds * SEGMENT > blocks as usize * BASIC_BLOCK {
            return None;
        }
        // SAFETY: within the blocks that the caller guarantees.
        let bytes = unsafe { NonNull::slice_from_raw_parts(self.block.add(start), len).as_ref() };
        Some(Data::Inline(bytes, &[]))
    }

    /// The data from byte `offset` on, if all of it is elements up to the WQE's end, none of which is empty.
    ///
    /// # Safety
    /// As for [`piece`](Self::piece).
    #[inline(always)]
    pub unsafe fn elements(
        &self,
        offset: usize,
        blocks: u32,
    ) -> Option<impl ExactSizeIterator<Item = Sge> + use<'m>> {
        debug_assert!(offset.is_multiple_of(SEGMENT) && offset < BASIC_BLOCK);
        let end = self.ds() as usize * SEGMENT;
        let count = end.checked_sub(offset)? / SEGMENT;
        if end > blocks as usize * BASIC_BLOCK {
            return None;
        }
        // SAFETY: every bit pattern is a valid segment; within the blocks that the caller guarantees, which nobody
        // writes to, and aligned, because the ring's blocks are.
        let segments: &'m [DataSegment] =
            unsafe { NonNull::slice_from_raw_parts(self.block.add(offset).cast(), count).as_ref() };
        let is_element = |it: &DataSegment| (1..INLINE_FLAG).contains(&it.byte_count.get());
        (segments.iter().all(is_element)).then(|| segments.iter().map(|&segment| segment.into()))
    }

    /// Its first word, in this machine's byte order.
    #[inline(always)]
    pub fn word(&self) -> u32 {
        // SAFETY: every bit pattern is a valid word.
        unsafe { self.at(0) }
    }

    /// N bytes behind the first word of the segment at byte `offset`, which end within the block.
    #[inline(always)]
    pub fn behind_word<const N: usize>(&self, offset: usize) -> [u8; N] {
        // SAFETY: bytes.
        unsafe { self.at(offset + size_of::<Be32>()) }
    }

    /// Inline data of `len` bytes from byte `offset` on. `None`: it is empty, or does not end within this block.
    #[inline(always)]
    pub fn data(&self, offset: usize, len: usize) -> Option<&'m [u8]> {
        let start = offset + size_of::<Be32>();
        if len.wrapping_sub(1) >= BASIC_BLOCK - start {
            return None;
        }
        // SAFETY: within the block; the caller of `read` guarantees that nobody writes to it.
        Some(unsafe { NonNull::slice_from_raw_parts(self.block.add(start), len).as_ref() })
    }

    /// What a doorbell would be told of the WQE, whose data begins at byte `offset`.
    #[inline(always)]
    pub fn known(&self, offset: usize) -> LastEntry {
        let inline = (self.inline(offset)).map_or(LastEntry::UNKNOWN, |data| data.len() as u16);
        LastEntry::new(self.ds() as u8, self.opcode(), inline)
    }

    /// Its first bytes, as N words in this machine's byte order.
    #[inline(always)]
    pub fn words<const N: usize>(&self) -> [u64; N] {
        const { assert!(N * size_of::<u64>() <= BASIC_BLOCK) };
        // SAFETY: every bit pattern is a valid word.
        unsafe { self.at(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::wqe::{Data, SendWqe};
    use core::array::from_fn;
    use std::vec::Vec;

    #[derive(Clone, Copy)]
    #[repr(align(64))]
    struct Ring([u8; 4 * BASIC_BLOCK]);

    const OFFSETS: [usize; 3] = [16, 32, 48];

    /// What it finds of a WQE is what the other view finds, and only what lies within the block.
    fn agrees(memory: &mut Ring, counter: u32) {
        // SAFETY: borrowed for as long as the ring is used, and aligned.
        let ring = unsafe { SendRing::new(NonNull::from(&mut memory.0).cast(), 4) };
        let ring = ring.expect("a power of two");
        // SAFETY: the ring is initialised, and nobody writes to it.
        let (wqe, block) = unsafe {
            (
                SendWqe::read(ring, counter),
                FirstBlock::read(ring, counter),
            )
        };
        assert_eq!(block.opcode(), wqe.opcode());
        assert_eq!(block.ds(), wqe.ds());
        assert_eq!(block.fm_ce_se(), wqe.fm_ce_se());
        for offset in OFFSETS {
            assert_eq!(block.remote(offset), wqe.remote(offset));
            let mut pieces = wqe.data(offset);
            let all = match (pieces.next(), pieces.next()) {
                (Some(Data::Inline(bytes, [])), None) => Some(bytes),
                _ => None,
            };
            let fits = |bytes: &&[u8]| (1..=BASIC_BLOCK - offset - 4).contains(&bytes.len());
            match block.inline(offset) {
                // A length that exceeds the WQE is cut there by the other view.
                None => assert!(all.filter(fits).is_none_or(|bytes| {
                    // SAFETY: as above.
                    let claimed = unsafe { block.at::<Be32>(offset) }.get() & !INLINE_FLAG;
                    claimed as usize != bytes.len() || wqe.ds() as usize * SEGMENT > BASIC_BLOCK
                })),
                found => assert_eq!(found, all),
            }
            let blocks = (4 - (counter & 3)).min(wqe.blocks().max(1));
            // SAFETY: as above; they end where the ring does.
            let found = unsafe { block.piece(offset, blocks) };
            let mut pieces = wqe.data(offset);
            let one = pieces.next().filter(|_| pieces.next().is_none());
            // SAFETY: as above.
            let claimed = unsafe { block.at::<Be32>(offset) }.get() & !INLINE_FLAG;
            let is_whole = |data: &Data<'_>| match *data {
                Data::Pointer(sge) => sge.length != 0,
                Data::Inline(bytes, rest) => {
                    rest.is_empty() && !bytes.is_empty() && bytes.len() == claimed as usize
                }
            };
            assert_eq!(found, one.filter(is_whole), "{wqe:?} at {offset}");
            // SAFETY: as above.
            let elements = unsafe { block.elements(offset, blocks) };
            let fits =
                (offset..=blocks as usize * BASIC_BLOCK).contains(&(wqe.ds() as usize * SEGMENT));
            let expected = fits.then(|| {
                wqe.data(offset).map(|piece| match piece {
                    Data::Pointer(sge) if sge.length != 0 => Some(sge),
                    _ => None,
                })
            });
            assert!(
                (elements.map(Iterator::collect::<Vec<_>>))
                    == expected.and_then(Iterator::collect::<Option<Vec<_>>>),
                "{wqe:?} at {offset}"
            );
        }
    }

    #[test]
    fn both_views_find_the_same() {
        let mut random = Random(7);
        for _ in 0..if cfg!(miri) { 50 } else { 100_000 } {
            let mut memory = Ring(from_fn(|_| random.next() as u8));
            let counter = random.next() as u32;
            let start = (counter & 3) as usize * BASIC_BLOCK;
            let words = &mut memory.0[start..start + BASIC_BLOCK];
            // Most are of a size and a length that are possible.
            words[7] = random.below(6) as u8;
            for offset in OFFSETS {
                let flag = if random.below(4) == 0 { 0 } else { INLINE_FLAG };
                let count = flag | random.below(50) as u32;
                words[offset..offset + 4].copy_from_slice(&count.to_be_bytes());
            }
            agrees(&mut memory, counter);
        }
    }

    #[test]
    fn words_and_what_is_behind_one_are_the_bytes_there() {
        let mut memory = Ring(from_fn(|at| at as u8));
        // SAFETY: borrowed for as long as the ring is used, and aligned.
        let ring = unsafe { SendRing::new(NonNull::from(&mut memory.0).cast(), 4) };
        // SAFETY: the ring is initialised, and nobody writes to it.
        let block = unsafe { FirstBlock::read(ring.expect("a power of two"), 1) };
        let bytes = block.words::<2>().map(u64::to_ne_bytes);
        assert_eq!(
            bytes.as_flattened(),
            from_fn::<u8, 16, _>(|at| 64 + at as u8)
        );
        assert_eq!(block.word().to_ne_bytes(), [64, 65, 66, 67]);
        for offset in OFFSETS {
            let expected: [u8; 12] = from_fn(|at| (64 + offset + 4 + at) as u8);
            assert_eq!(block.behind_word(offset), expected);
        }
    }
}
