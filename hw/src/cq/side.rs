//! The producing end: what queue pairs complete into.

use crate::device::Device;
use crate::error::Error;
use crate::event::EventQueue;
#[cfg(feature = "mlx5")]
use crate::mlx5;
use crate::pinned::Pinned;
use crate::soft::CqCtx;
#[cfg(feature = "verbs")]
use crate::verbs;
use bellwire_core::port::DoorbellRecord;

/// What the device writes to and queue pairs keep alive.
#[derive(Debug)]
pub(crate) struct CqShared {
    // Before the memory that it points to.
    pub ctx: CqSide,
    pub(super) _own: Option<OwnRing>,
    pub(super) device: Device,
}

/// Ring and records, where they are in memory of ours.
#[derive(Debug)]
pub(super) struct OwnRing {
    pub ring: Pinned,
    pub records: Box<[DoorbellRecord; 2]>,
}

/// The producing end, by who stands behind it.
#[derive(Debug)]
pub(crate) enum CqSide {
    Soft(Box<CqCtx>),
    #[cfg(feature = "verbs")]
    Verbs(Box<verbs::Cq>),
    #[cfg(feature = "mlx5")]
    Mlx5(Box<mlx5::Cq>),
}

/// Calls what both have under one name.
macro_rules! both {
    ($self:ident, $cq:ident => $call:expr) => {
        match $self {
            CqSide::Soft($cq) => $call,
            #[cfg(feature = "verbs")]
            CqSide::Verbs($cq) => $call,
            #[cfg(feature = "mlx5")]
            CqSide::Mlx5($cq) => $call,
        }
    };
}

impl CqSide {
    /// The software HCA's.
    pub fn soft(&self) -> Result<&CqCtx, Error> {
        match self {
            Self::Soft(ctx) => Ok(ctx),
            #[cfg(feature = "verbs")]
            _ => Err(FOREIGN),
        }
    }

    /// That of libibverbs.
    #[cfg(feature = "verbs")]
    pub fn verbs(&self) -> Result<&verbs::Cq, Error> {
        match self {
            Self::Verbs(cq) => Ok(cq),
            _ => Err(FOREIGN),
        }
    }

    /// That of a device whose ring core polls.
    #[cfg(feature = "mlx5")]
    pub fn mlx5(&self) -> Result<&mlx5::Cq, Error> {
        match self {
            Self::Mlx5(cq) => Ok(cq),
            _ => Err(FOREIGN),
        }
    }

    pub(super) fn cqn(&self) -> u32 {
        both!(self, cq => cq.cqn())
    }

    pub(super) fn channel(&self) -> Option<&EventQueue<()>> {
        both!(self, cq => cq.channel())
    }

    /// Index behind the last entry.
    pub fn produced(&self) -> u32 {
        both!(self, cq => cq.produced())
    }

    pub(super) fn polled(&self, index: u32) -> bool {
        both!(self, cq => cq.polled(index))
    }

    pub(super) fn overrun(&self) -> bool {
        both!(self, cq => cq.overrun())
    }

    pub(super) fn retire(&self) {
        both!(self, cq => cq.retire());
    }
}

#[cfg(feature = "verbs")]
const FOREIGN: Error = Error::Foreign {
    what: "completion queue",
};

impl Drop for CqShared {
    fn drop(&mut self) {
        // Not before: the device may still name it, where queue pairs outlive it.
        if let (Ok(hca), Ok(ctx)) = (self.device.hca.soft("numbers"), self.ctx.soft()) {
            hca.cqns.give_back(ctx.cqn());
        }
    }
}
