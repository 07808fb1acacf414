//! The limit on locked memory, in a process that really has one.
//!
//! The test runs its own program again, as a child with `RLIMIT_MEMLOCK` at 64 KiB and without
//! `CAP_IPC_LOCK`, which therefore bites root too.

use bellwire_memory::{Mapping, MemoryError, Pages, memlock_limit};
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

const CHILD: &str = "BELLWIRE_TEST_MEMLOCK_CHILD";
const LIMIT: u64 = 64 << 10;

#[test]
fn the_limit_is_reported_before_anything_is_mapped() {
    if std::env::var_os(CHILD).is_some() {
        return child();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "--exact",
            "the_limit_is_reported_before_anything_is_mapped",
            "--nocapture",
        ])
        .env(CHILD, "1");
    // SAFETY: the closure makes two system calls and no allocation, so it may run after fork.
    unsafe {
        command.pre_exec(|| {
            let limit = libc::rlimit {
                rlim_cur: LIMIT,
                rlim_max: LIMIT,
            };
            if libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            // Exec gives root what is in the bounding set. A user who may not change that set has no
            // such capability either, as the child checks.
            const CAP_IPC_LOCK: libc::c_ulong = 14;
            libc::prctl(libc::PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0);
            Ok(())
        });
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    assert!(text.contains("the child is done"), "{text}{errors}");
}

/// A field of `/proc/self/status`, in bytes.
fn status(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .unwrap();
    let kib: u64 = line
        .trim()
        .strip_suffix(" kB")
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    kib << 10
}

fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn child() {
    const BIG: usize = 128 << 20;
    assert_eq!(memlock_limit(), Some(LIMIT));
    let files = open_files();
    let size = status("VmSize:");

    for pages in [Pages::Auto, Pages::Base] {
        for builder in [Mapping::anonymous(BIG), Mapping::shared("big", BIG)] {
            let error = builder.pages(pages).lock(true).build().unwrap_err();
            assert_eq!(
                error.to_string(),
                "RLIMIT_MEMLOCK is 64 KiB, the region needs 128 MiB: raise it with `ulimit -l` or \
                 in /etc/security/limits.conf"
            );
        }
    }
    assert_eq!(open_files(), files);
    assert_eq!(status("VmLck:"), 0);
    assert!(
        status("VmSize:") < size + BIG as u64 / 2,
        "a region stays mapped"
    );
    assert!(
        status("VmPeak:") < size + BIG as u64 / 2,
        "a region was mapped before the check"
    );
    // Without locking the limit does not matter.
    assert_eq!(
        Mapping::anonymous(BIG)
            .pages(Pages::Base)
            .build()
            .unwrap()
            .len(),
        BIG
    );

    // Up to the limit, exactly, and what is locked counts.
    let lock = |len| {
        Mapping::anonymous(len)
            .pages(Pages::Base)
            .lock(true)
            .build()
    };
    let page = lock(1).unwrap();
    assert!(
        page.is_locked() && page.to_string().ends_with(", locked"),
        "{page}"
    );
    let used = page.len() as u64;
    assert_eq!(status("VmLck:"), used);
    match lock(LIMIT as usize) {
        Err(MemoryError::MemlockLimit {
            limit,
            locked,
            need,
        }) => {
            assert_eq!((limit, locked, need), (LIMIT, used, LIMIT));
        }
        other => panic!("{other:?}"),
    }
    let rest = lock((LIMIT - used) as usize).unwrap();
    assert_eq!(status("VmLck:"), LIMIT);
    drop((page, rest));
    assert_eq!(status("VmLck:"), 0);
    println!("the child is done");
}
