//! What a program can sleep on: asynchronous events of a device, and completion channels.
//!
//! ```text
//!   device (any thread)                             program
//!   EventQueue::push ──► queue + eventfd ──► poll / epoll ──► get ──► AsyncEvent, CqEvent
//!                                                                       │ ack, or drop
//!   destroying the object waits for it ◄────────────────────────────────┘
//! ```
//!
//! Both have a descriptor that is readable while an event is queued, and may be put into poll and
//! epoll. It blocks unless it is told not to. It is not to be read: the `get` functions do.
//!
//! An event that was got is acknowledged once: by `ack`, or when it is dropped. Destroying what it
//! names waits for that, so that a number in somebody's hand is that of a thing that exists
//! (ibv_ack_async_event(3), ibv_ack_cq_events(3)). Who holds an event and destroys what it names, on
//! one thread, waits for ever.

mod asynchronous;
mod channel;
mod context;
mod element;
mod fd;
mod queue;

pub use asynchronous::AsyncEvent;
pub use bellwire_core::event::{ElementKind, EventType};
pub use channel::{CompChannel, CqEvent};
pub(crate) use context::{AsyncQueue, Contexts};
pub use element::Element;
#[cfg(feature = "cm")]
pub(crate) use fd::set_nonblocking;
pub(crate) use fd::wait;
pub(crate) use queue::EventQueue;
