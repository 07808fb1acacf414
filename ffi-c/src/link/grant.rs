//! Memory that is lent to the peer for one exchange.

use super::bw_link;
use super::cancel::number;
use super::code::link_code;
use super::set::{bw_link_id, bw_link_set};
use crate::code::{BW_EFOREIGN, BW_EINVAL};
use crate::failure::{Failure, guard};
use crate::handle::get_mut;
use crate::memory::access;
use crate::post::flags;
use crate::wr::bw_sge;
use hw::link::{Grant, GrantError, Link, LinkId, RefusedGrant, SetLink};
use hw::wqe::Send;
use hw::wr::{Remote, SendFlags};
use std::ffi::{c_int, c_void};

impl From<GrantError> for Failure {
    fn from(error: GrantError) -> Self {
        let text = error.to_string();
        match error {
            GrantError::Link(refused) => Self::new(link_code(refused), text),
            GrantError::Foreign => Self::new(BW_EFOREIGN, text),
            GrantError::Key(error) => error.into(),
            _ => Self::new(BW_EINVAL, text),
        }
    }
}

/// Bytes of a key in a message.
const KEY: usize = 4;

/// What a call lends, and the message that says so.
struct Lending<'a> {
    grant: Grant,
    message: &'a mut [u8],
    rkey_at: usize,
    flags: SendFlags,
}

impl<'a> Lending<'a> {
    /// # Safety
    /// The caller keeps the header's conventions on pointers and posting, for the memory that is lent, too.
    unsafe fn new(
        lent: *const bw_sge,
        rights: u32,
        message: *mut c_void,
        length: u32,
        rkey_at: u32,
        send_flags: u32,
    ) -> Result<Self, Failure> {
        // SAFETY: the header's conventions on pointers.
        let lent = unsafe { lent.as_ref() }.ok_or_else(|| Failure::null("lent"))?;
        if message.is_null() {
            return Err(Failure::null("message"));
        }
        let (length, rkey_at) = (length as usize, rkey_at as usize);
        if rkey_at.checked_add(KEY).is_none_or(|end| end > length) {
            let text = format!(
                "the rkey at byte {rkey_at} of a message of {length} bytes: it takes {KEY} bytes"
            );
            return Err(Failure::new(BW_EINVAL, text));
        }
        let unknown = || {
            Failure::new(
                BW_EINVAL,
                format!("send_flags {send_flags:#x} has bits that are no bw_send_flags"),
            )
        };
        // SAFETY: the caller keeps the memory valid, and accesses it as the header says, until the request is reported.
        let grant = unsafe { Grant::raw(lent.lkey, lent.addr, lent.length, access(rights)?)? };
        Ok(Self {
            grant,
            // SAFETY: not NULL; the caller guarantees `length` bytes that nothing else accesses.
            message: unsafe { std::slice::from_raw_parts_mut(message.cast(), length) },
            rkey_at,
            flags: flags(send_flags).ok_or_else(unknown)?,
        })
    }

    /// The message for a key.
    fn message(message: &'a mut [u8], at: usize, remote: Remote) -> &'a [u8] {
        if let Some(place) = message.get_mut(at..at + KEY) {
            place.copy_from_slice(&remote.rkey.to_ne_bytes());
        }
        message
    }

    fn on_link(self, link: &mut Link, wr_id: u64) -> Result<(), RefusedGrant> {
        let Self {
            grant,
            message,
            rkey_at,
            flags,
        } = self;
        link.post_grant(
            wr_id,
            grant,
            Send {},
            |remote| Self::message(message, rkey_at, remote),
            flags,
        )
    }

    fn on_set_link(self, link: &mut SetLink<'_>, wr_id: u64) -> Result<(), RefusedGrant> {
        let Self {
            grant,
            message,
            rkey_at,
            flags,
        } = self;
        link.post_grant(
            wr_id,
            grant,
            Send {},
            |remote| Self::message(message, rkey_at, remote),
            flags,
        )
    }
}

/// Posts a SEND that lends memory to the peer until the exchange is over. `lent` names the memory; the `length` bytes at
/// `message` are sent inline. The device is not notified before `bw_link_ring_sq`. `access` has the peer's rights:
/// BW_ACCESS_REMOTE_READ, BW_ACCESS_REMOTE_WRITE and BW_ACCESS_REMOTE_ATOMIC. The region needs BW_ACCESS_MW_BIND, and
/// BW_ACCESS_LOCAL_WRITE if the peer may write. The function stores the rkey of the grant in the message, at byte
/// `rkey_at`, as a `uint32_t`. The peer accesses the memory by that rkey and by its own address, `lent->addr`.
///
/// The request is reported when the exchange is over and the rkey is invalid. So no peer accesses the memory by this
/// grant after the report, whatever became of the request. Until then the program does not access memory that the peer
/// may write, and does not write memory that the peer may read. The exchange is over, whichever comes first, when
///
/// - the peer answers by a SEND_WITH_INV of the rkey. The receive is reported before the request;
/// - the program has the answer by other means, and calls `bw_link_end_grant`;
/// - the program cancels the request (`bw_link_cancel`), or its deadline passes (`bw_link_cancel_after`);
/// - the link recovers, or ends. A request with a grant is never posted again.
///
/// Outcomes: BW_OUTCOME_EXECUTED: the exchange was answered. BW_OUTCOME_NOT_EXECUTED, BW_OUTCOME_FAILED: the peer's program
/// did not get the request. BW_OUTCOME_IN_DOUBT: the peer may have got it, and did not answer in time (BW_DOUBT_CANCELLED,
/// BW_DOUBT_DEADLINE_PASSED), or the connection failed before the answer (other reasons). Then the memory may have been
/// written, in part or whole, and an answer may still come. A peer that uses the rkey afterwards gets REM_ACCESS_ERR, or
/// REM_INV_REQ_ERR for a SEND_WITH_INV, and both links recover.
///
/// The rkey is that of a memory window of type 2. The link binds and invalidates the window among the program's sends.
/// These entries are neither reported nor counted. A device without windows registers the memory instead, for each request. The
/// first requests with grants that are open at the same time allocate, and create a window each.
///
/// Errors: those of `bw_link_post_send`, `BW_EINVAL` (also: no or other rights; rights that the link's
/// `bw_connect_attr.access` lacks; no bytes; the rkey is not within the message), those of `bw_mw_create`. The rkey in the
/// message may have been stored.
/// Thread: the link's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_post_send_grant(
    link: *mut bw_link,
    wr_id: u64,
    lent: *const bw_sge,
    access: u32,
    message: *mut c_void,
    length: u32,
    rkey_at: u32,
    send_flags: u32,
) -> c_int {
    guard(|| {
        // SAFETY: the header's conventions on handles, pointers and posting.
        let (link, lending) = unsafe {
            let link = get_mut(link, "link")?;
            let lending = Lending::new(lent, access, message, length, rkey_at, send_flags)?;
            (link, lending)
        };
        let posted = lending.on_link(&mut link.link, wr_id);
        posted.map_err(|refused| Failure::from(refused.error))
    })
}

/// The program has the answer to a request that lent memory (`bw_link_post_send_grant`): the link invalidates its rkey.
/// The polls that follow report the request as BW_OUTCOME_EXECUTED, unless the request itself failed. Not for answers by
/// SEND_WITH_INV, which do this themselves. Returns a `bw_cancel`, 0 or more. Posts a request, and notifies the device.
///
/// Errors: those of `bw_link_cancel`; `BW_ENOREQUEST` also for a request that lent no memory.
/// Thread: the link's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_end_grant(link: *mut bw_link, wr_id: u64) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe { number(get_mut(link, "link")?.link.end_grant(wr_id)) })
}

/// Posts a SEND that lends memory to a link of the set, as `bw_link_post_send_grant` does.
///
/// Errors: `BW_ENOLINK`, and those of `bw_link_post_send_grant`.
/// Thread: the set's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_post_send_grant(
    set: *mut bw_link_set,
    link: bw_link_id,
    wr_id: u64,
    lent: *const bw_sge,
    access: u32,
    message: *mut c_void,
    length: u32,
    rkey_at: u32,
    send_flags: u32,
) -> c_int {
    guard(|| {
        // SAFETY: the header's conventions on handles, pointers and posting.
        let (set, lending) = unsafe {
            let set = get_mut(set, "set")?;
            let lending = Lending::new(lent, access, message, length, rkey_at, send_flags)?;
            (set, lending)
        };
        let mut link = set.set.link(LinkId::from_raw(link))?;
        let posted = lending.on_set_link(&mut link, wr_id);
        posted.map_err(|refused| Failure::from(refused.error))
    })
}

/// Ends an exchange of a link of the set, as `bw_link_end_grant` does.
///
/// Errors: `BW_ENOLINK`, and those of `bw_link_end_grant`.
/// Thread: the set's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_link_set_end_grant(
    set: *mut bw_link_set,
    link: bw_link_id,
    wr_id: u64,
) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        let set = get_mut(set, "set")?;
        number(set.set.end_grant(LinkId::from_raw(link), wr_id))
    })
}
