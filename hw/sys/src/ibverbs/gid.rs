//! Reads an entry of a GID table from sysfs, for versions of libibverbs without `ibv_query_gid_ex`. On an
//! older kernel `ibv_query_gid_ex` reads sysfs too.

use super::*;
use std::ffi::{CStr, CString, OsStr};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const ROCE_V1: u32 = 1;

/// Reads an entry of a GID table with `ibv_query_gid` and sysfs.
///
/// # Safety
/// The context is open.
pub unsafe fn of_sysfs(
    context: NonNull<ibv_context>,
    port_num: u8,
    index: u16,
) -> io::Result<ibv_gid_entry> {
    let mut gid = ibv_gid { raw: [0; 16] };
    // SAFETY: the caller guarantees that the context is open; the GID is writable.
    check(unsafe { ibv_query_gid(context.as_ptr(), port_num, index.into(), &raw mut gid) })?;
    // SAFETY: the device of an open context is alive; its path is a C string.
    let device = unsafe { CStr::from_ptr((*(*context.as_ptr()).device).ibdev_path.as_ptr()) };
    let device = Path::new(OsStr::from_bytes(device.to_bytes()));
    let (gid_type, ndev_ifindex) = attributes(device, port_num, index)?;
    Ok(ibv_gid_entry {
        gid,
        gid_index: index.into(),
        port_num: port_num.into(),
        gid_type,
        ndev_ifindex,
    })
}

/// The GID type and the interface of an entry; an error for an empty entry.
fn attributes(device: &Path, port_num: u8, index: u16) -> io::Result<(u32, u32)> {
    let folder = device.join(format!("ports/{port_num}/gid_attrs"));
    let read = |kind: &str| fs::read_to_string(folder.join(kind).join(index.to_string()));
    let name = read("types")?;
    // GIDs of InfiniBand ports have no interface.
    let interface = read("ndevs").ok();
    let interface = interface.and_then(|name| CString::new(name.trim_end()).ok());
    // SAFETY: the name is a C string.
    let index = interface.map_or(0, |name| unsafe { libc::if_nametoindex(name.as_ptr()) });
    Ok(match (name.trim_end(), index) {
        ("RoCE v2", _) => (IBV_GID_TYPE_ROCE_V2, index),
        (_, 0) => (0, 0),
        _ => (ROCE_V1, index),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_as_sysfs_has_them() {
        let device = tempfile::tempdir().expect("a folder");
        let write = |kind: &str, index: u16, text: &str| {
            let folder = device.path().join("ports/2/gid_attrs").join(kind);
            fs::create_dir_all(&folder).expect("folders");
            fs::write(folder.join(index.to_string()), text).expect("a file");
        };
        write("types", 0, "IB/RoCE v1\n");
        write("types", 1, "IB/RoCE v1\n");
        write("ndevs", 1, "lo\n");
        write("types", 2, "RoCE v2\n");
        write("ndevs", 2, "lo\n");
        let of = |index| attributes(device.path(), 2, index).ok();
        // SAFETY: the name is a C string.
        let lo = unsafe { libc::if_nametoindex(c"lo".as_ptr()) };
        assert_eq!(of(0), Some((0, 0)));
        assert_eq!(of(1), Some((ROCE_V1, lo)));
        assert_eq!(of(2), Some((IBV_GID_TYPE_ROCE_V2, lo)));
        assert_eq!(of(3), None);
    }
}
