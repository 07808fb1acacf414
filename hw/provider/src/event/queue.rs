//! Queued events, and events that were read but not acknowledged.

use super::bell::Bell;
use super::element::Element;
use super::fd::{self, EventFd};
use super::mailboxes::Mailboxes;
use super::waiters::Waiters;
use crate::error::Error;
use crate::pinned::{room_in, room_in_queue};
use bellwire_core::event::EventType;
use bellwire_memory::fork::Life;
use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Initial capacity, so that queueing an event rarely allocates.
const ROOM: usize = 64;

/// A queue of events about registered elements, with a descriptor.
///
/// Its lock is a leaf: it is taken within sections and under the device's lock, and no thread blocks while it
/// holds the lock.
#[derive(Debug)]
pub struct EventQueue<T> {
    source: Source,
    /// Converts an event that was read from the kernel.
    kernel: Option<fn(EventType) -> T>,
    state: Mutex<State<T>>,
    /// How many events are queued here, changed under the lock: a thread that looks and finds none takes no
    /// lock.
    count: AtomicUsize,
    waiters: Waiters,
    /// Notified when an event of a retiring element is acknowledged.
    acknowledged: Condvar,
    /// The mailboxes whose owners to wake for queued events, besides the threads that wait for the
    /// descriptor.
    concerned: OnceLock<Arc<Mailboxes>>,
}

/// Where events are queued.
#[derive(Debug)]
enum Source {
    /// In this queue. The descriptor counts them.
    Own(EventFd),
    /// In this queue, for one sleeping thread.
    Bell(Arc<Bell>),
    /// In the kernel.
    Kernel(Arc<dyn KernelEvents>),
}

/// Events that the kernel queues.
pub trait KernelEvents: fmt::Debug + Send + Sync + 'static {
    /// The descriptor; readable while an event is queued.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Reads an event and acknowledges it to the kernel: returns the element and the event, or the number of
    /// an unknown event. Call it only when an event is queued: otherwise it blocks, unless the descriptor is
    /// non-blocking.
    ///
    /// # Errors
    /// The error of the system call.
    fn read(&self) -> io::Result<(Element, Result<EventType, u32>)>;

    /// The object itself, for downcasts.
    fn as_any(&self) -> &dyn Any;
}

impl Source {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Own(fd) => fd.as_fd(),
            Self::Bell(bell) => bell.as_fd(),
            Self::Kernel(source) => source.fd(),
        }
    }

    /// Counts an event that was queued here.
    fn add(&self) {
        match self {
            Self::Own(fd) => fd.add(),
            Self::Bell(bell) => bell.ring(),
            Self::Kernel(_) => {}
        }
    }

    /// Counts an event that was taken out.
    fn take(&self) {
        match self {
            Self::Own(fd) => fd.take(),
            // The sleeping thread silences its bell itself.
            Self::Bell(_) => {}
            Self::Kernel(_) => {}
        }
    }
}

#[derive(Debug)]
struct State<T> {
    /// The descriptor counts these events.
    queued: VecDeque<(Element, T)>,
    known: HashMap<Element, Known>,
}

/// An element that events may be about.
#[derive(Debug, Default)]
struct Known {
    /// Events that were read and are held as a [`Got`].
    held: u32,
    /// Events that were read and deferred: to be acknowledged by their count.
    deferred: u32,
    retiring: bool,
}

impl<T> EventQueue<T> {
    /// A queue with a descriptor of its own.
    ///
    /// # Errors
    /// [`Error::Io`] when the system has no descriptor left.
    pub fn new() -> Result<Self, Error> {
        let fd = EventFd::new().map_err(|error| Error::io("make an event descriptor", error))?;
        Self::of(Source::Own(fd), ROOM)
    }

    /// A queue whose events ring the bell of a sleeping thread; other sources may ring the same bell.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn ringing(bell: Arc<Bell>) -> Result<Self, Error> {
        Self::of(Source::Bell(bell), 1)
    }

    fn of(source: Source, room: usize) -> Result<Self, Error> {
        let mut queued = VecDeque::new();
        room_in_queue(&mut queued, room)?;
        Ok(Self {
            source,
            kernel: None,
            state: Mutex::new(State {
                queued,
                known: HashMap::new(),
            }),
            count: AtomicUsize::new(0),
            waiters: Waiters::default(),
            acknowledged: Condvar::new(),
            concerned: OnceLock::new(),
        })
    }

    /// A queue of events that the kernel holds; `event` converts them.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn of_kernel(
        source: Arc<dyn KernelEvents>,
        event: fn(EventType) -> T,
    ) -> Result<Self, Error> {
        Ok(Self {
            kernel: Some(event),
            ..Self::of(Source::Kernel(source), 0)?
        })
    }

    /// The kernel's event source, if the kernel holds the events.
    pub fn kernel_source(&self) -> Option<&dyn KernelEvents> {
        match &self.source {
            Source::Kernel(source) => Some(&**source),
            Source::Own(_) | Source::Bell(_) => None,
        }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        // Every change of the state is complete, even if a thread panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts events about `element` from now on, until it is retired.
    ///
    /// # Errors
    /// There is not enough memory to register it.
    pub fn admit(&self, element: Element) -> Result<(), Error> {
        let mut state = self.state();
        room_in(&mut state.known)?;
        state.known.entry(element).or_default();
        Ok(())
    }

    /// Whether events about `element` are accepted.
    pub fn has(&self, element: Element) -> bool {
        let known = self.state().known.get(&element).map(|known| known.retiring);
        known == Some(false)
    }

    /// Queues an event; `false`: the element was not admitted or was retired, and the event is dropped. It is
    /// dropped, too, if there is no memory for it, as the kernel does (`ib_uverbs_async_handler`). May be called
    /// within a section.
    pub fn push(&self, element: Element, event: T) -> bool {
        let mut state = self.state();
        let known = state.known.get(&element);
        let taken =
            known.is_some_and(|known| !known.retiring) && state.queued.try_reserve(1).is_ok();
        if taken {
            state.queued.push_back((element, event));
            self.note(&state);
            self.source.add();
        }
        drop(state);
        if let (true, Some(mailboxes)) = (taken, self.concerned.get()) {
            mailboxes.wake(element);
        }
        taken
    }

    /// Wakes the owners of these mailboxes for events that are pushed from now on. `false`: the kernel holds
    /// the events, and a thread has to wait for the [descriptor](Self::fd) on behalf of the mailboxes.
    pub fn wakes(&self, mailboxes: &Arc<Mailboxes>) -> bool {
        self.concerned.get_or_init(|| mailboxes.clone());
        !self.is_of_kernel()
    }

    fn is_of_kernel(&self) -> bool {
        match &self.source {
            Source::Own(_) | Source::Bell(_) => false,
            Source::Kernel(_) => true,
        }
    }

    fn note(&self, state: &State<T>) {
        // Release: pairs with the Acquire in `try_get`. A thread that is told of an event, by the descriptor,
        // a bell or another thread, sees it counted.
        self.count.store(state.queued.len(), Ordering::Release);
    }

    fn try_get(&self) -> Result<Option<(Element, T)>, Error> {
        // Acquire: pairs with the Release in `note`.
        if self.count.load(Ordering::Acquire) == 0 && !self.is_of_kernel() {
            return Ok(None);
        }
        let mut state = self.state();
        if let (Source::Kernel(source), Some(event)) = (&self.source, self.kernel) {
            return state.read(&**source, event);
        }
        let Some((element, event)) = state.queued.pop_front() else {
            return Ok(None);
        };
        self.note(&state);
        self.source.take();
        if let Some(known) = state.known.get_mut(&element) {
            known.held += 1;
        }
        Ok(Some((element, event)))
    }

    /// Takes the oldest event; `None` if there is none. Never blocks.
    pub fn get_now(self: &Arc<Self>) -> Result<Option<Got<T>>, Error> {
        let got = self.try_get()?;
        Ok(got.map(|(element, event)| Got {
            queue: self.clone(),
            element,
            event,
            life: Life::current(),
        }))
    }

    /// Takes the oldest event. If there is none it blocks, unless the descriptor is non-blocking, until a signal
    /// or [`waiters`](Self::waiters) ends that. Before each sleep it calls `idle`, which may return a bound for
    /// the sleep.
    pub fn get(self: &Arc<Self>, idle: impl Fn() -> Option<Duration>) -> Result<Got<T>, Error> {
        let failed = |error| Error::io("wait for an event", error);
        loop {
            if let Some(got) = self.get_now()? {
                return Ok(got);
            }
            let bound = idle();
            let fd = self.source.fd();
            if !fd::is_nonblocking(fd).map_err(failed)? {
                self.waiters.sleep(&[fd], bound, None)?;
            } else if !fd::wait(fd, Some(Duration::ZERO)).map_err(failed)? {
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

    /// Acknowledges `count` deferred events of an element, or none if there are fewer.
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

    /// Removes an element: drops its queued events, accepts no more, and waits until all events that were
    /// read are acknowledged. Must not be called under any lock or within a section.
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
        self.note(&state);
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

    /// Sets whether [`get`](Self::get) returns [`Error::WouldBlock`] instead of blocking.
    ///
    /// # Errors
    /// [`Error::Io`] when the system call fails.
    pub fn set_nonblocking(&self, nonblocking: bool) -> Result<(), Error> {
        fd::set_nonblocking(self.source.fd(), nonblocking)
            .map_err(|error| Error::io("change an event descriptor's flags", error))
    }

    /// The threads in [`get`](Self::get).
    pub fn waiters(&self) -> &Waiters {
        &self.waiters
    }

    /// The descriptor: readable while an event is queued.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.source.fd()
    }
}

impl<T> State<T> {
    /// Reads the kernel's oldest event about a registered element that is not retiring. It is called under
    /// the lock, so that no other thread reads the event between the check and the read.
    fn read(
        &mut self,
        source: &dyn KernelEvents,
        event: fn(EventType) -> T,
    ) -> Result<Option<(Element, T)>, Error> {
        let failed = |error| Error::io("read an event", error);
        while fd::wait(source.fd(), Some(Duration::ZERO)).map_err(failed)? {
            let (element, what) = match source.read() {
                // The program has read the descriptor against its documentation.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
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

/// An event that was read. Dropping it acknowledges the event.
#[derive(Debug)]
pub struct Got<T> {
    queue: Arc<EventQueue<T>>,
    /// The element that the event is about.
    pub element: Element,
    /// What happened.
    pub event: T,
    /// Of the process that took it.
    life: Life,
}

impl<T> Got<T> {
    /// Defers the acknowledgement to [`EventQueue::ack_deferred`].
    pub fn defer(self) {
        // Dropping `self` decrements `held`.
        self.queue.ack(self.element, |known| known.deferred += 1);
    }
}

impl<T> Drop for Got<T> {
    fn drop(&mut self) {
        // A child of fork leaves what belongs to its parent as it is.
        if !self.life.is_current() {
            return;
        }
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
        queue.admit(A).unwrap();
        queue.admit(B).unwrap();
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
        queue.admit(B).unwrap();
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

    /// A program that reads the descriptor harms only itself.
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
