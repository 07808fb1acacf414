//! The places of a fabric, as a node knows them. What a node needs for a peer is made when it first has to do
//! with the place, and stays as long as the node: so a node of a small fabric needs no memory for a large one.

use super::MAX_NODES;
use super::linked::Linked;
use super::peer::Peer;
use crate::error::Error;
use crate::pinned::{collected, place};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// See the module.
#[derive(Debug)]
pub(super) struct Places {
    /// A peer for each place that was needed; null for the others.
    peers: Box<[AtomicPtr<Peer>]>,
    /// No place from this one on has a peer.
    end: AtomicUsize,
    /// Only one thread at a time makes a peer.
    making: Mutex<()>,
    /// The peers with which there is a link.
    pub linked: Linked<Peer>,
}

impl Places {
    pub fn new() -> Result<Self, Error> {
        Ok(Self {
            peers: collected((0..MAX_NODES).map(|_| AtomicPtr::new(null_mut())))?.into(),
            end: AtomicUsize::new(0),
            making: Mutex::default(),
            linked: Linked::new()?,
        })
    }

    /// The peer in a place; `None`: there has been no need of one.
    #[inline(always)]
    pub fn get(&self, slot: usize) -> Option<&Peer> {
        // Acquire: pairs with the Release in `make`.
        let peer = self.peers[slot].load(Ordering::Acquire);
        // SAFETY: null, or made by `make`, and lives as long as this table.
        unsafe { peer.as_ref() }
    }

    /// The peer in a place, which is made if there is none.
    ///
    /// # Errors
    /// [`Error::Io`] when no addresses are left.
    pub fn make(&self, slot: usize) -> Result<&Peer, Error> {
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(peer) = self.get(slot) {
            return Ok(peer);
        }
        let room = place()?;
        let peer = Peer::new(slot)
            .map_err(|error| Error::io("reserve addresses for a peer of the fabric", error))?;
        let made = Box::into_raw(Box::write(room, peer));
        // Release: pairs with the Acquire in `get`.
        self.peers[slot].store(made, Ordering::Release);
        // Release: pairs with the Acquire in `all`.
        self.end.fetch_max(slot + 1, Ordering::Release);
        // SAFETY: just stored; it lives as long as this table.
        Ok(unsafe { &*made })
    }

    /// All peers, whether there is a link or not.
    pub fn all(&self) -> impl Iterator<Item = &Peer> {
        // Acquire: pairs with the Release in `make`.
        (0..self.end.load(Ordering::Acquire)).filter_map(|slot| self.get(slot))
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        for peer in &mut self.peers {
            let peer = *peer.get_mut();
            if !peer.is_null() {
                // SAFETY: made by `make`, and nothing refers to it any more.
                drop(unsafe { Box::from_raw(peer) });
            }
        }
    }
}
