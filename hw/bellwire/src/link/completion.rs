//! What a link reports of requests, and why it refuses one.

use bellwire_core::fault::outcome::Outcome;
pub use bellwire_core::link::LinkEnd;
use bellwire_core::queue::{PostError, Rejected, Success};
use bellwire_core::slab::Block;
use bellwire_core::wr::WcOpcode;
use std::fmt;

/// The outcome of a request. Each signalled request, each receive, and each request that did not succeed
/// is reported once.
#[derive(Debug)]
#[must_use = "it holds the request's outcome and its buffer"]
pub struct LinkCompletion {
    /// The program's identifier of the request.
    pub wr_id: u64,
    /// The request's operation.
    pub opcode: WcOpcode,
    /// How the request ended.
    pub outcome: Outcome,
    /// Number of requests that this retires: the request itself, and earlier unsignalled ones, which were
    /// executed. Over all reports the sum is the number of requests posted.
    pub retired: u32,
    /// The buffer that a safe post took.
    pub block: Option<Block<'static>>,
    /// Details of an executed request; `None` if it has no completion.
    pub success: Option<Success>,
}

impl LinkCompletion {
    /// Whether it is of the receive queue.
    #[inline]
    pub fn is_recv(&self) -> bool {
        self.opcode.is_recv()
    }
}

/// Why a link refuses a request. Nothing was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkError {
    /// The link is not connected yet (receives are accepted nevertheless), or it recovers: poll it, then
    /// post again.
    Recovering,
    /// The link has ended.
    Ended(LinkEnd),
    /// The queue refuses the request.
    Post(PostError),
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Recovering => f.write_str(
                "the link is not connected at the moment: poll it until its state is Ready, then \
                 post again",
            ),
            Self::Ended(end) => write!(f, "the link has ended ({end}): make a new one"),
            Self::Post(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for LinkError {}

impl From<PostError> for LinkError {
    #[inline(always)]
    fn from(error: PostError) -> Self {
        Self::Post(error)
    }
}

/// A refused request, and the buffer that came with it.
#[derive(Debug)]
pub struct Refused {
    /// Why it was refused.
    pub error: LinkError,
    /// The buffer, which belongs to the caller again.
    pub block: Block<'static>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Refused {}

impl From<Rejected<Block<'static>>> for Refused {
    #[inline(always)]
    fn from(rejected: Rejected<Block<'static>>) -> Self {
        Self {
            error: rejected.error.into(),
            block: rejected.block,
        }
    }
}
