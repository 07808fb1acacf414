//! What the tests of set-up that cannot be have in common: a process of their own, and something that was
//! there before and has to go on.
#![allow(dead_code, reason = "no test uses all of it")]

use bellwire::memory::{Mapping, Pages};
use bellwire::soft::{HcaConfig, Mode};
use bellwire::wqe::RdmaWrite;
use bellwire::wr::SendFlags;
use bellwire::{AccessFlags, ConnectAttr, Cq, Device, Pd, Qp, QpInit, Region, Resources};
use std::fs;
use std::process::Command;
use std::sync::atomic::Ordering;

/// What a child says last.
pub const DONE: &str = "the child is done";

/// Runs the test in a process in which there is nothing else; `true`: this is that process, which prints
/// [`DONE`] at the end.
pub fn child(test: &str) -> bool {
    const CHILD: &str = "BELLWIRE_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]);
    // So that what is large is asked of the system, and not taken from what the allocator keeps.
    command.env("MALLOC_ARENA_MAX", "1");
    command.env("MALLOC_MMAP_THRESHOLD_", "65536");
    let output = command.env(CHILD, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{text}{errors}", output.status);
    assert!(text.contains(DONE), "{text}{errors}");
    false
}

pub fn count(folder: &str) -> usize {
    fs::read_dir(folder).unwrap().count()
}

pub fn base(bytes: usize) -> Mapping {
    Mapping::anonymous(bytes)
        .pages(Pages::Base)
        .build()
        .unwrap()
}

pub fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

pub fn soft(mode: Mode) -> Result<Device, String> {
    let config = HcaConfig {
        mode,
        ..HcaConfig::default()
    };
    Device::try_soft(config).map_err(text)
}

/// What was there before: a queue pair that is connected with itself.
pub struct There {
    pub pd: Pd,
    pub cq: Cq,
    pub qp: Qp,
    region: Region,
    written: u64,
}

impl There {
    pub fn new(entries: u32, init: &QpInit) -> Self {
        let pd = Device::soft(HcaConfig::default()).alloc_pd();
        let mut cq = pd.device().create_cq(entries).unwrap();
        let mut qp = pd.create_qp(&mut cq, init).unwrap();
        let connect = ConnectAttr::default();
        qp.init(&connect).unwrap();
        qp.connect(&qp.endpoint(), &connect).unwrap();
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let region = Region::new(&pd, base(4096), access).unwrap();
        Self {
            pd,
            cq,
            qp,
            region,
            written: 0,
        }
    }

    /// A request of its does what it is to do.
    pub fn goes_on(&mut self) {
        self.written += 1;
        let write = RdmaWrite {
            remote: self.region.remote(0),
        };
        let bytes = self.written.to_ne_bytes();
        let mut sq = self.qp.sq();
        sq.post_inline(1, (), write, &bytes, SendFlags::SIGNALED)
            .unwrap();
        sq.ring();
        self.cq.poll_one().expect("executed").result.unwrap();
        assert_eq!(self.region.word(0).load(Ordering::Acquire), self.written);
    }

    /// What a step may leave behind: descriptors, threads, objects of the device.
    pub fn left(&self) -> (usize, usize, Resources) {
        let resources = self.pd.device().resources();
        (count("/proc/self/fd"), count("/proc/self/task"), resources)
    }
}
