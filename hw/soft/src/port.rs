//! The device's port: its addresses, and whether it is up.

use super::hca::Hca;
use super::lists::MAX_MESSAGE;
use super::receive::GRH_BYTES;
use crate::error::Error;
use crate::fabric::{prefix_of, user_of};
use bellwire_core::qp::{AhAttr, GlobalRoute, Mtu, QpAttr, QpAttrMask};
use bellwire_core::wqe::AddressVector;
use bellwire_provider::attr::{DeviceAttr, GidEntry, PortAttr, PortState};
use bellwire_provider::limits::in_range;
use bellwire_provider::path::{HOP_LIMIT, UdpSport};
use std::sync::atomic::{AtomicBool, Ordering};

/// The only port.
pub(super) const NUMBER: u8 = 1;

/// The subnet prefix of a device that is no node of a fabric.
pub(super) const LINK_LOCAL: u64 = 0xfe80 << 48;

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
    /// The only GID, link-local. No other device has it, so it is the identity of this one; a LID or a place in
    /// a fabric is not.
    gid: [u8; 16],
    lid: u16,
    down: AtomicBool,
}

impl Port {
    pub fn new(prefix: u64, guid: u64, lid: u16) -> Self {
        Self {
            gid: (u128::from(prefix) << 64 | u128::from(guid)).to_be_bytes(),
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
        self.is_ours(attr.dlid) && named(attr).is_none_or(|gid| gid == self.gid)
    }

    fn is_ours(&self, lid: u16) -> bool {
        lid == 0 || lid == self.lid
    }

    /// Like [`leads_here`](Self::leads_here), for a datagram.
    pub fn is_here(&self, av: &AddressVector) -> bool {
        self.is_ours(av.rlid.get()) && (av.rgid == self.gid || named_in(av).is_none())
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

    pub fn default_gid_index(&self, _port_num: u8, _peer: Option<[u8; 16]>) -> u8 {
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

    /// The path to the port with this LID and this GID. It has the GID in any case: the GID is the device's
    /// identity, and a LID may be that of another device by now, or in another fabric.
    pub fn way_to(&self, lid: u16, gid: [u8; 16], port_num: u8, gid_index: Option<u8>) -> AhAttr {
        AhAttr {
            grh: GlobalRoute {
                dgid: gid,
                sgid_index: gid_index.unwrap_or(0),
                hop_limit: gid_index.map_or(0, |_| HOP_LIMIT),
                ..GlobalRoute::default()
            },
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

/// A GID that is none.
const NO_GID: [u8; 16] = [0; 16];

/// The GID of the device that an address leads to; `None`: it has only a LID.
pub(super) fn named(attr: &AhAttr) -> Option<[u8; 16]> {
    (attr.is_global || attr.grh.dgid != NO_GID).then_some(attr.grh.dgid)
}

/// Like [`named`], for a datagram's address.
fn named_in(av: &AddressVector) -> Option<[u8; 16]> {
    (av.grh_gid_fl.get() & GRH_PRESENT != 0 || av.rgid != NO_GID).then_some(av.rgid)
}

fn is_multicast(attr: &AhAttr) -> bool {
    attr.dlid >= MULTICAST_LIDS || attr.is_global && attr.grh.dgid[0] == 0xff
}

/// Another node of the fabric, as the destination of an address.
#[derive(Clone, Copy, Debug)]
pub(super) struct OtherNode {
    pub slot: usize,
    /// Incarnation of the node that is there now; zero: there is no link with any.
    pub incarnation: u64,
}

impl Hca {
    /// Requests the links that a path needs. To connect a queue pair, this does not wait for them: requests
    /// do.
    ///
    /// # Errors
    /// [`Error::OtherFabric`]; [`Error::Io`] when no addresses are left for a peer's memory.
    pub(super) fn call_for(&self, attr: &AhAttr) -> Result<(), Error> {
        self.check_fabric(attr)?;
        if let Some(node) = &self.node
            && !self.port.leads_here(attr)
            && let Some(slot) = node.slot_of(attr.dlid)
        {
            node.meet(slot)?;
            if self.other_node(attr).is_some() {
                node.call(slot);
            }
        }
        Ok(())
    }

    /// Checks that a path may lead to the device with this GID.
    ///
    /// # Errors
    /// [`Error::OtherFabric`].
    pub fn check_way(&self, gid: [u8; 16], way: &AhAttr) -> Result<(), Error> {
        debug_assert!(named(way).is_none_or(|named| named == gid));
        self.check_fabric(way)?;
        self.check_device(way)
    }

    /// Checks that the device that a path's GID names is in this device's fabric.
    fn check_fabric(&self, attr: &AhAttr) -> Result<(), Error> {
        let ours = self.port.gid;
        let Some(theirs) = named(attr).filter(|gid| prefix_of(*gid) != prefix_of(ours)) else {
            return Ok(());
        };
        if theirs == NO_GID || is_multicast(attr) {
            return Ok(());
        }
        let of = match user_of(theirs) {
            Some(uid) if self.node.is_some() && uid == self.owner.uid() => {
                format!("of a fabric of user {uid} too, of another name or in another namespace")
            }
            Some(uid) => format!("of a fabric of user {uid}"),
            None if self.port.is_ours(attr.dlid) => "of a device of no fabric".to_owned(),
            // It has a LID of this fabric.
            None => return Ok(()),
        };
        Err(self.other_fabric(theirs, &of))
    }

    /// Checks that the device that a path's GID names may be the one that its LID leads to. A device that is not
    /// known here yet may be that one: if it is not, no request reaches it.
    fn check_device(&self, attr: &AhAttr) -> Result<(), Error> {
        let Some(theirs) = named(attr).filter(|gid| *gid != self.port.gid) else {
            return Ok(());
        };
        if theirs == NO_GID || is_multicast(attr) {
            return Ok(());
        }
        let is_another = self.port.is_ours(attr.dlid)
            || self.node.as_ref().is_some_and(|node| {
                let slot = node.slot_of(attr.dlid);
                let link = slot.and_then(|slot| node.existing_peer(slot)?.link());
                // A link that has ended is about to be replaced.
                link.is_some_and(|link| link.gid != theirs && !link.is_closed())
            });
        let of =
            "of no device here: it is of another host or network namespace, or was closed since";
        match is_another {
            true => Err(self.other_fabric(theirs, of)),
            false => Ok(()),
        }
    }

    fn other_fabric(&self, theirs: [u8; 16], of: &str) -> Error {
        let gid = std::net::Ipv6Addr::from(theirs);
        let device = match &self.node {
            Some(node) => format!("soft:{} of {}", node.name(), node.owner()),
            None => "soft, which only this process reaches".to_owned(),
        };
        Error::OtherFabric {
            reason: format!(
                "the endpoint belongs to another fabric: its GID {gid} is {of}; this device is {device}: \
                 open the same fabric, as the same user, at both ends"
            ),
        }
    }

    /// Makes the links that datagrams on this path need, and waits for them as a new node does: datagrams do
    /// not wait. A multicast group needs links with all nodes.
    ///
    /// # Errors
    /// [`Error::OtherFabric`]; [`Error::Io`] when no addresses are left for a peer's memory.
    pub fn prepare_datagrams(&self, attr: &AhAttr) -> Result<(), Error> {
        match is_multicast(attr) {
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
    pub(super) fn other_node(&self, attr: &AhAttr) -> Option<OtherNode> {
        self.node_at(attr.dlid, named(attr))
    }

    /// The other node that a datagram is sent to.
    pub(super) fn other_node_of_datagram(&self, av: &AddressVector) -> Option<OtherNode> {
        self.node_at(av.rlid.get(), named_in(av))
            .filter(|there| there.incarnation != 0 || named_in(av).is_none())
    }

    fn node_at(&self, lid: u16, gid: Option<[u8; 16]>) -> Option<OtherNode> {
        let node = self.node.as_ref()?;
        let slot = node.slot_of(lid)?;
        // A place that this node has had nothing to do with has no node that it knows.
        let peer = node.existing_peer(slot)?;
        let (incarnation, present) = peer.identity();
        // Otherwise it is another node that has had the place, or will have it.
        let is_it = gid.is_none_or(|gid| gid == present);
        let incarnation = if is_it { incarnation } else { 0 };
        Some(OtherNode { slot, incarnation })
    }
}

/// The address vector of an address handle, as `mlx5_create_ah` makes it for InfiniBand. The rate is the
/// port's.
pub fn address_vector(attr: &AhAttr) -> AddressVector {
    let mut av = AddressVector {
        stat_rate_sl: attr.sl & 0xf,
        fl_mlid: attr.src_path_bits & 0x7f,
        rlid: bellwire_core::be::Be16::new(attr.dlid),
        // Without a global route, too: see `Hca::way_to`.
        rgid: attr.grh.dgid,
        ..AddressVector::default()
    };
    if attr.is_global {
        let route =
            GRH_PRESENT | u32::from(attr.grh.sgid_index) << 20 | attr.grh.flow_label & 0xf_ffff;
        av.tclass = attr.grh.traffic_class;
        av.hop_limit = attr.grh.hop_limit;
        av.grh_gid_fl = bellwire_core::be::Be32::new(route);
    }
    av
}
