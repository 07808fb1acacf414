//! The WQE builder, generic over operation, transport and payload.

use super::operation::Operation;
use super::payload::Payload;
use super::segment::{BASIC_BLOCK, CtrlSegment, SEGMENT, fm_ce_se, pair};
use super::transport::Transport;
use super::umr::Umr;
use super::view::SendWqe;
use crate::be::{Be32, Be64};
use crate::op::{WrOpcode, opcode};
use crate::wr::QpType;
use core::marker::PhantomData;
use core::ptr::NonNull;

/// A send queue's memory: a ring of basic blocks, whose number is a power of two.
///
/// Holds only pointers, because the device accesses the same memory.
#[derive(Clone, Copy, Debug)]
pub struct SendRing<'m> {
    base: NonNull<u8>,
    /// Number of basic blocks, minus one.
    mask: u32,
    memory: PhantomData<&'m [u8]>,
}

// SAFETY: the memory is reached only by the unsafe functions of this module, whose callers
// guarantee who writes it when.
unsafe impl Send for SendRing<'_> {}
// SAFETY: the memory is reached only by the unsafe functions of this module, whose callers
// guarantee who writes it when.
unsafe impl Sync for SendRing<'_> {}

impl<'m> SendRing<'m> {
    /// Creates a ring over `blocks` basic blocks at `base`. `None` unless `blocks` is a power of
    /// two of at most 32768 (the device's counter has 16 bits) and `base` is aligned to 64.
    ///
    /// # Safety
    /// The memory is valid for reads and writes for `'m`, and used only by the one queue that posts
    /// to it and the device.
    pub unsafe fn new(base: NonNull<u8>, blocks: u32) -> Option<Self> {
        let fits = blocks.is_power_of_two() && blocks <= 1 << 15;
        let aligned = base.as_ptr().addr().is_multiple_of(BASIC_BLOCK);
        (fits && aligned).then(|| Self {
            base,
            mask: blocks - 1,
            memory: PhantomData,
        })
    }

    /// Its size in basic blocks.
    #[inline(always)]
    pub fn blocks(&self) -> u32 {
        self.mask + 1
    }

    /// The basic block at counter `counter`.
    #[inline(always)]
    pub fn block(&self, counter: u32) -> NonNull<u8> {
        self.writer_at(self.index(counter)).first
    }

    /// The index of the basic block at counter `counter`.
    #[inline(always)]
    pub(crate) fn index(&self, counter: u32) -> BlockIndex {
        BlockIndex(counter & self.mask)
    }

    /// How many basic blocks lie one behind the other from that at `counter` on, before the ring's end.
    #[inline(always)]
    pub fn contiguous(&self, counter: u32) -> u32 {
        self.blocks() - (counter & self.mask)
    }

    /// A writer for the WQE that starts at `counter`.
    ///
    /// # Safety
    /// The caller is the ring's poster, and the blocks that it writes are not in flight.
    #[inline(always)]
    pub unsafe fn writer(&self, counter: u32) -> EntryWriter {
        self.writer_at(self.index(counter))
    }

    /// A writer for the WQE that starts at this index, of this ring. To write, its user has to meet the
    /// requirements of [`writer`](Self::writer).
    #[inline(always)]
    pub(crate) fn writer_at(&self, index: BlockIndex) -> EntryWriter {
        EntryWriter {
            // SAFETY: the index lies within the ring.
            first: unsafe { self.base.add(index.0 as usize * BASIC_BLOCK) },
            base: self.base,
            index: index.0,
            mask: self.mask,
        }
    }
}

/// The index of a basic block of a ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockIndex(u32);

impl BlockIndex {
    /// The index, which is less than the number of blocks.
    #[inline(always)]
    pub fn get(self) -> usize {
        self.0 as usize
    }
}

/// Writes one WQE, wrapping around the end of the ring where needed.
///
/// The first basic block is contiguous and is written at constant offsets; the addresses of later
/// segments are computed with a mask.
#[derive(Debug)]
pub struct EntryWriter {
    first: NonNull<u8>,
    base: NonNull<u8>,
    /// Index of the first block.
    index: u32,
    /// Number of basic blocks of the ring, minus one.
    mask: u32,
}

impl EntryWriter {
    #[inline(always)]
    fn at(&self, offset: usize) -> NonNull<u8> {
        if offset < BASIC_BLOCK {
            // SAFETY: the first block is within the ring.
            unsafe { self.first.add(offset) }
        } else {
            // SAFETY: the masked offset lies within the ring.
            unsafe { self.base.add(self.offset(offset)) }
        }
    }

    /// The first block of the WQE.
    #[inline(always)]
    pub(crate) fn first(&self) -> NonNull<u8> {
        self.first
    }

    /// Where an offset within the WQE is in the ring.
    #[inline(always)]
    fn offset(&self, offset: usize) -> usize {
        let mask = self.mask as usize * BASIC_BLOCK + BASIC_BLOCK - 1;
        (self.index as usize * BASIC_BLOCK + offset) & mask
    }

    /// Writes a structure of whole segments. It must not cross the end of a basic block, which the
    /// layout of all multi-segment structures guarantees.
    #[inline(always)]
    pub(super) fn put<S: Copy>(&mut self, offset: usize, segment: S) {
        const { assert!(size_of::<S>().is_multiple_of(SEGMENT) && size_of::<S>() <= BASIC_BLOCK) };
        debug_assert!(offset % BASIC_BLOCK + size_of::<S>() <= BASIC_BLOCK);
        // SAFETY: the address lies within one block of the ring, which the caller of
        // `SendRing::writer` guarantees to be free; segments are aligned to 16 and so is the
        // address.
        unsafe { self.at(offset).cast::<S>().write(segment) }
    }

    /// Writes bytes, wrapping around the end of the ring where needed.
    #[inline(always)]
    pub(super) fn bytes(&mut self, offset: usize, bytes: &[u8]) {
        // Bytes that do not reach the end of a block do not reach the end of the ring.
        if bytes.len() > BASIC_BLOCK - offset % BASIC_BLOCK {
            let first = match offset < BASIC_BLOCK {
                true => self.index,
                false => (self.offset(offset) / BASIC_BLOCK) as u32,
            };
            let more = (offset % BASIC_BLOCK + bytes.len() - 1) / BASIC_BLOCK;
            if self.mask - first < more as u32 {
                let room = (self.mask as usize + 1) * BASIC_BLOCK - self.offset(offset);
                // SAFETY: `room` bytes are left up to the end of the ring; the rest is shorter than
                // the ring, because the caller checked the size of the WQE against the free blocks.
                return unsafe { copy_over_end(bytes, self.at(offset), room, self.base) };
            }
        }
        // SAFETY: `bytes.len()` bytes are left up to the end of the ring.
        unsafe { copy_short(bytes, self.at(offset)) }
    }

    /// Writes one big-endian word.
    #[inline(always)]
    pub(super) fn word(&mut self, offset: usize, word: Be32) {
        // SAFETY: words are aligned to 4 and so lie within a block.
        unsafe { self.at(offset).cast::<Be32>().write(word) }
    }
}

/// Copies bytes across the end of the ring: `room` bytes before it, the rest from its start on.
///
/// # Safety
/// `to` is valid for writes of `room` bytes, which is less than `from.len()`, and `start` for the
/// rest.
#[cold]
#[inline(never)]
unsafe fn copy_over_end(from: &[u8], to: NonNull<u8>, room: usize, start: NonNull<u8>) {
    let (head, tail) = from.split_at(room);
    // SAFETY: the caller guarantees that `to` and `start` have room for the two parts.
    unsafe {
        to.copy_from_nonoverlapping(NonNull::from_ref(head).cast(), head.len());
        start.copy_from_nonoverlapping(NonNull::from_ref(tail).cast(), tail.len());
    }
}

/// Copies short slices by two overlapping moves instead of a call.
///
/// # Safety
/// `to` is valid for writes of `from.len()` bytes.
#[inline(always)]
unsafe fn copy_short(from: &[u8], to: NonNull<u8>) {
    #[inline(always)]
    unsafe fn ends<T: Copy>(from: *const u8, to: *mut u8, len: usize) {
        let last = len - size_of::<T>();
        // SAFETY: `len` is at least the size of T, so both moves lie within both slices, which do not
        // overlap.
        unsafe {
            to.copy_from_nonoverlapping(from, size_of::<T>());
            (to.add(last)).copy_from_nonoverlapping(from.add(last), size_of::<T>());
        }
    }
    let (source, to, len) = (from.as_ptr(), to.as_ptr(), from.len());
    // SAFETY: each arm passes a length of at least the size of the type that it moves.
    unsafe {
        match len {
            0 => {}
            1..=3 => {
                to.write(*source);
                to.add(len / 2).write(*source.add(len / 2));
                to.add(len - 1).write(*source.add(len - 1));
            }
            4..=7 => ends::<u32>(source, to, len),
            8..=15 => ends::<u64>(source, to, len),
            16..=32 => ends::<[u64; 2]>(source, to, len),
            _ => to.copy_from_nonoverlapping(source, len),
        }
    }
}

/// Bytes of a WQE before its payload.
pub(crate) const fn prefix<T: Transport, O: Operation>() -> usize {
    let address = if O::ADDRESSED { T::SEGMENTS } else { 0 };
    SEGMENT + address + O::SEGMENTS
}

/// Writes one WQE at `counter` and returns its size in segments.
///
/// `fm_ce_se` is the flag byte of the control segment, `qpn` the number of the local queue pair.
///
/// # Safety
/// The requirements of [`SendRing::writer`]. The blocks from `counter` on that [`Payload::bound`]
/// and the segments of the operation and the transport need are free.
#[inline(always)]
pub unsafe fn build<T: Transport, O: Operation, P: Payload>(
    ring: &SendRing<'_>,
    counter: u32,
    qpn: u32,
    fm_ce_se: u8,
    address: T::Address<'_>,
    operation: O,
    payload: P,
) -> u32 {
    let entry = ring.writer_at(ring.index(counter));
    let (owner, flags) = (Owner::new(qpn), Be32::new(fm_ce_se.into()));
    // SAFETY: the caller guarantees that it is the poster and that the blocks are free.
    unsafe { build_at::<T, O, P>(entry, counter, &owner, flags, address, operation, payload) }
}

/// The number of the local queue pair, as it is in a control segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner(u64);

impl Owner {
    pub fn new(qpn: u32) -> Self {
        Self((qpn << 8).into())
    }

    #[inline(always)]
    fn qpn(&self) -> u32 {
        self.0 as u32 >> 8
    }
}

/// Writes one WQE like [`build`]; `flags` is the word of the control segment with its flag byte.
///
/// # Safety
/// The requirements of [`build`]; `entry` is the writer at `counter`.
#[inline(always)]
pub(crate) unsafe fn build_at<T: Transport, O: Operation, P: Payload>(
    mut entry: EntryWriter,
    counter: u32,
    owner: &Owner,
    flags: Be32,
    address: T::Address<'_>,
    operation: O,
    payload: P,
) -> u32 {
    if O::ADDRESSED {
        T::write(address, &mut entry, SEGMENT);
    }
    let start = const { prefix::<T, O>() - O::SEGMENTS };
    operation.write(owner.qpn(), &mut entry, start);
    let end = payload.write(&mut entry, start + O::SEGMENTS);
    let ds = (end / SEGMENT) as u32;
    // Both words of the control segment at once; see `CtrlSegment`.
    let id =
        u64::from(counter & 0xffff) << 40 | u64::from(O::OPCODE) << 32 | u64::from(ds) | owner.0;
    entry.put(0, [Be64::new(id), pair(flags, operation.imm())]);
    ds
}

/// Writes a NOP at `counter`, for a queue pair on any transport, and returns its size in segments.
///
/// # Safety
/// The requirements of [`SendRing::writer`]; the block is free.
pub(crate) unsafe fn build_nop(ring: &SendRing<'_>, counter: u32, qpn: u32, fm_ce_se: u8) -> u32 {
    const DS: u32 = 1;
    // SAFETY: the caller guarantees that it is the poster and that the block is free.
    let mut entry = unsafe { ring.writer(counter) };
    entry.put(
        0,
        CtrlSegment {
            opmod_idx_opcode: Be32::new((counter & 0xffff) << 8 | u32::from(opcode::NOP)),
            qpn_ds: Be32::new(qpn << 8 | DS),
            signature_flags: Be32::new(u32::from(fm_ce_se)),
            imm: Be32::default(),
        },
    );
    DS
}

/// The flag byte of a WQE, by its first block.
///
/// # Safety
/// It is a WQE, in flight or staged, and nobody writes it.
#[inline(always)]
pub unsafe fn fm_ce_se_at(first: NonNull<u8>) -> u8 {
    // SAFETY: the caller guarantees that it is a WQE, which nobody writes.
    unsafe { (*ctrl_at(first).as_ptr()).signature_flags.get() as u8 }
}

/// The control segment of a WQE, by its first block.
#[inline(always)]
pub(crate) fn ctrl_at(first: NonNull<u8>) -> NonNull<CtrlSegment> {
    first.cast()
}

/// Writes the bytes of an earlier WQE at `counter`, with this counter and queue pair number, and
/// with `flags` in addition to its own. Returns its operation. `None`: the bytes are no WQE that
/// [`build`] makes for this transport, and what was written is meaningless.
///
/// # Safety
/// The requirements of [`SendRing::writer`]. The blocks from `counter` on that the bytes need are
/// free, and at most as many as the ring has.
pub(crate) unsafe fn rebuild(
    ring: &SendRing<'_>,
    counter: u32,
    qpn: u32,
    flags: u8,
    transport: QpType,
    bytes: &[u8],
) -> Option<WrOpcode> {
    if bytes.is_empty() || !bytes.len().is_multiple_of(SEGMENT) {
        return None;
    }
    // SAFETY: the caller guarantees that it is the poster and that the blocks are free.
    let mut entry = unsafe { ring.writer(counter) };
    entry.bytes(0, bytes);
    // SAFETY: just written by the poster, which does not write while the view is used.
    let wqe = unsafe { SendWqe::read(*ring, counter) };
    let ds = wqe.ds();
    if ds as usize * SEGMENT != bytes.len() {
        return None;
    }
    let request = wqe.request(transport).ok()?;
    let owner = request.registration().as_ref().and_then(Umr::owner_offset);
    let ctrl = wqe.ctrl();
    let modifier_and_opcode = ctrl.opmod_idx_opcode.get() & 0xff00_00ff;
    let own = ctrl.signature_flags.get();
    // A full fence also waits for UMR work.
    let flags = if request.is_fenced() {
        flags & !fm_ce_se::INITIATOR_SMALL_FENCE
    } else {
        flags
    };
    if let Some(offset) = owner {
        // The number of the queue pair that owns the window, and the low byte of the key.
        let key = u32::from(bytes[offset + 3]);
        entry.word(offset, Be32::new(qpn << 8 | key));
    }
    entry.put(
        0,
        CtrlSegment {
            opmod_idx_opcode: Be32::new(modifier_and_opcode | (counter & 0xffff) << 8),
            qpn_ds: Be32::new(qpn << 8 | ds),
            signature_flags: Be32::new(own | u32::from(flags)),
            imm: ctrl.imm,
        },
    );
    Some(request.operation())
}
