//! The wire format of messages: a common header, then a body whose length depends on the kind. All numbers
//! are big-endian, and each is checked when it is read.

use core::fmt;

/// The layout of messages, big-endian:
///
/// ```text
///  0          8         10      12       16
///  │ bellwire │ version │ kind  │ length │ body of that many bytes
///
///  16       20    24    26    27  28    44     52       60     64
///  │ qp_num │ psn │ lid │ mtu │ 0 │ gid │ addr │ length │ rkey │   the body of a ConnInfo
///
///  64      72           80         88      89  96
///  │ epoch │ connection │ consumed │ exact │ 0 │   follows it in a RecoveryInfo
///
///  16       20       24
///  │ family │ number │   the body of a GaveUp: a fault
/// ```
const MAGIC: [u8; 8] = *b"bellwire";
const VERSION: u16 = 1;
/// Bytes of the header.
pub const HEADER: usize = 16;
/// Bytes of the body of a [`ConnInfo`](super::ConnInfo).
pub const CONN_INFO: usize = 48;
/// Bytes of the body of a [`RecoveryInfo`](super::RecoveryInfo).
pub const RECOVERY_INFO: usize = CONN_INFO + 32;

/// Kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A [`ConnInfo`](super::ConnInfo).
    Info = 1,
    /// The sender has reached its barrier.
    Barrier = 2,
    /// A [`RecoveryInfo`](super::RecoveryInfo).
    Recovery = 3,
    /// The sender, a link, is connected in this epoch.
    Ready = 4,
    /// The sender, a link, closes the connection.
    Closing = 5,
    /// The sender, a link, gives the connection up for a reason.
    GaveUp = 6,
}

fn short(header: &[u8; HEADER], at: usize) -> u16 {
    u16::from_be_bytes([header[at], header[at + 1]])
}

impl Kind {
    /// Length of the body in bytes.
    pub const fn length(self) -> usize {
        match self {
            Self::Info => CONN_INFO,
            Self::Barrier | Self::Closing => 0,
            Self::Recovery => RECOVERY_INFO,
            Self::Ready | Self::GaveUp => 8,
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

    /// Checks that this is the header of a message of this kind.
    ///
    /// # Errors
    /// [`FormatError`] when it is not.
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

    /// Checks the header of a message of a link, and returns its kind.
    ///
    /// # Errors
    /// [`FormatError`] for anything else.
    pub fn of_link(header: &[u8; HEADER]) -> Result<Self, FormatError> {
        let all = [Self::Recovery, Self::Ready, Self::Closing, Self::GaveUp];
        let named = all
            .into_iter()
            .find(|kind| *kind as u16 == short(header, 10));
        let kind = named.unwrap_or(Self::Recovery);
        kind.check(header)?;
        Ok(kind)
    }
}

/// Reads the fields of a message whose length was checked.
#[derive(Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl Reader<'_> {
    /// The next `N` bytes.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_first_chunk().expect("a body of its length");
        self.0 = rest;
        *field
    }

    /// The next four bytes.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take())
    }

    /// The next eight bytes.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.take())
    }
}

/// Checks that a number from the peer is in its range.
///
/// # Errors
/// [`FormatError::Field`] when it is not.
pub fn within(
    field: &'static str,
    given: u64,
    range: impl core::ops::RangeBounds<u64>,
) -> Result<(), FormatError> {
    if range.contains(&given) {
        return Ok(());
    }
    Err(FormatError::Field { field, given })
}

/// Why a message of the peer is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FormatError {
    /// It is not a message of this library.
    Foreign,
    /// It has another version of the format.
    Version {
        /// The peer's version.
        given: u16,
        /// Our version.
        ours: u16,
    },
    /// It is not of the kind expected at this point.
    OutOfStep,
    /// It has the wrong length.
    Length {
        /// The length given.
        given: usize,
        /// The length required.
        needed: usize,
    },
    /// A field is out of range.
    Field {
        /// Name of the field.
        field: &'static str,
        /// The value given.
        given: u64,
    },
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => f.write_str(
                "the peer speaks another protocol: check the host and the port, and that the other \
                 program uses bellwire's exchange",
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

impl core::error::Error for FormatError {}
