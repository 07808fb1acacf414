//! What many threads do on one device, and by what they are notified: these run under ThreadSanitizer, too,
//! for which all that is in this program is compiled once more.

mod comp_channels;
mod events;
mod exclusive;
mod fabric_results;
mod fabric_turns;
mod threads;
