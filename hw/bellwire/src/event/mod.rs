//! Events that a program can sleep on: asynchronous events of a device, and completion channels.
//!
//! ```text
//!   device (any thread)                             program
//!   EventQueue::push ──► queue + eventfd ──► poll / epoll ──► get ──► AsyncEvent, CqEvent
//!                                                                       │ ack, or drop
//!   destroying the object waits for it ◄────────────────────────────────┘
//! ```
//!
//! Both have a descriptor that is readable while an event is queued, and can be used in poll and epoll. It
//! blocks unless it is set to be nonblocking. The program must not read it: the `get` functions do.
//!
//! A signal handler that runs on a thread that waits without a limit ends its wait with
//! [`Error::Interrupted`](crate::Error::Interrupted), whether or not it was installed with SA_RESTART, as poll(2) does.
//! A wait with a limit goes on for the time that is left. [`Waiters`] end the waits for an object from another thread,
//! or from a signal handler. This holds for each call of the library that waits, not only for events.
//!
//! An event that was got is acknowledged once: by `ack`, or when it is dropped. Destroying the object that it
//! names waits for that, so that the number in an event is always that of an existing object
//! (ibv_ack_async_event(3), ibv_ack_cq_events(3)). A thread that holds an event and destroys the object that
//! it names waits forever.

mod asynchronous;
mod channel;

pub use asynchronous::AsyncEvent;
pub(crate) use bellwire_provider::event::set_nonblocking;
pub(crate) use bellwire_provider::event::{
    AsyncQueue, Bell, EventQueue, Got, Mailboxes, Timer, Watcher,
};
pub use bellwire_provider::event::{Element, ElementKind, EventType, Waiters};
pub use channel::{CompChannel, CqEvent};
