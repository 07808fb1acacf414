//! Why a set-up call failed.

use crate::memory::MemoryError;
use bellwire_core::qp::ModifyError;
use bellwire_core::queue::AttachError;
use std::fmt;

/// Why a set-up call failed. Nothing was created or changed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// No device of this name.
    UnknownDevice {
        /// The name asked for.
        name: String,
    },
    /// The queue pair does not exist (any more).
    UnknownQp {
        /// Its number.
        qpn: u32,
    },
    /// The key does not exist (any more).
    UnknownKey {
        /// The key.
        key: u32,
    },
    /// All the device has of something are in use.
    Exhausted {
        /// Of what.
        what: &'static str,
        /// How many there are.
        max: usize,
    },
    /// A capability that the device does not have.
    TooLarge {
        /// The attribute's name in the verbs.
        what: &'static str,
        /// What was asked for.
        given: u64,
        /// The most there is.
        max: u64,
    },
    /// An object that others use.
    Busy {
        /// Which object.
        what: &'static str,
        /// How many use it.
        users: usize,
    },
    /// A region of no bytes, or beyond the end of the address space.
    BadRegion {
        /// Where.
        addr: u64,
        /// How long.
        length: u64,
    },
    /// REMOTE_WRITE or REMOTE_ATOMIC without LOCAL_WRITE.
    AccessWithoutLocalWrite,
    /// Objects of different devices or protection domains, or not those of this queue pair.
    Foreign {
        /// Which object.
        what: &'static str,
    },
    /// RESET clears both queues and their completions: it has a call of its own.
    ResetByModify,
    /// The queue pair is not in RESET.
    NotReset,
    /// A queue cannot be attached to its completion queue.
    Attach(AttachError),
    /// The queue pair cannot make this change.
    Modify(ModifyError),
    /// Memory cannot be had.
    Memory(MemoryError),
    /// The slab cannot be cut so.
    Slab(bellwire_core::slab::LayoutError),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownDevice { name } => write!(
                f,
                "no device {name:?}: there is \"soft\" (or \"auto\"), see Device::list"
            ),
            Self::UnknownQp { qpn } => write!(f, "no queue pair {qpn:#x}: it was destroyed"),
            Self::UnknownKey { key } => {
                write!(f, "no memory key {key:#x}: it was never given out, or is deregistered")
            }
            Self::Exhausted { what, max } => {
                write!(f, "all {max} {what} of the device are in use: destroy some first")
            }
            Self::TooLarge { what, given, max } => {
                write!(f, "{what} is {given}, the device has {max} at the most")
            }
            Self::Busy { what, users } => write!(
                f,
                "the {what} is used by {users} queue pairs: drop them first, then destroy it"
            ),
            Self::BadRegion { addr, length } => write!(
                f,
                "a region of {length} bytes at {addr:#x}: it needs at least one byte, and an end \
                 within the address space"
            ),
            Self::AccessWithoutLocalWrite => f.write_str(
                "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE as well: add it to the access flags",
            ),
            Self::Foreign { what } => write!(
                f,
                "the {what} belongs to another device, protection domain or queue pair"
            ),
            Self::ResetByModify => f.write_str(
                "RESET clears the queues and their completions: call Qp::reset, which takes the \
                 completion queues and tells what was cleared",
            ),
            Self::NotReset => f.write_str("the queue pair is not in RESET: call Qp::reset first"),
            Self::Attach(error) => error.fmt(f),
            Self::Modify(error) => error.fmt(f),
            Self::Memory(error) => error.fmt(f),
            Self::Slab(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Attach(error) => Some(error),
            Self::Modify(error) => Some(error),
            Self::Memory(error) => Some(error),
            Self::Slab(error) => Some(error),
            _ => None,
        }
    }
}

macro_rules! from {
    ($($variant:ident: $ty:ty;)*) => {$(
        impl From<$ty> for Error {
            fn from(error: $ty) -> Self {
                Self::$variant(error)
            }
        }
    )*};
}

from! {
    Attach: AttachError;
    Modify: ModifyError;
    Memory: MemoryError;
    Slab: bellwire_core::slab::LayoutError;
}
