//! The state of a link, in the 56 bytes of private data of a connection request.

use crate::connect::{ConnInfo, FormatError, RecoveryInfo, RemoteMemory};
use crate::qp::Endpoint;
use bellwire_core::fault::{FaultCode, FaultFamily};
use bellwire_core::link::wire::{Reader, within};
use bellwire_core::qp::Mtu;

/// Identifies the format and its version.
const MAGIC: [u8; 4] = *b"bwl\x01";

/// Length in bytes.
pub(super) const BYTES: usize = 56;

/// Flags in the last byte.
const EXACT: u8 = 1;
const READY: u8 = 2;
const AGAIN: u8 = 4;

/// The state of a link. The port's address is not included: the communication manager provides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PrivateData {
    /// The session number that the connector chose; in a response, the number of the listener.
    pub session: u64,
    pub info: RecoveryInfo,
    /// The queue pair is connected in this epoch.
    pub ready: bool,
    /// The two links have been connected before.
    pub again: bool,
}

/// A fault, or none: the number of its family plus one, then its own.
fn named(why: Option<FaultCode>) -> [u8; 5] {
    let mut bytes = [0; 5];
    if let Some(why) = why {
        bytes[0] = why.family().number() + 1;
        bytes[1..].copy_from_slice(&why.number().to_be_bytes());
    }
    bytes
}

/// Reads a number and a fault behind it. A fault that is none counts as none: the peer is gone in any case.
fn number_and_fault(bytes: &[u8]) -> Option<(u64, Option<FaultCode>)> {
    let (number, rest) = bytes.split_first_chunk()?;
    let [family, fault @ ..] = *rest.first_chunk::<5>()?;
    let family = family.checked_sub(1).and_then(FaultFamily::from_number);
    let why = family.and_then(|family| FaultCode::new(family, i32::from_be_bytes(fault)));
    Some((u64::from_be_bytes(*number), why))
}

/// Says that a connector's link is closed. It is sent separately, just before its connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Notice {
    /// The session number of the link.
    pub session: u64,
    /// Why it was given up, if it was.
    pub why: Option<FaultCode>,
}

impl Notice {
    pub fn to_bytes(self) -> Vec<u8> {
        [&MAGIC[..], &self.session.to_be_bytes(), &named(self.why)].concat()
    }

    /// Reads one from a peer; `None` for anything else.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (session, why) = number_and_fault(bytes.strip_prefix(&MAGIC)?)?;
        Some(Self { session, why })
    }
}

/// Sent by a listener that refuses a link: the listener of this number has dropped the link, or never had
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub listener: u64,
    /// Why the link was given up, if it was.
    pub why: Option<FaultCode>,
}

impl Refusal {
    const FRONT: &[u8] = b"closed";

    pub fn to_bytes(self) -> Vec<u8> {
        [Self::FRONT, &self.listener.to_be_bytes(), &named(self.why)].concat()
    }

    /// Reads one from a listener; `None` for anything else.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (listener, why) = number_and_fault(bytes.strip_prefix(Self::FRONT)?)?;
        Some(Self { listener, why })
    }
}

/// Sent by a listener that has no room for a link at present: the connector is to ask again later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Busy {
    /// Microseconds until there will be room, as far as the listener knows.
    pub micros: u32,
    /// What it lacks is memory, rather than room in its backlog.
    pub no_memory: bool,
}

impl Busy {
    const TEXT: &[u8] = b"busy";

    pub fn to_bytes(self) -> Vec<u8> {
        let no_memory = [u8::from(self.no_memory)];
        [Self::TEXT, &self.micros.to_be_bytes(), &no_memory].concat()
    }

    /// Reads one from a listener, which may be padded with zeroes; `None` for anything else.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (micros, rest) = bytes.strip_prefix(Self::TEXT)?.split_first_chunk()?;
        let (flag, padding) = rest.split_first()?;
        let busy = Self {
            micros: u32::from_be_bytes(*micros),
            no_memory: *flag == 1,
        };
        (*flag <= 1 && padding.iter().all(|byte| *byte == 0)).then_some(busy)
    }
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
        // A connection too long ago, or a count too large for its field, is left out: the peer is then in
        // doubt, but never misinformed.
        let ago = u16::try_from(epoch - connection).ok();
        let fits = ago.filter(|_| connection != 0 && consumed >> 48 == 0);
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
            &fits.unwrap_or(0).to_be_bytes(),
            &short(fits.map_or(0, |_| consumed)),
            &[conn.mtu.number(), 0, 0, flags],
        ];
        fields.concat()
    }

    /// Reads what a peer sent, whose port has this address. It may be padded with zeroes.
    ///
    /// # Errors
    /// [`FormatError`] for anything other than private data of this version with every number in its
    /// range.
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

/// For the fuzz targets: every kind of private data, and the bytes that it is written as.
#[cfg(fuzzing)]
pub fn fuzz(bytes: &[u8]) {
    // A count without a connection is read, and left out when it is written.
    if let Ok(data) = PrivateData::from_bytes(bytes, 1, [0; 16]) {
        let again = PrivateData::from_bytes(&data.to_bytes(), 1, [0; 16]);
        assert_eq!(again.map(PrivateData::to_bytes), Ok(data.to_bytes()));
    }
    if let Some(notice) = Notice::from_bytes(bytes) {
        assert_eq!(Notice::from_bytes(&notice.to_bytes()), Some(notice));
    }
    if let Some(refusal) = Refusal::from_bytes(bytes) {
        assert_eq!(Refusal::from_bytes(&refusal.to_bytes()), Some(refusal));
    }
    if let Some(busy) = Busy::from_bytes(bytes) {
        assert_eq!(Busy::from_bytes(&busy.to_bytes()), Some(busy));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellwire_core::fault::Fault;

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

    #[test]
    fn short_messages_are_read_whole_or_not_at_all() {
        for why in [
            None,
            Some(Fault::RecvLimitExceeded.without_circumstances()),
            Some(Fault::Errno(-110).without_circumstances()),
        ] {
            check(why);
        }
    }

    fn check(why: Option<FaultCode>) {
        let notice = Notice {
            session: 7 << 40,
            why,
        };
        let refusal = Refusal {
            listener: 9 << 40,
            why,
        };
        for (bytes, is_notice) in [(notice.to_bytes(), true), (refusal.to_bytes(), false)] {
            for length in 0..bytes.len() {
                assert_eq!(Notice::from_bytes(&bytes[..length]), None);
                assert_eq!(Refusal::from_bytes(&bytes[..length]), None);
            }
            let padded = [&bytes[..], &[0; 9]].concat();
            assert_eq!(Notice::from_bytes(&padded), is_notice.then_some(notice));
            assert_eq!(
                Refusal::from_bytes(&padded),
                (!is_notice).then_some(refusal)
            );
        }
    }

    #[test]
    fn busy_is_neither_a_refusal_nor_a_notice() {
        for no_memory in [false, true] {
            let busy = Busy {
                micros: 70_000,
                no_memory,
            };
            let bytes = busy.to_bytes();
            let padded = [&bytes[..], &[0; 140]].concat();
            for bytes in [&bytes, &padded] {
                assert_eq!(Busy::from_bytes(bytes), Some(busy));
                assert_eq!(Refusal::from_bytes(bytes), None);
                assert_eq!(Notice::from_bytes(bytes), None);
            }
        }
        for other in [
            &b""[..],
            b"bus",
            b"busy!",
            b"busy1234",
            b"busy1234\x02",
            b"busy1234\x01!",
            &Refusal {
                listener: 7,
                why: None,
            }
            .to_bytes(),
        ] {
            assert_eq!(Busy::from_bytes(other), None, "{other:?}");
        }
    }

    /// Values that do not fit are left out rather than sent wrong.
    #[test]
    fn what_is_too_long_is_not_sent() {
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
