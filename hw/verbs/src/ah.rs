//! Address handles, identified in entries by name.
//!
//! A request uses its address handle from when it is posted until it completes, and the program may drop the
//! handle earlier. Therefore a dropped handle is kept for a while: it is destroyed only after at least
//! [`KEPT`] others have been dropped after it. A request that is older still refers to no handle, and fails:
//! no name is ever given to two handles.
//!
//! A queue pair that posts datagrams is in a [`Section`] from before it looks names up until libibverbs has
//! taken the requests. To destroy a handle, the table first removes it, then waits until every section that
//! may have found it has been left. So a handle that was found exists while it is used, and its memory, which
//! libibverbs reuses for later handles, is not reused before.
//!
//! Once posted, a request holds the contents of its handle (libmlx5), or the handle's number (rxe). rxe looks
//! the handle up by this number when it sends, and sends nothing if there is none. It assigns numbers in
//! turn, so a request could only get a wrong handle if it waited in the device (in SQD, for example) until
//! this table has destroyed the handle and rxe has assigned all its numbers once.
//!
//! A name is a place in the table and a generation; a place that has had all generations is not used again. A
//! section costs two stores for each doorbell, and its end is awaited with one membarrier(2) for each
//! [`BATCH`] handles that are destroyed.

use super::memory::Pd;
use super::sys;
use crate::error::Error;
use crate::pinned::{defaults, push};
use bellwire_core::qp::AhAttr;
use bellwire_provider::quiesce::{Barriers, Section};
use crossbeam_utils::CachePadded;
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Handles per chunk, and number of chunks: their product is the most handles that can exist at once.
const CHUNK: usize = 1 << 10;
const CHUNKS: usize = 1 << 8;

/// Number of dropped handles that are kept.
const KEPT: usize = 1 << 10;

/// Number of handles that are destroyed together: waiting for the posters interrupts them.
const BATCH: usize = 1 << 6;

/// An address handle of the program.
#[derive(Debug)]
pub struct Ah {
    name: Name,
    pd: Arc<Pd>,
}

impl Ah {
    /// Creates a handle for this path (`ibv_create_ah`).
    ///
    /// # Errors
    /// [`Error::Io`]: the device refuses.
    pub fn new(pd: &Arc<Pd>, attr: &AhAttr) -> Result<Self, Error> {
        Ok(Self {
            name: pd.context().ahs.create(pd.handle(), attr)?,
            pd: pd.clone(),
        })
    }

    /// The name by which entries identify it.
    pub fn name(&self) -> Name {
        self.name
    }

    /// The address vector for entries of the device's own rings.
    pub fn vector(&self) -> Result<bellwire_core::wqe::AddressVector, Error> {
        let handle = self.pd.context().ahs.get(self.name);
        let handle = NonNull::new(handle).ok_or(Error::DeviceFatal)?;
        // SAFETY: the handle exists as long as `self`.
        unsafe { crate::mlx5dv::address_vector(handle) }
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        // A child of fork leaves what belongs to its parent as it is.
        if self.pd.context().is_inherited() {
            return;
        }
        let pd = &self.pd;
        pd.context().ahs.dropped(self.name, pd.handle());
    }
}

/// The name by which an entry identifies a handle: its place in the table, and its generation among the
/// handles in that place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    pub place: u32,
    pub generation: u32,
}

/// A place in the table.
#[derive(Debug, Default)]
struct Slot {
    handle: AtomicPtr<sys::ibv_ah>,
    /// The generation of the handle in this place, or of the next one.
    generation: AtomicU32,
}

type Chunk = Box<[Slot]>;
type Handle = NonNull<sys::ibv_ah>;

/// The address handles of a context by name. No handle has place zero.
#[derive(Debug)]
pub(super) struct AhTable {
    chunks: Box<[OnceLock<Chunk>]>,
    state: Mutex<State>,
    barriers: Barriers,
}

/// The state of a queue pair that looks handles up.
#[derive(Debug)]
pub(super) struct Poster {
    section: Arc<CachePadded<Section>>,
    barriers: Barriers,
}

impl Poster {
    /// Enters the section: handles found from now on exist until the returned value is dropped. Must not be
    /// entered twice at once.
    #[inline(always)]
    pub fn enter(&self) -> Posting<'_> {
        self.section.enter(self.barriers);
        Posting(&self.section)
    }
}

/// Handles that are found exist as long as this does.
pub(super) struct Posting<'p>(&'p Section);

impl Drop for Posting<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.leave();
    }
}

#[derive(Debug, Default)]
struct State {
    /// Places assigned so far.
    used: u32,
    free: Vec<u32>,
    dropped: VecDeque<(Name, NonNull<sys::ibv_pd>)>,
    /// The sections of the queue pairs that look handles up.
    posters: Vec<Arc<CachePadded<Section>>>,
}

// SAFETY: the pointers in it are only compared, and the handles may be used from any thread.
unsafe impl Send for State {}

impl Default for AhTable {
    fn default() -> Self {
        Self {
            chunks: (0..CHUNKS).map(|_| OnceLock::new()).collect(),
            state: Mutex::default(),
            barriers: Barriers::get(),
        }
    }
}

impl AhTable {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a queue pair that posts datagrams.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn poster(&self) -> Result<Poster, Error> {
        let section = Arc::new(CachePadded::new(Section::default()));
        let posters = &mut self.state().posters;
        // Remove those of queue pairs that are gone.
        posters.retain(|section| Arc::strong_count(section) > 1);
        push(posters, section.clone())?;
        Ok(Poster {
            section,
            barriers: self.barriers,
        })
    }

    fn slot(&self, place: u32) -> Option<&Slot> {
        let place = place as usize;
        self.chunks.get(place / CHUNK)?.get()?.get(place % CHUNK)
    }

    /// The handle with this name; null if there is none, or none any longer. It exists as long as the program
    /// has it, or as long as a [`Posting`] that began before this call.
    #[inline(always)]
    pub fn get(&self, name: Name) -> *mut sys::ibv_ah {
        let Some(slot) = self.slot(name.place) else {
            return std::ptr::null_mut();
        };
        // Acquire: pairs with the Release in `put`. A thread that reads a later handle here therefore reads
        // its generation, too.
        let handle = slot.handle.load(Ordering::Acquire);
        match slot.generation.load(Ordering::Relaxed) == name.generation {
            true => handle,
            false => std::ptr::null_mut(),
        }
    }

    /// Creates a handle, and returns its name.
    pub fn create(&self, pd: NonNull<sys::ibv_pd>, attr: &AhAttr) -> Result<Name, Error> {
        let mut attr = super::attr::ah_to_verbs(attr);
        // SAFETY: the domain is alive.
        let handle = sys::made(unsafe { sys::ibv_create_ah(pd.as_ptr(), &raw mut attr) })
            .map_err(|error| Error::io("create an address handle", error))?;
        self.put(handle).inspect_err(|_| {
            // SAFETY: the handle was just created, and nothing refers to it.
            let _ = unsafe { sys::ibv_destroy_ah(handle.as_ptr()) };
        })
    }

    /// Puts a handle into a free place.
    fn put(&self, handle: Handle) -> Result<Name, Error> {
        let mut state = self.state();
        let place = match state.free.pop() {
            Some(place) => place,
            None if (state.used as usize) < CHUNK * CHUNKS - 1 => {
                state.used += 1;
                state.used
            }
            None => {
                return Err(Error::Exhausted {
                    what: "address handles",
                    max: CHUNK * CHUNKS - 1,
                });
            }
        };
        let chunk = &self.chunks[place as usize / CHUNK];
        let chunk = match chunk.get() {
            Some(chunk) => chunk,
            None => match defaults(CHUNK) {
                // Initialized once: the table is locked.
                Ok(made) => chunk.get_or_init(|| made),
                Err(error) => {
                    state.free.push(place);
                    return Err(error);
                }
            },
        };
        let slot = &chunk[place as usize % CHUNK];
        // Relaxed: only written under the lock, which is held.
        let generation = slot.generation.load(Ordering::Relaxed);
        // Release: pairs with the Acquire in `get`.
        slot.handle.store(handle.as_ptr(), Ordering::Release);
        Ok(Name { place, generation })
    }

    /// Keeps a handle that the program has dropped, and destroys the oldest ones if too many are kept.
    pub fn dropped(&self, name: Name, pd: NonNull<sys::ibv_pd>) {
        // SAFETY: the handle is no longer in the table, and no poster uses it.
        self.dropped_by(name, pd, |handle| unsafe { destroy(handle) });
    }

    fn dropped_by(&self, name: Name, pd: NonNull<sys::ibv_pd>, destroy: impl FnMut(Handle)) {
        let mut state = self.state();
        state.dropped.push_back((name, pd));
        if state.dropped.len() >= KEPT + BATCH {
            let mut oldest = [name; BATCH];
            for (to, (name, _)) in oldest.iter_mut().zip(state.dropped.drain(..BATCH)) {
                *to = name;
            }
            self.let_go(&mut state, oldest.into_iter(), destroy);
        }
    }

    /// Destroys the handles that are kept for a domain, which is about to be deallocated.
    pub fn forget(&self, pd: NonNull<sys::ibv_pd>) {
        let mut state = self.state();
        let (of_it, others) = state.dropped.drain(..).partition(|&(_, of)| of == pd);
        state.dropped = others;
        let of_it: VecDeque<_> = of_it;
        let names = of_it.into_iter().map(|(name, _)| name);
        // SAFETY: the handle is no longer in the table, and no poster uses it.
        self.let_go(&mut state, names, |handle| unsafe { destroy(handle) });
    }

    /// Removes handles from the table, and destroys them once no poster uses them. The table stays locked
    /// meanwhile, so that the handles' domains stay alive; posting does not lock it.
    fn let_go(
        &self,
        state: &mut State,
        mut names: impl Iterator<Item = Name>,
        mut destroy: impl FnMut(Handle),
    ) {
        loop {
            let mut handles = [None; BATCH];
            let mut left = false;
            for (to, name) in handles.iter_mut().zip(&mut names) {
                left = true;
                *to = self.take(state, name);
            }
            if !left {
                return;
            }
            if !state.posters.is_empty() {
                // Between removing the handles and examining the sections: a section that is entered
                // after this does not find them.
                self.barriers.heavy();
                state.posters.iter().for_each(|section| section.wait());
            }
            handles.into_iter().flatten().for_each(&mut destroy);
        }
    }

    /// Removes a handle. Its place is free for another handle, which has another name; it is not used again
    /// once all generations have been used.
    fn take(&self, state: &mut State, name: Name) -> Option<Handle> {
        let slot = self.slot(name.place)?;
        // Relaxed, here and below: written under the lock; a reader of the next handle sees it by the Release
        // with which that handle was stored.
        if slot.generation.load(Ordering::Relaxed) != name.generation {
            return None;
        }
        let next = name.generation.wrapping_add(1);
        slot.generation.store(next, Ordering::Relaxed);
        let handle = NonNull::new(slot.handle.swap(std::ptr::null_mut(), Ordering::Relaxed))?;
        if next != 0 {
            state.free.push(name.place);
        }
        Some(handle)
    }
}

/// # Safety
/// The handle exists, and nothing uses it.
unsafe fn destroy(handle: Handle) {
    // SAFETY: the caller guarantees that nothing uses the handle. An error (EIO) cannot be handled.
    let _ = unsafe { sys::ibv_destroy_ah(handle.as_ptr()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::time::Duration;

    /// A handle that is only compared.
    fn handle(number: usize) -> NonNull<sys::ibv_ah> {
        NonNull::without_provenance(std::num::NonZero::new(number).expect("not zero"))
    }

    fn take(table: &AhTable, name: Name) -> Option<NonNull<sys::ibv_ah>> {
        let mut state = table.state.lock().expect("no panic");
        table.take(&mut state, name)
    }

    #[test]
    fn a_name_is_of_one_handle_whoever_stands_in_its_place_later() {
        let table = AhTable::default();
        let mut names = Vec::new();
        for number in 1..4000 {
            let name = table.put(handle(number)).expect("a place");
            assert_eq!(table.get(name), handle(number).as_ptr());
            names.push(name);
            if number % 3 != 0 {
                assert_eq!(take(&table, name), Some(handle(number)));
                assert_eq!(take(&table, name), None, "gone already");
            }
            if number > 100 && number % 7 == 0 {
                take(&table, names[number - 50]);
            }
        }
        let places = names.iter().map(|name| name.place).max().expect("some");
        assert!(places < 2000, "places are used again");
        let mut found = 0;
        for (number, name) in (1..).zip(names) {
            let there = table.get(name);
            assert!(
                there.is_null() || there == handle(number).as_ptr(),
                "{name:?}"
            );
            found += usize::from(!there.is_null());
        }
        assert!((500..2000).contains(&found), "{found}");
        let nowhere = Name {
            place: u32::MAX,
            generation: 0,
        };
        assert!(table.get(nowhere).is_null());
    }

    /// A domain that is only compared.
    const PD: NonNull<sys::ibv_pd> = NonNull::dangling();

    fn place_of_last_generation(table: &AhTable) -> (u32, Name) {
        let first = table.put(handle(1)).expect("a place");
        take(table, first);
        let slot = table.slot(first.place).expect("it is there");
        slot.generation.store(u32::MAX, Ordering::Relaxed);
        let last = table.put(handle(2)).expect("a place");
        assert_eq!((last.place, last.generation), (first.place, u32::MAX));
        take(table, last);
        (first.place, first)
    }

    #[test]
    fn a_place_that_has_had_all_generations_is_not_used_again() {
        let table = AhTable::default();
        let (place, first) = place_of_last_generation(&table);
        let later = table.put(handle(3)).expect("a place");
        assert!(table.get(first).is_null(), "it would name the later one");
        assert_ne!(later.place, place);
    }

    #[test]
    fn handles_stay_until_many_others_were_dropped() {
        let table = AhTable::default();
        let mut names = Vec::new();
        let mut gone = Vec::new();
        for number in 1..=KEPT + 3 * BATCH {
            let name = table.put(handle(number)).expect("a place");
            names.push(name);
            table.dropped_by(name, PD, |handle| gone.push(handle));
            for (at, name) in names.iter().enumerate() {
                let there = !table.get(*name).is_null();
                assert_eq!(there, at >= gone.len(), "{at} of {number}");
            }
            assert!(gone.len() + KEPT <= names.len() || gone.is_empty());
        }
        let oldest: Vec<_> = (1..=3 * BATCH).map(handle).collect();
        assert_eq!(gone, oldest);
    }

    /// A thread has found a handle and is about to use it while another drops enough handles for it to be
    /// destroyed.
    #[test]
    fn a_handle_that_was_found_is_there_until_it_was_used() {
        let table = AhTable::default();
        let poster = table.poster().expect("memory");
        let other = table.poster().expect("memory");
        let name = table.put(handle(1)).expect("a place");
        let (gone, found) = (AtomicU32::new(0), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let posting = poster.enter();
                assert_eq!(table.get(name), handle(1).as_ptr());
                found.wait();
                std::thread::sleep(Duration::from_millis(100));
                assert_eq!(gone.load(Ordering::SeqCst), 0, "destroyed while it is used");
                drop(posting);
            });
            found.wait();
            // It does not wait for threads that post nothing, or post later.
            drop(other.enter());
            let count = |_| {
                gone.fetch_add(1, Ordering::SeqCst);
            };
            table.dropped_by(name, PD, count);
            for number in 2..=KEPT + BATCH {
                let name = table.put(handle(number)).expect("a place");
                table.dropped_by(name, PD, count);
            }
            assert_eq!(gone.load(Ordering::SeqCst), BATCH as u32);
        });
        let _posting = poster.enter();
        assert!(table.get(name).is_null());
    }

    #[test]
    fn queue_pairs_that_have_gone_are_waited_for_no_more() {
        let table = AhTable::default();
        for _ in 0..100 {
            table.poster().expect("memory");
        }
        assert!(table.state().posters.len() <= 1);
    }
}
