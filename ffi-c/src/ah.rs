//! Address handles, and other things that only datagrams need.

use crate::array::one;
use crate::code::{BW_EINVAL, BW_ENULL};
use crate::failure::{Failure, guard};
use crate::fault_number::bw_wc_status::BW_WC_SUCCESS;
use crate::handle::{get, get_mut, give, take};
use crate::memory::bw_pd;
use crate::number::bw_wc_flags::BW_WC_GRH;
use crate::number::bw_wc_opcode::BW_WC_RECV;
use crate::qp::bw_qp;
use crate::sized::zero;
use crate::used::User;
use crate::wc::bw_wc;
use hw::cqe::Source;
use hw::state::{AhAttr, GlobalRoute};
use hw::{Ah, GRH_BYTES, Pd};
use std::ffi::{c_int, c_void};

/// A path to a receiver of datagrams, for use by requests.
#[derive(Debug)]
pub struct bw_ah {
    pub(crate) ah: Ah,
    _pd: User,
}

/// Attributes of a path (`ibv_ah_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct bw_ah_attr {
    /// Destination GID, in wire order. This and the next fields, up to `traffic_class`, are used if
    /// `is_global` is set.
    pub dgid: [u8; 16],
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Index of the source GID in the port's table.
    pub sgid_index: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Not 0: with a global route header, which is received as the first 40 bytes of a datagram.
    pub is_global: u8,
    /// Destination LID.
    pub dlid: u16,
    /// Service level, 4 bits.
    pub sl: u8,
    /// Source path bits: which of the port's LIDs is the source, 7 bits.
    pub src_path_bits: u8,
    /// Upper bound of the rate (`ibv_rate`); 0 means the port's own.
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

impl bw_ah_attr {
    /// The library's form of the path; ranges are checked when it is used.
    pub(crate) fn checked(&self) -> Result<AhAttr, Failure> {
        zero("reserved", self.reserved.into())?;
        Ok(AhAttr {
            grh: GlobalRoute {
                dgid: self.dgid,
                flow_label: self.flow_label,
                sgid_index: self.sgid_index,
                hop_limit: self.hop_limit,
                traffic_class: self.traffic_class,
            },
            dlid: self.dlid,
            sl: self.sl,
            src_path_bits: self.src_path_bits,
            static_rate: self.static_rate,
            is_global: self.is_global != 0,
            port_num: self.port_num,
        })
    }
}

/// # Safety
/// The caller keeps the header's conventions on handles and results.
unsafe fn create(
    pd: *const bw_pd,
    ah: *mut *mut bw_ah,
    create: impl FnOnce(&Pd) -> Result<hw::Ah, Failure>,
) -> c_int {
    let make = || {
        // SAFETY: the caller keeps the header's conventions on handles and results.
        let pd = unsafe { get(pd, "protection domain")? };
        Ok(bw_ah {
            ah: create(&pd.pd)?,
            _pd: pd.used.by(),
        })
    };
    // SAFETY: the caller keeps the header's conventions on handles and results.
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
    let from_attr = |pd: &Pd| {
        // SAFETY: the header's conventions on pointers: NULL or a struct.
        let attr = unsafe { attr.as_ref() }.ok_or_else(|| Failure::null("the bw_ah_attr"))?;
        Ok(pd.create_ah(&attr.checked()?)?)
    };
    // SAFETY: the header's conventions on handles and results.
    unsafe { create(pd, ah, from_attr) }
}

/// A datagram that was received: its source, its header, and its port.
///
/// # Safety
/// `wc` is NULL or points to a completion of `size` bytes, `grh` is NULL or points to 40 bytes.
unsafe fn received(
    wc: *const bw_wc,
    size: usize,
    grh: *const c_void,
    port_num: u32,
) -> Result<(Source, [u8; GRH_BYTES], u8), Failure> {
    // SAFETY: the caller guarantees that `wc` is NULL or points to a completion of this size.
    let wc = unsafe { one(wc, size) }.map_err(|code| {
        let text = match code {
            BW_ENULL => "the completion is NULL",
            _ => "the size of the completion is wrong: pass sizeof(bw_wc)",
        };
        Failure::new(code, text)
    })?;
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
    let grh = if source.grh {
        // SAFETY: the caller guarantees that `grh` is NULL or points to 40 bytes.
        *unsafe { grh.cast::<[u8; GRH_BYTES]>().as_ref() }.ok_or_else(|| Failure::null("grh"))?
    } else {
        [0; GRH_BYTES]
    };
    Ok((source, grh, port_num))
}

/// `bw_ah_init_from_wc` for a completion of `size` bytes: writes the path back to a datagram's
/// sender to `attr` (`ibv_init_ah_from_wc`). `wc` is the completion of the receive, `grh` the first
/// 40 bytes of its memory (ignored without BW_WC_GRH). In these bytes RoCE v2 has an IPv4 or an
/// IPv6 header. `port_num` is the port on which the datagram arrived. On RoCE the path begins at
/// the GID that the datagram was sent to. Its index is looked for on the devices that the process
/// has open. If several devices have that GID, use `bw_ah_create_from_wc`, which looks on one
/// device.
///
/// Errors: `BW_EINVAL` (not a received datagram, not a global route header, or one to a GID that no device or
/// more than one has), `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_ah_init_from_wc_sized(
    wc: *const bw_wc,
    size: usize,
    grh: *const c_void,
    port_num: u32,
    attr: *mut bw_ah_attr,
) -> c_int {
    guard(|| {
        if attr.is_null() {
            return Err(Failure::null("the bw_ah_attr"));
        }
        // SAFETY: the header's conventions on pointers.
        let (source, grh, port_num) = unsafe { received(wc, size, grh, port_num)? };
        let back = hw::ah_attr_from_source(&source, &grh, port_num)?;
        // SAFETY: not NULL.
        unsafe { attr.write((&back).into()) };
        Ok(())
    })
}

/// `bw_ah_create_from_wc` for a completion of `size` bytes: creates an address handle for replying to a
/// datagram (`ibv_create_ah_from_wc`), from the arguments of `bw_ah_init_from_wc`. The GID that the datagram was
/// sent to is looked for on the protection domain's device.
///
/// Owner: the caller, until `bw_ah_destroy`. It keeps the protection domain.
/// Errors: `BW_EINVAL`, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_ah_create_from_wc_sized(
    pd: *const bw_pd,
    wc: *const bw_wc,
    size: usize,
    grh: *const c_void,
    port_num: u32,
    ah: *mut *mut bw_ah,
) -> c_int {
    let from_wc = |pd: &Pd| {
        // SAFETY: the header's conventions on pointers.
        let (source, grh, port_num) = unsafe { received(wc, size, grh, port_num)? };
        Ok(pd.create_ah_from_source(&source, &grh, port_num)?)
    };
    // SAFETY: the header's conventions on handles and results.
    unsafe { create(pd, ah, from_wc) }
}

/// Returns the attributes that an address handle was created with.
///
/// Errors: `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_ah_query(ah: *const bw_ah, attr: *mut bw_ah_attr) -> c_int {
    guard(|| {
        // SAFETY: the header's conventions on handles.
        let ah = unsafe { get(ah, "address handle")? };
        if attr.is_null() {
            return Err(Failure::null("the bw_ah_attr"));
        }
        // SAFETY: not NULL.
        unsafe { attr.write(ah.ah.attr().into()) };
        Ok(())
    })
}

/// Destroys an address handle. Requests that were posted with it are not affected.
///
/// Errors: `BW_ENULL`.
/// Thread: any; no other call with the address handle, including a post, may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_ah_destroy(ah: *mut bw_ah) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe { take(ah, "address handle", |_| Ok(())) })
}

/// # Safety
/// The caller keeps the header's conventions on handles; `gid` is NULL or 16 bytes.
unsafe fn group(
    qp: *mut bw_qp,
    gid: *const u8,
    call: impl FnOnce(&hw::Qp<hw::wqe::Ud>, [u8; 16]) -> Result<(), hw::Error>,
) -> Result<(), Failure> {
    // SAFETY: the caller keeps the header's conventions on handles; `gid` is NULL or 16 bytes.
    unsafe {
        let qp = get_mut(qp, "queue pair")?;
        let gid = *gid
            .cast::<[u8; 16]>()
            .as_ref()
            .ok_or_else(|| Failure::null("gid"))?;
        qp.alone(|qp| Ok(call(qp.datagrams()?, gid)?))
    }
}

/// Attaches a queue pair for datagrams to a multicast group (`ibv_attach_mcast`): it receives
/// datagrams to this MGID, of 16 bytes, and MLID. If it is attached twice it still receives one copy.
/// A queue pair that is destroyed leaves its groups.
///
/// Errors: `BW_ETRANSPORT`, `BW_EINVAL` (not a multicast address), `BW_EEXHAUSTED` (the group is
/// full), `BW_ENULL`.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_qp_attach_mcast(qp: *mut bw_qp, gid: *const u8, lid: u16) -> c_int {
    // SAFETY: the header's conventions on handles and pointers.
    guard(|| unsafe { group(qp, gid, |qp, gid| qp.attach_mcast(gid, lid)) })
}

/// Detaches the queue pair from the group (`ibv_detach_mcast`).
///
/// Errors: `BW_ETRANSPORT`, `BW_EINVAL` if it is not attached, `BW_ENULL`.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_qp_detach_mcast(qp: *mut bw_qp, gid: *const u8, lid: u16) -> c_int {
    // SAFETY: the header's conventions on handles and pointers.
    guard(|| unsafe { group(qp, gid, |qp, gid| qp.detach_mcast(gid, lid)) })
}
