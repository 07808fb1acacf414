//! Who uses a handle, so that it is not destroyed under them.

use crate::code::BW_EBUSY;
use crate::failure::Failure;
use std::sync::Arc;

/// Within a handle that others use.
#[derive(Debug, Default)]
pub(crate) struct Used(Arc<()>);

/// Within a handle that uses another: goes with it.
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
        // Acquires what users did before they went, on whichever thread.
        match Arc::get_mut(&mut self.0) {
            Some(()) => Ok(()),
            None => Err(Failure::new(
                BW_EBUSY,
                format!("the {what} still has {users}: destroy them first"),
            )),
        }
    }
}
