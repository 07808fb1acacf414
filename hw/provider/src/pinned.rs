//! Memory for rings, and for other objects whose size the program chooses: if no memory is available, that is
//! an error and not a panic.

use crate::error::Error;
use crate::short::text;
use bellwire_memory::MemoryError;
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::io;
use std::iter::repeat_with;
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};

/// Two cache lines of 64 bytes, which processors fetch together, or one of 128.
const LINES: usize = 128;

/// Zeroed memory at a fixed address. It shares no cache line with other memory and, if it is at least a page
/// long, no page; smaller memory is not rounded up to a page, as thousands of small rings would cost a page
/// each.
#[derive(Debug)]
pub struct Pinned {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a `Pinned` is only an address range and gives out no references; its users synchronize access to
// the memory.
unsafe impl Send for Pinned {}
// SAFETY: like Send: its users synchronize access to the memory.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Allocates at least `bytes` bytes, rounded up.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn zeroed(bytes: usize) -> Result<Self, Error> {
        Self::aligned(bytes, LINES).ok_or_else(|| no_memory(bytes))
    }

    /// Like [`zeroed`](Self::zeroed), aligned to at least `align`. `None`: there is not enough memory.
    pub fn aligned(bytes: usize, align: usize) -> Option<Self> {
        let layout = layout(bytes, align, rustix::param::page_size())?;
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { start, layout })
    }

    /// The size in bytes.
    pub fn bytes(&self) -> usize {
        self.layout.size()
    }

    /// The address of the first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }
}

/// The layout of at least `bytes` bytes on a machine with pages of this size.
fn layout(bytes: usize, align: usize, page: usize) -> Option<Layout> {
    let align = align.max(if bytes < page { LINES } else { page });
    let bytes = bytes.max(1).checked_next_multiple_of(align)?;
    Layout::from_size_align(bytes, align).ok()
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// Zeroed memory on pages of its own. Only used pages cost memory, and time: for tables whose entries are
/// mostly never used.
#[derive(Debug)]
pub struct Sparse {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: like `Pinned`.
unsafe impl Send for Sparse {}
// SAFETY: like `Pinned`.
unsafe impl Sync for Sparse {}

impl Sparse {
    /// Maps `bytes` bytes.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn zeroed(bytes: usize) -> Result<Self, Error> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: without MAP_FIXED the kernel picks a free range, so no memory in use is replaced.
        let at = unsafe { libc::mmap(null_mut(), bytes, access, flags, -1, 0) };
        let start = (at != libc::MAP_FAILED).then_some(at.cast());
        let start = start.and_then(NonNull::new);
        start
            .map(|start| Self { start, bytes })
            .ok_or_else(|| no_memory(bytes))
    }

    /// The address of the first byte, which is that of a page.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for Sparse {
    fn drop(&mut self) {
        // SAFETY: mapped by `zeroed`, and nobody uses it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// `count` default values.
///
/// # Errors
/// There is not enough memory for them.
pub fn defaults<T: Default>(count: usize) -> Result<Box<[T]>, Error> {
    Ok(collected(repeat_with(T::default).take(count))?.into())
}

/// Collects the items into a vector.
///
/// # Errors
/// There is not enough memory for them.
pub fn collected<T>(mut items: impl Iterator<Item = T>) -> Result<Vec<T>, Error> {
    let count = items.size_hint().0;
    let mut all = with_room(count)?;
    all.extend(items.by_ref().take(count));
    for item in items {
        push(&mut all, item)?;
    }
    Ok(all)
}

/// An empty vector with room for `count` items.
///
/// # Errors
/// There is not enough memory for them.
pub fn with_room<T>(count: usize) -> Result<Vec<T>, Error> {
    let mut none = Vec::new();
    let reserved = none.try_reserve_exact(count);
    reserved.map_err(|_| no_memory(count.saturating_mul(size_of::<T>())))?;
    Ok(none)
}

/// Appends an item.
///
/// # Errors
/// There is not enough memory for it.
pub fn push<T>(items: &mut Vec<T>, item: T) -> Result<(), Error> {
    room_for(items, items.len() + 1)?;
    items.push(item);
    Ok(())
}

/// Reserves room for `count` items in total, including those already in the vector.
///
/// # Errors
/// There is not enough memory for them.
pub fn room_for<T>(items: &mut Vec<T>, count: usize) -> Result<(), Error> {
    let reserved = items.try_reserve(count.saturating_sub(items.len()));
    reserved.map_err(|_| no_memory(count.saturating_mul(size_of::<T>())))
}

/// Reserves room for `count` items in total, including those already in the queue.
///
/// # Errors
/// There is not enough memory for them.
pub fn room_in_queue<T>(items: &mut VecDeque<T>, count: usize) -> Result<(), Error> {
    let reserved = items.try_reserve(count.saturating_sub(items.len()));
    reserved.map_err(|_| no_memory(count.saturating_mul(size_of::<T>())))
}

/// A value in memory of its own.
///
/// # Errors
/// There is not enough memory for it.
pub fn boxed<T>(value: T) -> Result<Box<T>, Error> {
    let layout = Layout::new::<T>();
    if layout.size() == 0 {
        // Which allocates nothing.
        return Ok(Box::new(value));
    }
    // SAFETY: the size is not zero.
    let Some(place) = NonNull::new(unsafe { alloc(layout) }.cast::<T>()) else {
        return Err(no_memory(layout.size()));
    };
    // SAFETY: allocated by the global allocator, with the layout of the type, and written before it is used.
    unsafe {
        place.write(value);
        Ok(Box::from_raw(place.as_ptr()))
    }
}

/// Room for a value: its maker can still give up if there is none. `Box::write` puts the value there.
///
/// # Errors
/// There is not enough memory for it.
pub fn place<T>() -> Result<Box<MaybeUninit<T>>, Error> {
    boxed(MaybeUninit::uninit())
}

/// Memory that a call of set-up finds available before it begins: more than all that it takes in pieces of less than
/// [`SMALL`], whose refusal the standard library answers by ending the process.
pub const HEADROOM: usize = 60_000;

/// Pieces of memory of this size, in bytes, and larger ones are refused with an error. `Arc`, threads and B-trees of the
/// standard library end the process instead, so what they take is smaller, and of a size that neither the program nor a
/// peer decides.
pub const SMALL: usize = 2048;

/// Whether [`HEADROOM`] bytes are available: takes and returns them, so that small pieces come out of them.
///
/// # Errors
/// There is not enough memory.
pub fn headroom() -> Result<(), Error> {
    with_room::<u8>(HEADROOM).map(drop)
}

/// Reserves room for one more entry in a table.
///
/// # Errors
/// There is not enough memory for it.
pub fn room_in<K: Eq + Hash, V>(table: &mut HashMap<K, V>) -> Result<(), Error> {
    let reserved = table.try_reserve(1);
    reserved.map_err(|_| no_memory((table.len() + 1).saturating_mul(size_of::<(K, V)>())))
}

/// The error that `bytes` bytes of memory are not available.
pub fn no_memory(bytes: usize) -> Error {
    Error::Memory(MemoryError::Os {
        doing: text(format_args!("take {bytes} bytes of memory")),
        source: io::Error::from_raw_os_error(libc::ENOMEM),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_there_is_not_is_an_error() {
        // More than an address space holds, and more than the maximum size of an allocation.
        for bytes in [1 << 62, usize::MAX] {
            let pinned = Pinned::zeroed(bytes).map(drop);
            let many = defaults::<u8>(bytes).map(drop);
            let queued = room_in_queue(&mut VecDeque::from([0; 3]), bytes);
            for refused in [pinned, many, queued] {
                assert!(matches!(refused, Err(Error::Memory(_))), "{refused:?}");
            }
        }
        assert!(Pinned::zeroed(0).is_ok() && defaults::<u64>(0).is_ok());
    }

    #[test]
    fn a_box_is_dropped_and_freed_as_every_other() {
        let shared = std::rc::Rc::new(());
        let of_it = boxed((shared.clone(), [7u8; 5000])).unwrap();
        assert_eq!((of_it.1[4999], std::rc::Rc::strong_count(&shared)), (7, 2));
        drop(of_it);
        assert_eq!(std::rc::Rc::strong_count(&shared), 1);
        boxed(()).unwrap();
        headroom().unwrap();
    }

    #[test]
    fn sparse_memory_is_zero_and_ours() {
        let sparse = Sparse::zeroed(1 << 21).unwrap();
        for at in [0, 4096, (1 << 21) - 1] {
            // SAFETY: within the mapping, which nobody else uses.
            let byte = unsafe { sparse.start().add(at).as_mut() };
            assert_eq!(std::mem::replace(byte, 1), 0);
        }
        assert!(matches!(Sparse::zeroed(0), Err(Error::Memory(_))));
        assert!(matches!(Sparse::zeroed(1 << 62), Err(Error::Memory(_))));
    }

    #[test]
    fn whole_pages_of_whatever_size() {
        for page in [4 << 10, 16 << 10, 64 << 10] {
            let sized = |bytes, align| {
                let layout = layout(bytes, align, page).unwrap();
                (layout.size(), layout.align())
            };
            assert_eq!(sized(0, 1), (LINES, LINES));
            assert_eq!(sized(page - 1, 1), (page, LINES));
            assert_eq!(sized(page, 1), (page, page));
            assert_eq!(sized(page + 1, 64), (2 * page, page));
            assert_eq!(sized(1, 1 << 20), (1 << 20, 1 << 20));
        }
    }
}
