//! Where in the code memory was refused, as far as addr2line(1) can tell.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;

/// Folders and files of the standard library that end the process without memory, because they have no call that
/// returns an error. `docs/bounds.md` has the bound of each.
const CANNOT_FAIL: [(&str, &str); 3] = [
    ("alloc/src/sync.rs", "Arc"),
    ("alloc/src/collections/btree/", "B-tree"),
    ("std/src/thread/", "thread"),
];

/// The functions and lines of some addresses: the innermost inlined function first.
#[derive(Default)]
pub struct Places(BTreeMap<usize, Vec<(String, String)>>);

impl Places {
    /// Looks up all addresses of the stacks in one call, because a call reads all of the program's debug information.
    pub fn of<'a>(stacks: impl Iterator<Item = &'a [usize]>) -> Self {
        let mut places: BTreeMap<usize, Vec<_>> =
            stacks.flatten().map(|&at| (at, Vec::new())).collect();
        if places.is_empty() {
            return Self(places);
        }
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let base = maps.split('-').next().unwrap_or_default();
        let base = usize::from_str_radix(base, 16).unwrap_or(0);
        let mut command = Command::new("addr2line");
        let program = std::env::current_exe().expect("a path");
        command.args(["-a", "-f", "-C", "-i", "-e"]).arg(program);
        // The calls are before the addresses to which they return.
        command.args(
            places
                .keys()
                .map(|at| format!("{:#x}", at.wrapping_sub(base + 1))),
        );
        let output = command
            .output()
            .expect("addr2line, of the package binutils");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut lines = text.lines().peekable();
        for place in places.values_mut() {
            lines.next();
            while let Some(function) = lines.next_if(|line| !line.starts_with("0x")) {
                let line = lines.next().unwrap_or_default();
                place.push((function.to_owned(), line.to_owned()));
            }
        }
        Self(places)
    }

    /// Whether the program has line numbers: an optimized one has none, and its stacks name no functions.
    /// Under AddressSanitizer it has them, but each of the processes takes too long.
    pub fn have_lines() -> bool {
        let here = Self::have_lines as *const () as usize + 1;
        let places = Self::of([&[here][..]].into_iter());
        let named = places
            .0
            .values()
            .flatten()
            .any(|(_, line)| line.contains("places.rs"));
        named && std::env::var_os("ASAN_OPTIONS").is_none()
    }

    fn frames(&self, stack: &[usize]) -> impl Iterator<Item = &(String, String)> {
        let all = stack.iter().filter_map(|at| self.0.get(at)).flatten();
        all.filter(|(_, line)| !line.contains("/allocations/refusing.rs") && !line.starts_with('?'))
    }

    /// The part of the standard library that needed the memory, if that part has no call that returns an error.
    pub fn cannot_fail(&self, stack: &[usize]) -> Option<&'static str> {
        let library = self
            .frames(stack)
            .take_while(|(_, line)| line.starts_with("/rustc"));
        let names = library
            .flat_map(|(_, line)| CANNOT_FAIL.iter().filter(|(part, _)| line.contains(part)));
        names.map(|&(_, name)| name).last()
    }

    /// The callers outside of the standard library.
    pub fn callers(&self, stack: &[usize]) -> String {
        let ours = self.frames(stack).filter(|(_, line)| {
            line.contains("/hw/") || line.contains("/core/") || line.contains("scenarios.rs")
        });
        ours.fold(String::new(), |mut text, (_, line)| {
            let _ = writeln!(text, "{line}");
            text
        })
    }
}
