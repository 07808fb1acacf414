//! What two ends tell each other, and its form on the wire.

use crate::pd::{Mr, Region};
use crate::qp::Endpoint;
use bellwire_core::qp::Mtu;
use bellwire_core::wr::Remote;
use std::fmt;

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

/// Messages, big-endian:
///
/// ```text
///  0          8         10      12       16
///  │ bellwire │ version │ kind  │ length │ body, of so many bytes
///
///  16       20    24    26    27  28    44     52       60     64
///  │ qp_num │ psn │ lid │ mtu │ 0 │ gid │ addr │ length │ rkey │   the body of a ConnInfo
/// ```
const MAGIC: [u8; 8] = *b"bellwire";
const VERSION: u16 = 1;
pub(super) const HEADER: usize = 16;
const BODY: usize = 48;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A [`ConnInfo`].
    Info = 1,
    /// The sender has come to its barrier.
    Barrier = 2,
}

impl Kind {
    const fn length(self) -> usize {
        match self {
            Self::Info => BODY,
            Self::Barrier => 0,
        }
    }

    /// The header of a message of this kind.
    pub fn header(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_be_bytes());
        bytes[10..12].copy_from_slice(&(self as u16).to_be_bytes());
        bytes[12..].copy_from_slice(&(self.length() as u32).to_be_bytes());
        bytes
    }

    /// Whether a message of this kind follows.
    pub fn check(self, header: &[u8; HEADER]) -> Result<(), FormatError> {
        let short = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        if header[..8] != MAGIC {
            return Err(FormatError::Foreign);
        }
        if short(8) != VERSION {
            return Err(FormatError::Version {
                given: short(8),
                ours: VERSION,
            });
        }
        if short(10) != self as u16 {
            return Err(FormatError::OutOfStep);
        }
        let given = u32::from_be_bytes([header[12], header[13], header[14], header[15]]);
        if given as usize != self.length() {
            return Err(FormatError::Length {
                given: given as usize,
                needed: self.length(),
            });
        }
        Ok(())
    }
}

/// Takes fields off a message.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_first_chunk().expect("a body of its length");
        self.0 = rest;
        *field
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.take())
    }
}

/// A number that the peer gave, if it is one of these.
fn within(
    field: &'static str,
    given: u64,
    range: impl std::ops::RangeBounds<u64>,
) -> Result<(), FormatError> {
    if range.contains(&given) {
        return Ok(());
    }
    Err(FormatError::Field { field, given })
}

impl ConnInfo {
    /// Bytes of it on the wire.
    pub const BYTES: usize = HEADER + BODY;

    /// As it is sent, for bringing it to the peer by any means.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let Self {
            endpoint,
            mtu,
            memory,
        } = self;
        let fields: [&[u8]; 10] = [
            &Kind::Info.header(),
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
        let mut bytes = [0; Self::BYTES];
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

/// Why what a peer sent is not what it has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FormatError {
    /// It is not this library's at all.
    Foreign,
    /// It is of another version of the format.
    Version {
        /// The peer's.
        given: u16,
        /// Ours.
        ours: u16,
    },
    /// It is something else than what is due now.
    OutOfStep,
    /// It is longer or shorter than it can be.
    Length {
        /// The peer's number.
        given: usize,
        /// What it has to be.
        needed: usize,
    },
    /// A number is out of its range.
    Field {
        /// Which number.
        field: &'static str,
        /// The peer's number.
        given: u64,
    },
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => f.write_str(
                "the peer speaks another protocol: check the host and the port, and that the other \
                 program uses bellwire::connect",
            ),
            Self::Version { given, ours } => write!(
                f,
                "the peer speaks version {given} of the exchange, this library version {ours}: run \
                 both with the same version of bellwire"
            ),
            Self::OutOfStep => f.write_str(
                "the peer is at another step: both ends have to exchange and meet at barriers in \
                 the same order",
            ),
            Self::Length { given, needed } => write!(
                f,
                "the peer's message has {given} bytes where {needed} are due: run both with the \
                 same version of bellwire"
            ),
            Self::Field { field, given } => write!(
                f,
                "the peer's {field} is {given:#x}, which it cannot be: the other program gives it \
                 wrongly"
            ),
        }
    }
}

impl std::error::Error for FormatError {}

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
            let needed = BODY;
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
