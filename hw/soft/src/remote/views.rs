//! Memory of peers that is mapped here.
//!
//! A peer's export says which of its memory is behind an address of the peer. Whether that memory is still
//! mapped here is known only to this process: each mapping has a place in a table. A mapping is revoked in
//! the table first; it is unmapped only after every thread that may have read it has left its section.
//!
//! A peer's table has a place for each of the 512 pieces of memory that it can export. The peer's words say
//! only which of its memory is meant; whether an address here is mapped is read from the table alone.
//!
//! ```text
//!  Piece ─► Place (ours)             generation of the peer's memory that is mapped, or GONE
//!    │                               its address there, its length, its address here
//!    └────► generation (the peer's)  if different: the peer's memory is another one by now
//! ```

use super::super::control::Control;
use super::super::hca::Hca;
use super::super::mr::{Grant, Keys};
use super::place::{For, Place};
use super::{Inbound, Responder};
use crate::error::Error;
use crate::fabric::{Link, MEMORIES, Mapped, Memory, Refusal, open_memory};
use crate::pinned::collected;
use std::collections::BTreeMap;
use std::iter::repeat_with;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Bytes of one peer that may be mapped here. This limits address space, not memory, which is allocated when
/// requests of this side access it.
const BYTES: u64 = 1 << 40;

/// Pieces of all peers that may be mapped here: half of the mappings that Linux allows a process
/// (vm.max_map_count). What is not mapped is sent in packets.
const MAPPED: usize = 1 << 15;

/// A piece of a peer's memory that this process maps, or has mapped before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    place: &'static Place,
    /// The word in the peer's export.
    generation: &'static AtomicU32,
}

impl Piece {
    /// Our address for these addresses of the peer; `None`: not mapped here, or no longer. Valid until the
    /// caller leaves its section, a queue pair's or that of a peer's reader (or releases the device's lock).
    #[inline(always)]
    pub(super) fn place(&self, addr: u64, length: u64, access: For) -> Option<*mut u8> {
        // Acquire: pairs with the Release in `Export::show`. After `hide`, the peer waits for this section.
        let shown = self.generation.load(Ordering::Acquire);
        let ours = self.place.find(shown, addr, length, access);
        ours.map(std::ptr::with_exposed_provenance_mut)
    }

    /// What of a region of the peer's is mapped here, and where. While what [`place`](Self::place) returned is valid.
    pub(super) fn mapped(&self, region: Grant, access: For) -> (Grant, usize) {
        let (theirs, length, ours) = self.place.all(access);
        let mapped = region.within(theirs, length);
        let offset = mapped.addr.wrapping_sub(theirs);
        (mapped, ours.wrapping_add(offset as usize))
    }
}

/// A piece of a peer's memory, and the peer's memory keys.
#[derive(Clone, Copy, Debug)]
pub struct View {
    pub(super) piece: Piece,
    pub(super) keys: Keys,
}

/// The pieces of a peer's memory from which a queue pair has copied messages: few, so that no message costs much more
/// than the first, and several, so that a requester with some regions is not sent to the lock each time.
#[derive(Debug, Default)]
pub struct Sources {
    pieces: [Option<Piece>; 4],
    /// The one that makes room next.
    next: usize,
}

impl Sources {
    /// Our address for these addresses of the peer, as [`Piece::place`].
    #[inline(always)]
    pub(super) fn place(&self, addr: u64, length: u64) -> Option<*const u8> {
        let mut pieces = self.pieces.iter();
        let place = pieces.find_map(|piece| (*piece)?.place(addr, length, For::Reading));
        place.map(<*mut u8>::cast_const)
    }

    fn add(&mut self, piece: Piece) {
        self.pieces[self.next] = Some(piece);
        self.next = (self.next + 1) % self.pieces.len();
    }

    /// For another peer.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}

/// The pieces of peers' memory that this process has mapped.
#[derive(Debug, Default)]
pub(in super::super) struct Views {
    /// By the peer's place. They are made when something is mapped first, and live as long as the device.
    peers: Mutex<BTreeMap<usize, Arc<PeerViews>>>,
    /// Pieces that are mapped, of all peers.
    mapped: AtomicUsize,
}

impl Views {
    fn peers(&self) -> MutexGuard<'_, BTreeMap<usize, Arc<PeerViews>>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes room for another piece. `false`: there is none.
    fn count_up(&self) -> bool {
        // Relaxed, both: the count orders no other data.
        let room = self.mapped.fetch_add(1, Ordering::Relaxed) < MAPPED;
        if !room {
            self.count_down();
        }
        room
    }

    fn count_down(&self) {
        // Relaxed: as above.
        self.mapped.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The pieces of one peer: at most as many as a node can export, one for each entry of its table.
#[derive(Debug, Default)]
struct PeerViews {
    /// Allocated when the first is mapped; they live as long as the device.
    places: OnceLock<Box<[Place]>>,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// The node to which this memory belongs.
    incarnation: u64,
    entries: Vec<Option<Entry>>,
    /// Bytes that are mapped.
    bytes: u64,
    /// Places were revoked, and not removed since.
    revoked: bool,
}

#[derive(Debug)]
struct Entry {
    memory: Memory,
    /// `None`: it is not memory that can be mapped, and is not tried again.
    mapped: Option<Mapped>,
}

impl PeerViews {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called with the table locked.
    ///
    /// # Errors
    /// There is no memory for the places.
    fn places(&self) -> Result<&[Place], Error> {
        if let Some(places) = self.places.get() {
            return Ok(places);
        }
        let places = collected(repeat_with(Place::new).take(MEMORIES))?;
        Ok(self.places.get_or_init(|| places.into()))
    }

    /// The place of a piece of this node's memory, after mapping it if possible.
    fn map(&self, all: &Views, link: &Link, device: u64, memory: &Memory) -> Option<&Place> {
        let incarnation = link.incarnation;
        let mut table = self.table();
        if table.incarnation != incarnation {
            // The previous node's memory has to be unmapped first.
            if table
                .entries
                .iter()
                .flatten()
                .any(|entry| entry.mapped.is_some())
            {
                return None;
            }
            *table = Table {
                incarnation,
                ..Table::default()
            };
        }
        // If there is no memory, nothing is mapped, and the next call tries again.
        if table.entries.is_empty() {
            table.entries = collected(repeat_with(|| None).take(MEMORIES)).ok()?;
        }
        let place = &self.places().ok()?[memory.index];
        match &table.entries[memory.index] {
            Some(entry) if entry.memory == *memory => {
                return entry.mapped.is_some().then_some(place);
            }
            // Other memory, which has not been unmapped yet.
            Some(entry) if entry.mapped.is_some() => return None,
            _ => {}
        }
        if memory.length > BYTES - table.bytes {
            return None;
        }
        if !all.count_up() {
            return None;
        }
        let opened = open_memory(link.pid, device, memory);
        if opened.is_err() {
            all.count_down();
        }
        let mapped = match opened {
            Ok(mapped) => Some(mapped),
            Err(Refusal::Unfit) => None,
            Err(Refusal::NotNow) => return None,
        };
        if let Some(mapped) = &mapped {
            table.bytes += memory.length;
            let ours = mapped.start().as_ptr().expose_provenance();
            place.publish(memory, ours, mapped.is_writable());
        }
        let there = mapped.is_some();
        table.entries[memory.index] = Some(Entry {
            memory: *memory,
            mapped,
        });
        there.then_some(place)
    }

    /// Revokes the places of memory that is no longer exported; `shown` says what is. `true`: there is
    /// something to [`remove`](Self::remove).
    fn revoke(&self, incarnation: u64, shown: impl Fn(&Memory) -> bool) -> bool {
        let mut table = self.table();
        let mut some = false;
        for entry in table.entries.iter().flatten() {
            if entry.mapped.is_some() && (table.incarnation != incarnation || !shown(&entry.memory))
            {
                if let Some(places) = self.places.get() {
                    places[entry.memory.index].revoke();
                }
                some = true;
            }
        }
        table.revoked |= some;
        some
    }

    /// Returns the mappings that were revoked, once all sections that may have seen them have been left.
    fn remove(&self, all: &Views, gone: &mut Vec<Mapped>) {
        let mut table = self.table();
        let Some(places) = self.places.get() else {
            return;
        };
        if !std::mem::take(&mut table.revoked) {
            return;
        }
        let Table { entries, bytes, .. } = &mut *table;
        for of in entries {
            let Some(Entry { memory, .. }) = of else {
                continue;
            };
            // Without memory for the list, the mapping stays until the next look.
            if places[memory.index].is_gone()
                && gone.try_reserve(1).is_ok()
                && let Some(Entry {
                    memory,
                    mapped: Some(mapped),
                }) = of.take_if(|entry| entry.mapped.is_some())
            {
                *bytes -= memory.length;
                all.count_down();
                gone.push(mapped);
            }
        }
    }
}

impl Hca {
    /// Our address for memory of a responder's peer; `None`: it cannot be mapped. Under the device's lock,
    /// and valid while that is held. For the thread that has the turn to read the peer's packets.
    pub(super) fn source(
        &self,
        responder: &Responder,
        inbound: &Inbound,
        addr: u64,
        length: u64,
    ) -> Option<*const u8> {
        // SAFETY: the responder has accepted a packet of the peer, whose packets this thread reads in turn.
        let sources = unsafe { &mut *inbound.sources.get() };
        sources.place(addr, length).or_else(|| {
            let view = self.view(responder.slot, responder.incarnation, addr, length)?;
            // It may be one of these, which was mapped anew.
            sources.place(addr, length).or_else(|| {
                sources.add(view.piece);
                sources.place(addr, length)
            })
        })
    }

    /// The piece of a peer's memory that contains these addresses, mapped.
    pub(super) fn view(
        &self,
        slot: usize,
        incarnation: u64,
        addr: u64,
        length: u64,
    ) -> Option<View> {
        let node = self.node.as_ref()?;
        let peer = node.peer(slot);
        let shown = peer.shown();
        let memory = shown.find(addr, length)?;
        let link = peer.link().filter(|link| link.incarnation == incarnation)?;
        let device = node.export().device();
        let views = self.views.peers().entry(slot).or_default().clone();
        let place = views.map(&self.views, &link, device, &memory)?;
        let piece = Piece {
            // SAFETY: the places live as long as the device, and no view outlives it.
            place: unsafe { NonNull::from(place).as_ref() },
            generation: shown.generation_word(memory.index),
        };
        Some(View {
            piece,
            keys: Keys::of(shown),
        })
    }

    /// Revokes mappings of memory that peers no longer export. Returns them, to be unmapped after the lock is
    /// released, because unmapping takes the longer the more of them was accessed.
    #[must_use]
    pub(super) fn drop_views(&self, control: &Control) -> Vec<Mapped> {
        let mut gone = Vec::new();
        let Some(node) = &self.node else { return gone };
        let mut revoked = false;
        for (slot, views) in self.views.peers().iter() {
            let peer = node.peer(*slot);
            let some = views.revoke(peer.incarnation(), |memory| {
                peer.shown().generation(memory.index) == memory.generation
            });
            if some {
                peer.unmapped.pass();
                revoked = true;
            }
        }
        if !revoked {
            return gone;
        }
        self.drain(control);
        for views in self.views.peers().values() {
            views.remove(&self.views, &mut gone);
        }
        gone
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// All peers together have so many mappings; one that is given back is free for the next.
    #[test]
    fn mappings_of_all_peers_have_a_bound() {
        let views = Views::default();
        let taken = (0..2 * MAPPED).filter(|_| views.count_up()).count();
        assert_eq!(taken, MAPPED);
        views.count_down();
        assert_eq!([views.count_up(), views.count_up()], [true, false]);
    }
}
