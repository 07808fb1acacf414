//! Tells a process from the one that it was forked from.
//!
//! A word on a page that the kernel clears in children (`MADV_WIPEONFORK`, Linux 4.14), however they are made:
//! by fork(3), or by clone(2) behind the C library's back. If the kernel refuses that, the word has the pid as
//! well, which is compared at each look, and a handler of pthread_atfork(3) clears the word.

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// One life of a process: it begins with exec(2) or fork(2). A child's differs from those of its ancestors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life(u32);

/// The present life, and above it the pid if that is compared; zero: not known yet. Null: no page yet.
static PLACE: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());

/// The word where there is no memory for a page.
static WITHOUT_PAGE: AtomicU64 = AtomicU64::new(0);

/// The last number that was given to a life. A child continues from its parent's.
static LAST: AtomicU32 = AtomicU32::new(0);

impl Life {
    /// The life of the calling process. Two loads, where the kernel clears pages in children.
    #[inline]
    pub fn current() -> Self {
        if cfg!(miri) {
            return Self(1);
        }
        // Acquire: pairs with the Release in `place`.
        let place = PLACE.load(Ordering::Acquire);
        // SAFETY: null, or a place that is never taken away.
        let word = unsafe { place.as_ref() }.map_or(0, |word| word.load(Ordering::Relaxed));
        // Relaxed: a life orders nothing else.
        match word {
            1..0x1_0000_0000 => Self(word as u32),
            _ => determine(),
        }
    }

    /// Whether it is the life of the calling process.
    #[inline]
    pub fn is_current(self) -> bool {
        self == Self::current()
    }
}

/// Determines the life: it is not known yet, or the pid has to be compared.
#[cold]
fn determine() -> Life {
    let place = place();
    let pid = u64::from(std::process::id()) << 32;
    loop {
        // Relaxed, as everything on the word: a life orders nothing else.
        let word = place.load(Ordering::Relaxed);
        let marked = if is_cleared_in_children(place) {
            0
        } else {
            pid
        };
        if word != 0 && word & !0xffff_ffff == marked {
            return Life(word as u32);
        }
        // Relaxed: only the count itself matters.
        let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        let new = marked | u64::from(next);
        let set = place.compare_exchange(word, new, Ordering::Relaxed, Ordering::Relaxed);
        if set.is_ok() {
            return Life(next);
        }
    }
}

fn is_cleared_in_children(place: &AtomicU64) -> bool {
    !ptr::eq(place, &WITHOUT_PAGE)
}

/// The place of the word, which is made at the first look.
fn place() -> &'static AtomicU64 {
    // Acquire: pairs with the Release below.
    let there = NonNull::new(PLACE.load(Ordering::Acquire));
    let there = there.unwrap_or_else(|| {
        let made = page().unwrap_or(NonNull::from(&WITHOUT_PAGE).cast());
        // Release: pairs with the Acquire of each look.
        let set = PLACE.compare_exchange(
            ptr::null_mut(),
            made.as_ptr(),
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        // Another thread may have been first: then a page is lost, once.
        match set {
            Ok(_) => made,
            Err(first) => NonNull::new(first).unwrap_or(made),
        }
    });
    at_fork();
    // SAFETY: a static, or a page that is never unmapped; zero is a value of the word.
    unsafe { there.as_ref() }
}

/// A page that the kernel clears in children.
fn page() -> Option<NonNull<AtomicU64>> {
    let size = super::super::pages::base_page();
    let (access, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: without MAP_FIXED the kernel picks a free range, so no memory in use is replaced.
    let at = unsafe { libc::mmap(ptr::null_mut(), size, access, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the page was just mapped and holds nothing yet.
    if unsafe { libc::madvise(at, size, libc::MADV_WIPEONFORK) } != 0 {
        // SAFETY: as above.
        unsafe { libc::munmap(at, size) };
        return None;
    }
    NonNull::new(at.cast())
}

/// Has children of fork(3) call [`in_child`], once.
pub(super) fn at_fork() {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    // Relaxed: nothing depends on the handler's registration. Not a `Once`: a child of another thread's fork
    // would wait for the thread that registers. Twice does no harm.
    if cfg!(miri) || REGISTERED.load(Ordering::Relaxed) {
        return;
    }
    // SAFETY: the handler is a function that runs in children only; it makes system calls and changes
    // atomics.
    let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    // Without memory for it: tried again at the next descriptor.
    REGISTERED.store(failed == 0, Ordering::Relaxed);
}

/// The first thing that a child of fork(3) does.
unsafe extern "C" fn in_child() {
    // Relaxed: the child has one thread.
    WITHOUT_PAGE.store(0, Ordering::Relaxed);
    // An emulator may have ignored the advice to clear the page.
    let place = PLACE.load(Ordering::Relaxed);
    // SAFETY: null, or a place that is never taken away.
    if let Some(word) = unsafe { place.as_ref() } {
        word.store(0, Ordering::Relaxed);
    }
    super::fd::close_inherited();
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    /// What the closure returns in a child.
    fn in_a_child(make: impl FnOnce() -> i32, look: impl FnOnce() -> u8) -> u8 {
        let pid = make();
        assert!(pid >= 0);
        if pid == 0 {
            let code = look();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(code.into()) };
        }
        let mut status = 0;
        // SAFETY: the status is writable.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert!(libc::WIFEXITED(status), "{status:#x}");
        libc::WEXITSTATUS(status) as u8
    }

    fn fork() -> i32 {
        // SAFETY: the child makes system calls and looks at atomics only.
        unsafe { libc::fork() }
    }

    /// Behind the C library's back: no handler runs.
    fn clone() -> i32 {
        // SAFETY: as fork(2), without a new stack.
        unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32 }
    }

    #[test]
    fn a_child_has_another_life_however_it_is_made() {
        let ours = Life::current();
        assert!(ours.is_current() && Life::current() == ours);
        for make in [fork, clone] {
            let other = in_a_child(make, || {
                let other = Life::current();
                // Made in the same way: the C library's fork waits in a child that it does not know of, if
                // another thread of the parent was in it.
                let of_the_grandchild = in_a_child(make, || u8::from(!other.is_current()));
                u8::from(other != ours && !ours.is_current() && other.is_current())
                    + of_the_grandchild
            });
            assert_eq!(other, 2);
            assert!(ours.is_current());
        }
    }

    #[test]
    fn without_the_page_the_pid_is_compared() {
        // In a child: the place is the whole process's.
        let right = in_a_child(fork, || {
            PLACE.store((&raw const WITHOUT_PAGE).cast_mut(), Ordering::Relaxed);
            let ours = Life::current();
            let there = ours.is_current() && WITHOUT_PAGE.load(Ordering::Relaxed) >> 32 != 0;
            let others = [fork, clone].map(|make| {
                in_a_child(make, || {
                    u8::from(!ours.is_current() && Life::current().is_current())
                })
            });
            u8::from(there) + others[0] + others[1] + u8::from(ours.is_current())
        });
        assert_eq!(right, 4);
    }
}
