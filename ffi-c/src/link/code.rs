//! The codes of calls that a link refuses.

use crate::code::{BW_EENDED, BW_ERECOVERING, bw_error};
use crate::failure::{Failure, post_code};
use hw::link::LinkError;

#[inline(always)]
pub(super) fn link_code(error: LinkError) -> bw_error {
    match error {
        LinkError::Recovering => BW_ERECOVERING,
        LinkError::Ended(_) => BW_EENDED,
        LinkError::Post(error) => post_code(error),
    }
}

/// The failure while a thread recovers the link.
pub(super) fn away() -> Failure {
    Failure::new(
        BW_ERECOVERING,
        "a thread recovers the link: poll it until it is BW_LINK_READY, then call again",
    )
}
