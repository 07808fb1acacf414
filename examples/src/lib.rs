//! What the example programs share. Start reading at `hello/main.rs`, which needs none of it.

mod cores;
mod pair;
mod progress;
mod size;
mod wait;

pub use cores::{allowed, pick, pin};
pub use pair::{ALL_ACCESS, End, connected};
pub use progress::Progress;
pub use size::{Size, parse_size};
pub use wait::{Alarm, PeerGone, Wait};
