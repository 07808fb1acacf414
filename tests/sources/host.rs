//! A folder with what a test has instead of the host's: libraries, and what the kernel says of devices.

use bellwire_tests::witness::Change;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Lists nothing, or `STUB_DEVICE`, unless set to fail: with the number in `STUB_LIST` or `STUB_OPEN`.
const LISTS: &str = r#"
#include <errno.h>
#include <stdlib.h>
static int fails(const char *name)
{
    const char *number = getenv(name);
    errno = number ? atoi(number) : EIO;
    return number != NULL;
}
void **ibv_get_device_list(int *count)
{
    static void *none[1], *one[2] = {one};
    *count = getenv("STUB_DEVICE") != NULL;
    return fails("STUB_LIST") ? NULL : *count ? one : none;
}
void ibv_free_device_list(void **list) { (void)list; }
const char *ibv_get_device_name(void *device) { (void)device; return getenv("STUB_DEVICE"); }
void *ibv_open_device(void *device) { (void)device; fails("STUB_OPEN"); return NULL; }
"#;

const WRITTEN: [&str; 4] = [
    "ibv_get_device_list",
    "ibv_free_device_list",
    "ibv_get_device_name",
    "ibv_open_device",
];

/// What every libibverbs has that is used.
fn required() -> impl Iterator<Item = &'static str> {
    const DECLARED: &str = include_str!("../../hw/sys/src/ibverbs/functions.rs");
    let lines = DECLARED.lines().map(str::trim_start);
    let lines = lines.filter(|line| line.starts_with("required"));
    lines.filter_map(|line| line.split("fn ").nth(1)?.split('(').next())
}

/// The folder, and what is changed besides.
pub struct Host {
    folder: TempDir,
    pub change: Change,
    environment: Vec<(&'static str, String)>,
}

impl Host {
    /// One whose kernel has no RDMA, with the host's libraries.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        // Nobody is to see it, too.
        fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("its mode");
        Self {
            folder,
            change: Change::default(),
            environment: Vec::new(),
        }
    }

    /// One with a libibverbs that lists nothing.
    pub fn with_stub() -> Self {
        let host = Self::new();
        let rest = required().filter(|name| !WRITTEN.contains(name));
        let rest: String = rest
            .map(|name| format!("int {name}(void) {{ return -1; }}\n"))
            .collect();
        host.compile(&format!("{LISTS}{rest}"));
        host
    }

    /// Has a libibverbs of this source.
    pub fn compile(&self, source: &str) {
        let path = self.path("stub.c");
        fs::write(&path, source).expect("a file");
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-Wl,-soname,libibverbs.so.1", "-o"]);
        let output = cc.arg(self.path("libibverbs.so.1")).arg(path).output();
        let output = output.expect("a C compiler");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Has a file that is not a library, by the name of one.
    pub fn spoil(&self, name: &str) {
        fs::write(self.path(name), "not a library\n".repeat(100)).expect("a file");
    }

    /// The kernel says this in sysfs.
    pub fn kernel(self, file: &str, text: &str) -> Self {
        let path = self.path("sys/class").join(file);
        fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
        fs::write(path, text).expect("a file");
        self
    }

    /// The kernel has RDMA, and no device.
    pub fn kernel_without_devices(self) -> Self {
        self.kernel("infiniband_verbs/abi_version", "6\n")
    }

    /// The kernel has a device. There is no such node on any machine.
    pub fn kernel_device(self) -> Self {
        let host = self.kernel_without_devices();
        let host = host.kernel("infiniband_verbs/uverbs4242/ibdev", "stub0\n");
        let host = host.kernel("infiniband/stub0/device/modalias", "pci:none\n");
        let driver = host.path("sys/class/infiniband/stub0/device/driver");
        let to = Path::new("../../../../bus/pci/drivers/mlx5_core");
        std::os::unix::fs::symlink(to, driver).expect("a link");
        host
    }

    /// Sets a variable.
    pub fn env(mut self, name: &'static str, value: &str) -> Self {
        self.environment.push((name, value.to_owned()));
        self
    }

    /// What a process says here, that has these libraries and this kernel.
    pub fn witness(mut self) -> Value {
        let sysfs = self.path("sys").display().to_string();
        self.environment.push(("SYSFS_PATH", sysfs));
        self.witness_of_kernel()
    }

    /// What a process says that has these libraries, and the kernel of this machine.
    pub fn witness_of_kernel(self) -> Value {
        let folder = self.folder.path().display().to_string();
        let mut environment = vec![("LD_LIBRARY_PATH", &*folder)];
        let own = self.environment.iter();
        environment.extend(own.map(|(name, value)| (*name, &**value)));
        self.change.witness(&environment)
    }
}

/// That there is the software HCA alone, and that this is said of the rest wherever it is asked for.
pub fn alone(said: &Value, absent: &[&str]) {
    assert_eq!(said["devices"], serde_json::json!(["soft"]), "{said:#}");
    assert_eq!(said["auto"], "soft");
    let listed = said["absent"].as_array().expect("a list");
    assert_eq!(listed.len(), absent.len(), "{said:#}");
    for (text, start) in listed.iter().zip(absent) {
        let text = text.as_str().expect("a text");
        assert!(text.starts_with(start), "{text}: not {start:?}");
        let choice = said["choice"].as_str().expect("a text");
        assert!(choice.contains(text), "{choice}: not {text:?}");
    }
}

/// The same, and that an unknown name says it too.
pub fn alone_and_unknown(said: &Value, absent: &[&str]) {
    alone(said, absent);
    let unknown = said["unknown"].as_str().expect("a text");
    let texts = absent.iter().all(|start| unknown.contains(start));
    assert!(
        texts && unknown.starts_with("no device \"no such device\""),
        "{unknown}"
    );
}
