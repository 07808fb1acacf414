//! The links that threads of the program want, and those that are being made.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The places to which links are wanted. Any thread may use it.
#[derive(Debug, Default)]
pub(super) struct Calls {
    state: Mutex<CallState>,
    over: Condvar,
}

#[derive(Debug, Default)]
struct CallState {
    /// The node's thread does not know of them yet.
    new: Vec<usize>,
    /// These, and the ones that the node's thread is calling.
    under_way: BTreeSet<usize>,
}

impl Calls {
    fn state(&self) -> MutexGuard<'_, CallState> {
        // Poisoning is ignored: each change is made in one step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests links to these places. `true`: some are new to the node's thread.
    pub fn want(&self, places: impl Iterator<Item = usize>) -> bool {
        let mut state = self.state();
        let CallState { new, under_way } = &mut *state;
        new.extend(places.filter(|place| under_way.insert(*place)));
        !new.is_empty()
    }

    /// A link to this place is being made, which nobody here has requested.
    pub fn begin(&self, slot: usize) {
        self.state().under_way.insert(slot);
    }

    pub fn take(&self) -> Vec<usize> {
        std::mem::take(&mut self.state().new)
    }

    /// The link is made, or will not be made.
    pub fn end(&self, slot: usize) {
        let mut state = self.state();
        // Who waits, waits for all.
        if state.under_way.remove(&slot) && state.under_way.is_empty() {
            drop(state);
            self.over.notify_all();
        }
    }

    pub fn is_under_way(&self, slot: usize) -> bool {
        self.state().under_way.contains(&slot)
    }

    /// Waits until no link is being made, at most for this long.
    pub fn wait(&self, within: Duration) {
        let waits = |state: &mut CallState| !state.under_way.is_empty();
        let _over = (self.over)
            .wait_timeout_while(self.state(), within, waits)
            .unwrap_or_else(PoisonError::into_inner);
    }
}
