//! The messages between two connection managers: those of the InfiniBand CM (IBTA 12), each in one
//! datagram of a socket. The peer is not trusted: reading a message returns numbers that are in their
//! ranges, or an error.

use super::params::Params;
use super::private::Private;
use crate::connect::FormatError;
use crate::qp::Endpoint;
use arrayvec::ArrayVec;
use bellwire_core::link::wire::{Reader, within};
use bellwire_provider::address::{is_scoped, scope_of};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Identifies the format and its version.
const MAGIC: [u8; 8] = *b"bwcm\0\0\0\x03";

/// Bytes of an address: its family, IP address, port, and the interface of a link-local address. Both ends are
/// in the same network namespace, so that its number is the same at both.
const PEER: usize = 1 + 16 + 2 + 4;

/// Bytes before the private data.
const FRONT: usize = 8 + 2 + 2 + (4 + 4 + 2 + 16) + 4 + 6 + 2 * PEER;

/// Bytes of the longest message.
pub(super) const MAX_BYTES: usize = FRONT + Private::MAX;

/// Kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// Connection request.
    Req = 1,
    /// The request was received: its sender may have to wait longer.
    Mra = 2,
    /// The request was accepted.
    Rep = 3,
    /// The connection is ready to use.
    Rtu = 4,
    /// The request, or the response to it, was rejected.
    Rej = 5,
    /// Disconnection request.
    Dreq = 6,
    /// Response to a disconnection request.
    Drep = 7,
    /// Lookup of a queue pair for datagrams.
    SidrReq = 8,
    /// Response to a lookup.
    SidrRep = 9,
}

const KINDS: [Kind; 9] = [
    Kind::Req,
    Kind::Mra,
    Kind::Rep,
    Kind::Rtu,
    Kind::Rej,
    Kind::Dreq,
    Kind::Drep,
    Kind::SidrReq,
    Kind::SidrRep,
];

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub kind: Kind,
    /// The reason of a rejection.
    pub status: u16,
    pub params: Params,
    /// In requests: the sender's address, and the address that it requested.
    pub source: Option<SocketAddr>,
    pub target: Option<SocketAddr>,
    pub private: Private,
}

impl Message {
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            status: 0,
            params: Params::default(),
            source: None,
            target: None,
            private: Private::default(),
        }
    }

    /// Returns its wire format.
    pub fn to_bytes(&self) -> ArrayVec<u8, MAX_BYTES> {
        let Params {
            endpoint,
            qkey,
            responder_resources,
            initiator_depth,
            flow_control,
            retry_count,
            rnr_retry_count,
            srq,
        } = self.params;
        let numbers = [
            responder_resources,
            initiator_depth,
            u8::from(flow_control),
            retry_count,
            rnr_retry_count,
            u8::from(srq),
        ];
        let fields: [&[u8]; 12] = [
            &MAGIC,
            &[self.kind as u8, 0],
            &self.status.to_be_bytes(),
            &endpoint.qp_num.to_be_bytes(),
            &endpoint.psn.to_be_bytes(),
            &endpoint.lid.to_be_bytes(),
            &endpoint.gid,
            &qkey.to_be_bytes(),
            &numbers,
            &peer_to_bytes(self.source),
            &peer_to_bytes(self.target),
            self.private.as_ref(),
        ];
        fields.into_iter().flatten().copied().collect()
    }

    /// Reads a message that a peer sent.
    ///
    /// # Errors
    /// [`FormatError`] for anything other than a message of this version with every number in its range.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FormatError> {
        let length = FormatError::Length {
            given: bytes.len(),
            needed: FRONT,
        };
        let private = bytes.get(FRONT..).and_then(Private::new).ok_or(length)?;
        let mut reader = Reader(&bytes[..FRONT]);
        if reader.take() != MAGIC {
            return Err(FormatError::Foreign);
        }
        let [kind, reserved] = reader.take();
        within("reserved byte", reserved.into(), ..1)?;
        let named = KINDS.into_iter().find(|known| *known as u8 == kind);
        let kind = named.ok_or(FormatError::OutOfStep)?;
        let status = u16::from_be_bytes(reader.take());
        let endpoint = Endpoint {
            qp_num: reader.u32(),
            psn: reader.u32(),
            lid: u16::from_be_bytes(reader.take()),
            gid: reader.take(),
        };
        let qkey = reader.u32();
        let [responder, initiator, flow, retry, rnr, srq] = reader.take();
        within("queue pair number", endpoint.qp_num.into(), ..1 << 24)?;
        within("PSN", endpoint.psn.into(), ..1 << 24)?;
        within("flow control flag", flow.into(), ..2)?;
        within("retry count", retry.into(), ..8)?;
        within("RNR retry count", rnr.into(), ..8)?;
        within("shared receive queue flag", srq.into(), ..2)?;
        // A peer to connect to has a queue pair.
        if matches!(kind, Kind::Req | Kind::Rep) {
            within("queue pair number", endpoint.qp_num.into(), 1..)?;
        }
        Ok(Self {
            kind,
            status,
            params: Params {
                endpoint,
                qkey,
                responder_resources: responder,
                initiator_depth: initiator,
                flow_control: flow == 1,
                retry_count: retry,
                rnr_retry_count: rnr,
                srq: srq == 1,
            },
            source: peer_from_reader(&mut reader)?,
            target: peer_from_reader(&mut reader)?,
            private,
        })
    }
}

fn peer_to_bytes(peer: Option<SocketAddr>) -> [u8; PEER] {
    let mut bytes = [0; PEER];
    let Some(address) = peer else {
        return bytes;
    };
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    bytes[0] = if address.is_ipv4() { 4 } else { 6 };
    bytes[1..17].copy_from_slice(&ip.octets());
    bytes[17..19].copy_from_slice(&address.port().to_be_bytes());
    bytes[19..].copy_from_slice(&scope_of(address).to_be_bytes());
    bytes
}

fn peer_from_reader(reader: &mut Reader<'_>) -> Result<Option<SocketAddr>, FormatError> {
    let [sort] = reader.take();
    let ip = Ipv6Addr::from(reader.take::<16>());
    let port = u16::from_be_bytes(reader.take());
    let scope = reader.u32();
    let strange = FormatError::Field {
        field: "address",
        given: sort.into(),
    };
    Ok(Some(match sort {
        0 => return Ok(None),
        4 => {
            let ip = ip.to_ipv4_mapped().ok_or(strange)?;
            within("interface of an address", scope.into(), ..1)?;
            (ip, port).into()
        }
        6 => {
            let scoped = is_scoped(ip.into());
            let scopes = if scoped { ..=u32::MAX.into() } else { ..=0 };
            within("interface of an address", scope.into(), scopes)?;
            SocketAddrV6::new(ip, port, 0, scope).into()
        }
        _ => return Err(strange),
    }))
}

/// For the fuzz targets: a message, and the bytes that it is written as.
#[cfg(fuzzing)]
pub fn fuzz(bytes: &[u8]) {
    if let Ok(message) = Message::from_bytes(bytes) {
        let again = Message::from_bytes(&message.to_bytes()).map(|it| it.to_bytes());
        assert_eq!(again, Ok(message.to_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellwire_soft::random::Random;

    fn all() -> Vec<Message> {
        let peers: [Option<SocketAddr>; 3] = [
            None,
            Some("10.1.2.3:4".parse().unwrap()),
            Some("[fe80::1%7]:65535".parse().unwrap()),
        ];
        let messages = KINDS.into_iter().enumerate().map(|(at, kind)| Message {
            status: 28,
            params: Params {
                endpoint: Endpoint {
                    qp_num: 0x00ab_cdef,
                    psn: 0x0012_3456,
                    lid: 7,
                    gid: *b"0123456789abcdef",
                },
                qkey: 0x0123_4567,
                responder_resources: 16,
                initiator_depth: 3,
                flow_control: true,
                retry_count: 7,
                rnr_retry_count: 6,
                srq: at % 2 == 0,
            },
            source: peers[at % peers.len()],
            target: peers[(at + 1) % peers.len()],
            private: Private::new(&vec![9; at * 24]).unwrap(),
            ..Message::new(kind)
        });
        messages.collect()
    }

    #[test]
    fn what_is_written_is_read() {
        for message in all() {
            let bytes = message.to_bytes();
            assert!(bytes.len() <= MAX_BYTES);
            assert_eq!(Message::from_bytes(&bytes), Ok(message));
        }
    }

    #[test]
    fn no_length_is_believed() {
        let bytes = all()[0].to_bytes();
        assert_eq!(bytes.len(), FRONT);
        for length in 0..FRONT {
            assert!(Message::from_bytes(&bytes[..length]).is_err(), "{length}");
        }
        let long = [bytes.to_vec(), vec![0; Private::MAX + 1]].concat();
        assert!(Message::from_bytes(&long[..MAX_BYTES]).is_ok());
        assert!(Message::from_bytes(&long).is_err());
    }

    #[test]
    fn every_number_is_checked() {
        let changed = |at: usize, to: u8| {
            let mut bytes = all()[0].to_bytes();
            bytes[at] = to;
            Message::from_bytes(&bytes)
        };
        let field = |field, given| Err(FormatError::Field { field, given });
        // Another version.
        assert_eq!(changed(7, 2), Err(FormatError::Foreign));
        assert_eq!(changed(7, 4), Err(FormatError::Foreign));
        assert_eq!(changed(8, 0), Err(FormatError::OutOfStep));
        assert_eq!(changed(8, 10), Err(FormatError::OutOfStep));
        assert_eq!(changed(9, 1), field("reserved byte", 1));
        assert_eq!(changed(12, 1), field("queue pair number", 0x01ab_cdef));
        assert_eq!(changed(16, 1), field("PSN", 0x0112_3456));
        assert_eq!(changed(44, 2), field("flow control flag", 2));
        assert_eq!(changed(45, 8), field("retry count", 8));
        assert_eq!(changed(46, 8), field("RNR retry count", 8));
        assert_eq!(changed(47, 2), field("shared receive queue flag", 2));
        assert_eq!(changed(48, 3), field("address", 3));
        assert_eq!(changed(48, 1), field("address", 1));
        let mut none = all()[0].clone();
        none.params.endpoint.qp_num = 0;
        assert_eq!(
            Message::from_bytes(&none.to_bytes()),
            field("queue pair number", 0)
        );
        // An address that claims to be IPv4, and is not.
        let mut bytes = all()[1].to_bytes();
        bytes[49] = 1;
        assert_eq!(Message::from_bytes(&bytes), field("address", 4));
    }

    /// Whatever is read, the result is a message or an error.
    #[test]
    fn garbage_is_refused_or_means_something() {
        let mut random = Random::new(1);
        let mut read = 0;
        for round in 0..20_000 {
            let mut bytes = all()[round % KINDS.len()].to_bytes();
            for _ in 0..random.draw() % 4 {
                let at = random.draw() as usize % bytes.len();
                bytes[at] = random.draw() as u8;
            }
            if let Ok(message) = Message::from_bytes(&bytes) {
                // Bytes without a meaning may have changed, such as those after a name.
                assert_eq!(Message::from_bytes(&message.to_bytes()), Ok(message));
                read += 1;
            }
        }
        assert!(read > 1000, "{read}");
    }
}
