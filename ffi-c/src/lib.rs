//! The C ABI of bellwire: what `include/bellwire.h` declares.
//!
//! The conventions are stated once, in the header's introduction (`cbindgen.toml`). How they are
//! implemented:
//!
//! - Set-up calls run in [`failure::guard`]: a failure becomes a code and a text, a panic a code.
//! - The data path ([`post`], [`direct`], [`batch`], [`wc`], [`completion`], [`slab`] and
//!   [`slab_cache`], except where they create and destroy) has no guard and cannot panic; if it did, an
//!   `extern "C"` function aborts rather than unwind into C.
//! - Numbers that C passes are integers here, never enums: a value that the enum does not have is an
//!   error.
//! - Structs grow at their end: those with a size in `sized`, elements of arrays in `array`.
//! - A handle counts its users ([`used`]), so that it cannot be destroyed while it is in use.
//! - The soname has the major version, and the minor one while the major is 0 (`soname.rs`), as `bw_version_check`
//!   has. Under one soname the ABI only grows. Symbols have no versions: rustc passes a version script of its own
//!   to the linker, which takes one.
//! - `bw_poll_completion` and `bw_poll_one` handle a plain completion within the function, which makes no call and
//!   so saves no register; everything else is a jump to another function. They pass no size, because a comparison
//!   for each completion would be measurable: when their structs grow, the header maps these names to new
//!   functions.
//! - A `bw_block` is an address and has no owner. `bw_slab_return` finds its record by `Slab::give_back_raw`, which
//!   recognises a free block, a block of another slab, and an address that is no block. So C pays a second atomic
//!   for a return.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![allow(
    non_camel_case_types,
    reason = "types and enumerators have the names of the header"
)]
#![allow(
    clippy::missing_safety_doc,
    reason = "every function is C's: the header's conventions are the contract of all, and what is \
              special to one its text says"
)]

// In the order of the header, which rustfmt keeps across blank lines.
pub mod version;

pub mod code;

mod failure;

pub mod number;

pub mod fault_number;

pub mod device;

pub mod resources;

pub mod memory;

pub mod registration;

pub mod slab;

pub mod slab_cache;

pub mod port;

pub mod channel;

pub mod cq;

pub mod srq;

pub mod qp_attr;

pub mod qp;

pub mod tcp;

pub mod cm;

pub mod ah;

pub mod modify;

pub mod xrc;

pub mod mw;

pub mod wr;

pub mod post;

pub mod direct;

pub mod batch;

pub mod wc;

pub mod completion;

pub mod event;

pub mod dump;

pub mod fault;

pub mod fault_text;

pub mod link;

pub mod log;

pub mod monitor;

pub mod soft;

mod array;
mod entered;
mod handle;
mod sized;
#[cfg(test)]
mod tests;
mod transport;
mod used;
mod waits;
