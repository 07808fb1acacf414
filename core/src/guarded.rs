//! Copies to and from memory that a program may have unmapped, protected or truncated: a fault is an
//! error, where the process has a handler of SIGSEGV and SIGBUS that reads the table below
//! (`bellwire_memory::fault`). Where it has none, the process ends, as by any other access. A copy that
//! does not fault takes no instruction more than one that cannot report it.
//!
//! The copies are those of a device: the last bytes are written last, and of a copy that begins and ends at
//! an aligned word each word is written whole, so that a peer may poll for the last byte, or the last
//! aligned word.

/// An access faulted: what was to be read cannot be read, or what was to be written cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

/// Enters the instructions of an `asm!` block between its labels `2:` and `3:` in the table: after a fault
/// of one of them, execution goes on at the block's operand `fail`, which is a label. Registers that the
/// block has as outputs have any value then; the others are as before the instruction that faulted.
///
/// ```text
/// ┌────────┬────────┬────────┐  four bytes each, relative to the field's own address.
/// │ first  │ behind │ fail   │  first == behind: the return address of a call of a function without a frame
/// └────────┴────────┴────────┘
/// ```
#[macro_export]
macro_rules! on_fault {
    () => {
        concat!(
            ".pushsection bellwire_faults,\"aR\",@progbits\n",
            ".balign 4\n",
            ".long 2b - .\n",
            ".long 3b - .\n",
            ".long {fail} - .\n",
            ".popsection"
        )
    };
}

/// Most bytes that [`copy_short`] copies.
pub const SHORT: usize = 32;

/// An eight-byte store that lies within a block of this size is seen whole. x86-64: a cache line, if it is
/// cached (Intel SDM 3A, "Guaranteed Atomic Operations"). Elsewhere aligned words only (Arm ARM B2,
/// "Requirements for single-copy atomicity").
pub const WHOLE: usize = if cfg!(target_arch = "x86_64") { 64 } else { 8 };

// Miri has no assembly, ThreadSanitizer does not see what it accesses, loom has no such memory, and without an operating
// system there are no signals.
#[cfg(all(
    target_os = "linux",
    target_arch = "x86_64",
    not(any(miri, tsan, loom))
))]
#[path = "guarded/x86_64.rs"]
mod accesses;
#[cfg(all(
    target_os = "linux",
    target_arch = "aarch64",
    not(any(miri, tsan, loom))
))]
#[path = "guarded/aarch64.rs"]
mod accesses;
#[cfg(any(
    not(target_os = "linux"),
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    miri,
    tsan,
    loom
))]
#[path = "guarded/plain.rs"]
mod accesses;

pub use accesses::{REPORTED, compare_exchange, copy_long, copy_short, fetch_add, touch};

#[cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(any(miri, tsan, loom))
))]
unsafe extern "C" {
    fn memmove(to: *mut u8, from: *const u8, len: usize) -> *mut u8;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn every_length_and_overlap() {
        let lengths = if cfg!(miri) { 0..80 } else { 0..600 };
        // Made once: Miri would take minutes.
        let before: Vec<u8> = (0..1000).map(|byte| byte as u8).collect();
        for len in lengths {
            for (from, to) in [
                (8, 8),
                (8, 9),
                (9, 8),
                (8, 10),
                (3, 8),
                (8, 200),
                (70, 5),
                (61, 0),
            ] {
                let mut memory = before.clone();
                let base = memory.as_mut_ptr();
                // SAFETY: source and destination lie within the 1000 bytes.
                let copied = unsafe {
                    match len {
                        ..=SHORT => copy_short(base.add(from), base.add(to), len),
                        _ => copy_long(base.add(from), base.add(to), len),
                    }
                };
                assert_eq!(copied, Ok(()));
                assert_eq!(
                    memory[to..to + len],
                    before[from..from + len],
                    "{len} from {from} to {to}"
                );
                assert_eq!(memory[..to], before[..to]);
                assert_eq!(memory[to + len..], before[to + len..]);
            }
        }
    }

    #[test]
    fn atomics_return_what_was_there() {
        let mut word = 5_u64;
        let place = &raw mut word;
        // SAFETY: an aligned word, which only this thread uses.
        unsafe {
            assert_eq!(fetch_add(place, 3), Ok(5));
            assert_eq!(compare_exchange(place, 7, 9), Ok(8));
            assert_eq!(compare_exchange(place, 8, 9), Ok(8));
            assert_eq!(touch(place.cast(), true), Ok(()));
            assert_eq!(touch(place.cast(), false), Ok(()));
        }
        assert_eq!(word, 9);
    }
}
