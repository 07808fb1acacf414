//! XRC domains.

use super::control::Control;
use super::hca::Hca;
use super::target::XrcTarget;
use crate::error::Error;
use crate::pinned::room_in;
use bellwire_provider::attr::{OF_FILE, XrcdMode};
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Identifies a file: device and inode.
pub(super) type FileId = (u64, u64);

/// An XRC domain.
#[derive(Debug)]
pub struct XrcDomain {
    id: u32,
    /// Its targets, by queue pair number.
    targets: Mutex<HashMap<u32, Weak<XrcTarget>>>,
}

impl XrcDomain {
    /// The number by which queues and targets name it.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Registers a target that was created in it.
    ///
    /// # Errors
    /// There is no memory to register it.
    pub fn admit(&self, target: &Arc<XrcTarget>) -> Result<(), Error> {
        let mut targets = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        targets.retain(|_, target| target.strong_count() != 0);
        room_in(&mut targets)?;
        targets.insert(target.qp_num(), Arc::downgrade(target));
        Ok(())
    }

    /// The target of this number, if it exists.
    pub fn target(&self, qpn: u32) -> Result<Arc<XrcTarget>, Error> {
        let targets = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        let found = targets.get(&qpn).and_then(Weak::upgrade);
        found.ok_or(Error::UnknownQp { qpn })
    }
}

impl Control {
    fn new_xrcd(&mut self) -> Arc<XrcDomain> {
        self.next_xrcd += 1;
        Arc::new(XrcDomain {
            id: self.next_xrcd - 1,
            targets: Mutex::default(),
        })
    }
}

impl Hca {
    /// Opens a new domain that belongs to no file.
    pub fn open_xrcd(&self) -> Arc<XrcDomain> {
        self.control().new_xrcd()
    }

    /// Opens the domain that belongs to a file.
    pub fn open_xrcd_of(
        &self,
        file: BorrowedFd<'_>,
        mode: XrcdMode,
    ) -> Result<Arc<XrcDomain>, Error> {
        let stat = rustix::fs::fstat(file).map_err(|error| Error::io(OF_FILE, error.into()))?;
        let file: FileId = (stat.st_dev, stat.st_ino);
        let mut control = self.control();
        let there = control.xrcds.get(&file).and_then(Weak::upgrade);
        match (there, mode) {
            (Some(_), XrcdMode::CreateNew) => Err(Error::XrcdOfFile { exists: true }),
            (Some(there), _) => Ok(there),
            (None, XrcdMode::Open) => Err(Error::XrcdOfFile { exists: false }),
            (None, _) => {
                let new = control.new_xrcd();
                control.xrcds.retain(|_, xrcd| xrcd.strong_count() != 0);
                control.xrcds.insert(file, Arc::downgrade(&new));
                Ok(new)
            }
        }
    }
}
