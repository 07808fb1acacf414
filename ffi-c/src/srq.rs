//! Shared receive queues. Posting is in `post`.

use crate::cq::bw_cq;
use crate::entered::Entered;
use crate::failure::guard;
use crate::handle::{get, get_mut, give, take_with};
use crate::memory::bw_pd;
use crate::qp::bw_flushed_fn;
use crate::sized::{self, Versioned};
use crate::used::{Used, User};
use crate::xrc::bw_xrcd;
use hw::{Srq, SrqInit};
use std::ffi::{c_int, c_void};

/// A receive queue that several queue pairs share.
#[derive(Debug)]
pub struct bw_srq {
    pub(crate) srq: Srq,
    pub(crate) entered: Entered,
    pub(crate) used: Used,
    _users: Vec<User>,
}

impl bw_srq {
    /// Entries that a queue pair with this shared receive queue reserves in its completion queue.
    pub(crate) fn entries(&self) -> u32 {
        // The ring has one WQE more than can be posted.
        self.srq.query().max_wr + 1
    }
}

/// Attributes that a shared receive queue is created with (`ibv_srq_init_attr`).
/// `bw_srq_init_attr_default` fills it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct bw_srq_init_attr {
    /// `sizeof(bw_srq_init_attr)`.
    pub size: u32,
    /// Receives in flight, at least 1.
    pub max_wr: u32,
    /// Scatter/gather elements of a receive.
    pub max_sge: u32,
    /// The initial limit, as `bw_srq_modify` sets it; 0 means none.
    pub srq_limit: u32,
}

impl Default for bw_srq_init_attr {
    fn default() -> Self {
        let init = SrqInit::default();
        Self {
            size: size_of::<Self>() as u32,
            max_wr: init.max_wr,
            max_sge: init.max_sge,
            srq_limit: init.srq_limit,
        }
    }
}

// SAFETY: repr(C), integers only, without padding; the size is the first field.
unsafe impl Versioned for bw_srq_init_attr {
    const SIZES: &'static [usize] = &[size_of::<Self>()];
}

impl From<bw_srq_init_attr> for SrqInit {
    fn from(attr: bw_srq_init_attr) -> Self {
        Self {
            max_wr: attr.max_wr,
            max_sge: attr.max_sge,
            srq_limit: attr.srq_limit,
        }
    }
}

/// Sizes and limit of a shared receive queue (`ibv_srq_attr`).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct bw_srq_info {
    /// `sizeof(bw_srq_info)`.
    pub size: u32,
    /// Its number, by which XRC requests name it.
    pub srq_num: u32,
    /// Receives in flight: at least as many as requested.
    pub max_wr: u32,
    /// Scatter/gather elements of a receive: at least as many as requested.
    pub max_sge: u32,
    /// The limit; 0 if none is set, or if it has been reached.
    pub srq_limit: u32,
}

// SAFETY: repr(C), integers only, without padding; the size is the first field.
unsafe impl Versioned for bw_srq_info {
    const SIZES: &'static [usize] = &[size_of::<Self>()];
}

/// Fills `attr`, of `size` bytes, with its size and the defaults:
/// `bw_srq_init_attr_default(&attr, sizeof(attr))`.
///
/// Errors: `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_srq_init_attr_default(
    attr: *mut bw_srq_init_attr,
    size: usize,
) -> c_int {
    // SAFETY: the header's conventions on sized structs.
    guard(|| unsafe { sized::fill(attr, size) })
}

/// Creates a shared receive queue, for `bw_qp_init_attr.srq`. Receives are reported by the completion
/// queue of the queue pair that consumed them. If `attr` is NULL the defaults are used.
///
/// Owner: the caller, until `bw_srq_destroy`. It keeps the protection domain.
/// Errors: `BW_ELIMIT`, `BW_EINVAL` (no receives), `BW_EEXHAUSTED`, `BW_EMEMORY`, `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_srq_create(
    pd: *const bw_pd,
    attr: *const bw_srq_init_attr,
    srq: *mut *mut bw_srq,
) -> c_int {
    // SAFETY: the header's conventions on handles, sized structs and results.
    unsafe {
        give(srq, || {
            let (pd, attr) = (get(pd, "protection domain")?, sized::read_or_default(attr)?);
            Ok(bw_srq {
                entered: Entered::default(),
                srq: pd.pd.create_srq(&attr.into())?,
                used: Used::default(),
                _users: vec![pd.used.by()],
            })
        })
    }
}

/// Creates a shared receive queue for XRC: initiators that are connected with a target of the domain
/// name it by its number. Receives are reported by `cq`, which must have room for one entry more than
/// `bw_srq_info.max_wr`. If `attr` is NULL the defaults are used.
///
/// Owner: the caller, until `bw_srq_destroy`. It keeps the protection domain, the XRC domain and the
/// completion queue.
/// Errors: `BW_ELIMIT`, `BW_ECQROOM`, `BW_EFOREIGN`, `BW_EEXHAUSTED`, `BW_EMEMORY`, `BW_ENULL`,
/// `BW_ESIZE`.
/// Thread: the completion queue's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_srq_create_xrc(
    pd: *const bw_pd,
    xrcd: *const bw_xrcd,
    cq: *mut bw_cq,
    attr: *const bw_srq_init_attr,
    srq: *mut *mut bw_srq,
) -> c_int {
    // SAFETY: the header's conventions on handles, sized structs and results; the caller owns the
    // completion queue.
    unsafe {
        give(srq, || {
            let (pd, attr) = (get(pd, "protection domain")?, sized::read_or_default(attr)?);
            let xrcd = get(xrcd, "XRC domain")?;
            let cq = get_mut(cq, "completion queue")?;
            Ok(bw_srq {
                entered: Entered::default(),
                srq: (pd.pd).create_xrc_srq(&xrcd.xrcd, &mut cq.cq, &attr.into())?,
                used: Used::default(),
                _users: vec![pd.used.by(), xrcd.used.by(), cq.used.by()],
            })
        })
    }
}

/// Returns its sizes, its limit, and its number (`ibv_query_srq`). Set `info->size` before the call.
///
/// Errors: `BW_ENULL`, `BW_ESIZE`.
/// Thread: the shared receive queue's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_srq_query(srq: *const bw_srq, info: *mut bw_srq_info) -> c_int {
    // SAFETY: the header's conventions on handles and sized structs.
    guard(|| unsafe {
        let srq = &get(srq, "shared receive queue")?.srq;
        let attr = srq.query();
        let found = bw_srq_info {
            size: 0,
            srq_num: srq.srq_num(),
            max_wr: attr.max_wr,
            max_sge: attr.max_sge,
            srq_limit: attr.srq_limit,
        };
        sized::write(info, &found)
    })
}

/// Sets the limit (`ibv_modify_srq` with `IBV_SRQ_LIMIT`). When a message consumes a receive and
/// fewer than `srq_limit` remain, BW_EVENT_SRQ_LIMIT_REACHED is raised once, and the limit becomes
/// 0. 0 sets no limit.
///
/// Errors: `BW_ELIMIT` above `bw_srq_info.max_wr`, `BW_ENULL`.
/// Thread: the shared receive queue's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_srq_modify(srq: *mut bw_srq, srq_limit: u32) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        Ok(get_mut(srq, "shared receive queue")?
            .srq
            .modify(srq_limit)?)
    })
}

/// Destroys a shared receive queue. Receives that were posted and not reported yet are reported here:
/// `cleared`, unless NULL, is called for each, in no particular order. Completions of it that were not
/// polled are dropped. Waits until the asynchronous events that were taken for it are acknowledged.
///
/// Errors: `BW_EBUSY` while queue pairs use it, `BW_ENULL`.
/// Thread: the owner of the shared receive queue, and of its completion queue if it is for XRC. No
/// other call on it may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_srq_destroy(
    srq: *mut bw_srq,
    cleared: bw_flushed_fn,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        let check = |srq: &mut bw_srq| srq.used.check("shared receive queue", "queue pairs");
        let Some(bw_srq { srq, .. }) = take_with(srq, "shared receive queue", check)? else {
            return Ok(());
        };
        let report = |wr_id, _| {
            if let Some(cleared) = cleared {
                // The program's callback, with the context that it gave.
                cleared(context, wr_id);
            }
        };
        // Nothing uses it: `check` has made sure.
        srq.destroy(report).map_err(|(_, error)| error)?;
        Ok(())
    })
}
