//! Memory registrations that only devices of libibverbs support, and not all of them.

use crate::code::BW_EINVAL;
use crate::failure::{Failure, guard};
use crate::handle::{get, get_mut, give};
use crate::memory::{access, bw_mr, bw_pd};
use crate::number::bw_rereg_mr_flags::*;
use hw::Rereg;
use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

/// As `bw_mr_create`, but requests name the memory by addresses from `iova` on instead of its own
/// (`ibv_reg_mr_iova`); `bw_mr_query` then returns `iova` as its first address. Devices require that
/// `addr` and `iova` have the same offset within a page.
///
/// Owner: the caller, until `bw_mr_destroy`. It keeps the protection domain.
/// Errors: those of `bw_mr_create`; `BW_EUNSUPPORTED` on a software HCA.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_mr_create_iova(
    pd: *const bw_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access_flags: u32,
    mr: *mut *mut bw_mr,
) -> c_int {
    let make = || {
        // SAFETY: the header's conventions on handles.
        let pd = unsafe { get(pd, "protection domain")? };
        let start = NonNull::new(addr.cast()).ok_or_else(|| Failure::null("addr"))?;
        let access = access(access_flags)?;
        // SAFETY: the documentation of `bw_mr_create` requires that the memory stays.
        let made = unsafe { pd.pd.register_at(start, length, iova, access)? };
        Ok(bw_mr::new(made, pd))
    };
    // SAFETY: the header's conventions on results.
    unsafe { give(mr, make) }
}

/// Registers memory of another device, such as a GPU, by its dma-buf (`ibv_reg_dmabuf_mr`):
/// `length` bytes from `offset` on. Requests name them by addresses from `iova` on. `fd` may be
/// closed afterwards.
///
/// Owner: the caller, until `bw_mr_destroy`. It keeps the protection domain.
/// Errors: `BW_EINVAL` (no bytes; an end beyond the address space; unknown rights; REMOTE_WRITE or
/// REMOTE_ATOMIC without LOCAL_WRITE; no descriptor), `BW_EUNSUPPORTED` on a software HCA, and if the
/// device's driver does not support it, `BW_EOTHER` (not a dma-buf), `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_mr_create_dmabuf(
    pd: *const bw_pd,
    fd: c_int,
    offset: u64,
    length: usize,
    iova: u64,
    access_flags: u32,
    mr: *mut *mut bw_mr,
) -> c_int {
    let make = || {
        // SAFETY: the header's conventions on handles.
        let pd = unsafe { get(pd, "protection domain")? };
        let access = access(access_flags)?;
        if fd < 0 {
            let text = format!("fd is {fd}, which is no descriptor");
            return Err(Failure::new(BW_EINVAL, text));
        }
        // SAFETY: not -1; used only during this call, and by the kernel, which checks that it is open.
        let dmabuf = unsafe { BorrowedFd::borrow_raw(fd) };
        let made = pd
            .pd
            .register_dmabuf(dmabuf, offset, length, iova, access)?;
        Ok(bw_mr::new(made, pd))
    };
    // SAFETY: the header's conventions on results.
    unsafe { give(mr, make) }
}

/// Changes registered memory in place (`ibv_rereg_mr`). `flags`, bits of `bw_rereg_mr_flags`, say which
/// of the last arguments are used; the others are ignored. The keys may change: see `bw_mr_query`. For
/// new memory the same holds as for that of `bw_mr_create`.
///
/// When it fails with an error other than `BW_EOTHER` nothing has changed. After `BW_EOTHER` the keys
/// may no longer work: destroy the memory region.
///
/// Errors: those of `bw_mr_create`; `BW_EFOREIGN` for a protection domain of another device;
/// `BW_EUNSUPPORTED` on a software HCA, and if the device's driver does not support it.
/// Thread: any; no other call on the memory region may be under way, and no request that names it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_mr_reregister(
    mr: *mut bw_mr,
    flags: u32,
    pd: *const bw_pd,
    addr: *mut c_void,
    length: usize,
    access_flags: u32,
) -> c_int {
    guard(|| {
        let all = BW_REREG_MR_CHANGE_TRANSLATION as u32
            | BW_REREG_MR_CHANGE_PD as u32
            | BW_REREG_MR_CHANGE_ACCESS as u32;
        if flags & !all != 0 {
            let text = format!("flags has unknown bits: {:#x}", flags & !all);
            return Err(Failure::new(BW_EINVAL, text));
        }
        let named = |flag| flags & flag as u32 != 0;
        // SAFETY: the header's conventions on handles.
        let region = unsafe { get_mut(mr, "memory region")? };
        let pd = match named(BW_REREG_MR_CHANGE_PD) {
            // SAFETY: the header's conventions on handles.
            true => Some(unsafe { get(pd, "protection domain")? }),
            false => None,
        };
        let memory = match named(BW_REREG_MR_CHANGE_TRANSLATION) {
            true => {
                let start = NonNull::new(addr.cast()).ok_or_else(|| Failure::null("addr"))?;
                Some((start, length))
            }
            false => None,
        };
        let access = match named(BW_REREG_MR_CHANGE_ACCESS) {
            true => Some(access(access_flags)?),
            false => None,
        };
        let change = Rereg {
            memory,
            access,
            pd: pd.map(|pd| &pd.pd),
        };
        // SAFETY: the function's documentation requires it of the memory.
        unsafe { region.registered()?.reregister(&change)? };
        if let Some(pd) = pd {
            region.is_of(pd);
        }
        Ok(())
    })
}
