//! Asynchronous events: what no completion reports.

use super::{AsyncQueue, Element, Got, Waiters};
use crate::device::Device;
use crate::error::Error;
use bellwire_core::event::EventType;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// An asynchronous event that was got (`ibv_async_event`). It is acknowledged by [`ack`](Self::ack) or when
/// it is dropped; destroying the object that it names waits for that.
#[derive(Debug)]
#[must_use = "dropping it acknowledges it"]
pub struct AsyncEvent(Got<EventType>);

impl AsyncEvent {
    /// The element that the event concerns.
    pub fn element(&self) -> Element {
        self.0.element
    }

    /// The type of the event.
    pub fn event_type(&self) -> EventType {
        self.0.event
    }

    /// Acknowledges the event (ibv_ack_async_event(3)), as dropping it does.
    pub fn ack(self) {}

    /// Gets the oldest event of a context; `None` if there is none. Never blocks.
    pub(crate) fn next(queue: &Arc<AsyncQueue>) -> Result<Option<Self>, Error> {
        Ok(queue.get_now()?.map(Self))
    }
}

/// Asynchronous events. Those of a queue are delivered to the context in which it was created, those of a
/// port or the device to every open context. Any thread may get them; each event is got once.
impl Device {
    /// Gets the oldest event of this context (ibv_get_async_event(3)). If there is none, it blocks, unless
    /// the context is [nonblocking](Self::set_async_nonblocking).
    ///
    /// ```
    /// use bellwire::Device;
    /// use bellwire::event::{Element, EventType};
    ///
    /// let device = Device::soft(Default::default());
    /// let soft = device.as_soft().expect("it is one");
    /// soft.raise(EventType::PortErr, Element::Port(1))?;
    /// let event = device.get_async_event()?;
    /// assert_eq!(event.event_type(), EventType::PortErr);
    /// assert_eq!(event.element(), Element::Port(1));
    /// event.ack();
    /// # Ok::<(), bellwire::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::WouldBlock`]: there is no event, and the descriptor is nonblocking; [`Error::Interrupted`]: a signal
    /// handler has interrupted the wait; [`Error::Woken`] by [`async_waiters`](Self::async_waiters); [`Error::Io`]:
    /// waiting for an event failed; [`Error::UnknownEvent`]: the event is of a type that only a newer libibverbs has.
    pub fn get_async_event(&self) -> Result<AsyncEvent, Error> {
        self.events.get(|| self.idle()).map(AsyncEvent)
    }

    /// The threads that wait in [`get_async_event`](Self::get_async_event) for events of this context: another
    /// thread, or a signal handler, can end their waits.
    ///
    /// ```
    /// use bellwire::{Device, Error};
    ///
    /// let device = Device::soft(Default::default());
    /// std::thread::scope(|scope| {
    ///     let getter = scope.spawn(|| device.get_async_event());
    ///     device.async_waiters().wake();
    ///     assert!(matches!(getter.join().unwrap(), Err(Error::Woken)));
    /// });
    /// ```
    pub fn async_waiters(&self) -> &Waiters {
        self.events.waiters()
    }

    /// The descriptor of this context's asynchronous events (`ibv_context.async_fd`): readable while one is
    /// queued. For poll and epoll; it must not be read.
    ///
    /// ```
    /// use std::os::fd::AsRawFd;
    ///
    /// let device = bellwire::Device::open("soft")?;
    /// assert!(device.async_fd().as_raw_fd() >= 0);
    /// # Ok::<(), bellwire::Error>(())
    /// ```
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        self.events.fd()
    }

    /// Sets whether [`get_async_event`](Self::get_async_event) returns [`Error::WouldBlock`] where it would
    /// block: the descriptor's flag O_NONBLOCK, which the program may also set itself.
    ///
    /// ```
    /// let device = bellwire::Device::soft(Default::default());
    /// device.set_async_nonblocking(true)?;
    /// assert!(matches!(device.get_async_event(), Err(bellwire::Error::WouldBlock)));
    /// # Ok::<(), bellwire::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Io`]: the system refuses.
    pub fn set_async_nonblocking(&self, nonblocking: bool) -> Result<(), Error> {
        self.events.set_nonblocking(nonblocking)
    }
}
