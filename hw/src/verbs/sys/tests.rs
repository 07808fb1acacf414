//! Sizes and offsets, as a C compiler sees them: of what is declared here by hand, and of what
//! `rdma-sys` declares by hand and is used here.

use super::super::layouts::{compare_layouts, layouts};
use super::*;

layouts! {
    "struct ibv_async_event" AsyncEvent {
        "element" element, "event_type" event_type,
    };
    "struct ibv_gid_entry" GidEntry {
        "gid" gid, "gid_index" gid_index, "port_num" port_num, "gid_type" gid_type,
        "ndev_ifindex" ndev_ifindex,
    };
    "struct verbs_context" verbs_context {
        "query_port" query_port, "create_cq_ex" create_cq_ex, "create_qp_ex" create_qp_ex,
        "open_qp" open_qp, "get_srq_num" get_srq_num, "create_srq_ex" create_srq_ex,
        "open_xrcd" open_xrcd, "close_xrcd" close_xrcd, "sz" sz, "context" context,
    };
    "struct ibv_context" ibv_context { "async_fd" async_fd, "abi_compat" abi_compat };
    "struct ibv_send_wr" ibv_send_wr {
        "next" next, "sg_list" sg_list, "num_sge" num_sge, "opcode" opcode,
        "send_flags" send_flags, "imm_data" imm_data_invalidated_rkey_union, "wr" wr,
        "qp_type" qp_type, "bind_mw" bind_mw_tso_union,
    };
    "struct ibv_mw_bind_info" ibv_mw_bind_info {
        "mr" mr, "addr" addr, "length" length, "mw_access_flags" mw_access_flags,
    };
    "struct ibv_recv_wr" ibv_recv_wr { "next" next, "sg_list" sg_list, "num_sge" num_sge };
    "struct ibv_wc" ibv_wc {
        "status" status, "opcode" opcode, "vendor_err" vendor_err, "byte_len" byte_len,
        "imm_data" imm_data_invalidated_rkey_union, "qp_num" qp_num, "src_qp" src_qp,
        "wc_flags" wc_flags, "slid" slid, "sl" sl, "dlid_path_bits" dlid_path_bits,
    };
    "struct ibv_ah_attr" ibv_ah_attr {
        "grh" grh, "dlid" dlid, "sl" sl, "src_path_bits" src_path_bits,
        "static_rate" static_rate, "is_global" is_global, "port_num" port_num,
    };
    "struct ibv_qp_attr" ibv_qp_attr { "ah_attr" ah_attr, "rate_limit" rate_limit };
    "struct ibv_qp_ex" ibv_qp_ex {
        "wr_id" wr_id, "wr_flags" wr_flags, "wr_send" wr_send, "wr_set_sge" wr_set_sge,
        "wr_set_xrc_srqn" wr_set_xrc_srqn, "wr_complete" wr_complete,
    };
    "struct ibv_cq_ex" ibv_cq_ex {
        "status" status, "wr_id" wr_id, "start_poll" start_poll, "end_poll" end_poll,
        "read_byte_len" read_byte_len, "read_wc_flags" read_wc_flags,
    };
    "struct ibv_qp_init_attr_ex" ibv_qp_init_attr_ex {
        "comp_mask" comp_mask, "pd" pd, "xrcd" xrcd, "send_ops_flags" send_ops_flags,
    };
    "struct ibv_cq_init_attr_ex" ibv_cq_init_attr_ex {
        "channel" channel, "wc_flags" wc_flags, "parent_domain" parent_domain,
    };
    "struct ibv_xrcd_init_attr" ibv_xrcd_init_attr { "fd" fd, "oflags" oflags };
    "struct ibv_xrcd" ibv_xrcd { "context" context };
    "struct ibv_srq_init_attr_ex" ibv_srq_init_attr_ex {
        "attr" attr, "comp_mask" comp_mask, "srq_type" srq_type, "pd" pd, "xrcd" xrcd, "cq" cq,
        "tm_cap" tm_cap,
    };
    "struct ibv_qp_open_attr" ibv_qp_open_attr {
        "comp_mask" comp_mask, "qp_num" qp_num, "xrcd" xrcd, "qp_context" qp_context,
        "qp_type" qp_type,
    };
    "struct ibv_port_attr" ibv_port_attr { "link_layer" link_layer, "lid" lid };
}

#[test]
fn layouts_are_those_of_c() {
    compare_layouts(&["infiniband/verbs.h"], &layouts());
}

#[test]
fn answers_are_told_as_errors() {
    assert!(check(0).is_ok());
    for error in [libc::EINVAL, -libc::EINVAL] {
        assert_eq!(check(error).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }
    assert!(made::<u8>(std::ptr::null_mut()).is_err());
}
