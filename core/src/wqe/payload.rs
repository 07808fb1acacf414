//! The payload of a send WQE: pointers to local memory, or inline bytes.

use super::PostError;
use super::build::EntryWriter;
use super::segment::{DataSegment, INLINE_FLAG, SEGMENT};
use crate::be::Be32;
use crate::port::LastEntry;
use crate::wr::Sge;

/// The limits of a send queue against which payloads are checked.
#[derive(Clone, Copy, Debug)]
pub struct PayloadLimits {
    /// Most scatter/gather elements in one request.
    pub max_sge: u32,
    /// Most inline bytes in one request.
    pub max_inline: u32,
}

/// A request's data: one [`Sge`], a slice of them, [`Inline`] bytes, or nothing.
pub trait Payload: Copy {
    /// Whether there is never any data.
    const EMPTY: bool = false;

    /// Most bytes that it takes in the WQE, not rounded up to whole segments.
    fn bound(&self) -> usize;

    /// Checks it against the limits of the queue.
    fn check(&self, limits: &PayloadLimits) -> Result<(), PostError>;

    /// Number of inline bytes; [`UNKNOWN`](crate::port::LastEntry::UNKNOWN) where they would have
    /// to be counted.
    #[doc(hidden)]
    #[inline(always)]
    fn inline(&self) -> u16 {
        0
    }

    /// Writes its segments from `offset` on and returns the offset behind them.
    #[doc(hidden)]
    fn write(&self, entry: &mut EntryWriter, offset: usize) -> usize;
}

/// No data at all.
#[derive(Clone, Copy, Debug)]
pub struct NoPayload;

impl Payload for NoPayload {
    const EMPTY: bool = true;

    #[inline(always)]
    fn bound(&self) -> usize {
        0
    }

    #[inline(always)]
    fn check(&self, _: &PayloadLimits) -> Result<(), PostError> {
        Ok(())
    }

    #[inline(always)]
    fn write(&self, _: &mut EntryWriter, offset: usize) -> usize {
        offset
    }
}

/// Refuses a length whose top bit would be read as the inline flag.
#[inline(always)]
pub(super) fn check_length(sge: &Sge) -> Result<(), PostError> {
    if sge.length & INLINE_FLAG != 0 {
        return Err(PostError::SgeTooLong { length: sge.length });
    }
    Ok(())
}

/// Leaves out an element of length zero, because zero means 2 GiB to the device.
#[inline(always)]
fn write_sge(entry: &mut EntryWriter, offset: usize, sge: &Sge) -> usize {
    if sge.length == 0 {
        return offset;
    }
    entry.put(offset, DataSegment::from(sge).words());
    offset + SEGMENT
}

impl Payload for Sge {
    #[inline(always)]
    fn bound(&self) -> usize {
        SEGMENT
    }

    #[inline(always)]
    fn check(&self, limits: &PayloadLimits) -> Result<(), PostError> {
        if limits.max_sge == 0 {
            return Err(PostError::TooManySges { given: 1, max: 0 });
        }
        check_length(self)
    }

    #[inline(always)]
    fn write(&self, entry: &mut EntryWriter, offset: usize) -> usize {
        write_sge(entry, offset, self)
    }
}

impl Payload for &[Sge] {
    #[inline(always)]
    fn bound(&self) -> usize {
        self.len() * SEGMENT
    }

    #[inline(always)]
    fn check(&self, limits: &PayloadLimits) -> Result<(), PostError> {
        if self.len() > limits.max_sge as usize {
            return Err(PostError::TooManySges {
                given: self.len(),
                max: limits.max_sge,
            });
        }
        self.iter().try_for_each(check_length)
    }

    #[inline(always)]
    fn write(&self, entry: &mut EntryWriter, mut offset: usize) -> usize {
        for sge in *self {
            offset = write_sge(entry, offset, sge);
        }
        offset
    }
}

/// Bytes that are copied into the WQE; their memory may be reused once the request is staged.
#[derive(Clone, Copy, Debug)]
pub struct Inline<'a>(pub &'a [u8]);

/// Several byte slices that are copied into the WQE, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct InlineList<'a>(pub &'a [&'a [u8]]);

const INLINE_HEADER: usize = 4;

#[inline(always)]
fn check_inline(given: usize, limits: &PayloadLimits) -> Result<(), PostError> {
    if given > limits.max_inline as usize {
        return Err(PostError::InlineTooLong {
            given,
            max: limits.max_inline,
        });
    }
    Ok(())
}

#[inline(always)]
fn inline_bound(len: usize) -> usize {
    match len {
        0 => 0,
        _ => INLINE_HEADER + len,
    }
}

/// The offset behind `len` bytes of inline data at `offset`.
#[inline(always)]
fn behind(offset: usize, len: usize) -> usize {
    // `next_multiple_of` would divide; lengths are far from overflowing.
    offset + ((INLINE_HEADER + len + SEGMENT - 1) & !(SEGMENT - 1))
}

impl Payload for Inline<'_> {
    #[inline(always)]
    fn bound(&self) -> usize {
        inline_bound(self.0.len())
    }

    #[inline(always)]
    fn check(&self, limits: &PayloadLimits) -> Result<(), PostError> {
        check_inline(self.0.len(), limits)
    }

    #[inline(always)]
    fn inline(&self) -> u16 {
        // Less than the 1008 bytes of the longest WQE.
        self.0.len() as u16
    }

    #[inline(always)]
    fn write(&self, entry: &mut EntryWriter, offset: usize) -> usize {
        let len = self.0.len();
        if len == 0 {
            return offset;
        }
        entry.word(offset, Be32::new(len as u32 | INLINE_FLAG));
        entry.bytes(offset + INLINE_HEADER, self.0);
        behind(offset, len)
    }
}

impl InlineList<'_> {
    fn len(&self) -> usize {
        self.0
            .iter()
            .fold(0, |sum: usize, s| sum.saturating_add(s.len()))
    }
}

impl Payload for InlineList<'_> {
    #[inline(always)]
    fn bound(&self) -> usize {
        inline_bound(self.len())
    }

    #[inline(always)]
    fn check(&self, limits: &PayloadLimits) -> Result<(), PostError> {
        check_inline(self.len(), limits)
    }

    #[inline(always)]
    fn inline(&self) -> u16 {
        LastEntry::UNKNOWN
    }

    #[inline(always)]
    fn write(&self, entry: &mut EntryWriter, offset: usize) -> usize {
        let len = self.len();
        if len == 0 {
            return offset;
        }
        entry.word(offset, Be32::new(len as u32 | INLINE_FLAG));
        let mut at = offset + INLINE_HEADER;
        for string in self.0 {
            entry.bytes(at, string);
            at += string.len();
        }
        behind(offset, len)
    }
}
