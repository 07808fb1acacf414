//! ConnectX completion queue entries (CQEs): their ownership, their contents, and how a device
//! writes them.
//!
//! A completion queue is a ring of `cqe_cnt` (a power of two) entries of 64 or 128 bytes. The
//! device fills them in order. The lowest bit of an entry's last byte says on which lap it was
//! written, from which the consumer sees whether the entry at its counter `ci` is new. Both sides
//! use free-running counters and mask them on access.
//!
//! A slot is identified by a pointer to its [`Cqe64`], which in entries of 128 bytes is the second
//! half.
//!
//! Sources: `mlx5dv.h` and `providers/mlx5` of rdma-core; for compressed CQEs see
//! [`expand_in_place`]. `tests/data/mlx5` holds CQEs with the completions that rdma-core made of
//! them.

mod compressed;
mod device;
mod entry;
mod inline;
mod opcode;
mod ring;
mod syndrome;

pub use compressed::{MalformedBlock, MiniFormat, expand_in_place};
pub use device::{CompletedWqe, PlainCqe, Source};
pub use entry::Cqe64;
pub use inline::{Cqe128, scatter};
pub use opcode::{CqeFormat, CqeOpcode, WcFlags};
pub use ring::{is_sw_owned, owner_bit};
pub use syndrome::Syndrome;
