//! Nodes of a fabric: software HCAs in several processes that find each other by the fabric's name, and the
//! memory that each pair of them shares.
//!
//! ```text
//!  process A                                     process B
//!  Node ── listens at "…/NAME/0" ◄── connects ── Node (first free place)
//!    │            hello, descriptors (SCM_RIGHTS), the peer's user checked
//!    ├─ segment that A writes and B reads: lines of packets, how far A has read B's
//!    └─ segment that B writes and A reads: the same the other way round
//! ```
//!
//! Shared memory contains no pointers. Each segment is sealed, so that only its owner can write it. What is
//! read from a peer's segment is copied first, then checked, then used.
//!
//! Addresses are in the kernel's abstract namespace and memory is in memfds, so nothing is left behind,
//! however a process ends.
//!
//! - **Death.** A node ends a link when the peer's process ends, which its pidfd shows, or when the peer's socket
//!   closes, as on exec(3). Requests to that peer then fail with `RETRY_EXC_ERR`, within the time that their queue
//!   pair's attributes give. So do requests to a process that is stopped, if it reads nothing for 250 ms over all
//!   retries.
//! - **What a peer can write.** A peer to which a region is open has the region's whole mapping mapped. A malicious
//!   peer can write to all of the mapping, unless it was registered without write rights for peers: then it is
//!   sealed (`F_SEAL_FUTURE_WRITE`), and peers map it for reading.
//! - **Limits.** A process that is stopped within a copy, and continues after more than 250 ms, finishes the copy.
//!   The copy stays within the region that was open to the process. READs of memory that is not mapped, WRITEs to
//!   it, and all operations on hugetlb pages need the peer's thread.
//! - **Charging.** A page of a peer's memory is charged to the process that touches it first. Under strict
//!   overcommit (`vm.overcommit_memory` 2) without memory left, the touch raises SIGBUS.

mod address;
mod attention;
mod callers;
mod calls;
mod export;
#[cfg(fuzzing)]
pub mod fuzzing;
mod hello;
mod linked;
mod meeting;
mod name;
mod node;
mod number;
mod open;
mod owner;
mod peer;
mod places;
mod reading;
mod segment;
#[cfg(any(loom, all(test, miri)))]
mod shared;
mod size;
mod window;
mod wire;

pub use attention::Attention;
pub use export::{Export, MEMORIES, Memory, Shown};
pub use linked::behind;
pub use meeting::Meetings;
pub use name::{Kind, Name};
pub use node::{Agreed, Node, lid};
pub use number::Number;
pub use open::{Refusal, open_memory};
pub use owner::Owner;
pub(crate) use owner::{prefix_of, user_of};
pub use peer::{Link, Peer};
pub use reading::{PendingAcks, Reads};
pub use segment::Published;
pub use size::{Besides, MOST_SHORT, Size};
pub use window::Mapped;
pub use wire::{CarriedAck, Front, Header, IN_LINE, InPlace, MAX_PACKET, Packet, Send, Sending};

/// Maximum number of nodes in a fabric.
pub const MAX_NODES: usize = 4096;

/// The nodes in the first places connect to each other when they join. All others connect when they have to do
/// with each other, because so many links for each node would cost more than the fabric.
pub const ACQUAINTED: usize = 64;
