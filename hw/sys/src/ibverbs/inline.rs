//! The inline functions of `infiniband/verbs.h`, which call functions of the provider.
//!
//! All function pointers used here are set, in a context and in a queue that was created for these functions:
//! libibverbs supplies those that a provider lacks.

use super::*;
use std::ffi::{c_int, c_uint, c_void};

/// Declares functions that call through a function pointer of a context or of a queue.
macro_rules! inline {
    ($($name:ident: |$object:ident: $of:ty| $($path:tt).+, fn($($arg:ident: $ty:ty),*) $(-> $out:ty)?;)*) => {
        $(
            #[inline]
            pub unsafe fn $name($object: *mut $of, $($arg: $ty),*) $(-> $out)? {
                // SAFETY: the caller guarantees what the manual page requires; the function pointer is set
                // (module documentation).
                unsafe {
                    let call = inline!(@field $object $($path).+).unwrap_unchecked();
                    call($object, $($arg),*)
                }
            }
        )*
    };
    (@field $object:ident context.ops.$field:ident) => { (*(*$object).context).ops.$field };
    (@field $object:ident own.$field:ident) => { (*$object).$field };
}

inline! {
    ibv_poll_cq: |cq: ibv_cq| context.ops.poll_cq, fn(num_entries: c_int, wc: *mut ibv_wc) -> c_int;
    ibv_req_notify_cq: |cq: ibv_cq| context.ops.req_notify_cq, fn(solicited_only: c_int) -> c_int;
    ibv_post_send: |qp: ibv_qp| context.ops.post_send,
        fn(wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int;
    ibv_post_recv: |qp: ibv_qp| context.ops.post_recv,
        fn(wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int;
    ibv_post_srq_recv: |srq: ibv_srq| context.ops.post_srq_recv,
        fn(wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int;
    ibv_dealloc_mw: |mw: ibv_mw| context.ops.dealloc_mw, fn() -> c_int;

    ibv_start_poll: |cq: ibv_cq_ex| own.start_poll, fn(attr: *mut ibv_poll_cq_attr) -> c_int;
    ibv_next_poll: |cq: ibv_cq_ex| own.next_poll, fn() -> c_int;
    ibv_end_poll: |cq: ibv_cq_ex| own.end_poll, fn();
    ibv_wc_read_opcode: |cq: ibv_cq_ex| own.read_opcode, fn() -> ibv_wc_opcode::Type;
    ibv_wc_read_vendor_err: |cq: ibv_cq_ex| own.read_vendor_err, fn() -> u32;
    ibv_wc_read_byte_len: |cq: ibv_cq_ex| own.read_byte_len, fn() -> u32;
    ibv_wc_read_imm_data: |cq: ibv_cq_ex| own.read_imm_data, fn() -> __be32;
    ibv_wc_read_qp_num: |cq: ibv_cq_ex| own.read_qp_num, fn() -> u32;
    ibv_wc_read_src_qp: |cq: ibv_cq_ex| own.read_src_qp, fn() -> u32;
    ibv_wc_read_wc_flags: |cq: ibv_cq_ex| own.read_wc_flags, fn() -> c_uint;
    ibv_wc_read_slid: |cq: ibv_cq_ex| own.read_slid, fn() -> u32;
    ibv_wc_read_sl: |cq: ibv_cq_ex| own.read_sl, fn() -> u8;
    ibv_wc_read_dlid_path_bits: |cq: ibv_cq_ex| own.read_dlid_path_bits, fn() -> u8;

    ibv_wr_start: |qp: ibv_qp_ex| own.wr_start, fn();
    ibv_wr_complete: |qp: ibv_qp_ex| own.wr_complete, fn() -> c_int;
    ibv_wr_send: |qp: ibv_qp_ex| own.wr_send, fn();
    ibv_wr_send_imm: |qp: ibv_qp_ex| own.wr_send_imm, fn(imm_data: __be32);
    ibv_wr_send_inv: |qp: ibv_qp_ex| own.wr_send_inv, fn(invalidate_rkey: u32);
    ibv_wr_rdma_write: |qp: ibv_qp_ex| own.wr_rdma_write, fn(rkey: u32, remote_addr: u64);
    ibv_wr_rdma_write_imm: |qp: ibv_qp_ex| own.wr_rdma_write_imm,
        fn(rkey: u32, remote_addr: u64, imm_data: __be32);
    ibv_wr_rdma_read: |qp: ibv_qp_ex| own.wr_rdma_read, fn(rkey: u32, remote_addr: u64);
    ibv_wr_atomic_cmp_swp: |qp: ibv_qp_ex| own.wr_atomic_cmp_swp,
        fn(rkey: u32, remote_addr: u64, compare: u64, swap: u64);
    ibv_wr_atomic_fetch_add: |qp: ibv_qp_ex| own.wr_atomic_fetch_add,
        fn(rkey: u32, remote_addr: u64, add: u64);
    ibv_wr_local_inv: |qp: ibv_qp_ex| own.wr_local_inv, fn(invalidate_rkey: u32);
    ibv_wr_bind_mw: |qp: ibv_qp_ex| own.wr_bind_mw,
        fn(mw: *mut ibv_mw, rkey: u32, bind_info: *const ibv_mw_bind_info);
    ibv_wr_set_sge: |qp: ibv_qp_ex| own.wr_set_sge, fn(lkey: u32, addr: u64, length: u32);
    ibv_wr_set_sge_list: |qp: ibv_qp_ex| own.wr_set_sge_list,
        fn(num_sge: usize, sg_list: *const ibv_sge);
    ibv_wr_set_inline_data: |qp: ibv_qp_ex| own.wr_set_inline_data,
        fn(addr: *mut c_void, length: usize);
    ibv_wr_set_inline_data_list: |qp: ibv_qp_ex| own.wr_set_inline_data_list,
        fn(num_buf: usize, buf_list: *const ibv_data_buf);
    ibv_wr_set_ud_addr: |qp: ibv_qp_ex| own.wr_set_ud_addr,
        fn(ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32);
    ibv_wr_set_xrc_srqn: |qp: ibv_qp_ex| own.wr_set_xrc_srqn, fn(remote_srqn: u32);
}

/// Allocates a memory window.
///
/// # Safety
/// The protection domain is alive.
pub unsafe fn ibv_alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type::Type) -> *mut ibv_mw {
    // SAFETY: the caller guarantees that the protection domain is alive; the function pointer is set (module
    // documentation).
    unsafe {
        let call = (*(*pd).context).ops.alloc_mw.unwrap_unchecked();
        call(pd, kind)
    }
}

/// Binds a memory window of type 1.
///
/// # Safety
/// The queue pair, the window and the region that it is bound to are alive.
pub unsafe fn ibv_bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, mw_bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: the caller guarantees that queue pair, window and region are alive; the function pointer is set
    // (module documentation).
    unsafe {
        if (*mw).type_ != ibv_mw_type::IBV_MW_TYPE_1 {
            return libc::EINVAL;
        }
        let call = (*(*mw).context).ops.bind_mw.unwrap_unchecked();
        call(qp, mw, mw_bind)
    }
}

/// The completion queue as an `ibv_cq`.
pub fn ibv_cq_ex_to_cq(cq: *mut ibv_cq_ex) -> *mut ibv_cq {
    cq.cast()
}

/// The next rkey of a memory window.
pub fn ibv_inc_rkey(rkey: u32) -> u32 {
    (rkey & !0xff) | (rkey.wrapping_add(1) & 0xff)
}
