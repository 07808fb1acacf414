//! Set-up where the system has no more memory, descriptors or threads: each step is an error, leaves
//! nothing behind, and what was there before goes on.
//!
//! The test runs its own program again for each limit, as a child that lowers it before a step and
//! raises it again behind.

mod common;

use bellwire::link::{LinkSet, LinkSetInit};
use bellwire::memory::{Mapping, Pages};
use bellwire::soft::{HcaConfig, Mode};
use bellwire::{AccessFlags, ClassLayout, Device, Pd, QpInit, Region, Slab, SrqInit};
use common::{DONE, There, base, child, count, soft, text};
use std::{fs, mem};

/// A user that has no other processes: those of root may have as many threads as they like.
const NOBODY_ELSE: libc::uid_t = 61_234;

fn limit_to(resource: libc::__rlimit_resource_t, soft: u64) -> u64 {
    // SAFETY: rlimit is plain numbers, for which zero is a value.
    let mut limit: libc::rlimit = unsafe { mem::zeroed() };
    // SAFETY: a valid place for the answer, and a valid question.
    unsafe {
        assert_eq!(libc::getrlimit(resource, &mut limit), 0);
        let before = mem::replace(&mut limit.rlim_cur, soft.min(limit.rlim_max));
        assert_eq!(libc::setrlimit(resource, &limit), 0);
        before
    }
}

/// Address space in use, in bytes.
fn size() -> u64 {
    let text = fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096
}

impl There {
    /// The step fails under the limit, and not without it.
    fn step<T>(
        &mut self,
        what: &str,
        resource: libc::__rlimit_resource_t,
        soft: impl Fn() -> u64,
        step: impl Fn(&Pd) -> Result<T, String>,
    ) {
        let before = self.left();
        let hard = limit_to(resource, soft());
        let done = step(&self.pd).map(drop);
        self.goes_on();
        limit_to(resource, hard);
        let error = done.expect_err(what);
        println!("{what}: {error}");
        assert_eq!(self.left(), before, "{what}");
        step(&self.pd).unwrap_or_else(|error| panic!("{what}: {error}"));
        self.goes_on();
    }
}

fn join(pd: &Pd) -> Result<Device, String> {
    let name = format!("exhausted-{}", std::process::id());
    let _ = pd;
    Device::join(&name, HcaConfig::default()).map_err(text)
}

const ENGINE: Mode = Mode::Engine { threads: 3 };

#[test]
fn no_address_space_is_an_error() {
    if !child("no_address_space_is_an_error") {
        return;
    }
    // More than the steps' small change, less than what they ask for.
    let limit = || size() + (1 << 19);
    let mut there = There::new(256, &QpInit::default());
    let mut step = |what: &str, step: &dyn Fn(&Pd) -> Result<(), String>| {
        there.step(what, libc::RLIMIT_AS, limit, step);
    };
    step("a device", &|_| soft(Mode::Inline).map(drop));
    step("an engine", &|_| soft(ENGINE).map(drop));
    step("a node", &|pd| join(pd).map(drop));
    step("a completion queue", &|pd| {
        pd.device().create_cq(1 << 17).map(drop).map_err(text)
    });
    step("a queue pair", &|pd| {
        let init = QpInit {
            max_send_wr: 8192,
            max_recv_wr: 8192,
            reserve_cq: false,
            ..QpInit::default()
        };
        let mut cq = pd.device().create_cq(64).map_err(text)?;
        pd.create_qp(&mut cq, &init).map(drop).map_err(text)
    });
    step("a shared receive queue", &|pd| {
        let init = SrqInit {
            max_wr: 16_384,
            ..SrqInit::default()
        };
        pd.create_srq(&init).map(drop).map_err(text)
    });
    step("a mapping", &|_| {
        let mapping = Mapping::anonymous(1 << 20).pages(Pages::Base);
        mapping.build().map(drop).map_err(text)
    });
    println!("{DONE}");
}

/// The blocks of a slab need records beside the region.
#[test]
fn no_memory_for_blocks_is_an_error() {
    if !child("no_memory_for_blocks_is_an_error") {
        return;
    }
    let mut there = There::new(256, &QpInit::default());
    let layout = [ClassLayout {
        size: 64,
        count: 1 << 16,
    }];
    let bytes = Slab::bytes(&layout).unwrap();
    let region = || Region::new(&there.pd, base(bytes), AccessFlags::LOCAL_WRITE).unwrap();
    let (refused, taken) = (region(), region());
    let before = limit_to(libc::RLIMIT_AS, size() + (1 << 19));
    let slab = Slab::new(refused, &layout).map(drop);
    limit_to(libc::RLIMIT_AS, before);
    println!("{}", slab.expect_err("no memory"));
    Slab::new(taken, &layout).unwrap();
    there.goes_on();
    println!("{DONE}");
}

/// A number of links that a program may have read from somewhere.
#[test]
fn no_memory_for_a_set_is_an_error() {
    if !child("no_memory_for_a_set_is_an_error") {
        return;
    }
    let mut there = There::new(256, &QpInit::default());
    for links in [10_000_000, u32::MAX] {
        for more in [1 << 19, 1 << 24, 1 << 27, 1 << 30] {
            let before = there.left();
            let init = LinkSetInit {
                links,
                ..LinkSetInit::default()
            };
            let limit = limit_to(libc::RLIMIT_AS, size() + more);
            let set = LinkSet::new(&there.pd, init).map(drop);
            there.goes_on();
            limit_to(libc::RLIMIT_AS, limit);
            println!("{links} links: {}", set.expect_err("no memory"));
            assert_eq!(there.left(), before, "{links} links in {more} bytes");
        }
    }
    println!("{DONE}");
}

#[test]
fn no_descriptor_is_an_error() {
    if !child("no_descriptor_is_an_error") {
        return;
    }
    let mut there = There::new(256, &QpInit::default());
    // What is open stays open.
    let limit = || 0;
    let mut step = |what: &str, step: &dyn Fn(&Pd) -> Result<(), String>| {
        there.step(what, libc::RLIMIT_NOFILE, limit, step);
    };
    step("a device", &|_| soft(Mode::Inline).map(drop));
    step("an engine", &|_| soft(ENGINE).map(drop));
    step("a node", &|pd| join(pd).map(drop));
    step("a completion channel", &|pd| {
        pd.device().create_comp_channel().map(drop).map_err(text)
    });
    step("shared memory", &|_| {
        let mapping = Mapping::shared("exhausted", 4096).pages(Pages::Base);
        mapping.build().map(drop).map_err(text)
    });
    println!("{DONE}");
}

#[test]
fn no_thread_is_an_error() {
    if !child("no_thread_is_an_error") {
        return;
    }
    // SAFETY: no pointers.
    if unsafe { libc::geteuid() == 0 && libc::setuid(NOBODY_ELSE) != 0 } {
        println!("skipped: cannot become another user; {DONE}");
        return;
    }
    let mut there = There::new(256, &QpInit::default());
    let mut step = |what: &str, more: u64, step: &dyn Fn(&Pd) -> Result<(), String>| {
        let limit = || count("/proc/self/task") as u64 + more;
        there.step(what, libc::RLIMIT_NPROC, limit, step);
    };
    step("an engine", 0, &|_| soft(ENGINE).map(drop));
    // Those that did start end again.
    step("an engine's last thread", 2, &|_| soft(ENGINE).map(drop));
    step("a node", 0, &|pd| join(pd).map(drop));
    println!("{DONE}");
}
