//! Sets: many links on shared completion queues. Whatever happens to one link, or to all of them, each
//! request is reported once, and to the program by the handle of its own link.

mod cancel;
mod fair;
mod faults;
mod grant;
mod handles;
mod replaced;
mod shared;
mod watched;
pub mod world;
