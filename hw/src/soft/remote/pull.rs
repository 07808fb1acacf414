//! Fetching data from another process: by the kernel, or from memory that is mapped here.

use super::super::copy::copy;
use std::io;

/// Strings that one system call takes.
const AT_ONCE: usize = 512;

/// Copies strings of another process's memory over strings of ours: as many bytes on both sides.
///
/// # Safety
/// Ours are writable, and nobody else's for the time.
pub(super) unsafe fn pull(pid: i32, from: &[(u64, u64)], to: &[(u64, u64)]) -> io::Result<()> {
    let (mut from, mut to) = (Strings::new(from), Strings::new(to));
    if from.left() != to.left() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    while from.left() != 0 {
        let (theirs, ours) = (from.next(), to.next());
        // SAFETY: the caller's promise; what the other addresses mean is the kernel's to find out, in
        // the other process.
        let got = unsafe {
            let (few, many) = (ours.len() as libc::c_ulong, theirs.len() as libc::c_ulong);
            libc::process_vm_readv(pid, ours.as_ptr(), few, theirs.as_ptr(), many, 0)
        };
        match got {
            ..0 => return Err(io::Error::last_os_error()),
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            // Perhaps not all: a system call has its limits, and a mapping its end.
            _ => {
                from.pass(got as u64);
                to.pass(got as u64);
            }
        }
    }
    Ok(())
}

/// Copies strings over others, up to the end of the shorter ones: `false`, where these are `to`.
///
/// # Safety
/// `from` is readable. `to` is writable, and nobody else's for the time.
pub(super) unsafe fn bring(from: &[(u64, u64)], to: &[(u64, u64)]) -> bool {
    let (mut to, mut at) = (to.iter().copied(), (0, 0));
    for &(mut from, mut left) in from {
        while left != 0 {
            while at.1 == 0 {
                let Some(next) = to.next() else { return false };
                at = next;
            }
            let now = left.min(at.1);
            let source = std::ptr::with_exposed_provenance(from as usize);
            let place = std::ptr::with_exposed_provenance_mut(at.0 as usize);
            // SAFETY: within both, by the caller's promise.
            unsafe { copy(source, place, now as usize) };
            (from, left) = (from + now, left - now);
            at = (at.0 + now, at.1 - now);
        }
    }
    true
}

/// Strings of which some bytes are done.
struct Strings(Vec<(u64, u64)>);

impl Strings {
    fn new(strings: &[(u64, u64)]) -> Self {
        let mut left: Vec<_> = strings
            .iter()
            .copied()
            .filter(|(_, len)| *len != 0)
            .collect();
        left.reverse();
        Self(left)
    }

    fn left(&self) -> u64 {
        self.0.iter().map(|(_, len)| len).sum()
    }

    fn next(&self) -> Vec<libc::iovec> {
        let strings = self.0.iter().rev().take(AT_ONCE);
        strings
            .map(|&(addr, len)| libc::iovec {
                iov_base: std::ptr::with_exposed_provenance_mut(addr as usize),
                iov_len: len as usize,
            })
            .collect()
    }

    fn pass(&mut self, mut bytes: u64) {
        while let Some((addr, len)) = self.0.last_mut() {
            if bytes < *len {
                *addr += bytes;
                *len -= bytes;
                return;
            }
            bytes -= *len;
            self.0.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(bytes: &[u8]) -> (u64, u64) {
        (
            bytes.as_ptr().expose_provenance() as u64,
            bytes.len() as u64,
        )
    }

    #[test]
    fn strings_are_put_together_and_apart() {
        let us = std::process::id() as i32;
        let (a, b) = (*b"hello, ", *b"world");
        let mut to = [0u8; 12];
        let (head, tail) = to.split_at_mut(3);
        let (head, tail) = (at(head), at(tail));
        // SAFETY: ours, and borrowed for the time.
        unsafe { pull(us, &[at(&a), at(&b)], &[head, tail]) }.unwrap();
        assert_eq!(&to, b"hello, world");
        for from in [&[at(&a)][..], &[(8, 12)], &[at(&a), at(&a)]] {
            let into = at(&to);
            // SAFETY: as above.
            assert!(unsafe { pull(us, from, &[into]) }.is_err());
        }
    }

    #[test]
    fn many_strings() {
        let us = std::process::id() as i32;
        let from: Vec<u8> = (0..=255).cycle().take(3000).collect();
        let mut to = vec![0u8; 3000];
        let theirs: Vec<_> = from.chunks(2).map(at).collect();
        let ours: Vec<_> = to.chunks_mut(3).map(|piece| at(piece)).collect();
        // SAFETY: ours, and borrowed for the time.
        unsafe { pull(us, &theirs, &ours) }.unwrap();
        assert_eq!(from, to);
    }
}
