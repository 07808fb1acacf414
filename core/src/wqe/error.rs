//! Why a request is refused.

use core::fmt;

/// Why a request was refused. Nothing of it was written to the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostError {
    /// All entries are in flight.
    QueueFull,
    /// All entries are in flight, and the completion queue has failed: none of them is reported any more.
    CqFailed,
    /// The state of the queue pair does not allow the post.
    WrongState,
    /// The queue pair has no receive queue of its own.
    NoRecvQueue,
    /// More scatter/gather elements than a WQE of this queue holds.
    TooManySges {
        /// Elements given.
        given: usize,
        /// Elements that fit.
        max: u32,
    },
    /// More inline bytes than a WQE of this queue holds.
    InlineTooLong {
        /// Bytes given.
        given: usize,
        /// Bytes that fit.
        max: u32,
    },
    /// A scatter/gather element of 2 GiB or more.
    SgeTooLong {
        /// Bytes given.
        length: u32,
    },
    /// The bytes are no WQE that was read from a send queue.
    NoEntry,
    /// More bytes than the block has.
    BlockTooShort {
        /// Bytes of the request.
        given: u32,
        /// Bytes of the block.
        capacity: u32,
    },
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::QueueFull => {
                f.write_str("the queue is full: poll its completion queue, then post again")
            }
            Self::CqFailed => f.write_str(
                "the queue is full, and its completion queue has failed (CQ_ERR): no poll reports the requests in flight; destroy or reset the queue pairs on it, and create it again",
            ),
            Self::WrongState => f.write_str(
                "the queue pair's state does not allow this post: \
                 receives are taken from INIT on, sends from RTS on",
            ),
            Self::NoRecvQueue => f.write_str(
                "the queue pair receives from a shared receive queue, or not at all: \
                 post to the shared receive queue",
            ),
            Self::TooManySges { given, max } => write!(
                f,
                "{given} scatter/gather elements, the queue holds {max} a request: \
                 ask for more when creating the queue pair"
            ),
            Self::InlineTooLong { given, max } => write!(
                f,
                "{given} inline bytes, the queue holds {max} a request: \
                 post them from a registered buffer, or ask for more when creating the queue pair"
            ),
            Self::SgeTooLong { length } => write!(
                f,
                "an element of {length} bytes: at most 2147483647 fit into one, use several"
            ),
            Self::NoEntry => f.write_str(
                "these bytes are no entry of a send queue: \
                 post again only whole entries that were read from one",
            ),
            Self::BlockTooShort { given, capacity } => write!(
                f,
                "{given} bytes of a block that has {capacity}: take one of a larger class"
            ),
        }
    }
}

impl core::error::Error for PostError {}
