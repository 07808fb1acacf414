//! Connections that recover under a running program.
//!
//! A [`Link`] is a reliable connection with its queues. What fails is classified
//! ([`fault::classify`](crate::fault::classify)), recovered step by step
//! ([`fault::plan`](crate::fault::plan)) together with the link at the other end, and every request is
//! told exactly once with what became of it ([`fault::outcome`](crate::fault::outcome)). Memory, keys
//! and the link itself stay as they are. Receives are posted again; sends as their [`Replay`] says.
//!
//! ```
//! use bellwire::fault::outcome::{Outcome, Replay};
//! use bellwire::memory::Mapping;
//! use bellwire::recovery::{Link, LinkInit, LinkState, pair};
//! use bellwire::soft::{Fault, Script, Trigger};
//! use bellwire::wqe::Send;
//! use bellwire::wr::SendFlags;
//! use bellwire::{AccessFlags, ClassLayout, Device, Region, Slab};
//! use std::time::Duration;
//!
//! let device = Device::soft(Default::default());
//! let pd = device.alloc_pd();
//! let layout = [ClassLayout { size: 4096, count: 16 }];
//! let mapping = Mapping::anonymous(Slab::bytes(&layout)?).build()?;
//! let slab = Slab::new(Region::new(&pd, mapping, AccessFlags::LOCAL_WRITE)?, &layout)?;
//!
//! // Over TCP: `connect::tcp::Connection::into_exchange`.
//! let (here, there) = pair();
//! let mut a = Link::new(&pd, LinkInit::default(), here)?;
//! let mut b = Link::new(&pd, LinkInit::default(), there)?;
//! for wr_id in 0..2 {
//!     b.post_recv_block(wr_id, slab.take(4096)?)?;
//! }
//! b.ring_recv();
//!
//! let mut heard = Vec::new();
//! let mut send = |a: &mut Link, b: &mut Link, text: &[u8]| {
//!     // Polling connects, and recovers.
//!     while [a.state(), b.state()] != [LinkState::Ready; 2] {
//!         a.poll(16, |_| ());
//!         b.poll(16, |_| ());
//!     }
//!     a.post_inline(7, Send {}, text, SendFlags::SIGNALED, Replay::IfSafe)?;
//!     a.ring();
//!     let (mut sent, mut came) = (false, false);
//!     while !(sent && came) {
//!         a.poll(16, |told| sent = told.outcome == Outcome::Done);
//!         b.poll(16, |told| {
//!             came = told.outcome == Outcome::Done;
//!             let length = told.success.and_then(|success| success.byte_len()).unwrap_or(0);
//!             let block = told.block.expect("posted with one");
//!             heard.push(block.as_slice()[..length as usize].to_vec());
//!         });
//!     }
//!     Ok::<(), bellwire::recovery::LinkError>(())
//! };
//! send(&mut a, &mut b, b"hello")?;
//!
//! let qpn = a.qp_num().expect("it works");
//! device.inject(&Script::default().with(Trigger::After(Duration::ZERO), Fault::QpFatal(qpn)))?;
//! while a.epoch() == 1 {
//!     device.progress();
//!     a.poll(16, |_| ());
//!     b.poll(16, |_| ());
//! }
//! send(&mut a, &mut b, b"again")?;
//! assert_eq!(heard, [b"hello", b"again"]);
//! assert_eq!(a.drain(Duration::from_secs(1), |_| ()).told, 0);
//! assert_eq!(slab.outstanding(), 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How two ends recover
//!
//! ```text
//!    a                                                     b
//!    fault
//!    ERR, drain, RESET (or destroy and create)
//!    Info {epoch 2, queue pair, receives consumed} ──────► ERR, drain, RESET
//!        ◄────────────────────────────── Info {epoch 2, queue pair, receives consumed}
//!    INIT, receives again, RTR, RTS                        INIT, receives again, RTR, RTS
//!    Ready {epoch 2} ────────────────────────────────────►
//!        ◄──────────────────────────────────────────────── Ready {epoch 2}
//!    settle outcomes, replay, open                         settle outcomes, replay, open
//! ```
//!
//! - The [`Exchange`] brings the messages, each checked before it is used. What the exchange cannot
//!   bring ends the link: a peer that is gone, or makes no sense.
//! - Each connection has a number, its epoch. Whoever fails asks for the next one, which is a fault at
//!   the other end; both at once ask for the same. A fault in the midst of it asks for a further one.
//! - The count of consumed receives is of one connection. It is final when it is told, for the queue
//!   pair is in RESET then; whatever epoch it comes with, it settles what was posted on that connection.
//! - The first connection is made in the same way. Receives may be posted before it.
//!
//! # Polling
//! All of this happens in [`Link::poll`], which never waits; or in a thread
//! ([`RecoverIn::Thread`]). A link that is not polled does not recover, nor does it answer a peer that
//! does. A poll that finds completions does nothing else; one in [`LinkInit::look_every`] of those that
//! find nothing looks at the exchange and at the device's asynchronous events.
//!
//! # Cost
//! Posting notes the request's [`Replay`] in a byte, and counts it if it consumes a receive. Polling
//! counts receives. No allocation, system call or lock before something fails.
//!
//! # What a program has to know
//! - Posts are refused with [`LinkError::Recovering`] while it recovers.
//! - A request that [`Replay`] lets be posted again takes its old place: what was posted behind it and
//!   is posted again too stays behind it. What was told is not waited for.
//! - A request that failed of its own is posted again once; should it fail again it is told.
//! - Memory windows of type 2 belong to the queue pair: see [`Link::post_bind`].
//! - Receives whose completions were lost with a completion queue are posted again; the message that
//!   one may have had is lost, and in doubt at its sender.

mod closing;
mod counters;
mod dispatch;
mod drain;
mod exchange;
mod init;
mod inside;
mod life;
mod limbo;
mod link;
mod live;
mod peer;
mod post;
mod ring;
mod settle;
mod steps;
mod told;
mod wake;
mod worker;

#[cfg(doc)]
use crate::fault::outcome::Replay;
pub use counters::Counters;
pub use dispatch::DeviceEvent;
pub(crate) use dispatch::Dispatcher;
pub use exchange::{Exchange, ExchangeError, LocalExchange, pair};
pub use init::{FaultReport, LinkInit, RecoverIn, RecoveryReport};
pub use link::{Drained, Link, LinkState};
pub use told::{LinkEnd, LinkError, Refused, Told};
