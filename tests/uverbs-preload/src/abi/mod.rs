//! The layouts of commands and answers (`rdma/ib_user_verbs.h`, `rdma/mlx5-abi.h`), by which a
//! program and the kernel talk. Numbers are the machine's own, but for those that are named
//! big-endian.
//!
//! A command written to the device is a header, the command's own structure, and what the driver adds:
//!
//! ```text
//! CmdHdr │            response address │ command │ driver's
//! CmdHdr │ ExCmdHdr (response address) │ command │ driver's     extended
//! ```
//!
//! The answer is the command's structure and the driver's behind it.

mod core;
mod mlx5;

pub use core::*;
pub use mlx5::*;

/// Declares plain structures: any bytes make one, and it has no padding.
macro_rules! layouts {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout,
        )]
        #[repr(C)]
        pub struct $name {
            $(pub $field: $type,)*
        }
    )*};
}
use layouts;
