//! The messages that the two ends of a link exchange. The peer is not trusted: reading a message returns
//! numbers that are in their ranges, or an error.

use super::info::ConnInfo;
use super::wire::{FormatError, HEADER, Kind, RECOVERY_INFO, Reader, within};
use crate::fault::{FaultCode, FaultFamily};
use core::ops::Deref;

/// A message of a link to its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// The sender's queue pair has stopped, and is ready to be connected.
    Info(RecoveryInfo),
    /// The sender's queue pair is connected, and can receive.
    Ready {
        /// The epoch in which it is connected.
        epoch: u64,
    },
    /// The sender closes the connection: no messages follow.
    Closing,
    /// The sender has given the link up, for this reason.
    GaveUp(FaultCode),
}

/// What an end sends of itself when it has stopped, so that both can connect again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RecoveryInfo {
    /// The number of the next connection; they count from 1.
    pub epoch: u64,
    /// The queue pair to connect with.
    pub conn: ConnInfo,
    /// The last connection on which the sender could receive; zero if none.
    pub connection: u64,
    /// Receives that completed successfully on that connection.
    pub consumed: u64,
    /// Whether the count is exact. If completions may have been lost it is a lower bound.
    pub exact: bool,
}

impl Message {
    /// Length of the longest message in bytes.
    pub const MAX_BYTES: usize = HEADER + RECOVERY_INFO;

    /// Returns its wire format.
    pub fn to_bytes(&self) -> MessageBytes {
        match self {
            Self::Info(info) => MessageBytes::new(
                Kind::Recovery,
                &[
                    &info.conn.to_body(),
                    &info.epoch.to_be_bytes(),
                    &info.connection.to_be_bytes(),
                    &info.consumed.to_be_bytes(),
                    &[u8::from(info.exact), 0, 0, 0, 0, 0, 0, 0],
                ],
            ),
            Self::Ready { epoch } => MessageBytes::new(Kind::Ready, &[&epoch.to_be_bytes()]),
            Self::Closing => MessageBytes::new(Kind::Closing, &[]),
            Self::GaveUp(why) => MessageBytes::new(
                Kind::GaveUp,
                &[
                    &u32::from(why.family().number()).to_be_bytes(),
                    &why.number().to_be_bytes(),
                ],
            ),
        }
    }

    /// Length in bytes of the message that starts with `bytes`.
    ///
    /// # Errors
    /// [`FormatError`] for anything other than the header of a message of this version.
    ///
    /// # Panics
    /// When there are fewer than [`HEADER_BYTES`](Self::HEADER_BYTES).
    pub fn length(bytes: &[u8]) -> Result<usize, FormatError> {
        let header = bytes.first_chunk().expect("a header's bytes");
        Ok(HEADER + Kind::of_link(header)?.length())
    }

    /// Bytes needed to determine a message's length.
    pub const HEADER_BYTES: usize = HEADER;

    /// Reads a message that a peer sent.
    ///
    /// # Errors
    /// [`FormatError`] for anything other than a message of this version with every number in its range.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FormatError> {
        let short = |needed| FormatError::Length {
            given: bytes.len(),
            needed,
        };
        let header = bytes.first_chunk().ok_or(short(HEADER))?;
        let kind = Kind::of_link(header)?;
        if bytes.len() != HEADER + kind.length() {
            return Err(short(HEADER + kind.length()));
        }
        let mut reader = Reader(&bytes[HEADER..]);
        Ok(match kind {
            Kind::Recovery => {
                let conn = ConnInfo::from_body(&mut reader)?;
                let (epoch, connection) = (reader.u64(), reader.u64());
                let consumed = reader.u64();
                let [exact, reserved @ ..] = reader.take::<8>();
                within("epoch", epoch, 1..)?;
                within("connection", connection, ..epoch)?;
                within("exact flag", exact.into(), ..2)?;
                let reserved = reserved.iter().fold(0, |all, byte| all | byte);
                within("reserved byte", reserved.into(), ..1)?;
                Self::Info(RecoveryInfo {
                    epoch,
                    conn,
                    connection,
                    consumed,
                    exact: exact == 1,
                })
            }
            Kind::Ready => {
                let epoch = reader.u64();
                within("epoch", epoch, 1..)?;
                Self::Ready { epoch }
            }
            Kind::GaveUp => {
                let (family, number) = (reader.u32(), reader.u32());
                let known = u8::try_from(family).ok().and_then(FaultFamily::from_number);
                let why = known.and_then(|family| FaultCode::new(family, number.cast_signed()));
                Self::GaveUp(why.ok_or(FormatError::Field {
                    field: "fault",
                    given: u64::from(family) << 32 | u64::from(number),
                })?)
            }
            _ => Self::Closing,
        })
    }
}

/// The wire format of a message.
#[derive(Clone, Copy, Debug)]
pub struct MessageBytes {
    bytes: [u8; Message::MAX_BYTES],
    length: usize,
}

impl MessageBytes {
    fn new(kind: Kind, fields: &[&[u8]]) -> Self {
        let mut all = Self {
            bytes: [0; Message::MAX_BYTES],
            length: 0,
        };
        all.append(&kind.header());
        fields.iter().for_each(|field| all.append(field));
        all
    }

    fn append(&mut self, field: &[u8]) {
        let end = self.length + field.len();
        self.bytes[self.length..end].copy_from_slice(field);
        self.length = end;
    }
}

impl Deref for MessageBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::super::info::{Endpoint, RemoteMemory};
    use super::*;
    use crate::fault::Fault;
    use crate::qp::Mtu;
    use crate::random::Random;

    fn all() -> [Message; 4] {
        let conn = ConnInfo {
            endpoint: Endpoint {
                qp_num: 0x00ab_cdef,
                psn: 0x0012_3456,
                lid: 7,
                gid: *b"0123456789abcdef",
            },
            mtu: Mtu::Mtu1024,
            memory: RemoteMemory {
                addr: 1,
                length: 2,
                rkey: 3,
            },
        };
        let info = RecoveryInfo {
            epoch: 5,
            conn,
            connection: 4,
            consumed: 0x0102_0304_0506_0708,
            exact: true,
        };
        [
            Message::Info(info),
            Message::Ready { epoch: 9 },
            Message::Closing,
            Message::GaveUp(Fault::RecvLimitExceeded.without_circumstances()),
        ]
    }

    #[test]
    fn what_is_written_is_read() {
        for message in all() {
            let bytes = message.to_bytes();
            assert!(bytes.len() <= Message::MAX_BYTES);
            assert_eq!(Message::length(&bytes), Ok(bytes.len()));
            assert_eq!(Message::from_bytes(&bytes), Ok(message));
        }
    }

    /// The format of version 1, byte for byte: it cannot change without another version.
    #[test]
    fn version_1_is_what_it_was() {
        let bytes = all().map(|message| message.to_bytes().to_vec());
        assert_eq!(bytes[0][..16], *b"bellwire\x00\x01\x00\x03\x00\x00\x00\x50");
        assert_eq!(bytes[0][64..72], 5u64.to_be_bytes());
        assert_eq!(bytes[0][72..80], 4u64.to_be_bytes());
        assert_eq!(bytes[0][80..88], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes[0][88..], [1, 0, 0, 0, 0, 0, 0, 0]);
        let ready = b"bellwire\x00\x01\x00\x04\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00\x09";
        assert_eq!(bytes[1], ready);
        assert_eq!(bytes[2], b"bellwire\x00\x01\x00\x05\x00\x00\x00\x00");
        let gave_up = b"bellwire\x00\x01\x00\x06\x00\x00\x00\x08\x00\x00\x00\x05\x00\x00\x00\x02";
        assert_eq!(bytes[3], gave_up);
    }

    #[test]
    fn every_length_but_its_own_is_refused() {
        for message in all() {
            let mut bytes = message.to_bytes().to_vec();
            let whole = bytes.len();
            bytes.extend([0; 8]);
            for length in 0..bytes.len() {
                let read = Message::from_bytes(&bytes[..length]);
                assert_eq!(read.is_ok(), length == whole, "{message:?}: {length}");
            }
        }
    }

    #[test]
    fn every_number_is_checked() {
        let changed = |at: usize, to: &[u8]| {
            let mut bytes = all()[0].to_bytes().to_vec();
            bytes[at..at + to.len()].copy_from_slice(to);
            Message::from_bytes(&bytes)
        };
        let field = |field, given| Err(FormatError::Field { field, given });
        assert_eq!(changed(0, b"GET / HT"), Err(FormatError::Foreign));
        assert_eq!(changed(11, &[1]), Err(FormatError::OutOfStep));
        assert_eq!(changed(11, &[9]), Err(FormatError::OutOfStep));
        assert_eq!(changed(16, &[0; 4]), field("queue pair number", 0));
        assert_eq!(changed(64, &[0; 8]), field("epoch", 0));
        assert_eq!(changed(79, &[5]), field("connection", 5));
        assert_eq!(changed(88, &[2]), field("exact flag", 2));
        assert_eq!(changed(95, &[1]), field("reserved byte", 1));
        let mut ready = all()[1].to_bytes().to_vec();
        ready[23] = 0;
        assert_eq!(Message::from_bytes(&ready), field("epoch", 0));
        for (family, number) in [(5, 4), (4, 4), (6, 0), (256, 0)] {
            let mut gave_up = all()[3].to_bytes().to_vec();
            gave_up[16..20].copy_from_slice(&u32::to_be_bytes(family));
            gave_up[20..].copy_from_slice(&u32::to_be_bytes(number));
            let given = u64::from(family) << 32 | u64::from(number);
            assert_eq!(Message::from_bytes(&gave_up), field("fault", given));
        }
    }

    /// Whatever is read, the result is a message with these very bytes, or an error.
    #[test]
    fn garbage_is_refused_or_means_what_it_says() {
        let mut random = Random(1);
        let mut read = 0;
        for round in 0..100_000 {
            let mut bytes = all()[round % 4].to_bytes().to_vec();
            for _ in 0..random.next() % 4 {
                let at = random.next() as usize % bytes.len();
                bytes[at] = random.next() as u8;
            }
            if let Ok(message) = Message::from_bytes(&bytes) {
                assert_eq!(*message.to_bytes(), bytes);
                read += 1;
            }
        }
        assert!(read > 1000, "{read}");
    }
}
