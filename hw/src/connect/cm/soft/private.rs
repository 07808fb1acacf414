//! Private data: what programs bring to each other with the messages.

use super::super::{PortSpace, PrivateData};
use crate::error::Error;
use arrayvec::ArrayVec;

/// Bytes that come with a message, at the most as many as any message carries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Private(ArrayVec<u8, { Private::MAX }>);

impl Private {
    /// Of the longest.
    pub const MAX: usize = 196;

    /// `None`: they are too many.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        ArrayVec::try_from(bytes).ok().map(Self)
    }

    /// What the program gives along.
    ///
    /// # Errors
    /// [`Error::PrivateData`]; the caller has looked already.
    pub fn given(bytes: &[u8]) -> Result<Self, Error> {
        Self::new(bytes).ok_or(Error::PrivateData {
            given: bytes.len(),
            max: Self::MAX,
        })
    }

    /// As it is received: as long as the message has room for, as on a wire; filled up with zeros
    /// (rdma_get_cm_event(3), `private_data_len`).
    pub fn received(&self, of: PrivateData, space: PortSpace) -> Vec<u8> {
        let mut bytes = self.0.to_vec();
        bytes.resize(space.max_private_data(of), 0);
        bytes
    }
}

impl AsRef<[u8]> for Private {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
