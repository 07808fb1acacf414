//! Parsers of a peer's bytes, for the fuzz targets.

pub use crate::fabric::fuzzing::{hello, wire};
