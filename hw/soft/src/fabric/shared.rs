//! A segment's memory as loom knows it, and Miri, for the models of the fabric: the words of packets that both ends
//! access at once are atomics, and what they carry is ordinary memory. Each access of it that the other end's is not
//! ordered with is found, in either direction.

use super::segment::{HEADER, LINE, LINES};
use super::wire::FRONT;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::model::UnsafeCell;
use std::ptr::NonNull;

/// Bytes between two words of the header, each of which has its own cache line.
const APART: usize = 128;

/// The words of a segment's header, and its lines.
pub(super) struct Words {
    header: [AtomicU32; 3],
    lines: [Line; LINES as usize],
}

struct Line {
    front: [AtomicU32; FRONT / 4],
    rest: [UnsafeCell<u64>; (LINE - FRONT) / 8],
}

impl Words {
    pub fn new() -> Self {
        let word = |_| AtomicU32::new(0);
        let line = |_| Line {
            front: std::array::from_fn(word),
            rest: std::array::from_fn(|_| UnsafeCell::new(0)),
        };
        Self {
            header: std::array::from_fn(word),
            lines: std::array::from_fn(line),
        }
    }

    /// In place of a window's address. What is made with it must not outlive the words.
    pub fn at(&self) -> NonNull<u8> {
        NonNull::from(self).cast()
    }
}

/// As `segment::word`.
pub(super) fn word(segment: NonNull<u8>, offset: usize) -> &'static AtomicU32 {
    // SAFETY: made by `Words::at`, and used while they live.
    let words: &'static Words = unsafe { segment.cast().as_ref() };
    match offset.checked_sub(HEADER) {
        Some(offset) => &words.lines[offset / LINE].front[offset % LINE / 4],
        None => &words.header[offset / APART],
    }
}

/// Eight bytes of a packet.
pub(super) enum Wide {
    /// Two words of its header: loom has no atomics of different sizes in one place. The order is that of the lower one, and
    /// the other one is written before it, and read behind it.
    Front([&'static AtomicU32; 2]),
    Rest(&'static UnsafeCell<u64>),
}

/// As `segment::wide`.
pub(super) fn wide(segment: NonNull<u8>, offset: usize) -> Wide {
    let at = (offset - HEADER) % LINE;
    match at.checked_sub(FRONT) {
        None => Wide::Front([word(segment, offset), word(segment, offset + 4)]),
        Some(at) => {
            // SAFETY: as in `word`.
            let words: &'static Words = unsafe { segment.cast().as_ref() };
            Wide::Rest(&words.lines[(offset - HEADER) / LINE].rest[at / 8])
        }
    }
}

impl Wide {
    #[track_caller]
    pub fn load(&self, order: Ordering) -> u64 {
        match self {
            Self::Front([low, high]) => {
                let low = u64::from(low.load(order));
                low | u64::from(high.load(Ordering::Relaxed)) << 32
            }
            // SAFETY: the model checks that nobody writes meanwhile.
            Self::Rest(cell) => cell.with(|word| unsafe { *word }),
        }
    }

    #[track_caller]
    pub fn store(&self, value: u64, order: Ordering) {
        match self {
            Self::Front([low, high]) => {
                high.store((value >> 32) as u32, Ordering::Relaxed);
                low.store(value as u32, order);
            }
            // SAFETY: the model checks that nobody accesses it meanwhile.
            Self::Rest(cell) => cell.with_mut(|word| unsafe { *word = value }),
        }
    }
}
