//! What a process holds of the system, and what of a fabric can be seen from outside.

use crate::fixture::DEADLINE;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

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

    /// Waits until a process holds nothing beside this. A thread that was joined is still listed for a
    /// moment: now, or when this was looked at.
    pub fn are_all_of(&self, pid: u32) {
        let start = Instant::now();
        loop {
            let now = Self::of(pid);
            if now.is_within(self) {
                return;
            }
            assert!(
                start.elapsed() < DEADLINE,
                "a device left something behind: {now:#?}, where there was {self:#?}"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether each of these is there too, as many times.
    fn is_within(&self, other: &Self) -> bool {
        fn within<T: PartialEq>(some: &[T], all: &[T]) -> bool {
            let count = |of: &[T], item: &T| of.iter().filter(|other| *other == item).count();
            some.iter()
                .all(|item| count(some, item) <= count(all, item))
        }
        within(&self.descriptors, &other.descriptors)
            && within(&self.mappings, &other.mappings)
            && within(&self.threads, &other.threads)
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
    memory(pid, "VmHWM:")
}

/// Bytes that a process has now.
pub fn memory_now(pid: u32) -> u64 {
    memory(pid, "VmRSS:")
}

fn memory(pid: u32, what: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix(what));
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
    /// Creates the folder, with a name from the fabric or the test.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn with(descriptors: &[&str]) -> Holdings {
        Holdings {
            descriptors: descriptors.iter().map(PathBuf::from).collect(),
            mappings: Vec::new(),
            threads: vec!["main".to_owned()],
        }
    }

    #[test]
    fn what_is_left_is_seen_however_often_it_was_there() {
        let before = with(&["/dev/null", "socket"]);
        assert!(before.is_within(&before) && with(&["socket"]).is_within(&before));
        assert!(!with(&["/dev/null", "/dev/null"]).is_within(&before));
        assert!(!with(&["/dev/null", "socket", "memfd"]).is_within(&before));
        let mut more = before.clone();
        more.threads.push("worker".to_owned());
        assert!(!more.is_within(&before));
    }
}
