//! A queue pair's attributes, between the kernel's form and bellwire's.

use super::memory::access;
use crate::abi::{CreateQpResp, ExResp, ModifyQp, QpDest, QueryQpResp};
use crate::context::QpObject;
use bellwire::state::{AhAttr, GlobalRoute, MigState, Mtu, QpAttr, QpAttrMask, QpState};
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// An extended command's answer.
#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Both(pub CreateQpResp, pub ExResp);

/// What a command asks for.
///
/// # Errors
/// `EINVAL`: a number without a meaning, among those that the mask names.
pub fn read(asked: &ModifyQp) -> Result<(QpAttr, QpAttrMask), Errno> {
    let mask = QpAttrMask::from_bits(asked.attr_mask).ok_or(Errno::INVAL)?;
    let meant = |bit| mask.contains(bit);
    let mut attr = QpAttr {
        en_sqd_async_notify: asked.en_sqd_async_notify != 0,
        qkey: asked.qkey,
        rq_psn: asked.rq_psn,
        sq_psn: asked.sq_psn,
        dest_qp_num: asked.dest_qp_num,
        ah_attr: path(&asked.dest),
        alt_ah_attr: path(&asked.alt_dest),
        pkey_index: asked.pkey_index,
        alt_pkey_index: asked.alt_pkey_index,
        max_rd_atomic: asked.max_rd_atomic,
        max_dest_rd_atomic: asked.max_dest_rd_atomic,
        min_rnr_timer: asked.min_rnr_timer,
        port_num: asked.port_num,
        timeout: asked.timeout,
        retry_cnt: asked.retry_cnt,
        rnr_retry: asked.rnr_retry,
        alt_port_num: asked.alt_port_num,
        alt_timeout: asked.alt_timeout,
        ..QpAttr::default()
    };
    if meant(QpAttrMask::STATE) {
        attr.qp_state = QpState::from_number(asked.qp_state).ok_or(Errno::INVAL)?;
    }
    if meant(QpAttrMask::CUR_STATE) {
        attr.cur_qp_state = QpState::from_number(asked.cur_qp_state).ok_or(Errno::INVAL)?;
    }
    if meant(QpAttrMask::PATH_MTU) {
        attr.path_mtu = Mtu::from_number(asked.path_mtu).ok_or(Errno::INVAL)?;
    }
    if meant(QpAttrMask::PATH_MIG_STATE) {
        let state = MigState::from_number(asked.path_mig_state);
        attr.path_mig_state = state.ok_or(Errno::INVAL)?;
    }
    if meant(QpAttrMask::ACCESS_FLAGS) {
        attr.qp_access_flags = access(asked.qp_access_flags)?;
    }
    Ok((attr, mask))
}

fn path(dest: &QpDest) -> AhAttr {
    AhAttr {
        grh: GlobalRoute {
            dgid: dest.dgid,
            flow_label: dest.flow_label,
            sgid_index: dest.sgid_index,
            hop_limit: dest.hop_limit,
            traffic_class: dest.traffic_class,
        },
        dlid: dest.dlid,
        sl: dest.sl,
        src_path_bits: dest.src_path_bits,
        static_rate: dest.static_rate,
        is_global: dest.is_global != 0,
        port_num: dest.port_num,
    }
}

fn dest(path: &AhAttr) -> QpDest {
    QpDest {
        dgid: path.grh.dgid,
        flow_label: path.grh.flow_label,
        dlid: path.dlid,
        reserved: 0,
        sgid_index: path.grh.sgid_index,
        hop_limit: path.grh.hop_limit,
        traffic_class: path.grh.traffic_class,
        sl: path.sl,
        src_path_bits: path.src_path_bits,
        static_rate: path.static_rate,
        is_global: path.is_global.into(),
        port_num: path.port_num,
    }
}

/// What a query answers.
pub fn write(attr: &QpAttr, object: &QpObject) -> QueryQpResp {
    let cap = &object.cap;
    QueryQpResp {
        dest: dest(&attr.ah_attr),
        alt_dest: dest(&attr.alt_ah_attr),
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
        qkey: attr.qkey,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qp_num: attr.dest_qp_num,
        qp_access_flags: attr.qp_access_flags.bits(),
        pkey_index: attr.pkey_index,
        alt_pkey_index: attr.alt_pkey_index,
        qp_state: attr.qp_state.number(),
        cur_qp_state: attr.cur_qp_state.number(),
        path_mtu: attr.path_mtu.number(),
        path_mig_state: attr.path_mig_state.number(),
        sq_draining: attr.sq_draining.into(),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        alt_port_num: attr.alt_port_num,
        alt_timeout: attr.alt_timeout,
        sq_sig_all: object.sq_sig_all.into(),
        reserved: [0; 5],
    }
}
