//! The links that threads of the program want, and those that are being made.

use super::MAX_NODES;
use crate::error::Error;
use bellwire_provider::pinned::boxed;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The places to which links are wanted. Any thread may use it.
#[derive(Debug)]
pub(super) struct Calls {
    state: Mutex<Box<CallState>>,
    over: Condvar,
}

#[derive(Debug, Default)]
struct CallState {
    /// The node's thread does not know of them yet.
    new: Set,
    /// These, and the ones that the node's thread is calling.
    under_way: Set,
}

/// A set of places, which takes no memory as it grows.
#[derive(Clone, Debug)]
pub(super) struct Set([u64; MAX_NODES / 64]);

impl Default for Set {
    fn default() -> Self {
        Self([0; MAX_NODES / 64])
    }
}

impl Set {
    fn bit(&mut self, place: usize) -> (&mut u64, u64) {
        (&mut self.0[place / 64], 1 << (place % 64))
    }

    /// `true`: it was not in the set.
    fn insert(&mut self, place: usize) -> bool {
        let (word, bit) = self.bit(place);
        let before = *word;
        *word |= bit;
        before & bit == 0
    }

    /// `true`: it was in the set.
    fn remove(&mut self, place: usize) -> bool {
        let (word, bit) = self.bit(place);
        let before = *word;
        *word &= !bit;
        before & bit != 0
    }

    fn contains(&self, place: usize) -> bool {
        self.0[place / 64] >> (place % 64) & 1 != 0
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// The places, in order.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        let bits = |word: u64| (0..64).filter(move |bit| word >> bit & 1 != 0);
        (self.0.iter().enumerate())
            .flat_map(move |(at, word)| bits(*word).map(move |bit| at * 64 + bit))
    }
}

impl Calls {
    /// # Errors
    /// There is not enough memory.
    pub fn new() -> Result<Self, Error> {
        Ok(Self {
            state: Mutex::new(boxed(CallState::default())?),
            over: Condvar::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, Box<CallState>> {
        // Poisoning is ignored: each change is made in one step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests links to these places. `true`: some are new to the node's thread.
    pub fn want(&self, places: impl Iterator<Item = usize>) -> bool {
        let mut state = self.state();
        let CallState { new, under_way } = &mut **state;
        for place in places.filter(|place| under_way.insert(*place)) {
            new.insert(place);
        }
        !new.is_empty()
    }

    /// A link to this place is being made, which nobody here has requested.
    pub fn begin(&self, slot: usize) {
        self.state().under_way.insert(slot);
    }

    pub fn take(&self) -> Set {
        std::mem::take(&mut self.state().new)
    }

    /// The link is made, or will not be made.
    pub fn end(&self, slot: usize) {
        let mut state = self.state();
        // Who waits, waits for all.
        if state.under_way.remove(slot) && state.under_way.is_empty() {
            drop(state);
            self.over.notify_all();
        }
    }

    pub fn is_under_way(&self, slot: usize) -> bool {
        self.state().under_way.contains(slot)
    }

    /// Waits until no link is being made, at most for this long.
    pub fn wait(&self, within: Duration) {
        let waits = |state: &mut Box<CallState>| !state.under_way.is_empty();
        let _over = (self.over)
            .wait_timeout_while(self.state(), within, waits)
            .unwrap_or_else(PoisonError::into_inner);
    }
}
