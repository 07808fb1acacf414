//! Conversion of attributes to and from libibverbs.

use super::sys;
use bellwire_core::access::AccessFlags;
use bellwire_core::qp::{AhAttr, GlobalRoute, MigState, Mtu, QpAttr, QpCap, QpState};

/// An address vector as libibverbs takes it.
pub(super) fn ah_to_verbs(attr: &AhAttr) -> sys::ibv_ah_attr {
    sys::ibv_ah_attr {
        grh: sys::ibv_global_route {
            dgid: sys::ibv_gid { raw: attr.grh.dgid },
            flow_label: attr.grh.flow_label,
            sgid_index: attr.grh.sgid_index,
            hop_limit: attr.grh.hop_limit,
            traffic_class: attr.grh.traffic_class,
        },
        dlid: attr.dlid,
        sl: attr.sl,
        src_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate,
        is_global: attr.is_global.into(),
        port_num: attr.port_num,
    }
}

/// An address vector that libibverbs returned.
pub fn ah_from_verbs(attr: &sys::ibv_ah_attr) -> AhAttr {
    AhAttr {
        grh: GlobalRoute {
            // SAFETY: both variants are 16 plain bytes.
            dgid: unsafe { attr.grh.dgid.raw },
            flow_label: attr.grh.flow_label,
            sgid_index: attr.grh.sgid_index,
            hop_limit: attr.grh.hop_limit,
            traffic_class: attr.grh.traffic_class,
        },
        dlid: attr.dlid,
        sl: attr.sl,
        src_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate,
        is_global: attr.is_global != 0,
        port_num: attr.port_num,
    }
}

/// A queue pair's attributes as libibverbs takes them.
pub(super) fn qp_to_verbs(attr: &QpAttr) -> sys::ibv_qp_attr {
    sys::ibv_qp_attr {
        qp_state: attr.qp_state as u32,
        cur_qp_state: attr.cur_qp_state as u32,
        path_mtu: attr.path_mtu.number().into(),
        path_mig_state: attr.path_mig_state.number().into(),
        qkey: attr.qkey,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qp_num: attr.dest_qp_num,
        qp_access_flags: attr.qp_access_flags.bits(),
        // No state transition uses the capabilities.
        cap: sys::ibv_qp_cap {
            max_send_wr: 0,
            max_recv_wr: 0,
            max_send_sge: 0,
            max_recv_sge: 0,
            max_inline_data: 0,
        },
        ah_attr: ah_to_verbs(&attr.ah_attr),
        alt_ah_attr: ah_to_verbs(&attr.alt_ah_attr),
        pkey_index: attr.pkey_index,
        alt_pkey_index: attr.alt_pkey_index,
        en_sqd_async_notify: attr.en_sqd_async_notify.into(),
        sq_draining: 0,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        alt_port_num: attr.alt_port_num,
        alt_timeout: attr.alt_timeout,
        rate_limit: attr.rate_limit,
    }
}

/// A state by its number. An unknown number is taken for ERR: nothing can be expected of the queue pair.
pub(super) fn state(number: u32) -> QpState {
    let known = u8::try_from(number).ok().and_then(QpState::from_number);
    known.unwrap_or(QpState::Err)
}

fn small<T>(number: u32, from: impl Fn(u8) -> Option<T>) -> Option<T> {
    u8::try_from(number).ok().and_then(from)
}

/// A queue pair's attributes that libibverbs returned.
pub fn qp_from_verbs(attr: &sys::ibv_qp_attr) -> QpAttr {
    QpAttr {
        qp_state: state(attr.qp_state),
        cur_qp_state: state(attr.qp_state),
        path_mtu: small(attr.path_mtu, Mtu::from_number).unwrap_or_default(),
        path_mig_state: small(attr.path_mig_state, MigState::from_number).unwrap_or_default(),
        qkey: attr.qkey,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qp_num: attr.dest_qp_num,
        qp_access_flags: AccessFlags::from_bits_truncate(attr.qp_access_flags),
        cap: QpCap::default(),
        ah_attr: ah_from_verbs(&attr.ah_attr),
        alt_ah_attr: ah_from_verbs(&attr.alt_ah_attr),
        pkey_index: attr.pkey_index,
        alt_pkey_index: attr.alt_pkey_index,
        udp_sport: None,
        en_sqd_async_notify: attr.en_sqd_async_notify != 0,
        sq_draining: attr.sq_draining != 0,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        alt_port_num: attr.alt_port_num,
        alt_timeout: attr.alt_timeout,
        rate_limit: attr.rate_limit,
    }
}
