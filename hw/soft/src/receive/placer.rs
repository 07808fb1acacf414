//! Where the bytes of a message go: into the elements of its receive.

use super::super::copy::{Fault, copy};
use bellwire_core::wqe::{Data, SgeList};
use bellwire_core::wr::Sge;

/// Places bytes into the elements of a receive, one after the other.
pub(super) struct Placer<I> {
    sges: I,
    to: *mut u8,
    room: usize,
    faulted: bool,
}

impl<I: Iterator<Item = Sge>> Placer<I> {
    #[inline(always)]
    pub fn new(sges: I) -> Self {
        Self {
            sges,
            to: std::ptr::null_mut(),
            room: 0,
            faulted: false,
        }
    }

    /// # Errors
    /// Something could not be read or written any more.
    #[inline(always)]
    pub fn done(self) -> Result<(), Fault> {
        match self.faulted {
            true => Err(Fault),
            false => Ok(()),
        }
    }

    /// Passes the next `length` bytes of the elements to `each`, in contiguous pieces.
    #[inline(always)]
    pub fn next(&mut self, mut length: usize, mut each: impl FnMut(*mut u8, usize)) {
        while length != 0 {
            if self.room == 0 {
                let Some(sge) = self.sges.next() else { return };
                self.to = std::ptr::with_exposed_provenance_mut(sge.addr as usize);
                self.room = sge.length as usize;
                continue;
            }
            let now = length.min(self.room);
            each(self.to, now);
            self.to = self.to.wrapping_add(now);
            self.room -= now;
            length -= now;
        }
    }

    #[inline(always)]
    pub fn skip(&mut self, length: usize) {
        self.next(length, |_, _| {});
    }

    /// # Safety
    /// The elements for the bytes are writable, and `from` is readable for `length` bytes.
    #[inline(always)]
    pub unsafe fn put(&mut self, mut from: *const u8, length: usize) {
        let mut faulted = false;
        self.next(length, |to, now| {
            // SAFETY: the caller guarantees that the elements are writable and `from` is readable.
            unsafe {
                faulted |= copy(from, to, now).is_err();
                from = from.add(now);
            }
        });
        self.faulted |= faulted;
    }

    /// # Safety
    /// The elements for the data are writable, and the data is readable.
    #[inline(always)]
    pub unsafe fn put_all(&mut self, data: SgeList<'_>) {
        for piece in data {
            // SAFETY: the caller guarantees that the elements are writable and the data is readable.
            unsafe {
                match piece {
                    Data::Inline(head, tail) => {
                        self.put(head.as_ptr(), head.len());
                        self.put(tail.as_ptr(), tail.len());
                    }
                    Data::Pointer(sge) => self.put(
                        std::ptr::with_exposed_provenance(sge.addr as usize),
                        sge.length as usize,
                    ),
                }
            }
        }
    }
}
