//! The version of the interface.

use crate::code::BW_EVERSION;
use crate::failure::{Failure, guard};
use std::ffi::c_int;

/// Major version of this header.
pub const BW_VERSION_MAJOR: u32 = 0;
/// Minor version of this header.
pub const BW_VERSION_MINOR: u32 = 1;
/// Patch version of this header.
pub const BW_VERSION_PATCH: u32 = 0;
/// All three versions, as 0x00MMmmpp.
pub const BW_VERSION: u32 = BW_VERSION_MAJOR << 16 | BW_VERSION_MINOR << 8 | BW_VERSION_PATCH;

/// Version of the library that the program runs with, in the form of `BW_VERSION`.
///
/// Thread: any.
#[unsafe(no_mangle)]
pub extern "C" fn bw_version() -> u32 {
    BW_VERSION
}

/// Whether the library can serve a program that was compiled with the header of version `header`:
/// call `bw_version_check(BW_VERSION)` before anything else. It can if the major versions are equal
/// and the library is not older. While the major version is 0, the minor versions have to be equal
/// too.
///
/// Errors: `BW_EVERSION`.
/// Thread: any.
#[unsafe(no_mangle)]
pub extern "C" fn bw_version_check(header: u32) -> c_int {
    guard(|| {
        let (major, minor) = (header >> 16, header >> 8);
        let (our_major, our_minor) = (BW_VERSION >> 16, BW_VERSION >> 8);
        let serves =
            major == our_major && header <= BW_VERSION && (our_major != 0 || minor == our_minor);
        if serves {
            return Ok(());
        }
        let show = |v: u32| format!("{}.{}.{}", v >> 16, v >> 8 & 0xff, v & 0xff);
        Err(Failure::new(
            BW_EVERSION,
            format!(
                "compiled with the header of {}, running with the library of {}: compile again, or \
                 install the library of that version",
                show(header),
                show(BW_VERSION)
            ),
        ))
    })
}
