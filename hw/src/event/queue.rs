//! Events that wait to be got, and those that were got and are not acknowledged.

use super::element::Element;
use super::fd::{self, EventFd};
use crate::error::Error;
#[cfg(feature = "verbs")]
use crate::verbs;
#[cfg(feature = "verbs")]
use bellwire_core::event::EventType;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Room that is there from the start, so that an event seldom allocates.
const ROOM: usize = 64;

/// A queue of events about elements that it knows, with a descriptor.
///
/// Its lock is a leaf: it is taken within sections and under the device's lock, and nothing is
/// waited for under it.
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    source: Source,
    /// What an event of the kernel's queue is here.
    #[cfg(feature = "verbs")]
    kernel: Option<fn(EventType) -> T>,
    state: Mutex<State<T>>,
    /// Told when the last event of a retiring element is acknowledged.
    acknowledged: Condvar,
}

/// Where events are queued.
#[derive(Debug)]
enum Source {
    /// Here. The descriptor counts them.
    Own(EventFd),
    /// In the kernel, by libibverbs.
    #[cfg(feature = "verbs")]
    Kernel(verbs::Source),
}

impl Source {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Own(fd) => fd.as_fd(),
            #[cfg(feature = "verbs")]
            Self::Kernel(source) => source.fd(),
        }
    }

    /// One event was queued here.
    fn add(&self) {
        match self {
            Self::Own(fd) => fd.add(),
            #[cfg(feature = "verbs")]
            Self::Kernel(_) => {}
        }
    }

    /// One was taken out.
    fn take(&self) {
        match self {
            Self::Own(fd) => fd.take(),
            #[cfg(feature = "verbs")]
            Self::Kernel(_) => {}
        }
    }
}

#[derive(Debug)]
struct State<T> {
    /// As many as the descriptor counts.
    queued: VecDeque<(Element, T)>,
    known: HashMap<Element, Known>,
}

/// An element that events may be about.
#[derive(Debug, Default)]
struct Known {
    /// Events in somebody's hand.
    held: u32,
    /// Events got that are to be acknowledged by their number.
    deferred: u32,
    retiring: bool,
}

impl<T> EventQueue<T> {
    pub fn new() -> Result<Self, Error> {
        let fd = EventFd::new().map_err(|error| Error::io("make an event descriptor", error))?;
        Ok(Self {
            source: Source::Own(fd),
            #[cfg(feature = "verbs")]
            kernel: None,
            state: Mutex::new(State {
                queued: VecDeque::with_capacity(ROOM),
                known: HashMap::new(),
            }),
            acknowledged: Condvar::new(),
        })
    }

    /// The events that libibverbs gives, and what they are here. The kernel queues them.
    #[cfg(feature = "verbs")]
    pub fn of_kernel(source: verbs::Source, event: fn(EventType) -> T) -> Self {
        Self {
            source: Source::Kernel(source),
            kernel: Some(event),
            state: Mutex::new(State {
                queued: VecDeque::new(),
                known: HashMap::new(),
            }),
            acknowledged: Condvar::new(),
        }
    }

    /// Where libibverbs has the events.
    #[cfg(feature = "verbs")]
    pub fn kernel_source(&self) -> Option<&verbs::Source> {
        match &self.source {
            Source::Kernel(source) => Some(source),
            Source::Own(_) => None,
        }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        // Each change of the state is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Events about `element` are taken from here on, until it is retired.
    pub fn admit(&self, element: Element) {
        self.state().known.entry(element).or_default();
    }

    /// Queues an event; `false`: nothing of this name was admitted, or it was retired, and the event
    /// is dropped. May be called within a section.
    pub fn push(&self, element: Element, event: T) -> bool {
        let mut state = self.state();
        let known = state.known.get(&element);
        let taken = known.is_some_and(|known| !known.retiring);
        if taken {
            state.queued.push_back((element, event));
            self.source.add();
        }
        taken
    }

    fn try_get(&self) -> Result<Option<(Element, T)>, Error> {
        let mut state = self.state();
        #[cfg(feature = "verbs")]
        if let (Source::Kernel(source), Some(event)) = (&self.source, self.kernel) {
            return state.read(source, event);
        }
        let Some((element, event)) = state.queued.pop_front() else {
            return Ok(None);
        };
        self.source.take();
        if let Some(known) = state.known.get_mut(&element) {
            known.held += 1;
        }
        Ok(Some((element, event)))
    }

    /// Takes the oldest event; `None` when there is none. Never blocks.
    pub(super) fn get_now(self: &Arc<Self>) -> Result<Option<Got<T>>, Error> {
        let got = self.try_get()?;
        Ok(got.map(|(element, event)| Got {
            queue: self.clone(),
            element,
            event,
        }))
    }

    /// Takes the oldest event. When there is none it blocks, or not, as the descriptor's flags say.
    /// Each time before it blocks it calls `idle`, which may bound for how long.
    pub(super) fn get(
        self: &Arc<Self>,
        idle: impl Fn() -> Option<Duration>,
    ) -> Result<Got<T>, Error> {
        let failed = |error| Error::io("wait for an event", error);
        loop {
            if let Some(got) = self.get_now()? {
                return Ok(got);
            }
            let bound = idle();
            let fd = self.source.fd();
            let wait = match fd::is_nonblocking(fd).map_err(failed)? {
                true => Some(Duration::ZERO),
                false => bound,
            };
            let ready = fd::wait(fd, wait).map_err(failed)?;
            if !ready && wait == Some(Duration::ZERO) {
                return Err(Error::WouldBlock);
            }
        }
    }

    fn ack(&self, element: Element, change: impl FnOnce(&mut Known)) {
        let mut state = self.state();
        if let Some(known) = state.known.get_mut(&element) {
            change(known);
            if known.retiring {
                self.acknowledged.notify_all();
            }
        }
    }

    /// Acknowledges as many deferred events of an element, or none when there are fewer.
    pub fn ack_deferred(&self, element: Element, count: u32) -> Result<(), Error> {
        let mut left = 0;
        self.ack(element, |known| {
            left = known.deferred;
            if count <= left {
                known.deferred -= count;
            }
        });
        if count > left {
            return Err(Error::NotDeferred {
                element,
                given: count,
                deferred: left,
            });
        }
        Ok(())
    }

    /// Forgets an element: removes what is queued of it, takes no more, and waits until all that was
    /// got is acknowledged. Not under any lock, and not within a section.
    pub fn retire(&self, element: Element) {
        let mut state = self.state();
        let State { queued, known } = &mut *state;
        let Some(of_it) = known.get_mut(&element) else {
            return;
        };
        of_it.retiring = true;
        queued.retain(|(of, _)| {
            if *of == element {
                self.source.take();
            }
            *of != element
        });
        let unacknowledged = |state: &mut State<T>| {
            let known = state.known.get(&element);
            known.is_some_and(|known| known.held + known.deferred != 0)
        };
        let mut state = self
            .acknowledged
            .wait_while(state, unacknowledged)
            .unwrap_or_else(PoisonError::into_inner);
        state.known.remove(&element);
    }

    pub fn set_nonblocking(&self, nonblocking: bool) -> Result<(), Error> {
        fd::set_nonblocking(self.source.fd(), nonblocking)
            .map_err(|error| Error::io("change an event descriptor's flags", error))
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.source.fd()
    }
}

#[cfg(feature = "verbs")]
impl<T> State<T> {
    /// Reads the kernel's oldest event, of something that is known and is not about to go. Under the
    /// lock, so that nobody else reads the one that is seen to be there.
    fn read(
        &mut self,
        source: &verbs::Source,
        event: fn(EventType) -> T,
    ) -> Result<Option<(Element, T)>, Error> {
        let failed = |error| Error::io("read an event", error);
        while fd::wait(source.fd(), Some(Duration::ZERO)).map_err(failed)? {
            let (element, what) = match source.read() {
                // A program has read what it was asked not to.
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(None),
                read => read.map_err(failed)?,
            };
            let what = what.map_err(|number| Error::UnknownEvent { number })?;
            let known = self.known.get_mut(&element);
            if let Some(known) = known.filter(|known| !known.retiring) {
                known.held += 1;
                return Ok(Some((element, event(what))));
            }
        }
        Ok(None)
    }
}

/// An event that was got. Acknowledged when it is dropped.
#[derive(Debug)]
pub(super) struct Got<T> {
    queue: Arc<EventQueue<T>>,
    pub element: Element,
    pub event: T,
}

impl<T> Got<T> {
    /// To be acknowledged by [`EventQueue::ack_deferred`].
    pub fn defer(self) {
        // Dropping it takes it out of `held`.
        self.queue.ack(self.element, |known| known.deferred += 1);
    }
}

impl<T> Drop for Got<T> {
    fn drop(&mut self) {
        self.queue.ack(self.element, |known| known.held -= 1);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const A: Element = Element::Srq(1);
    const B: Element = Element::Cq(1);

    fn queue() -> Arc<EventQueue<u32>> {
        let queue = EventQueue::new().unwrap();
        queue.set_nonblocking(true).unwrap();
        queue.admit(A);
        queue.admit(B);
        Arc::new(queue)
    }

    fn readable(queue: &EventQueue<u32>) -> bool {
        fd::wait(queue.fd(), Some(Duration::ZERO)).unwrap()
    }

    #[test]
    fn the_descriptor_counts_what_is_queued() {
        let queue = queue();
        assert!(!readable(&queue));
        assert!(queue.push(A, 1) && queue.push(B, 2) && queue.push(A, 3));
        for event in 1..=3 {
            assert!(readable(&queue));
            assert_eq!(queue.get(|| None).unwrap().event, event);
        }
        assert!(!readable(&queue));
        assert!(matches!(queue.get(|| None), Err(Error::WouldBlock)));
    }

    #[test]
    fn what_is_not_known_is_dropped() {
        let queue = queue();
        assert!(!queue.push(Element::Cq(2), 1) && !readable(&queue));
        queue.retire(B);
        assert!(!queue.push(B, 1) && !readable(&queue));
        queue.retire(B);
        queue.admit(B);
        assert!(queue.push(B, 2));
    }

    #[test]
    fn retiring_leaves_the_others_events() {
        let queue = queue();
        for event in 0..6 {
            queue.push(if event % 3 == 0 { A } else { B }, event);
        }
        queue.retire(B);
        for event in [0, 3] {
            let got = queue.get(|| None).unwrap();
            assert_eq!((got.element, got.event), (A, event));
        }
        assert!(!readable(&queue));
    }

    /// A program that reads the descriptor harms itself only.
    #[test]
    fn a_count_that_was_stolen_blocks_nobody() {
        let queue = queue();
        queue.set_nonblocking(false).unwrap();
        queue.push(A, 1);
        queue.push(B, 2);
        queue.source.take();
        queue.source.take();
        assert_eq!(queue.get(|| None).unwrap().event, 1);
        queue.retire(B);
    }

    #[test]
    fn deferred_events_are_acknowledged_by_their_number() {
        let queue = queue();
        for event in 0..3 {
            queue.push(A, event);
            queue.get(|| None).unwrap().defer();
        }
        let error = queue.ack_deferred(A, 4).unwrap_err();
        assert!(
            matches!(
                error,
                Error::NotDeferred {
                    given: 4,
                    deferred: 3,
                    ..
                }
            ),
            "{error}"
        );
        queue.ack_deferred(A, 2).unwrap();
        queue.ack_deferred(A, 1).unwrap();
        assert!(queue.ack_deferred(A, 1).is_err());
        assert!(queue.ack_deferred(Element::Cq(7), 1).is_err());
        queue.retire(A);
    }
}
