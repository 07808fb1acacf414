//! The program's memory, as a kernel touches it: what is not there is an error.

use rustix::io::Errno;

/// Calls one of process_vm_readv(2) and process_vm_writev(2) on this process.
fn transfer(
    ours: *mut libc::c_void,
    theirs: u64,
    length: usize,
    call: unsafe extern "C" fn(
        libc::pid_t,
        *const libc::iovec,
        libc::c_ulong,
        *const libc::iovec,
        libc::c_ulong,
        libc::c_ulong,
    ) -> libc::ssize_t,
) -> Result<(), Errno> {
    if length == 0 {
        return Ok(());
    }
    let local = libc::iovec {
        iov_base: ours,
        iov_len: length,
    };
    let remote = libc::iovec {
        iov_base: theirs as *mut libc::c_void,
        iov_len: length,
    };
    // SAFETY: `ours` is valid for the length, by the callers; the kernel checks `theirs`.
    let moved = unsafe { call(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
    if moved == length as libc::ssize_t {
        Ok(())
    } else {
        Err(Errno::FAULT)
    }
}

/// Copies `length` bytes from the program's memory.
///
/// # Errors
/// `EINVAL` for more than `longest`, `EFAULT` where there is no memory.
pub fn read(from: u64, length: usize, longest: usize) -> Result<Vec<u8>, Errno> {
    if length > longest {
        return Err(Errno::INVAL);
    }
    let mut bytes = vec![0; length];
    transfer(
        bytes.as_mut_ptr().cast(),
        from,
        length,
        libc::process_vm_readv,
    )?;
    Ok(bytes)
}

/// Copies bytes to the program's memory.
///
/// # Errors
/// `EFAULT` where there is no memory.
pub fn write(to: u64, bytes: &[u8]) -> Result<(), Errno> {
    let ours = bytes.as_ptr().cast_mut().cast();
    transfer(ours, to, bytes.len(), libc::process_vm_writev)
}

/// What a device does with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Reads it only.
    Read,
    /// Writes it too.
    Write,
}

/// Makes sure that memory is there to be read, or written, as pinning it does.
///
/// # Errors
/// `EFAULT` where it is not.
pub fn pin(start: u64, length: u64, how: Use) -> Result<(), Errno> {
    let page = rustix::param::page_size() as u64;
    let first = start & !(page - 1);
    let end = start
        .checked_add(length)
        .and_then(|end| end.checked_add(page - 1));
    let end = end.ok_or(Errno::FAULT)? & !(page - 1);
    let advice = match how {
        Use::Read => libc::MADV_POPULATE_READ,
        Use::Write => libc::MADV_POPULATE_WRITE,
    };
    // SAFETY: fills in pages that are mapped, and changes nothing that can be seen.
    let done = unsafe { libc::madvise(first as *mut _, (end - first) as usize, advice) };
    if start == 0 || done != 0 {
        return Err(Errno::FAULT);
    }
    Ok(())
}
