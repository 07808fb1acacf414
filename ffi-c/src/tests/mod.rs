//! The functions as C calls them, but from Rust.

mod abuse;
mod cost;
mod data;
mod dump;
mod grow;
mod inline;
mod life;
mod null;
mod registration;
mod srq;
mod tcp;
mod texts;
mod transport;
mod wake;
mod window;

use crate::code::{BW_OK, bw_error};
use crate::cq::*;
use crate::device::*;
use crate::failure::bw_last_error;
use crate::fault_number::bw_wc_status::BW_WC_SUCCESS;
use crate::memory::*;
use crate::number::bw_access_flags::*;
use crate::number::bw_wr_opcode;
use crate::qp::*;
use crate::qp_attr::*;
use crate::wc::*;
use crate::wr::*;
use inline::*;
use std::ffi::{CStr, c_int};
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

const ALL_ACCESS: u32 = BW_ACCESS_LOCAL_WRITE as u32
    | BW_ACCESS_REMOTE_WRITE as u32
    | BW_ACCESS_REMOTE_READ as u32
    | BW_ACCESS_REMOTE_ATOMIC as u32;

/// A struct whose first field is its size, with the size set.
macro_rules! sized {
    ($type:ident { $($field:ident: $value:expr),* $(,)? }) => {
        $type { size: size_of::<$type>() as u32, $($field: $value,)* ..Default::default() }
    };
}
use sized;

#[track_caller]
fn ok(code: c_int) {
    assert_eq!(code, BW_OK as c_int, "{}", last_error());
}

#[track_caller]
fn fails(code: c_int, with: bw_error) {
    assert_eq!(code, with as c_int, "{}", last_error());
}

fn last_error() -> String {
    // SAFETY: a text that is static or belongs to this thread.
    let text = unsafe { CStr::from_ptr(bw_last_error()) };
    text.to_str().unwrap().to_owned()
}

/// A NOP without flags.
const NOP: bw_send_wr = bw_send_wr {
    wr_id: 0,
    sg_list: null(),
    num_sge: 0,
    opcode: bw_wr_opcode::BW_WR_NOP as u32,
    send_flags: 0,
    imm_data: 0,
    remote_addr: 0,
    rkey: 0,
    invalidate_rkey: 0,
    compare_add: 0,
    swap: 0,
    ah: null(),
    remote_qpn: 0,
    remote_qkey: 0,
    remote_srqn: 0,
    reserved: 0,
    mw: null_mut(),
    bind: crate::mw::bw_mw_bind_info {
        addr: 0,
        length: 0,
        lkey: 0,
        access: 0,
        reserved: 0,
    },
};

/// The handle that `create` writes.
#[track_caller]
fn made<T>(create: impl FnOnce(*mut *mut T) -> c_int) -> *mut T {
    let mut handle = null_mut();
    ok(create(&mut handle));
    assert!(!handle.is_null());
    handle
}

/// One end of a connection: 64 KiB of memory, and a queue pair on a completion queue of its own.
struct End {
    cq: *mut bw_cq,
    qp: *mut bw_qp,
    region: *mut bw_region,
    memory: bw_region_info,
}

impl End {
    fn new(device: *const bw_device, pd: *const bw_pd, init: &bw_qp_init_attr) -> Self {
        let (mut sends, mut recvs) = (0, 0);
        let attr = sized!(bw_region_attr {
            length: 1 << 16,
            access: ALL_ACCESS,
        });
        let mut memory = sized!(bw_region_info {});
        // SAFETY: valid handles and structs.
        unsafe {
            ok(bw_qp_cq_entries(init, &mut sends, &mut recvs));
            let cq_attr = sized!(bw_cq_attr {
                entries: sends + recvs
            });
            let cq = made(|cq| bw_cq_create(device, &cq_attr, cq));
            let qp = made(|qp| bw_qp_create(pd, cq, cq, init, qp));
            let region = made(|region| bw_region_create(pd, &attr, region));
            ok(bw_region_query(region, &mut memory));
            Self {
                cq,
                qp,
                region,
                memory,
            }
        }
    }

    /// Brings the queue pair to RTS.
    fn connect(&self, peer: &End, attr: &bw_connect_attr) {
        let mut endpoint = sized!(bw_endpoint {});
        // SAFETY: valid handles and structs.
        unsafe {
            ok(bw_qp_endpoint(peer.qp, &mut endpoint));
            ok(bw_qp_init(self.qp, attr));
            ok(bw_qp_connect(self.qp, &endpoint, attr));
        }
    }

    fn sge(&self, offset: u64, length: u32) -> bw_sge {
        bw_sge {
            addr: self.memory.addr + offset,
            length,
            lkey: self.memory.lkey,
        }
    }

    fn at(&self, offset: u64) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut((self.memory.addr + offset) as usize)
    }

    fn put(&self, offset: u64, bytes: &[u8]) {
        // SAFETY: the tests stay within the region; nothing else uses these bytes now.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(offset), bytes.len()) };
    }

    fn bytes(&self, offset: u64, length: usize) -> Vec<u8> {
        // SAFETY: the tests stay within the region; nothing else uses these bytes now.
        unsafe { std::slice::from_raw_parts(self.at(offset), length).to_vec() }
    }

    fn state(&self) -> c_int {
        // SAFETY: a valid handle.
        unsafe { bw_qp_get_state(self.qp) }
    }

    fn poll(&self) -> Option<bw_wc> {
        let mut wc = bw_wc::default();
        // SAFETY: a valid handle, and room for one completion.
        match unsafe { bw_poll_one(self.cq, &mut wc) } {
            0 => None,
            1 => Some(wc),
            other => panic!("{other}"),
        }
    }

    #[track_caller]
    fn wait(&self) -> bw_wc {
        let start = Instant::now();
        loop {
            if let Some(wc) = self.poll() {
                return wc;
            }
            assert!(start.elapsed() < Duration::from_secs(120), "no completion");
        }
    }

    #[track_caller]
    fn succeeded(&self, wr_id: u64) -> bw_wc {
        let wc = self.wait();
        assert_eq!((wc.wr_id, wc.status), (wr_id, BW_WC_SUCCESS as u32));
        wc
    }

    fn destroy(self) {
        // SAFETY: valid handles, which nothing uses any more.
        unsafe {
            ok(bw_qp_destroy(self.qp));
            ok(bw_cq_destroy(self.cq));
            ok(bw_region_destroy(self.region));
        }
    }
}

/// Two ends on a device of their own.
struct World {
    device: *mut bw_device,
    pd: *mut bw_pd,
    a: End,
    b: End,
}

impl World {
    /// The queue pairs are in RESET.
    fn new(config: &bw_soft_config) -> Self {
        let init = sized!(bw_qp_init_attr {
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 200,
        });
        Self::of(config, &init)
    }

    /// The queue pairs have these attributes, and are in RESET.
    fn of(config: &bw_soft_config, init: &bw_qp_init_attr) -> Self {
        // SAFETY: valid handles and structs.
        let (device, pd) = unsafe {
            let device = made(|device| bw_device_open_soft(config, device));
            (device, made(|pd| bw_pd_create(device, pd)))
        };
        Self {
            device,
            pd,
            a: End::new(device, pd, init),
            b: End::new(device, pd, init),
        }
    }

    fn connected(config: &bw_soft_config, attr: &bw_connect_attr) -> Self {
        let world = Self::new(config);
        world.a.connect(&world.b, attr);
        world.b.connect(&world.a, attr);
        world
    }

    /// An inline device on the real clock.
    fn plain() -> Self {
        Self::connected(&sized!(bw_soft_config {}), &sized!(bw_connect_attr {}))
    }

    fn destroy(self) {
        self.a.destroy();
        self.b.destroy();
        // SAFETY: valid handles, which nothing uses any more.
        unsafe {
            ok(bw_pd_destroy(self.pd));
            ok(bw_device_close(self.device));
        }
    }
}
