//! What the tests across crates share. The tests themselves are in `tests/tests`.

pub mod events;
pub mod fixture;
pub mod links;
pub mod readiness;
pub mod replay;
pub mod stand_in;
pub mod vectors;
