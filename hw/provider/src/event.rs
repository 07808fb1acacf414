//! Queues of events, and the descriptors to wait on for them.

mod bell;
mod context;
mod element;
mod epoll;
mod fd;
mod mailboxes;
mod queue;
mod timer;
mod waiters;
mod watcher;

pub use bell::Bell;
pub use bellwire_core::event::{ElementKind, EventType};
pub use context::{AsyncQueue, Contexts};
pub use element::Element;
pub use epoll::epoll_wait;
pub use fd::{set_nonblocking, wait};
pub use mailboxes::Mailboxes;
pub use queue::{EventQueue, Got, KernelEvents};
pub use timer::Timer;
pub use waiters::Waiters;
pub use watcher::Watcher;
