//! The attributes that a queue pair is created and connected with.

use super::QpTransport;
use super::memory::Sizes;
use super::path::{self, PathAttr};
use crate::device::Device;
use crate::error::Error;
use crate::provider::SendDoorbell;
use bellwire_core::access::AccessFlags;
use bellwire_core::link::Endpoint;
use bellwire_core::qp::{AhAttr, Mtu, QpAttr, QpState, RNR_RETRY_INFINITE};
use bellwire_core::queue::SendQueue;
use bellwire_core::wqe::{BASIC_BLOCK, Rc, SEGMENT};
use bellwire_core::wr::QpType;
use bellwire_provider::limits::in_range;
use bellwire_provider::source::ProviderKind;

/// The attributes of a new queue pair (`ibv_qp_init_attr`).
///
/// A queue pair with a shared receive queue and an XRC initiator have no receive queue of their own:
/// `max_recv_wr` and `max_recv_sge` are ignored for them, and [queried](crate::Qp::query) as 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpInit {
    /// The most send requests in flight.
    pub max_send_wr: u32,
    /// The most receives in flight. Ignored without a receive queue of its own.
    pub max_recv_wr: u32,
    /// The most scatter/gather elements of a send request.
    pub max_send_sge: u32,
    /// The most scatter/gather elements of a receive. Ignored without a receive queue of its own.
    pub max_recv_sge: u32,
    /// The most inline bytes of a send request.
    pub max_inline_data: u32,
    /// Every send request generates a completion, signalled or not.
    pub sq_sig_all: bool,
    /// Reserve an entry in the completion queues for every request that can be in flight, so that a flush
    /// cannot overrun them. Without this, an overrun is the end of the completion queue and of every queue
    /// pair on it. On devices of libibverbs that happens when the event `CQ_ERR` is got: until then, a flush
    /// may count an unsignalled send as executed though its failure was lost. It never does so for signalled
    /// sends.
    pub reserve_cq: bool,
    /// Unsignalled requests that are flushed generate no completion of their own, except the last of the
    /// requests that were rung together: its completion [retires](bellwire_core::queue::Completion::retired)
    /// the ones before it. This does not apply to devices that are driven by libibverbs, nor to a
    /// [`Link`](crate::link::Link), which needs the outcome of each request.
    pub suppress_flush: bool,
}

impl Default for QpInit {
    fn default() -> Self {
        Self {
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 28,
            sq_sig_all: false,
            reserve_cq: true,
            suppress_flush: false,
        }
    }
}

impl QpInit {
    /// The basic blocks of the send queue.
    fn send_blocks<T: QpTransport>(&self) -> u32 {
        let longest =
            SendQueue::<T, SendDoorbell>::longest_entry(self.max_send_sge, self.max_inline_data);
        let blocks = longest.div_ceil(BASIC_BLOCK) as u64 * u64::from(self.max_send_wr.max(1));
        u32::try_from(blocks.next_power_of_two()).unwrap_or(u32::MAX)
    }

    /// The sizes that the queues of transport `T` need; `own`: with a receive queue of its own.
    pub(super) fn sizes<T: QpTransport>(&self, own: bool) -> Sizes {
        let power = |size: u32| size.checked_next_power_of_two().unwrap_or(u32::MAX);
        let (recv_count, recv_stride) = if own {
            let segments = self.max_recv_sge.max(1).saturating_mul(SEGMENT as u32);
            (power(self.max_recv_wr.max(1)), power(segments))
        } else {
            (1, SEGMENT as u32)
        };
        Sizes {
            send_blocks: self.send_blocks::<T>(),
            recv_count,
            recv_stride,
        }
    }

    /// The attributes of a queue pair without a receive queue of its own: as `ibv_create_qp(3)`, which ignores
    /// both limits then.
    pub(super) fn without_receives(self) -> Self {
        Self {
            max_recv_wr: 0,
            max_recv_sge: 0,
            ..self
        }
    }

    /// The entries that an RC queue pair reserves in its completion queues: for sends, and for receives.
    pub fn cq_entries(&self) -> (u32, u32) {
        self.cq_entries_of::<Rc>()
    }

    /// The entries that a queue pair of transport `T` reserves, like [`cq_entries`](Self::cq_entries). With a
    /// shared receive queue, reserve [`SrqInit::cq_entries`](crate::SrqInit::cq_entries) instead of the
    /// second number.
    pub fn cq_entries_of<T: QpTransport>(&self) -> (u32, u32) {
        let sizes = self.sizes::<T>(T::RECEIVES);
        let receives = if T::RECEIVES { sizes.recv_count } else { 0 };
        (sizes.send_blocks, receives)
    }

    pub(super) fn check<T: QpTransport>(&self, device: &Device) -> Result<(), Error> {
        if self.suppress_flush && device.provider() == ProviderKind::Verbs {
            return Err(Error::Unsupported {
                what: "suppress the completions of flushed requests",
                instead: "leave suppress_flush off: the verbs have no such flag",
            });
        }
        let attr = device.attr();
        for (what, given, max) in [
            ("max_send_wr", self.max_send_wr, attr.max_qp_wr),
            ("max_recv_wr", self.max_recv_wr, attr.max_qp_wr),
            ("max_send_sge", self.max_send_sge, attr.max_sge),
            ("max_recv_sge", self.max_recv_sge, attr.max_sge),
            (
                "max_inline_data",
                self.max_inline_data,
                attr.max_inline_data,
            ),
            (
                "max_send_wr times the size of a request, in 64-byte blocks,",
                self.send_blocks::<T>(),
                device.hca.max_send_blocks(),
            ),
        ] {
            if given > max {
                return Err(Error::TooLarge {
                    what,
                    given: given.into(),
                    max: max.into(),
                });
            }
        }
        Ok(())
    }
}

/// The attributes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectAttr {
    /// The access that the peer is allowed.
    pub access: AccessFlags,
    /// The port to connect by.
    pub port_num: u8,
    /// The index in that port's GID table of the GID by which peers reach it, where GIDs address peers (RoCE,
    /// routed InfiniBand). By default the device chooses: on RoCE an entry of version 2, if possible one
    /// whose address belongs to an interface of this network namespace, and an IPv4 address, to reach a peer an
    /// address of the kind of the peer's; elsewhere LIDs are sufficient. A [`Link`](crate::link::Link) remembers the GID at this index when it is created,
    /// finds it again after the table has been filled anew, and waits for it as for a port while it is gone.
    pub gid_index: Option<u8>,
    /// The maximum path MTU; the port's MTU limits it further.
    pub path_mtu: Mtu,
    /// The acknowledgement timeout, a 5-bit code: 4.096 µs · 2^t; 0 means infinite.
    pub timeout: u8,
    /// Retries without an acknowledgement, up to 7.
    pub retry_cnt: u8,
    /// RNR retries, up to 6; 7 means infinite, and is the default: a request whose peer is there and posts no
    /// receive then waits without a bound. A smaller number bounds it, as does
    /// [`LinkInit::request_deadline`](crate::link::LinkInit::request_deadline) on a link.
    pub rnr_retry: u8,
    /// The minimum RNR timer, a 5-bit code: how long the peer waits for a receive to be posted here before it
    /// retries.
    pub min_rnr_timer: u8,
    /// The most READs and atomics in flight, in either direction; the device's limit applies, too.
    pub max_rd_atomic: u8,
    /// For datagrams: the Q_Key that senders have to use. The top bit is reserved for privileged users.
    pub qkey: u32,
    /// Service level, traffic class, and other attributes by which networks handle packets.
    pub path: PathAttr,
}

impl ConnectAttr {
    /// The attributes for the transition to INIT.
    pub(crate) fn init(&self) -> QpAttr {
        QpAttr {
            qp_state: QpState::Init,
            qp_access_flags: self.access,
            port_num: self.port_num,
            pkey_index: self.path.pkey_index,
            qkey: self.qkey,
            ..QpAttr::default()
        }
    }

    /// Checks what the device would refuse without naming the attribute.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::Unsupported`].
    pub(crate) fn check(&self, device: &Device, of: QpType) -> Result<(), Error> {
        if let Some(index) = self.gid_index {
            let table = device.query_port(self.port_num)?.gid_tbl_len.max(1);
            in_range("gid_index", index.into(), 0, u32::from(table) - 1)?;
        }
        path::check(&self.path, device, self.port_num, of)
    }

    /// The path to a peer.
    fn way_to(&self, device: &Device, peer: &Endpoint) -> AhAttr {
        let path = path::on(&self.path, device);
        let port = self.port_num;
        let chosen = || device.hca.default_gid_index(port, Some(peer.gid));
        let route = match path.is_routed() {
            false => self.gid_index,
            true => Some(self.gid_index.unwrap_or_else(chosen)),
        };
        let mut way = device.way_to(peer, self.port_num, route);
        path.apply(&mut way);
        way
    }

    /// The attributes for the transitions to RTR and to RTS.
    pub(crate) fn ready(
        &self,
        device: &Device,
        peer: &Endpoint,
        psn: u32,
    ) -> Result<QpAttr, Error> {
        let way = self.way_to(device, peer);
        device.hca.check_way(peer.gid, &way)?;
        let port = device.query_port(self.port_num)?;
        let depth = device.attr().max_qp_rd_atom;
        Ok(QpAttr {
            qp_state: QpState::Rtr,
            path_mtu: self.path_mtu.min(port.active_mtu),
            dest_qp_num: peer.qp_num,
            rq_psn: peer.psn,
            sq_psn: psn,
            max_dest_rd_atomic: self.max_rd_atomic.min(depth),
            max_rd_atomic: self.max_rd_atomic.min(depth),
            min_rnr_timer: self.min_rnr_timer,
            timeout: self.timeout,
            retry_cnt: self.retry_cnt,
            rnr_retry: self.rnr_retry,
            ah_attr: way,
            ..QpAttr::default()
        })
    }
}

impl Default for ConnectAttr {
    fn default() -> Self {
        Self {
            access: AccessFlags::REMOTE_WRITE
                | AccessFlags::REMOTE_READ
                | AccessFlags::REMOTE_ATOMIC,
            port_num: 1,
            gid_index: None,
            path_mtu: Mtu::Mtu4096,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: RNR_RETRY_INFINITE,
            min_rnr_timer: 12,
            max_rd_atomic: 16,
            qkey: 0x1111_1111,
            path: PathAttr::default(),
        }
    }
}
