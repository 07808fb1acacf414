//! What core polls, by how the device's entries name queue pairs.

use bellwire_core::cqe::Cqe64;
#[cfg(feature = "mlx5")]
use bellwire_core::queue::ByQpNum;
use bellwire_core::queue::{Attach, AttachError, CompletionQueue, PastCqe, UserIndex};
use bellwire_core::slab::Block;

/// The polling half.
#[derive(Debug)]
pub(super) enum Polled {
    /// Of devices that are given the index.
    ByUserIndex(CompletionQueue<'static>),
    /// Of devices whose library has an index of its own.
    #[cfg(feature = "mlx5")]
    ByQpNum(CompletionQueue<'static, ByQpNum<'static>>),
}

/// Calls what both have.
macro_rules! both {
    ($self:ident, $core:ident => $call:expr) => {
        match $self {
            Polled::ByUserIndex($core) => $call,
            #[cfg(feature = "mlx5")]
            Polled::ByQpNum($core) => $call,
        }
    };
}

impl Polled {
    pub fn capacity(&self) -> u32 {
        both!(self, core => core.capacity())
    }

    pub fn unreserved(&self) -> u32 {
        both!(self, core => core.unreserved())
    }

    pub fn stale(&self) -> u64 {
        both!(self, core => core.stale())
    }

    pub fn consumer_index(&self) -> u32 {
        both!(self, core => core.consumer_index())
    }

    pub fn is_of(&self, cqe: &Cqe64, index: UserIndex) -> bool {
        both!(self, core => core.is_of(cqe, index))
    }

    /// # Safety
    /// As [`CompletionQueue::attach`].
    pub unsafe fn attach(
        &mut self,
        queues: Attach<'static>,
        reserve: bool,
    ) -> Result<UserIndex, AttachError> {
        both!(self, core => {
            // SAFETY: the caller's promise.
            unsafe {
                match reserve {
                    true => core.attach(queues),
                    false => core.attach_unreserved(queues),
                }
            }
        })
    }

    pub fn detach(&mut self, index: UserIndex, each: impl FnMut(u64, Option<Block<'static>>)) {
        both!(self, core => core.detach(index, each))
    }

    /// # Safety
    /// As [`CompletionQueue::history`].
    pub unsafe fn history(&mut self, each: impl FnMut(PastCqe<'_>)) {
        // SAFETY: the caller's promise.
        both!(self, core => unsafe { core.history(each) })
    }
}
