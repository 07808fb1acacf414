//! Domains, memory regions and windows.

use super::{NONE, Request, check_unused};
use crate::abi::{AllocMw, AllocMwResp, Handle, OpenXrcd, RegMr, RegMrResp};
use crate::context::{Context, Domain, XrcDomain};
use crate::memory::{self, Use};
use crate::object::errno;
use bellwire::AccessFlags;
use bellwire::wr::MwType;
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

pub fn alloc_pd(context: &Context, request: &mut Request<'_>) -> Result<(), Errno> {
    request.check_room::<Handle>()?;
    let mut state = context.state();
    let pd_handle = state.pds.insert(Domain::new(context.device().alloc_pd()));
    // The driver's part is the number that mlx5dv returns, which is used for nothing else here.
    let own = Handle { handle: pd_handle };
    request.answer(&own, &own)
}

pub fn dealloc_pd(context: &Context, request: &mut Request<'_>) -> Result<(), Errno> {
    let Handle { handle } = request.take()?;
    let mut state = context.state();
    check_unused(&state.pds.get(handle)?.users)?;
    state.pds.remove(handle).map(drop)
}

/// # Errors
/// `EINVAL`: a number without a meaning.
pub fn access(bits: u32) -> Result<AccessFlags, Errno> {
    /// Rights that a device may leave out (`IB_ACCESS_OPTIONAL`).
    const OPTIONAL: u32 = 0x3ff0_0000;
    let known = bits & (AccessFlags::all().bits() | !OPTIONAL);
    AccessFlags::from_bits(known).ok_or(Errno::INVAL)
}

pub fn reg_mr(context: &Context, request: &mut Request<'_>) -> Result<(), Errno> {
    let asked: RegMr = request.take()?;
    request.check_room::<RegMrResp>()?;
    let access = access(asked.access_flags)?;
    // Addresses of the program's choice, and pages that come later, are not the software HCA's.
    let odd = AccessFlags::ON_DEMAND | AccessFlags::ZERO_BASED;
    if access.intersects(odd) || asked.hca_va != asked.start {
        return Err(Errno::OPNOTSUPP);
    }
    let written = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    let how = if access.intersects(written) {
        Use::Write
    } else {
        Use::Read
    };
    let length = usize::try_from(asked.length).map_err(|_| Errno::INVAL)?;
    memory::pin(asked.start, asked.length, how)?;
    let start = std::ptr::with_exposed_provenance_mut(asked.start as usize);
    let start = NonNull::new(start).ok_or(Errno::FAULT)?;
    let mut state = context.state();
    let pd = state.pds.get(asked.pd_handle)?;
    // SAFETY: the memory is there now; that it stays is what the library's documentation asks for.
    let mr = unsafe { pd.of.register(start, length, access) }.map_err(errno)?;
    let hold = pd.users.clone();
    let (lkey, rkey) = (mr.lkey(), mr.rkey());
    let mr_handle = state.mrs.insert((mr, hold));
    let own = RegMrResp {
        mr_handle,
        lkey,
        rkey,
    };
    request.answer(&own, &NONE)
}

pub fn dereg_mr(context: &Context, request: &mut Request<'_>) -> Result<(), Errno> {
    let Handle { handle } = request.take()?;
    let mut state = context.state();
    let (mr, hold) = state.mrs.remove(handle)?;
    match mr.deregister() {
        Ok(()) => Ok(()),
        Err((mr, error)) => {
            // Back under its handle: windows are bound to it.
            state.mrs.put_back(handle, (mr, hold));
            Err(errno(error))
        }
    }
}

pub fn alloc_mw(context: &Context, request: &mut Request<'_>) -> Result<(), Errno> {
    let asked: AllocMw = request.take()?;
    request.check_room::<AllocMwResp>()?;
    let kind = MwType::from_number(asked.mw_type).ok_or(Errno::INVAL)?;
    let mut state = context.state();
    let pd = state.pds.get(asked.pd_handle)?;
    let mw = pd.of.alloc_mw(kind).map_err(errno)?;
    let hold = pd.users.clone();
    let rkey = mw.rkey();
    let mw_handle = state.mws.insert((mw, hold));
    request.answer(&AllocMwResp { mw_handle, rkey }, &NONE)
}

pub fn dealloc_mw(context: &Context, request: &mut Request<'_>) -> Result<(), Errno> {
    let Handle { handle } = request.take()?;
    context.state().mws.remove(handle).map(drop)
}

/// What distinguishes a file from others: device and inode.
type FileId = (u64, u64);

/// XRC domains by the file that names them, for all contexts of the process.
static BY_FILE: LazyLock<Mutex<HashMap<FileId, Weak<XrcDomain>>>> = LazyLock::new(Mutex::default);

pub fn open_xrcd(context: &Context, request: &mut Request<'_>) -> Result<(), Errno> {
    const NO_FILE: u32 = u32::MAX;
    let asked: OpenXrcd = request.take()?;
    request.check_room::<Handle>()?;
    let open = || {
        let xrcd = context.device().open_xrcd().map_err(errno)?;
        Ok::<_, Errno>(Arc::new(XrcDomain {
            xrcd,
            targets: Mutex::default(),
        }))
    };
    let xrcd = if asked.fd == NO_FILE {
        open()?
    } else {
        let file = file_of(asked.fd)?;
        let mut by_file = BY_FILE.lock().unwrap_or_else(PoisonError::into_inner);
        let there = by_file.get(&file).and_then(Weak::upgrade);
        let wants = |flag: i32| asked.oflags & flag as u32 != 0;
        match there {
            Some(_) if wants(libc::O_EXCL) => return Err(Errno::INVAL),
            Some(there) => there,
            None if !wants(libc::O_CREAT) => return Err(Errno::AGAIN),
            None => {
                let new = open()?;
                by_file.retain(|_, xrcd| xrcd.strong_count() != 0);
                by_file.insert(file, Arc::downgrade(&new));
                new
            }
        }
    };
    let handle = context.state().xrcds.insert(Domain::new(xrcd));
    request.answer(&Handle { handle }, &NONE)
}

fn file_of(fd: u32) -> Result<FileId, Errno> {
    let fd = i32::try_from(fd).map_err(|_| Errno::BADF)?;
    if fd < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: used for this call, which refuses a descriptor that is not open.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let stat = rustix::fs::fstat(fd)?;
    Ok((stat.st_dev, stat.st_ino))
}

pub fn close_xrcd(context: &Context, request: &mut Request<'_>) -> Result<(), Errno> {
    let Handle { handle } = request.take()?;
    let mut state = context.state();
    check_unused(&state.xrcds.get(handle)?.users)?;
    state.xrcds.remove(handle).map(drop)
}
