//! Accesses of aarch64.

use super::{Fault, SHORT, memmove};
use core::arch::asm;

/// Whether this build reports faults.
pub const REPORTED: bool = true;

/// A block of instructions, of which each may fault.
macro_rules! block {
    ([$($code:literal),* $(,)?] $($operands:tt)*) => {
        asm!(
            "2:",
            $($code,)*
            "3:",
            on_fault!(),
            $($operands)*
            fail = label { return Err(Fault) },
            options(nostack),
        )
    };
}

/// Copies up to [`SHORT`] bytes. Source and destination may overlap.
///
/// # Errors
/// One of them cannot be accessed; a part may have been copied.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes, or they cannot be accessed. Meanwhile, the
/// program accesses `to` only by atomics, and writes `from` only by atomics. `len` is at most [`SHORT`].
#[inline(always)]
pub unsafe fn copy_short(from: *const u8, to: *mut u8, len: usize) -> Result<(), Fault> {
    debug_assert!(len <= SHORT);
    let (end, behind) = (from.wrapping_add(len), to.wrapping_add(len));
    // SAFETY: each arm stays within the `len` bytes for which the caller guarantees both pointers, and that
    // there are no more. All is read before anything is written, and the barrier orders the last store behind the
    // others, and behind what this thread wrote before: it pairs with the Acquire of a peer that polls it.
    unsafe {
        match len {
            0 => {}
            1 => block!(["ldrb {a:w}, [{f}]", "dmb ish", "strb {a:w}, [{t}]"]
                a = out(reg) _, f = in(reg) from, t = in(reg) to,),
            2 => block!(["ldrh {a:w}, [{f}]", "dmb ish", "strh {a:w}, [{t}]"]
                a = out(reg) _, f = in(reg) from, t = in(reg) to,),
            3 => block!(
                [
                    "ldrh {a:w}, [{f}]",
                    "ldrb {b:w}, [{f}, #2]",
                    "strh {a:w}, [{t}]",
                    "dmb ish",
                    "strb {b:w}, [{t}, #2]",
                ]
                a = out(reg) _, b = out(reg) _, f = in(reg) from, t = in(reg) to,),
            4 => block!(["ldr {a:w}, [{f}]", "dmb ish", "str {a:w}, [{t}]"]
                a = out(reg) _, f = in(reg) from, t = in(reg) to,),
            5..=7 => block!(
                [
                    "ldr {a:w}, [{f}]",
                    "ldurh {b:w}, [{e}, #-3]",
                    "ldurb {c:w}, [{e}, #-1]",
                    "str {a:w}, [{t}]",
                    "sturh {b:w}, [{u}, #-3]",
                    "dmb ish",
                    "sturb {c:w}, [{u}, #-1]",
                ]
                a = out(reg) _, b = out(reg) _, c = out(reg) _,
                f = in(reg) from, t = in(reg) to, e = in(reg) end, u = in(reg) behind,),
            8..=16 if behind.addr().is_multiple_of(8) => block!(
                [
                    "ldr {a}, [{f}]",
                    "ldur {b}, [{e}, #-8]",
                    "str {a}, [{t}]",
                    "dmb ish",
                    "stur {b}, [{u}, #-8]",
                ]
                a = out(reg) _, b = out(reg) _,
                f = in(reg) from, t = in(reg) to, e = in(reg) end, u = in(reg) behind,),
            8..=16 => block!(
                [
                    "ldr {a}, [{f}]",
                    "ldur {b}, [{e}, #-8]",
                    "str {a}, [{t}]",
                    "stur {b:w}, [{u}, #-8]",
                    "lsr {a}, {b}, #24",
                    "stur {a:w}, [{u}, #-5]",
                    "lsr {a}, {b}, #56",
                    "dmb ish",
                    "sturb {a:w}, [{u}, #-1]",
                ]
                a = out(reg) _, b = out(reg) _,
                f = in(reg) from, t = in(reg) to, e = in(reg) end, u = in(reg) behind,),
            17..=SHORT if behind.addr().is_multiple_of(8) => block!(
                [
                    "ldp {a}, {b}, [{f}]",
                    "ldp {c}, {d}, [{e}, #-16]",
                    "stp {a}, {b}, [{t}]",
                    "stur {c}, [{u}, #-16]",
                    "dmb ish",
                    "stur {d}, [{u}, #-8]",
                ]
                a = out(reg) _, b = out(reg) _, c = out(reg) _, d = out(reg) _,
                f = in(reg) from, t = in(reg) to, e = in(reg) end, u = in(reg) behind,),
            17..=SHORT => block!(
                [
                    "ldp {a}, {b}, [{f}]",
                    "ldp {c}, {d}, [{e}, #-16]",
                    "stp {a}, {b}, [{t}]",
                    "stur {c}, [{u}, #-16]",
                    "stur {d:w}, [{u}, #-8]",
                    "lsr {a}, {d}, #24",
                    "stur {a:w}, [{u}, #-5]",
                    "lsr {a}, {d}, #56",
                    "dmb ish",
                    "sturb {a:w}, [{u}, #-1]",
                ]
                a = out(reg) _, b = out(reg) _, c = out(reg) _, d = out(reg) _,
                f = in(reg) from, t = in(reg) to, e = in(reg) end, u = in(reg) behind,),
            _ => core::hint::unreachable_unchecked(),
        }
    }
    Ok(())
}

/// Copies more than [`SHORT`] bytes. Source and destination may overlap.
///
/// # Errors
/// As for [`copy_short`].
///
/// # Safety
/// That of [`copy_short`], but for the length.
#[inline(always)]
pub unsafe fn copy_long(from: *const u8, to: *mut u8, len: usize) -> Result<(), Fault> {
    const WORD: usize = size_of::<u64>();
    let (mut last, front) = (0_u64, len - WORD);
    // SAFETY: within the `len` bytes. memmove calls nothing in any libc of this processor: the return address is in
    // its register when it faults, and all registers that it preserves are as they were.
    unsafe {
        // Read before it may be overwritten.
        copy_short(from.add(front), (&raw mut last).cast(), WORD)?;
        asm!(
            "bl {memmove}",
            "2:",
            "3:",
            on_fault!(),
            memmove = sym memmove,
            inout("x0") to => _,
            inout("x1") from => _,
            inout("x2") front => _,
            clobber_abi("C"),
            fail = label { return Err(Fault) },
        );
        copy_short((&raw const last).cast(), to.add(front), WORD)
    }
}

/// Adds to a word, and returns what was there.
///
/// # Errors
/// It cannot be accessed.
///
/// # Safety
/// `place` is aligned, and valid for reads and writes of a word that is accessed only atomically, or cannot be
/// accessed.
pub unsafe fn fetch_add(place: *mut u64, add: u64) -> Result<u64, Fault> {
    let (old, done): (u64, u64);
    // SAFETY: as the caller guarantees. After a fault, execution goes on behind the block.
    unsafe {
        asm!(
            "2: ldaxr {old}, [{place}]",
            "add {new}, {old}, {add}",
            "stlxr {failed:w}, {new}, [{place}]",
            "cbnz {failed:w}, 2b",
            "dmb ish",
            "mov {done}, #1",
            "3:",
            ".pushsection bellwire_faults,\"aR\",@progbits",
            ".balign 4",
            ".long 2b - .",
            ".long 3b - .",
            ".long 3b - .",
            ".popsection",
            place = in(reg) place,
            add = in(reg) add,
            old = out(reg) old,
            new = out(reg) _,
            failed = out(reg) _,
            done = inout(reg) 0_u64 => done,
            options(nostack),
        );
    }
    if done == 1 { Ok(old) } else { Err(Fault) }
}

/// Replaces a word by `swap` if it is `compare`, and returns what was there.
///
/// # Errors
/// It cannot be accessed.
///
/// # Safety
/// That of [`fetch_add`].
pub unsafe fn compare_exchange(place: *mut u64, compare: u64, swap: u64) -> Result<u64, Fault> {
    let (old, done): (u64, u64);
    // SAFETY: as in `fetch_add`.
    unsafe {
        asm!(
            "2: ldaxr {old}, [{place}]",
            "cmp {old}, {compare}",
            "b.ne 4f",
            "stlxr {failed:w}, {swap}, [{place}]",
            "cbnz {failed:w}, 2b",
            "4: dmb ish",
            "mov {done}, #1",
            "3:",
            ".pushsection bellwire_faults,\"aR\",@progbits",
            ".balign 4",
            ".long 2b - .",
            ".long 3b - .",
            ".long 3b - .",
            ".popsection",
            place = in(reg) place,
            compare = in(reg) compare,
            swap = in(reg) swap,
            old = out(reg) old,
            failed = out(reg) _,
            done = inout(reg) 0_u64 => done,
            options(nostack),
        );
    }
    if done == 1 { Ok(old) } else { Err(Fault) }
}

/// Reads a byte, and with `write` writes it back, atomically and without a change.
///
/// # Errors
/// It cannot be accessed.
///
/// # Safety
/// If something is mapped at `place`, it is memory.
pub unsafe fn touch(place: *mut u8, write: bool) -> Result<(), Fault> {
    // SAFETY: a load, and a store of the same value, which fails if another one came in between.
    unsafe {
        match write {
            false => block!(["ldrb {a:w}, [{t}]"] a = out(reg) _, t = in(reg) place,),
            true => block!(
                ["ldxrb {a:w}, [{t}]", "stxrb {b:w}, {a:w}, [{t}]", "cbnz {b:w}, 2b"]
                a = out(reg) _, b = out(reg) _, t = in(reg) place,),
        }
    }
    Ok(())
}
