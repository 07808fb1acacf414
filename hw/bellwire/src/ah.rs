//! Address handles: the destinations of datagrams, and the paths back to their senders.

use crate::error::Error;
use crate::grh::{Header, headers};
use crate::pd::Pd;
use crate::provider::{AhSide, Hca};
use crate::verbs;
use bellwire_core::cqe::Source;
use bellwire_core::qp::{AhAttr, GlobalRoute};
use bellwire_core::queue::Success;
use bellwire_core::wqe::{AddressVector, UdAddress};
pub use bellwire_provider::attr::GRH_BYTES;
use bellwire_provider::attr::GidEntry;

/// An address handle (`ibv_ah`): a path that was checked once, ready to be written to requests.
#[derive(Clone, Debug)]
pub struct Ah {
    av: AddressVector,
    attr: AhAttr,
    // Dropped before the domain that it belongs to.
    _handle: AhSide,
    pd: Pd,
}

impl Pd {
    /// Creates an address handle (`ibv_create_ah`).
    ///
    /// # Errors
    /// The device does not have the port or the source GID, or a field is out of range.
    pub fn create_ah(&self, attr: &AhAttr) -> Result<Ah, Error> {
        let ports = self.device().attr().phys_port_cnt;
        let port = self.device().query_port(attr.port_num);
        let gids = port.map_or(1, |port| port.gid_tbl_len.max(1));
        for (what, given, min, max) in [
            ("port_num", u32::from(attr.port_num), 1, u32::from(ports)),
            (
                "sgid_index",
                attr.grh.sgid_index.into(),
                0,
                u32::from(gids) - 1,
            ),
            ("sl", attr.sl.into(), 0, 0xf),
            ("src_path_bits", attr.src_path_bits.into(), 0, 0x7f),
            ("flow_label", attr.grh.flow_label, 0, 0xf_ffff),
        ] {
            if !(min..=max).contains(&given) {
                return Err(Error::OutOfRange {
                    what,
                    given,
                    min,
                    max,
                });
            }
        }
        let (av, handle) = self.device().hca.create_ah(self, attr)?;
        Ok(Ah {
            av,
            attr: *attr,
            _handle: handle,
            pd: self.clone(),
        })
    }

    /// Creates an address handle to reply to a datagram (`ibv_create_ah_from_wc`).
    ///
    /// # Errors
    /// Those of [`AhAttr::from_wc`](ah_attr_from_wc) and [`create_ah`](Self::create_ah).
    pub fn create_ah_from_wc(
        &self,
        wc: &Success,
        grh: &[u8; GRH_BYTES],
        port_num: u8,
    ) -> Result<Ah, Error> {
        let source = wc.source().ok_or(Error::NotADatagram)?;
        self.create_ah_from_source(&source, grh, port_num)
    }

    /// Creates an address handle like [`create_ah_from_wc`](Self::create_ah_from_wc), from the part of the
    /// completion that it needs.
    ///
    /// # Errors
    /// Those of [`create_ah_from_wc`](Self::create_ah_from_wc).
    pub fn create_ah_from_source(
        &self,
        source: &Source,
        grh: &[u8; GRH_BYTES],
        port_num: u8,
    ) -> Result<Ah, Error> {
        let hca = &self.device().hca;
        let table = |port_num| gids(hca, port_num);
        self.create_ah(&way_back(source, grh, port_num, &[&table])?)
    }
}

impl Ah {
    /// The address of a queue pair that is reached by this path, for a request.
    #[inline(always)]
    pub fn to(&self, remote_qpn: u32, remote_qkey: u32) -> UdAddress<'_> {
        UdAddress {
            av: &self.av,
            remote_qpn,
            remote_qkey,
        }
    }

    /// The attributes that it was created with.
    pub fn attr(&self) -> &AhAttr {
        &self.attr
    }

    /// The protection domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }
}

/// The path back to a datagram's sender (`ibv_init_ah_from_wc`): `wc` is the completion of its receive, `grh`
/// the first 40 bytes of the receive's memory, `port_num` the port on which it arrived.
///
/// On RoCE the path begins at the GID that the datagram was sent to. Its index is looked for on the devices that
/// the process has open; [`Pd::create_ah_from_wc`] looks on its own device only.
///
/// # Errors
/// [`Error::NotADatagram`]: the completion is not that of a datagram, or the header is invalid;
/// [`Error::WayBack`]: no open device has that GID, or several have it at different indices.
pub fn ah_attr_from_wc(wc: &Success, grh: &[u8; GRH_BYTES], port_num: u8) -> Result<AhAttr, Error> {
    ah_attr_from_source(&wc.source().ok_or(Error::NotADatagram)?, grh, port_num)
}

/// The path back, like [`ah_attr_from_wc`], from the part of the completion that it needs.
///
/// # Errors
/// Those of [`ah_attr_from_wc`].
pub fn ah_attr_from_source(
    source: &Source,
    grh: &[u8; GRH_BYTES],
    port_num: u8,
) -> Result<AhAttr, Error> {
    let open = verbs::open_contexts();
    let tables: Vec<_> = (open.iter())
        .map(|context| move |port_num| context.gids(port_num))
        .collect();
    let tables: Vec<&Table<'_>> = tables.iter().map(|table| table as &Table<'_>).collect();
    way_back(source, grh, port_num, &tables)
}

/// Reads a port's GID table, as far as it is needed: each entry is a system call.
type Table<'t> = dyn Fn(u8) -> Box<dyn Iterator<Item = GidEntry> + 't> + 't;

fn gids(hca: &Hca, port_num: u8) -> Box<dyn Iterator<Item = GidEntry> + '_> {
    let length = hca.query_port(port_num).map_or(0, |port| port.gid_tbl_len);
    let length = u8::try_from(length).unwrap_or(u8::MAX);
    Box::new((0..length).map(move |index| hca.gid_entry(port_num, index)))
}

fn way_back(
    source: &Source,
    grh: &[u8; GRH_BYTES],
    port_num: u8,
    tables: &[&Table<'_>],
) -> Result<AhAttr, Error> {
    let mut attr = AhAttr {
        dlid: source.slid,
        sl: source.sl,
        src_path_bits: source.dlid_path_bits,
        port_num,
        ..AhAttr::default()
    };
    if source.grh {
        attr.is_global = true;
        attr.grh = route_back(grh, port_num, tables)?;
    }
    Ok(attr)
}

/// The route to the sender of a header (IBTA 8.3).
fn route_back(
    grh: &[u8; GRH_BYTES],
    port_num: u8,
    tables: &[&Table<'_>],
) -> Result<GlobalRoute, Error> {
    const HOP_LIMIT: u8 = 0xff;
    let mut refused = Error::NotADatagram;
    for header in headers(grh) {
        let index = match indices(&header, port_num, tables).as_slice() {
            [index] => *index,
            // The only GID of a software HCA, or the first one of an InfiniBand port.
            [] if !header.is_routable() => 0,
            [] if !header.is_certain => continue,
            found => {
                // A header that comes later may be the right one.
                refused = Error::WayBack {
                    gid: header.destination,
                    several: !found.is_empty(),
                };
                continue;
            }
        };
        return Ok(GlobalRoute {
            dgid: header.source,
            flow_label: header.flow_label,
            sgid_index: index,
            hop_limit: HOP_LIMIT,
            traffic_class: header.traffic_class,
        });
    }
    Err(refused)
}

/// The indices, each once, of the GIDs by which a header's sender can be replied to.
fn indices(header: &Header, port_num: u8, tables: &[&Table<'_>]) -> Vec<u8> {
    let mut found = Vec::new();
    for table in tables {
        if !header.is_certain && !table(port_num).any(|entry| entry.gid == header.source) {
            continue;
        }
        let at = match header.is_multicast() {
            true => table(port_num).position(|entry| header.can_reply_by(&entry)),
            false => table(port_num).position(|entry| header.is_to(&entry)),
        };
        let index = at.and_then(|at| u8::try_from(at).ok());
        if let Some(index) = index.filter(|index| !found.contains(index)) {
            found.push(index);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    const SOURCE: Source = Source {
        qpn: 7,
        slid: 3,
        sl: 1,
        dlid_path_bits: 0,
        grh: true,
    };

    fn v2(address: &str) -> GidEntry {
        let gid = match address.parse().unwrap() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        GidEntry {
            gid,
            kind: 2,
            ifindex: 1,
        }
    }

    /// The header of a datagram from one address to another, without a checksum.
    fn ipv4(from: [u8; 4], to: [u8; 4]) -> [u8; GRH_BYTES] {
        let mut bytes = [0; GRH_BYTES];
        bytes[20] = 0x45;
        bytes[22..24].copy_from_slice(&60u16.to_be_bytes());
        bytes[28..30].copy_from_slice(&[64, 17]);
        bytes[32..36].copy_from_slice(&from);
        bytes[36..].copy_from_slice(&to);
        bytes
    }

    fn with_checksum(mut bytes: [u8; GRH_BYTES]) -> [u8; GRH_BYTES] {
        let words = bytes[20..].chunks(2);
        let sum: u32 = words
            .map(|two| u32::from(u16::from_be_bytes([two[0], two[1]])))
            .sum();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        bytes[30..32].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    fn boxed<'t>(table: &'t [GidEntry]) -> Box<dyn Iterator<Item = GidEntry> + 't> {
        Box::new(table.iter().copied())
    }

    fn index(grh: &[u8; GRH_BYTES], tables: &[&[GidEntry]]) -> Result<u8, Error> {
        let tables: Vec<_> = tables.iter().map(|table| move |_| boxed(table)).collect();
        let tables: Vec<&Table<'_>> = tables.iter().map(|table| table as &Table<'_>).collect();
        way_back(&SOURCE, grh, 1, &tables).map(|attr| attr.grh.sgid_index)
    }

    #[test]
    fn the_way_back_begins_where_the_datagram_was_sent_to() {
        let ours = [
            v2("fe80::1"),
            v2("10.0.0.1"),
            v2("10.0.0.2"),
            v2("10.0.0.3"),
        ];
        let grh = with_checksum(ipv4([10, 0, 0, 9], [10, 0, 0, 2]));
        assert_eq!(index(&grh, &[&ours]).unwrap(), 2);
        let attr = way_back(&SOURCE, &grh, 1, &[&|_| boxed(&ours)]).unwrap();
        assert_eq!(attr.grh.dgid, v2("10.0.0.9").gid);
        assert!(attr.is_global && attr.grh.hop_limit == 255);
        // To a group: by an address of the same family.
        let group = with_checksum(ipv4([10, 0, 0, 9], [224, 0, 0, 7]));
        assert_eq!(index(&group, &[&ours]).unwrap(), 1);
        // Without a GRH the header is nothing.
        let plain = Source {
            grh: false,
            ..SOURCE
        };
        let attr = way_back(&plain, &[0xff; GRH_BYTES], 1, &[]).unwrap();
        assert!(!attr.is_global && attr.dlid == 3);
    }

    #[test]
    fn an_address_of_no_device_or_of_several_is_refused() {
        let grh = with_checksum(ipv4([10, 0, 0, 9], [10, 0, 0, 2]));
        let (one, other) = ([v2("10.0.0.2")], [v2("fe80::1"), v2("10.0.0.2")]);
        // A device that is open twice is one.
        assert_eq!(index(&grh, &[&other, &other]).unwrap(), 1);
        let several = index(&grh, &[&one, &other]).unwrap_err();
        assert!(matches!(several, Error::WayBack { several: true, .. }));
        assert!(several.to_string().contains("10.0.0.2"), "{several}");
        let other = [v2("10.0.0.3")];
        for tables in [&[][..], &[&other[..]]] {
            let none = index(&grh, tables).unwrap_err();
            assert!(
                matches!(none, Error::WayBack { several: false, .. }),
                "{none}"
            );
        }
    }

    #[test]
    fn without_a_checksum_both_addresses_are_the_device_s() {
        let ours = [v2("10.0.0.1"), v2("10.0.0.2")];
        let own = ipv4([10, 0, 0, 1], [10, 0, 0, 2]);
        assert_eq!(index(&own, &[&ours]).unwrap(), 1);
        let foreign = ipv4([10, 0, 0, 9], [10, 0, 0, 2]);
        assert!(matches!(
            index(&foreign, &[&ours]),
            Err(Error::NotADatagram)
        ));
    }
}
