//! Delivery of asynchronous events to links.
//!
//! A context has one queue of asynchronous events, and any number of links. Any link that checks for
//! events takes all that are queued, acknowledges each, and only then delivers it to the links that it
//! concerns.

use super::event_hook::EventHook;
use crate::device::Device;
use crate::error::Error;
use crate::event::{AsyncEvent, AsyncQueue, Bell, Element, EventType, Mailboxes, Watcher};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An asynchronous event that was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// The event's type, and the element that it concerns.
    Known(EventType, Element),
    /// An event that this version does not know, by its number (`ibv_event_type`).
    Unknown(u32),
}

/// Links that wait for events of one context.
#[derive(Debug, Default)]
pub(crate) struct Dispatcher {
    mailboxes: Arc<Mailboxes>,
    /// Events that concern no link.
    unclaimed: EventHook<DeviceEvent>,
    /// Takes events from the kernel while links sleep.
    watcher: Mutex<Option<Watcher>>,
}

/// A context's event queue, as a source for the watcher.
struct Queue(Arc<AsyncQueue>);

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

impl Dispatcher {
    fn watcher(&self) -> MutexGuard<'_, Option<Watcher>> {
        // A panic never leaves it half changed.
        self.watcher.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a mailbox for a link of this device, and returns its identifier.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn join(&self) -> Result<u64, Error> {
        self.mailboxes.join(None)
    }

    /// Adds a mailbox, with a bell that rings when an event is delivered to it, whether or not any link
    /// is polled.
    ///
    /// # Errors
    /// [`Error::Io`] when it takes a thread, and the system has none.
    pub fn join_asleep(self: &Arc<Self>, device: &Device, bell: Arc<Bell>) -> Result<u64, Error> {
        let mut watcher = self.watcher();
        if !device.events.wakes(&self.mailboxes) && watcher.is_none() {
            let (queue, dispatcher) = (device.events.clone(), Arc::downgrade(self));
            let source = Queue(queue.clone());
            *watcher = Some(Watcher::start("bellwire-events", source, move || {
                dispatcher
                    .upgrade()
                    .is_some_and(|dispatcher| dispatcher.fetch(&queue))
            })?);
        }
        self.mailboxes.join(Some(bell))
    }

    /// Sets the elements whose events the mailbox receives from here on, instead of those before.
    ///
    /// # Errors
    /// There is not enough memory; the mailbox receives none.
    pub fn watch(&self, id: u64, elements: &[Element]) -> Result<(), Error> {
        self.mailboxes.watch(id, elements)
    }

    /// Makes room in a mailbox for the events of this many links.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn make_room(&self, id: u64, links: usize) -> Result<(), Error> {
        self.mailboxes.make_room(id, links)
    }

    /// Adds an element whose events the mailbox receives from here on.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn watch_also(&self, id: u64, element: Element) -> Result<(), Error> {
        self.mailboxes.watch_also(id, element)
    }

    /// Ends the delivery of an element's events to the mailbox, those before included.
    pub fn unwatch(&self, id: u64, element: Element) {
        self.mailboxes.unwatch(id, element);
    }

    /// Removes the mailbox.
    pub fn leave(&self, id: u64) {
        let mut watcher = self.watcher();
        let some_sleep = self.mailboxes.leave(id);
        let over = watcher.take_if(|_| !some_sleep);
        drop(watcher);
        // Waits for the event that the thread is handling.
        drop(over);
    }

    /// Takes the device's events for all links, and returns those for this mailbox. If the system cannot
    /// return the device's events, events that other links took are still returned.
    pub fn collect(&self, device: &Device, id: u64) -> Vec<(EventType, Element)> {
        while let Ok(Some(event)) = next(&device.events) {
            self.deliver(event, Some(id));
        }
        self.unclaimed.deliver();
        self.mailboxes.collect(id)
    }

    /// Takes the device's events for the links that sleep. Returns `false` if the system cannot return
    /// them: each link then has to check for itself.
    fn fetch(&self, queue: &Arc<AsyncQueue>) -> bool {
        let mut all_claimed = true;
        let answer = loop {
            match next(queue) {
                Ok(Some(event)) => all_claimed &= self.deliver(event, None),
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        if !all_claimed {
            // The hook is called by links that poll.
            self.mailboxes.wake_for_others();
        }
        answer
    }

    /// Puts an event into the mailboxes of the links that it concerns. Returns `false` if there are none.
    fn deliver(&self, event: DeviceEvent, by: Option<u64>) -> bool {
        let claimed = match event {
            DeviceEvent::Known(what, element) => self.mailboxes.put(what, element, by),
            DeviceEvent::Unknown(_) => false,
        };
        if !claimed {
            self.unclaimed.push(event);
        }
        claimed
    }
}

/// The oldest event of a context, acknowledged.
fn next(queue: &Arc<AsyncQueue>) -> Result<Option<DeviceEvent>, Error> {
    match AsyncEvent::next(queue) {
        Ok(event) => Ok(event.map(acknowledged)),
        Err(Error::UnknownEvent { number }) => Ok(Some(DeviceEvent::Unknown(number))),
        Err(error) => Err(error),
    }
}

/// Acknowledges an event, and returns what it says: destroying the element does not have to wait for us.
fn acknowledged(event: AsyncEvent) -> DeviceEvent {
    let (what, element) = (event.event_type(), event.element());
    event.ack();
    DeviceEvent::Known(what, element)
}

/// Asynchronous events of a context with links.
///
/// Links take all events of their context, also events that concern other objects. A program that uses a
/// context for more than links sets a hook for the other events, or takes the events itself and passes them
/// to [`dispatch`](Self::dispatch).
impl Device {
    /// Sets the function that receives the events that concern no link of this context: each once, in
    /// order. It is called from polls of links, by one thread at a time, and never within another call of
    /// itself; of the events that came before a hook was set, the last 1024 are delivered too. It may poll links,
    /// and set another hook.
    pub fn set_event_hook(&self, hook: impl FnMut(DeviceEvent) + Send + 'static) {
        self.links.unclaimed.set(hook);
        self.links.mailboxes.look_at_all();
    }

    /// Acknowledges an event, and delivers it to the links that it concerns, or else to the
    /// [hook](Self::set_event_hook).
    pub fn dispatch(&self, event: AsyncEvent) {
        self.links.deliver(acknowledged(event), None);
        self.links.unclaimed.deliver();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn those_whom_it_concerns_are_notified_and_the_hook_of_the_rest() {
        let device = Device::soft(Default::default());
        let cq = device.create_cq(4).unwrap();
        let dispatcher = Arc::new(Dispatcher::default());
        let (a, b) = (dispatcher.join().unwrap(), dispatcher.join().unwrap());
        dispatcher
            .watch(a, &[Element::Cq(cq.cqn()), Element::Port(1)])
            .unwrap();
        dispatcher.watch(b, &[Element::Port(1)]).unwrap();
        let (send, delivered) = mpsc::channel();
        dispatcher
            .unclaimed
            .set(move |event| send.send(event).unwrap());

        let of_cq = (EventType::CqErr, Element::Cq(cq.cqn()));
        let of_port = (EventType::PortErr, Element::Port(1));
        let of_device = (EventType::DeviceFatal, Element::Device);
        for (what, element) in [of_cq, of_port, of_device] {
            device.as_soft().unwrap().raise(what, element).unwrap();
        }
        assert_eq!(dispatcher.collect(&device, b), [of_port]);
        assert_eq!(dispatcher.collect(&device, a), [of_cq, of_port]);
        assert_eq!(dispatcher.collect(&device, a), []);
        let delivered: Vec<_> = delivered.try_iter().collect();
        assert_eq!(delivered, [DeviceEvent::Known(of_device.0, of_device.1)]);

        // All events were acknowledged: otherwise this would block.
        drop(cq);
        dispatcher.leave(b);
        device
            .as_soft()
            .unwrap()
            .raise(of_port.0, of_port.1)
            .unwrap();
        assert_eq!(dispatcher.collect(&device, b), []);
        assert_eq!(dispatcher.collect(&device, a), [of_port]);
    }
}
