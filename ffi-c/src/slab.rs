//! Slabs: regions that are lent out in blocks.

use crate::code::*;
use crate::failure::{Failure, guard};
use crate::handle::{get, get_mut, give, take};
use crate::memory::bw_region;
use crate::sized::{self, Versioned};
use crate::used::{Used, User};
use hw::blocks::RawFreeError;
use hw::{Block, ClassLayout, Slab, TakeError};
use std::ffi::c_int;

/// A region cut into blocks.
#[derive(Debug)]
pub struct bw_slab {
    // Goes first: whoever destroys the region then has its last owner.
    pub(crate) slab: Slab,
    pub(crate) used: Used,
    _region: User,
}

/// The blocks of one length that a slab is to have.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct bw_slab_class {
    /// Bytes of a block: a multiple of 64.
    pub length: u32,
    /// How many.
    pub count: u32,
}

/// A block of a slab, in the order of a `bw_sge`. It is aligned to its length where that is a power of
/// two up to 4096, else to 64 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct bw_block {
    /// Where it starts.
    pub addr: u64,
    /// Its bytes.
    pub length: u32,
    /// The key for requests of this side. It is the region's, as the key for the peer's requests is:
    /// `bw_region_query` tells that one.
    pub lkey: u32,
}

impl bw_block {
    /// The program's from here on.
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

/// Why there is no block.
#[inline(always)]
pub(crate) fn take_code(error: &TakeError) -> bw_error {
    match error {
        TakeError::Empty { .. } => BW_ENOBLOCK,
        TakeError::TooLarge { .. } => BW_EINVAL,
    }
}

/// Why a block is not taken back.
#[inline(always)]
pub(crate) fn return_code(error: &RawFreeError) -> bw_error {
    match error {
        RawFreeError::DoubleFree { .. } => BW_ERETURNED,
        RawFreeError::Foreign { .. } => BW_EFOREIGN,
        RawFreeError::Misaligned { .. } => BW_EINVAL,
    }
}

/// What a slab has.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct bw_slab_info {
    /// `sizeof(bw_slab_info)`.
    pub size: u32,
    /// 0.
    pub reserved: u32,
    /// Its blocks, of all lengths.
    pub blocks: u64,
    /// Those that were taken and not returned, and those in caches. Exact when nobody takes or returns meanwhile.
    pub outstanding: u64,
}

// SAFETY: repr(C), integers only, without padding; the size is the first field.
unsafe impl Versioned for bw_slab_info {
    const FIRST: usize = 24;
}

/// # Safety
/// `classes` is NULL, or has `num` elements.
unsafe fn layout(classes: *const bw_slab_class, num: u32) -> Result<Vec<ClassLayout>, Failure> {
    if num == 0 {
        return Ok(Vec::new());
    }
    if classes.is_null() {
        return Err(Failure::null("classes"));
    }
    // SAFETY: not NULL; as many as the program says.
    let classes = unsafe { std::slice::from_raw_parts(classes, num as usize) };
    let layout = classes.iter().map(|class| ClassLayout {
        size: class.length,
        count: class.count,
    });
    Ok(layout.collect())
}

/// The bytes of region that the `num` classes of the array `classes` need: what to create a region of.
///
/// Errors: `BW_EINVAL` (more than an address space has), `BW_ENULL`.
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
        // SAFETY: the header on pointers; not NULL.
        unsafe { bytes.write(Slab::bytes(&layout(classes, num)?)? as u64) };
        Ok(())
    })
}

/// Cuts a region into the blocks of the `num` classes of the array `classes`, which are listed from the
/// smallest blocks to the largest. A region has one slab at a time. As long as there is the slab, the
/// region's memory is used through its blocks only.
///
/// Owner: the caller, until `bw_slab_destroy`. It keeps the region.
/// Errors: `BW_EINVAL` (no classes; one of no blocks, or whose length is not a positive multiple of 64;
/// not ascending; more than the region holds), `BW_EBUSY` (the region has a slab), `BW_ENULL`.
/// Thread: any; no other call on the region may be under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_slab_create(
    region: *mut bw_region,
    classes: *const bw_slab_class,
    num: u32,
    slab: *mut *mut bw_slab,
) -> c_int {
    let make = || {
        // SAFETY: the header on handles; as many classes as the program says.
        let (region, layout) = unsafe { (get_mut(region, "region")?, layout(classes, num)?) };
        region.used.check("region", "a slab")?;
        // SAFETY: this function's text on the region's memory; it has no other slab.
        let slab = unsafe { Slab::of_shared(region.region.clone(), &layout)? };
        Ok(bw_slab {
            slab,
            used: Used::default(),
            _region: region.used.by(),
        })
    };
    // SAFETY: the header on results.
    unsafe { give(slab, make) }
}

/// How many blocks there are, and how many are out. Set `info->size` before. Slow: it counts.
///
/// Errors: `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_slab_query(slab: *const bw_slab, info: *mut bw_slab_info) -> c_int {
    guard(|| {
        // SAFETY: the header on handles.
        let slab = &unsafe { get(slab, "slab")? }.slab;
        let found = bw_slab_info {
            size: 0,
            reserved: 0,
            blocks: slab.capacity() as u64,
            outstanding: slab.outstanding() as u64,
        };
        // SAFETY: the header on sized structs.
        unsafe { sized::write(info, &found) }
    })
}

/// Takes a block of the smallest class that has `length` bytes. Others are not tried when all of that
/// one are out. The bytes are what was left there. On failure `block` stays as it was.
///
/// Owner: the caller, until `bw_slab_return`.
/// Errors: `BW_ENOBLOCK` (all are out), `BW_EINVAL` (more bytes than the largest blocks have),
/// `BW_ENULL`.
/// Thread: any. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_slab_take(
    slab: *const bw_slab,
    length: u32,
    block: *mut bw_block,
) -> c_int {
    // SAFETY: the header on handles.
    let Some(slab) = (unsafe { slab.as_ref() }) else {
        return BW_ENULL as c_int;
    };
    if block.is_null() {
        return BW_ENULL as c_int;
    }
    match slab.slab.take(length) {
        Ok(taken) => {
            // SAFETY: the header on pointers; not NULL.
            unsafe { block.write(bw_block::of(taken)) };
            BW_OK as c_int
        }
        Err(error) => take_code(&error) as c_int,
    }
}

/// Returns a block, of which only `block->addr` is looked at. Nobody may use it any more: requests that
/// name it have been told of. On failure nothing was returned. Of two threads that return the same
/// block one gets the error; a block that somebody has taken again since cannot be told from one that
/// is returned for the first time.
///
/// Errors: `BW_ERETURNED` (it is not out), `BW_EFOREIGN` (not a block of this slab), `BW_EINVAL` (an
/// address within a block, not its start), `BW_ENULL`.
/// Thread: any. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_slab_return(slab: *const bw_slab, block: *const bw_block) -> c_int {
    // SAFETY: the header on handles and pointers.
    let (Some(slab), Some(block)) = (unsafe { (slab.as_ref(), block.as_ref()) }) else {
        return BW_ENULL as c_int;
    };
    // SAFETY: this function's text.
    match unsafe { slab.slab.give_back_raw(block.addr) } {
        Ok(()) => BW_OK as c_int,
        Err(error) => return_code(&error) as c_int,
    }
}

/// Destroys a slab. The region stays, with the bytes that are there.
///
/// Errors: `BW_EBUSY` while blocks are out, or there are caches, `BW_ENULL`.
/// Thread: any; no other call on the slab may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_slab_destroy(slab: *mut bw_slab) -> c_int {
    let check = |slab: &mut bw_slab| {
        slab.used.check("slab", "caches")?;
        match slab.slab.outstanding() {
            0 => Ok(()),
            out => {
                let text = format!("{out} blocks of the slab are out: return them first");
                Err(Failure::new(BW_EBUSY, text))
            }
        }
    };
    // SAFETY: the header on handles.
    guard(|| unsafe { take(slab, "slab", check) })
}
