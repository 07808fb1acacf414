//! The handles of links in sets.

use std::fmt;

/// The handle of a link in a set. Once the link was removed it names no link, in this set or any other that
/// the program mistakes it for, until its slot was used four billion times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(u64);

impl LinkId {
    pub(super) fn new(index: u32, generation: u32) -> Self {
        Self(u64::from(generation) << 32 | u64::from(index))
    }

    #[inline(always)]
    pub(super) fn index(self) -> u32 {
        self.0 as u32
    }

    #[inline(always)]
    pub(super) fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The handle as a number, for tables of the program and for C.
    pub fn to_raw(self) -> u64 {
        self.0
    }

    /// The handle that [`to_raw`](Self::to_raw) returned. Any other number is the handle of no link, or of
    /// a link of the set.
    pub fn from_raw(raw: u64) -> Self {
        Self(raw)
    }
}

/// The handle is of no link in the set: the link was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoLink;

impl fmt::Display for NoLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the handle is of no link in this set: the link was removed, so forget its handle then",
        )
    }
}

impl std::error::Error for NoLink {}
