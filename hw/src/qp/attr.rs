//! What a queue pair is made with and connected by.

use super::QpTransport;
use super::memory::Sizes;
use crate::device::Device;
use crate::error::Error;
use crate::provider::{ProviderKind, SendDoorbell};
use bellwire_core::access::AccessFlags;
use bellwire_core::qp::{Mtu, QpAttr, QpAttrMask, QpState, RNR_RETRY_INFINITE};
use bellwire_core::queue::SendQueue;
use bellwire_core::wqe::{BASIC_BLOCK, Rc, SEGMENT};

/// What a queue pair is to be able to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpInit {
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
    /// Every send request completes with an entry, signalled or not.
    pub sq_sig_all: bool,
    /// Reserve an entry in the completion queues for everything that can be in flight, so that a
    /// flush cannot overrun them. Without it an overrun ends the completion queue and every queue
    /// pair on it.
    pub reserve_cq: bool,
    /// Unsignalled requests that are flushed make no completion entry of their own, but for the last of
    /// those that are rung together: its completion [tells](bellwire_core::queue::Completion::retired) of
    /// those before it. Not on devices that are driven by libibverbs, and not of a
    /// [`Link`](crate::recovery::Link), which asks each request for its outcome.
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
    /// Basic blocks of the send queue.
    fn send_blocks<T: QpTransport>(&self) -> u32 {
        let longest =
            SendQueue::<T, SendDoorbell>::longest_entry(self.max_send_sge, self.max_inline_data);
        let blocks = longest.div_ceil(BASIC_BLOCK) as u64 * u64::from(self.max_send_wr.max(1));
        u32::try_from(blocks.next_power_of_two()).unwrap_or(u32::MAX)
    }

    /// What the queues of transport `T` need; `own`: with a receive queue of its own.
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

    /// Entries that a reliable connection reserves in its completion queues: for sends, and for
    /// receives.
    pub fn cq_entries(&self) -> (u32, u32) {
        self.cq_entries_of::<Rc>()
    }

    /// As [`cq_entries`](Self::cq_entries), of any transport. With a shared receive queue reserve
    /// [`SrqInit::cq_entries`](crate::SrqInit::cq_entries) in place of the second.
    pub fn cq_entries_of<T: QpTransport>(&self) -> (u32, u32) {
        let sizes = self.sizes::<T>(T::RECEIVES);
        let receives = if T::RECEIVES { sizes.recv_count } else { 0 };
        (sizes.send_blocks, receives)
    }

    pub(super) fn check<T: QpTransport>(&self, device: &Device) -> Result<(), Error> {
        if self.suppress_flush && device.provider() == ProviderKind::Verbs {
            return Err(Error::Unsupported {
                what: "suppress the completions of flushed requests",
                instead: "leave QpInit::suppress_flush off: the verbs have no such flag",
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

/// Checks what the device bounds, of its ports and of READs and atomics in flight.
pub(crate) fn check_limits(
    attr: &QpAttr,
    mask: QpAttrMask,
    ports: u8,
    depth: u8,
) -> Result<(), Error> {
    for (bit, what, given, max) in [
        (QpAttrMask::PORT, "port_num", attr.port_num, ports),
        (
            QpAttrMask::AV,
            "ah_attr.port_num",
            attr.ah_attr.port_num,
            ports,
        ),
        (
            QpAttrMask::MAX_QP_RD_ATOMIC,
            "max_rd_atomic",
            attr.max_rd_atomic,
            depth,
        ),
        (
            QpAttrMask::MAX_DEST_RD_ATOMIC,
            "max_dest_rd_atomic",
            attr.max_dest_rd_atomic,
            depth,
        ),
    ] {
        if mask.contains(bit) && given > max {
            return Err(Error::TooLarge {
                what,
                given: given.into(),
                max: max.into(),
            });
        }
    }
    Ok(())
}

/// How the two ends of a connection find each other: to be brought to the peer by any means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// Queue pair number.
    pub qp_num: u32,
    /// First packet sequence number.
    pub psn: u32,
    /// Local identifier of the port.
    pub lid: u16,
    /// The port's GID: the first, unless the device or the program prefers another.
    pub gid: [u8; 16],
}

/// How a connection behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectAttr {
    /// What the peer may do.
    pub access: AccessFlags,
    /// The port to connect by.
    pub port_num: u8,
    /// The entry of that port's GID table to be reached by, where GIDs address peers (RoCE, routed
    /// InfiniBand). By default the device chooses: on RoCE an entry of version 2, if possible with
    /// an IPv4 address; elsewhere LIDs do.
    pub gid_index: Option<u8>,
    /// Path MTU, at the most: what the port carries bounds it.
    pub path_mtu: Mtu,
    /// Acknowledgement timeout, a 5-bit code: 4.096 µs · 2^t, 0 is for ever.
    pub timeout: u8,
    /// Retries without an acknowledgement, up to 7.
    pub retry_cnt: u8,
    /// Retries without a receive at the peer, up to 6; 7 is for ever.
    pub rnr_retry: u8,
    /// How long the peer waits for a receive of ours, a 5-bit code.
    pub min_rnr_timer: u8,
    /// READs and atomics in flight, either way; at the most: what the device has bounds it.
    pub max_rd_atomic: u8,
    /// Of datagrams: the key that senders have to name. The top bit is for privileged users.
    pub qkey: u32,
}

impl ConnectAttr {
    /// For going to INIT.
    pub(crate) fn init(&self) -> QpAttr {
        QpAttr {
            qp_state: QpState::Init,
            qp_access_flags: self.access,
            port_num: self.port_num,
            qkey: self.qkey,
            ..QpAttr::default()
        }
    }

    /// For going on to RTR, and then to RTS.
    pub(crate) fn ready(
        &self,
        device: &Device,
        peer: &Endpoint,
        psn: u32,
    ) -> Result<QpAttr, Error> {
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
            ah_attr: device.way_to(peer, self.port_num, self.gid_index),
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
        }
    }
}
