//! The polling side of a completion queue, to which the device can hand a receive without a completion entry.

use super::handed::Handed;
use super::hca::Hca;
use crate::error::Error;
use bellwire_core::cqe::PlainCqe;
use bellwire_core::queue::{Completion, CompletionQueue, Received};
use std::ops::{Deref, DerefMut};

/// See the module.
#[derive(Debug)]
pub struct Polled {
    core: CompletionQueue<'static>,
    /// What was handed over last, and whether it was not reported yet.
    received: Received,
    waits: bool,
    /// For the flight recorder.
    pub handed: Handed,
}

/// The completion queue that a poll has found empty, where it looks for packets. `None`: nobody polls, or something was
/// handed over.
pub type Polling<'p> = Option<&'p mut Polled>;

impl Deref for Polled {
    type Target = CompletionQueue<'static>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        &self.core
    }
}

impl DerefMut for Polled {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.core
    }
}

impl Polled {
    /// Of a queue of this device.
    ///
    /// # Errors
    /// There is no memory to remember what was handed over.
    pub fn new(core: CompletionQueue<'static>, hca: &Hca) -> Result<Self, Error> {
        // Between processes only is anything handed over.
        let count = hca.fabric().map_or(0, |_| core.capacity());
        Ok(Self {
            core,
            received: Received::default(),
            waits: false,
            handed: Handed::new(count)?,
        })
    }

    /// Hands over the receive that this entry would report: at most one until it is [taken](Self::take).
    ///
    /// # Safety
    /// It is executed, there is no entry of it, nor one of an older receive of its queue that was not polled.
    #[inline(always)]
    pub(super) unsafe fn hand_over(&mut self, entry: &PlainCqe) {
        self.received = Received::new(entry);
        self.waits = true;
    }

    /// Whether something was handed over, and not taken.
    pub(super) fn has_received(&self) -> bool {
        self.waits
    }

    /// Completes the receive that was handed over, if one was.
    #[inline(always)]
    pub fn take(&mut self) -> Option<Completion<'static>> {
        if !std::mem::take(&mut self.waits) {
            return None;
        }
        self.handed.note(self.received, self.core.next_index());
        // SAFETY: the caller of `hand_over` guarantees it; nothing was polled since.
        unsafe { self.core.complete_received(&self.received) }
    }
}
