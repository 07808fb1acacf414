//! Private data: the bytes that programs send with the messages.

use super::super::{PortSpace, PrivateData};
use crate::error::Error;
use arrayvec::ArrayVec;

/// Private data, at most as long as any message carries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Private(ArrayVec<u8, { Private::MAX }>);

impl Private {
    /// Longest private data of any message.
    pub const MAX: usize = 196;

    /// `None` if there are too many bytes.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        ArrayVec::try_from(bytes).ok().map(Self)
    }

    /// The program's private data.
    ///
    /// # Errors
    /// [`Error::PrivateData`]; the caller has checked the length already.
    pub fn given(bytes: &[u8]) -> Result<Self, Error> {
        Self::new(bytes).ok_or(Error::PrivateData {
            given: bytes.len(),
            max: Self::MAX,
        })
    }

    /// The private data as received: the length of the message's field, as on the wire, padded with zeros
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
