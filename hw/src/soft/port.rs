//! The device's port: its addresses, and whether it is up.

use super::hca::Hca;
use super::receive::GRH_BYTES;
use super::run::MAX_MESSAGE;
use crate::device::{PortAttr, PortState};
use bellwire_core::qp::{AhAttr, Mtu};
use bellwire_core::wqe::AddressVector;
use std::sync::atomic::{AtomicBool, Ordering};

/// The only port.
pub(super) const NUMBER: u8 = 1;

/// Its local identifier, unless a fabric has given it another.
pub(super) const LID: u16 = 1;

/// Its largest packet.
pub(super) const MTU: Mtu = Mtu::Mtu4096;

/// The only partition: the default one, full member.
pub(super) const PKEY: u16 = 0xffff;

/// In an address vector: there is a global route.
const GRH_PRESENT: u32 = 1 << 30;

/// Bytes of a datagram's transport headers and its invariant CRC, which a route header counts.
const DATAGRAM_OVERHEAD: usize = 12 + 8 + 4;

#[derive(Debug)]
pub(crate) struct Port {
    /// The only one, link-local.
    gid: [u8; 16],
    lid: u16,
    down: AtomicBool,
}

impl Port {
    pub fn new(guid: u64, lid: u16) -> Self {
        let mut gid = [0; 16];
        gid[..2].copy_from_slice(&[0xfe, 0x80]);
        gid[8..].copy_from_slice(&guid.to_be_bytes());
        Self {
            gid,
            lid,
            down: AtomicBool::new(false),
        }
    }

    pub fn gid(&self) -> [u8; 16] {
        self.gid
    }

    pub fn lid(&self) -> u16 {
        self.lid
    }

    pub fn is_up(&self) -> bool {
        // Relaxed: a flag on its own.
        !self.down.load(Ordering::Relaxed)
    }

    /// Whether it changed.
    pub fn set_up(&self, up: bool) -> bool {
        // Relaxed: as above.
        self.down.swap(!up, Ordering::Relaxed) == up
    }

    /// Whether packets to this address come back to this port. LID 0 is the port itself, as a zeroed
    /// address has it.
    pub fn leads_here(&self, attr: &AhAttr) -> bool {
        self.is_ours(attr.dlid) && (!attr.is_global || attr.grh.dgid == self.gid)
    }

    fn is_ours(&self, lid: u16) -> bool {
        lid == 0 || lid == self.lid
    }

    /// As [`leads_here`](Self::leads_here), of a datagram.
    pub fn is_here(&self, av: &AddressVector) -> bool {
        self.is_ours(av.rlid.get()) && global(av).is_none_or(|gid| gid == self.gid)
    }

    /// The header that a datagram from here to this address arrives with, if its route is global (IBTA
    /// 8.3).
    pub fn route_header(&self, av: &AddressVector, payload: usize) -> Option<[u8; GRH_BYTES]> {
        const VERSION: u32 = 6;
        const NEXT_HEADER: u8 = 0x1b;
        let route = av.grh_gid_fl.get();
        if route & GRH_PRESENT == 0 {
            return None;
        }
        let first = VERSION << 28 | u32::from(av.tclass) << 20 | route & 0xf_ffff;
        let length = (payload.next_multiple_of(4) + DATAGRAM_OVERHEAD) as u16;
        let mut grh = [0; GRH_BYTES];
        grh[..4].copy_from_slice(&first.to_be_bytes());
        grh[4..6].copy_from_slice(&length.to_be_bytes());
        grh[6] = NEXT_HEADER;
        grh[7] = av.hop_limit;
        grh[8..24].copy_from_slice(&self.gid);
        grh[24..].copy_from_slice(&av.rgid);
        Some(grh)
    }
}

impl Hca {
    pub(crate) fn query_port(&self) -> PortAttr {
        PortAttr {
            state: if self.port.is_up() {
                PortState::Active
            } else {
                PortState::Down
            },
            max_mtu: MTU,
            active_mtu: MTU,
            lid: self.port.lid,
            sm_lid: LID,
            gid_tbl_len: 1,
            pkey_tbl_len: 1,
            max_msg_sz: MAX_MESSAGE,
        }
    }

    pub(crate) fn gid(&self) -> [u8; 16] {
        self.port.gid
    }

    pub(crate) fn pkey(&self) -> u16 {
        PKEY
    }
}

/// Where a global route leads to.
fn global(av: &AddressVector) -> Option<[u8; 16]> {
    (av.grh_gid_fl.get() & GRH_PRESENT != 0).then_some(av.rgid)
}

/// The other node of the fabric that an address leads to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Elsewhere {
    pub slot: usize,
    /// Which node is there now; zero: none that we have a link to.
    pub incarnation: u64,
}

impl Hca {
    /// The other node that a path leads to.
    pub(super) fn elsewhere(&self, attr: &AhAttr) -> Option<Elsewhere> {
        self.node_at(attr.dlid, attr.is_global.then_some(attr.grh.dgid))
    }

    /// The other node that a datagram goes to.
    pub(super) fn datagram_elsewhere(&self, av: &AddressVector) -> Option<Elsewhere> {
        self.node_at(av.rlid.get(), global(av))
    }

    fn node_at(&self, lid: u16, gid: Option<[u8; 16]>) -> Option<Elsewhere> {
        let node = self.node.as_ref()?;
        let slot = node.slot_of(lid)?;
        let peer = node.peer(slot);
        if let (Some(gid), Some(link)) = (gid, peer.link())
            && link.gid != gid
        {
            return None;
        }
        Some(Elsewhere {
            slot,
            incarnation: peer.incarnation(),
        })
    }
}

/// An address handle's vector: what `mlx5_create_ah` makes for InfiniBand. The rate is the port's.
pub(crate) fn address_vector(attr: &AhAttr) -> AddressVector {
    let mut av = AddressVector {
        stat_rate_sl: attr.sl & 0xf,
        fl_mlid: attr.src_path_bits & 0x7f,
        rlid: bellwire_core::be::Be16::new(attr.dlid),
        ..AddressVector::default()
    };
    if attr.is_global {
        let route =
            GRH_PRESENT | u32::from(attr.grh.sgid_index) << 20 | attr.grh.flow_label & 0xf_ffff;
        av.tclass = attr.grh.traffic_class;
        av.hop_limit = attr.grh.hop_limit;
        av.grh_gid_fl = bellwire_core::be::Be32::new(route);
        av.rgid = attr.grh.dgid;
    }
    av
}
