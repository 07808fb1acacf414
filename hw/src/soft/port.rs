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

/// Its local identifier.
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
    down: AtomicBool,
}

impl Port {
    pub fn new(guid: u64) -> Self {
        let mut gid = [0; 16];
        gid[..2].copy_from_slice(&[0xfe, 0x80]);
        gid[8..].copy_from_slice(&guid.to_be_bytes());
        Self {
            gid,
            down: AtomicBool::new(false),
        }
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
        matches!(attr.dlid, 0 | LID) && (!attr.is_global || attr.grh.dgid == self.gid)
    }

    /// As [`leads_here`](Self::leads_here), and the port is up.
    pub fn is_here(&self, av: &AddressVector) -> bool {
        let global = av.grh_gid_fl.get() & GRH_PRESENT != 0;
        matches!(av.rlid.get(), 0 | LID) && (!global || av.rgid == self.gid) && self.is_up()
    }

    /// The header that a datagram to this address arrives with, if its route is global (IBTA 8.3).
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
            lid: LID,
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
