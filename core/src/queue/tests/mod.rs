//! Tests of the queues without a device: the tests write what a device would write.

mod ledger;
mod list;
mod repost;
mod send;
mod srq;
mod srq_device;
mod tally;

use std::boxed::Box;
use std::sync::Mutex;
use std::vec::Vec;

/// The values of [`keep`], so that leak checkers still find them.
static KEPT: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

struct Kept(#[expect(dead_code, reason = "only to be reachable")] *mut u8);

// SAFETY: never used.
unsafe impl Send for Kept {}

/// Keeps a value until the process ends, because queues borrow their memory for their whole life.
pub(super) fn keep<T: 'static>(value: T) -> &'static mut T {
    let value = Box::into_raw(Box::new(value));
    KEPT.lock()
        .expect("no panic there")
        .push(Kept(value.cast()));
    // SAFETY: from `Box::into_raw`, and used only through this reference.
    unsafe { &mut *value }
}

/// Keeps `count` values, like [`keep`].
pub(super) fn keep_all<T: 'static>(count: usize, value: impl Fn() -> T) -> &'static mut [T] {
    keep((0..count).map(|_| value()).collect::<Box<[T]>>())
}

/// Memory for the ring of a queue.
#[derive(Clone, Copy)]
#[repr(align(128))]
pub(super) struct Chunk(#[expect(dead_code, reason = "memory")] [u8; 128]);

pub(super) fn memory(len: usize) -> core::ptr::NonNull<u8> {
    let chunks = keep_all(len.div_ceil(128), || Chunk([0; 128]));
    core::ptr::NonNull::from(chunks).cast()
}
