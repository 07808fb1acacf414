//! Choice of the entry of a port's GID table that peers are to use. The table holds the addresses of every
//! interface above the device's, also of those in other network namespaces, such as a container's macvlan.

use super::context::Context;
use super::sys;
use bellwire_provider::attr::GidEntry;
use std::net::{IpAddr, Ipv6Addr};

/// An address of an interface in this network namespace, and the interface's index.
type Here = (IpAddr, Option<u32>);

/// The IP address of an entry.
fn address(entry: &GidEntry) -> IpAddr {
    Ipv6Addr::from(entry.gid).to_canonical()
}

/// Whether an entry's address belongs to this namespace. The interface index alone does not say: it is that
/// of the interface's own namespace, and other namespaces use the same numbers. It only
/// distinguishes two namespaces with the same address.
fn belonging(entry: &GidEntry, here: &[Here]) -> u8 {
    let address = address(entry);
    let mut indices = (here.iter()).filter_map(|&(ip, index)| (ip == address).then_some(index));
    let Some(first) = indices.next() else {
        return 0;
    };
    match entry.ifindex {
        // Neither the driver nor the kernel reports the interface.
        0 => 2,
        of if first == Some(of) || indices.any(|index| index == Some(of)) => 3,
        _ => 1,
    }
}

/// The kind of an address: IPv4 addresses before others, and link-local addresses last.
fn kind(gid: Ipv6Addr) -> u8 {
    match gid {
        _ if gid.to_ipv4_mapped().is_some() => 2,
        _ if !gid.is_unicast_link_local() => 1,
        _ => 0,
    }
}

/// How well an entry reaches a peer: packets from an IPv4 address do not reach an IPv6 address, nor those from a
/// link-local address another one. Of IPv6 addresses, one of the peer's subnet is best.
fn reach(gid: Ipv6Addr, peer: Option<Ipv6Addr>) -> u8 {
    let Some(peer) = peer.filter(|peer| !peer.is_unspecified()) else {
        return 0;
    };
    let same_subnet = gid.octets()[..8] == peer.octets()[..8];
    match (kind(gid), kind(peer)) {
        (2, 2) => 3,
        (ours, theirs) if ours == theirs => 2 + u8::from(same_subnet),
        (2, _) | (_, 2) => 0,
        _ => 1,
    }
}

/// The rank of an entry: RoCE v2 before others, then entries that reach the peer, then entries of this
/// namespace, then by the kind of the address.
fn rank(entry: &GidEntry, here: &[Here], peer: Option<Ipv6Addr>) -> (u8, u8, u8, u8) {
    let gid = Ipv6Addr::from(entry.gid);
    if gid.is_unspecified() {
        return (0, 0, 0, 0);
    }
    if entry.kind != sys::IBV_GID_TYPE_ROCE_V2 {
        return (1, 0, 0, 0);
    }
    (2, reach(gid, peer), belonging(entry, here), kind(gid))
}

/// The best entry of a table, to reach a peer, if its address is given; of equal ones, the first.
fn choose(table: &[GidEntry], here: &[Here], peer: Option<Ipv6Addr>) -> u8 {
    let indices = 0..u8::try_from(table.len()).unwrap_or(u8::MAX);
    let rank = |&index: &u8| rank(&table[usize::from(index)], here, peer);
    // `max_by_key` returns the last of equal entries: reversed, that is the first.
    indices.rev().max_by_key(rank).unwrap_or(0)
}

/// The current index of an entry that was at another index: an entry with the same GID and type, on the same
/// interface, or on another one (created anew, for example) that belongs to this namespace.
fn find(table: &[GidEntry], here: &[Here], wanted: &GidEntry) -> Option<u8> {
    let indices = 0..u8::try_from(table.len()).unwrap_or(u8::MAX);
    let likeness = |&index: &u8| {
        let entry = &table[usize::from(index)];
        if (entry.gid, entry.kind) != (wanted.gid, wanted.kind) {
            return 0;
        }
        match entry.ifindex == wanted.ifindex {
            true => u8::MAX,
            false => belonging(entry, here).saturating_sub(1),
        }
    };
    let best = indices.rev().max_by_key(likeness)?;
    (likeness(&best) != 0).then_some(best)
}

/// The addresses of this namespace. If they cannot be listed, no entry is preferred for its namespace.
fn here() -> Vec<Here> {
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    let known = interfaces.into_iter().map(|of| (of.ip(), of.index));
    known.collect()
}

impl Context {
    /// An entry of a port's GID table; zeroes where there is none.
    pub fn gid_entry(&self, port_num: u8, index: u8) -> GidEntry {
        // SAFETY: the context is open.
        let entry = unsafe { sys::query_gid_ex(self.handle(), port_num, index.into()) };
        entry.map_or_else(
            |_| GidEntry::default(),
            |entry| GidEntry {
                // SAFETY: both variants are 16 plain bytes.
                gid: unsafe { entry.gid.raw },
                kind: entry.gid_type,
                ifindex: entry.ndev_ifindex,
            },
        )
    }

    /// A port's GID table, with zeroes for entries that are empty.
    pub fn gids(&self, port_num: u8) -> Box<dyn Iterator<Item = GidEntry> + '_> {
        let length = self.query_port(port_num).map_or(0, |port| port.gid_tbl_len);
        let length = u8::try_from(length).unwrap_or(u8::MAX);
        Box::new((0..length).map(move |index| self.gid_entry(port_num, index)))
    }

    fn gid_table(&self, port_num: u8) -> Vec<GidEntry> {
        self.gids(port_num).collect()
    }

    /// The entry of the GID table that peers are to reach the port by, unless the program chooses one. On
    /// Ethernet it is a RoCE v2 entry, if possible one whose address belongs to this network namespace, with
    /// an IPv4 address, and not link-local; elsewhere it is the first. If the GID of the peer is given, the entry
    /// has an address of that kind, if the port has one.
    pub fn default_gid_index(&self, port_num: u8, peer: Option<[u8; 16]>) -> u8 {
        let table = self.gid_table(port_num);
        let is_v2 = |entry: &GidEntry| rank(entry, &[], None).0 == 2;
        let here = match table.iter().any(is_v2) {
            true => here(),
            false => Vec::new(),
        };
        choose(&table, &here, peer.map(Ipv6Addr::from))
    }

    /// The current index of an entry that was at this index before.
    pub fn gid_index_of(&self, port_num: u8, was: &GidEntry, at: u8) -> Option<u8> {
        if self.gid_entry(port_num, at) == *was {
            return Some(at);
        }
        find(&self.gid_table(port_num), &here(), was)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const NONE: GidEntry = GidEntry {
        gid: [0; 16],
        kind: 0,
        ifindex: 0,
    };

    fn entry(kind: u32, address: &str, ifindex: u32) -> GidEntry {
        let gid = match address.parse().unwrap() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        GidEntry { gid, kind, ifindex }
    }

    fn v2(address: &str, ifindex: u32) -> GidEntry {
        entry(sys::IBV_GID_TYPE_ROCE_V2, address, ifindex)
    }

    fn v1(address: &str, ifindex: u32) -> GidEntry {
        entry(1, address, ifindex)
    }

    fn has(address: &str, index: u32) -> Here {
        (address.parse().unwrap(), Some(index))
    }

    const LOOPBACK: Here = (IpAddr::V4(Ipv4Addr::LOCALHOST), Some(1));

    #[test]
    fn ipv4_of_roce_v2_comes_first_and_of_equals_the_first() {
        let table = [
            v1("fe80::1", 2),
            v2("fe80::1", 2),
            v1("10.0.0.1", 2),
            v2("2001:db8::1", 2),
            v2("10.0.0.1", 2),
            v2("10.0.0.2", 2),
        ];
        let both = [has("10.0.0.1", 2), has("10.0.0.2", 2)];
        // With all of them in this namespace, and with none known.
        let all = [&both[..], &[has("2001:db8::1", 2), has("fe80::1", 2)]].concat();
        for here in [&all[..], &[LOOPBACK], &[]] {
            assert_eq!(choose(&table, here, None), 4);
            assert_eq!(choose(&table[..4], here, None), 3);
            assert_eq!(choose(&table[..3], here, None), 1);
            assert_eq!(choose(&table[..1], here, None), 0);
            assert_eq!(choose(&[], here, None), 0);
        }
        // InfiniBand entries have no IP addresses: the first valid one is chosen.
        let subnet = [entry(0, "fe80::9", 0), entry(0, "fe80::8", 0), NONE];
        assert_eq!(choose(&subnet, &all, None), 0);
        assert_eq!(choose(&[NONE, subnet[0]], &[], None), 1);
    }

    #[test]
    fn an_address_of_another_namespace_comes_after_ours() {
        let table = [
            v2("fe80::1", 2),
            v2("10.0.0.200", 6),
            NONE,
            v2("10.0.0.1", 2),
            v2("2001:db8::1", 2),
        ];
        assert_eq!(choose(&table, &[LOOPBACK, has("10.0.0.1", 2)], None), 3);
        assert_eq!(choose(&table, &[has("10.0.0.200", 6)], None), 1);
        // An IPv6 entry of this namespace is preferred to an IPv4 entry of another.
        assert_eq!(choose(&table, &[has("2001:db8::1", 2)], None), 4);
        // RoCE v1 is not preferred for belonging to this namespace.
        let older = [v1("10.0.0.1", 2), v2("10.0.0.200", 6)];
        assert_eq!(choose(&older, &[has("10.0.0.1", 2)], None), 1);
    }

    #[test]
    fn of_an_address_that_two_namespaces_have_the_interface_decides() {
        let table = [v2("10.0.0.1", 6), v2("10.0.0.1", 0), v2("10.0.0.1", 2)];
        let here = [has("10.0.0.1", 9), has("10.0.0.1", 2)];
        assert_eq!(choose(&table, &here, None), 2);
        // An entry without an interface is preferred to one of another interface.
        assert_eq!(choose(&table[..2], &here, None), 1);
        assert_eq!(choose(&table[..1], &here, None), 0);
        // The other namespace has an interface of the same index, with another address.
        let same = [v2("10.0.0.200", 2), v2("10.0.0.1", 2)];
        assert_eq!(choose(&same, &here, None), 1);
    }

    #[test]
    fn an_entry_of_the_peers_kind_comes_first() {
        let table = [
            v2("fe80::1", 2),
            v2("10.0.0.1", 2),
            v2("2001:db8:1::1", 2),
            v2("2001:db8:2::1", 2),
            v1("2001:db8:3::1", 2),
        ];
        for (peer, index) in [
            ("::ffff:10.0.0.9", 1),
            ("fe80::9", 0),
            ("2001:db8:1::9", 2),
            ("2001:db8:2::9", 3),
            ("2001:db8:9::9", 2),
            // Not RoCE v2.
            ("2001:db8:3::9", 2),
            ("::", 1),
        ] {
            let peer = Some(peer.parse().unwrap());
            assert_eq!(choose(&table, &[], peer), index, "{peer:?}");
        }
        // Without one of that kind, the same as ever.
        let peer = Some("2001:db8::9".parse().unwrap());
        assert_eq!(choose(&table[1..2], &[], peer), 0);
        assert_eq!(choose(&table[..2], &[], peer), 0);
    }

    #[test]
    fn an_entry_is_found_where_it_has_moved_to() {
        let wanted = v2("10.0.0.1", 2);
        let here = [has("10.0.0.1", 2)];
        let moved = [v1("10.0.0.1", 2), v2("10.0.0.9", 2), wanted, wanted];
        assert_eq!(find(&moved, &here, &wanted), Some(2));
        // The interface was created anew.
        let anew = [v2("10.0.0.1", 6), v2("10.0.0.1", 7)];
        assert_eq!(find(&anew, &[has("10.0.0.1", 7)], &wanted), Some(1));
        // The remaining entry belongs to another namespace.
        assert_eq!(find(&anew[..1], &here, &wanted), None);
        assert_eq!(find(&anew[..1], &[], &wanted), None);
        assert_eq!(find(&[NONE], &here, &wanted), None);
        assert_eq!(find(&[], &here, &wanted), None);
    }
}
