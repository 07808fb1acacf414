//! Where rings are, as the stand-in for the kernel says, and what is written there.

use crate::{ABSENT, Check};
use bellwire_tests::stand_in::symbol;
use std::ffi::{c_int, c_uint};
use std::mem::transmute;

/// Where a queue is (`Place` of `tests/uverbs-preload/src/places.rs`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Place {
    pub ring: *mut u8,
    pub record: *mut u8,
    /// Of a send queue: its register's page.
    pub page: *mut u8,
    pub count: u32,
    pub stride: u32,
    pub user_index: u32,
}

/// The queues that a queue pair has.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Send = 0,
    Recv = 1,
    Srq = 2,
    /// Sends and receives complete on one here.
    Cq = 3,
}

/// What an entry that nobody has written is filled with.
pub const UNTOUCHED: u8 = 0xc3;

/// Bytes of a register page, and where in it registers begin.
const PAGE: usize = 4096;
pub const REGISTERS: usize = 0x800;

/// # Safety
/// The bytes can be read, and nobody writes them meanwhile.
unsafe fn copy(from: *const u8, bytes: usize) -> Vec<u8> {
    // SAFETY: the caller guarantees that the bytes can be read, and that nobody writes them meanwhile.
    unsafe { std::slice::from_raw_parts(from, bytes) }.to_vec()
}

impl Place {
    /// Where a queue of the queue pair of this number is.
    pub fn of(kind: Kind, qpn: u32) -> Check<Self> {
        let place = symbol(c"uverbs_preload_place").ok_or(ABSENT)?;
        type Of = unsafe extern "C" fn(c_uint, u32, *mut Place) -> c_int;
        // SAFETY: the function has this type.
        let place: Of = unsafe { transmute(place) };
        let mut found = Self {
            ring: std::ptr::null_mut(),
            record: std::ptr::null_mut(),
            page: std::ptr::null_mut(),
            count: 0,
            stride: 0,
            user_index: 0,
        };
        // SAFETY: it can be written.
        match unsafe { place(kind as c_uint, qpn, &raw mut found) } {
            0 => Ok(found),
            error => Err(format!("{kind:?} of {qpn}: no place, {error}").into()),
        }
    }

    /// Whether two queues have the same shape.
    pub fn is_like(&self, other: &Self) -> bool {
        (self.count, self.stride) == (other.count, other.stride)
    }

    fn entry(&self, index: u32) -> *mut u8 {
        let offset = (index & (self.count - 1)) as usize * self.stride as usize;
        // SAFETY: masked, so within the ring.
        unsafe { self.ring.add(offset) }
    }

    /// The bytes of the entry at this index, from `skip` on.
    pub fn read(&self, index: u32, skip: usize) -> Vec<u8> {
        // SAFETY: within the ring, which nobody writes meanwhile.
        unsafe { copy(self.entry(index).add(skip), self.stride as usize - skip) }
    }

    /// Writes into the entry at this index.
    pub fn write(&self, index: u32, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.stride as usize);
        // SAFETY: within the entry, which nobody uses meanwhile.
        unsafe {
            self.entry(index)
                .add(offset)
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }

    /// Fills the entry at this index, from `skip` on.
    pub fn blank(&self, index: u32, skip: usize) {
        // SAFETY: within the entry, which nobody uses meanwhile.
        unsafe {
            self.entry(index)
                .add(skip)
                .write_bytes(UNTOUCHED, self.stride as usize - skip);
        }
    }

    /// All entries.
    pub fn all(&self) -> Vec<u8> {
        // SAFETY: the ring, which nobody writes meanwhile.
        unsafe { copy(self.ring, self.count as usize * self.stride as usize) }
    }

    /// The doorbell record, in memory order.
    pub fn record(&self) -> [u8; 4] {
        // SAFETY: a record of four bytes, aligned, which nobody writes meanwhile.
        unsafe { self.record.cast::<u32>().read_volatile() }.to_ne_bytes()
    }

    /// Changes a bit of the record.
    pub fn flip_record(&self, bit: u32) {
        let record = self.record.cast::<u32>();
        // SAFETY: a record of four bytes, aligned, which nobody else uses meanwhile.
        unsafe { record.write_volatile(record.read_volatile() ^ 1 << bit) };
    }

    /// All registers of the page.
    pub fn registers(&self) -> Vec<u8> {
        // SAFETY: within the page, which nobody writes meanwhile.
        unsafe { copy(self.page.add(REGISTERS), PAGE - REGISTERS) }
    }

    /// Fills all registers of the page, so that what is written is seen.
    pub fn blank_registers(&self) {
        // SAFETY: within the page.
        unsafe {
            self.page
                .add(REGISTERS)
                .write_bytes(UNTOUCHED, PAGE - REGISTERS)
        };
    }

    /// Changes a bit of the registers.
    pub fn flip_register(&self, bit: usize) {
        let offset = REGISTERS + bit / 8;
        assert!(offset < PAGE);
        // SAFETY: within the page.
        unsafe { *self.page.add(offset) ^= 1 << (bit % 8) };
    }

    /// Changes a bit of the entry at this index.
    pub fn flip(&self, index: u32, bit: usize) {
        let byte = self.read(index, bit / 8)[0];
        self.write(index, bit / 8, &[byte ^ 1 << (bit % 8)]);
    }
}
