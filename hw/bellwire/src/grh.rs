//! The network header of a received datagram, which its receive's first 40 bytes hold: a GRH, or the IPv6 header
//! in the same format, or an IPv4 header in the last 20 bytes (RoCE v2; IBTA annex A17.4.5.1). Nothing else says
//! which one it is, and the first 20 bytes before an IPv4 header hold anything. Nothing in it is trusted: a peer has
//! written it.

use bellwire_provider::attr::{GRH_BYTES, GidEntry};
use std::net::{Ipv4Addr, Ipv6Addr};

/// `IBV_GID_TYPE_ROCE_V2`.
const ROCE_V2: u32 = 2;

/// The transport headers of a datagram, in bytes: BTH, DETH, and the invariant CRC behind the payload.
const TRANSPORT: usize = 12 + 8 + 4;
const UDP: usize = 8;

/// A header that the bytes may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub source: [u8; 16],
    pub destination: [u8; 16],
    pub flow_label: u32,
    pub traffic_class: u8,
    /// It is that of a UDP packet, which RoCE v2 has.
    is_udp: bool,
    /// Whether the bytes say by themselves that they are this header. One that does not is it only if both
    /// addresses are those of the device: then the packet has not left it, and has no checksum.
    pub is_certain: bool,
}

impl Header {
    /// Whether the datagram was sent to this entry of the GID table.
    pub fn is_to(&self, entry: &GidEntry) -> bool {
        entry.gid == self.destination && self.has_type_of(entry)
    }

    /// Whether the entry is of this header's version of RoCE, or of InfiniBand.
    fn has_type_of(&self, entry: &GidEntry) -> bool {
        (entry.kind == ROCE_V2) == self.is_udp
    }

    /// Whether the entry can be the source of datagrams to where this one has come from.
    pub fn can_reply_by(&self, entry: &GidEntry) -> bool {
        let is_ipv4 = |gid| Ipv6Addr::from(gid).to_ipv4_mapped().is_some();
        entry.gid != [0; 16]
            && is_ipv4(entry.gid) == is_ipv4(self.source)
            && self.has_type_of(entry)
    }

    /// Whether the datagram was sent to a group.
    pub fn is_multicast(&self) -> bool {
        Ipv6Addr::from(self.destination)
            .to_canonical()
            .is_multicast()
    }

    /// Whether it is that of RoCE v2, whose GIDs are addresses.
    pub fn is_routable(&self) -> bool {
        self.is_udp
    }
}

/// The headers that the bytes may be, the most likely first.
pub(crate) fn headers(grh: &[u8; GRH_BYTES]) -> impl Iterator<Item = Header> {
    let ipv4 = ipv4(grh);
    let certain = ipv4.filter(|header| header.is_certain);
    let other = ipv4.filter(|header| !header.is_certain);
    certain.into_iter().chain(ipv6(grh)).chain(other)
}

fn ipv6(grh: &[u8; GRH_BYTES]) -> Option<Header> {
    const VERSION: u32 = 6;
    const NEXT_UDP: u8 = 17;
    const NEXT_IBA: u8 = 0x1b;
    let first = u32::from_be_bytes(*grh.first_chunk()?);
    let (length, next) = (u16::from_be_bytes([grh[4], grh[5]]), grh[6]);
    let [source, destination] = [8, 24].map(|at| *grh[at..].first_chunk().expect("16 bytes"));
    let is_udp = next == NEXT_UDP;
    let least = TRANSPORT + if is_udp { UDP } else { 0 };
    let from = Ipv6Addr::from(source);
    let valid = first >> 28 == VERSION
        && (is_udp || next == NEXT_IBA)
        && usize::from(length) >= least
        && !from.is_multicast()
        && !from.is_unspecified();
    valid.then_some(Header {
        source,
        destination,
        flow_label: first & 0xf_ffff,
        traffic_class: (first >> 20) as u8,
        is_udp,
        is_certain: true,
    })
}

fn ipv4(grh: &[u8; GRH_BYTES]) -> Option<Header> {
    /// Version 4, and a header of five words: RoCE v2 has no options.
    const VERSION_AND_LENGTH: u8 = 0x45;
    const UDP_PROTOCOL: u8 = 17;
    const DONT_FRAGMENT: u16 = 1 << 14;
    let header: &[u8; 20] = grh.last_chunk()?;
    let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let [from, to] = [12, 16].map(|at| {
        let octets: [u8; 4] = *header[at..].first_chunk().expect("4 bytes");
        Ipv4Addr::from(octets)
    });
    let valid = header[0] == VERSION_AND_LENGTH
        && header[9] == UDP_PROTOCOL
        && usize::from(word(2)) >= header.len() + UDP + TRANSPORT
        && word(6) & !DONT_FRAGMENT == 0
        && !from.is_multicast()
        && !from.is_broadcast()
        && !from.is_unspecified();
    let sum: u32 = (0..header.len())
        .step_by(2)
        .map(|at| u32::from(word(at)))
        .sum();
    // Twenty bytes: adding the carry once leaves at most one.
    let folded = (sum & 0xffff) + (sum >> 16);
    valid.then_some(Header {
        source: from.to_ipv6_mapped().octets(),
        destination: to.to_ipv6_mapped().octets(),
        flow_label: 0,
        traffic_class: header[1],
        is_udp: true,
        is_certain: folded == 0xffff,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellwire_soft::random::Random;

    const HERE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
    const THERE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

    /// An IPv4 header behind 20 bytes of something else.
    fn ipv4_bytes(before: [u8; 20], change: impl FnOnce(&mut [u8; 20])) -> [u8; GRH_BYTES] {
        let mut header = [0; 20];
        header[0] = 0x45;
        header[1] = 0x68;
        header[2..4].copy_from_slice(&60u16.to_be_bytes());
        header[6] = 0x40;
        header[8..10].copy_from_slice(&[64, 17]);
        header[12..16].copy_from_slice(&THERE.octets());
        header[16..].copy_from_slice(&HERE.octets());
        let sum: u32 = header
            .chunks(2)
            .map(|two| u32::from(u16::from_be_bytes([two[0], two[1]])))
            .sum();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        change(&mut header);
        let mut bytes = [0; GRH_BYTES];
        bytes[..20].copy_from_slice(&before);
        bytes[20..].copy_from_slice(&header);
        bytes
    }

    fn ipv6_bytes(next: u8, change: impl FnOnce(&mut [u8; GRH_BYTES])) -> [u8; GRH_BYTES] {
        let mut bytes = [0; GRH_BYTES];
        bytes[..4].copy_from_slice(&(6 << 28 | 0x5a << 20 | 0x1_2345_u32).to_be_bytes());
        bytes[5..8].copy_from_slice(&[40, next, 64]);
        bytes[8..24].copy_from_slice(&"fe80::2".parse::<Ipv6Addr>().unwrap().octets());
        bytes[24..].copy_from_slice(&"fe80::1".parse::<Ipv6Addr>().unwrap().octets());
        change(&mut bytes);
        bytes
    }

    fn entry(kind: u32, gid: Ipv6Addr) -> GidEntry {
        GidEntry {
            gid: gid.octets(),
            kind,
            ifindex: 1,
        }
    }

    fn first(bytes: &[u8; GRH_BYTES]) -> Option<Header> {
        headers(bytes).next()
    }

    #[test]
    fn an_ipv4_header_is_found_behind_whatever_was_there() {
        // Such as the header of the datagram that the memory held before.
        let older = *ipv6_bytes(17, |_| ()).first_chunk().unwrap();
        for before in [[0; 20], [0xff; 20], [0x45; 20], older] {
            let bytes = ipv4_bytes(before, |_| ());
            let header = first(&bytes).expect("a header");
            assert_eq!(header.source, THERE.to_ipv6_mapped().octets());
            assert_eq!(header.destination, HERE.to_ipv6_mapped().octets());
            assert_eq!((header.traffic_class, header.flow_label), (0x68, 0));
            assert!(header.is_certain && header.is_routable());
        }
    }

    #[test]
    fn a_packet_that_has_not_left_the_device_has_no_checksum() {
        let bytes = ipv4_bytes([0; 20], |header| header[10..12].fill(0));
        let header = first(&bytes).expect("a header");
        assert!(!header.is_certain);
        // An IPv6 header that is certain comes first.
        let before = *ipv6_bytes(17, |_| ()).first_chunk().unwrap();
        let both: Vec<_> = headers(&ipv4_bytes(before, |header| header[10..12].fill(0))).collect();
        assert_eq!(
            both.iter().map(|of| of.is_certain).collect::<Vec<_>>(),
            [true, false]
        );
    }

    #[test]
    fn the_version_of_roce_decides_about_the_entry() {
        let [v1, v2] = [27, 17].map(|next| first(&ipv6_bytes(next, |_| ())).expect("a header"));
        assert_eq!((v2.flow_label, v2.traffic_class), (0x1_2345, 0x5a));
        let gid = "fe80::1".parse().unwrap();
        for (header, kinds) in [(v1, [true, true, false]), (v2, [false, false, true])] {
            let fits = [0, 1, 2].map(|kind| header.is_to(&entry(kind, gid)));
            assert_eq!(fits, kinds);
        }
        assert!(!v2.is_to(&entry(2, "fe80::3".parse().unwrap())));
        let ipv4 = first(&ipv4_bytes([0; 20], |_| ())).expect("a header");
        assert!(ipv4.is_to(&entry(2, HERE.to_ipv6_mapped())));
        assert!(!ipv4.is_to(&entry(1, HERE.to_ipv6_mapped())));
        assert!(ipv4.can_reply_by(&entry(2, THERE.to_ipv6_mapped())));
        assert!(!ipv4.can_reply_by(&entry(2, gid)));
        assert!(!ipv4.can_reply_by(&entry(2, Ipv6Addr::UNSPECIFIED)));
    }

    #[test]
    fn what_no_datagram_can_have_is_refused() {
        let broken: [fn(&mut [u8; 20]); 9] = [
            |header| header[0] = 0x46,
            |header| header[0] = 0x65,
            |header| header[9] = 6,
            |header| header[2..4].copy_from_slice(&51u16.to_be_bytes()),
            |header| header[6] = 0x20,
            |header| header[7] = 1,
            |header| header[12..16].fill(0),
            |header| header[12..16].fill(0xff),
            |header| header[12] = 224,
        ];
        for (at, change) in broken.into_iter().enumerate() {
            assert_eq!(first(&ipv4_bytes([0; 20], change)), None, "{at}");
        }
        let broken: [fn(&mut [u8; GRH_BYTES]); 5] = [
            |bytes| bytes[0] = 0x50,
            |bytes| bytes[6] = 6,
            |bytes| bytes[5] = 31,
            |bytes| bytes[8..24].fill(0),
            |bytes| bytes[8] = 0xff,
        ];
        for (at, change) in broken.into_iter().enumerate() {
            assert_eq!(first(&ipv6_bytes(17, change)), None, "{at}");
        }
        assert_eq!(first(&[0; GRH_BYTES]), None);
        assert_eq!(first(&[0xff; GRH_BYTES]), None);
    }

    /// Whatever the bytes are, a header that is found has a source that can be replied to.
    #[test]
    fn hostile_bytes_lead_to_no_group_and_no_panic() {
        let mut random = Random::new(7);
        let mut found = [0; 2];
        for round in 0..40_000 {
            let mut bytes = match round % 3 {
                0 => ipv4_bytes([random.draw() as u8; 20], |_| ()),
                1 => ipv6_bytes([17, 27][round % 2], |_| ()),
                _ => std::array::from_fn(|_| random.draw() as u8),
            };
            for _ in 0..random.draw() % 4 {
                bytes[random.draw() as usize % GRH_BYTES] = random.draw() as u8;
            }
            for header in headers(&bytes) {
                let from = Ipv6Addr::from(header.source).to_canonical();
                assert!(!from.is_multicast() && !from.is_unspecified(), "{from}");
                assert!(header.flow_label < 1 << 20);
                found[usize::from(header.is_certain)] += 1;
            }
        }
        assert!(found.iter().all(|&count| count > 1000), "{found:?}");
    }
}
