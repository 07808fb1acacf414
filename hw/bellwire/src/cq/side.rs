//! The producing side of a completion queue.

use crate::device::Device;
use crate::error::Error;
use crate::mlx5;
use crate::pinned::Pinned;
use crate::provider::CqSide;
use crate::soft::CqCtx;
use crate::verbs;
use bellwire_core::port::DoorbellRecord;

/// The memory that the device writes to, kept alive by the queue pairs that complete there.
#[derive(Debug)]
pub(crate) struct CqShared {
    // Dropped before the memory that it points to.
    pub ctx: CqSide,
    pub(super) _own: Option<OwnRing>,
    pub(super) device: Device,
}

/// Ring and records, if they are in our own memory.
#[derive(Debug)]
pub(super) struct OwnRing {
    pub ring: Pinned,
    pub records: Box<[DoorbellRecord; 2]>,
}

impl CqShared {
    /// The software HCA's completion queue.
    pub fn soft(&self) -> Result<&CqCtx, Error> {
        self.ctx.soft().map(|cq| &**cq).ok_or(FOREIGN)
    }

    /// The completion queue of libibverbs, which polls it.
    pub fn verbs(&self) -> Result<&verbs::Cq, Error> {
        self.ctx.verbs().map(|cq| &**cq).ok_or(FOREIGN)
    }

    /// The completion queue of a device whose ring core polls.
    pub fn mlx5(&self) -> Result<&mlx5::Cq, Error> {
        self.ctx.mlx5().map(|cq| &**cq).ok_or(FOREIGN)
    }
}

pub(crate) const FOREIGN: Error = Error::Foreign {
    what: "completion queue",
};

impl Drop for CqShared {
    fn drop(&mut self) {
        // A child of fork leaves what belongs to its parent as it is.
        if self.device.is_inherited() {
            return;
        }
        // Not earlier: queue pairs may outlive the queue, and the device may still use its number for them.
        if let (Some(hca), Some(ctx)) = (self.device.hca.soft(), self.ctx.soft()) {
            hca.cqns.give_back(ctx.cqn());
        }
    }
}
