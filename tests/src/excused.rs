//! Work of a test itself, to which no memory is refused.

use std::cell::Cell;

thread_local! {
    static EXCUSED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`; an allocator that refuses memory refuses this thread nothing meanwhile.
pub fn excused<R>(work: impl FnOnce() -> R) -> R {
    EXCUSED.set(true);
    let done = work();
    EXCUSED.set(false);
    done
}

/// Whether this thread runs such work.
pub fn is_excused() -> bool {
    EXCUSED.get()
}
