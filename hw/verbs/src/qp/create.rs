//! Creation of queue pairs, with as many operations of `ibv_wr_*` as the device supports.

use super::super::calls::Poster;
use super::super::context::Context;
use super::super::sys;
use bellwire_core::wr::QpType;
use std::io;
use std::ptr::{NonNull, null_mut};

/// The operations of a queue pair, beyond the operations of every queue pair of its transport.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ops(u8);

impl Ops {
    pub const ATOMICS: Self = Self(1);
    pub const SEND_INV: Self = Self(2);
    pub const BIND: Self = Self(4);
    pub const LOCAL_INV: Self = Self(8);
    const ALL: Self = Self(15);

    const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) fn has(self, ops: Self) -> bool {
        self.0 & ops.0 == ops.0
    }

    /// The operations as `ibv_qp_create_send_ops_flags`.
    fn flags(self, transport: QpType) -> u64 {
        use sys::ibv_qp_create_send_ops_flags as F;
        let mut flags = F::IBV_QP_EX_WITH_SEND | F::IBV_QP_EX_WITH_SEND_WITH_IMM;
        if transport != QpType::Ud {
            flags |= F::IBV_QP_EX_WITH_RDMA_WRITE | F::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
        }
        if matches!(transport, QpType::Rc | QpType::XrcSend) {
            flags |= F::IBV_QP_EX_WITH_RDMA_READ;
        }
        let more = [
            (Self::ATOMICS, F::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP),
            (Self::ATOMICS, F::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD),
            (Self::SEND_INV, F::IBV_QP_EX_WITH_SEND_WITH_INV),
            (Self::BIND, F::IBV_QP_EX_WITH_BIND_MW),
            (Self::LOCAL_INV, F::IBV_QP_EX_WITH_LOCAL_INV),
        ];
        for (op, flag) in more {
            if self.has(op) {
                flags |= flag;
            }
        }
        flags.0.into()
    }

    /// The operations to request for an extended queue pair, in order: all of them first, then fewer.
    fn wishes(transport: QpType) -> &'static [Self] {
        const NONE: Ops = Ops(0);
        const WINDOWS: Ops = Ops::SEND_INV.and(Ops::BIND);
        const RC: [Ops; 3] = [Ops::ALL, Ops::ATOMICS, NONE];
        const UC: [Ops; 3] = [WINDOWS.and(Ops::LOCAL_INV), WINDOWS, NONE];
        match transport {
            QpType::Rc | QpType::XrcSend => &RC,
            QpType::Uc => &UC,
            QpType::Ud | QpType::XrcRecv | QpType::Dci => &[NONE],
        }
    }
}

/// The attributes of a new queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpConfig {
    /// The transport.
    pub transport: QpType,
    /// Most send requests in flight.
    pub sends: u32,
    /// Most receives in flight.
    pub receives: u32,
    /// Most elements of a send request.
    pub max_send_sge: u32,
    /// Most elements of a receive.
    pub max_recv_sge: u32,
    /// Most inline bytes of a send request.
    pub max_inline_data: u32,
    /// Entries in addition to the program's, in each queue.
    pub spare: u32,
    /// Do not create an extended queue pair, even if the device has those.
    pub plain: bool,
}

fn verbs_type(transport: QpType) -> Option<u32> {
    match transport {
        QpType::Rc => Some(sys::ibv_qp_type::IBV_QPT_RC),
        QpType::Uc => Some(sys::ibv_qp_type::IBV_QPT_UC),
        QpType::Ud => Some(sys::ibv_qp_type::IBV_QPT_UD),
        QpType::XrcSend => Some(sys::ibv_qp_type::IBV_QPT_XRC_SEND),
        // Targets have no queues, and are created elsewhere.
        QpType::XrcRecv | QpType::Dci => None,
    }
}

type Made = (NonNull<sys::ibv_qp>, Option<Poster>, Ops);

/// Creates a queue pair: an extended one with as many operations as the device supports, otherwise a plain
/// one.
///
/// # Safety
/// The context, the domain and all queues are alive.
pub(super) unsafe fn create(
    context: &Context,
    pd: *mut sys::ibv_pd,
    cqs: [*mut sys::ibv_cq; 2],
    srq: *mut sys::ibv_srq,
    config: &QpConfig,
) -> io::Result<Made> {
    let unsupported = || io::Error::from_raw_os_error(libc::EOPNOTSUPP);
    let qp_type = verbs_type(config.transport).ok_or_else(unsupported)?;
    let receives = srq.is_null() && config.transport != QpType::XrcSend;
    let cap = sys::ibv_qp_cap {
        max_send_wr: config.sends + config.spare,
        max_recv_wr: match receives {
            true => config.receives + config.spare,
            false => 0,
        },
        max_send_sge: config.max_send_sge.max(1),
        max_recv_sge: match receives {
            true => config.max_recv_sge.max(1),
            false => 0,
        },
        max_inline_data: config.max_inline_data,
    };
    let wishes = match (context.is_plain || config.plain, sys::ibv_qp_to_qp_ex()) {
        (false, Ok(to_extended)) => Some((to_extended, Ops::wishes(config.transport))),
        // An older library does not have `ibv_wr_*`.
        (true, _) | (_, Err(_)) => None,
    };
    let wishes = wishes
        .into_iter()
        .flat_map(|(to_extended, wishes)| wishes.iter().map(move |&ops| (to_extended, ops)));
    for (to_extended, ops) in wishes {
        // SAFETY: the structure consists of numbers and null pointers, for which zeroes are valid.
        let mut init: sys::ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
        init.send_cq = cqs[0];
        init.recv_cq = cqs[1];
        init.srq = srq;
        init.cap = cap;
        init.qp_type = qp_type;
        init.comp_mask = (sys::ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD
            | sys::ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
            .0;
        init.pd = pd;
        init.send_ops_flags = ops.flags(config.transport);
        // SAFETY: the caller guarantees that domain and queues are alive.
        if let Ok(qp) = unsafe { sys::create_qp_ex(context.handle(), &mut init) } {
            // SAFETY: the queue pair was just created.
            let extended = NonNull::new(unsafe { to_extended(qp.as_ptr()) });
            // SAFETY: the queue pair was just created.
            let poster = extended.and_then(|qp| unsafe { Poster::new(qp, config.transport) });
            return Ok((qp, poster, ops));
        }
    }
    let mut init = sys::ibv_qp_init_attr {
        qp_context: null_mut(),
        send_cq: cqs[0],
        recv_cq: cqs[1],
        srq,
        cap,
        qp_type,
        sq_sig_all: 0,
    };
    // SAFETY: the caller guarantees that domain and queues are alive.
    let qp = sys::made(unsafe { sys::ibv_create_qp(pd, &raw mut init) })?;
    Ok((qp, None, Ops::ALL))
}

/// The most inline bytes that a queue pair can be created with, up to what an entry can hold.
pub(crate) fn find_inline(context: &Context) -> u32 {
    const STEP: u32 = 4;
    // SAFETY: the context is open.
    let pd = unsafe { sys::ibv_alloc_pd(context.handle().as_ptr()) };
    // SAFETY: the context is open.
    let cq = unsafe { sys::ibv_create_cq(context.handle().as_ptr(), 1, null_mut(), null_mut(), 0) };
    let takes = |max_inline_data| {
        let config = QpConfig {
            transport: QpType::Rc,
            sends: 1,
            receives: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data,
            spare: 0,
            plain: false,
        };
        // SAFETY: domain and completion queue outlive the queue pair.
        let made = unsafe { create(context, pd, [cq; 2], null_mut(), &config) };
        made.is_ok_and(|(qp, ..)| {
            // SAFETY: the queue pair was just created, and is not used.
            let _ = unsafe { sys::ibv_destroy_qp(qp.as_ptr()) };
            true
        })
    };
    let mut found = 0;
    if !pd.is_null() && !cq.is_null() {
        let mut beyond = bellwire_provider::attr::of_rings().max_inline_data + STEP;
        while found + STEP < beyond {
            let half = (found + beyond) / 2 / STEP * STEP;
            match takes(half) {
                true => found = half,
                false => beyond = half,
            }
        }
    }
    if !cq.is_null() {
        // SAFETY: the completion queue was created above, and no queue pair uses it any longer.
        let _ = unsafe { sys::ibv_destroy_cq(cq) };
    }
    if !pd.is_null() {
        // SAFETY: the domain was allocated above, and is empty.
        let _ = unsafe { sys::ibv_dealloc_pd(pd) };
    }
    found
}
