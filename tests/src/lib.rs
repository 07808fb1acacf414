//! What the tests across crates share. The tests themselves are in `tests/tests`.

pub mod fixture;
pub mod replay;
pub mod vectors;
