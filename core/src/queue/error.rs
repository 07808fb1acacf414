//! Why posts of more than one request, or of a block, are refused.

use crate::wqe::PostError;
use core::fmt;

/// Why a list of requests was not posted to its end. The requests before `index` were posted; it
/// and those behind it were not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadRequest {
    /// Which request was refused, counted from zero.
    pub index: usize,
    /// Why.
    pub error: PostError,
}

impl fmt::Display for BadRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {} of the list: {}", self.index, self.error)
    }
}

impl core::error::Error for BadRequest {}

/// A refused request, and the buffer that came with it.
#[derive(Debug)]
pub struct Rejected<B> {
    /// Why.
    pub error: PostError,
    /// The block, which is the caller's again.
    pub block: B,
}

impl<B> fmt::Display for Rejected<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<B: fmt::Debug> core::error::Error for Rejected<B> {}
