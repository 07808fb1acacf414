//! The information that two ends exchange, and its wire format.

use super::wire::{CONN_INFO, FormatError, HEADER, Kind, Reader, within};
use crate::qp::Mtu;
use crate::wr::Remote;

/// The address of one end of a connection, to be passed to the peer by any means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The queue pair number.
    pub qp_num: u32,
    /// The first packet sequence number (PSN).
    pub psn: u32,
    /// The port's LID.
    pub lid: u16,
    /// The port's GID: the first, unless the device or the program prefers another.
    pub gid: [u8; 16],
}

/// Memory that a peer has opened for one-sided operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RemoteMemory {
    /// Its start, in the peer's address space.
    pub addr: u64,
    /// Its length in bytes; zero for no memory.
    pub length: u64,
    /// The peer's rkey for it.
    pub rkey: u32,
}

impl RemoteMemory {
    /// The address at an offset in it. The bounds are checked by the peer's device.
    pub fn remote(&self, offset: usize) -> Remote {
        Remote {
            addr: self.addr.wrapping_add(offset as u64),
            rkey: self.rkey,
        }
    }
}

/// The information that one end of a connection sends to the other. A received one was checked: its
/// numbers are in range, and its memory does not exceed the address space. Whether they are true is for
/// the peer's device to decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ConnInfo {
    /// The queue pair, and its port's address.
    pub endpoint: Endpoint,
    /// The largest path MTU that this end supports: its port's active MTU, or less. Connect with the lesser
    /// of both ends' values.
    pub mtu: Mtu,
    /// Memory that the other end may access, if any.
    pub memory: RemoteMemory,
}

impl ConnInfo {
    /// Its length on the wire in bytes.
    pub const BYTES: usize = HEADER + CONN_INFO;

    /// Returns its wire format, to be carried to the peer by any means.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..HEADER].copy_from_slice(&Kind::Info.header());
        bytes[HEADER..].copy_from_slice(&self.to_body());
        bytes
    }

    /// Returns its body.
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

    /// Reads one that a peer sent.
    ///
    /// # Errors
    /// [`FormatError`] for anything other than a `ConnInfo` of this version with every number in its
    /// range.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FormatError> {
        let whole = <&[u8; Self::BYTES]>::try_from(bytes).map_err(|_| FormatError::Length {
            given: bytes.len(),
            needed: Self::BYTES,
        })?;
        let mut reader = Reader(whole);
        Kind::Info.check(&reader.take())?;
        Self::from_body(&mut reader)
    }

    /// Reads the body.
    pub(super) fn from_body(reader: &mut Reader<'_>) -> Result<Self, FormatError> {
        let (qp_num, psn) = (reader.u32(), reader.u32());
        let lid = u16::from_be_bytes(reader.take());
        let [mtu, reserved] = reader.take();
        let gid = reader.take();
        let (addr, length, rkey) = (reader.u64(), reader.u64(), reader.u32());
        within("queue pair number", qp_num.into(), 1..1 << 24)?;
        within("PSN", psn.into(), ..1 << 24)?;
        within("reserved byte", reserved.into(), ..1)?;
        // The memory may end at the end of the address space, but not beyond it.
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
        // The length in the header.
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
        // The last byte of the address space.
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
