//! The open contexts of a device, each with its own queue of asynchronous events.

use super::element::Element;
use super::queue::EventQueue;
use crate::error::Error;
use crate::pinned::push;
use bellwire_core::event::EventType;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The queue of asynchronous events of one open context.
pub type AsyncQueue = EventQueue<EventType>;

/// The open contexts of a device. Its lock is taken before the locks of their queues, and before no other
/// lock.
#[derive(Debug, Default)]
pub struct Contexts(Mutex<Vec<Weak<AsyncQueue>>>);

impl Contexts {
    /// Creates the event queue of a new context, for a device with this number of ports.
    pub fn open(&self, ports: u8) -> Result<Arc<AsyncQueue>, Error> {
        let queue = Arc::new(AsyncQueue::new()?);
        queue.admit(Element::Device)?;
        (1..=ports).try_for_each(|port| queue.admit(Element::Port(port)))?;
        let mut contexts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        contexts.retain(|context| context.strong_count() != 0);
        push(&mut contexts, Arc::downgrade(&queue))?;
        Ok(queue)
    }

    /// Whether an open context has the element.
    pub fn has(&self, element: Element) -> bool {
        let contexts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut open = contexts.iter().filter_map(Weak::upgrade);
        open.any(|context| context.has(element))
    }

    /// Delivers an event to every open context that has the element: every context has the device and its
    /// ports, and each other element belongs to one context. `false`: no context has the element.
    pub fn broadcast(&self, element: Element, event: EventType) -> bool {
        let contexts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let open = contexts.iter().filter_map(Weak::upgrade);
        open.fold(false, |taken, context| context.push(element, event) | taken)
    }
}
