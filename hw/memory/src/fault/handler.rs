//! The process's handler of SIGSEGV and SIGBUS. Everything that it calls is async-signal-safe.

use super::table;
use crate::fork::PerProcess;
use bellwire_core::guarded::REPORTED;
use libc::{c_int, c_void, sigaction, siginfo_t, ucontext_t};
use std::cell::UnsafeCell;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// Most handlers that the program may install over this one, one after the other; each time, [`install`] puts this
/// one on top again.
const MOST: usize = 16;

/// The actions that were there before, of one signal.
struct Before {
    /// Oldest first. Written before `count` says so, under `INSTALLING`.
    actions: [UnsafeCell<MaybeUninit<sigaction>>; MOST],
    count: AtomicUsize,
    /// The thread that runs one of them, or zero.
    runs: AtomicI32,
}

// SAFETY: an action is written once, before `count` covers it.
unsafe impl Sync for Before {}

static BEFORE: [Before; 2] = [const {
    Before {
        actions: [const { UnsafeCell::new(MaybeUninit::uninit()) }; MOST],
        count: AtomicUsize::new(0),
        runs: AtomicI32::new(0),
    }
}; 2];

static INSTALLING: PerProcess<Mutex<()>> = PerProcess::new(Mutex::default);

impl Before {
    fn of(signal: c_int) -> &'static Self {
        &BEFORE[usize::from(signal == libc::SIGBUS)]
    }

    /// The action to which a signal is passed on; the oldest, if this thread runs the latest, which has passed it back.
    fn action(&self, again: bool) -> Option<sigaction> {
        // Acquire: pairs with the Release in `push`.
        let count = self.count.load(Ordering::Acquire);
        let at = if again { 0 } else { count.checked_sub(1)? };
        let action = self.actions.get(at).filter(|_| at < count)?;
        // SAFETY: written before it was counted, and not again.
        Some(unsafe { (*action.get()).assume_init() })
    }

    /// Adds one. `false`: there are too many. Under `INSTALLING`.
    fn push(&self, action: sigaction) -> bool {
        // Relaxed: changed under the lock.
        let count = self.count.load(Ordering::Relaxed);
        let Some(place) = self.actions.get(count) else {
            return false;
        };
        // SAFETY: not counted yet, so nobody reads it, and the lock is held.
        unsafe { (*place.get()).write(action) };
        // Release: pairs with the Acquire in `action`.
        self.count.store(count + 1, Ordering::Release);
        true
    }
}

/// Whether the environment forbids the handler: with `BELLWIRE_NO_FAULT_HANDLER`, faults are the program's.
fn is_forbidden() -> bool {
    std::env::var_os("BELLWIRE_NO_FAULT_HANDLER").is_some()
}

/// Installs the handler of SIGSEGV and SIGBUS, unless it is the present one: also above one that the program has
/// installed since, to which other faults are then passed on. Called when memory is registered.
///
/// # Errors
/// Those of sigaction(2); [`io::ErrorKind::Unsupported`] if the environment variable `BELLWIRE_NO_FAULT_HANDLER` is set,
/// or if the program has installed too many above it.
pub fn install() -> io::Result<()> {
    if !REPORTED || is_forbidden() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let _one = INSTALLING
        .get()
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    SIGNALS.into_iter().try_for_each(install_for)?;
    stay();
    Ok(())
}

/// Keeps this library in the process, which would otherwise call a handler that dlclose(3) has unmapped.
fn stay() {
    let ours = install as *const () as *const c_void;
    let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `found` is of the type that dladdr fills in, and zero is valid for it.
    let (known, name) = unsafe {
        let known = libc::dladdr(ours, found.as_mut_ptr());
        (known, found.assume_init().dli_fname)
    };
    if known != 0 && !name.is_null() {
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
        // SAFETY: a C string; the library is loaded already. A program itself is not found, and stays anyway.
        let _handle = unsafe { libc::dlopen(name, flags) };
    }
}

fn install_for(signal: c_int) -> io::Result<()> {
    let present = act(signal, None)?;
    if present.sa_sigaction == on_signal as *const () as usize {
        return Ok(());
    }
    let before = Before::of(signal);
    // It is noted first: the handler may run at once.
    if !before.push(present) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // SAFETY: a sigaction consists of integers, for which zero is valid.
    let mut ours: sigaction = unsafe { std::mem::zeroed() };
    ours.sa_sigaction = on_signal as *const () as usize;
    // On the alternate stack, as handlers of a stack overflow need it. A fault within the handler before, which this
    // one calls, is delivered.
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    ours.sa_flags |= present.sa_flags & libc::SA_RESTART;
    act(signal, Some(&ours))?;
    Ok(())
}

/// sigaction(2).
fn act(signal: c_int, new: Option<&sigaction>) -> io::Result<sigaction> {
    let mut old = MaybeUninit::<sigaction>::zeroed();
    let new = new.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: both are NULL or of the type that the call takes; the handler is one for three arguments.
    super::super::region::check(unsafe { libc::sigaction(signal, new, old.as_mut_ptr()) })?;
    // SAFETY: filled in.
    Ok(unsafe { old.assume_init() })
}

/// Where the thread is, in what the kernel saves of it.
#[cfg(target_arch = "x86_64")]
mod thread {
    use libc::{REG_RIP, REG_RSP, ucontext_t};

    pub fn instruction(of: &ucontext_t) -> usize {
        of.uc_mcontext.gregs[REG_RIP as usize] as usize
    }

    pub fn go_on_at(of: &mut ucontext_t, at: usize) {
        of.uc_mcontext.gregs[REG_RIP as usize] = at as i64;
    }

    /// The address to which a function returns that has pushed nothing; zero if there is no stack.
    pub fn returns_to(of: &ucontext_t) -> usize {
        let stack = of.uc_mcontext.gregs[REG_RSP as usize];
        let returns: usize;
        // SAFETY: a load, whose fault the table has: the stack itself may be what cannot be accessed. Execution goes
        // on behind it then.
        unsafe {
            std::arch::asm!(
                "2: mov {value}, [{place}]",
                "3:",
                ".pushsection bellwire_faults,\"aR\",@progbits",
                ".balign 4",
                ".long 2b - .",
                ".long 3b - .",
                ".long 3b - .",
                ".popsection",
                value = inout(reg) 0_usize => returns,
                place = in(reg) stack,
                options(nostack, readonly, preserves_flags),
            );
        }
        returns
    }

    pub fn leave_call(of: &mut ucontext_t, at: usize) {
        of.uc_mcontext.gregs[REG_RSP as usize] += size_of::<usize>() as i64;
        go_on_at(of, at);
    }
}

#[cfg(target_arch = "aarch64")]
mod thread {
    use libc::ucontext_t;

    pub fn instruction(of: &ucontext_t) -> usize {
        of.uc_mcontext.pc as usize
    }

    pub fn go_on_at(of: &mut ucontext_t, at: usize) {
        of.uc_mcontext.pc = at as u64;
    }

    /// The address to which a function returns that calls nothing.
    pub fn returns_to(of: &ucontext_t) -> usize {
        of.uc_mcontext.regs[30] as usize
    }

    pub fn leave_call(of: &mut ucontext_t, at: usize) {
        go_on_at(of, at);
    }
}

extern "C" fn on_signal(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes both, for this call.
    let (code, thread) = unsafe { ((*info).si_code, &mut *context.cast::<ucontext_t>()) };
    // Raised by the instruction, not sent by kill(2), and not the news of a page that nobody has accessed.
    let raised = code > 0 && !(signal == libc::SIGBUS && code == libc::BUS_MCEERR_AO);
    if raised {
        if let Some(at) = table::of_instruction(thread::instruction(thread)) {
            return thread::go_on_at(thread, at);
        }
        if let Some(at) = table::of_call(thread::returns_to(thread)) {
            return thread::leave_call(thread, at);
        }
    }
    pass_on(signal, raised, info, context);
}

/// Does what would be done without this handler.
fn pass_on(signal: c_int, raised: bool, info: *mut siginfo_t, context: *mut c_void) {
    let before = Before::of(signal);
    // SAFETY: a plain system call.
    let me = unsafe { libc::gettid() };
    // Relaxed: only what this thread wrote is compared. Another thread's fault may overwrite it; then the latest action
    // runs once more.
    let again = before.runs.load(Ordering::Relaxed) == me;
    let Some(action) = before.action(again) else {
        return by_default(signal, raised, info);
    };
    match action.sa_sigaction {
        libc::SIG_DFL => by_default(signal, raised, info),
        // The kernel ends the process by a fault that is ignored.
        libc::SIG_IGN if raised => by_default(signal, raised, info),
        libc::SIG_IGN => {}
        handler => {
            before.runs.store(me, Ordering::Relaxed);
            let once = action.sa_flags & libc::SA_RESETHAND != 0;
            if once {
                set_default(signal);
            }
            let mut mask = action.sa_mask;
            // SAFETY: the mask is that of an action; the thread's own is back when this handler returns.
            unsafe {
                if action.sa_flags & libc::SA_NODEFER == 0 {
                    libc::sigaddset(&mut mask, signal);
                }
                libc::pthread_sigmask(libc::SIG_BLOCK, &mask, null_mut());
            }
            if action.sa_flags & libc::SA_SIGINFO != 0 {
                // SAFETY: the action says that its handler takes three arguments.
                let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) =
                    unsafe { std::mem::transmute(handler) };
                handler(signal, info, context);
            } else {
                // SAFETY: the action says that its handler takes one argument.
                let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
                handler(signal);
            }
            before.runs.store(0, Ordering::Relaxed);
        }
    }
}

fn set_default(signal: c_int) {
    // SAFETY: a sigaction consists of integers, for which zero is valid: the default action.
    let default: sigaction = unsafe { std::mem::zeroed() };
    let _cannot_fail = act(signal, Some(&default));
}

/// The default action. A fault occurs again when the handler returns, with the registers that a core file should
/// have; a signal that was sent is sent again.
fn by_default(signal: c_int, raised: bool, info: *mut siginfo_t) {
    set_default(signal);
    if !raised {
        // SAFETY: plain system calls; the signal is queued to this thread with what it came with.
        unsafe {
            let (pid, thread) = (libc::getpid(), libc::gettid());
            if libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, thread, signal, info) != 0 {
                libc::raise(signal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::base_page;
    use crate::region::Region;
    use bellwire_core::guarded::{Fault, touch};

    /// A page that can be read only, and one that cannot be accessed behind it.
    fn pages() -> Region {
        let page = base_page();
        let region = Region::guarded(2 * page, page).unwrap();
        let start = region.start().as_ptr().cast();
        // SAFETY: within the region, which only this thread uses.
        unsafe {
            assert_eq!(libc::mprotect(start, page, libc::PROT_READ), 0);
            assert_eq!(
                libc::mprotect(start.byte_add(page), page, libc::PROT_NONE),
                0
            );
        }
        region
    }

    #[test]
    #[cfg_attr(any(miri, tsan), ignore = "without a handler")]
    fn a_fault_is_an_error_in_any_thread() {
        install().unwrap();
        let region = pages();
        let (start, page) = (region.start().as_ptr().expose_provenance(), base_page());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        // SAFETY: installed; within the region.
                        let touched = |at, write| unsafe {
                            touch(std::ptr::with_exposed_provenance_mut(start + at), write)
                        };
                        assert_eq!(touched(0, false), Ok(()));
                        assert_eq!(touched(0, true), Err(Fault));
                        assert_eq!(touched(page, false), Err(Fault));
                    }
                });
            }
        });
    }
}
