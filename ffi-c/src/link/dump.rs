//! What a link's queue pair did last.

use super::bw_link;
use super::code::away;
use super::hook::at_home;
use crate::code::BW_ESTATE;
use crate::dump::{Place, bw_dump_attr};
use crate::failure::{Failure, guard};
use crate::sized;
use std::ffi::{c_char, c_int};

/// Writes what the link's queue pair did last, as `bw_qp_dump` does; faults of the link are among its
/// notes. Of a queue pair that has failed and was reset or replaced since little is left:
/// `bw_link_dump_failure` is for that.
///
/// Errors: `BW_ERECOVERING` while a thread recovers the link, or it has no queue pair, `BW_ELIMIT`,
/// `BW_EINVAL`, `BW_ENULL`, `BW_ESIZE`.
/// Thread: the link's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_dump(
    link: *mut bw_link,
    attr: *const bw_dump_attr,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> c_int {
    // SAFETY: the header on handles and sized structs.
    guard(|| unsafe {
        let link = at_home(link)?;
        let attr = sized::read_or_default(attr)?;
        let options = attr.options()?;
        let place = Place::new(&attr, buffer, capacity, length)?;
        place.write(&link.dump(&options).ok_or_else(away)?)
    })
}

/// Writes what the queue pair of the connection that failed last had done by then. With
/// `bw_link_init.dump_entries` such a dump is kept; of `attr` the format alone is looked at. Otherwise as
/// `bw_qp_dump`.
///
/// Errors: `BW_ESTATE` when none is kept: no connection has failed, or `dump_entries` is 0;
/// `BW_ERECOVERING` while a thread recovers the link, `BW_ELIMIT`, `BW_EINVAL`, `BW_ENULL`, `BW_ESIZE`.
/// Thread: the link's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_dump_failure(
    link: *mut bw_link,
    attr: *const bw_dump_attr,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> c_int {
    // SAFETY: the header on handles and sized structs.
    guard(|| unsafe {
        let link = at_home(link)?;
        let attr = sized::read_or_default(attr)?;
        let place = Place::new(&attr, buffer, capacity, length)?;
        let record = link.failure().ok_or_else(|| {
            Failure::new(
                BW_ESTATE,
                "no dump is kept: no connection of the link has failed, or bw_link_init.dump_entries \
                 is 0",
            )
        })?;
        place.write(record)
    })
}
