//! What libibverbs reads of the device before it opens it: a folder in the place of `/sys`.
//!
//! `SYSFS_PATH` names it from the start; it is made when somebody looks into it, and removed when the
//! process ends, so that processes that never ask for devices leave nothing behind, however they end.

use crate::engine;
use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use tempfile::TempDir;

/// The device file that libibverbs opens.
pub const DEVICE_PATH: &CStr = c"/dev/infiniband/uverbs0";

/// A character device that is there everywhere, and whose number sysfs gives as ours: 1:3.
pub const STANDS_IN: &CStr = c"/dev/null";

/// Of ConnectX-5: libmlx5 goes by vendor and device.
pub const VENDOR: u32 = 0x15b3;
/// As above.
pub const PART: u32 = 0x1017;

/// The firmware's version, as 16 bits each.
pub const FIRMWARE: [u16; 3] = [16, 35, 1000];

/// Where the folder is, or is to be.
static ROOT: OnceLock<PathBuf> = OnceLock::new();

static FOLDER: Mutex<Option<(u32, TempDir)>> = Mutex::new(None);

/// Says where the folder is to be. While the process has one thread: it changes the environment.
pub fn announce() {
    let name = format!(
        "uverbs-preload-{}-{:016x}",
        std::process::id(),
        engine::guid()
    );
    let root = ROOT.get_or_init(|| std::env::temp_dir().join(name));
    // SAFETY: called by the loader, before the program's first thread.
    unsafe { std::env::set_var("SYSFS_PATH", root) };
}

/// Somebody is about to look at this path.
pub fn look_at(path: &CStr) {
    let Some(root) = ROOT.get() else { return };
    if !path.to_bytes().starts_with(root.as_os_str().as_bytes()) {
        return;
    }
    let mut folder = FOLDER.lock().unwrap_or_else(PoisonError::into_inner);
    if folder.is_none() {
        match make(root) {
            Ok(made) => *folder = Some((std::process::id(), made)),
            // What is not there is not found, which says so.
            Err(error) => eprintln!("uverbs-preload: cannot make {}: {error}", root.display()),
        }
        // SAFETY: a function without arguments that does not unwind.
        unsafe { libc::atexit(remove) };
    }
}

extern "C" fn remove() {
    let mut folder = FOLDER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((pid, folder)) = folder.take()
        && pid != std::process::id()
    {
        // The parent's.
        let _ = folder.keep();
    }
}

/// A 64-bit identifier, as sysfs has it.
fn guid_text(guid: u64) -> String {
    let groups = guid.to_be_bytes();
    let text = groups
        .chunks(2)
        .map(|pair| format!("{:02x}{:02x}", pair[0], pair[1]));
    text.collect::<Vec<_>>().join(":")
}

fn make(root: &Path) -> io::Result<TempDir> {
    let (parent, name) = (root.parent(), root.file_name());
    let missing = || io::Error::from(io::ErrorKind::NotFound);
    let (parent, name) = parent.zip(name).ok_or_else(missing)?;
    let mut builder = tempfile::Builder::new();
    let folder = builder.prefix(name).rand_bytes(0).tempdir_in(parent)?;
    let guid = guid_text(engine::guid());
    let gid = format!("fe80:0000:0000:0000:{guid}");
    let firmware = FIRMWARE.map(|part| part.to_string()).join(".");
    let modalias = format!("pci:v{VENDOR:08X}d{PART:08X}sv{VENDOR:08X}sd00000007bc02sc07i00");
    let verbs = "class/infiniband_verbs";
    let device = "class/infiniband/mlx5_0";
    let port = "class/infiniband/mlx5_0/ports/1";
    let files = [
        (format!("{verbs}/abi_version"), "6"),
        (format!("{verbs}/uverbs0/ibdev"), "mlx5_0"),
        (format!("{verbs}/uverbs0/abi_version"), "1"),
        (format!("{verbs}/uverbs0/dev"), "1:3"),
        (format!("{device}/node_type"), "1: CA"),
        (format!("{device}/node_guid"), &guid),
        (format!("{device}/sys_image_guid"), &guid),
        (format!("{device}/node_desc"), "bellwire software HCA"),
        (format!("{device}/fw_ver"), &firmware),
        (format!("{device}/hca_type"), "MT4119"),
        (format!("{device}/board_id"), "BELLWIRE"),
        (format!("{device}/device/modalias"), &modalias),
        (format!("{port}/gids/0"), &gid),
        (format!("{port}/gid_attrs/types/0"), "IB/RoCE v1"),
        (format!("{port}/pkeys/0"), "0xffff"),
        (format!("{port}/link_layer"), "InfiniBand"),
    ];
    for (file, text) in files {
        let path = folder.path().join(file);
        fs::create_dir_all(path.parent().ok_or_else(missing)?)?;
        fs::write(path, format!("{text}\n"))?;
    }
    let driver = folder.path().join(device).join("device/driver");
    symlink("../../../../bus/pci/drivers/mlx5_core", driver)?;
    Ok(folder)
}
