//! Memory that the program unmaps, protects or truncates after it was registered: each request that accesses it fails
//! with the status that a device reports, at either end, and no process ends.

use super::{PAGE, Pages4K, RW};
use bellwire::memory::fault;
use bellwire::soft::Mode;
use bellwire::wqe::{
    AtomicCmpAndSwp, AtomicFetchAndAdd, Inline, RdmaRead, RdmaWrite, RdmaWriteWithImm, Send,
};
use bellwire::wr::{Remote, Sge, WcStatus};
use bellwire::{ConnectAttr, Mr};
use bellwire_tests::fixture::{
    ALL, ENGINE, End, connect_with, device, fabric_name, init, node, until,
};
use std::os::fd::AsRawFd;
use std::ptr::{NonNull, null_mut};

/// How memory goes away.
#[derive(Clone, Copy, Debug)]
enum Gone {
    /// A page is protected against everything.
    Protected,
    /// A page is no longer mapped.
    Unmapped,
    /// The file behind it is shorter.
    Truncated,
}

/// Two pages that are registered, of which the second one goes away.
struct Memory {
    mr: Mr,
    pages: Pages4K,
    file: std::fs::File,
}

impl Memory {
    fn new(end: &End, gone: Gone) -> Self {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(2 * PAGE as u64).expect("a length");
        let pages = match gone {
            Gone::Protected | Gone::Unmapped => Pages4K::new(2, RW),
            Gone::Truncated => {
                let fd = file.as_raw_fd();
                // SAFETY: new memory.
                let at = unsafe { libc::mmap(null_mut(), 2 * PAGE, RW, libc::MAP_SHARED, fd, 0) };
                assert_ne!(at, libc::MAP_FAILED);
                Pages4K(NonNull::new(at.cast()).expect("not null"), 2)
            }
        };
        // SAFETY: it stays until the registration goes, but for what this test is about.
        let mr = unsafe { end.qp.pd().register(pages.0, 2 * PAGE, ALL) }.expect("a region");
        match gone {
            Gone::Protected => pages.protect(1, libc::PROT_NONE),
            Gone::Unmapped => pages.unmap(1),
            Gone::Truncated => file.set_len(PAGE as u64).expect("a length"),
        }
        Self { mr, pages, file }
    }

    fn sge(&self, offset: usize, length: u32) -> Sge {
        Sge {
            addr: self.mr.addr() + offset as u64,
            length,
            lkey: self.mr.lkey(),
        }
    }

    fn remote(&self, offset: usize) -> Remote {
        Remote {
            addr: self.mr.addr() + offset as u64,
            rkey: self.mr.rkey(),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // The registration goes before the memory; both are still there.
        let _ = (&self.pages, &self.file);
    }
}

/// Where the ends are.
#[derive(Clone, Copy, Debug, PartialEq)]
enum World {
    Inline,
    Engine,
    /// On two nodes of a fabric, whose memory the other one does not map.
    Nodes,
}

impl World {
    fn pair(self) -> (End, End) {
        let (devices, mode) = match self {
            Self::Inline | Self::Engine => {
                let mode = if self == Self::Inline {
                    Mode::Inline
                } else {
                    ENGINE
                };
                let device = device(mode);
                ([device.clone(), device], mode)
            }
            Self::Nodes => {
                let name = fabric_name();
                ([(); 2].map(|()| node(&name, Mode::Inline)), Mode::Inline)
            }
        };
        let [mut a, mut b] = devices.map(|device| End::new(&device.alloc_pd(), mode, &init()));
        let attr = ConnectAttr {
            timeout: 10,
            ..ConnectAttr::default()
        };
        connect_with(&mut a.qp, &mut b.qp, &attr);
        (a, b)
    }
}

/// The next outcome of `a`, while both are polled.
fn outcome(a: &mut End, b: &mut End) -> (u64, WcStatus) {
    let mut found = None;
    until("a completion", || {
        assert!(
            b.cq.poll_one().is_none(),
            "the other end reports something first"
        );
        found = a.cq.poll_one().map(|done| (done.wr_id, done.status()));
        found.is_some()
    });
    found.expect("found")
}

/// The outcomes of both ends.
fn outcomes(a: &mut End, b: &mut End) -> [(u64, WcStatus); 2] {
    let mut found = [None; 2];
    until("two completions", || {
        for (end, found) in [&mut *a, &mut *b].into_iter().zip(&mut found) {
            if found.is_none() {
                *found = end.cq.poll_one().map(|done| (done.wr_id, done.status()));
            }
        }
        found.iter().all(Option::is_some)
    });
    found.map(|found| found.expect("found"))
}

fn is_remote(status: WcStatus, what: &str) {
    let remote = matches!(status, WcStatus::RemAccessErr | WcStatus::RemOpErr);
    assert!(remote, "{what}: {status:?}");
}

/// Bytes that begin in the page that is there and end in the one that is gone, or lie in the latter.
const PLACES: [(usize, u32); 6] = [
    (PAGE, 8),
    (PAGE + 24, 24),
    (PAGE - 4, 12),
    (PAGE + 64, 200),
    (PAGE - 100, 3000),
    (0, 2 * PAGE as u32),
];

fn each(mut test: impl FnMut(World, Gone, &str)) {
    if fault::install().is_err() {
        println!("left out: without a handler of faults");
        return;
    }
    for world in [World::Inline, World::Engine, World::Nodes] {
        for gone in [Gone::Protected, Gone::Unmapped, Gone::Truncated] {
            test(world, gone, &format!("{world:?}, {gone:?}"));
        }
    }
}

/// One-sided operations on memory of the responder's.
pub fn at_the_target() {
    each(|world, gone, what| {
        for (offset, length) in PLACES {
            let what = format!("{what}, {length} bytes at {offset}");
            for kind in 0..4 {
                let (mut a, mut b) = world.pair();
                let memory = Memory::new(&b, gone);
                let (remote, local) = (memory.remote(offset), a.region.sge(0, length));
                let bytes = [7; 200];
                match kind {
                    0 => a.go(1, RdmaWrite { remote }, local),
                    1 => a.go(1, RdmaRead { remote }, local),
                    2 => {
                        b.receive(9, &[]);
                        let imm = 5.into();
                        a.go(1, RdmaWriteWithImm { remote, imm }, local);
                    }
                    _ if length as usize > bytes.len() => continue,
                    _ => a.go(1, RdmaWrite { remote }, Inline(&bytes[..length as usize])),
                }
                let status = match kind {
                    // The receive is flushed, whichever is reported first.
                    2 => outcomes(&mut a, &mut b)[0].1,
                    _ => outcome(&mut a, &mut b).1,
                };
                is_remote(status, &format!("{what}, {kind}"));
            }
        }
        for swap in [false, true] {
            let (mut a, mut b) = world.pair();
            let memory = Memory::new(&b, gone);
            let (remote, result) = (memory.remote(PAGE + 8), a.region.sge(0, 8));
            match swap {
                false => a.go(1, AtomicFetchAndAdd { remote, add: 1 }, result),
                true => {
                    let (compare, swap) = (0, 1);
                    a.go(
                        1,
                        AtomicCmpAndSwp {
                            remote,
                            compare,
                            swap,
                        },
                        result,
                    );
                }
            }
            is_remote(outcome(&mut a, &mut b).1, what);
        }
    });
}

/// Memory of the requester's own.
pub fn at_home() {
    each(|world, gone, what| {
        for (offset, length) in PLACES {
            for kind in 0..4 {
                let what = format!("{what}, {length} bytes at {offset}, {kind}");
                let (mut a, mut b) = world.pair();
                let memory = Memory::new(&a, gone);
                let (remote, local) = (b.region.remote(0), memory.sge(offset, length));
                match kind {
                    0 => a.go(1, RdmaWrite { remote }, local),
                    1 => a.go(1, RdmaRead { remote }, local),
                    2 => {
                        b.receive(9, &[b.region.sge(0, length)]);
                        a.go(1, Send {}, local);
                    }
                    _ if length != 8 => continue,
                    _ => a.go(1, AtomicFetchAndAdd { remote, add: 1 }, local),
                }
                assert_eq!(outcome(&mut a, &mut b), (1, WcStatus::LocProtErr), "{what}");
            }
        }
    });
}

/// Memory of a receive.
pub fn at_the_receiver() {
    each(|world, gone, what| {
        for (offset, length) in PLACES {
            let what = format!("{what}, {length} bytes at {offset}");
            let (mut a, mut b) = world.pair();
            let memory = Memory::new(&b, gone);
            b.receive(9, &[memory.sge(offset, length)]);
            a.go(1, Send {}, a.region.sge(0, length));
            let [sent, received] = outcomes(&mut a, &mut b);
            assert_eq!(received, (9, WcStatus::LocProtErr), "{what}");
            // A short message is in the completion of the receive, and the poll places it.
            if sent.1 != WcStatus::Success {
                is_remote(sent.1, &what);
            } else {
                assert!(length <= 32, "{what}");
            }
        }
    });
}

/// The requests behind the one that fails are flushed, each once, and the queue pairs work again after a reset.
pub fn each_has_one_outcome() {
    each(|world, gone, what| {
        let (mut a, mut b) = world.pair();
        let memory = Memory::new(&b, gone);
        let good = b.region.remote(0);
        for wr_id in 1..=8 {
            let remote = if wr_id == 4 {
                memory.remote(PAGE)
            } else {
                good
            };
            let local = a.region.sge(0, 64);
            (a.post(
                wr_id,
                RdmaWrite { remote },
                local,
                bellwire_tests::fixture::SIGNALED,
            ))
            .expect("room");
        }
        a.qp.sq().ring();
        for wr_id in 1..=8 {
            let (id, status) = outcome(&mut a, &mut b);
            assert_eq!(id, wr_id, "{what}");
            match wr_id {
                1..=3 => assert_eq!(status, WcStatus::Success, "{what}"),
                4 => is_remote(status, what),
                _ => assert_eq!(status, WcStatus::WrFlushErr, "{what}"),
            }
        }
        a.nothing();
        a.reset();
        b.reset();
        connect_with(&mut a.qp, &mut b.qp, &ConnectAttr::default());
        a.go(20, RdmaWrite { remote: good }, a.region.sge(0, 64));
        assert_eq!(outcome(&mut a, &mut b), (20, WcStatus::Success), "{what}");
    });
}

/// A fault that is not the library's goes to the handler that the program had, or has installed since.
pub fn other_faults_are_the_programs() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static SEEN: AtomicUsize = AtomicUsize::new(0);
    static PAGE_TO_OPEN: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn open(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        SEEN.fetch_add(1, Ordering::Relaxed);
        let page = PAGE_TO_OPEN.load(Ordering::Relaxed);
        // SAFETY: the kernel passes the information; the page is one of the test's.
        unsafe {
            assert_eq!((*info).si_addr().addr(), page);
            assert_eq!(
                libc::mprotect(std::ptr::with_exposed_provenance_mut(page), PAGE, RW),
                0
            );
        }
    }
    let installs = || {
        // SAFETY: a sigaction consists of integers, for which zero is valid; the handler takes three arguments.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = open as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGSEGV, &action, null_mut()), 0);
        }
    };
    installs();
    for round in 1..=3 {
        // The library's is on top from here on: registering memory puts it there.
        let (mut a, mut b) = World::Inline.pair();
        let memory = Memory::new(&b, Gone::Protected);
        let own = Pages4K::new(1, libc::PROT_NONE);
        PAGE_TO_OPEN.store(own.0.as_ptr().expose_provenance(), Ordering::Relaxed);
        // SAFETY: the handler opens the page.
        unsafe { own.0.as_ptr().write_volatile(1) };
        assert_eq!(SEEN.load(Ordering::Relaxed), round);
        a.go(
            1,
            RdmaWrite {
                remote: memory.remote(PAGE),
            },
            a.region.sge(0, 8),
        );
        is_remote(outcome(&mut a, &mut b).1, "with a handler of the program's");
        assert_eq!(SEEN.load(Ordering::Relaxed), round);
        installs();
    }
}

/// A sparse file on a file system that is full, in a mount namespace of this process's own.
pub fn full() {
    let home = tempfile::tempdir().expect("a folder");
    let path = std::ffi::CString::new(home.path().to_str().expect("UTF-8")).expect("no NUL");
    // SAFETY: system calls with C strings; this process has one thread.
    let mounted = unsafe {
        let (none, tmpfs, size) = (c"none".as_ptr(), c"tmpfs".as_ptr(), c"size=64k".as_ptr());
        let private = libc::MS_REC | libc::MS_PRIVATE;
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(none, c"/".as_ptr(), null_mut(), private, null_mut()) == 0
            && libc::mount(tmpfs, path.as_ptr(), tmpfs, 0, size.cast()) == 0
    };
    if !mounted {
        println!(
            "left out: cannot mount ({})",
            std::io::Error::last_os_error()
        );
        return;
    }
    let file = std::fs::File::options();
    let file = { file }
        .read(true)
        .write(true)
        .create(true)
        .open(home.path().join("sparse"));
    let file = file.expect("a file");
    file.set_len(64 * PAGE as u64).expect("a length");
    // SAFETY: new memory.
    let at = unsafe {
        libc::mmap(
            null_mut(),
            64 * PAGE,
            RW,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    assert_ne!(at, libc::MAP_FAILED);
    let pages = Pages4K(NonNull::new(at.cast()).expect("not null"), 64);
    let (mut a, mut b) = World::Inline.pair();
    // SAFETY: the memory stays until the registration goes.
    let register = |access| unsafe { b.qp.pd().register(pages.0, 64 * PAGE, access) };
    let refused = register(ALL).expect_err("a full file system").to_string();
    assert!(refused.contains("cannot be written"), "{refused}");
    let mr = register(ALL | bellwire::AccessFlags::ON_DEMAND).expect("a region");
    let remote = Remote {
        addr: mr.addr() + 60 * PAGE as u64,
        rkey: mr.rkey(),
    };
    a.go(1, RdmaWrite { remote }, a.region.sge(0, 64));
    is_remote(outcome(&mut a, &mut b).1, "a full file system");
}
