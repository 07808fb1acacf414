//! A process of its own that says which devices it finds, where something is taken from it: a library, a
//! node, a right. This program once more, for libraries are loaded once.

use crate::fixture::{ALL, Quiet, pair_with};
use bellwire::memory::Mapping;
use bellwire::wqe::Send;
use bellwire::wr::WcStatus;
use bellwire::{AccessFlags, ConnectAttr, Device, Region};
use bellwire_sys::ibverbs as sys;
use serde_json::{Value, json};
use std::ffi::{CString, c_char};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::ptr::null;
use std::time::Duration;

/// What is taken from it, in the environment of the child: JSON.
const ROLE: &str = "BELLWIRE_TEST_WITNESS";

/// Who may do nothing.
const NOBODY: u32 = 65534;

/// What is changed for the process, and seen by it alone.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// Folders that are empty.
    pub hidden: Vec<String>,
    /// The modes of `/dev/infiniband` and of a node in it, which are made for it.
    pub nodes: Option<(u32, String, u32)>,
    /// It runs as a user who may do nothing.
    pub nobody: bool,
    /// The device that it also exchanges messages on.
    pub device: Option<String>,
}

impl Change {
    /// Whether it needs a mount namespace.
    fn is_private(&self) -> bool {
        !self.hidden.is_empty() || self.nodes.is_some()
    }

    /// Runs the process, and gives what it says.
    pub fn witness(&self, environment: &[(&str, &str)]) -> Value {
        let Self {
            hidden,
            nodes,
            nobody,
            device,
        } = self;
        let role = json!({
            "hidden": hidden, "nodes": nodes, "nobody": nobody, "device": device,
        });
        let mut child = Command::new(std::env::current_exe().expect("this program"));
        child.env(ROLE, role.to_string());
        child.envs(environment.iter().copied());
        let output = child.output().expect("a child");
        let (out, err) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert!(
            output.status.success(),
            "{self:?}: {}\n{out}{err}",
            output.status
        );
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"))
    }
}

/// Whether this process may have mounts of its own.
pub fn may_mount() -> bool {
    let mut child = Command::new("unshare");
    let done = child
        .args(["-m", "mount", "-t", "tmpfs", "none", "/mnt"])
        .output();
    done.is_ok_and(|output| output.status.success())
}

/// Does what the environment says, if this is such a process.
pub fn is_witness() -> bool {
    let Ok(role) = std::env::var(ROLE) else {
        return false;
    };
    let role: Value = serde_json::from_str(&role).expect("JSON");
    let change = Change {
        hidden: serde_json::from_value(role["hidden"].clone()).expect("paths"),
        nodes: serde_json::from_value(role["nodes"].clone()).expect("a node"),
        nobody: role["nobody"] == true,
        device: role["device"].as_str().map(str::to_owned),
    };
    change.make();
    println!("{}", testify(change.device.as_deref()));
    true
}

fn system(what: &str, answer: i32) {
    assert_eq!(answer, 0, "{what}: {}", io::Error::last_os_error());
}

fn mount(path: &str) {
    let to = CString::new(path).expect("a path");
    let kind = c"tmpfs".as_ptr();
    // SAFETY: strings that live for the call.
    system(path, unsafe {
        libc::mount(kind, to.as_ptr(), kind, 0, null())
    });
}

fn allow(path: impl AsRef<Path>, mode: u32) {
    let permissions = PermissionsExt::from_mode(mode);
    std::fs::set_permissions(path, permissions).expect("a mode");
}

impl Change {
    /// Before the process has any other thread.
    fn make(&self) {
        if self.is_private() {
            const KEPT: libc::c_ulong = libc::MS_REC | libc::MS_PRIVATE;
            let none: *const c_char = null();
            // SAFETY: plain system calls; the strings live for the call.
            unsafe {
                system("unshare", libc::unshare(libc::CLONE_NEWNS));
                let root = c"/".as_ptr();
                system("mount", libc::mount(none, root, none, KEPT, null()));
            }
        }
        self.hidden.iter().for_each(|path| mount(path));
        if let Some((folder_mode, node, mode)) = &self.nodes {
            mount("/dev");
            let folder = Path::new("/dev/infiniband");
            std::fs::create_dir(folder).expect("a folder");
            std::fs::write(folder.join(node), "").expect("a file");
            allow(folder.join(node), *mode);
            allow(folder, *folder_mode);
        }
        if self.nobody {
            // SAFETY: plain system calls.
            unsafe {
                system("setgroups", libc::setgroups(0, null()));
                system("setgid", libc::setgid(NOBODY));
                system("setuid", libc::setuid(NOBODY));
                // Its own entries in /proc stay its own.
                system("prctl", libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0));
            }
        }
    }
}

/// A message arrives.
fn exchange(device: &Device) {
    let quiet = Quiet(Duration::from_millis(5));
    let (mut a, mut b) = pair_with(device, quiet, &ConnectAttr::default());
    b.receive(1, &[b.region.sge(0, 8)]);
    let sge = a.region.sge(0, 8);
    a.go(2, Send {}, &[sge][..]);
    assert_eq!(a.outcome(), (2, WcStatus::Success));
    assert_eq!(b.outcome(), (1, WcStatus::Success));
}

/// What a region says whose rights not every libibverbs knows.
fn relaxed(device: &Device) -> String {
    let mapping = Mapping::anonymous(4096).build().expect("memory");
    let rights = ALL | AccessFlags::RELAXED_ORDERING;
    match Region::new(&device.alloc_pd(), mapping, rights) {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    }
}

/// What is found, when everything that there is has been tried.
fn testify(device: Option<&str>) -> Value {
    exchange(&Device::open("soft").expect("the software HCA"));
    let list = Device::list();
    let auto = Device::open("auto").expect("the best that there is");
    let relaxed = device.map(|name| {
        let device = Device::open(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        exchange(&device);
        relaxed(&device)
    });
    let unknown = Device::open("no such device").map(|_| ());
    let missing = (bellwire_sys::load().is_ok()).then(|| {
        sys::_ibv_query_gid_ex()
            .err()
            .map(|missing| missing.to_string())
    });
    json!({
        "devices": list.devices.iter().map(|info| &*info.name).collect::<Vec<_>>(),
        "absent": list.absent.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "unknown": unknown.expect_err("no device").to_string(),
        "auto": auto.name(),
        "choice": auto.choice().map(ToString::to_string),
        "relaxed": relaxed,
        "missing": missing,
    })
}
