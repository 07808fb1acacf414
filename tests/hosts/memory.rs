//! Memory that cannot be accessed, limits on it, and core files.

mod gone;

use crate::Area;
use bellwire::memory::{Mapping, MemoryError, Pages};
use bellwire::{AccessFlags, Device, Error, Pd, Region};
use bellwire_tests::child::Child;
use bellwire_tests::fixture::{ALL, device};
use std::fs;
use std::ptr::{NonNull, null_mut};

pub const AREA: Area = Area {
    roles: &[
        ("memory_fsize", small_files),
        ("memory_core", dumps),
        ("memory_target", gone::at_the_target),
        ("memory_home", gone::at_home),
        ("memory_receiver", gone::at_the_receiver),
        ("memory_outcomes", gone::each_has_one_outcome),
        ("memory_full", gone::full),
        ("memory_handlers", gone::other_faults_are_the_programs),
    ],
    tests: &[
        (
            "memory::registration_finds_the_first_bad_page",
            registration,
        ),
        (
            "memory::pages_that_come_on_demand_are_not_populated",
            on_demand,
        ),
        ("memory::a_limit_on_files_is_an_error", || {
            ends("memory_fsize")
        }),
        ("memory::core_files_leave_regions_out", core_flags),
        ("memory::a_core_file_is_small", || ends("memory_core")),
        ("memory::gone_at_the_target", || ends("memory_target")),
        ("memory::gone_at_home", || ends("memory_home")),
        ("memory::gone_at_the_receiver", || ends("memory_receiver")),
        ("memory::each_request_has_one_outcome", || {
            ends("memory_outcomes")
        }),
        ("memory::a_full_file_system", || ends("memory_full")),
        ("memory::other_faults_are_the_programs", || {
            ends("memory_handlers")
        }),
    ],
};

const PAGE: usize = 4096;

/// Plays a role to its end.
fn ends(role: &str) {
    let home = tempfile::tempdir().expect("a folder");
    Child::start(role, role.to_owned(), home.path()).end();
}

/// Private memory of the program, unmapped on drop.
pub struct Pages4K(pub NonNull<u8>, pub usize);

impl Pages4K {
    pub fn new(pages: usize, protection: i32) -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: new memory.
        let at = unsafe { libc::mmap(null_mut(), pages * PAGE, protection, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self(NonNull::new(at.cast()).expect("not null"), pages)
    }

    pub fn protect(&self, page: usize, protection: i32) {
        // SAFETY: within the memory, to which there are no references.
        let done =
            unsafe { libc::mprotect(self.0.add(page * PAGE).as_ptr().cast(), PAGE, protection) };
        assert_eq!(done, 0);
    }

    pub fn unmap(&self, page: usize) {
        // SAFETY: as above.
        let done = unsafe { libc::munmap(self.0.add(page * PAGE).as_ptr().cast(), PAGE) };
        assert_eq!(done, 0);
    }

    fn resident(&self) -> usize {
        let mut there = vec![0_u8; self.1];
        // SAFETY: the memory is mapped, and there is a byte for each page.
        let done =
            unsafe { libc::mincore(self.0.as_ptr().cast(), self.1 * PAGE, there.as_mut_ptr()) };
        assert_eq!(done, 0);
        there.iter().filter(|byte| *byte & 1 != 0).count()
    }
}

impl Drop for Pages4K {
    fn drop(&mut self) {
        // SAFETY: no longer used.
        unsafe { libc::munmap(self.0.as_ptr().cast(), self.1 * PAGE) };
    }
}

pub const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// The page that registration names, if it fails; from the start of the memory.
fn refused(
    pd: &Pd,
    memory: &Pages4K,
    from: usize,
    bytes: usize,
    access: AccessFlags,
) -> Option<(usize, bool)> {
    let start = memory.0.as_ptr().wrapping_add(from);
    // SAFETY: no request uses the memory.
    match unsafe { pd.register(NonNull::new(start).expect("not null"), bytes, access) } {
        Ok(_) => None,
        Err(Error::Memory(MemoryError::NoAccess {
            page,
            write,
            source,
        })) => {
            assert!(source.raw_os_error().is_some(), "{source}");
            Some(((page - memory.0.addr().get()) / PAGE, write))
        }
        Err(other) => panic!("{other}"),
    }
}

fn registration() {
    registration_on(&Device::soft(Default::default()));
    // The stand-in, if this program runs on it: the kernel's answer, and which page it is.
    if let Ok(device) = Device::open("mlx5_0") {
        registration_on(&device);
    }
}

fn registration_on(device: &Device) {
    let pd = device.alloc_pd();
    let local = AccessFlags::LOCAL_WRITE;
    let memory = Pages4K::new(64, RW);
    assert_eq!(refused(&pd, &memory, 0, 64 * PAGE, ALL), None);
    // Written by a peer, or by the device itself.
    memory.protect(41, libc::PROT_READ);
    assert_eq!(refused(&pd, &memory, 0, 64 * PAGE, ALL), Some((41, true)));
    assert_eq!(refused(&pd, &memory, 0, 64 * PAGE, local), Some((41, true)));
    assert_eq!(refused(&pd, &memory, 0, 41 * PAGE, local), None);
    assert_eq!(refused(&pd, &memory, 40 * PAGE + 1, PAGE - 1, local), None);
    assert_eq!(
        refused(&pd, &memory, 40 * PAGE + 1, PAGE, local),
        Some((41, true))
    );
    // Read only.
    let read = AccessFlags::REMOTE_READ;
    assert_eq!(refused(&pd, &memory, 0, 64 * PAGE, read), None);
    memory.protect(50, libc::PROT_NONE);
    assert_eq!(refused(&pd, &memory, 0, 64 * PAGE, read), Some((50, false)));
    memory.unmap(7);
    assert_eq!(refused(&pd, &memory, 0, 64 * PAGE, read), Some((7, false)));
    assert_eq!(refused(&pd, &memory, 0, 64 * PAGE, local), Some((7, true)));
    assert_eq!(refused(&pd, &memory, 8 * PAGE, PAGE, local), None);

    // Behind the end of a file.
    let file = tempfile::tempfile().expect("a file");
    file.set_len(3 * PAGE as u64).expect("a length");
    // SAFETY: new memory.
    let at = unsafe {
        use std::os::fd::AsRawFd;
        libc::mmap(
            null_mut(),
            8 * PAGE,
            RW,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    assert_ne!(at, libc::MAP_FAILED);
    let memory = Pages4K(NonNull::new(at.cast()).expect("not null"), 8);
    assert_eq!(refused(&pd, &memory, 0, 3 * PAGE, read), None);
    assert_eq!(refused(&pd, &memory, 0, 8 * PAGE, read), Some((3, false)));
}

fn on_demand() {
    let pd = device(Default::default()).alloc_pd();
    let sparse = Pages4K::new(64, RW);
    // SAFETY: no request uses the memory, here and below.
    let later = unsafe { pd.register(sparse.0, 64 * PAGE, ALL | AccessFlags::ON_DEMAND) };
    drop(later.expect("registered"));
    assert_eq!(sparse.resident(), 0);
    // SAFETY: as above.
    drop(unsafe { pd.register(sparse.0, 64 * PAGE, ALL) }.expect("registered"));
    assert_eq!(sparse.resident(), 64);
}

/// In a process with a limit of 1 MiB on files.
fn small_files() {
    let limit = libc::rlimit {
        rlim_cur: 1 << 20,
        rlim_max: 1 << 20,
    };
    // SAFETY: a plain system call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
    let kept = Mapping::shared("small", 1 << 20).pages(Pages::Base).build();
    assert!(kept.is_ok(), "{kept:?}");
    let names_it = |error: String| {
        assert!(
            error.contains("RLIMIT_FSIZE is 1 MiB") && error.contains("ulimit -f"),
            "{error}"
        );
    };
    for pages in [Pages::Auto, Pages::Base] {
        let refused = Mapping::shared("large", (1 << 20) + 1).pages(pages).build();
        names_it(refused.expect_err("a limit").to_string());
    }
    // A node's own memory, which its peers read.
    let node = Device::open("soft:memory-fsize");
    names_it(node.expect_err("a limit").to_string());
    // A device of this process alone has no shared memory.
    let pd = Device::open("soft").expect("a device").alloc_pd();
    let mapping = pd.device().mapping(8 << 20).build().expect("memory");
    Region::new(&pd, mapping, ALL).expect("a region");
}

/// The flags of the mapping at this address: see proc_pid_smaps(5).
fn flags(at: usize) -> String {
    let smaps = fs::read_to_string("/proc/self/smaps").expect("smaps");
    let mut here = false;
    for line in smaps.lines() {
        if let Some((from, rest)) = line.split_once('-')
            && let Ok(from) = usize::from_str_radix(from, 16)
            && let Some(to) = rest.split(' ').next()
            && let Ok(to) = usize::from_str_radix(to, 16)
        {
            here = (from..to).contains(&at);
        }
        if let (true, Some(flags)) = (here, line.strip_prefix("VmFlags:")) {
            return flags.to_owned();
        }
    }
    panic!("nothing at {at:#x}");
}

fn core_flags() {
    let left_out = |mapping: &Mapping| {
        let flags = flags(mapping.as_ptr().addr());
        flags.split(' ').any(|flag| flag == "dd")
    };
    for pages in [Pages::Base, Pages::Auto] {
        let mapping = Mapping::anonymous(4 << 20).pages(pages);
        assert!(left_out(&mapping.clone().build().expect("memory")));
        assert!(!left_out(
            &mapping.in_core_files(true).build().expect("memory")
        ));
        let shared = Mapping::shared("core", 4 << 20).pages(pages);
        let ours = shared.clone().build().expect("memory");
        assert!(left_out(&ours));
        let fd = ours
            .fd()
            .expect("shared")
            .try_clone_to_owned()
            .expect("a descriptor");
        assert!(left_out(&Mapping::from_fd(fd, ours.len()).expect("mapped")));
        assert!(!left_out(
            &shared.in_core_files(true).build().expect("memory")
        ));
    }
}

/// A child with 64 MiB of regions aborts where core files are written to its folder: the file has none of them.
fn dumps() {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if pattern.starts_with('|') || pattern.contains('/') {
        println!(
            "left out: core files do not go to the folder ({})",
            pattern.trim()
        );
        return;
    }
    let size = |in_core_files: bool| -> u64 {
        let folder = tempfile::tempdir().expect("a folder");
        let path = std::ffi::CString::new(folder.path().to_str().expect("UTF-8")).expect("no NUL");
        let pd = Device::soft(Default::default()).alloc_pd();
        let mapping = pd
            .device()
            .mapping(64 << 20)
            .pages(Pages::Base)
            .in_core_files(in_core_files);
        let region = Region::new(&pd, mapping.build().expect("memory"), ALL).expect("a region");
        region.write(0, &[1; 4096]);
        // SAFETY: the child makes system calls only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let all = libc::rlimit {
                rlim_cur: libc::RLIM_INFINITY,
                rlim_max: libc::RLIM_INFINITY,
            };
            // SAFETY: as above.
            unsafe {
                libc::setrlimit(libc::RLIMIT_CORE, &all);
                libc::chdir(path.as_ptr());
                libc::abort();
            }
        }
        let mut status = 0;
        // SAFETY: `status` is writable.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        let file = fs::read_dir(folder.path()).expect("a folder").next();
        let file = file.expect("a core file").expect("an entry");
        file.metadata().expect("metadata").len()
    };
    let (without, with) = (size(false), size(true));
    assert!(
        with - without >= 60 << 20,
        "{without} bytes without the region, {with} with it"
    );
}
