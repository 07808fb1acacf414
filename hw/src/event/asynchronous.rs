//! Asynchronous events: what no completion tells.

use super::element::Element;
use super::queue::Got;
use crate::device::Device;
use crate::error::Error;
use bellwire_core::event::EventType;
use std::os::fd::BorrowedFd;

/// An asynchronous event that was got (`ibv_async_event`). Acknowledged by [`ack`](Self::ack) or
/// when it is dropped: destroying what it names waits for that.
#[derive(Debug)]
#[must_use = "dropping it acknowledges it"]
pub struct AsyncEvent(Got<EventType>);

impl AsyncEvent {
    /// What it is about.
    pub fn element(&self) -> Element {
        self.0.element
    }

    /// What happened.
    pub fn event_type(&self) -> EventType {
        self.0.event
    }

    /// Acknowledges it (ibv_ack_async_event(3)), as dropping it does.
    pub fn ack(self) {}
}

/// Asynchronous events. Those about a queue come to the context that it was created in, those about
/// a port or the device to every open context. Any thread may get them; each is got once.
impl Device {
    /// Takes the oldest event of this context (ibv_get_async_event(3)). When there is none it blocks,
    /// unless [`set_async_nonblocking`](Self::set_async_nonblocking) said otherwise.
    ///
    /// ```
    /// use bellwire::Device;
    /// use bellwire::event::{Element, EventType};
    ///
    /// let device = Device::soft(Default::default());
    /// device.raise(EventType::PortErr, Element::Port(1))?;
    /// let event = device.get_async_event()?;
    /// assert_eq!(event.event_type(), EventType::PortErr);
    /// assert_eq!(event.element(), Element::Port(1));
    /// event.ack();
    /// # Ok::<(), bellwire::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::WouldBlock`] when there is none and the descriptor does not block, [`Error::Io`]
    /// when it cannot be waited for; [`Error::UnknownEvent`] for one that a newer libibverbs has.
    pub fn get_async_event(&self) -> Result<AsyncEvent, Error> {
        self.events.get(|| self.idle()).map(AsyncEvent)
    }

    /// Takes the oldest event of this context; `None` when there is none. Never blocks.
    pub(crate) fn next_async_event(&self) -> Result<Option<AsyncEvent>, Error> {
        Ok(self.events.get_now()?.map(AsyncEvent))
    }

    /// The descriptor of this context's events (`ibv_context.async_fd`): readable while one is
    /// queued. For poll and epoll, not to be read.
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

    /// Whether [`get_async_event`](Self::get_async_event) answers [`Error::WouldBlock`] where it
    /// would block: the descriptor's flag O_NONBLOCK, which the program may set itself as well.
    ///
    /// ```
    /// let device = bellwire::Device::soft(Default::default());
    /// device.set_async_nonblocking(true)?;
    /// assert!(matches!(device.get_async_event(), Err(bellwire::Error::WouldBlock)));
    /// # Ok::<(), bellwire::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Io`] when the system refuses.
    pub fn set_async_nonblocking(&self, nonblocking: bool) -> Result<(), Error> {
        self.events.set_nonblocking(nonblocking)
    }

    /// Fault injection, on the software device only: raises an event that nothing caused. Only the
    /// event: the thing that it names goes on as before.
    ///
    /// It reaches the context that has the element, which may be another than this one; every open
    /// context where it is a port or the device. The software device has no work queues apart from
    /// its queues' own: a [`Element::Wq`] may have any number, and is this context's.
    ///
    /// # Errors
    /// [`Error::WrongElement`] when the event is not about things of this kind,
    /// [`Error::UnknownElement`] when there is no such thing on the device, [`Error::SoftOnly`] on
    /// another device.
    pub fn raise(&self, event: EventType, element: Element) -> Result<(), Error> {
        let hca = self.hca.soft("raising events")?;
        if element.kind() != event.element_kind() {
            return Err(Error::WrongElement { event, element });
        }
        let taken = if let Element::Wq(_) = element {
            self.events.admit(element);
            self.events.push(element, event)
        } else {
            hca.broadcast(element, event)
        };
        taken.then_some(()).ok_or(Error::UnknownElement { element })
    }
}
