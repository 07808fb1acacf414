//! Requests.

use crate::ah::bw_ah;
use crate::mw::{bw_mw, bw_mw_bind_info};
use hw::wr::Sge;

/// A scatter/gather element (`ibv_sge`): `length` bytes at `addr`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct bw_sge {
    /// Address.
    pub addr: u64,
    /// Bytes, less than 2 GiB.
    pub length: u32,
    /// Local key of the memory; of inline data not looked at.
    pub lkey: u32,
}

// The library's own has the same layout: lists are passed on as they are.
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<bw_sge>() == size_of::<Sge>() && align_of::<bw_sge>() == align_of::<Sge>());
    assert!(offset_of!(bw_sge, addr) == offset_of!(Sge, addr));
    assert!(offset_of!(bw_sge, length) == offset_of!(Sge, length));
    assert!(offset_of!(bw_sge, lkey) == offset_of!(Sge, lkey));
};

/// A send request (`ibv_send_wr`). Fields that the operation does not have are not looked at.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct bw_send_wr {
    /// The program's identifier, which the completion has.
    pub wr_id: u64,
    /// The local memory: where data comes from, or goes to (READ, atomics).
    pub sg_list: *const bw_sge,
    /// Elements of `sg_list`.
    pub num_sge: u32,
    /// A `bw_wr_opcode`.
    pub opcode: u32,
    /// `bw_send_flags`.
    pub send_flags: u32,
    /// Immediate data, in network byte order.
    pub imm_data: u32,
    /// The peer's memory (WRITE, READ, atomics).
    pub remote_addr: u64,
    /// The peer's key for it.
    pub rkey: u32,
    /// The key to invalidate: of this side (LOCAL_INV) or of the peer's (SEND_WITH_INV).
    pub invalidate_rkey: u32,
    /// What to compare with (ATOMIC_CMP_AND_SWP) or to add (ATOMIC_FETCH_AND_ADD).
    pub compare_add: u64,
    /// What to put in its place (ATOMIC_CMP_AND_SWP).
    pub swap: u64,
    /// Of datagrams: the path to the receiver, within the queue pair's protection domain. It may be
    /// destroyed when the post has returned.
    pub ah: *const bw_ah,
    /// Of datagrams: the receiver's number; 0xffffff for a multicast group.
    pub remote_qpn: u32,
    /// Of datagrams: the receiver's key.
    pub remote_qkey: u32,
    /// Of XRC: the number of the target's shared receive queue (`bw_srq_query`).
    pub remote_srqn: u32,
    /// 0.
    pub reserved: u32,
    /// The window, of type 2, to bind (BIND_MW); `bw_mw_rkey` is its new key when this is posted.
    pub mw: *mut bw_mw,
    /// What to bind it to.
    pub bind: bw_mw_bind_info,
}

/// A receive (`ibv_recv_wr`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct bw_recv_wr {
    /// The program's identifier, which the completion has.
    pub wr_id: u64,
    /// Where the message goes.
    pub sg_list: *const bw_sge,
    /// Elements of `sg_list`.
    pub num_sge: u32,
    /// 0.
    pub reserved: u32,
}
