//! What two ends tell each other, and its form on the wire.

use super::format::{CONN_INFO, FormatError, HEADER, Kind, Reader, within};
use crate::pd::{Mr, Region};
use crate::qp::Endpoint;
use bellwire_core::qp::Mtu;
use bellwire_core::wr::Remote;

/// Memory that a peer has opened: what one-sided operations name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteMemory {
    /// Where it starts, in the peer's address space.
    pub addr: u64,
    /// Its bytes; zero for no memory.
    pub length: u64,
    /// The peer's key for it.
    pub rkey: u32,
}

impl RemoteMemory {
    /// A place in it. The peer's device checks its bounds.
    pub fn remote(&self, offset: usize) -> Remote {
        Remote {
            addr: self.addr.wrapping_add(offset as u64),
            rkey: self.rkey,
        }
    }
}

impl From<&Mr> for RemoteMemory {
    fn from(mr: &Mr) -> Self {
        Self {
            addr: mr.addr(),
            length: mr.length(),
            rkey: mr.rkey(),
        }
    }
}

impl From<&Region> for RemoteMemory {
    fn from(region: &Region) -> Self {
        region.mr().into()
    }
}

/// What one end of a connection tells the other. The one that is received was checked: its numbers
/// are in their ranges, and its memory has an end. Whether they are true, the peer's device decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnInfo {
    /// The queue pair, and the port that it is behind: [`Qp::endpoint`](crate::Qp::endpoint).
    pub endpoint: Endpoint,
    /// The largest path MTU that this end can do: its port's
    /// [`active_mtu`](crate::PortAttr::active_mtu), or less. Connect with the lesser of both ends'.
    pub mtu: Mtu,
    /// Memory that the other end may work on, if there is any.
    pub memory: RemoteMemory,
}

impl ConnInfo {
    /// Bytes of it on the wire.
    pub const BYTES: usize = HEADER + CONN_INFO;

    /// As it is sent, for bringing it to the peer by any means.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..HEADER].copy_from_slice(&Kind::Info.header());
        bytes[HEADER..].copy_from_slice(&self.to_body());
        bytes
    }

    /// Its body.
    pub(super) fn to_body(self) -> [u8; CONN_INFO] {
        let Self {
            endpoint,
            mtu,
            memory,
        } = self;
        let fields: [&[u8]; 9] = [
            &endpoint.qp_num.to_be_bytes(),
            &endpoint.psn.to_be_bytes(),
            &endpoint.lid.to_be_bytes(),
            &[mtu.number()],
            &[0],
            &endpoint.gid,
            &memory.addr.to_be_bytes(),
            &memory.length.to_be_bytes(),
            &memory.rkey.to_be_bytes(),
        ];
        let mut bytes = [0; CONN_INFO];
        let mut at = 0;
        for field in fields {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        }
        bytes
    }

    /// What a peer sent.
    ///
    /// # Errors
    /// Anything that is not one, of this version, with every number in its range.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FormatError> {
        let whole = <&[u8; Self::BYTES]>::try_from(bytes).map_err(|_| FormatError::Length {
            given: bytes.len(),
            needed: Self::BYTES,
        })?;
        let mut reader = Reader(whole);
        Kind::Info.check(&reader.take())?;
        Self::from_body(&mut reader)
    }

    /// Takes its body.
    pub(super) fn from_body(reader: &mut Reader<'_>) -> Result<Self, FormatError> {
        let (qp_num, psn) = (reader.u32(), reader.u32());
        let lid = u16::from_be_bytes(reader.take());
        let [mtu, reserved] = reader.take();
        let gid = reader.take();
        let (addr, length, rkey) = (reader.u64(), reader.u64(), reader.u32());
        within("queue pair number", qp_num.into(), 1..1 << 24)?;
        within("PSN", psn.into(), ..1 << 24)?;
        within("reserved byte", reserved.into(), ..1)?;
        // Its end may be the end of the address space, and no further.
        within("memory length", length, ..=u64::MAX - addr)?;
        Ok(Self {
            endpoint: Endpoint {
                qp_num,
                psn,
                lid,
                gid,
            },
            mtu: Mtu::from_number(mtu).ok_or(FormatError::Field {
                field: "MTU",
                given: mtu.into(),
            })?,
            memory: RemoteMemory { addr, length, rkey },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> ConnInfo {
        ConnInfo {
            endpoint: Endpoint {
                qp_num: 0x00ab_cdef,
                psn: 0x0012_3456,
                lid: 0x789a,
                gid: *b"0123456789abcdef",
            },
            mtu: Mtu::Mtu2048,
            memory: RemoteMemory {
                addr: 0x0102_0304_0506_0708,
                length: 0x1112_1314_1516_1718,
                rkey: 0x2122_2324,
            },
        }
    }

    /// The format of version 1, byte for byte: it cannot change without another version.
    #[test]
    fn version_1_is_what_it_was() {
        let mut bytes = b"bellwire\x00\x01\x00\x01\x00\x00\x00\x30".to_vec();
        bytes.extend(b"\x00\xab\xcd\xef\x00\x12\x34\x56\x78\x9a\x04\x000123456789abcdef");
        bytes.extend(b"\x01\x02\x03\x04\x05\x06\x07\x08\x11\x12\x13\x14\x15\x16\x17\x18!\"#$");
        assert_eq!(info().to_bytes().as_slice(), bytes);
        assert_eq!(ConnInfo::from_bytes(&bytes), Ok(info()));
        assert_eq!(
            Kind::Barrier.header(),
            *b"bellwire\x00\x01\x00\x02\x00\x00\x00\x00"
        );
    }

    #[test]
    fn every_length_but_its_own_is_refused() {
        let mut bytes = info().to_bytes().to_vec();
        bytes.extend([0; 8]);
        for length in 0..bytes.len() {
            let read = ConnInfo::from_bytes(&bytes[..length]);
            assert_eq!(read.is_ok(), length == ConnInfo::BYTES, "{length}");
        }
        bytes.truncate(ConnInfo::BYTES);
        // The length that it says.
        for given in [0u32, 47, 49, u32::MAX] {
            bytes[12..16].copy_from_slice(&given.to_be_bytes());
            let needed = CONN_INFO;
            let given = given as usize;
            let expected = FormatError::Length { given, needed };
            assert_eq!(ConnInfo::from_bytes(&bytes), Err(expected));
        }
    }

    #[test]
    fn every_number_is_checked() {
        let changed = |at: usize, to: &[u8]| {
            let mut bytes = info().to_bytes();
            bytes[at..at + to.len()].copy_from_slice(to);
            ConnInfo::from_bytes(&bytes)
        };
        let field = |field, given| Err(FormatError::Field { field, given });
        assert_eq!(changed(0, b"GET / HT"), Err(FormatError::Foreign));
        let version = FormatError::Version { given: 2, ours: 1 };
        assert_eq!(changed(9, &[2]), Err(version));
        assert_eq!(changed(11, &[2]), Err(FormatError::OutOfStep));
        assert_eq!(changed(11, &[7]), Err(FormatError::OutOfStep));
        assert_eq!(changed(16, &[0; 4]), field("queue pair number", 0));
        assert_eq!(changed(16, &[1]), field("queue pair number", 0x01ab_cdef));
        assert_eq!(changed(20, &[1]), field("PSN", 0x0112_3456));
        assert_eq!(changed(26, &[0]), field("MTU", 0));
        assert_eq!(changed(26, &[6]), field("MTU", 6));
        assert_eq!(changed(27, &[1]), field("reserved byte", 1));
        let (addr, length) = (0xf000_0000_0000_0000u64, 0x1112_1314_1516_1718);
        assert_eq!(
            changed(44, &addr.to_be_bytes()),
            field("memory length", length)
        );
        // The last byte that there is.
        assert!(changed(44, &[0xff; 8]).is_err());
        assert!(changed(44, &(u64::MAX - length).to_be_bytes()).is_ok());
        assert!(changed(52, &[0; 8]).is_ok());
    }

    #[test]
    fn places_count_from_the_start_of_the_memory() {
        let memory = info().memory;
        let place = memory.remote(8);
        assert_eq!((place.addr, place.rkey), (memory.addr + 8, memory.rkey));
    }
}
