//! The numbers of the verbs, written out for the header. A test compares them with core's.

use hw::wr::WrOpcode;

/// What a send request does (`ibv_wr_opcode`; NOP is bellwire's).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_wr_opcode {
    /// Write to the peer's memory.
    BW_WR_RDMA_WRITE = 0,
    /// Write to the peer's memory, and consume a receive there, which completes with the immediate
    /// data.
    BW_WR_RDMA_WRITE_WITH_IMM = 1,
    /// Send into the peer's next receive.
    BW_WR_SEND = 2,
    /// Send with immediate data.
    BW_WR_SEND_WITH_IMM = 3,
    /// Read the peer's memory.
    BW_WR_RDMA_READ = 4,
    /// Compare eight bytes of the peer's memory, and swap them if equal; the old value is returned.
    BW_WR_ATOMIC_CMP_AND_SWP = 5,
    /// Add to eight bytes of the peer's memory; the old value is returned.
    BW_WR_ATOMIC_FETCH_AND_ADD = 6,
    /// Invalidate a local key.
    BW_WR_LOCAL_INV = 7,
    /// Bind a memory window of type 2.
    BW_WR_BIND_MW = 8,
    /// Send, and invalidate a key of the peer.
    BW_WR_SEND_WITH_INV = 9,
    /// Do nothing, and complete.
    BW_WR_NOP = 255,
}

/// Whether each operation that can be posted has its number here.
const _: () = {
    const fn number(operation: WrOpcode) -> Option<bw_wr_opcode> {
        use bw_wr_opcode::*;
        Some(match operation {
            WrOpcode::RdmaWrite => BW_WR_RDMA_WRITE,
            WrOpcode::RdmaWriteWithImm => BW_WR_RDMA_WRITE_WITH_IMM,
            WrOpcode::Send => BW_WR_SEND,
            WrOpcode::SendWithImm => BW_WR_SEND_WITH_IMM,
            WrOpcode::RdmaRead => BW_WR_RDMA_READ,
            WrOpcode::AtomicCmpAndSwp => BW_WR_ATOMIC_CMP_AND_SWP,
            WrOpcode::AtomicFetchAndAdd => BW_WR_ATOMIC_FETCH_AND_ADD,
            WrOpcode::LocalInv => BW_WR_LOCAL_INV,
            WrOpcode::BindMw => BW_WR_BIND_MW,
            WrOpcode::SendWithInv => BW_WR_SEND_WITH_INV,
            WrOpcode::Nop => BW_WR_NOP,
            WrOpcode::Tso => return None,
        })
    }
    let mut at = 0;
    while at < WrOpcode::ALL.len() {
        let operation = WrOpcode::ALL[at];
        if let Some(number) = number(operation) {
            assert!(number as u8 == operation.number());
        }
        at += 1;
    }
};

/// What completed (`ibv_wc_opcode`; NOP is bellwire's).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_wc_opcode {
    /// A SEND, with or without immediate data or invalidation.
    BW_WC_SEND = 0,
    /// An RDMA WRITE, with or without immediate data.
    BW_WC_RDMA_WRITE = 1,
    /// An RDMA READ.
    BW_WC_RDMA_READ = 2,
    /// A compare and swap.
    BW_WC_COMP_SWAP = 3,
    /// A fetch and add.
    BW_WC_FETCH_ADD = 4,
    /// A memory window bind.
    BW_WC_BIND_MW = 5,
    /// A local invalidate.
    BW_WC_LOCAL_INV = 6,
    /// A TSO send.
    BW_WC_TSO = 7,
    /// A NOP.
    BW_WC_NOP = 127,
    /// A receive that a SEND consumed. All receives have this bit.
    BW_WC_RECV = 128,
    /// A receive that an RDMA WRITE with immediate data consumed.
    BW_WC_RECV_RDMA_WITH_IMM = 129,
}

/// Bits of `bw_wc.wc_flags` (`ibv_wc_flags`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_wc_flags {
    /// A datagram's first 40 bytes are the global route header.
    BW_WC_GRH = 1,
    /// `imm_data` is immediate data.
    BW_WC_WITH_IMM = 2,
    /// `imm_data` is the local key that the peer has invalidated.
    BW_WC_WITH_INV = 8,
}

/// Bits of the flags of a send request (`ibv_send_flags`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_send_flags {
    /// Start only after all earlier READs and atomics of this queue have completed.
    BW_SEND_FENCE = 1,
    /// Write a completion queue entry when the request is done. An unsignalled request is reported by a
    /// later completion of its queue (`bw_wc.retired`). A failed request always has an entry of its
    /// own, and so has a flushed one unless `bw_qp_init_attr.suppress_flush` is set.
    BW_SEND_SIGNALED = 2,
    /// Raise a solicited event at the receiver.
    BW_SEND_SOLICITED = 4,
    /// Copy the payload into the work queue entry: its memory need not be registered, and may be reused
    /// as soon as the post returns. For SENDs and WRITEs, through `bw_post_send`.
    BW_SEND_INLINE = 8,
}

/// Access rights to memory, and those of a connection's peer (`ibv_access_flags`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_access_flags {
    /// The device may write the memory: receives, and results of READs and atomics.
    BW_ACCESS_LOCAL_WRITE = 1,
    /// The peer may write. Needs LOCAL_WRITE as well.
    BW_ACCESS_REMOTE_WRITE = 2,
    /// The peer may read.
    BW_ACCESS_REMOTE_READ = 4,
    /// The peer may use atomics. Needs LOCAL_WRITE as well.
    BW_ACCESS_REMOTE_ATOMIC = 8,
    /// Memory windows may be bound to the memory.
    BW_ACCESS_MW_BIND = 16,
    /// Addresses are offsets from the start of the memory.
    BW_ACCESS_ZERO_BASED = 32,
    /// Pages are faulted in on demand.
    BW_ACCESS_ON_DEMAND = 64,
    /// The memory is made of huge pages.
    BW_ACCESS_HUGETLB = 128,
    /// Writes may reach memory in another order than they were sent in.
    BW_ACCESS_RELAXED_ORDERING = 1048576,
}

/// What `bw_mr_reregister` changes (`ibv_rereg_mr_flags`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_rereg_mr_flags {
    /// The memory: `addr` and `length`.
    BW_REREG_MR_CHANGE_TRANSLATION = 1,
    /// The protection domain.
    BW_REREG_MR_CHANGE_PD = 2,
    /// The access rights.
    BW_REREG_MR_CHANGE_ACCESS = 4,
}

/// How `bw_xrcd_open` opens the XRC domain of a file (`oflags` of `ibv_xrcd_init_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_xrcd_mode {
    /// An XRC domain that is already open.
    BW_XRCD_OPEN = 0,
    /// The open one, or a new one if there is none (`O_CREAT`).
    BW_XRCD_CREATE = 1,
    /// A new one (`O_CREAT | O_EXCL`).
    BW_XRCD_CREATE_NEW = 2,
}

/// A transport (`ibv_qp_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_qp_type {
    /// Reliable connection.
    BW_QPT_RC = 2,
    /// Unreliable connection.
    BW_QPT_UC = 3,
    /// Unreliable datagrams.
    BW_QPT_UD = 4,
    /// Extended reliable connection, initiator.
    BW_QPT_XRC_SEND = 9,
    /// Extended reliable connection, target: `bw_xrc_target_create`.
    BW_QPT_XRC_RECV = 10,
}

/// Which fields of a `bw_qp_attr` are given (`ibv_qp_attr_mask`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_qp_attr_mask {
    /// `qp_state`: move to this state. Without it the state stays.
    BW_QP_STATE = 1,
    /// `cur_qp_state`: the state that the program assumes the queue pair to be in.
    BW_QP_CUR_STATE = 2,
    /// `en_sqd_async_notify`.
    BW_QP_EN_SQD_ASYNC_NOTIFY = 4,
    /// `qp_access_flags`.
    BW_QP_ACCESS_FLAGS = 8,
    /// `pkey_index`.
    BW_QP_PKEY_INDEX = 16,
    /// `port_num`.
    BW_QP_PORT = 32,
    /// `qkey`.
    BW_QP_QKEY = 64,
    /// `ah_attr`.
    BW_QP_AV = 128,
    /// `path_mtu`.
    BW_QP_PATH_MTU = 256,
    /// `timeout`.
    BW_QP_TIMEOUT = 512,
    /// `retry_cnt`.
    BW_QP_RETRY_CNT = 1024,
    /// `rnr_retry`.
    BW_QP_RNR_RETRY = 2048,
    /// `rq_psn`.
    BW_QP_RQ_PSN = 4096,
    /// `max_rd_atomic`.
    BW_QP_MAX_QP_RD_ATOMIC = 8192,
    /// `alt_ah_attr`, `alt_pkey_index`, `alt_port_num` and `alt_timeout`.
    BW_QP_ALT_PATH = 16384,
    /// `min_rnr_timer`.
    BW_QP_MIN_RNR_TIMER = 32768,
    /// `sq_psn`.
    BW_QP_SQ_PSN = 65536,
    /// `max_dest_rd_atomic`.
    BW_QP_MAX_DEST_RD_ATOMIC = 131072,
    /// `path_mig_state`.
    BW_QP_PATH_MIG_STATE = 262144,
    /// The capacities, `max_send_wr` to `max_inline_data`.
    BW_QP_CAP = 524288,
    /// `dest_qp_num`.
    BW_QP_DEST_QPN = 1048576,
    /// `rate_limit`.
    BW_QP_RATE_LIMIT = 33554432,
}

/// The type of a memory window (`ibv_mw_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_mw_type {
    /// Usable through every queue pair of the protection domain. Binding it again replaces the previous
    /// binding.
    BW_MW_TYPE_1 = 1,
    /// Usable only by peers of the queue pair that bound it. It has to be invalidated before it is
    /// bound again: by LOCAL_INV, or by the peer's SEND_WITH_INV.
    BW_MW_TYPE_2 = 2,
}

/// The state of path migration (`ibv_mig_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_mig_state {
    /// On the alternate path, or migration was never armed.
    BW_MIG_MIGRATED = 0,
    /// Arming, together with the peer.
    BW_MIG_REARM = 1,
    /// Ready to migrate.
    BW_MIG_ARMED = 2,
}

/// A port's state (`ibv_port_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_port_state {
    /// The link is down.
    BW_PORT_DOWN = 1,
    /// The link is up: packets are sent and received.
    BW_PORT_ACTIVE = 4,
}

/// The state of a queue pair (`ibv_qp_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_qp_state {
    /// As created: nothing may be posted.
    BW_QPS_RESET = 0,
    /// Receives may be posted; none is consumed yet.
    BW_QPS_INIT = 1,
    /// Ready to receive.
    BW_QPS_RTR = 2,
    /// Ready to send: the working state.
    BW_QPS_RTS = 3,
    /// Send queue drain: started sends finish, later ones wait.
    BW_QPS_SQD = 4,
    /// Send queue error (unreliable transports): a send failed, receiving goes on.
    BW_QPS_SQE = 5,
    /// Error: every outstanding request is flushed.
    BW_QPS_ERR = 6,
}

/// A path MTU (`ibv_mtu`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_mtu {
    /// 256 bytes.
    BW_MTU_256 = 1,
    /// 512 bytes.
    BW_MTU_512 = 2,
    /// 1024 bytes.
    BW_MTU_1024 = 3,
    /// 2048 bytes.
    BW_MTU_2048 = 4,
    /// 4096 bytes.
    BW_MTU_4096 = 5,
}
