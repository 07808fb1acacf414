//! Waiting for asynchronous events, and seeing that there are none.

use crate::fixture::{Quiet, until};
use crate::readiness::readable;
use bellwire::Device;
use bellwire::event::{Element, EventType};
use std::time::Duration;

/// A context's next asynchronous event, acknowledged.
///
/// # Panics
/// When none comes before the deadline.
pub fn event(context: &Device) -> (EventType, Element) {
    until("an event", || {
        // Something may wait for its time.
        context.progress();
        readable(context.async_fd(), Duration::from_millis(1))
    });
    let event = context.get_async_event().expect("it is there");
    let found = (event.event_type(), event.element());
    event.ack();
    found
}

/// Asserts that a context has no further event.
///
/// # Panics
/// When it has one.
pub fn no_event(context: &Device, quiet: Quiet) {
    let more = readable(context.async_fd(), quiet.0);
    assert!(!more, "an event too many: {:?}", event(context));
}
