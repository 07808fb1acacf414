//! Protection domains and memory regions.

mod elsewhere;

pub use elsewhere::Rereg;

use crate::device::Device;
use crate::error::Error;
use crate::fabric::unreadable;
use crate::memory::Mapping;
use crate::provider::Provider;
use crate::soft::ShownMemory;
#[cfg(feature = "verbs")]
use crate::verbs;
use bellwire_core::access::AccessFlags;
use bellwire_core::wr::{Remote, Sge};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A protection domain. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Pd(Arc<Domain>);

#[derive(Debug)]
struct Domain {
    // Before the device that it is of.
    #[cfg(feature = "verbs")]
    verbs: Option<Result<Arc<verbs::Pd>, i32>>,
    device: Device,
    id: u32,
}

impl Domain {
    /// How many there are on its device.
    fn count(&self) -> &AtomicU32 {
        match &self.device.hca {
            Provider::Soft(hca) => &hca.pds,
            #[cfg(feature = "verbs")]
            Provider::Verbs(context) => &context.pds,
        }
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // Relaxed: a number on its own.
        self.count().fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pd {
    pub(crate) fn new(device: Device) -> Self {
        let domain = Self::domain(device);
        // Relaxed: as above.
        domain.count().fetch_add(1, Ordering::Relaxed);
        Self(Arc::new(domain))
    }

    fn domain(device: Device) -> Domain {
        match &device.hca {
            Provider::Soft(hca) => Domain {
                #[cfg(feature = "verbs")]
                verbs: None,
                id: hca.alloc_pd(),
                device,
            },
            #[cfg(feature = "verbs")]
            Provider::Verbs(context) => Domain {
                // Without one nothing can be created in it, which says why.
                verbs: Some(verbs::Pd::new(context).map(Arc::new)),
                id: context.next_pd(),
                device,
            },
        }
    }

    /// The domain of libibverbs.
    #[cfg(feature = "verbs")]
    pub(crate) fn verbs(&self) -> Result<&Arc<verbs::Pd>, Error> {
        match &self.0.verbs {
            Some(Ok(pd)) => Ok(pd),
            Some(Err(error)) => Err(Error::io(
                "allocate a protection domain",
                std::io::Error::from_raw_os_error(*error),
            )),
            None => Err(Error::Foreign {
                what: "protection domain",
            }),
        }
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Registers memory that somebody else owns. [`Region`] is the safe way.
    ///
    /// # Errors
    /// An empty region, access flags that contradict each other, no key left; on a fabric
    /// [`Error::FabricMemory`] where the kernel keeps its processes from reading each other's memory.
    ///
    /// # Safety
    /// The memory is valid until the [`Mr`] is dropped, and is accessed meanwhile as its users on
    /// the device allow: memory that a peer may write only by volatile or atomic accesses.
    pub unsafe fn register(
        &self,
        ptr: NonNull<u8>,
        length: usize,
        access: AccessFlags,
    ) -> Result<Mr, Error> {
        self.check_readable()?;
        // SAFETY: the caller's promise.
        unsafe { self.register_shown(ptr, length, access) }
    }

    /// Whether peers can read memory that they cannot map.
    fn check_readable(&self) -> Result<(), Error> {
        let on_fabric =
            (self.device().hca.soft("a fabric")).is_ok_and(|hca| hca.fabric().is_some());
        match on_fabric.then(unreadable).flatten() {
            Some(why) => Err(Error::FabricMemory { why }),
            None => Ok(()),
        }
    }

    /// As [`register`](Self::register), memory that peers can map.
    ///
    /// # Safety
    /// As there.
    unsafe fn register_shown(
        &self,
        ptr: NonNull<u8>,
        length: usize,
        access: AccessFlags,
    ) -> Result<Mr, Error> {
        let addr = ptr.as_ptr().expose_provenance() as u64;
        let length = length as u64;
        check_region(addr, length, access)?;
        // SAFETY: the caller's promise; the provenance was exposed.
        let keys = unsafe { self.device().hca.register_mr(self, addr, length, access)? };
        Ok(self.mr(addr, length, keys, access))
    }

    fn mr(&self, addr: u64, length: u64, (lkey, rkey): (u32, u32), access: AccessFlags) -> Mr {
        Mr {
            pd: self.clone(),
            addr,
            length,
            lkey,
            rkey,
            access,
        }
    }
}

/// What no device takes.
fn check_region(addr: u64, length: u64, access: AccessFlags) -> Result<(), Error> {
    let remote_write = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    if access.intersects(remote_write) && !access.contains(AccessFlags::LOCAL_WRITE) {
        return Err(Error::AccessWithoutLocalWrite);
    }
    if access.contains(AccessFlags::ZERO_BASED) {
        return Err(Error::ZeroBasedRegion);
    }
    if length == 0 || addr.checked_add(length).is_none() {
        return Err(Error::BadRegion { addr, length });
    }
    Ok(())
}

/// A registered memory region. Dropping it takes its key back, and the windows that are bound to it:
/// when the drop returns the device does not touch the memory any more.
#[derive(Debug)]
pub struct Mr {
    pd: Pd,
    addr: u64,
    length: u64,
    lkey: u32,
    rkey: u32,
    access: AccessFlags,
}

impl Mr {
    /// Takes its key back (`ibv_dereg_mr`), unless windows are bound to it.
    ///
    /// # Errors
    /// [`Error::WindowsBound`], and the region, as it was.
    pub fn deregister(mut self) -> Result<(), (Self, Error)> {
        match self.pd.device().hca.deregister_unbound(self.lkey) {
            Ok(()) => {
                self.lkey = 0;
                Ok(())
            }
            Err(error) => Err((self, error)),
        }
    }

    /// Where it starts: the address that requests name it by.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Its bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The key for requests of this side.
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// The key for the peer's requests.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// What may be done to it.
    pub fn access(&self) -> AccessFlags {
        self.access
    }

    /// The protection domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // Zero has been revoked, and is no key; others are ours, so that there is nothing that could
        // fail.
        let _ = self.pd.device().hca.deregister_mr(self.lkey);
    }
}

/// A mapping and its registration.
///
/// Peers may write to it at any time if the access flags say so; the accessors copy, or load and
/// store whole words, so that this is sound.
#[derive(Debug)]
pub struct Region {
    // Dropped first: the key goes before the memory.
    mr: Mr,
    // Peers may map it no more before it is gone.
    _shown: Option<ShownMemory>,
    mapping: Mapping,
}

impl Region {
    /// Registers a mapping.
    ///
    /// # Errors
    /// As [`Pd::register`].
    pub fn new(pd: &Pd, mapping: Mapping, access: AccessFlags) -> Result<Self, Error> {
        let bad = Error::BadRegion { addr: 0, length: 0 };
        let start = NonNull::new(mapping.as_ptr()).ok_or(bad)?;
        // SAFETY: the mapping lives as long as the registration, and gives no safe references.
        let mr = unsafe { pd.register_shown(start, mapping.len(), access)? };
        let hca = pd.device().hca.soft("a fabric").ok();
        let shown = (mapping.fd().zip(hca))
            .and_then(|(fd, hca)| ShownMemory::new(hca, fd, mr.addr, mapping.len() as u64));
        match (&shown, hca) {
            (Some(_), Some(hca)) => hca.set_shown(mr.lkey),
            _ => pd.check_readable()?,
        }
        Ok(Self {
            mr,
            _shown: shown,
            mapping,
        })
    }

    /// The registration.
    pub fn mr(&self) -> &Mr {
        &self.mr
    }

    /// The memory.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Its bytes.
    pub fn len(&self) -> usize {
        self.mapping.len()
    }

    /// Never: a region has at least a byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// An element for requests of this side. The device checks its bounds.
    pub fn sge(&self, offset: usize, length: u32) -> Sge {
        Sge {
            addr: self.mr.addr.wrapping_add(offset as u64),
            length,
            lkey: self.mr.lkey,
        }
    }

    /// A place for the peer's requests. The device checks its bounds.
    pub fn remote(&self, offset: usize) -> Remote {
        Remote {
            addr: self.mr.addr.wrapping_add(offset as u64),
            rkey: self.mr.rkey,
        }
    }

    /// # Panics
    /// When the bytes do not lie within the region.
    #[inline(always)]
    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        let within = offset <= self.len() && length <= self.len() - offset;
        assert!(
            within,
            "{length} bytes at {offset} of a region of {}",
            self.len()
        );
        // SAFETY: within the mapping.
        unsafe { self.mapping.as_ptr().add(offset) }
    }

    /// The word at `offset`, as a peer's WRITE or atomic leaves it.
    ///
    /// # Panics
    /// When it is not aligned, or not within the region.
    #[inline(always)]
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        let place = self.at(offset, size_of::<u64>()).cast::<u64>();
        assert!(
            place.is_aligned(),
            "the word at {offset} is not aligned to 8"
        );
        // SAFETY: within the mapping, aligned; words that peers write are accessed as atomics.
        unsafe { AtomicU64::from_ptr(place) }
    }

    /// Copies out of the region. What a peer writes meanwhile may be copied in part.
    ///
    /// # Panics
    /// When the bytes do not lie within the region.
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        let from = self.at(offset, to.len());
        // SAFETY: within the mapping; `to` is not, for nobody has references into it. A copy that
        // the device writes meanwhile is garbage but harmless: bytes have no invalid values.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
        // Acquire: what was polled for before is seen.
        std::sync::atomic::fence(Ordering::Acquire);
    }

    /// Copies into the region.
    ///
    /// # Panics
    /// When the bytes do not lie within the region.
    pub fn write(&self, offset: usize, from: &[u8]) {
        let to = self.at(offset, from.len());
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
    }
}
