//! XRC domains.

use crate::device::Device;
use crate::error::Error;
use crate::pinned::headroom;
use crate::provider::XrcdSide;
use crate::soft::XrcDomain;
use crate::verbs;
use bellwire_provider::attr::XrcdMode;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// An XRC domain (`ibv_xrcd`): its target queue pairs reach its shared receive queues, and no others. Clones
/// are the same domain. It is closed with the last object in it.
#[derive(Clone, Debug)]
pub struct Xrcd {
    // Dropped before the device that it belongs to.
    side: XrcdSide,
    device: Device,
}

impl Device {
    /// Opens a new XRC domain (`ibv_open_xrcd`, without a file).
    ///
    /// # Errors
    /// [`Error::Unsupported`]: the device has no XRC.
    pub fn open_xrcd(&self) -> Result<Xrcd, Error> {
        headroom()?;
        self.xrcd(None)
    }

    /// Opens the XRC domain of this file: all that open it with the same file on the same device share it
    /// (`ibv_open_xrcd`). The file's contents do not matter, and it may be closed afterwards. The domain
    /// exists as long as it is open somewhere.
    ///
    /// On a device of libibverbs, other processes share it, too. A software HCA belongs to one process:
    /// there, contexts of the same device share it.
    ///
    /// # Errors
    /// [`Error::XrcdOfFile`]: the mode does not allow it; [`Error::Unsupported`]: the device has no XRC;
    /// [`Error::Io`].
    pub fn open_xrcd_of(&self, file: BorrowedFd<'_>, mode: XrcdMode) -> Result<Xrcd, Error> {
        headroom()?;
        self.xrcd(Some((file, mode)))
    }

    fn xrcd(&self, of: Option<(BorrowedFd<'_>, XrcdMode)>) -> Result<Xrcd, Error> {
        Ok(Xrcd {
            side: self.hca.open_xrcd(of)?,
            device: self.clone(),
        })
    }
}

impl Xrcd {
    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn side(&self) -> &XrcdSide {
        &self.side
    }

    /// The software HCA's domain.
    pub(crate) fn soft(&self) -> Result<&Arc<XrcDomain>, Error> {
        self.side.soft().ok_or(FOREIGN)
    }

    /// The domain of libibverbs.
    pub(crate) fn verbs(&self) -> Result<&Arc<verbs::Xrcd>, Error> {
        self.side.libibverbs().ok_or(FOREIGN)
    }
}

const FOREIGN: Error = Error::Foreign { what: "XRC domain" };
