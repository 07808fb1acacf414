//! The peers with which a node has a link: a list that any thread reads while the holder of the device's
//! lock changes it.
//!
//! A peer that leaves is replaced by the last one. Readers go from the last to the first, so a peer never
//! moves to where they have been: they miss none that is in the list all the time, but may meet one twice.

use super::MAX_NODES;
use crate::error::Error;
use crate::pinned::collected;
use crate::sync::{
    MODELS,
    atomic::{AtomicPtr, AtomicUsize, Ordering},
};
use std::ptr::{from_ref, null_mut};

/// Peers that one look visits: in a large fabric, several looks visit all.
const AT_ONCE: usize = if MODELS { 2 } else { 64 };

const ROOM: usize = if MODELS { 4 } else { MAX_NODES };

/// What the holder of the lock, who alone writes this word, has written last.
macro_rules! own {
    ($word:expr) => {{
        // Relaxed: changed under the lock only.
        #[cfg(not(loom))]
        let value = $word.load(Ordering::Relaxed);
        // loom remembers the last access to a word alone. If that were this one, it would not try the stores
        // that follow before the reads of others.
        // SAFETY: as above.
        #[cfg(loom)]
        let value = unsafe { $word.unsync_load() };
        value
    }};
}

/// The place that is visited behind this one. If it is in no use, the last one is.
#[inline(always)]
pub fn behind(place: usize) -> usize {
    place.wrapping_sub(1)
}

/// See the module.
#[derive(Debug)]
pub(super) struct Linked<T> {
    count: AtomicUsize,
    peers: Box<[AtomicPtr<T>; ROOM]>,
}

impl<T> Linked<T> {
    pub fn new() -> Result<Self, Error> {
        let peers = collected((0..ROOM).map(|_| AtomicPtr::new(null_mut())))?;
        let Ok(peers) = peers.try_into() else {
            unreachable!("as many as there is room for");
        };
        Ok(Self {
            count: AtomicUsize::new(0),
            peers,
        })
    }

    #[inline(always)]
    fn count(&self) -> usize {
        // Acquire: pairs with the Release in `add` and `remove`: a counted place has its peer, and what is no
        // longer counted has gone to its new place.
        self.count.load(Ordering::Acquire)
    }

    #[inline(always)]
    fn peer(&self, at: usize) -> &T {
        // Acquire: pairs with the Release in `put`: whoever meets the peer that was put last sees where the
        // previous last one has gone.
        let peer = self.peers[at % ROOM].load(Ordering::Acquire);
        #[cfg(any(loom, all(test, miri)))]
        assert!(!peer.is_null(), "counted before it was put");
        // SAFETY: places below any count that there was have a peer, which `add` requires to live as long as
        // the list.
        unsafe { &*peer }
    }

    /// All peers.
    #[inline(always)]
    pub fn all(&self) -> impl Iterator<Item = &T> {
        let count = self.count();
        (0..count).rev().map(|at| self.peer(at))
    }

    /// Up to 64 peers, with their places, from the `first` place on and then from the last one. A thread that polls visits
    /// these, so that a poll costs no more in a large fabric than in one of 64; the next one goes on [behind] the last of
    /// them. Unlike [`all`](Self::all), one that begins in the middle may miss a peer that goes to another place meanwhile.
    #[inline(always)]
    pub fn some(&self, first: usize) -> impl Iterator<Item = (usize, &T)> {
        let count = self.count();
        let mut next = first;
        (0..count.min(AT_ONCE)).map(move |_| {
            let place = next.min(count - 1);
            next = behind(place);
            (place, self.peer(place))
        })
    }

    fn put(&self, at: usize, peer: *mut T) {
        // Release: pairs with the Acquire in `peer`.
        self.peers[at].store(peer, Ordering::Release);
    }

    /// Adds a peer that is not in the list. Under the device's lock.
    ///
    /// # Safety
    /// The peer lives as long as the list.
    pub unsafe fn add(&self, peer: &T) {
        let count = own!(self.count);
        self.put(count, from_ref(peer).cast_mut());
        // Release: pairs with the Acquire in `count`.
        self.count.store(count + 1, Ordering::Release);
    }

    /// Removes a peer, if it is in the list. Under the device's lock.
    pub fn remove(&self, peer: &T) {
        let count = own!(self.count);
        let of = |at: usize| own!(self.peers[at]);
        let Some(at) = (0..count).find(|at| std::ptr::eq(of(*at), peer)) else {
            return;
        };
        self.put(at, of(count - 1));
        // Release: pairs with the Acquire in `count`.
        self.count.store(count - 1, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn add(linked: &Linked<usize>, peers: &'static [usize]) {
        for peer in peers {
            // SAFETY: it lives for ever.
            unsafe { linked.add(peer) };
        }
    }

    /// Each is its place.
    static PEERS: [usize; 1000] = {
        let mut peers = [0; 1000];
        let mut at = 0;
        while at < peers.len() {
            peers[at] = at;
            at += 1;
        }
        peers
    };

    #[test]
    fn a_few_are_visited_by_each_look() {
        let (linked, peers) = (Linked::new().unwrap(), &PEERS[..4]);
        add(&linked, &peers[..3]);
        for (first, visited) in [(0, [0, 2, 1]), (1, [1, 0, 2]), (3, [2, 1, 0])] {
            let places = visited.map(|place| (place, &peers[place]));
            assert_eq!(linked.some(first).collect::<Vec<_>>(), places);
        }
        linked.remove(&peers[0]);
        linked.remove(&peers[3]);
        assert_eq!(linked.all().collect::<Vec<_>>(), [&1, &2]);
    }

    #[test]
    fn many_are_visited_in_turn() {
        let (linked, peers) = (Linked::new().unwrap(), &PEERS);
        add(&linked, peers);
        let mut next = behind(0);
        let mut look = || {
            let some: Vec<usize> = linked.some(next).map(|(_, peer)| *peer).collect();
            assert_eq!(some.len(), AT_ONCE);
            next = behind(linked.some(next).last().expect("one").0);
            some
        };
        let mut visited: Vec<usize> = (0..1000_usize.div_ceil(AT_ONCE))
            .flat_map(|_| look())
            .collect();
        visited.sort_unstable();
        visited.dedup();
        assert!(visited.into_iter().eq(0..1000));
        // Whatever leaves meanwhile, a look stays in the list.
        peers[..900].iter().for_each(|peer| linked.remove(peer));
        for _ in 0..10 {
            assert!(look().iter().all(|peer| *peer >= 900));
        }
        assert_eq!(linked.all().count(), 100);
    }
}

#[cfg(all(test, any(loom, miri)))]
mod loom_models {
    use super::*;
    use crate::sync::model::{Arc, check, longer, thread};

    static PEERS: [u32; 5] = [0, 1, 2, 3, 4];

    fn add(linked: &Linked<u32>, peers: &'static [u32]) {
        for peer in peers {
            // SAFETY: it lives for ever.
            unsafe { linked.add(peer) };
        }
    }

    /// While a peer leaves and another one comes, a reader meets those that stay.
    fn meets_all(read: fn(&Linked<u32>) -> Vec<u32>) {
        check(move || {
            let linked = Arc::new(Linked::new().expect("memory"));
            add(&linked, &PEERS[1..4]);
            let changes = {
                let linked = linked.clone();
                thread::spawn(move || {
                    linked.remove(&PEERS[1]);
                    add(&linked, &PEERS[4..]);
                })
            };
            let met = read(&linked);
            changes.join().unwrap();
            assert!(met.contains(&2) && met.contains(&3), "missed one: {met:?}");
        });
    }

    #[test]
    fn loom_readers_meet_all_that_stay() {
        meets_all(|linked| linked.all().copied().collect());
    }

    /// A reader meets no peer that is not there yet.
    #[test]
    fn loom_the_first_comes() {
        check(|| {
            let linked = Arc::new(Linked::new().expect("memory"));
            let changes = {
                let linked = linked.clone();
                thread::spawn(move || add(&linked, &PEERS[..1]))
            };
            assert!(linked.all().all(|peer| *peer == 0));
            changes.join().unwrap();
        });
    }

    #[cfg(loom)]
    #[test]
    fn loom_readers_need_each_ordering() {
        let models: [fn(); 2] = [loom_readers_meet_all_that_stay, loom_the_first_comes];
        crate::sync::needs_orderings(&models, "fabric/linked.rs", &[]);
    }

    /// The model detects a reader that goes the other way.
    #[test]
    #[should_panic(expected = "missed one")]
    fn loom_readers_go_from_the_last_to_the_first() {
        longer(|| {
            meets_all(|linked| {
                let count = linked.count();
                (0..count).map(|at| *linked.peer(at)).collect()
            });
        });
    }
}
