//! The inline functions of the header, which Rust has to write again.

use crate::ah::*;
use crate::cq::bw_cq;
use crate::device::bw_device;
use crate::link::bw_link;
use crate::link::outcome::*;
use crate::link::post::*;
use crate::memory::bw_pd;
use crate::post::*;
use crate::qp::bw_qp;
use crate::soft::*;
use crate::srq::bw_srq;
use crate::wc::*;
use crate::wr::*;
use std::ffi::{c_int, c_void};

macro_rules! inline {
    ($($name:ident = $sized:ident($($arg:ident: $type:ty),*) with $($given:expr),*;)*) => {$(
        /// # Safety
        /// The header's conventions.
        pub unsafe fn $name($($arg: $type),*) -> c_int {
            // SAFETY: the caller keeps the header's conventions; the size is that of the struct.
            unsafe { $sized($($given),*) }
        }
    )*};
}

inline! {
    bw_poll = bw_poll_sized(cq: *mut bw_cq, wc: *mut bw_wc, max: c_int)
        with cq, wc, size_of::<bw_wc>(), max;
    bw_post_send = bw_post_send_sized(qp: *mut bw_qp, wr: *const bw_send_wr, num: u32, bad_wr: *mut *const bw_send_wr)
        with qp, wr, size_of::<bw_send_wr>(), num, bad_wr;
    bw_post_recv = bw_post_recv_sized(qp: *mut bw_qp, wr: *const bw_recv_wr, num: u32, bad_wr: *mut *const bw_recv_wr)
        with qp, wr, size_of::<bw_recv_wr>(), num, bad_wr;
    bw_post_srq_recv = bw_post_srq_recv_sized(srq: *mut bw_srq, wr: *const bw_recv_wr, num: u32, bad_wr: *mut *const bw_recv_wr)
        with srq, wr, size_of::<bw_recv_wr>(), num, bad_wr;
    bw_ah_init_from_wc = bw_ah_init_from_wc_sized(wc: *const bw_wc, grh: *const c_void, port_num: u32, attr: *mut bw_ah_attr)
        with wc, size_of::<bw_wc>(), grh, port_num, attr;
    bw_ah_create_from_wc = bw_ah_create_from_wc_sized(pd: *const bw_pd, wc: *const bw_wc, grh: *const c_void, port_num: u32, ah: *mut *mut bw_ah)
        with pd, wc, size_of::<bw_wc>(), grh, port_num, ah;
    bw_link_post_send = bw_link_post_send_sized(link: *mut bw_link, wr: *const bw_send_wr, num: u32, replay: u32, bad_wr: *mut *const bw_send_wr)
        with link, wr, size_of::<bw_send_wr>(), num, replay, bad_wr;
    bw_link_poll = bw_link_poll_sized(link: *mut bw_link, wc: *mut bw_link_wc, max: c_int)
        with link, wc, size_of::<bw_link_wc>(), max;
    bw_soft_inject = bw_soft_inject_sized(device: *const bw_device, steps: *const bw_soft_step, num: u32)
        with device, steps, size_of::<bw_soft_step>(), num;
    bw_soft_inject_seeded = bw_soft_inject_seeded_sized(device: *const bw_device, seed: u64, packets: u64, count: u32, kinds: *const bw_soft_step, num: u32)
        with device, seed, packets, count, kinds, size_of::<bw_soft_step>(), num;
}
