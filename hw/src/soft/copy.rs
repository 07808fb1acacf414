//! Moving bytes between registered memory, as a device does: the last ones land last, and aligned
//! words are not torn, so that a peer may poll for them.

use std::sync::atomic::{Ordering, fence};

/// Copies `len` bytes. The two strings may overlap.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes. The program does not access `to` meanwhile
/// but by volatile or atomic loads.
#[inline(always)]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: each arm moves within the two strings, by the caller's promise.
    unsafe {
        match len {
            0 => {}
            1 => word::<u8>(from, to),
            2 => word::<u16>(from, to),
            4 => word::<u32>(from, to),
            8 => word::<u64>(from, to),
            3 | 5..=7 => {
                let mut bytes = [0u8; 8];
                bytes.as_mut_ptr().copy_from_nonoverlapping(from, len);
                for (at, byte) in bytes[..len].iter().enumerate() {
                    to.add(at).write_volatile(*byte);
                }
            }
            9..=16 => ends::<u64>(from, to, len),
            17..=32 => ends::<[u64; 2]>(from, to, len),
            _ => {
                // The last word by itself, behind all the others.
                let last = (from.add(len - 8)).cast::<u64>().read_unaligned();
                to.copy_from(from, len - 8);
                // Release: partner of the acquire with which a peer polls the last word.
                fence(Ordering::Release);
                to.add(len - 8).cast::<u64>().write_unaligned(last);
            }
        }
    }
}

/// # Safety
/// As [`copy`], for the size of T.
#[inline(always)]
unsafe fn word<T: Copy>(from: *const u8, to: *mut u8) {
    // SAFETY: the caller's promise. A volatile store of an aligned word is one store.
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

/// # Safety
/// As [`copy`]; `len` is at least the size of T and at most twice it.
#[inline(always)]
unsafe fn ends<T: Copy>(from: *const u8, to: *mut u8, len: usize) {
    let at = len - size_of::<T>();
    // SAFETY: the caller's promise.
    unsafe {
        let head = from.cast::<T>().read_unaligned();
        let tail = from.add(at).cast::<T>().read_unaligned();
        to.cast::<T>().write_unaligned(head);
        // Release: as in `copy`.
        fence(Ordering::Release);
        to.add(at).cast::<T>().write_unaligned(tail);
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
                // SAFETY: both strings lie within the 250 bytes.
                unsafe { copy(base, base.add(shift), len) };
                assert_eq!(&memory[shift..shift + len], &expected[..], "{len} {shift}");
                assert_eq!(memory[shift + len], (shift + len) as u8);
            }
        }
    }
}
