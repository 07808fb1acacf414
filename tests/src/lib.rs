//! What the tests across crates share. The tests themselves are in `tests/tests`.

pub mod cable;
pub mod child;
pub mod ends;
pub mod events;
pub mod excused;
pub mod fixture;
pub mod leftovers;
pub mod library;
pub mod links;
pub mod mute;
pub mod parent;
pub mod patience;
pub mod readiness;
pub mod refuse;
pub mod replay;
pub mod stand_in;
pub mod vectors;
pub mod witness;
