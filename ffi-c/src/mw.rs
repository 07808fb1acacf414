//! Memory windows. Those of type 2 are bound by send requests, in `post`.

use crate::code::{BW_EINVAL, BW_ETRANSPORT};
use crate::failure::{Failure, guard};
use crate::handle::{get, get_mut, give, take};
use crate::memory::bw_pd;
use crate::number::bw_mw_type;
use crate::post::flags;
use crate::qp::bw_qp;
use crate::transport::AnyQp;
use crate::used::User;
use hw::wqe::BindMwInfo;
use hw::wr::MwType;
use hw::{Binds, Mw, Qp};
use std::ffi::c_int;

/// A memory window: a key of its own to a part of registered memory, which requests bind and
/// invalidate.
#[derive(Debug)]
pub struct bw_mw {
    pub(crate) mw: Mw,
    _pd: User,
}

/// What a memory window is bound to (`ibv_mw_bind_info`). The memory needs BW_ACCESS_MW_BIND.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct bw_mw_bind_info {
    /// Where the window starts.
    pub addr: u64,
    /// Its length in bytes, up to 2 GiB; 0 unbinds the window.
    pub length: u32,
    /// Local key of the memory.
    pub lkey: u32,
    /// Access rights: the REMOTE ones of `bw_access_flags`, and ZERO_BASED.
    pub access: u32,
    /// 0.
    pub reserved: u32,
}

impl From<&bw_mw_bind_info> for BindMwInfo {
    fn from(info: &bw_mw_bind_info) -> Self {
        Self {
            lkey: info.lkey,
            addr: info.addr,
            length: info.length,
            access: info.access,
        }
    }
}

/// Creates a memory window (`ibv_alloc_mw`), which is not bound. `mw_type` is a `bw_mw_type`.
///
/// Owner: the caller, until `bw_mw_destroy`. It keeps the protection domain.
/// Errors: `BW_EINVAL`, `BW_EEXHAUSTED`, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_mw_create(
    pd: *const bw_pd,
    mw_type: u32,
    mw: *mut *mut bw_mw,
) -> c_int {
    let make = || {
        // SAFETY: the header's conventions on handles.
        let pd = unsafe { get(pd, "protection domain")? };
        let kind = match mw_type {
            t if t == bw_mw_type::BW_MW_TYPE_1 as u32 => MwType::Type1,
            t if t == bw_mw_type::BW_MW_TYPE_2 as u32 => MwType::Type2,
            other => {
                let text = format!("mw_type is {other}, which is not a bw_mw_type");
                return Err(Failure::new(BW_EINVAL, text));
            }
        };
        Ok(bw_mw {
            mw: pd.pd.alloc_mw(kind)?,
            _pd: pd.used.by(),
        })
    };
    // SAFETY: the header's conventions on results.
    unsafe { give(mw, make) }
}

/// Returns the window's rkey, as of the last bind that was posted: each bind changes it. It gives
/// access once that bind has been executed. Requests posted after the bind may use it at once. 0,
/// which is no key, if `mw` is NULL.
///
/// Thread: the window's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_mw_rkey(mw: *const bw_mw) -> u32 {
    // SAFETY: the header's conventions on handles.
    unsafe { mw.as_ref() }.map_or(0, |mw| mw.mw.rkey())
}

/// Binds a window of type 1 (`ibv_bind_mw`), or unbinds it if the length is 0. Posts the request on
/// the queue pair, and notifies the device. `bw_mw_rkey` returns the new key at once. A bind that
/// is not allowed completes with BW_WC_MW_BIND_ERR. A window of type 2 is bound by BW_WR_BIND_MW of
/// `bw_post_send`.
///
/// Errors: `BW_EINVAL` (of type 2; unknown flags; `reserved` is not 0), `BW_EFOREIGN`, `BW_ETRANSPORT`
/// (datagrams), `BW_EFULL`, `BW_ESTATE`, `BW_ENULL`.
/// Thread: the owner of the window and of the queue pair.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_mw_bind(
    qp: *mut bw_qp,
    mw: *mut bw_mw,
    wr_id: u64,
    info: *const bw_mw_bind_info,
    send_flags: u32,
) -> c_int {
    // SAFETY: the header's conventions on handles and pointers.
    guard(|| unsafe {
        let qp = get_mut(qp, "queue pair")?;
        let mw = &mut get_mut(mw, "memory window")?.mw;
        let info = info
            .as_ref()
            .ok_or_else(|| Failure::null("the bw_mw_bind_info"))?;
        crate::sized::zero("reserved", info.reserved)?;
        let flags = flags(send_flags).ok_or_else(|| {
            let text = format!("send_flags has unknown bits: {send_flags:#x}");
            Failure::new(BW_EINVAL, text)
        })?;
        let mut bind = Bind {
            mw,
            wr_id,
            info: info.into(),
            flags,
        };
        qp.alone(|qp| match qp {
            AnyQp::Rc(qp) => bind.on(qp, ()),
            AnyQp::Uc(qp) => bind.on(qp, ()),
            AnyQp::Xrc(qp) => bind.on(qp, 0),
            AnyQp::Ud(_) => Err(Failure::new(
                BW_ETRANSPORT,
                "nobody reaches memory through datagrams: bind on another queue pair",
            )),
        })
    })
}

/// A bind request to be posted.
struct Bind<'a> {
    mw: &'a mut Mw,
    wr_id: u64,
    info: BindMwInfo,
    flags: hw::wr::SendFlags,
}

impl Bind<'_> {
    fn on<T: Binds>(
        &mut self,
        qp: &mut Qp<T>,
        nobody: hw::wqe::Address<'_, T>,
    ) -> Result<(), Failure> {
        self.mw
            .bind(qp, self.wr_id, nobody, &self.info, self.flags)?;
        qp.sq().ring();
        Ok(())
    }
}

/// Destroys a memory window: when this returns no peer can use it any more.
///
/// Errors: `BW_ENULL`.
/// Thread: the window's owner; no other call on it may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_mw_destroy(mw: *mut bw_mw) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe { take(mw, "memory window", |_| Ok(())) })
}
