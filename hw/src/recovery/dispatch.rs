//! Who is told of an asynchronous event.
//!
//! A context has one queue of events, and any number of links. Whichever link looks takes what is
//! there, acknowledges it, and only then hands it to those whom it concerns.

use super::wake::Bell;
use crate::device::Device;
use crate::error::Error;
use crate::event::{AsyncEvent, Element, EventType};
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An asynchronous event that was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// What happened, and to what.
    Known(EventType, Element),
    /// One that this version does not know, by its number (`ibv_event_type`).
    Unknown(u32),
}

type Hook = Box<dyn FnMut(DeviceEvent) + Send>;

/// Links that wait for events of one context.
#[derive(Default)]
pub(crate) struct Dispatcher {
    next: AtomicU64,
    state: Mutex<State>,
    /// Taken out while it is called.
    hook: Mutex<Option<Hook>>,
}

#[derive(Default)]
struct State {
    boxes: HashMap<u64, Mailbox>,
    /// Events that concern no link.
    unclaimed: Vec<DeviceEvent>,
}

/// What one link wants to know, and what it has not looked at yet.
#[derive(Default)]
struct Mailbox {
    elements: Vec<Element>,
    events: Vec<(EventType, Element)>,
    /// Of a link that sleeps: others may take what would have woken it.
    bell: Option<Arc<Bell>>,
}

impl fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let links = self.state().boxes.len();
        f.debug_struct("Dispatcher")
            .field("links", &links)
            .finish_non_exhaustive()
    }
}

impl Dispatcher {
    fn state(&self) -> MutexGuard<'_, State> {
        // Each change of the state is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new mailbox, and what rings when there is something in it.
    pub fn join(&self, bell: Option<Arc<Bell>>) -> u64 {
        // Relaxed: a number of its own for each.
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let mailbox = Mailbox {
            bell,
            ..Mailbox::default()
        };
        self.state().boxes.insert(id, mailbox);
        id
    }

    /// What a mailbox's link wants to know from here on, and nothing else any more.
    pub fn watch(&self, id: u64, elements: &[Element]) {
        if let Some(mailbox) = self.state().boxes.get_mut(&id) {
            mailbox.elements.clear();
            mailbox.elements.extend_from_slice(elements);
            mailbox.events.retain(|(_, of)| elements.contains(of));
        }
    }

    /// The mailbox goes.
    pub fn leave(&self, id: u64) {
        self.state().boxes.remove(&id);
    }

    /// Takes what the device has, for all, and what there is for this mailbox.
    ///
    /// # Errors
    /// [`Error::Io`] when the system cannot say.
    pub fn collect(&self, device: &Device, id: u64) -> Result<Vec<(EventType, Element)>, Error> {
        self.pump(device)?;
        let mut state = self.state();
        let mailbox = state.boxes.get_mut(&id);
        Ok(mailbox.map_or(Vec::new(), |mailbox| std::mem::take(&mut mailbox.events)))
    }

    /// Takes what the device has.
    fn pump(&self, device: &Device) -> Result<(), Error> {
        loop {
            let event = match device.next_async_event() {
                Ok(Some(event)) => acknowledged(event),
                Ok(None) => break,
                Err(Error::UnknownEvent { number }) => DeviceEvent::Unknown(number),
                Err(error) => return Err(error),
            };
            self.deliver(event);
        }
        self.tell_unclaimed();
        Ok(())
    }

    /// Puts an event into the mailboxes of those whom it concerns.
    fn deliver(&self, event: DeviceEvent) {
        let mut state = self.state();
        let mut claimed = false;
        if let DeviceEvent::Known(what, element) = event {
            for mailbox in state.boxes.values_mut() {
                if mailbox.elements.contains(&element) {
                    mailbox.events.push((what, element));
                    mailbox.bell.iter().for_each(|bell| bell.ring());
                    claimed = true;
                }
            }
        }
        if !claimed {
            state.unclaimed.push(event);
        }
    }

    /// Calls the hook with what concerns no link. Under no lock: it may poll a link.
    fn tell_unclaimed(&self) {
        let lock = || self.hook.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let events = std::mem::take(&mut self.state().unclaimed);
            if events.is_empty() {
                return;
            }
            let Some(mut hook) = lock().take() else {
                return;
            };
            events.into_iter().for_each(&mut hook);
            // Not over one that the hook itself has set.
            lock().get_or_insert(hook);
        }
    }
}

/// What an event says, after it was acknowledged: whoever destroys what it names does not wait for
/// us.
fn acknowledged(event: AsyncEvent) -> DeviceEvent {
    let (what, element) = (event.event_type(), event.element());
    event.ack();
    DeviceEvent::Known(what, element)
}

/// Asynchronous events of a context with links.
///
/// Links take the events of their context, those of others on it too. A program that has more than
/// links on a context sets a hook for the rest, or gets the events itself and gives them to
/// [`dispatch`](Self::dispatch).
impl Device {
    /// Whom to tell of events that concern no link of this context. Called by whoever polls a link.
    pub fn set_event_hook(&self, hook: impl FnMut(DeviceEvent) + Send + 'static) {
        let mut place = self
            .links
            .hook
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *place = Some(Box::new(hook));
    }

    /// Acknowledges an event, and tells the links whom it concerns; others go to the
    /// [hook](Self::set_event_hook).
    pub fn dispatch(&self, event: AsyncEvent) {
        self.links.deliver(acknowledged(event));
        self.links.tell_unclaimed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn those_are_told_whom_it_concerns_and_the_hook_of_the_rest() {
        let device = Device::soft(Default::default());
        let cq = device.create_cq(4).unwrap();
        let dispatcher = Arc::new(Dispatcher::default());
        let (a, b) = (dispatcher.join(None), dispatcher.join(None));
        dispatcher.watch(a, &[Element::Cq(cq.cqn()), Element::Port(1)]);
        dispatcher.watch(b, &[Element::Port(1)]);
        let (send, told) = mpsc::channel();
        *dispatcher.hook.lock().unwrap() = Some(Box::new(move |event| send.send(event).unwrap()));

        let of_cq = (EventType::CqErr, Element::Cq(cq.cqn()));
        let of_port = (EventType::PortErr, Element::Port(1));
        let of_device = (EventType::DeviceFatal, Element::Device);
        for (what, element) in [of_cq, of_port, of_device] {
            device.raise(what, element).unwrap();
        }
        assert_eq!(dispatcher.collect(&device, b).unwrap(), [of_port]);
        assert_eq!(dispatcher.collect(&device, a).unwrap(), [of_cq, of_port]);
        assert_eq!(dispatcher.collect(&device, a).unwrap(), []);
        let told: Vec<_> = told.try_iter().collect();
        assert_eq!(told, [DeviceEvent::Known(of_device.0, of_device.1)]);

        // All were acknowledged: this would wait else.
        drop(cq);
        dispatcher.leave(b);
        device.raise(of_port.0, of_port.1).unwrap();
        assert_eq!(dispatcher.collect(&device, b).unwrap(), []);
        assert_eq!(dispatcher.collect(&device, a).unwrap(), [of_port]);
    }
}
