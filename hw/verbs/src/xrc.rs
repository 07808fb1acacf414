//! XRC (extended reliable connections): domains, and the targets in them.
//!
//! Completions of a shared receive queue for XRC name it by its user index, and name the target by its
//! number. A target that was opened (`ibv_open_qp`) is destroyed without the provider, and must not be moved
//! to RESET: libmlx5 would write to queues that it does not have.

use super::context::Context;
use super::qp::States;
use super::sys;
use crate::error::Error;
use bellwire_core::qp::{QpAttr, QpAttrMask};
use bellwire_core::wr::QpType;
use bellwire_provider::attr::{OF_FILE, XrcdMode};
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// An XRC domain (`ibv_xrcd`). Every object in it keeps it alive.
#[derive(Debug)]
pub struct Xrcd {
    handle: NonNull<sys::ibv_xrcd>,
    context: Arc<Context>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Xrcd {}
// SAFETY: libibverbs may be called from any thread.
unsafe impl Sync for Xrcd {}

impl Xrcd {
    /// Opens a new domain that is not associated with a file.
    pub fn open(context: &Arc<Context>) -> Result<Arc<Self>, Error> {
        const NO_FILE: i32 = -1;
        Self::new(context, NO_FILE, libc::O_CREAT)?
            .map_err(|error| Error::io("open an XRC domain", error))
    }

    /// Opens the domain that is associated with a file.
    pub fn open_of(
        context: &Arc<Context>,
        file: BorrowedFd<'_>,
        mode: XrcdMode,
    ) -> Result<Arc<Self>, Error> {
        let flags = match mode {
            XrcdMode::Open => 0,
            XrcdMode::Create => libc::O_CREAT,
            XrcdMode::CreateNew => libc::O_CREAT | libc::O_EXCL,
        };
        let opened = Self::new(context, file.as_raw_fd(), flags)?;
        opened.map_err(|error| match (error.raw_os_error(), mode) {
            (Some(libc::EAGAIN), XrcdMode::Open) => Error::XrcdOfFile { exists: false },
            (Some(libc::EINVAL), XrcdMode::CreateNew) => Error::XrcdOfFile { exists: true },
            _ => Error::io(OF_FILE, error),
        })
    }

    fn new(context: &Arc<Context>, fd: i32, oflags: i32) -> Result<io::Result<Arc<Self>>, Error> {
        context.check_alive()?;
        context.check_xrc()?;
        let mut init = sys::ibv_xrcd_init_attr {
            comp_mask: (sys::ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_FD
                | sys::ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_OFLAGS)
                .0,
            fd,
            oflags,
        };
        // SAFETY: the context is open.
        let opened = unsafe { sys::open_xrcd(context.handle(), &mut init) };
        Ok(opened.map(|handle| {
            Arc::new(Self {
                handle,
                context: context.clone(),
            })
        }))
    }

    pub(super) fn handle(&self) -> NonNull<sys::ibv_xrcd> {
        self.handle
    }
}

impl Drop for Xrcd {
    fn drop(&mut self) {
        // A child of fork leaves what belongs to its parent as it is.
        if self.context.is_inherited() {
            return;
        }
        // SAFETY: everything in the domain has been destroyed. An error (EIO) cannot be handled.
        let _ = unsafe { sys::close_xrcd(self.handle) };
    }
}

/// An XRC target queue pair, created or opened.
#[derive(Debug)]
pub struct Target {
    handle: NonNull<sys::ibv_qp>,
    qpn: u32,
    opened: bool,
    xrcd: Arc<Xrcd>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Target {}
// SAFETY: libibverbs may be called from any thread.
unsafe impl Sync for Target {}

impl Target {
    /// Creates a target in RESET (`ibv_create_qp_ex`).
    pub fn create(xrcd: &Arc<Xrcd>) -> Result<Self, Error> {
        xrcd.context.check_alive()?;
        // SAFETY: the structure consists of numbers and null pointers, for which zeroes are valid.
        let mut init: sys::ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
        init.qp_type = sys::ibv_qp_type::IBV_QPT_XRC_RECV;
        init.comp_mask = sys::ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_XRCD.0;
        init.xrcd = xrcd.handle.as_ptr();
        // SAFETY: context and domain are alive.
        let made = unsafe { sys::create_qp_ex(xrcd.context.handle(), &mut init) };
        let handle = made.map_err(|error| Error::io("create an XRC target", error))?;
        Ok(Self::new(handle, false, xrcd))
    }

    /// Opens a target that exists (`ibv_open_qp`).
    pub fn open(xrcd: &Arc<Xrcd>, qpn: u32) -> Result<Self, Error> {
        xrcd.context.check_alive()?;
        let mut attr = sys::ibv_qp_open_attr {
            comp_mask: (sys::ibv_qp_open_attr_mask::IBV_QP_OPEN_ATTR_NUM
                | sys::ibv_qp_open_attr_mask::IBV_QP_OPEN_ATTR_XRCD
                | sys::ibv_qp_open_attr_mask::IBV_QP_OPEN_ATTR_TYPE)
                .0,
            qp_num: qpn,
            xrcd: xrcd.handle.as_ptr(),
            qp_context: null_mut(),
            qp_type: sys::ibv_qp_type::IBV_QPT_XRC_RECV,
        };
        // SAFETY: context and domain are alive.
        let opened = unsafe { sys::open_qp(xrcd.context.handle(), &mut attr) };
        let handle = opened.map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL | libc::ENOENT) => Error::UnknownQp { qpn },
            _ => Error::io("open the XRC target", error),
        })?;
        Ok(Self::new(handle, true, xrcd))
    }

    fn new(handle: NonNull<sys::ibv_qp>, opened: bool, xrcd: &Arc<Xrcd>) -> Self {
        // SAFETY: the queue pair was just created or opened.
        let qpn = unsafe { handle.as_ref().qp_num };
        *xrcd.context.tables().targets.entry(qpn).or_default() += 1;
        Self {
            handle,
            qpn,
            opened,
            xrcd: xrcd.clone(),
        }
    }

    /// The queue pair number.
    pub fn qp_num(&self) -> u32 {
        self.qpn
    }

    /// Whether this is the only `Target` with its number on the context.
    pub fn is_last(&self) -> bool {
        self.xrcd.context.tables().targets.get(&self.qpn) == Some(&1)
    }

    fn states(&self) -> States<'_> {
        States {
            qp: self.handle,
            transport: QpType::XrcRecv,
            context: &self.xrcd.context,
        }
    }

    /// Queries state and attributes (`ibv_query_qp`).
    pub fn query(&self) -> Result<QpAttr, Error> {
        self.states().query()
    }

    /// Changes state and attributes (`ibv_modify_qp`). A target that was opened must not be moved to RESET.
    pub fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Error> {
        self.xrcd.context.check_alive()?;
        self.states().modify(attr, mask).map(|_| ())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // A child of fork leaves what belongs to its parent as it is.
        if self.xrcd.context.is_inherited() {
            return;
        }
        // SAFETY: the owner of the handle is being dropped. An error (EIO) cannot be handled.
        let _ = unsafe {
            match self.opened {
                true => sys::destroy_opened_qp(self.handle),
                false => sys::check(sys::ibv_destroy_qp(self.handle.as_ptr())),
            }
        };
        let targets = &mut self.xrcd.context.tables().targets;
        if let Some(count) = targets.get_mut(&self.qpn) {
            *count -= 1;
            if *count == 0 {
                targets.remove(&self.qpn);
            }
        }
    }
}
