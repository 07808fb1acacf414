//! Changing a queue pair attribute by attribute, and querying it.

use crate::ah::bw_ah_attr;
use crate::code::BW_EINVAL;
use crate::failure::{Failure, guard};
use crate::handle::get_mut;
use crate::memory::access;
use crate::qp::bw_qp;
use crate::sized::{self, Versioned};
use crate::transport::{AnyQp, each};
use hw::state::{AhAttr, MigState, Mtu, QpAttr, QpAttrMask, QpCap, QpState};
use std::ffi::c_int;
use std::mem::offset_of;

/// State and attributes of a queue pair (`ibv_qp_attr`). For `bw_qp_modify` the mask says which fields
/// are given; the others are ignored.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct bw_qp_attr {
    /// `sizeof(bw_qp_attr)`.
    pub size: u32,
    /// A `bw_qp_state`: the state to move to, or the present state.
    pub qp_state: u32,
    /// A `bw_qp_state`: the state that the program assumes the queue pair to be in.
    pub cur_qp_state: u32,
    /// A `bw_mtu`.
    pub path_mtu: u32,
    /// A `bw_mig_state`.
    pub path_mig_state: u32,
    /// Datagrams only: the Q_Key that senders have to name.
    pub qkey: u32,
    /// Expected PSN of the first packet received, 24 bits.
    pub rq_psn: u32,
    /// PSN of the first packet sent, 24 bits.
    pub sq_psn: u32,
    /// The peer's queue pair number.
    pub dest_qp_num: u32,
    /// What the peer may do: `bw_access_flags`.
    pub qp_access_flags: u32,
    /// Send requests in flight, as in `bw_qp_init_attr`, like the next four fields.
    pub max_send_wr: u32,
    /// Receives in flight; 0 without a receive queue of its own.
    pub max_recv_wr: u32,
    /// Scatter/gather elements of a send request.
    pub max_send_sge: u32,
    /// Scatter/gather elements of a receive; 0 without a receive queue of its own.
    pub max_recv_sge: u32,
    /// Inline bytes of a send request.
    pub max_inline_data: u32,
    /// The path to the peer.
    pub ah_attr: bw_ah_attr,
    /// The alternate path.
    pub alt_ah_attr: bw_ah_attr,
    /// Index of the partition key in the port's table.
    pub pkey_index: u32,
    /// Index of the partition key for the alternate path.
    pub alt_pkey_index: u32,
    /// Not 0: raise BW_EVENT_SQ_DRAINED when the send queue has drained.
    pub en_sqd_async_notify: u32,
    /// Query only, in SQD: not 0 while started sends have not all finished.
    pub sq_draining: u32,
    /// READs and atomics in flight as the requester.
    pub max_rd_atomic: u32,
    /// READs and atomics in flight as the responder.
    pub max_dest_rd_atomic: u32,
    /// RNR NAK timer: how long the peer waits for a receive of this side, a 5-bit code.
    pub min_rnr_timer: u32,
    /// Port, from 1.
    pub port_num: u32,
    /// Acknowledgement timeout, a 5-bit code: 4.096 µs · 2^t; 0 means infinite.
    pub timeout: u32,
    /// Transport retries (no acknowledgement), up to 7.
    pub retry_cnt: u32,
    /// RNR retries (no receive posted at the peer), up to 6; 7 means infinite.
    pub rnr_retry: u32,
    /// Port of the alternate path.
    pub alt_port_num: u32,
    /// Acknowledgement timeout of the alternate path.
    pub alt_timeout: u32,
    /// Rate limit in kbit/s.
    pub rate_limit: u32,
    /// Query only: the queue pair number.
    pub qp_num: u32,
    /// Query only: a `bw_qp_type`.
    pub qp_type: u32,
    /// Query only: the UDP source port of RoCE v2 packets, if one was set (`bw_connect_attr`, or
    /// BW_CM_UDP_SPORT); otherwise 0.
    pub udp_sport: u32,
}

// SAFETY: repr(C), integers only, without padding; the size is the first field.
unsafe impl Versioned for bw_qp_attr {
    const SIZES: &'static [usize] = &[offset_of!(Self, udp_sport), size_of::<Self>()];
}

/// Checks that a field that is given has a valid value.
fn known<T: Default>(
    meant: bool,
    what: &str,
    given: u32,
    from: impl FnOnce(u32) -> Option<T>,
) -> Result<T, Failure> {
    if !meant {
        return Ok(T::default());
    }
    from(given).ok_or_else(|| {
        let text = format!("{what} is {given}, which is out of its range");
        Failure::new(BW_EINVAL, text)
    })
}

fn small<T: TryFrom<u32>>(value: u32) -> Option<T> {
    T::try_from(value).ok()
}

/// A path, if it is given.
fn path(meant: bool, given: &bw_ah_attr) -> Result<AhAttr, Failure> {
    match meant {
        true => given.checked(),
        false => Ok(AhAttr::default()),
    }
}

impl bw_qp_attr {
    /// The library's form of what the mask names; ranges are checked when it is used.
    fn checked(&self, mask: QpAttrMask) -> Result<QpAttr, Failure> {
        use QpAttrMask as M;
        let state = |value| QpState::from_number(small(value)?);
        let on = |bit| mask.contains(bit);
        Ok(QpAttr {
            qp_state: known(on(M::STATE), "qp_state", self.qp_state, state)?,
            cur_qp_state: known(on(M::CUR_STATE), "cur_qp_state", self.cur_qp_state, state)?,
            path_mtu: known(on(M::PATH_MTU), "path_mtu", self.path_mtu, |value| {
                Mtu::from_number(small(value)?)
            })?,
            path_mig_state: known(
                on(M::PATH_MIG_STATE),
                "path_mig_state",
                self.path_mig_state,
                |value| MigState::from_number(small(value)?),
            )?,
            qkey: self.qkey,
            rq_psn: self.rq_psn,
            sq_psn: self.sq_psn,
            dest_qp_num: self.dest_qp_num,
            qp_access_flags: if on(M::ACCESS_FLAGS) {
                access(self.qp_access_flags)?
            } else {
                Default::default()
            },
            cap: QpCap {
                max_send_wr: self.max_send_wr,
                max_recv_wr: self.max_recv_wr,
                max_send_sge: self.max_send_sge,
                max_recv_sge: self.max_recv_sge,
                max_inline_data: self.max_inline_data,
            },
            ah_attr: path(on(M::AV), &self.ah_attr)?,
            alt_ah_attr: path(on(M::ALT_PATH), &self.alt_ah_attr)?,
            pkey_index: known(on(M::PKEY_INDEX), "pkey_index", self.pkey_index, small)?,
            alt_pkey_index: known(
                on(M::ALT_PATH),
                "alt_pkey_index",
                self.alt_pkey_index,
                small,
            )?,
            en_sqd_async_notify: self.en_sqd_async_notify != 0,
            sq_draining: false,
            max_rd_atomic: known(
                on(M::MAX_QP_RD_ATOMIC),
                "max_rd_atomic",
                self.max_rd_atomic,
                small,
            )?,
            max_dest_rd_atomic: known(
                on(M::MAX_DEST_RD_ATOMIC),
                "max_dest_rd_atomic",
                self.max_dest_rd_atomic,
                small,
            )?,
            min_rnr_timer: known(
                on(M::MIN_RNR_TIMER),
                "min_rnr_timer",
                self.min_rnr_timer,
                small,
            )?,
            port_num: known(on(M::PORT), "port_num", self.port_num, small)?,
            timeout: known(on(M::TIMEOUT), "timeout", self.timeout, small)?,
            retry_cnt: known(on(M::RETRY_CNT), "retry_cnt", self.retry_cnt, small)?,
            rnr_retry: known(on(M::RNR_RETRY), "rnr_retry", self.rnr_retry, small)?,
            alt_port_num: known(on(M::ALT_PATH), "alt_port_num", self.alt_port_num, small)?,
            alt_timeout: known(on(M::ALT_PATH), "alt_timeout", self.alt_timeout, small)?,
            rate_limit: self.rate_limit,
            udp_sport: None,
        })
    }

    pub(crate) fn new(qp_num: u32, qp_type: u32, attr: &QpAttr) -> Self {
        Self {
            size: 0,
            qp_state: attr.qp_state.number().into(),
            cur_qp_state: attr.cur_qp_state.number().into(),
            path_mtu: attr.path_mtu.number().into(),
            path_mig_state: attr.path_mig_state.number().into(),
            qkey: attr.qkey,
            rq_psn: attr.rq_psn,
            sq_psn: attr.sq_psn,
            dest_qp_num: attr.dest_qp_num,
            qp_access_flags: attr.qp_access_flags.bits(),
            max_send_wr: attr.cap.max_send_wr,
            max_recv_wr: attr.cap.max_recv_wr,
            max_send_sge: attr.cap.max_send_sge,
            max_recv_sge: attr.cap.max_recv_sge,
            max_inline_data: attr.cap.max_inline_data,
            ah_attr: (&attr.ah_attr).into(),
            alt_ah_attr: (&attr.alt_ah_attr).into(),
            pkey_index: attr.pkey_index.into(),
            alt_pkey_index: attr.alt_pkey_index.into(),
            en_sqd_async_notify: attr.en_sqd_async_notify.into(),
            sq_draining: attr.sq_draining.into(),
            max_rd_atomic: attr.max_rd_atomic.into(),
            max_dest_rd_atomic: attr.max_dest_rd_atomic.into(),
            min_rnr_timer: attr.min_rnr_timer.into(),
            port_num: attr.port_num.into(),
            timeout: attr.timeout.into(),
            retry_cnt: attr.retry_cnt.into(),
            rnr_retry: attr.rnr_retry.into(),
            alt_port_num: attr.alt_port_num.into(),
            alt_timeout: attr.alt_timeout.into(),
            rate_limit: attr.rate_limit,
            qp_num,
            qp_type,
            udp_sport: attr.udp_sport.map_or(0, u32::from),
        }
    }
}

/// The attributes and the mask that a program passed to change a queue pair.
///
/// # Safety
/// The caller keeps the header's conventions on sized structs.
pub(crate) unsafe fn change(
    attr: *const bw_qp_attr,
    mask: u32,
) -> Result<(QpAttr, QpAttrMask), Failure> {
    // SAFETY: the caller keeps the header's conventions on sized structs.
    let attr = unsafe { sized::read(attr)? };
    let mask = QpAttrMask::from_bits(mask).ok_or_else(|| {
        let unknown = mask & !QpAttrMask::all().bits();
        Failure::new(
            BW_EINVAL,
            format!("the mask has unknown bits: {unknown:#x}"),
        )
    })?;
    Ok((attr.checked(mask)?, mask))
}

/// Changes those attributes of `attr` that `mask` names, bits of `bw_qp_attr_mask` (`ibv_modify_qp`).
/// `bw_qp_init`, `bw_qp_connect` and `bw_qp_start` do the usual changes in one call. For RESET use
/// `bw_qp_reset`.
///
/// Errors: `BW_ESTATE` (no such transition; the state is not `cur_qp_state`; still draining; RESET),
/// `BW_EINVAL` (`bw_last_error` names each attribute that is missing, not allowed or out of range),
/// `BW_ENULL`, `BW_ESIZE`.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_qp_modify(qp: *mut bw_qp, attr: *const bw_qp_attr, mask: u32) -> c_int {
    // SAFETY: the header's conventions on handles and sized structs.
    guard(|| unsafe {
        let qp = get_mut(qp, "queue pair")?;
        let (attr, mask) = change(attr, mask)?;
        qp.alone(|qp| each!(AnyQp, qp, qp => Ok(qp.modify(&attr, mask)?)))
    })
}

/// Queries state and attributes, as the device has them (`ibv_query_qp`). Set `attr->size` before the
/// call.
///
/// Errors: `BW_ENULL`, `BW_ESIZE`.
/// Thread: the queue pair's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_qp_query(qp: *mut bw_qp, attr: *mut bw_qp_attr) -> c_int {
    // SAFETY: the header's conventions on handles and sized structs.
    guard(|| unsafe {
        let found = get_mut(qp, "queue pair")?.alone(|qp| {
            let kind = qp.kind().number() as u32;
            Ok(each!(AnyQp, qp, qp => bw_qp_attr::new(qp.qp_num(), kind, &qp.query())))
        })?;
        sized::write(attr, &found)
    })
}
