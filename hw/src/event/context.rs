//! The open contexts of a device, each with its own queue of asynchronous events.

use super::element::Element;
use super::queue::EventQueue;
use crate::error::Error;
use bellwire_core::event::EventType;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The asynchronous events of one open context.
pub(crate) type AsyncQueue = EventQueue<EventType>;

/// A device's open contexts. The lock is taken before those of their queues, and is otherwise a leaf
/// too.
#[derive(Debug, Default)]
pub(crate) struct Contexts(Mutex<Vec<Weak<AsyncQueue>>>);

impl Contexts {
    /// A new context's queue, of a device with as many ports.
    pub fn open(&self, ports: u8) -> Result<Arc<AsyncQueue>, Error> {
        let queue = Arc::new(AsyncQueue::new()?);
        queue.admit(Element::Device);
        (1..=ports).for_each(|port| queue.admit(Element::Port(port)));
        let mut contexts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        contexts.retain(|context| context.strong_count() != 0);
        contexts.push(Arc::downgrade(&queue));
        Ok(queue)
    }

    /// Gives an event to every open context that has the element: all of them have the device and its
    /// ports, one has any other. `false`: none has it.
    pub fn broadcast(&self, element: Element, event: EventType) -> bool {
        let contexts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let open = contexts.iter().filter_map(Weak::upgrade);
        open.fold(false, |taken, context| context.push(element, event) | taken)
    }
}
