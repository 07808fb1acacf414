//! Starting threads of the library, and deferring the cancellation of the program's.

use crate::pinned::{Sparse, headroom};
use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::thread::{Builder, JoinHandle};

/// Signals that an instruction of the thread itself raises. The kernel ends a process that blocks them.
const OF_INSTRUCTIONS: [libc::c_int; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
];

/// Blocks signals on this thread until it is dropped.
struct Blocked {
    before: libc::sigset_t,
}

impl Blocked {
    fn all() -> Self {
        let mut all = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: `all` is filled before it is changed and used, and `before` is filled by the call, which cannot
        // fail: the numbers are valid.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            for signal in OF_INSTRUCTIONS {
                libc::sigdelset(all.as_mut_ptr(), signal);
            }
            // The program's thread may have blocked those of instructions, too.
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Self {
                before: before.assume_init(),
            }
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the mask is that which the thread had.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, null_mut()) };
    }
}

/// Whether there is address space for another thread: its stack, and what the standard library maps and allocates for
/// it, which ends the process when that fails.
fn room() -> io::Result<()> {
    /// The standard library's stacks have 2 MiB; a signal stack, and the first memory that the thread takes.
    const BYTES: usize = (2 << 20) + (1 << 20);
    let none = |_| io::Error::from_raw_os_error(libc::ENOMEM);
    Sparse::zeroed(BYTES).map_err(none)?;
    headroom().map_err(none)
}

/// Starts a thread of the library, with a name of which Linux keeps 15 characters. The signals of the process
/// are for the program's threads: this one has all blocked, from its first instruction on, except signals
/// that an instruction of its own raises.
///
/// # Errors
/// The system has no thread left.
pub fn start<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    room()?;
    let mut owned = String::new();
    let reserved = owned.try_reserve_exact(name.len());
    reserved.map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))?;
    owned.push_str(name);
    // A thread begins with the mask of the one that starts it.
    let _blocked = Blocked::all();
    #[expect(clippy::disallowed_methods, reason = "all threads are started here")]
    Builder::new().name(owned).spawn(run)
}

/// Defers the cancellation of this thread (pthread_cancel(3)) until it is dropped. Cancellation unwinds the stack from
/// within a call of the C library, and Rust's functions must not be unwound like that.
#[derive(Debug)]
#[must_use = "it ends when it is dropped"]
pub struct Uncancelled {
    /// The state before.
    #[cfg(not(miri))]
    before: libc::c_int,
    /// The state is that of a thread.
    of_this_thread: PhantomData<*mut ()>,
}

#[cfg(not(miri))]
unsafe extern "C" {
    fn pthread_setcancelstate(state: libc::c_int, before: *mut libc::c_int) -> libc::c_int;
}

/// The number of `PTHREAD_CANCEL_DISABLE` in glibc and musl.
#[cfg(not(miri))]
const DISABLE: libc::c_int = 1;

impl Uncancelled {
    /// Defers it from here on.
    #[inline]
    pub fn new() -> Self {
        #[cfg(not(miri))]
        let mut before = 0;
        // SAFETY: writes one number; it is no cancellation point.
        #[cfg(not(miri))]
        unsafe {
            pthread_setcancelstate(DISABLE, &raw mut before)
        };
        Self {
            #[cfg(not(miri))]
            before,
            of_this_thread: PhantomData,
        }
    }
}

impl Default for Uncancelled {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Uncancelled {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the state is one that the call has returned; it is no cancellation point, also where cancellation
        // is pending.
        #[cfg(not(miri))]
        unsafe {
            pthread_setcancelstate(self.before, null_mut())
        };
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    /// A thread of the program that has blocked all of its signals starts one of the library's.
    #[test]
    fn signals_of_instructions_are_not_blocked_whoever_starts_it() {
        let started = std::thread::scope(|scope| {
            let starter = scope.spawn(|| {
                let mut all = MaybeUninit::uninit();
                // SAFETY: `all` is filled before it is used.
                unsafe {
                    libc::sigfillset(all.as_mut_ptr());
                    libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), null_mut());
                }
                start("of-all-blocked", of_this_thread)
                    .unwrap()
                    .join()
                    .unwrap()
            });
            starter.join().unwrap()
        });
        for signal in OF_INSTRUCTIONS {
            assert_eq!(started.0 >> (signal - 1) & 1, 0, "{signal}");
        }
    }

    /// The blocked signals of this thread, and its name.
    fn of_this_thread() -> (u64, String) {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let field = |name: &str| {
            let mut lines = status.lines();
            let line = lines.find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().to_owned()
        };
        let blocked = u64::from_str_radix(&field("SigBlk:"), 16).unwrap();
        (blocked, field("Name:"))
    }

    #[test]
    fn a_thread_takes_no_signal_and_has_a_name() {
        let before = of_this_thread().0;
        let thread = start("a-name-of-15-ch", of_this_thread).unwrap();
        let (blocked, name) = thread.join().unwrap();
        assert_eq!(name, "a-name-of-15-ch");
        let bit = |signal: i32| 1u64 << (signal - 1);
        for signal in 1..libc::SIGRTMAX() {
            // Those below are glibc's own.
            if (32..libc::SIGRTMIN()).contains(&signal) {
                continue;
            }
            let never = [libc::SIGKILL, libc::SIGSTOP].contains(&signal);
            let free = never || OF_INSTRUCTIONS.contains(&signal);
            assert_eq!(blocked & bit(signal) == 0, free, "signal {signal}");
        }
        assert_eq!(
            of_this_thread().0,
            before,
            "the starting thread keeps its mask"
        );
    }
}
