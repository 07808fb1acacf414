//! Where a packet's bytes are written: its first line, and the lines behind it.

use super::super::segment::{END, HEADER, LINE, wide, word};
use super::{FRONT, IN_LINE};
use crate::copy::{Fault, copy};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

/// The first line of a packet that is being written, behind its header.
#[derive(Clone, Copy, Debug)]
pub struct Front {
    pub(super) ours: NonNull<u8>,
    /// Offset of the line in the segment.
    pub(super) start: usize,
}

impl Front {
    /// Writes the eight bytes at this place of [`IN_LINE`] / 8.
    #[inline(always)]
    pub fn set(self, at: usize, pair: u64) {
        debug_assert!(at < IN_LINE / 8);
        // Relaxed: published by the sequence word.
        wide(self.ours, self.start + FRONT + at * 8).store(pair, Ordering::Relaxed);
    }

    /// Writes bytes from this offset on, which end within the line.
    #[inline(always)]
    pub fn put<const N: usize>(self, offset: usize, bytes: [u8; N]) {
        debug_assert!(offset + N <= IN_LINE);
        // SAFETY: within the line, which is the writer's until it publishes it.
        unsafe {
            let to = self.ours.add(self.start + FRONT + offset);
            to.cast::<[u8; N]>().write(bytes);
        }
    }

    /// Writes the four bytes at this place of [`IN_LINE`] / 4.
    #[inline(always)]
    pub fn set_word(self, at: usize, value: u32) {
        debug_assert!(at < IN_LINE / 4);
        // Relaxed: published by the sequence word.
        word(self.ours, self.start + FRONT + at * 4).store(value, Ordering::Relaxed);
    }
}

/// Writes pieces of data behind the first `at` bytes of the payload that starts at this offset.
///
/// # Safety
/// The pieces are readable, and there is room for them: the lines are the writer's, which publishes them later.
#[inline(always)]
pub(super) unsafe fn put_pieces(
    ours: NonNull<u8>,
    payload: usize,
    at: usize,
    pieces: &[(*const u8, usize)],
) -> Result<(), Fault> {
    // SAFETY: as the caller guarantees.
    unsafe {
        match *pieces {
            [(from, len)] if len <= LINE => {
                put_lines(ours, behind(payload + at), from, len).map(|_end| ())
            }
            _ => put_long(ours, payload, at, pieces),
        }
    }
}

/// Like [`put_pieces`], first what is in the lines behind the first one, which the reader polls all the time: it would
/// fetch that one in between.
///
/// # Safety
/// That of [`put_pieces`].
#[inline(never)]
unsafe fn put_long(
    ours: NonNull<u8>,
    payload: usize,
    at: usize,
    pieces: &[(*const u8, usize)],
) -> Result<(), Fault> {
    let in_first = IN_LINE.saturating_sub(at);
    let (mut to, mut skipped) = (payload + at.max(IN_LINE), in_first);
    for &(from, len) in pieces {
        let before = skipped.min(len);
        skipped -= before;
        if before != len {
            // SAFETY: within the piece; the caller guarantees the rest.
            to = unsafe { put_lines(ours, behind(to), from.add(before), len - before) }?;
        }
    }
    let (mut to, mut left) = (payload + at, in_first);
    for &(from, len) in pieces {
        let now = left.min(len);
        // SAFETY: within the piece and the first line; the caller guarantees the rest.
        unsafe { copy(from, ours.add(to).as_ptr(), now) }?;
        to += now;
        left -= now;
    }
    Ok(())
}

/// The place of this offset, which may be in lines behind the last one: they go on at the start.
#[inline(always)]
pub(super) fn behind(offset: usize) -> usize {
    match offset {
        END.. => offset - (END - HEADER),
        _ => offset,
    }
}

/// Writes bytes to a ring's lines, from this offset of the segment on, and returns the offset behind them.
///
/// # Safety
/// `from` is valid for reads of `len` bytes. The lines are the writer's, which publishes them later.
#[inline(always)]
pub(super) unsafe fn put_lines(
    ours: NonNull<u8>,
    offset: usize,
    from: *const u8,
    len: usize,
) -> Result<usize, Fault> {
    let room = END - offset;
    if len < room {
        // SAFETY: within the window's lines; the caller guarantees that `from` is readable.
        unsafe { copy(from, ours.add(offset).as_ptr(), len) }?;
        return Ok(offset + len);
    }
    // No packet is as long as the ring.
    let rest = (len - room).min(END - HEADER);
    // SAFETY: likewise; the first part ends with the lines, and the rest follows at their start.
    unsafe {
        copy(from, ours.add(offset).as_ptr(), room)?;
        copy(from.add(room), ours.add(HEADER).as_ptr(), rest)?;
    }
    Ok(HEADER + rest)
}
