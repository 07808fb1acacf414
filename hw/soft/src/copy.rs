//! Copies between registered memory, with a device's guarantees: the last bytes are written last, and of a copy that
//! begins and ends at an aligned word each word is written whole, so that a peer may poll for the last byte, or the
//! last aligned word.
//!
//! These copies stand for a NIC's DMA, which is not a thread of the program: concurrent access by both is not
//! a data race; it only decides which bytes are seen. The program accesses such memory as the bytes of a
//! `Region`, never as a slice, and by atomics.

use bellwire_core::guarded::copy_long;
pub(super) use bellwire_core::guarded::{Fault, SHORT, copy_short};
use bellwire_memory::fault::is_accessible;

/// Bytes that stay readable while this is used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    from: *const u8,
    len: usize,
}

impl Span {
    /// # Safety
    /// The bytes are readable as long as this is used.
    pub unsafe fn new(from: *const u8, len: usize) -> Self {
        Self { from, len }
    }

    pub fn start(&self) -> *const u8 {
        self.from
    }

    pub fn len(&self) -> usize {
        self.len
    }
}

/// Whether all of this memory can still be read. For what is to be reported after a fault.
#[cold]
pub(super) fn can_read(from: *const u8, len: usize) -> bool {
    is_accessible(from.cast_mut(), len, false)
}

/// Whether all of this memory can still be written.
#[cold]
pub(super) fn can_write(to: *mut u8, len: usize) -> bool {
    is_accessible(to, len, true)
}

/// Copies `len` bytes. Source and destination may overlap.
///
/// # Errors
/// One of them cannot be accessed any more; a part may have been copied.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes, but for what the program has unmapped, protected or
/// truncated. Meanwhile, the program accesses `to` only by atomics (`bellwire_core::shared`), and writes `from` only
/// by atomics.
#[inline(always)]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) -> Result<(), Fault> {
    // SAFETY: as the caller guarantees.
    unsafe {
        match len {
            ..=SHORT => copy_short(from, to, len),
            _ => copy_long(from, to, len),
        }
    }
}
