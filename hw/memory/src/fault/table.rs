//! The table of instructions that may fault: see [`on_fault`](bellwire_core::on_fault).

use std::arch::asm;

/// One entry; each field is relative to its own address.
#[repr(C)]
struct Entry {
    first: i32,
    behind: i32,
    fail: i32,
}

/// The address to which a field refers.
fn of(field: &i32) -> usize {
    let here = std::ptr::from_ref(field).addr();
    here.wrapping_add_signed(*field as isize)
}

/// All entries of this program or library.
fn entries() -> &'static [Entry] {
    let (start, end): (*const Entry, *const Entry);
    // The block has an entry of its own, which no instruction has, so that the linker always defines both symbols.
    // SAFETY: the linker defines them as the bounds of the section; nothing else is accessed.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!(
            ".hidden __start_bellwire_faults",
            ".hidden __stop_bellwire_faults",
            ".pushsection bellwire_faults,\"aR\",@progbits",
            ".balign 4",
            ".long 0, 0, 0",
            ".popsection",
            "lea {start}, [rip + __start_bellwire_faults]",
            "lea {end}, [rip + __stop_bellwire_faults]",
            start = out(reg) start,
            end = out(reg) end,
            options(pure, nomem, nostack, preserves_flags),
        );
        #[cfg(target_arch = "aarch64")]
        asm!(
            ".hidden __start_bellwire_faults",
            ".hidden __stop_bellwire_faults",
            ".pushsection bellwire_faults,\"aR\",@progbits",
            ".balign 4",
            ".long 0, 0, 0",
            ".popsection",
            "adrp {start}, __start_bellwire_faults",
            "add {start}, {start}, :lo12:__start_bellwire_faults",
            "adrp {end}, __stop_bellwire_faults",
            "add {end}, {end}, :lo12:__stop_bellwire_faults",
            start = out(reg) start,
            end = out(reg) end,
            options(pure, nomem, nostack, preserves_flags),
        );
        let bytes = end.addr() - start.addr();
        std::slice::from_raw_parts(start, bytes / size_of::<Entry>())
    }
}

/// Where execution goes on after a fault of the instruction at this address.
pub fn of_instruction(at: usize) -> Option<usize> {
    let found =
        (entries().iter()).find(|entry| (of(&entry.first)..of(&entry.behind)).contains(&at));
    found.map(|entry| of(&entry.fail))
}

/// Where execution goes on after a fault in a function that returns to this address.
pub fn of_call(returns: usize) -> Option<usize> {
    let is_call = |entry: &&Entry| {
        let at = of(&entry.first);
        at == returns && at == of(&entry.behind)
    };
    entries().iter().find(is_call).map(|entry| of(&entry.fail))
}
