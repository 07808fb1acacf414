//! Multicast groups: InfiniBand addresses for the IP addresses that rdma_cm uses.

use super::super::{EventKind, Membership, Multicast, PortSpace};
use super::entry::Outcome;
use super::id::{Id, refused, step};
use crate::error::Error;
use bellwire_core::qp::{AhAttr, GlobalRoute};
use bellwire_provider::attr::PortState;
use std::net::{IpAddr, SocketAddr};

/// The LID of all groups: the first multicast LID.
const LID: u16 = 0xc000;

/// The queue pair number of all members.
const QP_NUM: u32 = 0xff_ffff;

/// The Q_Key of datagrams of a port space: `RDMA_UDP_QKEY`, or that of IP over InfiniBand.
pub(super) fn qkey(space: PortSpace) -> u32 {
    match space {
        PortSpace::Ipoib => 0x0b1b,
        _ => 0x0123_4567,
    }
}

/// The GID of a group, as defined by RoCE v2.
///
/// # Errors
/// [`Error::NotMulticast`].
pub(super) fn gid(group: IpAddr) -> Result<[u8; 16], Error> {
    let gid = match group {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    let multicast = group.is_multicast();
    multicast.then_some(gid).ok_or(Error::NotMulticast { gid })
}

/// The address of the group's members.
pub(super) fn way_to(gid: [u8; 16], space: PortSpace) -> Multicast {
    Multicast {
        ah_attr: AhAttr {
            dlid: LID,
            port_num: 1,
            is_global: true,
            grh: GlobalRoute {
                dgid: gid,
                hop_limit: 1,
                ..GlobalRoute::default()
            },
            ..AhAttr::default()
        },
        qp_num: QP_NUM,
        qkey: qkey(space),
    }
}

impl Id {
    pub fn join(&self, group: SocketAddr, _membership: Membership) -> Result<(), Error> {
        const WHAT: &str = "join a multicast group";
        let gid = gid(group.ip())?;
        let home = self.home().clone();
        let down = home.device().query_port(1)?.state == PortState::Down;
        self.become_of(|entry, _| {
            if entry.local.is_none() {
                return step(WHAT);
            }
            if entry.groups.contains(&group) {
                return Err(refused(WHAT, libc::EADDRINUSE));
            }
            if down {
                let status = -libc::ENETDOWN;
                return Ok(Outcome::Event(EventKind::MulticastError { status }));
            }
            entry.groups.push(group);
            let group = way_to(gid, entry.space);
            Ok(Outcome::Event(EventKind::MulticastJoin { group }))
        })
    }

    pub fn leave(&self, group: SocketAddr) -> Result<(), Error> {
        self.change(|entry, _| {
            let at = entry.groups.iter().position(|joined| *joined == group);
            let at = at.ok_or_else(|| refused("leave a multicast group", libc::EADDRNOTAVAIL))?;
            entry.groups.swap_remove(at);
            Ok(())
        })
    }
}
