//! Set-up where the allocator has no more for one request after the other: each is an error, leaves
//! nothing behind, and what was there before goes on.
//!
//! Only what a program chose the size of is refused. What is small and of one size ends the process, as
//! it does in every Rust program; so each step runs in a child, whose death fails the test.

mod common;

use bellwire::link::{Link, LinkInit, pair};
use bellwire::recorder::DumpOptions;
use bellwire::soft::{HcaConfig, Mode};
use bellwire::wqe::{Ud, Xrc};
use bellwire::wr::MwType;
use bellwire::{
    AccessFlags, ClassLayout, Cq, Device, Pd, QpInit, QpTransport, Region, Slab, SrqInit,
};
use common::{DONE, There, base, child, soft, text};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::RefCell;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering::Relaxed};

/// Nothing that has one size is as large, and all of what the steps ask for is larger.
const LARGE: usize = 8192;

// Requests of this size are no more than a look for memory, at the beginning of each call. The test `allocations`
// refuses those, too.
use bellwire_provider::pinned::HEADROOM;

/// Large requests until one is refused; below zero: none is.
static LEFT: AtomicIsize = AtomicIsize::new(-1);

/// Large ones that are in use.
static USED: AtomicUsize = AtomicUsize::new(0);

struct Refusing;

impl Refusing {
    fn refuses(bytes: usize) -> bool {
        bytes >= LARGE
            && bytes != HEADROOM
            && LEFT.fetch_update(Relaxed, Relaxed, |left| (left >= 0).then(|| left - 1)) == Ok(0)
    }

    fn count(start: *mut u8, bytes: usize) -> *mut u8 {
        USED.fetch_add(usize::from(bytes >= LARGE && !start.is_null()), Relaxed);
        start
    }
}

// SAFETY: the system's allocator, or none.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if Self::refuses(layout.size()) {
            return null_mut();
        }
        // SAFETY: the caller guarantees that the size is not zero.
        Self::count(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if Self::refuses(layout.size()) {
            return null_mut();
        }
        // SAFETY: the caller guarantees that the size is not zero.
        Self::count(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    // `realloc` is that of the trait, which goes by the others.

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        USED.fetch_sub(usize::from(layout.size() >= LARGE), Relaxed);
        // SAFETY: the caller guarantees that `start` was allocated here, so by `System`, with this layout.
        unsafe { System.dealloc(start, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Refusing = Refusing;

/// Does a step, in which the large request number `index` is refused; and whether there was one.
fn refuse<T>(index: usize, step: impl FnOnce() -> T) -> (T, bool) {
    LEFT.store(index as isize, Relaxed);
    let done = step();
    (done, LEFT.swap(-1, Relaxed) < 0)
}

impl There {
    /// Every large request of the step is refused once. There are some.
    fn step<T>(&mut self, what: &str, step: impl Fn(&mut Self) -> Result<T, String>) {
        // What is made once for all.
        step(self).map(drop).unwrap();
        for index in 0.. {
            let before = self.left();
            let used = USED.load(Relaxed);
            eprintln!("{what}: request {index}");
            let (done, refused) = refuse(index, || step(self).map(drop));
            assert_eq!(USED.load(Relaxed), used, "{what}: memory");
            assert_eq!(self.left(), before, "{what}");
            self.goes_on();
            if !refused {
                done.unwrap();
                assert_ne!(index, 0, "{what}: nothing large");
                return;
            }
            eprintln!("{}", done.expect_err(what));
        }
    }
}

/// Entries of all queues: enough for one byte of each to be large.
const ENTRIES: u32 = 8192;

fn large() -> QpInit {
    QpInit {
        max_send_wr: ENTRIES,
        max_recv_wr: ENTRIES,
        reserve_cq: false,
        ..QpInit::default()
    }
}

#[test]
fn devices() {
    if !child("devices") {
        return;
    }
    let mut there = There::new(2 * ENTRIES, &large());
    there.step("a device", |_| soft(Mode::Inline));
    there.step("an engine", |_| soft(Mode::Engine { threads: 3 }));
    let fabric = format!("allocator-{}", std::process::id());
    there.step("a node", |_| {
        Device::join(&fabric, HcaConfig::default()).map_err(text)
    });
    println!("{DONE}");
}

fn queue_pair<T: QpTransport>(there: &mut There) -> Result<(), String> {
    let mut cq = there.pd.device().create_cq(64).map_err(text)?;
    let qp = there.pd.create_qp_of::<T>(&mut cq, &large());
    qp.map(drop).map_err(text)
}

#[test]
fn queues() {
    if !child("queues") {
        return;
    }
    let mut there = There::new(2 * ENTRIES, &large());
    there.step("a completion queue", |there| {
        there.pd.device().create_cq(ENTRIES).map_err(text)
    });
    there.step("a completion queue of many", |there| {
        let many = there.pd.device().create_cq_for(64, ENTRIES as usize);
        many.map_err(text)
    });
    there.step("a queue pair", queue_pair::<bellwire::wqe::Rc>);
    there.step("a queue pair for datagrams", queue_pair::<Ud>);
    there.step("a queue pair of XRC", queue_pair::<Xrc>);
    let init = SrqInit {
        max_wr: ENTRIES,
        ..SrqInit::default()
    };
    there.step("a shared receive queue", |there| {
        there.pd.create_srq(&init).map_err(text)
    });
    println!("{DONE}");
}

#[test]
fn blocks() {
    if !child("blocks") {
        return;
    }
    let mut there = There::new(2 * ENTRIES, &large());
    let layout = [ClassLayout {
        size: 64,
        count: ENTRIES,
    }];
    let bytes = Slab::bytes(&layout).unwrap();
    there.step("a slab", |there| {
        let access = AccessFlags::LOCAL_WRITE;
        let region = Region::new(&there.pd, base(bytes), access).map_err(text)?;
        Slab::new(region, &layout).map_err(text)
    });
    println!("{DONE}");
}

#[test]
fn links() {
    if !child("links") {
        return;
    }
    let mut there = There::new(2 * ENTRIES, &large());
    there.step("a link", |there| {
        let init = LinkInit {
            qp: large(),
            waitable: true,
            ..LinkInit::default()
        };
        Link::new(&there.pd, init, pair().0).map_err(text)
    });
    println!("{DONE}");
}

#[test]
fn dumps() {
    if !child("dumps") {
        return;
    }
    let mut there = There::new(2 * ENTRIES, &large());
    for _ in 0..ENTRIES {
        there.goes_on();
    }
    there.step("a dump", |there| {
        let options = DumpOptions {
            entries: ENTRIES as usize,
            inline: true,
        };
        there.qp.dump(&mut there.cq, &options).map_err(text)
    });
    println!("{DONE}");
}

/// Objects enough for what is remembered of each to be large in all.
const MANY: usize = 5000;

/// As many objects of one device as make its tables grow.
fn many<T>(there: &mut There, what: &str, one: impl Fn(&Pd, &mut Cq) -> Result<T, String>) {
    let made = RefCell::new(Vec::with_capacity(MANY));
    there.step(what, |_| {
        let device = Device::try_soft(HcaConfig::default()).map_err(text)?;
        let pd = device.alloc_pd();
        let mut cq = device.create_cq_for(64, MANY).map_err(text)?;
        let mut make = || {
            made.borrow_mut().push(one(&pd, &mut cq)?);
            Ok(())
        };
        let done = (0..MANY).try_for_each(|_| make());
        made.borrow_mut().clear();
        done
    });
}

#[test]
fn objects() {
    if !child("objects") {
        return;
    }
    let mut there = There::new(2 * ENTRIES, &large());
    let page = base(4096);
    let start = NonNull::new(page.as_ptr()).unwrap();
    many(&mut there, "regions", |pd, _| {
        // SAFETY: mapped for longer, and no request names it.
        let mr = unsafe { pd.register(start, 4096, AccessFlags::LOCAL_WRITE) };
        mr.map_err(text)
    });
    many(&mut there, "windows", |pd, _| {
        pd.alloc_mw(MwType::Type2).map_err(text)
    });
    many(&mut there, "completion queues", |pd, _| {
        pd.device().create_cq_for(1, 1).map_err(text)
    });
    let init = QpInit {
        max_send_wr: 1,
        max_recv_wr: 1,
        reserve_cq: false,
        ..QpInit::default()
    };
    many(&mut there, "queue pairs", |pd, cq| {
        pd.create_qp(cq, &init).map_err(text)
    });
    let init = SrqInit {
        max_wr: 1,
        ..SrqInit::default()
    };
    many(&mut there, "shared receive queues", |pd, _| {
        pd.create_srq(&init).map_err(text)
    });
    println!("{DONE}");
}
