//! The data path makes no system call: it runs under a seccomp filter that kills for one.
//!
//! The filter cannot be taken off again, so each test runs this binary anew, for one test that does
//! nothing but what an environment variable says.

#![cfg(target_os = "linux")]

use bellwire::soft::Mode;
use bellwire::wqe::*;
use bellwire::wr::{SendFlags, WcStatus};
use bellwire_tests::fixture::*;
use bellwire_tests::links;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

const VARIABLE: &str = "BELLWIRE_TEST_UNDER_SECCOMP";

/// Kills the process at every system call of this thread but write and exit.
fn forbid_system_calls() {
    const ALLOWED: [libc::c_long; 4] = [
        libc::SYS_write,
        libc::SYS_exit,
        libc::SYS_exit_group,
        libc::SYS_rt_sigreturn,
    ];
    let statement = |code: u32, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    // The number stands first in seccomp_data.
    let mut program = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0)];
    for (at, number) in ALLOWED.iter().enumerate() {
        program.push(libc::sock_filter {
            // To the last statement, which allows.
            jt: (ALLOWED.len() - at) as u8,
            ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, *number as u32)
        });
    }
    let kill = libc::SECCOMP_RET_KILL_PROCESS;
    program.push(statement(libc::BPF_RET | libc::BPF_K, kill));
    program.push(statement(
        libc::BPF_RET | libc::BPF_K,
        libc::SECCOMP_RET_ALLOW,
    ));
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

/// 10,000 operations, each posted, rung and polled, on queue pairs.
fn operations(a: &mut End, b: &mut End) -> bool {
    let remote = b.region.remote(0);
    let mut good = true;
    for wr_id in 0..10_000u64 {
        match wr_id % 4 {
            0 => a.go(wr_id, RdmaWrite { remote }, Inline(&wr_id.to_ne_bytes())),
            1 => {
                b.receive(wr_id, &[b.region.sge(64, 4096)]);
                a.go(wr_id, Send {}, a.region.sge(0, 4096));
                good &= b.outcome() == (wr_id, WcStatus::Success);
            }
            2 => a.go(wr_id, RdmaRead { remote }, a.region.sge(8192, 500)),
            _ => {
                for _ in 0..31 {
                    let flags = SendFlags::empty();
                    good &= a.post(0, Nop {}, NoPayload, flags).is_ok();
                }
                a.go(
                    wr_id,
                    AtomicFetchAndAdd { remote, add: 1 },
                    a.region.sge(0, 8),
                );
            }
        }
        good &= a.outcome() == (wr_id, WcStatus::Success);
    }
    good
}

/// Does nothing, unless this process was started for it.
#[test]
fn under_the_filter() {
    let Ok(what) = std::env::var(VARIABLE) else {
        return;
    };
    let (mut a, mut b) = pair(Mode::Inline);
    let (mut c, mut d) = links::links();
    let mut of_links = || (0..10_000).all(|wr_id| links::operations(&mut c, &mut d, wr_id));
    let warm = operations(&mut a, &mut b) && of_links();
    forbid_system_calls();
    let good = warm && operations(&mut a, &mut b) && of_links();
    if what == "control" {
        // SAFETY: takes nothing and touches no memory.
        unsafe { libc::syscall(libc::SYS_getppid) };
    }
    // SAFETY: ends the process; nothing is left to be done.
    unsafe { libc::_exit(if good { 42 } else { 1 }) };
}

fn run(what: &str) -> ExitStatus {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "under_the_filter", "--test-threads=1"])
        .env(VARIABLE, what)
        // Its output is kept apart: the child ends without a summary, which would count as a failure.
        .output()
        .unwrap()
        .status
}

#[test]
fn post_ring_and_poll_make_no_system_call() {
    let status = run("data path");
    assert_eq!(status.code(), Some(42), "{status}");
}

#[test]
fn the_filter_kills_for_a_system_call() {
    let status = run("control");
    assert_eq!(status.signal(), Some(libc::SIGSYS), "{status}");
}
