//! ConnectX completion entry (CQE): who owns it, what it says, and how a device writes one.
//!
//! A completion queue is a ring of `cqe_cnt` (a power of two) entries of 64 or 128 bytes. The
//! device fills them in order; the lowest bit of an entry's last byte says on which lap it was
//! written, so that the consumer sees without any other message whether the entry that its counter
//! `ci` falls on is new. Both sides count freely and mask on access.
//!
//! A slot is named by a pointer to its [`Cqe64`]; in entries of 128 bytes that is the second half.
//!
//! Sources: `mlx5dv.h` and `providers/mlx5` of rdma-core; for compressed entries see
//! [`expand_in_place`]. `tests/data/mlx5` holds entries with what rdma-core made of them.

mod compressed;
mod device;
mod entry;
mod inline;
mod opcode;
mod ring;
mod syndrome;

pub use compressed::{MalformedBlock, MiniFormat, expand_in_place};
pub use device::{CompletedWqe, Source};
pub use entry::Cqe64;
pub use inline::{Cqe128, scatter};
pub use opcode::{CqeFormat, CqeOpcode, WcFlags};
pub use ring::{is_sw_owned, owner_bit};
pub use syndrome::Syndrome;
