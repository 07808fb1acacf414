//! Accesses to memory of programs that report a fault instead of ending the process.
//!
//! A program may unmap, protect or truncate memory that is registered, or the file system below it may be full: an
//! access then raises SIGSEGV or SIGBUS. A NIC reports an error in its completion, and so does the software HCA. Its
//! accesses are instructions that a table lists, each with the place where execution goes on after a fault: see
//! [`guarded`](bellwire_core::guarded). The process has one handler for both signals ([`install`]). It looks
//! the instruction up, and leaves every other fault to the action that was there before. So an access that does not
//! fault costs nothing.
//!
//! What it does not see: a fault while the signal is blocked in the thread, for which the kernel ends the process;
//! and one after the program has replaced the handler by one of its own that does not pass the signal on, until
//! [`install`] is called again.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod handler;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod table;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub use handler::install;

/// Installs nothing: on this processor accesses do not report faults.
///
/// # Errors
/// [`io::ErrorKind::Unsupported`](std::io::ErrorKind::Unsupported).
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn install() -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

use super::pages::base_page;
pub use bellwire_core::guarded::Fault;
use bellwire_core::guarded::touch;

/// Whether each page of these bytes can be accessed. The contents do not change.
pub fn is_accessible(start: *mut u8, length: usize, write: bool) -> bool {
    let page = base_page();
    let first = start.addr() & !(page - 1);
    (first..start.addr().saturating_add(length))
        .step_by(page)
        .all(|at| {
            let place = start.with_addr(at.max(start.addr()));
            // SAFETY: what is registered is memory, or is not mapped.
            unsafe { touch(place, write) }.is_ok()
        })
}
