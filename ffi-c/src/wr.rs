//! Work requests.

use crate::ah::bw_ah;
use crate::array::Element;
use crate::mw::{bw_mw, bw_mw_bind_info};
use hw::wr::Sge;
use std::mem::offset_of;

/// A scatter/gather element (`ibv_sge`): `length` bytes at `addr`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct bw_sge {
    /// Address.
    pub addr: u64,
    /// Bytes, less than 2 GiB.
    pub length: u32,
    /// Local key of the memory; ignored for inline data.
    pub lkey: u32,
}

// The library's own struct has the same layout: lists are passed on unchanged.
const _: () = {
    assert!(size_of::<bw_sge>() == size_of::<Sge>() && align_of::<bw_sge>() == align_of::<Sge>());
    assert!(offset_of!(bw_sge, addr) == offset_of!(Sge, addr));
    assert!(offset_of!(bw_sge, length) == offset_of!(Sge, length));
    assert!(offset_of!(bw_sge, lkey) == offset_of!(Sge, lkey));
};

/// A send request (`ibv_send_wr`). Fields that the operation does not use are ignored.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct bw_send_wr {
    /// The program's identifier, which is in the completion.
    pub wr_id: u64,
    /// The local memory: source of the data, or its destination (READ, atomics).
    pub sg_list: *const bw_sge,
    /// Number of elements in `sg_list`.
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
    /// The key to invalidate: a local one (LOCAL_INV) or one of the peer (SEND_WITH_INV).
    pub invalidate_rkey: u32,
    /// The value to compare with (ATOMIC_CMP_AND_SWP) or to add (ATOMIC_FETCH_AND_ADD).
    pub compare_add: u64,
    /// The value to write if equal (ATOMIC_CMP_AND_SWP).
    pub swap: u64,
    /// Datagrams only: the path to the receiver, in the queue pair's protection domain. It may be
    /// destroyed when the post has returned.
    pub ah: *const bw_ah,
    /// Datagrams only: the receiver's queue pair number; 0xffffff for a multicast group.
    pub remote_qpn: u32,
    /// Datagrams only: the receiver's Q_Key.
    pub remote_qkey: u32,
    /// XRC only: the number of the target's shared receive queue (`bw_srq_query`).
    pub remote_srqn: u32,
    /// 0.
    pub reserved: u32,
    /// The window, of type 2, to bind (BIND_MW); after the post `bw_mw_rkey` returns its new key.
    pub mw: *mut bw_mw,
    /// What to bind it to.
    pub bind: bw_mw_bind_info,
}

// SAFETY: repr(C), integers and pointers, which may be NULL.
unsafe impl Element for bw_send_wr {
    // The first version had no windows.
    const SIZES: &'static [usize] = &[offset_of!(Self, mw), size_of::<Self>()];
}

/// A receive (`ibv_recv_wr`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct bw_recv_wr {
    /// The program's identifier, which is in the completion.
    pub wr_id: u64,
    /// The memory for the message.
    pub sg_list: *const bw_sge,
    /// Number of elements in `sg_list`.
    pub num_sge: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: repr(C), integers and a pointer, which may be NULL.
unsafe impl Element for bw_recv_wr {
    const SIZES: &'static [usize] = &[size_of::<Self>()];
}

/// An element of an array of requests.
pub(crate) trait Request {
    /// A reserved field, which later versions may give a meaning.
    fn reserved(&self) -> u32;
}

impl Request for bw_send_wr {
    #[inline(always)]
    fn reserved(&self) -> u32 {
        self.reserved
    }
}

impl Request for bw_recv_wr {
    #[inline(always)]
    fn reserved(&self) -> u32 {
        self.reserved
    }
}
