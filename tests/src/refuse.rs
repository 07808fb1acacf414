//! System calls that the kernel refuses to this process, as in a sandbox.

/// Has these system calls of this thread, and of those that it starts, answer with an error.
///
/// # Panics
/// When the kernel has no such filters.
pub fn refuse(calls: &[libc::c_long], errno: i32) {
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
