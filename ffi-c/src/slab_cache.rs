//! Caches: free blocks of a slab, kept for one thread.

use crate::code::*;
use crate::failure::{Failure, guard};
use crate::handle::{get, give, take};
use crate::slab::{bw_block, bw_slab, return_code, take_code};
use crate::used::User;
use hw::{Slab, SlabCache, TakeError};
use std::ffi::c_int;

/// Free blocks of one length, kept for one thread.
#[derive(Debug)]
pub struct bw_slab_cache {
    // Declared first: it returns its blocks before the slab is released.
    cache: SlabCache,
    slab: Slab,
    _slab: User,
}

fn failed(error: TakeError) -> Failure {
    Failure::new(take_code(&error), error.to_string())
}

/// Creates a cache of the blocks that `bw_slab_take` would take for `length` bytes. Taking and
/// returning blocks there needs no atomic read-modify-write. When the cache runs empty or full, 32
/// blocks at once move between it and the slab. It is empty at first, and holds at most 64 blocks,
/// which other threads cannot take.
///
/// Owner: the caller, until `bw_slab_cache_destroy`. It keeps the slab.
/// Errors: `BW_EINVAL` (more bytes than the largest blocks have), `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_slab_cache_create(
    slab: *const bw_slab,
    length: u32,
    cache: *mut *mut bw_slab_cache,
) -> c_int {
    // SAFETY: the header's conventions on handles and results.
    unsafe {
        give(cache, || {
            let of = get(slab, "slab")?;
            Ok(bw_slab_cache {
                cache: of.slab.cache(length).map_err(failed)?,
                slab: of.slab.clone(),
                _slab: of.used.by(),
            })
        })
    }
}

/// As `bw_slab_take`, from the cache.
///
/// Owner: the caller, until `bw_slab_cache_return` or `bw_slab_return`, of any cache of the slab.
/// Errors: `BW_ENOBLOCK` (all are taken, or in other caches), `BW_ENULL`.
/// Thread: the cache's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_slab_cache_take(
    cache: *mut bw_slab_cache,
    block: *mut bw_block,
) -> c_int {
    // SAFETY: the header's conventions on handles; the caller owns the cache.
    let Some(cache) = (unsafe { cache.as_mut() }) else {
        return BW_ENULL as c_int;
    };
    if block.is_null() {
        return BW_ENULL as c_int;
    }
    match cache.cache.take() {
        Ok(taken) => {
            // SAFETY: the header's conventions on pointers; not NULL.
            unsafe { block.write(bw_block::of(taken)) };
            BW_OK as c_int
        }
        Err(error) => take_code(&error) as c_int,
    }
}

/// As `bw_slab_return`, to the cache; a block of another length goes back to the slab. If two threads
/// return the same block at the same time the error may go undetected.
///
/// Errors: `BW_ERETURNED`, `BW_EFOREIGN`, `BW_EINVAL`, `BW_ENULL`, as `bw_slab_return`.
/// Thread: the cache's owner. Data path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_slab_cache_return(
    cache: *mut bw_slab_cache,
    block: *const bw_block,
) -> c_int {
    // SAFETY: the header's conventions on handles and pointers; the caller owns the cache.
    let (Some(cache), Some(block)) = (unsafe { (cache.as_mut(), block.as_ref()) }) else {
        return BW_ENULL as c_int;
    };
    // SAFETY: the function's documentation requires that the block is the caller's.
    match unsafe { cache.slab.block_at(block.addr) } {
        Ok(block) => {
            cache.cache.put(block);
            BW_OK as c_int
        }
        Err(error) => return_code(&error) as c_int,
    }
}

/// Destroys a cache: its blocks go back to the slab. Blocks taken from it still belong to the program.
///
/// Errors: `BW_ENULL`.
/// Thread: the cache's owner; no other call on it may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_slab_cache_destroy(cache: *mut bw_slab_cache) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe { take(cache, "slab cache", |_| Ok(())) })
}
