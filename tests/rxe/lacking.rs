//! What a user may lack: an error says what to do, at once.
//!
//! Without libibverbs-dev: the step `lacking` of `cargo xtask test`. A peer that vanishes in the
//! exchange: `hw/bellwire/src/connect/tcp/tests.rs` and `examples/tests/pingpong/exchange.rs`. A limit on
//! locked memory without a device: `hw/memory/tests/memlock.rs`.

use crate::tests;
use bellwire::memory::{Mapping, memlock_limit};
use bellwire::sources::{Cause, Choice};
use bellwire::wqe::{NoPayload, Send, Xrc};
use bellwire::wr::WcStatus;
use bellwire::{Device, Region, XrcdMode};
use bellwire_tests::cable::Undo;
use bellwire_tests::ends::*;
use bellwire_tests::fixture::{ALL, init, until};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

tests! { a_device_of_another_name, xrc, memory_beyond_the_limit, dropped_privileges, no_device_at_all }

fn refused(name: &str) -> String {
    let error = Device::open(name).map(|_| ()).expect_err("no such device");
    error.to_string()
}

fn a_device_of_another_name() {
    assert_eq!(
        refused("mlx5_0"),
        "no device \"mlx5_0\": there is \"soft\" (or \"auto\"), and \"soft:NAME\" for a fabric of \
         processes; libibverbs has rxe0, rxe1, rxe2"
    );
}

/// rxe has none, and says so whatever is asked for first.
fn xrc() {
    let device = open(ALONE);
    let pd = device.alloc_pd();
    let (send, recv) = init().cq_entries_of::<Xrc>();
    let mut cq = device.create_cq(send + recv).expect("a queue");
    let file = File::open("/").expect("a file");
    let refused = [
        device.open_xrcd().map(|_| ()),
        (device.open_xrcd_of(file.as_fd(), XrcdMode::Create)).map(|_| ()),
        pd.create_qp_of::<Xrc>(&mut cq, &init()).map(|_| ()),
    ];
    for refused in refused {
        let error = refused.expect_err("there is none").to_string();
        assert_eq!(
            error,
            "the device cannot connect by XRC: it does not have that (`ibv_devinfo -v` shows which devices have it); \
             use RC queue pairs on a shared receive queue"
        );
    }
}

/// Set where this program is run again, by [`memory_beyond_the_limit`].
const CHILD: &str = "BELLWIRE_TEST_RXE_CHILD";

pub fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// The kernel limits what devices pin for a process without `CAP_IPC_LOCK`. The test runs in such a child.
fn memory_beyond_the_limit() {
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    child.env(CHILD, "memory");
    // SAFETY: the closure makes two system calls and no allocation, so it may run after fork.
    unsafe {
        child.pre_exec(|| {
            let limit = libc::rlimit {
                rlim_cur: 64 << 10,
                rlim_max: 64 << 10,
            };
            const CAP_IPC_LOCK: libc::c_ulong = 14;
            if libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) != 0
                || libc::prctl(libc::PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0) != 0
            {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
    succeeds(&mut child);
}

fn succeeds(child: &mut Command) {
    let output = child.output().expect("a child");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}

pub fn child() {
    match std::env::var(CHILD).as_deref() {
        Ok("memory") => memory(),
        _ => privileges(),
    }
}

/// The kernel takes no request by a device that was opened with other credentials. rxe needs the kernel for each
/// SEND. The test runs in such a child.
fn dropped_privileges() {
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    succeeds(child.env(CHILD, "privileges"));
}

/// The first request names the error of the call, the others are flushed, and each is reported once.
fn privileges() {
    let (mut a, mut b) = near();
    connect_patiently(&mut a.qp, &mut b.qp, &patient());
    works(&mut a, &mut b);
    // SAFETY: no memory is named.
    assert_eq!(unsafe { libc::setuid(65_534) }, 0);
    for wr_id in 1..=2 {
        a.go(wr_id, Send {}, NoPayload);
    }
    let mut failures = Vec::new();
    until("both requests", || {
        a.cq.poll(8, |completion| {
            let failure = completion.result.expect_err("it cannot be sent");
            failures.push((completion.wr_id, failure.status, failure.vendor_err));
        });
        failures.len() >= 2
    });
    let refused = (1, WcStatus::WrFlushErr, libc::EACCES as u8);
    assert_eq!(failures, [refused, (2, WcStatus::WrFlushErr, 0)]);
    a.nothing();
}

fn memory() {
    assert_eq!(memlock_limit(), Some(64 << 10));
    let pd = open(ALONE).alloc_pd();
    let region = |bytes| {
        let mapping = Mapping::anonymous(bytes).build().expect("memory");
        Region::new(&pd, mapping, ALL)
    };
    let error = region(128 << 20).expect_err("beyond the limit").to_string();
    assert!(
        error.starts_with("RLIMIT_MEMLOCK is 64 KiB, the region needs 128 MiB: raise it with"),
        "{error}"
    );
    // Nothing stays pinned: what is within the limit can be registered.
    for _ in 0..3 {
        region(32 << 10).expect("within the limit");
    }
}

/// The last: devices that come again may have other GIDs for a while. None of them is open: the kernel
/// would wait until it is closed, for rxe of Linux 6.1 cannot be taken from its users
/// (`disassociate_ucontext`). Hence it never raises DEVICE_FATAL.
fn no_device_at_all() {
    let links = [("rxe0", "dummy0"), ("rxe1", "veth1"), ("rxe2", "veth2")];
    let removed = links.map(|(name, net)| {
        let add = format!("rdma link add {name} type rxe netdev {net}");
        Undo::after(&format!("rdma link delete {name}"), &add)
    });
    assert_eq!(
        refused(ALONE),
        "no device \"rxe0\": there is \"soft\" (or \"auto\"), and \"soft:NAME\" for a fabric of \
         processes; verbs: the kernel has no RDMA device: load the device's driver (`rdma link` shows \
         devices)"
    );
    let auto = Device::open("auto").expect("the software HCA");
    assert_eq!(auto.name(), "soft");
    let list = Device::list();
    let listed: Vec<_> = list.devices.iter().map(|info| &*info.name).collect();
    assert_eq!(listed, ["soft"]);
    assert_eq!(list.absent.len(), 1);
    assert_eq!(list.absent[0].cause, Cause::NoDevice);
    let before = list.absent;
    assert_eq!(auto.choice(), Some(&Choice::Fallback { before }));
    removed.into_iter().for_each(Undo::now);
    for (name, _) in links {
        until("a port that is up", || {
            let device = open(name);
            let port = device.query_port(1).expect("port 1");
            port.state == bellwire::PortState::Active
        });
    }
    assert_eq!(Device::open("auto").expect("a device").name(), ALONE);
}
