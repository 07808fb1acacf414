//! Attributes of queue pairs and of connections.

use crate::code::BW_EINVAL;
use crate::failure::{Failure, guard};
use crate::memory::access;
use crate::number::bw_qp_type;
use crate::port::small;
use crate::sized::{self, Versioned};
use crate::srq::bw_srq;
use crate::transport::Kind;
use hw::state::Mtu;
use hw::{ConnectAttr, Endpoint, PathAttr, QpInit};
use std::ffi::c_int;
use std::mem::offset_of;

/// Attributes that a queue pair is created with (`ibv_qp_init_attr`). `bw_qp_init_attr_default` fills
/// it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct bw_qp_init_attr {
    /// `sizeof(bw_qp_init_attr)`.
    pub size: u32,
    /// Send requests in flight.
    pub max_send_wr: u32,
    /// Receives in flight. Ignored for a queue pair on a shared receive queue and for an XRC
    /// initiator, which have no receive queue of their own. `bw_qp_query` returns 0.
    pub max_recv_wr: u32,
    /// Scatter/gather elements of a send request.
    pub max_send_sge: u32,
    /// Scatter/gather elements of a receive. Ignored like `max_recv_wr`.
    pub max_recv_sge: u32,
    /// Inline bytes of a send request.
    pub max_inline_data: u32,
    /// Not 0: every send request is signalled, whatever its flags.
    pub sq_sig_all: u32,
    /// Not 0: reserve an entry in the completion queues for everything that can be in flight, so that a
    /// flush cannot overrun them. Otherwise an overrun makes the completion queue, and every queue pair
    /// on it, fail.
    pub reserve_cq: u32,
    /// The transport: a `bw_qp_type`, BW_QPT_RC by default.
    pub qp_type: u32,
    /// 0.
    pub reserved: u32,
    /// The shared receive queue that it receives from, of the same protection domain and not for XRC.
    /// NULL, the default: it has a receive queue of its own.
    pub srq: *mut bw_srq,
    /// Not 0: flushed unsignalled requests write no completion of their own. The exception is the
    /// last of the requests that are rung together, whose `retired` counts the requests before it.
    /// Not supported on devices driven by libibverbs (`BW_EUNSUPPORTED`), nor for a link.
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
    const SIZES: &'static [usize] = &[
        offset_of!(Self, qp_type),
        offset_of!(Self, suppress_flush),
        size_of::<Self>(),
    ];
}

impl bw_qp_init_attr {
    /// The library's form of the attributes; their ranges are checked when they are used.
    pub(crate) fn checked(&self) -> Result<(Kind, QpInit), Failure> {
        sized::zero("reserved", self.reserved | self.reserved1)?;
        let kind = Kind::from_number(self.qp_type)?;
        let init = QpInit {
            max_send_wr: self.max_send_wr,
            max_recv_wr: self.max_recv_wr,
            max_send_sge: self.max_send_sge,
            max_recv_sge: self.max_recv_sge,
            max_inline_data: self.max_inline_data,
            sq_sig_all: self.sq_sig_all != 0,
            reserve_cq: self.reserve_cq != 0,
            suppress_flush: self.suppress_flush != 0,
        };
        Ok((kind, init))
    }
}

/// Fills `attr`, of `size` bytes, with its size and the defaults:
/// `bw_qp_init_attr_default(&attr, sizeof(attr))`.
///
/// Errors: `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_qp_init_attr_default(attr: *mut bw_qp_init_attr, size: usize) -> c_int {
    // SAFETY: the header's conventions on sized structs.
    guard(|| unsafe { sized::fill(attr, size) })
}

/// Returns the number of entries that a queue pair of these attributes reserves in its completion
/// queues, for sends and for receives. A completion queue for both directions needs the sum. If `attr`
/// is NULL the defaults are used.
///
/// Errors: `BW_EINVAL`, `BW_ENULL`, `BW_ESIZE`.
/// Thread: any; with a shared receive queue, its owner.
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
        // SAFETY: the header's conventions on sized structs; the results' pointers are not NULL.
        unsafe {
            let attr = sized::read_or_default(attr)?;
            let (kind, init) = attr.checked()?;
            let mut entries = kind.cq_entries(&init);
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

/// Attributes of a connection. `bw_connect_attr_default` fills it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct bw_connect_attr {
    /// `sizeof(bw_connect_attr)`.
    pub size: u32,
    /// What the peer may do: the REMOTE bits of `bw_access_flags`.
    pub access: u32,
    /// A `bw_mtu`.
    pub path_mtu: u32,
    /// Acknowledgement timeout, a 5-bit code: 4.096 µs · 2^t; 0 means infinite.
    pub timeout: u32,
    /// Transport retries (no acknowledgement), up to 7.
    pub retry_cnt: u32,
    /// RNR retries (no receive posted at the peer), up to 6; 7 means infinite, and is the default.
    /// A request whose peer is there and posts no receive then waits without a bound. A smaller
    /// number bounds it, as does `request_deadline_ns` on a link.
    pub rnr_retry: u32,
    /// RNR NAK timer: how long the peer waits for a receive of this side, a 5-bit code
    /// (`ibv_modify_qp`).
    pub min_rnr_timer: u32,
    /// READs and atomics in flight, in each direction.
    pub max_rd_atomic: u32,
    /// Datagrams only: the Q_Key that senders have to name. The top bit is for privileged users.
    pub qkey: u32,
    /// The port to connect through, from 1.
    pub port_num: u32,
    /// The entry of that port's GID table to be reached by, if peers are addressed by GIDs (RoCE,
    /// routed InfiniBand). Less than 0, the default: the device chooses. On RoCE it chooses an
    /// entry of version 2, if possible one whose address an interface of this network namespace
    /// has, and an IPv4 address. `bw_qp_endpoint_for` returns the matching endpoint for the peer. A
    /// link remembers the GID in this entry when it is made, and finds it again after the table has
    /// been filled anew.
    pub gid_index: i32,
    /// Service level, up to 15. On RoCE the priority of packets with a VLAN tag.
    pub sl: u32,
    /// Traffic class, up to 255; for RoCE v2 that of the IP header (DSCP and ECN): 4 times the
    /// DSCP. The global route header holds it, along with the flow label and the hop limit. Packets
    /// have that header on RoCE, and on other networks if one of the three is not 0.
    pub traffic_class: u32,
    /// Flow label, up to 20 bits. Many devices derive the UDP source port of RoCE v2 from it.
    pub flow_label: u32,
    /// The index of the partition key in the port's table. Datagrams take the fields around this one
    /// from their address handles; the partition key is the queue pair's.
    pub pkey_index: u32,
    /// Hop limit, up to 255; 0: the usual one, 64. For RoCE, Linux takes it from the route instead.
    pub hop_limit: u32,
    /// UDP source port of RoCE v2 packets, from 0xc000 to 0xffff. RC and UC queue pairs of the
    /// software HCA and of ConnectX devices have it. So have those of Soft-RoCE on Linux 5.18 or
    /// later, which derives it from the flow label. On other devices: `BW_EUNSUPPORTED`. 0: the
    /// device chooses.
    pub udp_sport: u32,
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
            sl: attr.path.sl.into(),
            traffic_class: attr.path.traffic_class.into(),
            flow_label: attr.path.flow_label,
            pkey_index: attr.path.pkey_index.into(),
            hop_limit: attr.path.hop_limit.into(),
            udp_sport: attr.path.udp_sport.map_or(0, u32::from),
        }
    }
}

// SAFETY: repr(C), integers only, without padding; the size is the first field.
unsafe impl Versioned for bw_connect_attr {
    const SIZES: &'static [usize] = &[
        offset_of!(Self, qkey),
        offset_of!(Self, port_num),
        offset_of!(Self, sl),
        size_of::<Self>(),
    ];
}

/// A UDP source port; 0 means none.
pub(crate) fn udp_sport(given: u32) -> Result<Option<u16>, Failure> {
    match given {
        0 => Ok(None),
        given => small("udp_sport", given).map(Some),
    }
}

/// The MTU of this number.
pub(crate) fn mtu(what: &str, given: u32) -> Result<Mtu, Failure> {
    let found = u8::try_from(given).ok().and_then(Mtu::from_number);
    found.ok_or_else(|| {
        let text = format!("{what} is {given}, which is not a bw_mtu");
        Failure::new(BW_EINVAL, text)
    })
}

impl bw_connect_attr {
    /// The library's form of the attributes; their ranges are checked when they are used.
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
            path: PathAttr {
                sl: small("sl", self.sl)?,
                traffic_class: small("traffic_class", self.traffic_class)?,
                flow_label: self.flow_label,
                pkey_index: small("pkey_index", self.pkey_index)?,
                hop_limit: small("hop_limit", self.hop_limit)?,
                udp_sport: udp_sport(self.udp_sport)?,
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
    // SAFETY: the header's conventions on sized structs.
    guard(|| unsafe { sized::fill(attr, size) })
}

/// What one end of a connection has to know of the other.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct bw_endpoint {
    /// `sizeof(bw_endpoint)`.
    pub size: u32,
    /// Queue pair number.
    pub qp_num: u32,
    /// PSN of the first packet that the queue pair sends in this life: random, and another one after each
    /// `bw_qp_reset`.
    pub psn: u32,
    /// 0.
    pub reserved: u32,
    /// Local identifier of the port.
    pub lid: u32,
    /// The port's GID: the one that the device prefers, or the one that was requested.
    pub gid: [u8; 16],
}

// SAFETY: repr(C), integers only, without padding; the size is the first field.
unsafe impl Versioned for bw_endpoint {
    const SIZES: &'static [usize] = &[offset_of!(Self, lid), size_of::<Self>()];
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
    /// The library's form of the endpoint.
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
