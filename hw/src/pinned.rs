//! Page-aligned memory for rings.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

const PAGE: usize = 4096;

/// Zeroed, page-aligned memory that stays where it is.
#[derive(Debug)]
pub(crate) struct Pinned {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: memory; who touches it when is its users' contract.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// `bytes` bytes, rounded up to pages.
    ///
    /// # Panics
    /// When the size overflows; aborts without memory, as the standard collections do.
    pub fn zeroed(bytes: usize) -> Self {
        let bytes = bytes.max(1).next_multiple_of(PAGE);
        let layout = Layout::from_size_align(bytes, PAGE)
            .unwrap_or_else(|_| panic!("{bytes} bytes of ring"));
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) });
        Self {
            start: start.unwrap_or_else(|| handle_alloc_error(layout)),
            layout,
        }
    }

    pub fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}
