//! Copies to and from memory that is accessed concurrently: by threads, devices, peers, or other
//! mappings of the same memory.
//!
//! Short copies use relaxed atomic accesses, always of whole aligned words; where only part of a
//! word is written, a compare-exchange keeps the rest of it. Such accesses never race with each
//! other in the sense of the memory model, which also counts atomics of different sizes at the same
//! address as a race (`std::sync::atomic`, "Memory model for atomic accesses"). On x86-64, copies of 512
//! bytes or more use one processor instruction, `rep movsb`. It is as opaque to the compiler as a
//! device's access, and stands for the same accesses, in any order. Miri does not support the
//! instruction, and runs the accesses by words.

use core::sync::atomic::{AtomicU64, Ordering};

const WORD: usize = size_of::<u64>();

/// From this length on the processor's instruction is faster. Miri does not support it, and
/// ThreadSanitizer does not see it.
#[cfg(all(target_arch = "x86_64", not(any(miri, tsan))))]
const LONG: usize = 512;

/// The aligned word that contains a byte, and the byte's offset in it.
///
/// # Safety
/// The word is valid as long as the result is used.
#[inline(always)]
unsafe fn word_of<'a>(byte: *mut u8) -> (&'a AtomicU64, usize) {
    let at = byte.addr() % WORD;
    // SAFETY: aligned; the caller guarantees that the word is valid.
    let word = unsafe { AtomicU64::from_ptr(byte.sub(at).cast()) };
    (word, at)
}

/// Copies bytes that may be written concurrently. Each byte has a value that it had at some time
/// during the call. The bytes of an aligned word are read at the same time, unless the copy is long
/// or covers only part of the word.
///
/// # Safety
/// Every aligned 8-byte word that contains a byte to copy is valid. Meanwhile others access these
/// words only by atomics, this function, [`store`], or from outside the program. `to` does not
/// overlap them.
pub unsafe fn load(from: *const u8, to: &mut [u8]) {
    #[cfg(all(target_arch = "x86_64", not(any(miri, tsan))))]
    if to.len() >= LONG {
        // SAFETY: the caller guarantees that `from` is valid, is only accessed in the allowed ways,
        // and does not overlap `to`.
        return unsafe { move_long(from, to.as_mut_ptr(), to.len()) };
    }
    let from = from.cast_mut();
    let head = (from.addr().wrapping_neg() % WORD).min(to.len());
    let (first, rest) = to.split_at_mut(head);
    // SAFETY: the caller guarantees that all words from `from` on are valid and only accessed in
    // the allowed ways.
    unsafe {
        load_part(from, first);
        let mut from = from.add(head);
        let mut words = rest.chunks_exact_mut(WORD);
        for to in &mut words {
            // Relaxed: ordering is left to fences of the caller.
            let word = AtomicU64::from_ptr(from.cast()).load(Ordering::Relaxed);
            to.copy_from_slice(&word.to_ne_bytes());
            from = from.add(WORD);
        }
        load_part(from, words.into_remainder());
    }
}

/// Copies part of one word.
///
/// # Safety
/// The requirements of [`load`].
#[inline(always)]
unsafe fn load_part(from: *mut u8, to: &mut [u8]) {
    if !to.is_empty() {
        // SAFETY: the caller guarantees that the word is valid.
        let (word, at) = unsafe { word_of(from) };
        // Relaxed: ordering is left to fences of the caller.
        let bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        to.copy_from_slice(&bytes[at..at + to.len()]);
    }
}

/// Copies bytes to memory that may be read and written concurrently. Neighbouring bytes keep their
/// values, even if they are written meanwhile.
///
/// # Safety
/// The requirements of [`load`] hold for the words from `to` on. `from` does not overlap them.
pub unsafe fn store(from: &[u8], to: *mut u8) {
    #[cfg(all(target_arch = "x86_64", not(any(miri, tsan))))]
    if from.len() >= LONG {
        // SAFETY: the caller guarantees that `to` is valid, is only accessed in the allowed ways,
        // and does not overlap `from`.
        return unsafe { move_long(from.as_ptr(), to, from.len()) };
    }
    let head = (to.addr().wrapping_neg() % WORD).min(from.len());
    let (first, rest) = from.split_at(head);
    // SAFETY: the caller guarantees that all words from `to` on are valid and only accessed in the
    // allowed ways.
    unsafe {
        store_part(first, to);
        let mut to = to.add(head);
        let (words, last) = rest.as_chunks::<WORD>();
        for word in words {
            // Relaxed: ordering is left to fences of the caller.
            AtomicU64::from_ptr(to.cast()).store(u64::from_ne_bytes(*word), Ordering::Relaxed);
            to = to.add(WORD);
        }
        store_part(last, to);
    }
}

/// Copies to part of one word.
///
/// # Safety
/// The requirements of [`store`].
#[inline(always)]
unsafe fn store_part(from: &[u8], to: *mut u8) {
    if from.is_empty() {
        return;
    }
    // SAFETY: the caller guarantees that the word is valid.
    let (word, at) = unsafe { word_of(to) };
    // Relaxed: ordering is left to fences of the caller.
    let mut old = word.load(Ordering::Relaxed);
    loop {
        let mut new = old.to_ne_bytes();
        new[at..at + from.len()].copy_from_slice(from);
        let new = u64::from_ne_bytes(new);
        match word.compare_exchange_weak(old, new, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => old = now,
        }
    }
}

/// Copies bytes by one processor instruction.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes, and they do not overlap. Others access
/// either meanwhile only by atomics or from outside the program.
#[cfg(all(target_arch = "x86_64", not(any(miri, tsan))))]
#[inline(always)]
unsafe fn move_long(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller guarantees valid memory that does not overlap; the ABI guarantees that the
    // direction flag is clear.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags),
        );
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::vec::Vec;
    use std::{thread, vec};

    /// Allocated as words, for alignment.
    fn memory(bytes: usize) -> Vec<u64> {
        vec![0; bytes.div_ceil(WORD)]
    }

    /// The bytes of the words, exclusively borrowed.
    fn bytes(memory: &mut [u64]) -> &mut [u8] {
        let len = size_of_val(memory);
        // SAFETY: any bytes are valid words, and the other way round.
        unsafe { core::slice::from_raw_parts_mut(memory.as_mut_ptr().cast(), len) }
    }

    #[test]
    fn every_length_and_alignment() {
        let lengths = if cfg!(miri) { 0..19 } else { 0..600 };
        for len in lengths {
            for at in 0..WORD {
                let mut memory = memory(len + 3 * WORD);
                bytes(&mut memory).fill(0xee);
                let given: Vec<u8> = (1..=len).map(|byte| byte as u8).collect();
                let mut got = vec![0; len];
                let place = memory.as_mut_ptr().cast::<u8>().wrapping_add(at);
                // SAFETY: within the words, which nothing else accesses.
                unsafe {
                    store(&given, place);
                    load(place, &mut got);
                }
                assert_eq!(got, given, "{len} at {at}");
                let bytes = bytes(&mut memory);
                let beside = bytes[..at].iter().chain(&bytes[at + len..]);
                assert!(beside.copied().all(|byte| byte == 0xee), "{len} at {at}");
            }
        }
    }

    /// Threads copy to and from the same bytes, and to neighbouring bytes of a word, while one
    /// accesses whole words: there is no race, and each byte read is one that was written there.
    /// Miri checks for races.
    #[test]
    fn many_threads_at_the_same_bytes() {
        const LEN: usize = 61;
        const ROUNDS: u8 = if cfg!(miri) { 20 } else { 200 };
        let mut memory = memory(128);
        let place = memory.as_mut_ptr().expose_provenance();
        let at = |offset: usize| core::ptr::with_exposed_provenance_mut::<u8>(place + offset);
        thread::scope(|scope| {
            for offset in [3, 5] {
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        // SAFETY: within the words, which only this module and atomics access.
                        unsafe { store(&[round; LEN], at(offset)) };
                    }
                });
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        let mut got = [0xff; LEN];
                        // SAFETY: within the words, which only this module and atomics access.
                        unsafe { load(at(offset), &mut got) };
                        assert!(got.iter().all(|byte| *byte < ROUNDS), "{got:?}");
                    }
                });
            }
            // Each byte of one word is written by a thread of its own.
            for own in 96..96 + WORD {
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let mut got = [0xff];
                        // SAFETY: within the words, which only this module and atomics access.
                        unsafe {
                            store(&[round], at(own));
                            load(at(own), &mut got);
                        }
                        assert_eq!(got, [round]);
                    }
                });
            }
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    // SAFETY: within the words, which only this module and atomics access; aligned.
                    let word = unsafe { AtomicU64::from_ptr(at(16).cast()) };
                    let got = word.load(Ordering::Acquire).to_ne_bytes();
                    assert!(got.iter().all(|byte| *byte < ROUNDS), "{got:?}");
                }
            });
        });
        assert!(bytes(&mut memory)[96..104].iter().all(|b| *b == ROUNDS - 1));
    }
}
