//! Protection domains, and memory that devices may reach.

use crate::code::BW_EINVAL;
use crate::device::{BW_TEXT_MAX, bw_device, text};
use crate::failure::{Failure, guard};
use crate::handle::{get, give, take};
use crate::sized::{self, Versioned};
use crate::used::{Used, User};
use hw::memory::{PageKind, Pages};
use hw::{AccessFlags, Mr, Pd, Region};
use std::ffi::{c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

/// A protection domain: queue pairs reach only memory of the same domain.
#[derive(Debug)]
pub struct bw_pd {
    pub(crate) pd: Pd,
    pub(crate) used: Used,
    _device: User,
}

/// Memory of the program that is registered with a device.
#[derive(Debug)]
pub struct bw_mr {
    /// `None` only while it is being destroyed.
    mr: Option<Mr>,
    _pd: User,
}

impl bw_mr {
    pub(crate) fn new(mr: Mr, pd: &bw_pd) -> Self {
        Self {
            mr: Some(mr),
            _pd: pd.used.by(),
        }
    }

    pub(crate) fn registered(&mut self) -> Result<&mut Mr, Failure> {
        self.mr
            .as_mut()
            .ok_or_else(|| Failure::null("memory region"))
    }

    /// Moves the memory region to this domain.
    pub(crate) fn is_of(&mut self, pd: &bw_pd) {
        self._pd = pd.used.by();
    }
}

/// Memory that the library has allocated and registered with a device.
#[derive(Debug)]
pub struct bw_region {
    pub(crate) region: Arc<Region>,
    pub(crate) used: Used,
    _pd: User,
}

/// The pages that a region is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_pages {
    /// The largest pages available: 1 GiB, 2 MiB, transparent huge pages, base pages. A size is tried
    /// only if the region fills at least one page of it. Only valid as a request.
    BW_PAGES_AUTO = 0,
    /// 1 GiB hugetlb pages.
    BW_PAGES_HUGE_1G = 1,
    /// 2 MiB hugetlb pages.
    BW_PAGES_HUGE_2M = 2,
    /// Base pages that the kernel is advised to merge into 2 MiB pages.
    BW_PAGES_TRANSPARENT = 3,
    /// The machine's base pages (4 KiB on x86-64).
    BW_PAGES_BASE = 4,
}

/// Description of registered memory.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct bw_mr_info {
    /// `sizeof(bw_mr_info)`.
    pub size: u32,
    /// Access rights: `bw_access_flags`.
    pub access: u32,
    /// Its first address, by which requests name it.
    pub addr: u64,
    /// Its length in bytes.
    pub length: u64,
    /// The key for requests of this side.
    pub lkey: u32,
    /// The key for the peer's requests.
    pub rkey: u32,
}

// SAFETY: repr(C), integers only, without padding; the size is the first field.
unsafe impl Versioned for bw_mr_info {
    const SIZES: &'static [usize] = &[size_of::<Self>()];
}

/// How a region is made. `bw_region_attr_default` fills it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct bw_region_attr {
    /// `sizeof(bw_region_attr)`.
    pub size: u32,
    /// The pages to use: a `bw_pages`.
    pub pages: u32,
    /// Length in bytes; rounded up to whole pages.
    pub length: u64,
    /// Access rights: `bw_access_flags`.
    pub access: u32,
    /// NUMA node that the memory is taken from exclusively; less than 0: any.
    pub numa_node: i32,
    /// Not 0: locks the memory, see mlock(2).
    pub lock: u32,
    /// Not 0: core files contain the memory (as far as coredump_filter, see core(5), lets them). By
    /// default they do not, because that takes long and shows what is in the buffers.
    pub in_core_files: u32,
}

impl Default for bw_region_attr {
    fn default() -> Self {
        Self {
            size: size_of::<Self>() as u32,
            pages: bw_pages::BW_PAGES_AUTO as u32,
            length: 0,
            access: AccessFlags::LOCAL_WRITE.bits(),
            numa_node: -1,
            lock: 0,
            in_core_files: 0,
        }
    }
}

// SAFETY: repr(C), integers only, without padding; the size is the first field.
unsafe impl Versioned for bw_region_attr {
    const SIZES: &'static [usize] = &[size_of::<Self>()];
}

/// Description of a region.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct bw_region_info {
    /// `sizeof(bw_region_info)`.
    pub size: u32,
    /// Access rights: `bw_access_flags`.
    pub access: u32,
    /// Its first address, aligned to a page.
    pub addr: u64,
    /// Its length in bytes: the requested length, in whole pages.
    pub length: u64,
    /// The key for requests of this side.
    pub lkey: u32,
    /// The key for the peer's requests.
    pub rkey: u32,
    /// Bytes of a page; with BW_PAGES_TRANSPARENT the 2 MiB that the region is aligned to.
    pub page_size: u64,
    /// The pages that it consists of: a `bw_pages`, but never BW_PAGES_AUTO.
    pub pages: u32,
    /// 0.
    pub reserved: u32,
    /// For people: "128 MiB in 64 hugetlb pages of 2 MiB".
    pub text: [c_char; BW_TEXT_MAX],
}

impl Default for bw_region_info {
    fn default() -> Self {
        Self {
            size: size_of::<Self>() as u32,
            access: 0,
            addr: 0,
            length: 0,
            lkey: 0,
            rkey: 0,
            page_size: 0,
            pages: 0,
            reserved: 0,
            text: [0; BW_TEXT_MAX],
        }
    }
}

// SAFETY: repr(C), integers only, without padding; the size is the first field.
unsafe impl Versioned for bw_region_info {
    const SIZES: &'static [usize] = &[size_of::<Self>()];
}

/// Creates a protection domain.
///
/// Owner: the caller, until `bw_pd_destroy`. It keeps the device open.
/// Errors: `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_pd_create(device: *const bw_device, pd: *mut *mut bw_pd) -> c_int {
    // SAFETY: the header's conventions on handles and results.
    unsafe {
        give(pd, || {
            let device = get(device, "device")?;
            Ok(bw_pd {
                pd: device.device.alloc_pd(),
                used: Used::default(),
                _device: device.used.by(),
            })
        })
    }
}

/// Destroys a protection domain.
///
/// Errors: `BW_EBUSY` while it has memory, windows, address handles or queues, `BW_ENULL`.
/// Thread: any; no other call on the protection domain may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_pd_destroy(pd: *mut bw_pd) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        take(pd, "protection domain", |pd| {
            pd.used.check(
                "protection domain",
                "memory, windows, address handles or queues",
            )
        })
    })
}

pub(crate) fn access(bits: u32) -> Result<AccessFlags, Failure> {
    AccessFlags::from_bits(bits).ok_or_else(|| {
        let unknown = bits & !AccessFlags::all().bits();
        Failure::new(BW_EINVAL, format!("access has unknown bits: {unknown:#x}"))
    })
}

/// Registers `length` bytes of the program's memory at `addr`. `access` are `bw_access_flags`.
///
/// The memory still belongs to the program. It has to exist until `bw_mr_destroy`, and the peer may
/// read and write it at any time as the access rights allow. Memory that may be written
/// concurrently has to be accessed by atomics (or volatile accesses), here and in
/// `bw_region_create`. Memory whose request a completion has reported, and that nothing may write
/// any more, need not.
///
/// Every page has to be there: writable if `access` has LOCAL_WRITE, readable otherwise. The
/// software HCA populates the pages, as devices do, so that sparse memory takes up its whole
/// length. With BW_ACCESS_ON_DEMAND it leaves them until they are accessed. The memory stays in
/// core files, because the pages may hold other data of the program, too: call madvise(2),
/// MADV_DONTDUMP, to leave it out.
///
/// Owner: the caller, until `bw_mr_destroy`. It keeps the protection domain.
/// Errors: `BW_EINVAL` (no bytes; an end beyond the address space; unknown rights; REMOTE_WRITE or
/// REMOTE_ATOMIC without LOCAL_WRITE), `BW_EFAULT` (`bw_last_error` names the first page that cannot be
/// accessed), `BW_EEXHAUSTED`, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_mr_create(
    pd: *const bw_pd,
    addr: *mut c_void,
    length: usize,
    access_flags: u32,
    mr: *mut *mut bw_mr,
) -> c_int {
    let make = || {
        // SAFETY: the header's conventions on handles.
        let pd = unsafe { get(pd, "protection domain")? };
        let start = NonNull::new(addr.cast()).ok_or_else(|| Failure::null("addr"))?;
        let access = access(access_flags)?;
        // SAFETY: the function's documentation requires that the memory stays.
        let made = unsafe { pd.pd.register(start, length, access)? };
        Ok(bw_mr::new(made, pd))
    };
    // SAFETY: the header's conventions on results.
    unsafe { give(mr, make) }
}

/// Returns where the memory is, and its keys. Set `info->size` before the call.
///
/// Errors: `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_mr_query(mr: *const bw_mr, info: *mut bw_mr_info) -> c_int {
    guard(|| {
        // SAFETY: the header's conventions on handles.
        let mr = unsafe { get(mr, "memory region")? }.mr.as_ref();
        let mr = mr.ok_or_else(|| Failure::null("memory region"))?;
        let found = bw_mr_info {
            size: 0,
            access: mr.access().bits(),
            addr: mr.addr(),
            length: mr.length(),
            lkey: mr.lkey(),
            rkey: mr.rkey(),
        };
        // SAFETY: the header's conventions on sized structs.
        unsafe { sized::write(info, &found) }
    })
}

/// Deregisters the memory. When this returns the device does not access the memory any more; requests
/// that still name it fail.
///
/// Errors: `BW_EBUSY` while memory windows are bound to it, `BW_ENULL`.
/// Thread: any; no other call on the memory region may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_mr_destroy(mr: *mut bw_mr) -> c_int {
    let deregister = |region: &mut bw_mr| match region.mr.take().map(Mr::deregister) {
        Some(Err((mr, error))) => {
            region.mr = Some(mr);
            Err(error.into())
        }
        _ => Ok(()),
    };
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe { take(mr, "memory region", deregister) })
}

/// Fills `attr`, of `size` bytes, with its size and the defaults, except for the length. The
/// defaults are the largest pages available, from any NUMA node, not locked, not in core files, for
/// local use.
///
/// Errors: `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_region_attr_default(attr: *mut bw_region_attr, size: usize) -> c_int {
    // SAFETY: the header's conventions on sized structs.
    guard(|| unsafe { sized::fill(attr, size) })
}

/// Allocates zeroed memory, with all pages present, and registers it. Slow, because the kernel zeroes
/// all of it. `bw_region_query` returns its address and the pages that it consists of.
///
/// Owner: the caller, until `bw_region_destroy`. It keeps the protection domain.
/// Errors: `BW_EMEMORY` (`bw_last_error` says what to do), `BW_EINVAL` (no bytes, no such NUMA node),
/// `BW_EEXHAUSTED`, `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_region_create(
    pd: *const bw_pd,
    attr: *const bw_region_attr,
    region: *mut *mut bw_region,
) -> c_int {
    let make = || {
        // SAFETY: the header's conventions on handles and sized structs.
        let (pd, attr) = unsafe { (get(pd, "protection domain")?, sized::read(attr)?) };
        let access = access(attr.access)?;
        let pages = pages(attr.pages)?;
        // The length of every address space fits a usize.
        let length = usize::try_from(attr.length).unwrap_or(usize::MAX);
        let wanted = pd.pd.device().mapping(length);
        let mut wanted = wanted
            .pages(pages)
            .lock(attr.lock != 0)
            .in_core_files(attr.in_core_files != 0);
        if let Ok(node) = u32::try_from(attr.numa_node) {
            wanted = wanted.numa_node(node);
        }
        Ok(bw_region {
            region: Arc::new(Region::new(&pd.pd, wanted.build()?, access)?),
            used: Used::default(),
            _pd: pd.used.by(),
        })
    };
    // SAFETY: the header's conventions on results.
    unsafe { give(region, make) }
}

fn pages(number: u32) -> Result<Pages, Failure> {
    use bw_pages::*;
    [
        (BW_PAGES_AUTO, Pages::Auto),
        (BW_PAGES_HUGE_1G, Pages::Huge1G),
        (BW_PAGES_HUGE_2M, Pages::Huge2M),
        (BW_PAGES_TRANSPARENT, Pages::Transparent),
        (BW_PAGES_BASE, Pages::Base),
    ]
    .into_iter()
    .find_map(|(known, pages)| (known as u32 == number).then_some(pages))
    .ok_or_else(|| {
        let text = format!("pages is {number}, which is not one that there is");
        Failure::new(BW_EINVAL, text)
    })
}

/// Returns where the region is, its keys, and the pages that it consists of. Set `info->size` before
/// the call.
///
/// Errors: `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_region_query(
    region: *const bw_region,
    info: *mut bw_region_info,
) -> c_int {
    guard(|| {
        // SAFETY: the header's conventions on handles.
        let region = &unsafe { get(region, "region")? }.region;
        let (mr, mapping) = (region.mr(), region.mapping());
        let kind = mapping.page_kind();
        let pages = match kind {
            PageKind::Huge1G => bw_pages::BW_PAGES_HUGE_1G,
            PageKind::Huge2M => bw_pages::BW_PAGES_HUGE_2M,
            PageKind::Transparent => bw_pages::BW_PAGES_TRANSPARENT,
            PageKind::Base => bw_pages::BW_PAGES_BASE,
        };
        let found = bw_region_info {
            access: mr.access().bits(),
            addr: mr.addr(),
            length: mr.length(),
            lkey: mr.lkey(),
            rkey: mr.rkey(),
            page_size: kind.size() as u64,
            pages: pages as u32,
            text: text(&mapping.to_string()),
            ..bw_region_info::default()
        };
        // SAFETY: the header's conventions on sized structs.
        unsafe { sized::write(info, &found) }
    })
}

/// Deregisters the region and frees its memory. Requests that still name it fail, and so do requests
/// that name a memory window bound to it.
///
/// Errors: `BW_EBUSY` while it has a slab, `BW_ENULL`.
/// Thread: any; no other call on the region may be under way or follow, and nothing may use its memory
/// any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_region_destroy(region: *mut bw_region) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        take(region, "region", |region| {
            region.used.check("region", "a slab")
        })
    })
}
