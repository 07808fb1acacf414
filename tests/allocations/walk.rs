//! Each n in a child, because a refusal that is not handled ends its process.

use crate::places::Places;
use crate::refusing::{self, Refuse};
use crate::scenarios::{self, Scenario};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicI32, Ordering};

/// Pieces of memory of as many bytes, and larger ones, are refused with an error: `bellwire_provider::pinned::SMALL`.
pub const SMALL: usize = 2048;

/// What a process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holdings {
    bytes: isize,
    descriptors: isize,
    threads: isize,
    mappings: isize,
}

impl Holdings {
    fn now() -> Self {
        let count = |folder: &str| fs::read_dir(folder).expect("a process").count() as isize;
        let maps = fs::read_to_string("/proc/self/maps").expect("a process");
        let mappings = maps.lines().filter(|line| line.contains("memfd:")).count();
        drop(maps);
        Self {
            bytes: refusing::used() as isize,
            descriptors: count("/proc/self/fd"),
            threads: count("/proc/self/task"),
            mappings: mappings as isize,
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            bytes: self.bytes - before.bytes,
            descriptors: self.descriptors - before.descriptors,
            threads: self.threads - before.threads,
            mappings: self.mappings - before.mappings,
        }
    }
}

/// Where a child writes.
static OUT: AtomicI32 = AtomicI32::new(-1);

fn say(text: &str) {
    // Relaxed: set by the same thread, or before the other one was started.
    let fd = OUT.load(Ordering::Relaxed);
    // SAFETY: the text lives until the call returns.
    unsafe { libc::write(fd, text.as_ptr().cast(), text.len()) };
}

/// Says what was refused, and to whom.
fn say_refused() {
    let (size, stack) = refusing::refused();
    for frame in stack {
        say(&format!("@{frame}\n"));
    }
    say(&format!("#{size}\n"));
}

extern "C" fn aborted(_: i32) {
    refusing::disarm();
    say_refused();
    // SAFETY: ends the process.
    unsafe { libc::_exit(ABORTED) };
}

/// The exit code of a child that was to abort.
const ABORTED: i32 = 134;

/// Plays the scenario twice, the first time with a refusal.
fn play(scenario: Scenario, refuse: Option<Refuse>, out: RawFd) -> ! {
    OUT.store(out, Ordering::Relaxed);
    // SAFETY: plain calls; the handler lives for ever. Standard error is of no interest.
    unsafe {
        libc::signal(libc::SIGABRT, aborted as *const () as usize);
        libc::alarm(300);
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_WRONLY);
        libc::dup2(null, 2);
        libc::close(null);
    }
    scenarios::fabric();
    let before = Holdings::now();
    if let Some(refuse) = refuse {
        refusing::arm(refuse);
    }
    let done = catch_unwind(scenario);
    let refused = refusing::disarm();
    match &done {
        Ok(Ok(())) => say("done\n"),
        Ok(Err(error)) => say(&format!("error: {error}\n")),
        Err(_) => say("panic\n"),
    }
    if refused {
        say_refused();
    }
    drop(done);
    let again = scenario();
    say(&format!("again: {again:?}\n"));
    drop(again);
    say(&format!("left: {:?}\n", Holdings::now().since(before)));
    // SAFETY: ends the process.
    unsafe { libc::_exit(0) };
}

/// What became of a child.
#[derive(Debug, Default)]
struct End {
    /// Of wait(2).
    status: i32,
    first: String,
    again: String,
    left: String,
    /// The size of what was refused; zero: nothing was.
    size: usize,
    stack: Vec<usize>,
}

/// A child, and what it says.
struct Running(libc::pid_t, File);

fn start(scenario: Scenario, refuse: Option<Refuse>) -> Running {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors; this process has one thread, which alone goes on in the child.
    let child = unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        libc::fork()
    };
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        play(scenario, refuse, ends[1]);
    }
    // SAFETY: both are new.
    let [read, write] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    drop(write);
    Running(child, read.into())
}

fn run(scenario: Scenario, refuse: Option<Refuse>) -> End {
    end_of(start(scenario, refuse))
}

fn end_of(Running(child, mut said): Running) -> End {
    let mut text = String::new();
    let whole = said.read_to_string(&mut text);
    whole.expect("what the child says");
    let mut end = End::default();
    // SAFETY: the child was not waited for.
    let waited = unsafe { libc::waitpid(child, &mut end.status, 0) };
    assert_eq!(waited, child);
    for line in text.lines() {
        let number = |digits: &str| digits.parse().expect("a number");
        if let Some(frame) = line.strip_prefix('@') {
            end.stack.push(number(frame));
        } else if let Some(size) = line.strip_prefix('#') {
            end.size = number(size);
        } else if let Some(again) = line.strip_prefix("again: ") {
            end.again = again.to_owned();
        } else if let Some(left) = line.strip_prefix("left: ") {
            end.left = left.to_owned();
        } else {
            end.first = line.to_owned();
        }
    }
    end
}

impl End {
    /// What is wrong about it, where nothing is left of a process that was refused nothing but this.
    fn wrong(&self, well: &str) -> Option<String> {
        Some(match () {
            () if self.status == ABORTED << 8 => "the process aborts".to_owned(),
            () if self.status == libc::SIGALRM => "it hangs".to_owned(),
            () if self.status != 0 => format!("it ends with status {:#x}", self.status),
            () if self.first == "panic" => "it panics".to_owned(),
            () if self.again != "Ok(())" => format!("afterwards: {}", self.again),
            () if self.left != well => format!("it leaves {}, not {well}", self.left),
            () => return None,
        })
    }
}

/// Children that run at a time, most of which wait for a peer.
const AT_A_TIME: usize = 8;

/// More than any scenario has allocations of this size.
const MOST: usize = 5000;

/// Refuses the n-th allocation of at least so many bytes, for every n; then the n-th that is not small, and all
/// such behind it.
pub fn walk(name: &str, least: usize, scenario: Scenario) {
    let well = run(scenario, None);
    assert_eq!(
        (well.first.as_str(), well.again.as_str()),
        ("done", "Ok(())"),
        "{well:?}"
    );
    let mut wrong = Vec::new();
    for (from_there, least) in [(false, least), (true, SMALL)] {
        let (mut errors, mut count) = (0, 0);
        let mut running = VecDeque::new();
        let mut refused = (0..).map(|index| Refuse {
            index,
            from_there,
            least,
        });
        loop {
            while running.len() < AT_A_TIME {
                let refuse = refused.next().expect("without end");
                running.push_back((refuse, start(scenario, Some(refuse))));
            }
            let (refuse, child) = running.pop_front().expect("started");
            let end = end_of(child);
            if end.size == 0 && end.status == 0 {
                if end.first == "done" {
                    break;
                }
                // Beside a heavy load a link may have given its peer up before: the next one goes on.
                assert!(count < MOST, "{name}: {end:?}");
            }
            errors += usize::from(end.first.starts_with("error"));
            if let Some(what) = end.wrong(&well.left) {
                wrong.push((format!("{refuse:?}: {what}"), end));
            }
            count += 1;
        }
        running
            .into_iter()
            .for_each(|(_, child)| drop(end_of(child)));
        println!("{name}: {count} refused, {errors} errors; all behind refused, too: {from_there}");
        assert_ne!(errors, 0, "nothing is refused");
    }
    let places = Places::of(wrong.iter().map(|(_, end)| &*end.stack));
    let mut excused = BTreeMap::new();
    wrong.retain(|(_, end)| {
        let library = places.cannot_fail(&end.stack);
        let library = library.filter(|_| end.status == ABORTED << 8 && end.size < SMALL);
        library
            .map(|name| *excused.entry(name).or_insert(0) += 1)
            .is_none()
    });
    println!("{name}: the standard library aborts: {excused:?}");
    let mut text = String::new();
    for (what, end) in &wrong {
        let callers = places.callers(&end.stack);
        let _ = writeln!(text, "{what}: {} bytes are refused to\n{callers}", end.size);
    }
    assert!(wrong.is_empty(), "{text}");
}
