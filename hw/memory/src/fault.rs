//! Accesses to memory of programs that report a fault instead of ending the process.
//!
//! A program may unmap, protect or truncate memory that is registered, or the file system below it may be full: an
//! access then raises SIGSEGV or SIGBUS. A NIC reports an error in its completion, and so does the software HCA. Its
//! accesses are instructions that a table lists, each with the place where execution goes on after a fault: see
//! [`on_fault`](crate::on_fault). The process has one handler for both signals ([`install`]). It looks
//! the instruction up, and leaves every other fault to the action that was there before. So an access that does not
//! fault costs nothing.
//!
//! What it does not see: a fault while the signal is blocked in the thread, for which the kernel ends the process;
//! and one after the program has replaced the handler by one of its own that does not pass the signal on, until
//! [`install`] is called again.

mod handler;
mod table;

pub use handler::install;

/// An access faulted: what was to be read cannot be read, or what was to be written cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

/// Whether accesses report faults on this machine and in this build.
pub const REPORTED: bool = cfg!(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(any(miri, tsan, loom))
));

/// The part of an `asm!` block that enters its instructions between the labels `2:` and `3:` in the table: after a
/// fault of one of them, execution goes on at the operand `fail`, which is a label. Registers that the block has as
/// outputs have any value then; the others are as before the instruction that faulted.
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

/// Reads a byte, and with `write` writes it back, atomically and without a change.
///
/// # Errors
/// It cannot be accessed; or the program has replaced the handler, and its own one survived that.
///
/// # Safety
/// [`install`] has succeeded. If there is something at `place`, it is memory.
#[cfg(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(any(miri, tsan, loom))
))]
pub(super) unsafe fn touch(place: *mut u8, write: bool) -> Result<(), Fault> {
    use std::arch::asm;
    // SAFETY: a load, or a compare-exchange that writes what is there already, whose faults the table has.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        match write {
            false => asm!(
                "2: movzx {byte:e}, byte ptr [{place}]",
                "3:",
                on_fault!(),
                byte = out(reg) _,
                place = in(reg) place,
                fail = label { return Err(Fault) },
                options(nostack, preserves_flags),
            ),
            true => asm!(
                "xor eax, eax",
                "2: lock cmpxchg byte ptr [{place}], al",
                "3:",
                on_fault!(),
                place = in(reg) place,
                out("rax") _,
                fail = label { return Err(Fault) },
                options(nostack),
            ),
        }
        #[cfg(target_arch = "aarch64")]
        match write {
            false => asm!(
                "2: ldrb {byte:w}, [{place}]",
                "3:",
                on_fault!(),
                byte = out(reg) _,
                place = in(reg) place,
                fail = label { return Err(Fault) },
                options(nostack, preserves_flags),
            ),
            true => asm!(
                "2: ldxrb {byte:w}, [{place}]",
                "stxrb {failed:w}, {byte:w}, [{place}]",
                "cbnz {failed:w}, 2b",
                "3:",
                on_fault!(),
                byte = out(reg) _,
                failed = out(reg) _,
                place = in(reg) place,
                fail = label { return Err(Fault) },
                options(nostack, preserves_flags),
            ),
        }
    }
    Ok(())
}

/// There is no handler in this build, so nothing is accessed.
///
/// # Safety
/// None.
#[cfg(not(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(any(miri, tsan, loom))
)))]
pub(super) unsafe fn touch(_place: *mut u8, _write: bool) -> Result<(), Fault> {
    Ok(())
}
