//! Accesses of x86-64, which orders its stores itself.

use super::{Fault, SHORT, WHOLE, memmove};
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

/// Copies up to [`SHORT`] bytes. It calls nothing, so that a function that calls nothing else saves no
/// registers. Source and destination may overlap.
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
    // SAFETY: each arm stays within the `len` bytes for which the caller guarantees both pointers, and that
    // there are no more. All is read before anything is written.
    unsafe {
        // Most short messages are one word: it is not looked up in a table of jumps.
        const WORD: usize = size_of::<u64>();
        if to.addr().is_multiple_of(WORD) && len == WORD {
            block!(["mov {a}, [{f}]", "mov [{t}], {a}"]
                a = out(reg) _, f = in(reg) from, t = in(reg) to,);
            return Ok(());
        }
        match len {
            0 => {}
            1 => block!(["movzx {a:e}, byte ptr [{f}]", "mov byte ptr [{t}], {a:l}"]
                a = out(reg_abcd) _, f = in(reg) from, t = in(reg) to,),
            2 => block!(["movzx {a:e}, word ptr [{f}]", "mov word ptr [{t}], {a:x}"]
                a = out(reg) _, f = in(reg) from, t = in(reg) to,),
            3 => block!(
                [
                    "movzx {a:e}, word ptr [{f}]",
                    "movzx {b:e}, byte ptr [{f} + 2]",
                    "mov word ptr [{t}], {a:x}",
                    "mov byte ptr [{t} + 2], {b:l}",
                ]
                a = out(reg) _, b = out(reg_abcd) _, f = in(reg) from, t = in(reg) to,),
            4 => block!(["mov {a:e}, dword ptr [{f}]", "mov dword ptr [{t}], {a:e}"]
                a = out(reg) _, f = in(reg) from, t = in(reg) to,),
            5..=7 => block!(
                [
                    "mov {a:e}, dword ptr [{f}]",
                    "mov {b:e}, dword ptr [{f} + {n} - 4]",
                    "mov dword ptr [{t}], {a:e}",
                    "mov word ptr [{t} + {n} - 4], {b:x}",
                    "shr {b:e}, 16",
                    "mov byte ptr [{t} + {n} - 2], {b:l}",
                    "shr {b:e}, 8",
                    "mov byte ptr [{t} + {n} - 1], {b:l}",
                ]
                a = out(reg) _, b = out(reg_abcd) _, f = in(reg) from, t = in(reg) to, n = in(reg) len,),
            8..=16 if is_whole(to, len) => block!(
                [
                    "mov {a}, [{f}]",
                    "mov {b}, [{f} + {n} - 8]",
                    "mov [{t}], {a}",
                    "mov [{t} + {n} - 8], {b}",
                ]
                a = out(reg) _, b = out(reg) _, f = in(reg) from, t = in(reg) to, n = in(reg) len,),
            8..=16 => block!(
                [
                    "mov {a}, [{f}]",
                    "mov {b}, [{f} + {n} - 8]",
                    "mov [{t}], {a}",
                    "mov dword ptr [{t} + {n} - 8], {b:e}",
                    "shr {b}, 24",
                    "mov dword ptr [{t} + {n} - 5], {b:e}",
                    "shr {b}, 32",
                    "mov byte ptr [{t} + {n} - 1], {b:l}",
                ]
                a = out(reg) _, b = out(reg_abcd) _, f = in(reg) from, t = in(reg) to, n = in(reg) len,),
            17..=SHORT if is_whole(to, len) => block!(
                [
                    "movups {a}, [{f}]",
                    "movups {b}, [{f} + {n} - 16]",
                    "movups [{t}], {a}",
                    "movlps [{t} + {n} - 16], {b}",
                    "movhps [{t} + {n} - 8], {b}",
                ]
                a = out(xmm_reg) _, b = out(xmm_reg) _, f = in(reg) from, t = in(reg) to, n = in(reg) len,),
            17..=SHORT => block!(
                [
                    "movups {a}, [{f}]",
                    "mov {c}, [{f} + {n} - 16]",
                    "mov {b}, [{f} + {n} - 8]",
                    "movups [{t}], {a}",
                    "mov [{t} + {n} - 16], {c}",
                    "mov dword ptr [{t} + {n} - 8], {b:e}",
                    "shr {b}, 24",
                    "mov dword ptr [{t} + {n} - 5], {b:e}",
                    "shr {b}, 32",
                    "mov byte ptr [{t} + {n} - 1], {b:l}",
                ]
                a = out(xmm_reg) _, b = out(reg_abcd) _, c = out(reg) _,
                f = in(reg) from, t = in(reg) to, n = in(reg) len,),
            _ => core::hint::unreachable_unchecked(),
        }
    }
    Ok(())
}

/// Whether the last eight of these bytes can be written by one store.
#[inline(always)]
fn is_whole(to: *mut u8, len: usize) -> bool {
    let last = to.addr().wrapping_add(len).wrapping_sub(size_of::<u64>());
    last % WHOLE <= WHOLE - size_of::<u64>()
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
    // SAFETY: within the `len` bytes. memmove has no frame in any libc of this processor: the return address is
    // on top of the stack when it faults, and all registers that it preserves are as they were.
    unsafe {
        // Read before it may be overwritten.
        copy_short(from.add(front), (&raw mut last).cast(), WORD)?;
        asm!(
            "call {memmove}",
            "2:",
            "3:",
            on_fault!(),
            memmove = sym memmove,
            inout("rdi") to => _,
            inout("rsi") from => _,
            inout("rdx") front => _,
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
            "2: lock xadd qword ptr [{place}], {value}",
            "mov {done:e}, 1",
            "3:",
            ".pushsection bellwire_faults,\"aR\",@progbits",
            ".balign 4",
            ".long 2b - .",
            ".long 3b - .",
            ".long 3b - .",
            ".popsection",
            place = in(reg) place,
            value = inout(reg) add => old,
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
            "2: lock cmpxchg qword ptr [{place}], {swap}",
            "mov {done:e}, 1",
            "3:",
            ".pushsection bellwire_faults,\"aR\",@progbits",
            ".balign 4",
            ".long 2b - .",
            ".long 3b - .",
            ".long 3b - .",
            ".popsection",
            place = in(reg) place,
            swap = in(reg) swap,
            inout("rax") compare => old,
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
    // SAFETY: a load, or a compare-exchange that writes what is there already.
    unsafe {
        match write {
            false => block!(["movzx {a:e}, byte ptr [{t}]"] a = out(reg) _, t = in(reg) place,),
            true => block!(["lock cmpxchg byte ptr [{t}], al"]
                t = in(reg) place, inout("eax") 0 => _,),
        }
    }
    Ok(())
}
