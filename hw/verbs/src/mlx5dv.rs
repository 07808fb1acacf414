//! The device's rings, as libmlx5 describes them (`mlx5dv_init_obj`).

use super::{not_loaded, sys};
use crate::error::Error;
use bellwire_core::wqe::AddressVector;
use bellwire_sys::mlx5dv as dv;
use bellwire_sys::mlx5dv::mlx5dv_obj_type as kind;
use std::io;
use std::ptr::NonNull;

pub use dv::{CQ_DOORBELL, resource};

/// Whether the open device is an mlx5 device, and libmlx5 is loaded.
///
/// # Safety
/// The context is open.
pub unsafe fn supports(context: NonNull<sys::ibv_context>) -> bool {
    // SAFETY: the caller guarantees that the context is open; the library is loaded.
    dv::load().is_ok() && unsafe { dv::mlx5dv_is_supported((*context.as_ptr()).device) }
}

/// Whether libmlx5 can set the UDP source port of the device's queue pairs. Whether the device accepts one is
/// only known when it is set.
///
/// # Safety
/// The context is open.
pub unsafe fn has_udp_sport(context: NonNull<sys::ibv_context>) -> bool {
    // SAFETY: the caller guarantees that the context is open.
    let is_mlx5 = unsafe { supports(context) };
    is_mlx5 && dv::mlx5dv_modify_qp_udp_sport().is_ok()
}

/// Sets the UDP source port of a queue pair in RTS.
///
/// # Safety
/// The queue pair is alive, and its device [supports this](has_udp_sport).
pub unsafe fn set_udp_sport(qp: NonNull<sys::ibv_qp>, port: u16) -> io::Result<()> {
    let modify = dv::mlx5dv_modify_qp_udp_sport()?;
    // SAFETY: the caller guarantees that the queue pair is alive, and of an mlx5 device.
    sys::check(unsafe { modify(qp.as_ptr(), port) })
}

/// Defines a function that queries one kind of object.
macro_rules! ask {
    ($name:ident, $in:ty, $out:ident, $kind:ident, $what:literal) => {
        /// # Safety
        /// The object is alive, and of an mlx5 device.
        pub unsafe fn $name(of: NonNull<$in>) -> Result<dv::$out, Error> {
            dv::load().map_err(not_loaded)?;
            // SAFETY: the structure consists of numbers and pointers, for which zeroes are valid.
            let mut out: dv::$out = unsafe { std::mem::zeroed() };
            // SAFETY: the structure consists of pointers, for which zeroes are valid.
            let mut obj: dv::mlx5dv_obj = unsafe { std::mem::zeroed() };
            obj.$name.r#in = of.as_ptr();
            obj.$name.out = &raw mut out;
            // SAFETY: the caller guarantees that the object is alive and of an mlx5 device; `out` can be
            // written, and the library is loaded.
            sys::check(unsafe { dv::mlx5dv_init_obj(&raw mut obj, kind::$kind.into()) })
                .map_err(|error| Error::io($what, error))?;
            Ok(out)
        }
    };
}

ask!(
    qp,
    sys::ibv_qp,
    mlx5dv_qp,
    MLX5DV_OBJ_QP,
    "ask for the rings of a queue pair"
);
ask!(
    cq,
    sys::ibv_cq,
    mlx5dv_cq,
    MLX5DV_OBJ_CQ,
    "ask for the ring of a completion queue"
);
ask!(
    srq,
    sys::ibv_srq,
    mlx5dv_srq,
    MLX5DV_OBJ_SRQ,
    "ask for the ring of a shared receive queue"
);
ask!(
    ah,
    sys::ibv_ah,
    mlx5dv_ah,
    MLX5DV_OBJ_AH,
    "ask for an address handle's vector"
);

/// The error for rings that do not have the expected layout.
pub const UNUSABLE: Error = Error::Unsupported {
    what: "be posted to and polled without libibverbs",
    instead: "set BELLWIRE_VERBS_ONLY=1",
};

const _: () = assert!(size_of::<AddressVector>() == dv::WQE_AV);

/// The address vector of an address handle, as it is written to entries.
///
/// # Safety
/// The handle is alive, and of an mlx5 device.
pub unsafe fn address_vector(handle: NonNull<sys::ibv_ah>) -> Result<AddressVector, Error> {
    // SAFETY: the caller guarantees that the handle is alive and of an mlx5 device; the vector lives as long
    // as the handle.
    unsafe {
        let av = ah(handle)?.av.cast::<AddressVector>();
        // libmlx5's structure may be less aligned than ours.
        NonNull::new(av)
            .map(|av| av.read_unaligned())
            .ok_or(UNUSABLE)
    }
}
