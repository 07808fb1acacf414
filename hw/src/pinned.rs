//! Memory for rings.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

const PAGE: usize = 4096;

/// Two lines, which processors fetch together.
const LINES: usize = 128;

/// Zeroed memory that stays where it is. It shares no line with other memory, and no page where it
/// is as large as one: thousands of small rings would cost a page each.
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
    /// `bytes` bytes, rounded up.
    ///
    /// # Panics
    /// When the size overflows; aborts without memory, as the standard collections do.
    pub fn zeroed(bytes: usize) -> Self {
        let align = if bytes < PAGE { LINES } else { PAGE };
        let bytes = bytes.max(1).next_multiple_of(align);
        let layout = Layout::from_size_align(bytes, align)
            .unwrap_or_else(|_| panic!("{bytes} bytes of ring"));
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) });
        Self {
            start: start.unwrap_or_else(|| handle_alloc_error(layout)),
            layout,
        }
    }

    /// As [`zeroed`](Self::zeroed), aligned to `align` at the least. `None`: there is no such memory.
    #[cfg(feature = "mlx5")]
    pub fn aligned(bytes: usize, align: usize) -> Option<Self> {
        let align = align.max(if bytes < PAGE { LINES } else { PAGE });
        let bytes = bytes.max(1).checked_next_multiple_of(align)?;
        let layout = Layout::from_size_align(bytes, align).ok()?;
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { start, layout })
    }

    #[cfg(feature = "mlx5")]
    pub fn bytes(&self) -> usize {
        self.layout.size()
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
