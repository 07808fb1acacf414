//! What all devices have (`rdma/ib_user_verbs.h`, `ib_uverbs_*`). The response's address is taken off
//! before a command is read.

use super::layouts;

/// In a command's number: it is extended.
pub const EXTENDED: u32 = 0x8000_0000;

/// Numbers of commands (`ib_uverbs_write_cmds`).
pub mod number {
    pub const GET_CONTEXT: u32 = 0;
    pub const QUERY_DEVICE: u32 = 1;
    pub const QUERY_PORT: u32 = 2;
    pub const ALLOC_PD: u32 = 3;
    pub const DEALLOC_PD: u32 = 4;
    pub const REG_MR: u32 = 9;
    pub const DEREG_MR: u32 = 13;
    pub const ALLOC_MW: u32 = 14;
    pub const DEALLOC_MW: u32 = 16;
    pub const CREATE_COMP_CHANNEL: u32 = 17;
    pub const CREATE_CQ: u32 = 18;
    pub const RESIZE_CQ: u32 = 19;
    pub const DESTROY_CQ: u32 = 20;
    pub const CREATE_QP: u32 = 24;
    pub const QUERY_QP: u32 = 25;
    pub const MODIFY_QP: u32 = 26;
    pub const DESTROY_QP: u32 = 27;
    pub const ATTACH_MCAST: u32 = 30;
    pub const DETACH_MCAST: u32 = 31;
    pub const CREATE_SRQ: u32 = 32;
    pub const MODIFY_SRQ: u32 = 33;
    pub const QUERY_SRQ: u32 = 34;
    pub const DESTROY_SRQ: u32 = 35;
    pub const OPEN_XRCD: u32 = 37;
    pub const CLOSE_XRCD: u32 = 38;
    pub const CREATE_XSRQ: u32 = 39;
    pub const OPEN_QP: u32 = 40;
}

layouts! {
    CmdHdr {
        command: u32,
        in_words: u16,
        out_words: u16,
    }

    ExCmdHdr {
        response: u64,
        provider_in_words: u16,
        provider_out_words: u16,
        reserved: u32,
    }

    AsyncEventDesc {
        element: u64,
        event_type: u32,
        reserved: u32,
    }

    CompEventDesc {
        cq_handle: u64,
    }

    GetContextResp {
        async_fd: i32,
        num_comp_vectors: u32,
    }

    QueryDeviceResp {
        fw_ver: u64,
        // Big-endian.
        node_guid: [u8; 8],
        sys_image_guid: [u8; 8],
        max_mr_size: u64,
        page_size_cap: u64,
        vendor_id: u32,
        vendor_part_id: u32,
        hw_ver: u32,
        max_qp: u32,
        max_qp_wr: u32,
        device_cap_flags: u32,
        max_sge: u32,
        max_sge_rd: u32,
        max_cq: u32,
        max_cqe: u32,
        max_mr: u32,
        max_pd: u32,
        max_qp_rd_atom: u32,
        max_ee_rd_atom: u32,
        max_res_rd_atom: u32,
        max_qp_init_rd_atom: u32,
        max_ee_init_rd_atom: u32,
        atomic_cap: u32,
        max_ee: u32,
        max_rdd: u32,
        max_mw: u32,
        max_raw_ipv6_qp: u32,
        max_raw_ethy_qp: u32,
        max_mcast_grp: u32,
        max_mcast_qp_attach: u32,
        max_total_mcast_qp_attach: u32,
        max_ah: u32,
        max_fmr: u32,
        max_map_per_fmr: u32,
        max_srq: u32,
        max_srq_wr: u32,
        max_srq_sge: u32,
        max_pkeys: u16,
        local_ca_ack_delay: u8,
        phys_port_cnt: u8,
        reserved: [u8; 4],
    }

    ExQueryDevice {
        comp_mask: u32,
        reserved: u32,
    }

    /// What this device has none of is left at zero: ODP, timestamps, RSS, tag matching, device
    /// memory.
    ExQueryDeviceResp {
        base: QueryDeviceResp,
        comp_mask: u32,
        response_length: u32,
        odp_caps: [u32; 6],
        timestamp_mask: u64,
        hca_core_clock: u64,
        device_cap_flags_ex: u64,
        rss_caps: [u32; 4],
        max_wq_type_rq: u32,
        raw_packet_caps: u32,
        tm_caps: [u32; 6],
        cq_moderation_caps: [u32; 2],
        max_dm_size: u64,
        xrc_odp_caps: u32,
        reserved: u32,
    }

    QueryPort {
        port_num: u8,
        reserved: [u8; 7],
    }

    QueryPortResp {
        port_cap_flags: u32,
        max_msg_sz: u32,
        bad_pkey_cntr: u32,
        qkey_viol_cntr: u32,
        gid_tbl_len: u32,
        pkey_tbl_len: u16,
        lid: u16,
        sm_lid: u16,
        state: u8,
        max_mtu: u8,
        active_mtu: u8,
        lmc: u8,
        max_vl_num: u8,
        sm_sl: u8,
        subnet_timeout: u8,
        init_type_reply: u8,
        active_width: u8,
        active_speed: u8,
        phys_state: u8,
        link_layer: u8,
        flags: u8,
        reserved: u8,
    }

    /// Of commands that name one thing, and answers that do.
    Handle {
        handle: u32,
    }

    OpenXrcd {
        fd: u32,
        oflags: u32,
    }

    RegMr {
        start: u64,
        length: u64,
        hca_va: u64,
        pd_handle: u32,
        access_flags: u32,
    }

    RegMrResp {
        mr_handle: u32,
        lkey: u32,
        rkey: u32,
    }

    AllocMw {
        pd_handle: u32,
        mw_type: u8,
        reserved: [u8; 3],
    }

    AllocMwResp {
        mw_handle: u32,
        rkey: u32,
    }

    CreateCq {
        user_handle: u64,
        cqe: u32,
        comp_vector: u32,
        comp_channel: i32,
        // Extended: comp_mask.
        reserved: u32,
    }

    /// What the extended form has behind it.
    ExCreateCq {
        flags: u32,
        reserved: u32,
    }

    CreateCqResp {
        cq_handle: u32,
        cqe: u32,
    }

    ResizeCq {
        cq_handle: u32,
        cqe: u32,
    }

    ResizeCqResp {
        cqe: u32,
        reserved: u32,
    }

    /// Of extended answers, behind the common part.
    ExResp {
        comp_mask: u32,
        response_length: u32,
    }

    /// Of commands that destroy something and say what events were reported.
    Destroy {
        handle: u32,
        reserved: u32,
    }

    DestroyCqResp {
        comp_events_reported: u32,
        async_events_reported: u32,
    }

    CreateQp {
        user_handle: u64,
        // Of an XRC target, its domain.
        pd_handle: u32,
        send_cq_handle: u32,
        recv_cq_handle: u32,
        srq_handle: u32,
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
        sq_sig_all: u8,
        qp_type: u8,
        is_srq: u8,
        reserved: u8,
    }

    OpenQp {
        user_handle: u64,
        xrcd_handle: u32,
        qpn: u32,
        qp_type: u8,
        reserved: [u8; 7],
    }

    /// What the extended form has behind it.
    ExCreateQp {
        comp_mask: u32,
        create_flags: u32,
        rwq_ind_tbl_handle: u32,
        source_qpn: u32,
    }

    CreateQpResp {
        qp_handle: u32,
        qpn: u32,
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
        reserved: u32,
    }

    QpDest {
        dgid: [u8; 16],
        flow_label: u32,
        dlid: u16,
        reserved: u16,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
    }

    QueryQp {
        qp_handle: u32,
        attr_mask: u32,
    }

    QueryQpResp {
        dest: QpDest,
        alt_dest: QpDest,
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: u32,
        pkey_index: u16,
        alt_pkey_index: u16,
        qp_state: u8,
        cur_qp_state: u8,
        path_mtu: u8,
        path_mig_state: u8,
        sq_draining: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        sq_sig_all: u8,
        reserved: [u8; 5],
    }

    ModifyQp {
        dest: QpDest,
        alt_dest: QpDest,
        qp_handle: u32,
        attr_mask: u32,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: u32,
        pkey_index: u16,
        alt_pkey_index: u16,
        qp_state: u8,
        cur_qp_state: u8,
        path_mtu: u8,
        path_mig_state: u8,
        en_sqd_async_notify: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        reserved: [u8; 2],
    }

    Mcast {
        gid: [u8; 16],
        qp_handle: u32,
        mlid: u16,
        reserved: u16,
    }

    CreateSrq {
        user_handle: u64,
        pd_handle: u32,
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
    }

    CreateXsrq {
        user_handle: u64,
        srq_type: u32,
        pd_handle: u32,
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
        max_num_tags: u32,
        xrcd_handle: u32,
        cq_handle: u32,
    }

    CreateSrqResp {
        srq_handle: u32,
        max_wr: u32,
        max_sge: u32,
        srqn: u32,
    }

    ModifySrq {
        srq_handle: u32,
        attr_mask: u32,
        max_wr: u32,
        srq_limit: u32,
    }

    QuerySrqResp {
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
        reserved: u32,
    }
}
