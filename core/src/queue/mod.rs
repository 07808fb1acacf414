//! Queues: a ring, a doorbell, and a ledger of what is in flight.
//!
//! ```text
//!  SendQueue ──stage──► ring ──ring──► device ──► completion ring ──poll──► CompletionQueue
//!      │                                                                         │
//!      └──────────────── Ledger: wr_id, buffer, counter of each request ─────────┘
//! ```
//!
//! - Staging writes entries; ringing tells the device. A batch rings once.
//! - A request is refused rather than written over one in flight.
//! - A completion retires every earlier unsignalled request of its queue, and gives each buffer
//!   back.
//! - Attaching a queue to a completion queue reserves an entry for each of its ring slots, so that
//!   a flush of everything fits.
//!
//! # Threads
//! A queue has one owner at a time and no lock: `Send`, not `Sync`. A send or receive queue and the
//! completion queue that tells of it may be owned by different threads; [`crate::ring::mpsc`] feeds
//! one owner from many.

mod attach;
mod completion;
mod cq;
mod doorbell;
mod error;
mod history;
mod ledger;
mod life;
#[cfg(all(loom, test))]
mod loom;
mod naming;
mod recv;
mod send;
mod srq;
mod srq_device;
#[cfg(all(test, not(loom)))]
mod tests;

pub use attach::{Attach, AttachError, QueueSlot, SrqUser, UserIndex};
pub use completion::{Completion, Failure, Imm, Success, Unfinished};
pub use cq::{CompletionQueue, CqMemory, Plain};
pub use doorbell::{BlueFlame, Private, Register, Shared, SharedRegister};
pub use error::{BadRequest, PostError, Rejected};
pub use history::{Past, PastCqe, Standing};
pub use ledger::{Ledger, LedgerSlot};
pub use naming::{ByQpNum, ByUserIndex, Naming, NumberSlot};
pub use recv::RecvQueue;
pub use send::{SendQueue, SendQueueInit, SendRequest};
pub use srq::{SharedRecvQueue, SrqLedger, SrqSlot};
pub use srq_device::{Popped, SrqConsumer};
