//! libmlx5 as C sees it (`infiniband/mlx5dv.h`): what tells of the device's rings. Opened at run time, so
//! that programs run where it is not installed.

use crate::error::Error;
use crate::verbs::sys;
use bellwire_core::port::DoorbellRecord;
use bellwire_core::wqe::AddressVector;
use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::mem::transmute;
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;

/// A ring within a queue pair (`struct mlx5dv_qp`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Ring {
    pub buf: *mut u8,
    pub wqe_cnt: u32,
    pub stride: u32,
}

/// A doorbell register.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Bf {
    pub reg: *mut u64,
    pub size: u32,
}

/// `struct mlx5dv_qp`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Qp {
    /// Records of the receive queue, and of the send queue.
    pub dbrec: *mut DoorbellRecord,
    pub sq: Ring,
    pub rq: Ring,
    pub bf: Bf,
    pub comp_mask: u64,
    pub uar_mmap_offset: libc::off_t,
    pub tirn: u32,
    pub tisn: u32,
    pub rqn: u32,
    pub sqn: u32,
    pub tir_icm_addr: u64,
}

/// `struct mlx5dv_cq`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Cq {
    pub buf: *mut u8,
    /// Records of the consumer, and for arming.
    pub dbrec: *mut [DoorbellRecord; 2],
    pub cqe_cnt: u32,
    pub cqe_size: u32,
    pub cq_uar: *mut u8,
    pub cqn: u32,
    pub comp_mask: u64,
}

/// `struct mlx5dv_srq`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Srq {
    pub buf: *mut u8,
    pub dbrec: *mut DoorbellRecord,
    pub stride: u32,
    pub head: u32,
    pub tail: u32,
    pub comp_mask: u64,
    pub srqn: u32,
}

/// `struct mlx5dv_ah`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Ah {
    pub av: *mut AddressVector,
    pub comp_mask: u64,
}

/// An object of libibverbs, and what is to be filled in of it.
#[repr(C)]
pub(super) struct Pair<I, O> {
    pub r#in: *mut I,
    pub out: *mut O,
}

impl<I, O> Pair<I, O> {
    const NONE: Self = Self {
        r#in: null_mut(),
        out: null_mut(),
    };
}

/// `struct mlx5dv_obj`.
#[repr(C)]
pub(super) struct Obj {
    pub qp: Pair<sys::ibv_qp, Qp>,
    pub cq: Pair<sys::ibv_cq, Cq>,
    pub srq: Pair<sys::ibv_srq, Srq>,
    pub rwq: Pair<sys::ibv_wq, c_void>,
    pub dm: Pair<sys::ibv_dm, c_void>,
    pub ah: Pair<sys::ibv_ah, Ah>,
    pub pd: Pair<sys::ibv_pd, c_void>,
}

impl Obj {
    const NONE: Self = Self {
        qp: Pair::NONE,
        cq: Pair::NONE,
        srq: Pair::NONE,
        rwq: Pair::NONE,
        dm: Pair::NONE,
        ah: Pair::NONE,
        pd: Pair::NONE,
    };
}

/// `enum mlx5dv_obj_type`.
mod obj_type {
    pub const QP: u64 = 1 << 0;
    pub const CQ: u64 = 1 << 1;
    pub const SRQ: u64 = 1 << 2;
    pub const AH: u64 = 1 << 5;
}

/// `MLX5DV_RES_TYPE_*`: what the allocator of a parent domain is asked for.
pub(super) mod resource {
    const MLX5: u64 = 1 << 32;
    pub const QP: u64 = MLX5 | 1;
    pub const DBR: u64 = MLX5 | 3;
    pub const SRQ: u64 = MLX5 | 4;
}

/// `MLX5_CQ_DOORBELL`: where in its page the register is that arms completion queues.
pub(super) const CQ_DOORBELL: usize = 0x20;

/// What is used of libmlx5.
#[derive(Debug)]
pub(crate) struct Library {
    init_obj: unsafe extern "C" fn(*mut Obj, u64) -> c_int,
    is_supported: unsafe extern "C" fn(*mut sys::ibv_device) -> bool,
}

impl Library {
    /// The library that is there; it stays open. `None`: none, or an older one.
    pub fn get() -> Option<&'static Self> {
        static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
        LIBRARY.get_or_init(Self::open).as_ref()
    }

    fn open() -> Option<Self> {
        // The one that libibverbs has loaded, if it has.
        // SAFETY: a name that ends with a zero; libmlx5 may be loaded at any time.
        let handle = unsafe { libc::dlopen(c"libmlx5.so.1".as_ptr(), libc::RTLD_NOW) };
        let symbol = |name: &CStr, version: &CStr| {
            if handle.is_null() {
                return None;
            }
            // SAFETY: open; both end with a zero.
            let found = unsafe { libc::dlvsym(handle, name.as_ptr(), version.as_ptr()) };
            (!found.is_null()).then_some(found)
        };
        let init_obj = symbol(c"mlx5dv_init_obj", c"MLX5_1.2")?;
        let is_supported = symbol(c"mlx5dv_is_supported", c"MLX5_1.8")?;
        // SAFETY: of these versions the functions have these types.
        Some(unsafe {
            Self {
                init_obj: transmute::<*mut c_void, unsafe extern "C" fn(*mut Obj, u64) -> c_int>(
                    init_obj,
                ),
                is_supported: transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*mut sys::ibv_device) -> bool,
                >(is_supported),
            }
        })
    }

    /// Whether the open device is one of mlx5.
    ///
    /// # Safety
    /// The context is open.
    pub unsafe fn supports(&self, context: NonNull<sys::ibv_context>) -> bool {
        // SAFETY: the caller's promise.
        unsafe { (self.is_supported)((*context.as_ptr()).device) }
    }

    /// # Safety
    /// What the object names is alive, and of a device of mlx5.
    unsafe fn init_obj(&self, mut obj: Obj, kind: u64) -> io::Result<()> {
        // SAFETY: the caller's promise.
        sys::check(unsafe { (self.init_obj)(&raw mut obj, kind) })
    }
}

fn library() -> Result<&'static Library, Error> {
    let missing = || io::Error::from_raw_os_error(libc::EOPNOTSUPP);
    Library::get().ok_or_else(|| Error::io("open libmlx5.so.1", missing()))
}

/// Asks for one kind of object, whose answer zeroes are a value of.
macro_rules! ask {
    ($name:ident, $in:ty, $out:ty, $field:ident, $kind:ident, $what:literal) => {
        /// # Safety
        /// The object is alive, and of a device of mlx5.
        pub(super) unsafe fn $name(of: NonNull<$in>) -> Result<$out, Error> {
            // SAFETY: numbers and pointers, which zeroes are values of.
            let mut out: $out = unsafe { std::mem::zeroed() };
            let obj = Obj {
                $field: Pair {
                    r#in: of.as_ptr(),
                    out: &raw mut out,
                },
                ..Obj::NONE
            };
            // SAFETY: the caller's promise; the answer can be written.
            unsafe { library()?.init_obj(obj, obj_type::$kind) }
                .map_err(|error| Error::io($what, error))?;
            Ok(out)
        }
    };
}

ask!(
    qp,
    sys::ibv_qp,
    Qp,
    qp,
    QP,
    "ask for the rings of a queue pair"
);
ask!(
    cq,
    sys::ibv_cq,
    Cq,
    cq,
    CQ,
    "ask for the ring of a completion queue"
);
ask!(
    srq,
    sys::ibv_srq,
    Srq,
    srq,
    SRQ,
    "ask for the ring of a shared receive queue"
);
ask!(
    ah,
    sys::ibv_ah,
    Ah,
    ah,
    AH,
    "ask for an address handle's vector"
);

/// The address vector of a handle, as it stands in entries.
///
/// # Safety
/// The handle is alive, and of a device of mlx5.
pub(crate) unsafe fn address_vector(handle: NonNull<sys::ibv_ah>) -> Result<AddressVector, Error> {
    // SAFETY: the caller's promise; the vector is there as long as the handle.
    unsafe {
        let av = ah(handle)?.av;
        // The library's own need not be aligned as ours is.
        NonNull::new(av)
            .map(|av| av.read_unaligned())
            .ok_or(super::rings::UNUSABLE)
    }
}

#[cfg(test)]
mod tests;
