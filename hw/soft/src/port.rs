//! The device's port: its addresses, and whether it is up.

use super::hca::Hca;
use super::lists::MAX_MESSAGE;
use super::receive::GRH_BYTES;
use crate::error::Error;
use bellwire_core::qp::{AhAttr, GlobalRoute, Mtu, QpAttr, QpAttrMask};
use bellwire_core::wqe::AddressVector;
use bellwire_provider::attr::{DeviceAttr, GidEntry, PortAttr, PortState};
use bellwire_provider::limits::in_range;
use bellwire_provider::path::{HOP_LIMIT, UdpSport};
use std::sync::atomic::{AtomicBool, Ordering};

/// The only port.
pub(super) const NUMBER: u8 = 1;

/// Its LID, unless the fabric has assigned another.
pub(super) const LID: u16 = 1;

/// The first LID of multicast groups (IBTA 4.1.1).
const MULTICAST_LIDS: u16 = 0xc000;

/// Its largest packet.
pub(super) const MTU: Mtu = Mtu::Mtu4096;

/// The only partition: the default one, full member.
pub(super) const PKEY: u16 = 0xffff;

/// In an address vector: a GRH is present.
const GRH_PRESENT: u32 = 1 << 30;

/// Bytes of a datagram's transport headers and its invariant CRC, which the length in the GRH includes.
const DATAGRAM_OVERHEAD: usize = 12 + 8 + 4;

#[derive(Debug)]
pub struct Port {
    /// The only GID, link-local.
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
        // Relaxed: the flag orders no other data.
        !self.down.load(Ordering::Relaxed)
    }

    /// Returns whether the state changed.
    pub fn set_up(&self, up: bool) -> bool {
        // Relaxed: the flag orders no other data.
        self.down.swap(!up, Ordering::Relaxed) == up
    }

    /// Whether packets to this address come back to this port. LID 0, as in a zeroed address, means the port
    /// itself.
    pub fn leads_here(&self, attr: &AhAttr) -> bool {
        self.is_ours(attr.dlid) && (!attr.is_global || attr.grh.dgid == self.gid)
    }

    fn is_ours(&self, lid: u16) -> bool {
        lid == 0 || lid == self.lid
    }

    /// Like [`leads_here`](Self::leads_here), for a datagram.
    pub fn is_here(&self, av: &AddressVector) -> bool {
        self.is_ours(av.rlid.get()) && global(av).is_none_or(|gid| gid == self.gid)
    }

    /// The GRH with which a datagram from this port to this address arrives, if the address is global (IBTA
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

/// What programs ask a device about itself. There is one port, whose tables have one entry each.
impl Hca {
    pub fn attr(&self) -> DeviceAttr {
        crate::limits()
    }

    /// The most basic blocks that a send queue can have.
    pub fn max_send_blocks(&self) -> u32 {
        1 << 15
    }

    pub fn query_port(&self, _port_num: u8) -> Result<PortAttr, Error> {
        Ok(self.port_attr())
    }

    pub fn query_gid(&self, _port_num: u8, _index: u16) -> Result<[u8; 16], Error> {
        Ok(self.port.gid)
    }

    pub fn query_pkey(&self, _port_num: u8, _index: u16) -> Result<u16, Error> {
        Ok(PKEY)
    }

    pub fn default_gid_index(&self, _port_num: u8) -> u8 {
        0
    }

    pub fn gid_entry(&self, _port_num: u8, _index: u8) -> GidEntry {
        GidEntry {
            gid: self.port.gid,
            ..GidEntry::default()
        }
    }

    pub fn gid_index_of(&self, _port_num: u8, _was: &GidEntry, at: u8) -> Option<u8> {
        Some(at)
    }

    /// The path to the port with this LID and this GID.
    pub fn way_to(&self, lid: u16, gid: [u8; 16], port_num: u8, gid_index: Option<u8>) -> AhAttr {
        AhAttr {
            grh: gid_index.map_or_else(GlobalRoute::default, |sgid_index| GlobalRoute {
                dgid: gid,
                sgid_index,
                hop_limit: HOP_LIMIT,
                ..GlobalRoute::default()
            }),
            is_global: gid_index.is_some(),
            dlid: lid,
            port_num,
            ..AhAttr::default()
        }
    }

    pub fn udp_sport(&self) -> Option<UdpSport> {
        Some(UdpSport::Set)
    }

    /// Its packets have no UDP source port.
    pub fn set_udp_sport(&self, _qpn: u32, _port: u16) -> Result<(), Error> {
        Ok(())
    }

    fn port_attr(&self) -> PortAttr {
        let mut port = PortAttr::default();
        if self.port.is_up() {
            port.state = PortState::Active;
        }
        port.max_mtu = MTU;
        port.active_mtu = MTU;
        port.lid = self.port.lid;
        port.sm_lid = LID;
        port.gid_tbl_len = 1;
        port.pkey_tbl_len = 1;
        port.max_msg_sz = MAX_MESSAGE;
        port
    }

    /// Checks the attributes that are indexes in the port's tables.
    pub(super) fn check_tables(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Error> {
        let port = self.port_attr();
        let route = &attr.ah_attr.grh;
        let is_routed = mask.contains(QpAttrMask::AV) && attr.ah_attr.is_global;
        for (is_meant, what, given, length) in [
            (
                mask.contains(QpAttrMask::PKEY_INDEX),
                "pkey_index",
                attr.pkey_index,
                port.pkey_tbl_len,
            ),
            (
                is_routed,
                "ah_attr.grh.sgid_index",
                route.sgid_index.into(),
                port.gid_tbl_len,
            ),
        ] {
            if is_meant {
                in_range(what, given.into(), 0, u32::from(length) - 1)?;
            }
        }
        Ok(())
    }
}

/// The destination GID of a global address.
fn global(av: &AddressVector) -> Option<[u8; 16]> {
    (av.grh_gid_fl.get() & GRH_PRESENT != 0).then_some(av.rgid)
}

/// Another node of the fabric, as the destination of an address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Elsewhere {
    pub slot: usize,
    /// Incarnation of the node that is there now; zero: there is no link with any.
    pub incarnation: u64,
}

impl Hca {
    /// Requests the links that a path needs. To connect a queue pair, this does not wait for them: requests
    /// do.
    ///
    /// # Errors
    /// [`Error::Io`] when no addresses are left for a peer's memory.
    pub(super) fn call_for(&self, attr: &AhAttr) -> Result<(), Error> {
        if let Some(node) = &self.node
            && !self.port.leads_here(attr)
            && let Some(slot) = node.slot_of(attr.dlid)
        {
            node.meet(slot)?;
            if self.elsewhere(attr).is_some() {
                node.call(slot);
            }
        }
        Ok(())
    }

    /// Makes the links that datagrams on this path need, and waits for them as a new node does: datagrams do
    /// not wait. A multicast group needs links with all nodes.
    ///
    /// # Errors
    /// [`Error::Io`] when no addresses are left for a peer's memory.
    pub fn prepare_datagrams(&self, attr: &AhAttr) -> Result<(), Error> {
        let is_group = attr.dlid >= MULTICAST_LIDS || attr.is_global && attr.grh.dgid[0] == 0xff;
        match is_group {
            true => self.call_everybody(),
            false => {
                self.call_for(attr)?;
                if let Some(node) = &self.node
                    && (node.slot_of(attr.dlid)).is_some_and(|slot| node.is_calling(slot))
                {
                    self.meet();
                }
            }
        }
        Ok(())
    }

    /// Makes links with all nodes, and waits for them as a new node does.
    pub(super) fn call_everybody(&self) {
        if let Some(node) = &self.node {
            node.call_all();
            self.meet();
        }
    }

    /// The other node that a path leads to.
    pub(super) fn elsewhere(&self, attr: &AhAttr) -> Option<Elsewhere> {
        self.node_at(attr.dlid, attr.is_global.then_some(attr.grh.dgid))
    }

    /// The other node that a datagram is sent to.
    pub(super) fn datagram_elsewhere(&self, av: &AddressVector) -> Option<Elsewhere> {
        self.node_at(av.rlid.get(), global(av))
    }

    fn node_at(&self, lid: u16, gid: Option<[u8; 16]>) -> Option<Elsewhere> {
        let node = self.node.as_ref()?;
        let slot = node.slot_of(lid)?;
        // A place that this node has had nothing to do with has no node that it knows.
        let peer = node.known(slot)?;
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

/// The address vector of an address handle, as `mlx5_create_ah` makes it for InfiniBand. The rate is the
/// port's.
pub fn address_vector(attr: &AhAttr) -> AddressVector {
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
