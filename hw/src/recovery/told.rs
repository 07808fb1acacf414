//! What a link tells of requests, and why it refuses one.

use bellwire_core::fault::outcome::Outcome;
use bellwire_core::fault::plan::Why;
use bellwire_core::queue::{PostError, Rejected, Success};
use bellwire_core::slab::Block;
use bellwire_core::wr::WcOpcode;
use std::fmt;

/// What became of a request. Each signalled request, each receive, and each request that did not end
/// well is told once.
#[derive(Debug)]
#[must_use = "it holds the request's outcome and its buffer"]
pub struct Told {
    /// The caller's identifier of the request.
    pub wr_id: u64,
    /// What it was.
    pub opcode: WcOpcode,
    /// What became of it.
    pub outcome: Outcome,
    /// Requests that this tells of: itself, and unsignalled ones before it, which were executed. The
    /// sum over everything told is what was posted.
    pub retired: u32,
    /// The buffer that a safe post moved in.
    pub block: Option<Block<'static>>,
    /// What is known of an executed request; `None` where its completion did not come.
    pub success: Option<Success>,
}

impl Told {
    /// Whether it is of the receive queue.
    #[inline]
    pub fn is_recv(&self) -> bool {
        self.opcode.is_recv()
    }
}

/// How a link has ended. Everything was told, or waits to be polled; all buffers came back with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkEnd {
    /// The program has closed it.
    Closed,
    /// It could not be recovered, for this reason.
    GaveUp(Why),
}

impl fmt::Display for LinkEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("it was closed"),
            Self::GaveUp(why) => why.fmt(f),
        }
    }
}

/// Why a link refuses a request. Nothing of it was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkError {
    /// It is not connected yet, or it recovers: poll it, then post again.
    Recovering,
    /// It has ended.
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
    /// Why.
    pub error: LinkError,
    /// The caller's again.
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
