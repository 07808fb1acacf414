//! Accesses that do not report faults.

use super::{Fault, SHORT};
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Whether this build reports faults.
pub const REPORTED: bool = false;

/// Copies up to [`SHORT`] bytes. Source and destination may overlap.
///
/// # Errors
/// None.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes. Meanwhile, the program accesses `to` only by
/// atomics, and writes `from` only by atomics. `len` is at most [`SHORT`].
pub unsafe fn copy_short(from: *const u8, to: *mut u8, len: usize) -> Result<(), Fault> {
    if !cfg!(tsan) {
        // SAFETY: as the caller guarantees.
        unsafe { to.copy_from(from, len) };
        return Ok(());
    }
    let mut bytes = [0_u8; SHORT];
    for (at, byte) in bytes[..len].iter_mut().enumerate() {
        // Relaxed: by atomics, so that two concurrent copies of the same bytes are not a race.
        // SAFETY: within the `len` bytes for which the caller guarantees `from`.
        *byte = unsafe { AtomicU8::from_ptr(from.cast_mut().add(at)) }.load(Ordering::Relaxed);
    }
    // SAFETY: the caller guarantees `to` for as many.
    unsafe { put(&bytes[..len], to) };
    Ok(())
}

/// # Safety
/// `to` is valid for writes of as many bytes.
unsafe fn put(mut rest: &[u8], mut to: *mut u8) {
    while let Some((first, others)) = rest.split_first() {
        // Release: pairs with the Acquire of a peer that polls the last byte, or the last word.
        let done = match rest.split_first_chunk::<8>() {
            Some((word, behind)) if to.addr().is_multiple_of(8) => {
                // SAFETY: the word is among these bytes, and aligned.
                let at = unsafe { AtomicU64::from_ptr(to.cast()) };
                at.store(u64::from_ne_bytes(*word), Ordering::Release);
                rest = behind;
                8
            }
            _ => {
                // SAFETY: the byte is one of these.
                unsafe { AtomicU8::from_ptr(to) }.store(*first, Ordering::Release);
                rest = others;
                1
            }
        };
        // SAFETY: within the bytes, or behind the last.
        to = unsafe { to.add(done) };
    }
}

/// Copies more than [`SHORT`] bytes. Source and destination may overlap.
///
/// # Errors
/// None.
///
/// # Safety
/// That of [`copy_short`], but for the length.
pub unsafe fn copy_long(from: *const u8, to: *mut u8, len: usize) -> Result<(), Fault> {
    let piece = |at: usize| {
        // SAFETY: within the `len` bytes of both.
        unsafe { copy_short(from.add(at), to.add(at), SHORT.min(len - at)) }
    };
    let pieces = len.div_ceil(SHORT);
    // In the order in which nothing is overwritten before it is read. Where the end goes first, the start goes last.
    match from.addr() < to.addr() {
        true => (0..pieces).rev().try_for_each(|at| piece(at * SHORT)),
        false => (0..pieces).try_for_each(|at| piece(at * SHORT)),
    }
}

/// Adds to a word, and returns what was there.
///
/// # Errors
/// None.
///
/// # Safety
/// `place` is aligned, and valid for reads and writes of a word that is accessed only atomically.
pub unsafe fn fetch_add(place: *mut u64, add: u64) -> Result<u64, Fault> {
    // SeqCst: a device's atomics have a total order over all its memory.
    // SAFETY: as the caller guarantees.
    Ok(unsafe { AtomicU64::from_ptr(place) }.fetch_add(add, Ordering::SeqCst))
}

/// Replaces a word by `swap` if it is `compare`, and returns what was there.
///
/// # Errors
/// None.
///
/// # Safety
/// That of [`fetch_add`].
pub unsafe fn compare_exchange(place: *mut u64, compare: u64, swap: u64) -> Result<u64, Fault> {
    let all = Ordering::SeqCst;
    // SAFETY: as the caller guarantees.
    match unsafe { AtomicU64::from_ptr(place) }.compare_exchange(compare, swap, all, all) {
        Ok(old) | Err(old) => Ok(old),
    }
}

/// There is no handler in this build, so nothing is accessed.
///
/// # Errors
/// None.
///
/// # Safety
/// None.
pub unsafe fn touch(_place: *mut u8, _write: bool) -> Result<(), Fault> {
    Ok(())
}
