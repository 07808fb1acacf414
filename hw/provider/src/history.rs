//! Completions recorded for later inspection.

use arrayvec::ArrayVec;
use bellwire_core::cqe::Cqe64;

/// A copy of a CQE.
#[derive(Clone, Debug)]
pub struct OldCqe {
    /// The free-running index of the CQE.
    pub index: u32,
    /// Whether the CQE was polled.
    pub polled: bool,
    /// The CQE.
    pub cqe: Cqe64,
    /// The payload that was written inline in the CQE.
    pub data: ArrayVec<u8, 64>,
}

impl OldCqe {
    /// A CQE that was polled, without payload.
    pub fn polled(cqe: Cqe64) -> Self {
        Self {
            index: 0,
            polled: true,
            cqe,
            data: ArrayVec::new(),
        }
    }
}
