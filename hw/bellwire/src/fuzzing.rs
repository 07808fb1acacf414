//! Parsers of a peer's bytes, for the fuzz targets.

pub use crate::connect::cm::{fuzz_message as cm_message, fuzz_private_data as private_data};
