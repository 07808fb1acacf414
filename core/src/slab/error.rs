//! Errors of slabs.

use super::ClassLayout;
use core::fmt;

/// Why a slab cannot be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutError {
    /// No classes at all.
    NoClasses,
    /// A class of no blocks, or whose size is not a positive multiple of 64.
    BadClass(ClassLayout),
    /// The block sizes of the classes are not ascending.
    NotAscending,
    /// Too few records for the blocks or the classes.
    TooFewRecords {
        /// Blocks of the layout.
        blocks: usize,
        /// Records for blocks.
        metas: usize,
        /// Records for classes.
        classes: usize,
    },
    /// The region does not start at a multiple of 4096.
    Misaligned,
    /// The region is too small.
    RegionTooSmall {
        /// Bytes that the layout needs.
        needed: usize,
        /// Bytes of the region.
        given: usize,
    },
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoClasses => f.write_str("a slab needs at least one class of blocks"),
            Self::BadClass(ClassLayout { size, count }) => write!(
                f,
                "a class of {count} blocks of {size} bytes: it needs at least one block, of a \
                 multiple of 64 bytes"
            ),
            Self::NotAscending => {
                f.write_str("list the classes from the smallest blocks to the largest, each once")
            }
            Self::TooFewRecords {
                blocks,
                metas,
                classes,
            } => write!(
                f,
                "{metas} block records and {classes} class records for {blocks} blocks: \
                 give one for each block and each class"
            ),
            Self::Misaligned => f.write_str("the region has to start at a multiple of 4096"),
            Self::RegionTooSmall { needed, given } => write!(
                f,
                "the blocks need {needed} bytes, the region has {given}: \
                 register more, or ask for fewer blocks"
            ),
        }
    }
}

impl core::error::Error for LayoutError {}

/// Why there is no block to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeError {
    /// All blocks of the class are taken.
    Empty {
        /// Bytes of its blocks.
        size: u32,
    },
    /// No class has blocks of this length.
    TooLarge {
        /// Bytes requested.
        length: u32,
        /// Bytes of the largest blocks.
        max: u32,
    },
}

impl fmt::Display for TakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Empty { size } => write!(
                f,
                "all blocks of {size} bytes are out: poll for completions, which bring some back, \
                 or create the slab with more"
            ),
            Self::TooLarge { length, max } => write!(
                f,
                "{length} bytes, and the slab's largest blocks have {max}: \
                 create it with a larger class, or use several blocks"
            ),
        }
    }
}

impl core::error::Error for TakeError {}

/// Why a block was not returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawFreeError {
    /// It is free already.
    DoubleFree {
        /// The address at which it starts.
        addr: u64,
    },
    /// No block of this slab.
    Foreign {
        /// The address.
        addr: u64,
    },
    /// Within a block, not at its start.
    Misaligned {
        /// The address.
        addr: u64,
    },
}

impl fmt::Display for RawFreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::DoubleFree { addr } => {
                write!(
                    f,
                    "the block at {addr:#x} is free already: it was given back twice"
                )
            }
            Self::Foreign { addr } => {
                write!(
                    f,
                    "no block of this slab at {addr:#x}: give it back to its own"
                )
            }
            Self::Misaligned { addr } => write!(
                f,
                "{addr:#x} lies within a block: give back the address where it starts"
            ),
        }
    }
}

impl core::error::Error for RawFreeError {}
