//! Counts the users of a handle, so that it is not destroyed while it is in use.

use crate::code::BW_EBUSY;
use crate::failure::Failure;
use std::sync::Arc;

/// Part of a handle that other objects use.
#[derive(Debug, Default)]
pub(crate) struct Used(Arc<()>);

/// Part of a handle that uses another one, until it is dropped.
#[derive(Debug)]
pub(crate) struct User {
    _of: Arc<()>,
}

impl Used {
    pub fn by(&self) -> User {
        User {
            _of: self.0.clone(),
        }
    }

    /// Fails while there are users.
    pub fn check(&mut self, what: &str, users: &str) -> Result<(), Failure> {
        // `get_mut` acquires what the users did before they were dropped, on any thread.
        match Arc::get_mut(&mut self.0) {
            Some(()) => Ok(()),
            None => Err(Failure::new(
                BW_EBUSY,
                format!("the {what} still has {users}: destroy them first"),
            )),
        }
    }
}
