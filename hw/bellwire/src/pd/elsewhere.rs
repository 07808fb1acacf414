//! Registrations that only some devices of libibverbs support: at addresses that the program chooses, of
//! memory of other devices, and with changes in place.

use super::{Mr, Pd, check_region};
use crate::error::Error;
use bellwire_core::access::AccessFlags;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

const AT: Error = Error::Unsupported {
    what: "register memory under another address than its own",
    instead: "register it under its own",
};
const DMABUF: Error = Error::Unsupported {
    what: "register a dma-buf",
    instead: "register memory of the host and copy by way of it, or open a device whose driver has it, \
              such as mlx5 or efa",
};
const CHANGE: Error = Error::Unsupported {
    what: "re-register memory",
    instead: "destroy the region, and register the memory anew",
};

/// The attributes of a region that are to change; `None`: unchanged.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rereg<'a> {
    /// The memory: the new start and length.
    pub memory: Option<(NonNull<u8>, usize)>,
    /// The access flags.
    pub access: Option<AccessFlags>,
    /// The protection domain: another one of the same device.
    pub pd: Option<&'a Pd>,
}

/// Replaces the system's error for an unsupported operation by `unsupported`.
fn or_unsupported(error: Error, unsupported: Error) -> Error {
    match error {
        Error::Io { error, .. } if error.raw_os_error() == Some(libc::EOPNOTSUPP) => unsupported,
        error => error,
    }
}

impl Pd {
    /// Registers memory that requests address from `iova` on, instead of by its own address
    /// (ibv_reg_mr_iova(3)); [`Mr::addr`] is then `iova`. Devices require both to have the same offset in a
    /// page.
    ///
    /// # Errors
    /// Those of [`register`](Self::register); [`Error::Unsupported`] on a software HCA.
    ///
    /// # Safety
    /// That of [`register`](Self::register).
    pub unsafe fn register_at(
        &self,
        ptr: NonNull<u8>,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<Mr, Error> {
        let addr = ptr.as_ptr().expose_provenance() as u64;
        let length = length as u64;
        check_region(addr, length, access)?;
        check_region(iova, length, access)?;
        if let Some(context) = self.device().hca.libibverbs() {
            // SAFETY: the caller guarantees that the memory stays valid and is accessed as the flags require;
            // the provenance was exposed.
            let keys = unsafe { context.register_mr(self.verbs()?, addr, length, iova, access)? };
            return Ok(self.mr(iova, length, keys, access));
        }
        Err(AT)
    }

    /// Registers memory of another device, such as a GPU, through a dma-buf (ibv_reg_dmabuf_mr(3)): `length`
    /// bytes from `offset` on, which requests address from `iova` on. The descriptor may be closed
    /// afterwards.
    ///
    /// # Errors
    /// The region is empty, or the access flags contradict each other; [`Error::Unsupported`] on a software
    /// HCA, and where the device's driver does not support this; [`Error::Io`].
    pub fn register_dmabuf(
        &self,
        dmabuf: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<Mr, Error> {
        let length = length as u64;
        check_region(offset, length, access)?;
        check_region(iova, length, access)?;
        let _ = dmabuf;
        if let Some(context) = self.device().hca.libibverbs() {
            let keys = context
                .register_dmabuf(self.verbs()?, dmabuf, offset, length, iova, access)
                .map_err(|error| or_unsupported(error, DMABUF))?;
            return Ok(self.mr(iova, length, keys, access));
        }
        Err(DMABUF)
    }
}

impl Mr {
    /// Changes a region in place (ibv_rereg_mr(3)): cheaper than a new registration if the device is given
    /// only what differs. The keys may change. No request in flight may use the region.
    ///
    /// # Errors
    /// Those of [`Pd::register`]; [`Error::Foreign`] for a domain of another device; [`Error::Unsupported`]
    /// on a software HCA, and where the device's driver does not support this: nothing has changed then.
    /// After [`Error::Io`] the keys may no longer work: drop the region.
    /// # Safety
    /// That of [`Pd::register`], for the memory that the region has from now on; and no request uses the
    /// region during the call.
    pub unsafe fn reregister(&mut self, change: &Rereg<'_>) -> Result<(), Error> {
        let access = change.access.unwrap_or(self.access);
        let (addr, length) = match change.memory {
            Some((ptr, length)) => (ptr.as_ptr().expose_provenance() as u64, length as u64),
            None => (self.addr, self.length),
        };
        check_region(addr, length, access)?;
        if (change.pd).is_some_and(|pd| !pd.device().is_same_context(self.pd.device())) {
            return Err(Error::Foreign {
                what: "protection domain",
            });
        }
        if let Some(context) = self.pd.device().hca.libibverbs() {
            let pd = change.pd.map(Pd::verbs).transpose()?;
            let memory = change.memory.map(|_| (addr, length));
            // SAFETY: the caller guarantees that the memory stays valid, and that no request uses the region;
            // the provenance was exposed.
            let keys = unsafe { context.reregister_mr(self.lkey, pd, memory, change.access) };
            (self.lkey, self.rkey) = keys.map_err(|error| or_unsupported(error, CHANGE))?;
            (self.addr, self.length, self.access) = (addr, length, access);
            if let Some(pd) = change.pd {
                self.pd = pd.clone();
            }
            return Ok(());
        }
        Err(CHANGE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use std::os::fd::AsFd as _;

    const ALL: AccessFlags = AccessFlags::LOCAL_WRITE;

    #[test]
    fn a_software_hca_says_that_it_has_none_of_it() {
        let (device, other) = (
            Device::soft(Default::default()),
            Device::soft(Default::default()),
        );
        let (pd, foreign) = (device.alloc_pd(), other.alloc_pd());
        let mut bytes = [0_u8; 64];
        let start = NonNull::from(&mut bytes).cast();
        // SAFETY: nothing is registered, since the call fails.
        let at = unsafe { pd.register_at(start, 64, 0x1000, ALL) };
        assert!(matches!(at, Err(Error::Unsupported { .. })), "{at:?}");
        let file = tempfile::tempfile().unwrap();
        let dmabuf = pd.register_dmabuf(file.as_fd(), 0, 64, 0, ALL);
        let error = dmabuf.unwrap_err().to_string();
        assert!(
            error.starts_with("the device cannot register a dma-buf: "),
            "{error}"
        );
        // SAFETY: the memory outlives the region, and no request uses it.
        let mut mr = unsafe { pd.register(start, 64, ALL) }.unwrap();
        let keys = (mr.lkey(), mr.rkey());
        // SAFETY: the memory outlives the region, and no request uses it.
        unsafe {
            let change = Rereg {
                access: Some(AccessFlags::empty()),
                ..Rereg::default()
            };
            let refused = mr.reregister(&change);
            assert!(
                matches!(refused, Err(Error::Unsupported { .. })),
                "{refused:?}"
            );
            let change = Rereg {
                pd: Some(&foreign),
                ..Rereg::default()
            };
            let refused = mr.reregister(&change);
            assert!(matches!(refused, Err(Error::Foreign { .. })), "{refused:?}");
        }
        assert_eq!((mr.lkey(), mr.rkey(), mr.access()), (keys.0, keys.1, ALL));
    }

    #[test]
    fn what_cannot_be_is_said_before_it_is_unsupported() {
        let pd = Device::soft(Default::default()).alloc_pd();
        let mut bytes = [0_u8; 64];
        let start = NonNull::from(&mut bytes).cast();
        let file = tempfile::tempfile().unwrap();
        let register = |length, iova, access| {
            // SAFETY: nothing is registered, since the call fails.
            let at = unsafe { pd.register_at(start, length, iova, access) };
            [
                at,
                pd.register_dmabuf(file.as_fd(), 0, length, iova, access),
            ]
        };
        for (length, iova) in [(0, 0), (64, u64::MAX - 63)] {
            for refused in register(length, iova, ALL) {
                assert!(
                    matches!(refused, Err(Error::BadRegion { .. })),
                    "{refused:?}"
                );
            }
        }
        for refused in register(64, 0, AccessFlags::REMOTE_WRITE) {
            let expected = matches!(refused, Err(Error::AccessWithoutLocalWrite));
            assert!(expected, "{refused:?}");
        }
    }
}
