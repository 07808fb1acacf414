//! Asynchronous events that were read by one waiter on behalf of another.

use super::bell::Bell;
use super::element::Element;
use crate::error::Error;
use crate::pinned::{no_memory, room_for, room_in};
use bellwire_core::event::EventType;
#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard, atomic::AtomicUsize};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
#[cfg(not(loom))]
use std::sync::{Mutex, MutexGuard, atomic::AtomicUsize};

/// One mailbox per waiter for events of a context: the elements that it watches, the events that it has not
/// collected yet, and its bell, if it sleeps.
///
/// The lock is a leaf: it is taken within sections and under the device's lock, and no object of the program
/// is called or dropped under it.
#[derive(Debug, Default)]
pub struct Mailboxes {
    state: Mutex<State>,
    /// How many events are in all mailboxes, changed under the lock: a thread that looks and finds none takes
    /// no lock.
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    boxes: HashMap<u64, Mailbox>,
    /// Some waiter has to handle the events that concern no mailbox.
    looks_at_all: bool,
}

#[derive(Debug)]
struct Mailbox {
    elements: HashSet<Element>,
    events: Vec<(EventType, Element)>,
    bell: Option<Arc<Bell>>,
}

impl State {
    fn ring_all(&self) {
        let bells = self
            .boxes
            .values()
            .filter_map(|mailbox| mailbox.bell.as_ref());
        bells.for_each(|bell| bell.ring());
    }
}

impl Mailboxes {
    fn state(&self) -> MutexGuard<'_, State> {
        // Every change of the state is complete, even if a thread panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates a mailbox; `bell` rings when an event for it arrives.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn join(&self, bell: Option<Arc<Bell>>) -> Result<u64, Error> {
        let mut state = self.state();
        room_in(&mut state.boxes)?;
        let id = state.next;
        state.next += 1;
        let mailbox = Mailbox {
            elements: HashSet::new(),
            events: Vec::new(),
            bell,
        };
        state.boxes.insert(id, mailbox);
        Ok(id)
    }

    /// Makes room in a mailbox for watching this many elements, and for an event about each.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn make_room(&self, id: u64, elements: usize) -> Result<(), Error> {
        let mut state = self.state();
        let Some(mailbox) = state.boxes.get_mut(&id) else {
            return Ok(());
        };
        let more = elements.saturating_sub(mailbox.elements.len());
        room_in_set(&mut mailbox.elements, more)?;
        room_for(&mut mailbox.events, elements)
    }

    /// Sets the elements that the owner of a mailbox watches, replacing the previous ones.
    ///
    /// # Errors
    /// There is not enough memory; the owner watches none.
    pub fn watch(&self, id: u64, elements: &[Element]) -> Result<(), Error> {
        if let Some(mailbox) = self.state().boxes.get_mut(&id) {
            mailbox.elements.clear();
            room_in_set(&mut mailbox.elements, elements.len())?;
            mailbox.elements.extend(elements);
            self.keep(mailbox, |of| elements.contains(of));
        }
        Ok(())
    }

    /// Adds an element to the elements that the owner of a mailbox watches.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn watch_also(&self, id: u64, element: Element) -> Result<(), Error> {
        if let Some(mailbox) = self.state().boxes.get_mut(&id) {
            room_in_set(&mut mailbox.elements, 1)?;
            mailbox.elements.insert(element);
        }
        Ok(())
    }

    /// Removes an element from the elements that the owner of a mailbox watches, and its events.
    pub fn unwatch(&self, id: u64, element: Element) {
        if let Some(mailbox) = self.state().boxes.get_mut(&id) {
            mailbox.elements.remove(&element);
            self.keep(mailbox, |of| *of != element);
        }
    }

    /// Removes a mailbox. Returns whether mailboxes are left whose owners sleep.
    pub fn leave(&self, id: u64) -> bool {
        let mut state = self.state();
        if let Some(mut mailbox) = state.boxes.remove(&id) {
            self.keep(&mut mailbox, |_| false);
        }
        state.boxes.values().any(|mailbox| mailbox.bell.is_some())
    }

    /// Takes the events out of a mailbox.
    pub fn collect(&self, id: u64) -> Vec<(EventType, Element)> {
        // Acquire: pairs with the Release in `put`. A waiter that was woken for an event sees it counted.
        if self.count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let mut state = self.state();
        let mailbox = state.boxes.get_mut(&id);
        let events = mailbox.map_or(Vec::new(), |mailbox| std::mem::take(&mut mailbox.events));
        // Relaxed, here and in `keep`: a count that is too high costs a look.
        self.count.fetch_sub(events.len(), Ordering::Relaxed);
        events
    }

    /// Drops the events of a mailbox about other elements. Under the lock.
    fn keep(&self, mailbox: &mut Mailbox, wanted: impl Fn(&Element) -> bool) {
        let before = mailbox.events.len();
        mailbox.events.retain(|(_, of)| wanted(of));
        let dropped = before - mailbox.events.len();
        self.count.fetch_sub(dropped, Ordering::Relaxed);
    }

    /// Puts an event into the mailboxes of all waiters that watch the element, and wakes them, except the
    /// waiter `by` that delivers it. `false`: no mailbox watches the element. An event for which there is no room
    /// and no memory is lost, as the kernel's are (`ib_uverbs_async_handler`).
    pub fn put(&self, event: EventType, element: Element, by: Option<u64>) -> bool {
        let mut concerned = false;
        for (id, mailbox) in &mut self.state().boxes {
            if mailbox.elements.contains(&element) {
                concerned = true;
                if mailbox.events.try_reserve(1).is_err() {
                    continue;
                }
                mailbox.events.push((event, element));
                // Before the bell. Release: pairs with the Acquire in `collect`.
                self.count.fetch_add(1, Ordering::Release);
                if by != Some(*id) {
                    mailbox.bell.iter().for_each(|bell| bell.ring());
                }
            }
        }
        concerned
    }

    /// Reports that an event can be read: wakes the waiters that watch the element.
    pub fn wake(&self, element: Element) {
        let state = self.state();
        let mut concerned = false;
        for mailbox in state.boxes.values() {
            if mailbox.elements.contains(&element) {
                mailbox.bell.iter().for_each(|bell| bell.ring());
                concerned = true;
            }
        }
        if !concerned && state.looks_at_all {
            state.ring_all();
        }
    }

    /// Reports that events are available which no mailbox watches: wakes all waiters, if they handle those.
    pub fn wake_for_others(&self) {
        let state = self.state();
        if state.looks_at_all {
            state.ring_all();
        }
    }

    /// Requires the waiters from now on to handle events that no mailbox watches, including those available
    /// now.
    pub fn look_at_all(&self) {
        let mut state = self.state();
        state.looks_at_all = true;
        state.ring_all();
    }
}

/// Makes room for `more` elements besides those that are watched.
fn room_in_set(elements: &mut HashSet<Element>, more: usize) -> Result<(), Error> {
    let reserved = elements.try_reserve(more);
    reserved.map_err(|_| no_memory((elements.len() + more) * size_of::<Element>()))
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use crate::event::wait;
    use loom::thread;
    use std::os::fd::AsFd;
    use std::time::Duration;

    const EVENT: (EventType, Element) = (EventType::QpFatal, Element::Qp(7));

    /// A device's queue of events, and a link that sleeps.
    struct World {
        queued: Mutex<Vec<(EventType, Element)>>,
        mailboxes: Mailboxes,
        bell: Arc<Bell>,
    }

    /// How the device delivers an event.
    type Push = fn(&World);

    impl World {
        /// What a thread that polls a link does.
        fn look(&self, by: u64) -> bool {
            let taken = self.queued.lock().unwrap().pop();
            if let Some((event, element)) = taken {
                self.mailboxes.put(event, element, Some(by));
            }
            !self.mailboxes.collect(by).is_empty()
        }
    }

    fn who_sleeps_is_woken(push: Push) {
        loom::model(move || {
            let world = loom::sync::Arc::new(World {
                queued: Mutex::new(Vec::new()),
                mailboxes: Mailboxes::default(),
                bell: Arc::new(Bell::new().unwrap()),
            });
            let sleeper = world.mailboxes.join(Some(world.bell.clone())).unwrap();
            let other = world.mailboxes.join(None).unwrap();
            world.mailboxes.watch(sleeper, &[EVENT.1]).unwrap();
            let others = {
                let world = world.clone();
                thread::spawn(move || _ = world.look(other))
            };
            let device = {
                let world = world.clone();
                thread::spawn(move || push(&world))
            };
            // The order in which a link is armed and polled.
            world.bell.silence();
            let found = world.look(sleeper);
            others.join().unwrap();
            device.join().unwrap();
            let rings = wait(world.bell.as_fd(), Some(Duration::ZERO)).unwrap();
            assert!(found || rings, "slept through");
            // A waiter that is woken finds the event.
            assert!(found || world.look(sleeper), "lost");
        });
    }

    #[test]
    fn loom_an_event_wakes_whom_it_concerns_whoever_takes_it() {
        who_sleeps_is_woken(|world| {
            world.queued.lock().unwrap().push(EVENT);
            world.mailboxes.wake(EVENT.1);
        });
    }

    /// The model fails if the bell rings before the event is queued.
    #[test]
    #[should_panic(expected = "slept through")]
    fn loom_the_event_is_there_before_the_bell_rings() {
        who_sleeps_is_woken(|world| {
            world.mailboxes.wake(EVENT.1);
            world.queued.lock().unwrap().push(EVENT);
        });
    }
}
