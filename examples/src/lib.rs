//! What the example programs share. Start reading at `hello/main.rs`, which needs none of it.

mod cm;
mod cores;
pub mod echo;
mod exchange;
mod meet;
mod pair;
mod progress;
mod size;
mod thread;
mod wait;

pub use cm::{check, expect, route};
pub use cores::{allowed, pick, pin};
pub use exchange::UnixExchange;
pub use meet::{Left, Listener, Peer, PeerFailed};
pub use pair::{ALL_ACCESS, End, buffer};
pub use progress::Progress;
pub use size::{Size, parse_size};
pub use thread::start;
pub use wait::{Alarm, Gone, PeerGone, Wait};
