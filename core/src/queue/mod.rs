//! Queues: a ring, a doorbell, and a ledger of what is in flight.
//!
//! ```text
//!  SendQueue ──stage──► ring ──ring──► device ──► completion ring ──poll──► CompletionQueue
//!      │                                                                         │
//!      └──────────────── Ledger: wr_id, buffer, counter of each request ─────────┘
//! ```
//!
//! - Staging writes the WQEs; ringing the doorbell notifies the device. A batch rings once.
//! - A request is refused if it would overwrite one in flight.
//! - A completion retires all earlier unsignalled requests of its queue and returns each buffer.
//! - Attaching a queue to a completion queue reserves one CQE for each of its ring slots, so that
//!   there is room to flush every request.
//!
//! # Threads
//! A queue has one owner at a time and no lock: methods that change it take `&mut`. A send or
//! receive queue and the completion queue that reports its completions may have different owner
//! threads.

mod attach;
mod completion;
mod cq;
mod doorbell;
mod error;
mod history;
mod ledger;
mod life;
#[cfg(all(test, any(loom, miri)))]
mod loom;
mod naming;
mod number_table;
mod recv;
mod send;
mod srq;
mod srq_device;
mod tally;
#[cfg(all(test, not(loom)))]
mod tests;

pub use crate::wqe::PostError;
pub use attach::{Attach, AttachError, QueueSlot, SrqUser, UserIndex};
pub use completion::{Completion, Failure, Imm, RawSuccess, Success, Unfinished};
pub use cq::{CompletionQueue, CqMemory, Plain, Received};
pub use doorbell::{BlueFlame, Private, Register, Shared, SharedRegister};
pub use error::{BadRequest, Rejected};
pub use history::{Past, PastCqe, Standing};
pub use ledger::{Ledger, LedgerSlot};
pub use naming::{ByQpNum, ByUserIndex, Naming};
pub use number_table::{NumberError, NumberSlot, NumberTable};
pub use recv::RecvQueue;
pub use send::{SendQueue, SendQueueInit, SendRequest};
pub use srq::{SharedRecvQueue, SrqLedger, SrqSlot};
pub use srq_device::{Popped, SrqConsumer};
pub use tally::{Posted, Tally};
