//! Errors and causes for a library that is missing, or too old.

use crate::error::Error;
use bellwire_provider::source::Cause;
use bellwire_sys::{Missing, Unloaded};

/// The error of a call that needs the library, which is not loaded.
pub fn not_loaded(unloaded: &Unloaded) -> Error {
    Error::Library {
        reason: unloaded.to_string(),
    }
}

/// The reason why there are no devices without the library.
pub(super) fn cause(unloaded: &Unloaded) -> Cause {
    let reason = unloaded.to_string();
    match unloaded {
        Unloaded::NotBuilt => Cause::NotBuilt,
        Unloaded::NotFound { .. } => Cause::LibraryNotFound { reason },
        Unloaded::Refused { .. } => Cause::LibraryRefused { reason },
        Unloaded::TooOld { .. } => Cause::LibraryTooOld { reason },
    }
}

/// The error of a call that needs a function which the loaded library does not have.
pub fn missing(missing: Missing) -> Error {
    let Missing {
        symbol,
        library,
        since,
    } = missing;
    Error::LibraryTooOld {
        symbol,
        library,
        since,
    }
}
