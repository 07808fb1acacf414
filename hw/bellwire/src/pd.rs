//! Protection domains and memory regions.

mod elsewhere;

pub use elsewhere::Rereg;

use crate::device::Device;
use crate::error::Error;
use crate::memory::{Mapping, Use, probe};
use crate::pinned::headroom;
use crate::provider::PdSide;
use crate::soft::ShownMemory;
use crate::verbs;
use bellwire_core::access::AccessFlags;
use bellwire_core::shared;
use bellwire_core::wr::{Remote, Sge};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A protection domain (`ibv_pd`). Clones are the same domain.
#[derive(Clone, Debug)]
pub struct Pd(Arc<Domain>);

#[derive(Debug)]
struct Domain {
    // Dropped before the device that it belongs to.
    side: PdSide,
    device: Device,
    id: u32,
}

impl Drop for Domain {
    fn drop(&mut self) {
        // Relaxed: the count orders nothing else.
        self.device.hca.pds().fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pd {
    pub(crate) fn new(device: Device) -> Self {
        let (side, id) = device.hca.alloc_pd();
        // Relaxed: the count orders nothing else.
        device.hca.pds().fetch_add(1, Ordering::Relaxed);
        Self(Arc::new(Domain { side, device, id }))
    }

    /// The domain of libibverbs.
    pub(crate) fn verbs(&self) -> Result<&Arc<verbs::Pd>, Error> {
        match self.0.side.libibverbs() {
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

    /// Distinguishes it from all others that exist.
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Registers memory that the caller owns. [`Region`] is the safe way.
    ///
    /// Every page has to be there: writable if the flags allow the device or peers to write, readable otherwise. The
    /// software HCA populates the pages, as devices do, so that sparse memory takes up its whole length; with
    /// [`ON_DEMAND`](AccessFlags::ON_DEMAND) it leaves them until they are accessed. Memory that is unmapped, protected
    /// or truncated later fails the requests that access it: see [`fault`](crate::memory::fault).
    ///
    /// # Errors
    /// The region is empty, the access flags contradict each other, or no key is left;
    /// [`MemoryError::NoAccess`](crate::memory::MemoryError::NoAccess), with the first page that cannot be accessed.
    ///
    /// # Safety
    /// The memory is valid until the [`Mr`] is dropped, and is accessed meanwhile as its access flags
    /// require: memory that a peer may write is only accessed by volatile or atomic operations.
    pub unsafe fn register(
        &self,
        ptr: NonNull<u8>,
        length: usize,
        access: AccessFlags,
    ) -> Result<Mr, Error> {
        headroom()?;
        let addr = ptr.as_ptr().expose_provenance() as u64;
        check_region(addr, length as u64, access)?;
        if self.device().hca.soft().is_some() && !access.contains(AccessFlags::ON_DEMAND) {
            // Rights to write remotely require the local one.
            let how = Use::writing(access.contains(AccessFlags::LOCAL_WRITE));
            probe(addr as usize, length, how)?;
        }
        // SAFETY: the caller guarantees it.
        unsafe { self.register_present(addr, length as u64, access) }
    }

    /// Like [`register`](Self::register), for memory that is there.
    ///
    /// # Safety
    /// That of [`register`](Self::register); and the provenance was exposed.
    unsafe fn register_present(
        &self,
        addr: u64,
        length: u64,
        access: AccessFlags,
    ) -> Result<Mr, Error> {
        check_region(addr, length, access)?;
        // SAFETY: the caller guarantees that the memory stays valid and is accessed as the flags require; the
        // provenance was exposed.
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

/// Checks what no device accepts.
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

/// A registered memory region (`ibv_mr`). Dropping it invalidates its keys, and deallocates the windows that
/// are bound to it: once the drop has returned, the device no longer accesses the memory.
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
    /// Deregisters the region (`ibv_dereg_mr`), unless windows are bound to it.
    ///
    /// # Errors
    /// [`Error::WindowsBound`], with the unchanged region.
    pub fn deregister(mut self) -> Result<(), (Self, Error)> {
        match self.pd.device().hca.deregister_unbound(self.lkey) {
            Ok(()) => {
                self.lkey = 0;
                Ok(())
            }
            Err(error) => Err((self, error)),
        }
    }

    /// The start of the region: the address by which requests access it.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// The length in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The local key, for requests posted on this side.
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// The remote key, for the peer's requests.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// The access flags.
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
        // A child of fork leaves what belongs to its parent as it is.
        if self.pd.device().is_inherited() {
            return;
        }
        // An lkey of zero was deregistered and is no key; any other is valid, so nothing can fail.
        let _ = self.pd.device().hca.deregister_mr(self.lkey);
    }
}

/// A mapping and its registration.
///
/// Others may write to it at any time: threads that have a reference, peers and windows if the access flags
/// allow it, and every process that maps the same memory. Therefore it cannot be accessed as slices. The
/// functions here copy, or load and store words, by [atomic accesses](bellwire_core::shared).
/// [`Slab::new`](crate::Slab::new) cuts a region into blocks that have one owner each, and can be accessed as
/// slices.
#[derive(Debug)]
pub struct Region {
    // Dropped first: the keys are invalidated before the memory is unmapped.
    mr: Mr,
    // Before the memory is unmapped, peers must no longer map it.
    _shown: Option<ShownMemory>,
    mapping: Mapping,
}

impl Region {
    /// Registers a mapping.
    ///
    /// # Errors
    /// Those of [`Pd::register`].
    pub fn new(pd: &Pd, mapping: Mapping, access: AccessFlags) -> Result<Self, Error> {
        let bad = Error::BadRegion { addr: 0, length: 0 };
        let start = NonNull::new(mapping.as_ptr()).ok_or(bad)?;
        let for_writers =
            AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC | AccessFlags::MW_BIND;
        if !access.intersects(for_writers) {
            mapping.refuse_writers();
        }
        // SAFETY: the mapping lives as long as the registration, and gives out safe references only as blocks
        // of a slab, which ensures that they are exclusive.
        let mr = unsafe {
            let addr = start.as_ptr().expose_provenance() as u64;
            pd.register_present(addr, mapping.len() as u64, access)?
        };
        let hca = pd.device().hca.soft();
        // SAFETY: the descriptor is only passed on to peers, which map the memory as the keys of this
        // registration allow.
        let memfd = unsafe { mapping.memfd() };
        // Peers do not access memory of huge pages: accessing a hole in it may raise a signal.
        let shown = (memfd.zip(hca))
            .filter(|_| !mapping.page_kind().is_hugetlb())
            .and_then(|(fd, hca)| ShownMemory::new(hca, fd, mr.addr, mapping.len() as u64));
        if let (Some(_), Some(hca)) = (&shown, hca) {
            hca.set_shown(mr.lkey);
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

    /// The length in bytes.
    pub fn len(&self) -> usize {
        self.mapping.len()
    }

    /// Always `false`: a region has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// A scatter/gather element for requests posted on this side. The device checks its bounds.
    pub fn sge(&self, offset: usize, length: u32) -> Sge {
        Sge {
            addr: self.mr.addr.wrapping_add(offset as u64),
            length,
            lkey: self.mr.lkey,
        }
    }

    /// A remote address for the peer's requests. The device checks its bounds.
    pub fn remote(&self, offset: usize) -> Remote {
        Remote {
            addr: self.mr.addr.wrapping_add(offset as u64),
            rkey: self.mr.rkey,
        }
    }

    /// # Panics
    /// If the bytes are not within the region.
    #[inline(always)]
    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        let within = offset <= self.len() && length <= self.len() - offset;
        assert!(
            within,
            "{length} bytes at {offset} of a region of {}",
            self.len()
        );
        // SAFETY: the offset is within the mapping.
        unsafe { self.mapping.as_ptr().add(offset) }
    }

    /// The word at `offset`, as a peer's WRITE or atomic operation leaves it. A loop that waits for it calls
    /// [`spin_loop`](std::hint::spin_loop) each time, which shortens the wait.
    ///
    /// # Panics
    /// If it is not aligned, or not within the region.
    #[inline(always)]
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        let place = self.at(offset, size_of::<u64>()).cast::<u64>();
        assert!(
            place.is_aligned(),
            "the word at {offset} is not aligned to 8"
        );
        // SAFETY: within the mapping and aligned; words that peers write are only accessed atomically.
        unsafe { AtomicU64::from_ptr(place) }
    }

    /// Copies out of the region. Concurrent writes may be copied in part.
    ///
    /// # Panics
    /// If the bytes are not within the region.
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        let from = self.at(offset, to.len());
        // SAFETY: within the mapping, which consists of pages, and therefore of whole words. The only
        // references into it are to atomic words, so `to` does not overlap it, and all accesses by this
        // process are atomic or made by a device.
        unsafe { shared::load(from, to) };
        // Acquire: data whose completion was polled before are visible; pairs with the Release of the
        // device's or the peer's last bytes.
        std::sync::atomic::fence(Ordering::Acquire);
    }

    /// Copies into the region. Concurrent reads may see a part of the copy.
    ///
    /// # Panics
    /// If the bytes are not within the region.
    pub fn write(&self, offset: usize, from: &[u8]) {
        let to = self.at(offset, from.len());
        // SAFETY: within the mapping, which consists of whole words. The only references into it are to
        // atomic words, so `from` does not overlap it, and all accesses by this process are atomic or made by
        // a device.
        unsafe { shared::store(from, to) };
    }
}
