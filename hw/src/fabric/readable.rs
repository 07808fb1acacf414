//! Whether the kernel lets other processes of this user read this one's memory.

use rustix::process::{DumpableBehavior, dumpable_behavior};
use std::fs;

/// Why processes of this user cannot read this one's memory by process_vm_readv(2), and what would help;
/// `None`: they can (ptrace(2), "Ptrace access mode checking").
pub(crate) fn unreadable() -> Option<&'static str> {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let dumpable = dumpable_behavior().is_ok_and(|is| is == DumpableBehavior::Dumpable);
    // The peers are the same user's: what this process may do they may as well.
    why_not(scope.as_deref(), may_trace_all(&status), dumpable)
}

/// Whether CAP_SYS_PTRACE is in effect, as /proc/PID/status says.
fn may_trace_all(status: &str) -> bool {
    const CAP_SYS_PTRACE: u32 = 19;
    let effective = (status.lines())
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    effective.is_some_and(|bits| bits >> CAP_SYS_PTRACE & 1 != 0)
}

/// `scope`: what Yama says, where it is part of the kernel.
fn why_not(scope: Option<&str>, may_trace_all: bool, dumpable: bool) -> Option<&'static str> {
    match scope.map(str::trim) {
        Some("3") => {
            Some("kernel.yama.ptrace_scope is 3, which allows it to nobody until a reboot")
        }
        _ if may_trace_all => None,
        Some("1" | "2") => {
            Some("kernel.yama.ptrace_scope is not 0 (`sysctl kernel.yama.ptrace_scope=0`)")
        }
        _ if !dumpable => Some("the process is not dumpable (PR_SET_DUMPABLE of prctl(2))"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yama_and_dumpable_decide() {
        for (scope, may_trace_all, dumpable, readable) in [
            (None, false, true, true),
            (None, false, false, false),
            (None, true, false, true),
            (Some("0\n"), false, true, true),
            (Some("1\n"), false, true, false),
            (Some("1\n"), true, true, true),
            (Some("2"), false, true, false),
            (Some("2"), true, true, true),
            (Some("3"), true, true, false),
        ] {
            let why = why_not(scope, may_trace_all, dumpable);
            assert_eq!(
                why.is_none(),
                readable,
                "{scope:?} {may_trace_all} {dumpable}"
            );
        }
    }

    #[test]
    fn capabilities_are_found() {
        let status = |bits: &str| format!("Name:\tx\nCapPrm:\t0000000000080000\nCapEff:\t{bits}\n");
        assert!(may_trace_all(&status("0000000000080000")));
        assert!(!may_trace_all(&status("000001fffff7ffff")));
        assert!(!may_trace_all(""));
    }

    #[test]
    fn what_is_said_is_so() {
        let (ours, mut copy) = ([7u8; 16], [0u8; 16]);
        let parent = std::process::id() as i32;
        let local = libc::iovec {
            iov_base: copy.as_mut_ptr().cast(),
            iov_len: 16,
        };
        let remote = libc::iovec {
            iov_base: ours.as_ptr().cast_mut().cast(),
            iov_len: 16,
        };
        // SAFETY: the child makes system calls only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: `copy` is the child's own; what the other address means is the kernel's to find
            // out.
            unsafe {
                let got = libc::process_vm_readv(parent, &local, 1, &remote, 1, 0);
                libc::_exit(i32::from(got != 16));
            }
        }
        let mut status = 0;
        // SAFETY: our child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(libc::WEXITSTATUS(status) == 0, unreadable().is_none());
    }
}
