//! libibverbs' side: posting and polling as libmlx5 does it, by `ibv_post_send` and `ibv_poll_cq`, or by
//! `ibv_wr_*` and `ibv_start_poll`.

mod library;
mod poll;
mod post;

pub use library::Library;
pub use poll::{Polled, UNSET, Wc};

use crate::Check;
use crate::request::{Arena, Op, Request};
use bellwire::wr::{QpType, SendFlags, Sge};
use bellwire_sys::ibverbs::*;
use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ptr::{NonNull, null_mut};

/// How libmlx5 is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    Legacy,
    Extended,
}

/// What a queue pair is to be able to do, on either side.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub max_send_wr: u32,
    pub max_send_sge: u32,
    pub max_inline: u32,
    pub max_recv_wr: u32,
    pub max_recv_sge: u32,
    pub sig_all: bool,
    pub srq: bool,
    /// Entries of the completion queue.
    pub cqes: u32,
}

/// What a call made that has an error number in errno, or null.
fn made<T>(what: &str, object: *mut T) -> Check<NonNull<T>> {
    let error = std::io::Error::last_os_error();
    NonNull::new(object).ok_or_else(|| format!("{what}: {error}").into())
}

fn done(what: &str, answer: c_int) -> Check {
    match answer {
        0 => Ok(()),
        error => Err(format!("{what}: {error}").into()),
    }
}

/// A queue pair and its queues.
pub struct Theirs<'l> {
    library: &'l Library,
    way: Way,
    qp: NonNull<ibv_qp>,
    cq: NonNull<ibv_cq>,
    srq: Option<NonNull<ibv_srq>>,
}

fn verbs_type(transport: QpType) -> u32 {
    match transport {
        QpType::Rc => ibv_qp_type::IBV_QPT_RC,
        QpType::Uc => ibv_qp_type::IBV_QPT_UC,
        _ => ibv_qp_type::IBV_QPT_UD,
    }
}

/// All that the transport has, of `ibv_wr_*`.
fn operations(transport: QpType) -> u64 {
    use ibv_qp_create_send_ops_flags as F;
    let mut all = F::IBV_QP_EX_WITH_SEND | F::IBV_QP_EX_WITH_SEND_WITH_IMM;
    if transport != QpType::Ud {
        all |= F::IBV_QP_EX_WITH_RDMA_WRITE
            | F::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
            | F::IBV_QP_EX_WITH_SEND_WITH_INV
            | F::IBV_QP_EX_WITH_LOCAL_INV
            | F::IBV_QP_EX_WITH_BIND_MW;
    }
    if transport == QpType::Rc {
        all |= F::IBV_QP_EX_WITH_RDMA_READ
            | F::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
            | F::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    }
    all.0.into()
}

fn sge(of: &Sge) -> ibv_sge {
    ibv_sge {
        addr: of.addr,
        length: of.length,
        lkey: of.lkey,
    }
}

impl<'l> Theirs<'l> {
    pub fn new(library: &'l Library, transport: QpType, shape: &Shape, way: Way) -> Check<Self> {
        let Library { context, pd, .. } = *library;
        // SAFETY: all are alive; zeroes are values of the attributes.
        unsafe {
            let cqe = (shape.cqes - 1).max(1);
            let cq = match way {
                Way::Legacy => {
                    ibv_create_cq(context.as_ptr(), cqe as c_int, null_mut(), null_mut(), 0)
                }
                Way::Extended => {
                    let mut attr: ibv_cq_init_attr_ex = zeroed();
                    attr.cqe = cqe;
                    use ibv_create_cq_wc_flags as F;
                    attr.wc_flags = (F::IBV_WC_EX_WITH_BYTE_LEN
                        | F::IBV_WC_EX_WITH_IMM
                        | F::IBV_WC_EX_WITH_QP_NUM
                        | F::IBV_WC_EX_WITH_SRC_QP
                        | F::IBV_WC_EX_WITH_SLID
                        | F::IBV_WC_EX_WITH_SL
                        | F::IBV_WC_EX_WITH_DLID_PATH_BITS)
                        .0
                        .into();
                    create_cq_ex(context, &mut attr)?.as_ptr().cast()
                }
            };
            let cq = made("create a completion queue", cq)?;
            let srq = match shape.srq {
                true => {
                    let mut attr: ibv_srq_init_attr = zeroed();
                    attr.attr.max_wr = shape.max_recv_wr;
                    attr.attr.max_sge = shape.max_recv_sge;
                    Some(made(
                        "ibv_create_srq",
                        ibv_create_srq(pd.as_ptr(), &raw mut attr),
                    )?)
                }
                false => None,
            };
            let mut attr: ibv_qp_init_attr_ex = zeroed();
            attr.send_cq = cq.as_ptr();
            attr.recv_cq = cq.as_ptr();
            attr.srq = srq.map_or(null_mut(), NonNull::as_ptr);
            attr.cap = ibv_qp_cap {
                max_send_wr: shape.max_send_wr,
                max_recv_wr: if shape.srq { 0 } else { shape.max_recv_wr },
                max_send_sge: shape.max_send_sge,
                max_recv_sge: shape.max_recv_sge,
                max_inline_data: shape.max_inline,
            };
            attr.qp_type = verbs_type(transport);
            attr.sq_sig_all = shape.sig_all.into();
            attr.comp_mask = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0;
            attr.pd = pd.as_ptr();
            if way == Way::Extended {
                attr.comp_mask |= ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
                attr.send_ops_flags = operations(transport);
            }
            let theirs = Self {
                library,
                way,
                qp: create_qp_ex(context, &mut attr)?,
                cq,
                srq,
            };
            theirs.ready(transport)?;
            Ok(theirs)
        }
    }

    pub fn qp_num(&self) -> u32 {
        // SAFETY: alive.
        unsafe { self.qp.as_ref().qp_num }
    }

    fn modify(&self, attr: &mut ibv_qp_attr, mask: ibv_qp_attr_mask) -> Check {
        // SAFETY: alive.
        let answer = unsafe { ibv_modify_qp(self.qp.as_ptr(), attr, mask.0 as c_int) };
        done("ibv_modify_qp", answer)
    }

    /// From RESET to RTS, connected with itself.
    fn ready(&self, transport: QpType) -> Check {
        use ibv_qp_attr_mask as M;
        // SAFETY: zeroes are values of it.
        let mut attr: ibv_qp_attr = unsafe { zeroed() };
        let datagrams = transport == QpType::Ud;
        attr.qp_state = ibv_qp_state::IBV_QPS_INIT;
        attr.port_num = 1;
        attr.qkey = 0x1111_1111;
        attr.qp_access_flags = (ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
            | ibv_access_flags::IBV_ACCESS_REMOTE_READ
            | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC)
            .0;
        let init = M::IBV_QP_STATE | M::IBV_QP_PKEY_INDEX | M::IBV_QP_PORT;
        let more = if datagrams {
            M::IBV_QP_QKEY
        } else {
            M::IBV_QP_ACCESS_FLAGS
        };
        if transport == QpType::Uc {
            attr.qp_access_flags = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        }
        self.modify(&mut attr, init | more)?;
        attr.qp_state = ibv_qp_state::IBV_QPS_RTR;
        attr.path_mtu = ibv_mtu::IBV_MTU_1024;
        attr.dest_qp_num = self.qp_num();
        attr.ah_attr.dlid = 1;
        attr.ah_attr.port_num = 1;
        attr.max_rd_atomic = 1;
        attr.max_dest_rd_atomic = 1;
        let path = M::IBV_QP_AV | M::IBV_QP_PATH_MTU | M::IBV_QP_DEST_QPN | M::IBV_QP_RQ_PSN;
        let depth = M::IBV_QP_MAX_DEST_RD_ATOMIC | M::IBV_QP_MIN_RNR_TIMER;
        let state = M::IBV_QP_STATE;
        self.modify(
            &mut attr,
            match transport {
                QpType::Ud => state,
                QpType::Uc => state | path,
                _ => state | path | depth,
            },
        )?;
        attr.qp_state = ibv_qp_state::IBV_QPS_RTS;
        attr.timeout = 14;
        attr.retry_cnt = 7;
        let retries = M::IBV_QP_TIMEOUT | M::IBV_QP_RETRY_CNT | M::IBV_QP_RNR_RETRY;
        self.modify(
            &mut attr,
            match transport {
                QpType::Rc => state | retries | M::IBV_QP_SQ_PSN | M::IBV_QP_MAX_QP_RD_ATOMIC,
                _ => state | M::IBV_QP_SQ_PSN,
            },
        )
    }
}

impl Drop for Theirs<'_> {
    fn drop(&mut self) {
        // SAFETY: alive, and used by nobody any more. In RESET nothing is flushed.
        unsafe {
            let mut attr: ibv_qp_attr = zeroed();
            attr.qp_state = ibv_qp_state::IBV_QPS_RESET;
            let _ = self.modify(&mut attr, ibv_qp_attr_mask::IBV_QP_STATE);
            let _ = ibv_destroy_qp(self.qp.as_ptr());
            if let Some(srq) = self.srq {
                let _ = ibv_destroy_srq(srq.as_ptr());
            }
            let _ = ibv_destroy_cq(self.cq.as_ptr());
        }
    }
}
