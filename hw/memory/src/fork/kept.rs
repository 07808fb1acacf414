//! Values of a parent that a child keeps for good, without using them.

use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Untyped, because nothing is done with the values: leak checkers find them through this list.
static KEPT: AtomicPtr<Kept<()>> = AtomicPtr::new(ptr::null_mut());

#[repr(C)]
struct Kept<T> {
    next: *mut Kept<()>,
    value: ManuallyDrop<T>,
}

/// Keeps a value until the process ends. Its destructor never runs.
pub fn keep<T>(value: T) {
    let value = ManuallyDrop::new(value);
    let next = ptr::null_mut();
    let kept: *mut Kept<T> = Box::into_raw(Box::new(Kept { next, value }));
    // Relaxed: the list is only ever read by leak checkers.
    let mut first = KEPT.load(Ordering::Relaxed);
    loop {
        // SAFETY: just allocated, and not in the list yet.
        unsafe { (*kept).next = first };
        match KEPT.compare_exchange_weak(first, kept.cast(), Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return,
            Err(other) => first = other,
        }
    }
}
