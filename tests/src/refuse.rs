//! System calls that the kernel refuses to this process, as in a sandbox.

/// Has these system calls of this thread, and of those that it starts, answer with an error.
///
/// # Panics
/// When the kernel has no such filters.
pub fn refuse(calls: &[libc::c_long], errno: i32) {
    let mut program = program(calls, errno);
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: plain calls; the program lives until they return.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &filter), 0);
    }
}

/// Likewise for each thread of this process, those included that run already.
///
/// # Panics
/// When the kernel has no such filters.
#[allow(dead_code, reason = "not each test uses it")]
pub fn refuse_everywhere(calls: &[libc::c_long], errno: i32) {
    let mut program = program(calls, errno);
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    let (mode, flag) = (
        libc::SECCOMP_SET_MODE_FILTER,
        libc::SECCOMP_FILTER_FLAG_TSYNC,
    );
    // SAFETY: plain calls; the program lives until they return.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::syscall(libc::SYS_seccomp, mode, flag, &filter), 0);
    }
}

fn program(calls: &[libc::c_long], errno: i32) -> Vec<libc::sock_filter> {
    let statement = |code: u32, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    // The number stands first in seccomp_data.
    let mut program = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0)];
    for (at, number) in calls.iter().enumerate() {
        program.push(libc::sock_filter {
            // To the last statement, which refuses.
            jt: (calls.len() - at) as u8,
            ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, *number as u32)
        });
    }
    let answer = libc::BPF_RET | libc::BPF_K;
    program.push(statement(answer, libc::SECCOMP_RET_ALLOW));
    program.push(statement(answer, libc::SECCOMP_RET_ERRNO | errno as u32));
    program
}
