//! The form of messages on the wire: a header of its own, then a body of the length of its kind.

use std::fmt;

/// Messages, big-endian:
///
/// ```text
///  0          8         10      12       16
///  │ bellwire │ version │ kind  │ length │ body, of so many bytes
///
///  16       20    24    26    27  28    44     52       60     64
///  │ qp_num │ psn │ lid │ mtu │ 0 │ gid │ addr │ length │ rkey │   the body of a ConnInfo
///
///  64      72           80         88      89  96
///  │ epoch │ connection │ consumed │ exact │ 0 │   behind it, in a RecoveryInfo
/// ```
const MAGIC: [u8; 8] = *b"bellwire";
const VERSION: u16 = 1;
pub(super) const HEADER: usize = 16;
/// Of a [`ConnInfo`](super::ConnInfo).
pub(super) const CONN_INFO: usize = 48;
/// Of a [`RecoveryInfo`](super::RecoveryInfo).
pub(super) const RECOVERY_INFO: usize = CONN_INFO + 32;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A [`ConnInfo`](super::ConnInfo).
    Info = 1,
    /// The sender has come to its barrier.
    Barrier = 2,
    /// A [`RecoveryInfo`](super::RecoveryInfo).
    Recovery = 3,
    /// The sender of a [`Link`](crate::recovery::Link) is connected in this epoch.
    Ready = 4,
    /// The sender's [`Link`](crate::recovery::Link) ends.
    Closing = 5,
}

fn short(header: &[u8; HEADER], at: usize) -> u16 {
    u16::from_be_bytes([header[at], header[at + 1]])
}

impl Kind {
    /// Bytes of the body.
    pub const fn length(self) -> usize {
        match self {
            Self::Info => CONN_INFO,
            Self::Barrier | Self::Closing => 0,
            Self::Recovery => RECOVERY_INFO,
            Self::Ready => 8,
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
        if header[..8] != MAGIC {
            return Err(FormatError::Foreign);
        }
        if short(header, 8) != VERSION {
            return Err(FormatError::Version {
                given: short(header, 8),
                ours: VERSION,
            });
        }
        if short(header, 10) != self as u16 {
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

    /// Which of the messages of a [`Link`](crate::recovery::Link) follows.
    pub fn of_link(header: &[u8; HEADER]) -> Result<Self, FormatError> {
        let all = [Self::Recovery, Self::Ready, Self::Closing];
        let named = all
            .into_iter()
            .find(|kind| *kind as u16 == short(header, 10));
        let kind = named.unwrap_or(Self::Recovery);
        kind.check(header)?;
        Ok(kind)
    }
}

/// Takes fields off a message.
pub(super) struct Reader<'a>(pub &'a [u8]);

impl Reader<'_> {
    pub fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_first_chunk().expect("a body of its length");
        self.0 = rest;
        *field
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.take())
    }
}

/// A number that the peer gave, if it is one of these.
pub(super) fn within(
    field: &'static str,
    given: u64,
    range: impl std::ops::RangeBounds<u64>,
) -> Result<(), FormatError> {
    if range.contains(&given) {
        return Ok(());
    }
    Err(FormatError::Field { field, given })
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
