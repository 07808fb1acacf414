//! Why memory is not lent.

use super::super::completion::LinkError;
use super::Grant;
use crate::error::Error;
use bellwire_core::access::AccessFlags;
use std::fmt;

/// Why memory is not lent. Nothing was posted.
#[derive(Debug)]
#[non_exhaustive]
pub enum GrantError {
    /// The link refuses the request.
    Link(LinkError),
    /// No right, or one that a grant cannot give.
    Rights {
        /// The rights asked for.
        access: AccessFlags,
    },
    /// The link's queue pair does not allow its peer these operations.
    NotAllowed {
        /// The rights that [`ConnectAttr::access`](crate::ConnectAttr::access) lacks.
        access: AccessFlags,
    },
    /// The slab was not made to lend its blocks, or the region has no windows.
    NotLendable,
    /// The block is another slab's, or the memory is of another protection domain than the link.
    Foreign,
    /// No bytes, or more than there are.
    Length {
        /// Bytes to be lent.
        given: u32,
        /// Bytes that there are.
        max: u64,
    },
    /// The device has neither a window nor a registration for the memory.
    Key(Error),
}

impl fmt::Display for GrantError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Link(error) => error.fmt(f),
            Self::Rights { access } => write!(
                f,
                "a grant with the access flags {:#x}: it takes REMOTE_READ, REMOTE_WRITE and REMOTE_ATOMIC, \
                 at least one",
                access.bits()
            ),
            Self::NotAllowed { access } => write!(
                f,
                "the peer of this link may not do that: the link was made without {:#x} in the access flags \
                 of its connection",
                access.bits()
            ),
            Self::NotLendable => f.write_str(
                "the memory cannot be lent: a slab has to be made with grants, a region registered with \
                 MW_BIND, and with LOCAL_WRITE if the peer is to write",
            ),
            Self::Foreign => f.write_str(
                "the block is of another slab, or the memory of another protection domain than the link",
            ),
            Self::Length { given, max } => {
                write!(f, "a grant of {given} bytes: there are {max}, and it needs one at least")
            }
            Self::Key(error) => write!(f, "the device has no key for the memory: {error}"),
        }
    }
}

impl std::error::Error for GrantError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Link(error) => Some(error),
            Self::Key(error) => Some(error),
            _ => None,
        }
    }
}

/// A refused request, and the grant that came with it.
#[derive(Debug)]
pub struct RefusedGrant {
    /// Why it was refused.
    pub error: GrantError,
    /// The grant, which is the caller's again.
    pub grant: Grant,
}

impl fmt::Display for RefusedGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for RefusedGrant {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
