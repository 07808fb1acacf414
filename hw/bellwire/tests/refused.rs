//! Set-up where a filter refuses one of its system calls after the other, as a sandbox may: what cannot do
//! without is an error and leaves nothing behind, and what was there before goes on.
//!
//! A filter is of one thread and those that it starts, so each step has a thread of its own.

mod common;
#[path = "../../../tests/src/refuse.rs"]
mod refuse;

use bellwire::connect::cm::{EventChannel, PortSpace};
use bellwire::connect::tcp::Listener;
use bellwire::link::{Link, LinkInit, pair};
use bellwire::memory::{Mapping, Pages};
use bellwire::soft::{HcaConfig, Mode};
use bellwire::{AccessFlags, Device, Pd, QpInit, Region};
use common::{DONE, There, child, soft, text};
use refuse::refuse;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

/// Far more than a thread takes to be gone.
const SOON: Duration = Duration::from_secs(10);

impl There {
    /// The step in a thread in which these calls are refused.
    fn step(&mut self, step: Step, calls: &[libc::c_long], errno: i32) -> Result<(), String> {
        let before = self.left();
        let done = thread::scope(|scope| {
            let filtered = scope.spawn(|| {
                refuse(calls, errno);
                let done = step(&self.pd);
                self.goes_on();
                done
            });
            filtered.join().unwrap()
        });
        self.goes_on();
        // A thread that was joined may be listed a little longer.
        let begun = Instant::now();
        while self.left() != before && begun.elapsed() < SOON {
            thread::yield_now();
        }
        assert_eq!(self.left(), before, "{done:?}");
        done
    }
}

type Step = fn(&Pd) -> Result<(), String>;

fn device(_: &Pd) -> Result<(), String> {
    soft(Mode::Inline).map(drop)
}

fn engine(_: &Pd) -> Result<(), String> {
    soft(Mode::Engine { threads: 3 }).map(drop)
}

fn node(_: &Pd) -> Result<(), String> {
    let name = format!("refused-{}", std::process::id());
    let node = Device::join(&name, HcaConfig::default());
    node.map(drop).map_err(text)
}

fn channel(pd: &Pd) -> Result<(), String> {
    pd.device().create_comp_channel().map(drop).map_err(text)
}

fn link(pd: &Pd) -> Result<(), String> {
    let init = LinkInit {
        waitable: true,
        ..LinkInit::default()
    };
    Link::new(pd, init, pair().0).map(drop).map_err(text)
}

fn listener(_: &Pd) -> Result<(), String> {
    Listener::bind(Some("127.0.0.1"), 0).map(drop).map_err(text)
}

fn cm(pd: &Pd) -> Result<(), String> {
    let channel = EventChannel::on(pd.device()).map_err(text)?;
    let id = channel.id(PortSpace::Tcp).map_err(text)?;
    id.bind(SocketAddr::from(([127, 0, 0, 1], 0)))
        .map_err(text)?;
    id.listen(1).map_err(text)
}

fn region(pd: &Pd) -> Result<(), String> {
    let mapping = Mapping::anonymous(1 << 20).pages(Pages::Base);
    let mapping = mapping.build().map_err(text)?;
    let region = Region::new(pd, mapping, AccessFlags::LOCAL_WRITE);
    region.map(drop).map_err(text)
}

fn locked(_: &Pd) -> Result<(), String> {
    let mapping = Mapping::anonymous(4096).pages(Pages::Base).lock(true);
    mapping.build().map(drop).map_err(text)
}

fn shared(_: &Pd) -> Result<(), String> {
    let mapping = Mapping::shared("refused", 4096).pages(Pages::Base);
    mapping.build().map(drop).map_err(text)
}

const STEPS: [(&str, Step); 10] = [
    ("device", device),
    ("engine", engine),
    ("node", node),
    ("channel", channel),
    ("link", link),
    ("listener", listener),
    ("cm", cm),
    ("region", region),
    ("locked", locked),
    ("shared", shared),
];

/// System calls, the error that they answer, and the steps that cannot do without them.
type Refusal = (&'static [libc::c_long], i32, &'static [&'static str]);

const REFUSALS: [Refusal; 9] = [
    (
        &[libc::SYS_mmap],
        libc::ENOMEM,
        // A device's table of memory keys is a mapping.
        &["device", "node", "region", "locked", "shared"],
    ),
    (&[libc::SYS_memfd_create], libc::EPERM, &["node", "shared"]),
    (
        &[libc::SYS_eventfd2],
        libc::EMFILE,
        &["device", "engine", "node", "channel", "link", "cm"],
    ),
    (
        &[libc::SYS_epoll_create1],
        libc::EMFILE,
        &["node", "link", "cm"],
    ),
    (
        &[libc::SYS_socket],
        libc::EPERM,
        &["node", "listener", "cm"],
    ),
    (
        &[libc::SYS_clone, libc::SYS_clone3],
        libc::EAGAIN,
        &["engine", "node"],
    ),
    // A link makes it when something has its time.
    (&[libc::SYS_timerfd_create], libc::EMFILE, &["cm"]),
    (&[libc::SYS_mlock], libc::EPERM, &["locked"]),
    (
        &[libc::SYS_madvise],
        libc::ENOMEM,
        &["region", "locked", "shared"],
    ),
];

#[test]
fn one_system_call_after_the_other() {
    if !child("one_system_call_after_the_other") {
        return;
    }
    let mut there = There::new(256, &QpInit::default());
    for (_, step) in STEPS {
        // What is made once for all.
        step(&there.pd).unwrap();
    }
    for (calls, errno, needing) in REFUSALS {
        for (what, step) in STEPS {
            // The standard library ends the process where a new thread cannot have its signal stack.
            if calls.contains(&libc::SYS_mmap) && what == "engine" {
                continue;
            }
            let done = there.step(step, calls, errno);
            let fails = needing.contains(&what);
            assert_eq!(done.is_err(), fails, "{calls:?} {what}: {done:?}");
            step(&there.pd).unwrap();
        }
    }
    println!("{DONE}");
}

/// What the kernel answered first is kept for the whole process.
#[test]
fn without_membarrier() {
    if !child("without_membarrier") {
        return;
    }
    refuse(&[libc::SYS_membarrier], libc::EPERM);
    let mut there = There::new(256, &QpInit::default());
    for (what, step) in STEPS {
        step(&there.pd).unwrap_or_else(|error| panic!("{what}: {error}"));
        there.goes_on();
    }
    println!("{DONE}");
}
