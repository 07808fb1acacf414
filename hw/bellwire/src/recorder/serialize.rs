//! How fields of a record are serialized that serde has no form for.

use super::note::micros;
use serde::Serializer;
use std::fmt::Display;
use std::time::SystemTime;

/// As its text.
pub(super) fn as_text<T: Display, S: Serializer>(of: &T, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(of)
}

/// [`as_text`] for optional values.
pub(super) fn as_text_if<T: Display, S: Serializer>(
    of: &Option<T>,
    to: S,
) -> Result<S::Ok, S::Error> {
    match of {
        Some(of) => to.collect_str(of),
        None => to.serialize_none(),
    }
}

/// Microseconds since 1970.
pub(super) fn as_micros<S: Serializer>(at: &SystemTime, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(micros(at))
}
