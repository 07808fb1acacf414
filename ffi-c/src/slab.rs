//! Slabs: regions divided into blocks.

use crate::code::*;
use crate::failure::{Failure, guard};
use crate::handle::{get, get_mut, give, take};
use crate::memory::bw_region;
use crate::sized::{self, Versioned};
use crate::used::{Used, User};
use hw::blocks::RawFreeError;
use hw::{Block, ClassLayout, Slab, TakeError};
use std::ffi::c_int;

/// A region divided into blocks.
#[derive(Debug)]
pub struct bw_slab {
    // Declared first: when the region is destroyed its handle is the last owner.
    pub(crate) slab: Slab,
    pub(crate) used: Used,
    _region: User,
}

/// The number of blocks of one length in a slab.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct bw_slab_class {
    /// Bytes of a block: a multiple of 64.
    pub length: u32,
    /// Number of blocks.
    pub count: u32,
}

/// A block of a slab, with the fields of a `bw_sge`. If its length is a power of two it is aligned to that,
/// at most to 4096 bytes; otherwise to 64 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct bw_block {
    /// Its first address.
    pub addr: u64,
    /// Its length in bytes.
    pub length: u32,
    /// The lkey, which is that of the region. The rkey is the region's as well: `bw_region_query`
    /// returns it.
    pub lkey: u32,
}

impl bw_block {
    /// Hands the block over to the program.
    #[inline(always)]
    pub(crate) fn of(taken: Block<'static>) -> Self {
        let given = Self {
            addr: taken.addr(),
            length: taken.capacity(),
            lkey: taken.lkey(),
        };
        let _record = taken.into_raw();
        given
    }
}

/// The code for a block that cannot be taken.
#[inline(always)]
pub(crate) fn take_code(error: &TakeError) -> bw_error {
    match error {
        TakeError::Empty { .. } => BW_ENOBLOCK,
        TakeError::TooLarge { .. } => BW_EINVAL,
    }
}

/// The code for a block that cannot be returned.
#[inline(always)]
pub(crate) fn return_code(error: &RawFreeError) -> bw_error {
    match error {
        RawFreeError::DoubleFree { .. } => BW_ERETURNED,
        RawFreeError::Foreign { .. } => BW_EFOREIGN,
        RawFreeError::Misaligned { .. } => BW_EINVAL,
    }
}

/// How many blocks a slab has.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct bw_slab_info {
    /// `sizeof(bw_slab_info)`.
    pub size: u32,
    /// 0.
    pub reserved: u32,
    /// Number of blocks, of all lengths.
    pub blocks: u64,
    /// Blocks that were taken and not returned, and those in caches. Exact if no thread takes or
    /// returns blocks meanwhile.
    pub outstanding: u64,
}

// SAFETY: repr(C), integers only, without padding; the size is the first field.
unsafe impl Versioned for bw_slab_info {
    const SIZES: &'static [usize] = &[size_of::<Self>()];
}

/// # Safety
/// `classes` is NULL, or points to `num` elements.
unsafe fn layout(classes: *const bw_slab_class, num: u32) -> Result<Vec<ClassLayout>, Failure> {
    if num == 0 {
        return Ok(Vec::new());
    }
    if classes.is_null() {
        return Err(Failure::null("classes"));
    }
    // SAFETY: not NULL; the caller guarantees `num` elements.
    let classes = unsafe { std::slice::from_raw_parts(classes, num as usize) };
    let layout = classes.iter().map(|class| ClassLayout {
        size: class.length,
        count: class.count,
    });
    Ok(layout.collect())
}

/// Returns how many bytes the `num` classes of the array `classes` need: the length to create a region
/// with.
///
/// Errors: `BW_EINVAL` (more than an address space), `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_slab_bytes(
    classes: *const bw_slab_class,
    num: u32,
    bytes: *mut u64,
) -> c_int {
    guard(|| {
        if bytes.is_null() {
            return Err(Failure::null("bytes"));
        }
        // SAFETY: the header's conventions on pointers; not NULL.
        unsafe { bytes.write(Slab::bytes(&layout(classes, num)?)? as u64) };
        Ok(())
    })
}

/// Divides a region into the blocks of the `num` classes of the array `classes`, which are sorted from
/// the smallest blocks to the largest. A region has one slab at a time. While the slab exists the
/// region's memory is used only through its blocks.
///
/// A block belongs to the program alone from when it is taken until it is posted. Then it belongs
/// to the device until the request has been reported. Plain loads and stores suffice if the
/// region's `access` has none of the BW_ACCESS_REMOTE_ rights and not BW_ACCESS_MW_BIND. Otherwise
/// any peer that has the rkey of the region, or of a window, can read or write any of the blocks at
/// any time. The program has to prevent that, or use atomics.
///
/// Owner: the caller, until `bw_slab_destroy`. It keeps the region.
/// Errors: `BW_EINVAL` (no classes; one without blocks, or whose length is not a positive multiple of
/// 64; not ascending; more than the region holds), `BW_EBUSY` (the region has a slab), `BW_EMEMORY`,
/// `BW_ENULL`.
/// Thread: any; no other call on the region may be under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_slab_create(
    region: *mut bw_region,
    classes: *const bw_slab_class,
    num: u32,
    slab: *mut *mut bw_slab,
) -> c_int {
    let make = || {
        // SAFETY: the header's conventions on handles; the program guarantees `num` classes.
        let (region, layout) = unsafe { (get_mut(region, "region")?, layout(classes, num)?) };
        region.used.check("region", "a slab")?;
        // SAFETY: the function's documentation says how the region's memory is used; it has no other
        // slab.
        let slab = unsafe { Slab::of_shared(region.region.clone(), &layout)? };
        Ok(bw_slab {
            slab,
            used: Used::default(),
            _region: region.used.by(),
        })
    };
    // SAFETY: the header's conventions on results.
    unsafe { give(slab, make) }
}

/// Returns how many blocks there are, and how many are taken. Set `info->size` before the call. Slow,
/// because it counts them.
///
/// Errors: `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_slab_query(slab: *const bw_slab, info: *mut bw_slab_info) -> c_int {
    guard(|| {
        // SAFETY: the header's conventions on handles.
        let slab = &unsafe { get(slab, "slab")? }.slab;
        let found = bw_slab_info {
            size: 0,
            reserved: 0,
            blocks: slab.capacity() as u64,
            outstanding: slab.outstanding() as u64,
        };
        // SAFETY: the header's conventions on sized structs.
        unsafe { sized::write(info, &found) }
    })
}

/// Takes a block of the smallest class that has `length` bytes. Larger classes are not tried if all
/// blocks of that one are taken. The block holds the bytes that were last written there. On failure
/// `block` is unchanged.
///
/// Owner: the caller, until `bw_slab_return`.
/// Errors: `BW_ENOBLOCK` (all are taken), `BW_EINVAL` (more bytes than the largest blocks have),
/// `BW_ENULL`.
/// Thread: any. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_slab_take(
    slab: *const bw_slab,
    length: u32,
    block: *mut bw_block,
) -> c_int {
    // SAFETY: the header's conventions on handles.
    let Some(slab) = (unsafe { slab.as_ref() }) else {
        return BW_ENULL as c_int;
    };
    if block.is_null() {
        return BW_ENULL as c_int;
    }
    match slab.slab.take(length) {
        Ok(taken) => {
            // SAFETY: the header's conventions on pointers; not NULL.
            unsafe { block.write(bw_block::of(taken)) };
            BW_OK as c_int
        }
        Err(error) => take_code(&error) as c_int,
    }
}

/// Returns a block; only `block->addr` is used. The block must not be in use any more: requests
/// that name it have been reported. On failure nothing is returned. If two threads return the same
/// block, one gets the error. If the block has been taken again in between, returning it twice
/// cannot be detected.
///
/// Errors: `BW_ERETURNED` (it is not taken), `BW_EFOREIGN` (not a block of this slab), `BW_EINVAL` (an
/// address within a block, not its start), `BW_ENULL`.
/// Thread: any. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_slab_return(slab: *const bw_slab, block: *const bw_block) -> c_int {
    // SAFETY: the header's conventions on handles and pointers.
    let (Some(slab), Some(block)) = (unsafe { (slab.as_ref(), block.as_ref()) }) else {
        return BW_ENULL as c_int;
    };
    // SAFETY: the function's documentation requires that the block is not in use.
    match unsafe { slab.slab.give_back_raw(block.addr) } {
        Ok(()) => BW_OK as c_int,
        Err(error) => return_code(&error) as c_int,
    }
}

/// Destroys a slab. The region remains, with its contents.
///
/// Errors: `BW_EBUSY` while blocks are taken, or caches or a set of links that receives into it exist;
/// `BW_ENULL`.
/// Thread: any; no other call on the slab may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_slab_destroy(slab: *mut bw_slab) -> c_int {
    let check = |slab: &mut bw_slab| {
        slab.used.check("slab", "caches, or a set of links")?;
        match slab.slab.outstanding() {
            0 => Ok(()),
            out => {
                let text = format!("{out} blocks of the slab are out: return them first");
                Err(Failure::new(BW_EBUSY, text))
            }
        }
    };
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe { take(slab, "slab", check) })
}
