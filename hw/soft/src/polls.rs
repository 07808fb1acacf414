//! The sections of the threads that poll completion queues: in these they read packets of other processes.

use crate::error::Error;
use crate::pinned::room_in;
use bellwire_provider::quiesce::Section;
use crossbeam_utils::CachePadded;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The section of one completion queue, which several threads enter one after the other.
pub type PollSection = Arc<CachePadded<Section>>;

/// See the module. By their addresses.
#[derive(Debug, Default)]
pub struct Polls(Mutex<HashMap<usize, PollSection>>);

fn address(section: &PollSection) -> usize {
    Arc::as_ptr(section).addr()
}

impl Polls {
    fn sections(&self) -> MutexGuard<'_, HashMap<usize, PollSection>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A completion queue is polled from here on.
    ///
    /// # Errors
    /// There is no memory to note it.
    pub fn begin(&self, section: &PollSection) -> Result<(), Error> {
        let mut sections = self.sections();
        room_in(&mut sections)?;
        sections.insert(address(section), section.clone());
        Ok(())
    }

    /// It is not polled any more.
    pub fn end(&self, section: &PollSection) {
        self.sections().remove(&address(section));
    }

    /// A number that changes while threads poll.
    pub fn looks(&self) -> u32 {
        let sections = self.sections();
        (sections.values()).fold(0, |sum, section| sum.wrapping_add(section.count()))
    }

    /// Waits, after a heavy barrier, until each has been left in which a thread is.
    pub fn wait(&self) {
        self.sections().values().for_each(|section| section.wait());
    }
}
