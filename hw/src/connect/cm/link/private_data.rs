//! What a link says of itself, in the 56 bytes that a request has room for.

use crate::connect::format::{Reader, within};
use crate::connect::{ConnInfo, FormatError, RecoveryInfo, RemoteMemory};
use crate::qp::Endpoint;
use bellwire_core::qp::Mtu;

/// Version of the format.
const MAGIC: [u8; 4] = *b"bwl\x01";

/// Bytes of one.
pub(super) const BYTES: usize = 56;

/// In the last byte.
const EXACT: u8 = 1;
const READY: u8 = 2;
const AGAIN: u8 = 4;

/// What a link says of itself. Its port's address is not in it: the communication manager knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PrivateData {
    /// Which link of the connector's it is.
    pub session: u64,
    pub info: RecoveryInfo,
    /// Its queue pair is connected in this epoch.
    pub ready: bool,
    /// The two have been connected before.
    pub again: bool,
}

/// The low 48 bits.
fn short(number: u64) -> [u8; 6] {
    let [_, _, low @ ..] = number.to_be_bytes();
    low
}

fn long([a, b, c, d, e, f]: [u8; 6]) -> u64 {
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

impl PrivateData {
    pub fn to_bytes(self) -> Vec<u8> {
        let RecoveryInfo {
            epoch,
            conn,
            connection,
            consumed,
            exact,
        } = self.info;
        // A connection that is too long ago, or a count that is too great, is not told: the peer is in
        // doubt then, and nothing is said that is not so.
        let ago = u16::try_from(epoch - connection).ok();
        let told = ago.filter(|_| connection != 0 && consumed >> 48 == 0);
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        let flags = flag(exact, EXACT) | flag(self.ready, READY) | flag(self.again, AGAIN);
        let fields: [&[u8]; 11] = [
            &MAGIC,
            &self.session.to_be_bytes(),
            &conn.endpoint.qp_num.to_be_bytes()[1..],
            &conn.endpoint.psn.to_be_bytes()[1..],
            &conn.memory.addr.to_be_bytes(),
            &conn.memory.length.to_be_bytes(),
            &conn.memory.rkey.to_be_bytes(),
            &short(epoch),
            &told.unwrap_or(0).to_be_bytes(),
            &short(told.map_or(0, |_| consumed)),
            &[conn.mtu.number(), 0, 0, flags],
        ];
        fields.concat()
    }

    /// What a peer said, whose port has this address. There may be zeroes behind it.
    ///
    /// # Errors
    /// Anything that is not one, of this version, with every number in its range.
    pub fn from_bytes(bytes: &[u8], lid: u16, gid: [u8; 16]) -> Result<Self, FormatError> {
        let whole = bytes.get(..BYTES).ok_or(FormatError::Length {
            given: bytes.len(),
            needed: BYTES,
        })?;
        let mut reader = Reader(whole);
        if reader.take() != MAGIC {
            return Err(FormatError::Foreign);
        }
        let session = reader.u64();
        let mut number = || {
            let [a, b, c] = reader.take();
            u32::from_be_bytes([0, a, b, c])
        };
        let (qp_num, psn) = (number(), number());
        let (addr, length, rkey) = (reader.u64(), reader.u64(), reader.u32());
        let epoch = long(reader.take());
        let ago = u64::from(u16::from_be_bytes(reader.take()));
        let consumed = long(reader.take());
        let [mtu, zero, also_zero, flags] = reader.take();
        within("queue pair number", qp_num.into(), 1..)?;
        within("memory length", length, ..=u64::MAX - addr)?;
        within("epoch", epoch, 1..)?;
        within("connection", ago, ..epoch)?;
        within("reserved byte", (zero | also_zero).into(), ..1)?;
        within("flags", flags.into(), ..=u64::from(EXACT | READY | AGAIN))?;
        let mtu = Mtu::from_number(mtu).ok_or(FormatError::Field {
            field: "MTU",
            given: mtu.into(),
        })?;
        Ok(Self {
            session,
            info: RecoveryInfo {
                epoch,
                conn: ConnInfo {
                    endpoint: Endpoint {
                        qp_num,
                        psn,
                        lid,
                        gid,
                    },
                    mtu,
                    memory: RemoteMemory { addr, length, rkey },
                },
                connection: if ago == 0 { 0 } else { epoch - ago },
                consumed,
                exact: flags & EXACT != 0,
            },
            ready: flags & READY != 0,
            again: flags & AGAIN != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said() -> PrivateData {
        PrivateData {
            session: 0x0102_0304_0506_0708,
            info: RecoveryInfo {
                epoch: 70_000,
                conn: ConnInfo {
                    endpoint: Endpoint {
                        qp_num: 0x00ab_cdef,
                        psn: 0x0012_3456,
                        lid: 7,
                        gid: *b"0123456789abcdef",
                    },
                    mtu: Mtu::Mtu2048,
                    memory: RemoteMemory {
                        addr: 1 << 40,
                        length: 1 << 33,
                        rkey: 9,
                    },
                },
                connection: 69_998,
                consumed: 1 << 47,
                exact: true,
            },
            ready: false,
            again: true,
        }
    }

    fn read(bytes: &[u8]) -> Result<PrivateData, FormatError> {
        PrivateData::from_bytes(bytes, 7, *b"0123456789abcdef")
    }

    #[test]
    fn what_is_written_is_read() {
        let mut bytes = said().to_bytes();
        assert_eq!(bytes.len(), BYTES);
        bytes.extend([0; 100]);
        assert_eq!(read(&bytes), Ok(said()));
        let ready = PrivateData {
            ready: true,
            ..said()
        };
        assert_eq!(read(&ready.to_bytes()), Ok(ready));
    }

    /// What it has no room for is left out, rather than told wrongly.
    #[test]
    fn what_is_too_long_is_not_told() {
        for (connection, consumed) in [(0, 5), (1, 5), (69_998, 1 << 48)] {
            let mut said = said();
            said.info.connection = connection;
            said.info.consumed = consumed;
            let read = read(&said.to_bytes()).unwrap().info;
            assert_eq!((read.connection, read.consumed), (0, 0));
        }
    }

    #[test]
    fn every_number_is_checked() {
        let changed = |at: usize, to: &[u8]| {
            let mut bytes = said().to_bytes();
            bytes[at..at + to.len()].copy_from_slice(to);
            read(&bytes).map(|_| ())
        };
        let field = |field, given| Err(FormatError::Field { field, given });
        assert_eq!(changed(3, &[2]), Err(FormatError::Foreign));
        assert_eq!(changed(12, &[0; 3]), field("queue pair number", 0));
        assert_eq!(changed(18, &[0xff; 16]), field("memory length", u64::MAX));
        assert_eq!(changed(38, &[0; 6]), field("epoch", 0));
        assert_eq!(changed(38, &[0, 0, 0, 0, 0, 2]), field("connection", 2));
        assert_eq!(changed(52, &[6]), field("MTU", 6));
        assert_eq!(changed(54, &[1]), field("reserved byte", 1));
        assert_eq!(changed(55, &[8]), field("flags", 8));
        for length in 0..BYTES {
            assert!(read(&said().to_bytes()[..length]).is_err(), "{length}");
        }
    }
}
