//! XRC domains.

use crate::device::Device;
use crate::error::Error;
use crate::provider::Provider;
use crate::soft::XrcDomain;
#[cfg(feature = "verbs")]
use crate::verbs;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// What an error calls opening the domain of a file.
pub(crate) const OF_FILE: &str = "open the XRC domain of the file";

/// An XRC domain: its queue pairs reach its shared receive queues, and no others. Clones are the same
/// one. It goes with the last object in it.
#[derive(Clone, Debug)]
pub struct Xrcd {
    // Before the device that it is of.
    side: XrcdSide,
    device: Device,
}

/// The domain, by who stands behind it.
#[derive(Clone, Debug)]
pub(crate) enum XrcdSide {
    Soft(Arc<XrcDomain>),
    #[cfg(feature = "verbs")]
    Verbs(Arc<verbs::Xrcd>),
}

/// How the XRC domain of a file is opened (`oflags` of `ibv_xrcd_init_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XrcdMode {
    /// One that somebody has open (zero).
    Open,
    /// The same, or a new one where nobody has (`O_CREAT`).
    Create,
    /// A new one (`O_CREAT | O_EXCL`).
    CreateNew,
}

impl Device {
    /// A new XRC domain (`ibv_open_xrcd`, without a file).
    ///
    /// # Errors
    /// [`Error::Unsupported`] on a device without XRC.
    pub fn open_xrcd(&self) -> Result<Xrcd, Error> {
        let side = match &self.hca {
            Provider::Soft(hca) => XrcdSide::Soft(hca.open_xrcd()),
            #[cfg(feature = "verbs")]
            Provider::Verbs(context) => XrcdSide::Verbs(verbs::Xrcd::open(context)?),
        };
        Ok(self.xrcd(side))
    }

    /// The XRC domain of this file: whoever names the same one on the device shares it
    /// (`ibv_open_xrcd`). The file's contents do not matter, and it may be closed afterwards. The domain
    /// is there as long as somebody has it open.
    ///
    /// On a device of libibverbs other processes share it too. A software HCA is of one process: there
    /// those that opened the same device do.
    ///
    /// # Errors
    /// [`Error::XrcdOfFile`], where the mode says otherwise; [`Error::Unsupported`] on a device without
    /// XRC; [`Error::Io`].
    pub fn open_xrcd_of(&self, file: BorrowedFd<'_>, mode: XrcdMode) -> Result<Xrcd, Error> {
        let side = match &self.hca {
            Provider::Soft(hca) => XrcdSide::Soft(hca.open_xrcd_of(file, mode)?),
            #[cfg(feature = "verbs")]
            Provider::Verbs(context) => XrcdSide::Verbs(verbs::Xrcd::open_of(context, file, mode)?),
        };
        Ok(self.xrcd(side))
    }

    fn xrcd(&self, side: XrcdSide) -> Xrcd {
        Xrcd {
            side,
            device: self.clone(),
        }
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

    /// The software HCA's.
    pub(crate) fn soft(&self) -> Result<&Arc<XrcDomain>, Error> {
        match &self.side {
            XrcdSide::Soft(domain) => Ok(domain),
            #[cfg(feature = "verbs")]
            XrcdSide::Verbs(_) => Err(FOREIGN),
        }
    }

    /// That of libibverbs.
    #[cfg(feature = "verbs")]
    pub(crate) fn verbs(&self) -> Result<&Arc<verbs::Xrcd>, Error> {
        match &self.side {
            XrcdSide::Verbs(xrcd) => Ok(xrcd),
            XrcdSide::Soft(_) => Err(FOREIGN),
        }
    }
}

#[cfg(feature = "verbs")]
const FOREIGN: Error = Error::Foreign { what: "XRC domain" };
