//! State and record of a link's queue pair.

use super::bw_link;
use super::code::away;
use super::hook::at_home;
use super::set::{bw_link_id, bw_link_set};
use crate::code::BW_ESTATE;
use crate::dump::{Place, bw_dump_attr};
use crate::failure::{Failure, guard};
use crate::handle::get_mut;
use crate::modify::bw_qp_attr;
use crate::number::bw_qp_type;
use crate::sized;
use hw::link::LinkId;
use std::ffi::{c_char, c_int};

/// Queries state and attributes of the link's queue pair, as the device has them, as `bw_qp_query`
/// does. Set `attr->size` before the call.
///
/// Errors: `BW_ERECOVERING` while a thread recovers the link, or if it has no queue pair, `BW_ENULL`,
/// `BW_ESIZE`.
/// Thread: the link's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_query_qp(link: *mut bw_link, attr: *mut bw_qp_attr) -> c_int {
    // SAFETY: the header's conventions on handles and sized structs.
    guard(|| unsafe {
        let link = at_home(link)?;
        sized::check(attr)?;
        let qp_num = link.qp_num().ok_or_else(away)?;
        let found = link.qp_attr().ok_or_else(away)?;
        let kind = bw_qp_type::BW_QPT_RC as u32;
        sized::write(attr, &bw_qp_attr::new(qp_num, kind, &found))
    })
}

/// Writes what the link's queue pair did last, as `bw_qp_dump` does; faults of the link are among its
/// notes. Little is left of a queue pair that has failed and was reset or replaced since: use
/// `bw_link_dump_failure` for that.
///
/// Errors: `BW_ERECOVERING` while a thread recovers the link, or if it has no queue pair, `BW_ELIMIT`,
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
    // SAFETY: the header's conventions on handles and sized structs.
    guard(|| unsafe {
        let link = at_home(link)?;
        let attr = sized::read_or_default(attr)?;
        let options = attr.options()?;
        let place = Place::new(&attr, buffer, capacity, length)?;
        place.write(&link.dump(&options).ok_or_else(away)?)
    })
}

/// Writes what the queue pair of the connection that failed last had done until it failed. With
/// `bw_link_init.dump_entries` such a dump is kept; only the format in `attr` is used. Otherwise as
/// `bw_qp_dump`.
///
/// Errors: `BW_ESTATE` if none is kept: no connection has failed, or `dump_entries` is 0;
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
    // SAFETY: the header's conventions on handles and sized structs.
    guard(|| unsafe {
        let link = at_home(link)?;
        let attr = sized::read_or_default(attr)?;
        let place = Place::new(&attr, buffer, capacity, length)?;
        place.write(link.failure().ok_or_else(none_kept)?)
    })
}

fn none_kept() -> Failure {
    Failure::new(
        BW_ESTATE,
        "no dump is kept: no connection of the link has failed, or bw_link_init.dump_entries is 0",
    )
}

/// As `bw_link_dump`, of a link of a set.
///
/// Errors: `BW_ENOLINK`, `BW_ERECOVERING` if the link has no queue pair, `BW_ELIMIT`, `BW_EINVAL`, `BW_ENULL`,
/// `BW_ESIZE`.
/// Thread: the set's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_dump(
    set: *mut bw_link_set,
    link: bw_link_id,
    attr: *const bw_dump_attr,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> c_int {
    // SAFETY: the header's conventions on handles and sized structs.
    guard(|| unsafe {
        let set = &mut get_mut(set, "set")?.set;
        let attr = sized::read_or_default(attr)?;
        let options = attr.options()?;
        let place = Place::new(&attr, buffer, capacity, length)?;
        let record = set.dump(LinkId::from_raw(link), &options)?;
        place.write(&record.ok_or_else(away)?)
    })
}

/// As `bw_link_dump_failure`, of a link of a set.
///
/// Errors: `BW_ENOLINK`, `BW_ESTATE` if none is kept, `BW_ELIMIT`, `BW_EINVAL`, `BW_ENULL`, `BW_ESIZE`.
/// Thread: the set's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_dump_failure(
    set: *mut bw_link_set,
    link: bw_link_id,
    attr: *const bw_dump_attr,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> c_int {
    // SAFETY: the header's conventions on handles and sized structs.
    guard(|| unsafe {
        let set = &mut get_mut(set, "set")?.set;
        let attr = sized::read_or_default(attr)?;
        let place = Place::new(&attr, buffer, capacity, length)?;
        let link = set.link(LinkId::from_raw(link))?;
        place.write(link.failure().ok_or_else(none_kept)?)
    })
}
