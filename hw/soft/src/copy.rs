//! Copies between registered memory, with a device's guarantees: the last bytes are written last, and of a copy that
//! begins and ends at an aligned word each word is written whole, so that a peer may poll for the last byte, or the
//! last aligned word.
//!
//! These copies stand for a NIC's DMA, which is not a thread of the program: concurrent access by both is not
//! a data race; it only decides which bytes are seen. The program accesses such memory as the bytes of a
//! `Region`, never as a slice, and by atomics.

#[cfg(not(tsan))]
use std::sync::atomic::fence;
use std::sync::atomic::{Ordering, compiler_fence};

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

/// Copies `len` bytes. Source and destination may overlap.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes. Meanwhile, the program accesses `to` only by
/// atomics (`bellwire_core::shared`), and writes `from` only by atomics.
#[cfg(not(tsan))]
#[inline(always)]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: each arm stays within the `len` bytes for which the caller guarantees both pointers.
    unsafe {
        match len {
            ..=SHORT => copy_short(from, to, len),
            _ => {
                let last = from.add(len - 8).cast::<u64>().read_unaligned();
                to.copy_from(from, len - 8);
                write_last(to.add(len - 8), last);
            }
        }
    }
}

/// Most bytes that [`copy_short`] copies.
pub(super) const SHORT: usize = 32;

/// Like [`copy`], of up to [`SHORT`] bytes: it calls nothing, so that a function that calls nothing else saves no
/// registers.
///
/// # Safety
/// Those of [`copy`]; and `len` is at most [`SHORT`].
#[cfg(not(tsan))]
#[inline(always)]
pub(super) unsafe fn copy_short(from: *const u8, to: *mut u8, len: usize) {
    debug_assert!(len <= SHORT);
    // SAFETY: each arm stays within the `len` bytes for which the caller guarantees both pointers, and that there
    // are no more.
    unsafe {
        // Most short messages are one word: it is not looked up in a table of jumps.
        const WORD: usize = size_of::<u64>();
        if to.addr().is_multiple_of(WORD) && len == WORD {
            let value = from.cast::<u64>().read_unaligned();
            // Release: pairs with the Acquire of a peer that polls the word. It is aligned, so this is one store.
            fence(Ordering::Release);
            return to.cast::<u64>().write_volatile(value);
        }
        // Between the two, so that the compiler does not make a case of the table of what is above.
        compiler_fence(Ordering::Release);
        match len {
            0 => {}
            1 => word::<u8>(from, to),
            2 => word::<u16>(from, to),
            4 => word::<u32>(from, to),
            8 => word::<u64>(from, to),
            3 => {
                let (others, last) = (from.cast::<u16>().read_unaligned(), from.add(2).read());
                to.cast::<u16>().write_unaligned(others);
                // Release: pairs with the Acquire of a peer that polls the last byte.
                fence(Ordering::Release);
                to.add(2).write_volatile(last);
            }
            5..=7 => {
                let head = from.cast::<u32>().read_unaligned();
                let tail = from.add(len - 3).cast::<u16>().read_unaligned();
                let last = from.add(len - 1).read();
                to.cast::<u32>().write_unaligned(head);
                to.add(len - 3).cast::<u16>().write_unaligned(tail);
                // Release: pairs with the Acquire of a peer that polls the last byte.
                fence(Ordering::Release);
                to.add(len - 1).write_volatile(last);
            }
            9..=16 => {
                let head = from.cast::<u64>().read_unaligned();
                let last = from.add(len - 8).cast::<u64>().read_unaligned();
                to.cast::<u64>().write_unaligned(head);
                write_last(to.add(len - 8), last);
            }
            17..=SHORT => {
                let head = from.cast::<[u64; 2]>().read_unaligned();
                let [tail, last] = from.add(len - 16).cast::<[u64; 2]>().read_unaligned();
                to.cast::<[u64; 2]>().write_unaligned(head);
                to.add(len - 16).cast::<u64>().write_unaligned(tail);
                write_last(to.add(len - 8), last);
            }
            _ => std::hint::unreachable_unchecked(),
        }
    }
}

/// An eight-byte store that lies within a block of this size is seen whole. x86-64: a cache line, if it is
/// cached (Intel SDM 3A, "Guaranteed Atomic Operations"). Elsewhere aligned words only (Arm ARM B2,
/// "Requirements for single-copy atomicity").
#[cfg(not(tsan))]
const WHOLE: usize = if cfg!(target_arch = "x86_64") { 64 } else { 8 };

/// Writes the last eight bytes of a copy after everything before them, and the last of them not before the
/// others.
///
/// # Safety
/// `to` is valid for writes of eight bytes.
#[cfg(not(tsan))]
#[inline(always)]
unsafe fn write_last(to: *mut u8, last: u64) {
    // SAFETY: the caller guarantees that the bytes are writable.
    unsafe {
        // Release: pairs with the Acquire of a peer that polls the last word.
        fence(Ordering::Release);
        if to.addr() % WHOLE <= WHOLE - size_of::<u64>() {
            to.cast::<u64>().write_unaligned(last);
        } else {
            let bytes = last.to_ne_bytes();
            to.copy_from_nonoverlapping(bytes.as_ptr(), 7);
            // Release: pairs with the Acquire of a peer that polls the last byte.
            fence(Ordering::Release);
            to.add(7).write_volatile(bytes[7]);
        }
    }
}

/// The same for ThreadSanitizer, which regards the device as a thread: copies use atomics, so that two
/// concurrent copies of the same bytes are not a race. A copy and a non-atomic access by the program still
/// are.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes. Meanwhile, the program accesses `to`, and
/// writes `from`, only by atomics.
#[cfg(tsan)]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    use std::sync::atomic::{AtomicU8, AtomicU64};
    const WORD: usize = size_of::<u64>();
    // SAFETY: within the `len` bytes for which the caller guarantees `from`.
    let byte =
        |at: usize| unsafe { AtomicU8::from_ptr(from.cast_mut().add(at)).load(Ordering::Relaxed) };
    // All are read before any is written, since the two may overlap.
    let bytes: Vec<u8> = (0..len).map(byte).collect();
    let mut rest = &bytes[..];
    while let Some((first, others)) = rest.split_first() {
        // SAFETY: within the `len` bytes for which the caller guarantees `to`.
        let to = unsafe { to.add(len - rest.len()) };
        // Release: pairs with the Acquire of a peer that polls the last byte, or the last word.
        rest = match rest.split_first_chunk::<WORD>() {
            Some((word, behind)) if to.addr().is_multiple_of(WORD) => {
                // SAFETY: the word is among these bytes, and aligned.
                let at = unsafe { AtomicU64::from_ptr(to.cast()) };
                at.store(u64::from_ne_bytes(*word), Ordering::Release);
                behind
            }
            _ => {
                // SAFETY: the byte is one of these.
                unsafe { AtomicU8::from_ptr(to) }.store(*first, Ordering::Release);
                others
            }
        };
    }
}

/// # Safety
/// Those of [`copy`].
#[cfg(tsan)]
pub(super) unsafe fn copy_short(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller guarantees all of it.
    unsafe { copy(from, to, len) };
}

/// # Safety
/// The conditions of [`copy`], for the size of T.
#[cfg(not(tsan))]
#[inline(always)]
unsafe fn word<T: Copy>(from: *const u8, to: *mut u8) {
    // SAFETY: the caller guarantees both pointers for the size of T. A volatile store of an aligned word is a
    // single store.
    unsafe {
        let value = from.cast::<T>().read_unaligned();
        fence(Ordering::Release);
        if to.cast::<T>().is_aligned() {
            to.cast::<T>().write_volatile(value);
        } else {
            to.cast::<T>().write_unaligned(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_overlap() {
        for len in 0..200 {
            for shift in 0..3 {
                let mut memory: Vec<u8> = (0..250).map(|b| b as u8).collect();
                let expected: Vec<u8> = memory[..len].to_vec();
                let base = memory.as_mut_ptr();
                // SAFETY: source and destination lie within the 250 bytes.
                unsafe {
                    match len {
                        ..=SHORT => copy_short(base, base.add(shift), len),
                        _ => copy(base, base.add(shift), len),
                    }
                };
                assert_eq!(&memory[shift..shift + len], &expected[..], "{len} {shift}");
                assert_eq!(memory[shift + len], (shift + len) as u8);
            }
        }
    }
}
