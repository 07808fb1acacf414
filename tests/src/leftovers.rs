//! What a process holds of the system, and what of a fabric can be seen from outside.

use crate::fixture::until;
use std::fs;
use std::path::{Path, PathBuf};

/// What a process holds that a device may have asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holdings {
    descriptors: Vec<PathBuf>,
    /// Mappings of memory that has a descriptor.
    mappings: Vec<String>,
    threads: Vec<String>,
}

impl Holdings {
    /// What a process holds now.
    pub fn of(pid: u32) -> Self {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let entries = |what: &str| {
            let entries = fs::read_dir(process.join(what)).expect("a process");
            entries.map(|entry| entry.expect("an entry").path())
        };
        // What goes between the list and the look is not there.
        let mut descriptors: Vec<_> = entries("fd").flat_map(fs::read_link).collect();
        descriptors.sort();
        let maps = fs::read_to_string(process.join("maps")).expect("a process");
        let mappings = maps.lines().filter(|line| line.contains("memfd:"));
        let mut threads: Vec<_> = entries("task")
            .flat_map(|task| fs::read_to_string(task.join("comm")))
            .collect();
        threads.sort();
        Self {
            descriptors,
            mappings: mappings.map(str::to_owned).collect(),
            threads,
        }
    }

    /// Waits until a process holds just this; a thread that was joined is still listed for a moment.
    pub fn are_all_of(&self, pid: u32) {
        until(
            &format!("the end of what a device held, beside {self:#?},"),
            || {
                let now = Self::of(pid);
                let all = now == *self;
                if !all {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                all
            },
        );
    }

    /// Whether it holds everything that a node of a fabric needs.
    pub fn include_a_node(&self) -> bool {
        let named = |what: &str| self.descriptors.iter().any(|path| path.starts_with(what));
        named("anon_inode:[eventfd]")
            && self
                .mappings
                .iter()
                .any(|line| line.contains("memfd:bellwire"))
            && self.threads.iter().any(|name| name.starts_with("bellwire"))
    }
}

/// Bytes that a process has had at once, at the most.
pub fn most_memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    kib.expect("a size").parse::<u64>().expect("a number") << 10
}

/// Sockets whose address has this in it.
pub fn sockets(fabric: &str) -> Vec<String> {
    let all = fs::read_to_string("/proc/net/unix").expect("a list of sockets");
    let ours = all.lines().filter(|line| line.contains(fabric));
    ours.map(str::to_owned).collect()
}

/// Files that a fabric's processes have left behind.
pub fn files(home: &Path, fabric: &str) -> Vec<PathBuf> {
    let list = |folder: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).into_iter().flatten();
        entries.flatten().map(|entry| entry.path()).collect()
    };
    let mut files = list(home);
    for shared in ["/dev/shm", "/dev/mqueue", "/tmp"] {
        let mut named = list(Path::new(shared));
        named.retain(|path| path.to_string_lossy().contains(fabric) && path != home);
        files.append(&mut named);
    }
    files
}

/// A folder of its own for the processes of a fabric.
pub struct Home(pub PathBuf);

impl Home {
    /// One for this fabric, or test.
    pub fn new(fabric: &str) -> Self {
        let home = std::env::temp_dir().join(fabric);
        fs::create_dir(&home).expect("a folder for the children");
        Self(home)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.0);
    }
}
