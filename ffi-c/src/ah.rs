//! Address handles, and what else only datagrams have.

use crate::code::BW_EINVAL;
use crate::failure::{Failure, guard};
use crate::fault_number::bw_wc_status::BW_WC_SUCCESS;
use crate::handle::{get, get_mut, give, take};
use crate::memory::bw_pd;
use crate::number::bw_wc_flags::BW_WC_GRH;
use crate::number::bw_wc_opcode::BW_WC_RECV;
use crate::qp::bw_qp;
use crate::used::User;
use crate::wc::bw_wc;
use hw::cqe::Source;
use hw::state::{AhAttr, GlobalRoute};
use hw::{Ah, GRH_BYTES};
use std::ffi::{c_int, c_void};

/// A path to a receiver of datagrams, ready to be named by requests.
#[derive(Debug)]
pub struct bw_ah {
    pub(crate) ah: Ah,
    _pd: User,
}

/// A path (`ibv_ah_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct bw_ah_attr {
    /// Destination GID, in the order of the wire. This and the next fields, up to `traffic_class`,
    /// are used when `is_global`.
    pub dgid: [u8; 16],
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Index of the source GID in the port's table.
    pub sgid_index: u8,
    /// Routers that the packet may pass.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Not 0: with a global route, which arrives as the first 40 bytes of a datagram.
    pub is_global: u8,
    /// Destination LID.
    pub dlid: u16,
    /// Service level, 4 bits.
    pub sl: u8,
    /// Which of the port's LIDs is the source, 7 bits.
    pub src_path_bits: u8,
    /// Upper bound of the rate (`ibv_rate`); 0 is the port's own.
    pub static_rate: u8,
    /// Port, from 1.
    pub port_num: u8,
    /// 0.
    pub reserved: u16,
}

impl From<&AhAttr> for bw_ah_attr {
    fn from(attr: &AhAttr) -> Self {
        Self {
            dgid: attr.grh.dgid,
            flow_label: attr.grh.flow_label,
            sgid_index: attr.grh.sgid_index,
            hop_limit: attr.grh.hop_limit,
            traffic_class: attr.grh.traffic_class,
            is_global: attr.is_global.into(),
            dlid: attr.dlid,
            sl: attr.sl,
            src_path_bits: attr.src_path_bits,
            static_rate: attr.static_rate,
            port_num: attr.port_num,
            reserved: 0,
        }
    }
}

impl From<&bw_ah_attr> for AhAttr {
    fn from(attr: &bw_ah_attr) -> Self {
        Self {
            grh: GlobalRoute {
                dgid: attr.dgid,
                flow_label: attr.flow_label,
                sgid_index: attr.sgid_index,
                hop_limit: attr.hop_limit,
                traffic_class: attr.traffic_class,
            },
            dlid: attr.dlid,
            sl: attr.sl,
            src_path_bits: attr.src_path_bits,
            static_rate: attr.static_rate,
            is_global: attr.is_global != 0,
            port_num: attr.port_num,
        }
    }
}

/// # Safety
/// The header on handles and results.
unsafe fn create(
    pd: *const bw_pd,
    ah: *mut *mut bw_ah,
    attr: impl FnOnce() -> Result<AhAttr, Failure>,
) -> c_int {
    let make = || {
        // SAFETY: the caller's promise.
        let pd = unsafe { get(pd, "protection domain")? };
        Ok(bw_ah {
            ah: pd.pd.create_ah(&attr()?)?,
            _pd: pd.used.by(),
        })
    };
    // SAFETY: the caller's promise.
    unsafe { give(ah, make) }
}

/// Creates an address handle.
///
/// Owner: the caller, until `bw_ah_destroy`. It keeps the protection domain.
/// Errors: `BW_EINVAL` (a port or a source GID that the device does not have, a field out of range),
/// `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_ah_create(
    pd: *const bw_pd,
    attr: *const bw_ah_attr,
    ah: *mut *mut bw_ah,
) -> c_int {
    let attr = || {
        // SAFETY: NULL or a struct, by the header.
        let attr = unsafe { attr.as_ref() }.ok_or_else(|| Failure::null("the bw_ah_attr"))?;
        if attr.reserved != 0 {
            let text = format!("reserved is {}, and must be 0", attr.reserved);
            return Err(Failure::new(BW_EINVAL, text));
        }
        Ok(attr.into())
    };
    // SAFETY: the header on handles and results.
    unsafe { create(pd, ah, attr) }
}

/// The way back to a datagram's sender.
///
/// # Safety
/// `wc` is NULL or a completion, `grh` NULL or 40 bytes.
unsafe fn way_back(wc: *const bw_wc, grh: *const c_void, port_num: u32) -> Result<AhAttr, Failure> {
    // SAFETY: the caller's promise.
    let wc = unsafe { wc.as_ref() }.ok_or_else(|| Failure::null("the completion"))?;
    if (wc.status, wc.opcode) != (BW_WC_SUCCESS as u32, BW_WC_RECV as u32) {
        return Err(hw::Error::NotADatagram.into());
    }
    let port_num = u8::try_from(port_num).map_err(|_| {
        let text = format!("port_num is {port_num}, which is out of its range");
        Failure::new(BW_EINVAL, text)
    })?;
    let source = Source {
        qpn: wc.src_qp,
        slid: wc.slid,
        sl: wc.sl,
        dlid_path_bits: wc.dlid_path_bits,
        grh: wc.wc_flags & BW_WC_GRH as u32 != 0,
    };
    let none = [0; GRH_BYTES];
    let grh = if source.grh {
        // SAFETY: NULL or 40 bytes, by the caller's promise.
        unsafe { grh.cast::<[u8; GRH_BYTES]>().as_ref() }.ok_or_else(|| Failure::null("grh"))?
    } else {
        &none
    };
    Ok(hw::ah_attr_from_source(&source, grh, port_num)?)
}

/// The path back to a datagram's sender (`ibv_init_ah_from_wc`): `wc` is how its receive completed,
/// `grh` the first 40 bytes of the receive's memory (not looked at without BW_WC_GRH), `port_num` the
/// port that it came in by.
///
/// Errors: `BW_EINVAL` (not a received datagram, or not a route header), `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_ah_init_from_wc(
    wc: *const bw_wc,
    grh: *const c_void,
    port_num: u32,
    attr: *mut bw_ah_attr,
) -> c_int {
    guard(|| {
        if attr.is_null() {
            return Err(Failure::null("the bw_ah_attr"));
        }
        // SAFETY: the header on pointers; `attr` is not NULL.
        unsafe { attr.write((&way_back(wc, grh, port_num)?).into()) };
        Ok(())
    })
}

/// Creates an address handle to answer a datagram with (`ibv_create_ah_from_wc`), from what
/// `bw_ah_init_from_wc` takes.
///
/// Owner: the caller, until `bw_ah_destroy`. It keeps the protection domain.
/// Errors: `BW_EINVAL`, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_ah_create_from_wc(
    pd: *const bw_pd,
    wc: *const bw_wc,
    grh: *const c_void,
    port_num: u32,
    ah: *mut *mut bw_ah,
) -> c_int {
    // SAFETY: the header on handles, pointers and results.
    unsafe { create(pd, ah, || way_back(wc, grh, port_num)) }
}

/// What an address handle was made of.
///
/// Errors: `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_ah_query(ah: *const bw_ah, attr: *mut bw_ah_attr) -> c_int {
    guard(|| {
        // SAFETY: the header on handles.
        let ah = unsafe { get(ah, "address handle")? };
        if attr.is_null() {
            return Err(Failure::null("the bw_ah_attr"));
        }
        // SAFETY: not NULL.
        unsafe { attr.write(ah.ah.attr().into()) };
        Ok(())
    })
}

/// Destroys an address handle. Requests that were posted with it are not touched by that.
///
/// Errors: `BW_ENULL`.
/// Thread: any; no other call with the address handle, a post neither, may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_ah_destroy(ah: *mut bw_ah) -> c_int {
    // SAFETY: the header on handles.
    guard(|| unsafe { take(ah, "address handle", |_| Ok(())) })
}

/// # Safety
/// The header on handles; `gid` is NULL or 16 bytes.
unsafe fn group(
    qp: *mut bw_qp,
    gid: *const u8,
    call: impl FnOnce(&hw::Qp<hw::wqe::Ud>, [u8; 16]) -> Result<(), hw::Error>,
) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    unsafe {
        let qp = get_mut(qp, "queue pair")?;
        let gid = *gid
            .cast::<[u8; 16]>()
            .as_ref()
            .ok_or_else(|| Failure::null("gid"))?;
        qp.alone(|qp| Ok(call(qp.datagrams()?, gid)?))
    }
}

/// Attaches a queue pair of datagrams to a multicast group (`ibv_attach_mcast`): it gets what is sent
/// to this MGID, of 16 bytes, and MLID. Attached twice, it still gets one copy. A queue pair that is
/// destroyed leaves its groups.
///
/// Errors: `BW_ETRANSPORT`, `BW_EINVAL` (not a multicast address), `BW_EEXHAUSTED` (the group is
/// full), `BW_ENULL`.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_qp_attach_mcast(qp: *mut bw_qp, gid: *const u8, lid: u16) -> c_int {
    // SAFETY: the header on handles and pointers.
    guard(|| unsafe { group(qp, gid, |qp, gid| qp.attach_mcast(gid, lid)) })
}

/// Detaches it (`ibv_detach_mcast`).
///
/// Errors: `BW_ETRANSPORT`, `BW_EINVAL` when it is not attached, `BW_ENULL`.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_qp_detach_mcast(qp: *mut bw_qp, gid: *const u8, lid: u16) -> c_int {
    // SAFETY: the header on handles and pointers.
    guard(|| unsafe { group(qp, gid, |qp, gid| qp.detach_mcast(gid, lid)) })
}
