//! Registrations that only devices of libibverbs have, and not all of them.

use crate::code::BW_EINVAL;
use crate::failure::{Failure, guard};
use crate::handle::{get, get_mut, give};
use crate::memory::{access, bw_mr, bw_pd};
use crate::number::bw_rereg_mr_flags::*;
use hw::Rereg;
use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

/// As `bw_mr_create`, memory that requests are to name by addresses from `iova` on, in place of its own
/// (`ibv_reg_mr_iova`); `bw_mr_query` gives `iova` as its start then. Devices want `addr` and `iova` to
/// lie equally far behind the start of a page.
///
/// Owner: the caller, until `bw_mr_destroy`. It keeps the protection domain.
/// Errors: those of `bw_mr_create`; `BW_EUNSUPPORTED` on a software HCA.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_mr_create_at(
    pd: *const bw_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access_flags: u32,
    mr: *mut *mut bw_mr,
) -> c_int {
    let make = || {
        // SAFETY: the header on handles.
        let pd = unsafe { get(pd, "protection domain")? };
        let start = NonNull::new(addr.cast()).ok_or_else(|| Failure::null("addr"))?;
        let access = access(access_flags)?;
        // SAFETY: that the memory stays is what `bw_mr_create` asks.
        let made = unsafe { pd.pd.register_at(start, length, iova, access)? };
        Ok(bw_mr::new(made, pd))
    };
    // SAFETY: the header on results.
    unsafe { give(mr, make) }
}

/// Registers memory of another device, of a GPU say, that a dma-buf stands for (`ibv_reg_dmabuf_mr`):
/// `length` bytes from `offset` on, which requests name by addresses from `iova` on. `fd` may be
/// closed afterwards.
///
/// Owner: the caller, until `bw_mr_destroy`. It keeps the protection domain.
/// Errors: `BW_EINVAL` (no bytes; an end beyond the address space; unknown rights; REMOTE_WRITE or
/// REMOTE_ATOMIC without LOCAL_WRITE; no descriptor), `BW_EUNSUPPORTED` on a software HCA, and where
/// the device's driver does not have it, `BW_EOTHER` (no dma-buf), `BW_ENULL`.
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
        // SAFETY: the header on handles.
        let pd = unsafe { get(pd, "protection domain")? };
        let access = access(access_flags)?;
        if fd < 0 {
            let text = format!("fd is {fd}, which is no descriptor");
            return Err(Failure::new(BW_EINVAL, text));
        }
        // SAFETY: not -1; used during this call only, and by the kernel, which looks whether it is open.
        let dmabuf = unsafe { BorrowedFd::borrow_raw(fd) };
        let made = pd
            .pd
            .register_dmabuf(dmabuf, offset, length, iova, access)?;
        Ok(bw_mr::new(made, pd))
    };
    // SAFETY: the header on results.
    unsafe { give(mr, make) }
}

/// Changes registered memory in place (`ibv_rereg_mr`): what `flags`, of `bw_rereg_mr_flags`, name, of
/// the last arguments; the others are not looked at. Its keys may be others afterwards: `bw_mr_query`.
/// Memory that it has from now on is the program's, as with `bw_mr_create`.
///
/// When it fails with another error than `BW_EOTHER` nothing has changed; after that the keys may not
/// work any more: destroy it.
///
/// Errors: those of `bw_mr_create`; `BW_EFOREIGN` for a domain of another device; `BW_EUNSUPPORTED` on a
/// software HCA, and where the device's driver does not have it.
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
        // SAFETY: the header on handles.
        let region = unsafe { get_mut(mr, "memory region")? };
        let pd = match named(BW_REREG_MR_CHANGE_PD) {
            // SAFETY: the header on handles.
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
        // SAFETY: this function's text asks for it.
        unsafe { region.registered()?.reregister(&change)? };
        if let Some(pd) = pd {
            region.is_of(pd);
        }
        Ok(())
    })
}
