//! What libmlx5 and its driver add (`rdma/mlx5-abi.h`, `mlx5_ib_*`).

use super::layouts;

/// Flags of [`CreateMlx5Qp`] (`MLX5_QP_FLAG_*`).
pub mod qp_flag {
    /// Entries are signed.
    pub const SIGNATURE: u32 = 1 << 0;
    /// `bfreg_index` is a register that was mapped later.
    pub const BFREG_INDEX: u32 = 1 << 3;
    /// Dynamically connected: target and initiator.
    pub const DC: u32 = 1 << 4 | 1 << 5;
    /// `bfreg_index` is a page of the newer ABI.
    pub const UAR_PAGE_INDEX: u32 = 1 << 10;
}

layouts! {
    AllocUcontext {
        total_num_bfregs: u32,
        num_low_latency_bfregs: u32,
        flags: u32,
        comp_mask: u32,
        max_cqe_version: u8,
        reserved0: u8,
        reserved1: u16,
        reserved2: u32,
        lib_caps: [u32; 2],
    }

    UcontextResp {
        qp_tab_size: u32,
        bf_reg_size: u32,
        tot_bfregs: u32,
        cache_line_size: u32,
        max_sq_desc_sz: u16,
        max_rq_desc_sz: u16,
        max_send_wqebb: u32,
        max_recv_wr: u32,
        max_srq_recv_wr: u32,
        num_ports: u16,
        flow_action_flags: u16,
        comp_mask: u32,
        response_length: u32,
        cqe_version: u8,
        cmds_supp_uhw: u8,
        eth_min_inline: u8,
        clock_info_versions: u8,
        hca_core_clock_offset: u64,
        log_uar_size: u32,
        num_uars_per_page: u32,
        num_dyn_bfregs: u32,
        dump_fill_mkey: u32,
    }

    CreateMlx5Cq {
        buf_addr: u64,
        db_addr: u64,
        cqe_size: u32,
        cqe_comp_en: u8,
        cqe_comp_res_format: u8,
        flags: u16,
        uar_page_index: u16,
        reserved0: u16,
        reserved1: u32,
    }

    CreateMlx5CqResp {
        cqn: u32,
        reserved: u32,
    }

    CreateMlx5Srq {
        buf_addr: u64,
        db_addr: u64,
        flags: u32,
        reserved0: u32,
        uidx: u32,
        reserved1: u32,
    }

    CreateMlx5SrqResp {
        srqn: u32,
        reserved: u32,
    }

    CreateMlx5Qp {
        buf_addr: u64,
        db_addr: u64,
        sq_wqe_count: u32,
        rq_wqe_count: u32,
        rq_wqe_shift: u32,
        flags: u32,
        uidx: u32,
        bfreg_index: u32,
        sq_buf_addr: u64,
        ece_options: u32,
        reserved: u32,
    }

    CreateMlx5QpResp {
        bfreg_index: u32,
        ece_options: u32,
        comp_mask: u32,
        tirn: u32,
        tisn: u32,
        rqn: u32,
        sqn: u32,
        reserved1: u32,
        tir_icm_addr: u64,
    }
}
