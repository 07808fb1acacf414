//! The allocator: the system's, which refuses what it is told to.

use bellwire_tests::excused::is_excused;
use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering::Relaxed};

/// Allocations until one is refused; below zero: none is.
static LEFT: AtomicIsize = AtomicIsize::new(-1);

/// Whether all those behind it are refused, too.
static FROM_THERE: AtomicBool = AtomicBool::new(false);

/// Those of fewer bytes are never refused.
static LEAST: AtomicUsize = AtomicUsize::new(0);

/// Bytes in use.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Frames of the stack that are kept of the first refusal.
const FRAMES: usize = 48;

/// The stack of the first refusal, and its size.
static STACK: [AtomicUsize; FRAMES] = [const { AtomicUsize::new(0) }; FRAMES];
static SIZE: AtomicUsize = AtomicUsize::new(0);

/// What it is told to refuse.
#[derive(Clone, Copy, Debug)]
pub struct Refuse {
    /// How many are allowed before.
    pub index: usize,
    /// Whether all behind it are refused, too.
    pub from_there: bool,
    /// How many bytes an allocation has at least that is counted and refused.
    pub least: usize,
}

/// Begins to refuse.
pub fn arm(refuse: Refuse) {
    LEAST.store(refuse.least, Relaxed);
    FROM_THERE.store(refuse.from_there, Relaxed);
    SIZE.store(0, Relaxed);
    LEFT.store(refuse.index as isize, Relaxed);
}

/// Refuses nothing more; whether anything was refused.
pub fn disarm() -> bool {
    FROM_THERE.store(false, Relaxed);
    LEFT.store(-1, Relaxed);
    SIZE.load(Relaxed) != 0
}

/// Bytes in use.
pub fn used() -> usize {
    USED.load(Relaxed)
}

/// The size of what was first refused, and the stack of its caller.
pub fn refused() -> (usize, impl Iterator<Item = usize>) {
    let stack = STACK.iter().map(|frame| frame.load(Relaxed));
    (SIZE.load(Relaxed), stack.take_while(|frame| *frame != 0))
}

/// Loads what the C library needs to walk a stack.
pub fn prepare() {
    let mut frames = [null_mut(); FRAMES];
    // SAFETY: room for as many frames.
    unsafe { libc::backtrace(frames.as_mut_ptr(), FRAMES as i32) };
}

#[cold]
fn note(bytes: usize) {
    let mut frames = [null_mut(); FRAMES];
    // SAFETY: room for as many frames.
    let count = unsafe { libc::backtrace(frames.as_mut_ptr(), FRAMES as i32) };
    for (at, slot) in STACK.iter().enumerate() {
        let frame = frames.get(at).filter(|_| at < count as usize);
        slot.store(frame.map_or(0, |frame| frame.addr()), Relaxed);
    }
    SIZE.store(bytes, Relaxed);
}

fn refuses(bytes: usize) -> bool {
    if LEFT.load(Relaxed) < 0 || bytes < LEAST.load(Relaxed) || is_excused() {
        return false;
    }
    let before = LEFT.fetch_update(Relaxed, Relaxed, |left| match left {
        ..0 => None,
        0 if FROM_THERE.load(Relaxed) => Some(0),
        _ => Some(left - 1),
    });
    if before == Ok(0) {
        note(bytes);
    }
    before == Ok(0)
}

fn count(start: *mut u8, bytes: usize) -> *mut u8 {
    if !start.is_null() {
        USED.fetch_add(bytes, Relaxed);
    }
    start
}

struct Refusing;

// SAFETY: the system's allocator, or none.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if refuses(layout.size()) {
            return null_mut();
        }
        // SAFETY: the caller guarantees that the size is not zero.
        count(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if refuses(layout.size()) {
            return null_mut();
        }
        // SAFETY: the caller guarantees that the size is not zero.
        count(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if bytes > layout.size() && refuses(bytes) {
            return null_mut();
        }
        // SAFETY: the caller guarantees that `start` was allocated here, so by `System`, with this layout.
        let moved = count(unsafe { System.realloc(start, layout, bytes) }, bytes);
        if !moved.is_null() {
            USED.fetch_sub(layout.size(), Relaxed);
        }
        moved
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller guarantees that `start` was allocated here, so by `System`, with this layout.
        unsafe { System.dealloc(start, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Refusing = Refusing;
