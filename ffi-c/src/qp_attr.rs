//! What a queue pair and a connection are made of.

use crate::code::BW_EINVAL;
use crate::failure::{Failure, guard};
use crate::memory::access;
use crate::number::bw_qp_type;
use crate::port::small;
use crate::sized::{self, Versioned};
use crate::srq::bw_srq;
use crate::transport::Kind;
use hw::state::Mtu;
use hw::{ConnectAttr, Endpoint, QpInit};
use std::ffi::c_int;

/// What a queue pair is to be able to do (`ibv_qp_init_attr`). `bw_qp_init_attr_default` fills it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct bw_qp_init_attr {
    /// `sizeof(bw_qp_init_attr)`.
    pub size: u32,
    /// Send requests in flight.
    pub max_send_wr: u32,
    /// Receives in flight.
    pub max_recv_wr: u32,
    /// Scatter/gather elements of a send request.
    pub max_send_sge: u32,
    /// Scatter/gather elements of a receive.
    pub max_recv_sge: u32,
    /// Inline bytes of a send request.
    pub max_inline_data: u32,
    /// Not 0: every send request completes with an entry, signalled or not.
    pub sq_sig_all: u32,
    /// Not 0: reserve an entry in the completion queues for everything that can be in flight, so that
    /// a flush cannot overrun them. Without it an overrun ends the completion queue and every queue
    /// pair on it.
    pub reserve_cq: u32,
    /// The transport: a `bw_qp_type`, BW_QPT_RC by default.
    pub qp_type: u32,
    /// 0.
    pub reserved: u32,
    /// The shared receive queue that it receives from, of the same protection domain and not for
    /// XRC. NULL, the default: a receive queue of its own.
    pub srq: *mut bw_srq,
    /// Not 0: unsignalled requests that are flushed make no completion of their own, but for the last
    /// of those that are rung together, whose `retired` counts those before it. Not on devices driven
    /// by libibverbs (`BW_EUNSUPPORTED`), and not of a link.
    pub suppress_flush: u32,
    /// 0.
    pub reserved1: u32,
}

impl Default for bw_qp_init_attr {
    fn default() -> Self {
        let init = QpInit::default();
        Self {
            size: size_of::<Self>() as u32,
            max_send_wr: init.max_send_wr,
            max_recv_wr: init.max_recv_wr,
            max_send_sge: init.max_send_sge,
            max_recv_sge: init.max_recv_sge,
            max_inline_data: init.max_inline_data,
            sq_sig_all: init.sq_sig_all.into(),
            reserve_cq: init.reserve_cq.into(),
            qp_type: bw_qp_type::BW_QPT_RC as u32,
            reserved: 0,
            srq: std::ptr::null_mut(),
            suppress_flush: init.suppress_flush.into(),
            reserved1: 0,
        }
    }
}

// SAFETY: repr(C), integers and a pointer, without padding; the size is the first field.
unsafe impl Versioned for bw_qp_init_attr {
    const FIRST: usize = 32;
}

impl From<bw_qp_init_attr> for QpInit {
    fn from(attr: bw_qp_init_attr) -> Self {
        Self {
            max_send_wr: attr.max_send_wr,
            max_recv_wr: attr.max_recv_wr,
            max_send_sge: attr.max_send_sge,
            max_recv_sge: attr.max_recv_sge,
            max_inline_data: attr.max_inline_data,
            sq_sig_all: attr.sq_sig_all != 0,
            reserve_cq: attr.reserve_cq != 0,
            suppress_flush: attr.suppress_flush != 0,
        }
    }
}

/// Fills `attr`, of `size` bytes, with its size and the defaults:
/// `bw_qp_init_attr_default(&attr, sizeof(attr))`.
///
/// Errors: `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_qp_init_attr_default(attr: *mut bw_qp_init_attr, size: usize) -> c_int {
    // SAFETY: the header on sized structs.
    guard(|| unsafe { sized::fill(attr, size) })
}

/// Entries that a queue pair of these attributes reserves in its completion queues: for sends, and
/// for receives. A completion queue for both directions needs the sum. `attr` may be NULL: the
/// default.
///
/// Errors: `BW_EINVAL`, `BW_ENULL`, `BW_ESIZE`.
/// Thread: any; with a shared receive queue, the owner of that.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_qp_cq_entries(
    attr: *const bw_qp_init_attr,
    send: *mut u32,
    recv: *mut u32,
) -> c_int {
    guard(|| {
        if send.is_null() || recv.is_null() {
            return Err(Failure::null("a place for a count"));
        }
        // SAFETY: the header on sized structs; the places are not NULL.
        unsafe {
            let attr = sized::read_or_default(attr)?;
            let kind = Kind::from_number(attr.qp_type)?;
            let mut entries = kind.cq_entries(&attr.into());
            if kind != Kind::Xrc
                && let Some(srq) = attr.srq.as_ref()
            {
                entries.1 = srq.entries();
            }
            send.write(entries.0);
            recv.write(entries.1);
        }
        Ok(())
    })
}

/// How a connection behaves. `bw_connect_attr_default` fills it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct bw_connect_attr {
    /// `sizeof(bw_connect_attr)`.
    pub size: u32,
    /// What the peer may do: the REMOTE bits of `bw_access_flags`.
    pub access: u32,
    /// A `bw_mtu`.
    pub path_mtu: u32,
    /// Acknowledgement timeout, a code of 5 bits: 4.096 µs · 2^t; 0 is for ever.
    pub timeout: u32,
    /// Retries without an acknowledgement, up to 7.
    pub retry_cnt: u32,
    /// Retries without a receive at the peer, up to 6; 7 is for ever.
    pub rnr_retry: u32,
    /// How long the peer waits for a receive of this side, a code of 5 bits (`ibv_modify_qp`).
    pub min_rnr_timer: u32,
    /// READs and atomics in flight, either way.
    pub max_rd_atomic: u32,
    /// Of datagrams: the key that senders have to name. The top bit is for privileged users.
    pub qkey: u32,
    /// The port to connect by, from 1.
    pub port_num: u32,
    /// The entry of that port's GID table to be reached by, where GIDs address peers (RoCE, routed
    /// InfiniBand). Less than 0, the default: the device chooses; on RoCE an entry of version 2, if
    /// possible with an IPv4 address. `bw_qp_endpoint_for` gives the peer the right one.
    pub gid_index: i32,
}

impl Default for bw_connect_attr {
    fn default() -> Self {
        let attr = ConnectAttr::default();
        Self {
            size: size_of::<Self>() as u32,
            access: attr.access.bits(),
            path_mtu: attr.path_mtu.number().into(),
            timeout: attr.timeout.into(),
            retry_cnt: attr.retry_cnt.into(),
            rnr_retry: attr.rnr_retry.into(),
            min_rnr_timer: attr.min_rnr_timer.into(),
            max_rd_atomic: attr.max_rd_atomic.into(),
            qkey: attr.qkey,
            port_num: attr.port_num.into(),
            gid_index: attr.gid_index.map_or(-1, i32::from),
        }
    }
}

// SAFETY: as above.
unsafe impl Versioned for bw_connect_attr {
    const FIRST: usize = 32;
}

/// An MTU of this name.
pub(crate) fn mtu(what: &str, given: u32) -> Result<Mtu, Failure> {
    let found = u8::try_from(given).ok().and_then(Mtu::from_number);
    found.ok_or_else(|| {
        let text = format!("{what} is {given}, which is not a bw_mtu");
        Failure::new(BW_EINVAL, text)
    })
}

impl bw_connect_attr {
    /// The library's form of it, which checks the ranges when it is used.
    pub(crate) fn checked(&self) -> Result<ConnectAttr, Failure> {
        Ok(ConnectAttr {
            access: access(self.access)?,
            path_mtu: mtu("path_mtu", self.path_mtu)?,
            timeout: small("timeout", self.timeout)?,
            retry_cnt: small("retry_cnt", self.retry_cnt)?,
            rnr_retry: small("rnr_retry", self.rnr_retry)?,
            min_rnr_timer: small("min_rnr_timer", self.min_rnr_timer)?,
            max_rd_atomic: small("max_rd_atomic", self.max_rd_atomic)?,
            qkey: self.qkey,
            port_num: small("port_num", self.port_num)?,
            gid_index: match u32::try_from(self.gid_index) {
                Ok(index) => Some(small("gid_index", index)?),
                Err(_) => None,
            },
        })
    }
}

/// Fills `attr`, of `size` bytes, with its size and the defaults:
/// `bw_connect_attr_default(&attr, sizeof(attr))`.
///
/// Errors: `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_connect_attr_default(attr: *mut bw_connect_attr, size: usize) -> c_int {
    // SAFETY: the header on sized structs.
    guard(|| unsafe { sized::fill(attr, size) })
}

/// How the two ends of a connection find each other.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct bw_endpoint {
    /// `sizeof(bw_endpoint)`.
    pub size: u32,
    /// Queue pair number.
    pub qp_num: u32,
    /// First packet sequence number.
    pub psn: u32,
    /// 0.
    pub reserved: u32,
    /// Local identifier of the port.
    pub lid: u32,
    /// The port's GID: the one that the device prefers, or that was asked for.
    pub gid: [u8; 16],
}

// SAFETY: as above.
unsafe impl Versioned for bw_endpoint {
    const FIRST: usize = 16;
}

impl From<Endpoint> for bw_endpoint {
    fn from(endpoint: Endpoint) -> Self {
        Self {
            qp_num: endpoint.qp_num,
            psn: endpoint.psn,
            lid: endpoint.lid.into(),
            gid: endpoint.gid,
            ..Self::default()
        }
    }
}

impl bw_endpoint {
    /// The library's form of it.
    pub(crate) fn checked(&self) -> Result<Endpoint, Failure> {
        sized::zero("reserved", self.reserved)?;
        Ok(Endpoint {
            qp_num: self.qp_num,
            psn: self.psn,
            lid: small("lid", self.lid)?,
            gid: self.gid,
        })
    }
}
