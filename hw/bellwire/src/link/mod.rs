//! Connections that recover from faults under a running program.
//!
//! A [`Link`] is a reliable connection together with its queues. A fault is classified
//! ([`fault::classify`](crate::fault::classify)) and recovered from step by step
//! ([`fault::plan`](crate::fault::plan)), together with the link at the other end. The outcome of every
//! request is reported exactly once ([`fault::outcome`](crate::fault::outcome)). Memory, keys and the
//! link itself are kept. Receives are posted again; sends as their [`Replay`] says.
//!
//! ```
//! use bellwire::fault::outcome::{Outcome, Replay};
//! use bellwire::memory::Mapping;
//! use bellwire::link::{Link, LinkInit, LinkState, pair};
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
//! let mut received = Vec::new();
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
//!         a.poll(16, |completion| sent = completion.outcome == Outcome::Done);
//!         b.poll(16, |completion| {
//!             came = completion.outcome == Outcome::Done;
//!             let length = completion.success.and_then(|success| success.byte_len()).unwrap_or(0);
//!             let block = completion.block.expect("posted with one");
//!             received.push(block.as_slice()[..length as usize].to_vec());
//!         });
//!     }
//!     Ok::<(), bellwire::link::LinkError>(())
//! };
//! send(&mut a, &mut b, b"hello")?;
//!
//! let qpn = a.qp_num().expect("it works");
//! let soft = device.as_soft().expect("it is one");
//! soft.inject(&Script::default().with(Trigger::After(Duration::ZERO), Fault::QpFatal(qpn)))?;
//! while a.epoch() == 1 {
//!     device.progress();
//!     a.poll(16, |_| ());
//!     b.poll(16, |_| ());
//! }
//! send(&mut a, &mut b, b"again")?;
//! assert_eq!(received, [b"hello", b"again"]);
//! assert_eq!(a.drain(Duration::from_secs(1), |_| ()).reported, 0);
//! assert_eq!(slab.outstanding(), 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How two ends recover The end that fails stops its queue pair and sends the peer its new address and the
//! number of receives that it consumed. The peer does the same. Both connect again, settle the requests in
//! flight by the other's count, and post again the requests that need it. `bellwire_core::link` has this
//! protocol, as a state machine that both ends run.
//!
//! - The [`Exchange`] carries the messages; each is checked before it is used. When the exchange fails
//!   the link ends: the peer is gone, or sends invalid messages.
//! - An end that starts over is another process, which knows nothing of the link: the link ends with
//!   [`EndReason::PeerRestarted`](crate::fault::plan::EndReason::PeerRestarted).
//! - The first connection is made in the same way. Receives may be posted before it, and at any time
//!   while it is made: those posted before the queue pair accepts receives are kept and posted in order
//!   as soon as it does. If the link ends before it is connected, they are reported as not executed.
//!
//! # Polling
//! All of this happens in [`Link::poll`], which never blocks, or in a thread ([`RecoverIn::Thread`]). A
//! link that is not polled neither recovers nor replies to a peer that does. A poll that finds
//! completions does nothing else; of the polls that find none, one in [`LinkInit::check_every`] checks the
//! exchange and the device's asynchronous events.
//!
//! # How long it takes
//! A link that is polled, or recovers in a thread, works again within [`Limits::max_duration`] of a fault, 20 s
//! by default, or has ended and every outcome can be polled. This holds whatever the peer, the port or
//! the device does, as long as the program's own functions do not block. [`Link::drain`] takes the time
//! it is given, plus the time the driver takes to destroy the queues. Over TCP, a peer whose host
//! vanishes is noticed within 10 s.
//!
//! # What no completion reports
//! A request can stay in flight for ever without anything having failed: its receive is never posted and is
//! waited for without end, or a queue pair stops. [`LinkInit::request_deadline`] makes that a fault. While
//! nothing is in flight a peer whose host has lost its power is not missed either:
//! [`LinkInit::keep_alive`] asks it. Both are found by the checks of polls, and cost the data path nothing.
//!
//! # Sleeping
//! With [`LinkInit::waitable`] a link has a descriptor that is readable when the link has to be polled. It
//! stays the same through all recoveries, and works during them: [`Link::arm`] has an example. It does
//! not include descriptors that links share, so any number of links may be in one epoll. The software HCA
//! itself wakes the links that an asynchronous event concerns; for a libibverbs context a thread waits
//! for its events, for as long as the context has links that sleep.
//!
//! [`Link::wait`] and [`LinkSet::wait`] do the whole of it: they poll for a while, which is [configurable](Wait),
//! then arm and sleep, and return what has come.
//!
//! # Many links
//! A server with thousands of peers does not poll thousands of links: a [`LinkSet`] has links on shared
//! completion queues, and on a shared receive queue, polls once for all, and sleeps on one descriptor.
//!
//! # Cost
//! Posting stores the request's [`Replay`] in a byte, and counts the request if it consumes a receive.
//! Polling counts receives. There is no allocation, system call or lock before something fails.
//!
//! # What a program has to know
//! - While the link recovers, posts are refused with [`LinkError::Recovering`]; receives only after the
//!   first connection.
//! - A request that [`Replay`] allows to be posted again keeps its place: requests that were posted after
//!   it and are posted again too stay behind it. It is not ordered against requests that were already
//!   reported.
//! - A request that itself failed is posted again once; if it fails again it is reported. A request whose
//!   connections fail is posted again for no longer than [`Limits::recovery`].
//! - `LOC_QP_OP_ERR` after a `PORT_ERR` of the link's port is treated as a missing reply: rxe fails every
//!   request that it has no route for with this status, which says nothing about the request.
//! - Memory windows of type 2 belong to the queue pair: see [`Link::post_bind`].
//! - Receives whose completions were lost with a completion queue are posted again. A message that such a
//!   receive may have taken is lost, and in doubt at its sender.

// The modules:
//
// - `handle` and `post` are what the program calls, `query` what it reads.
// - `member` is a link without its completion queue: what a plain link and a link of a set have in common.
//   `set` has sets.
// - `active_queues` is what the data path accesses. `early` has the receives that the program posts while the
//   link connects for the first time; `state` keeps them until the queue pair has those posted before.
// - `state` is the rest, in a box: it does what core's protocol asks for. It can be moved to a thread
//   (`worker`) and back; what the program asks for meanwhile is sent to the thread as commands.
// - `steps` is what each step is on a device. `drain` takes what completes meanwhile and what does not;
//   `settle` reports it or posts it again. `recovering_queues` has the queues meanwhile; `repost` reads
//   entries back from the rings and posts them again.
// - `in_flight` has the sends whose queue pair failed before they were reported, and core's verdict on them.
// - `on_srq` is what a link knows of a queue pair that receives from its set's shared receive queue.
// - `peer` carries messages between the protocol and the `exchange`.
// - `dispatch` and `event_hook` deliver asynchronous events.
// - `cancel` takes requests back that the program cancels, or whose deadlines pass.
// - `grant` lends memory to the peer, and takes it back before the request that lent it is reported.
// - `watch` finds, while a link works, requests that miss their deadline and a peer that is lost.
// - `wake` is the descriptor that a program sleeps on.

mod active_queues;
mod cancel;
mod completion;
mod counters;
mod dispatch;
mod drain;
mod early;
mod event_hook;
mod exchange;
mod grant;
mod handle;
mod in_flight;
mod init;
mod member;
mod monitor;
mod on_srq;
mod peer;
mod post;
mod query;
mod recovering_queues;
mod repost;
mod set;
mod settle;
mod state;
mod steps;
mod wait;
mod wake;
mod watch;
mod worker;

#[cfg(doc)]
use crate::fault::{outcome::Replay, plan::Limits};
pub use cancel::{Cancel, CancelError};
pub use completion::{LinkCompletion, LinkEnd, LinkError, Refused};
pub use counters::Counters;
pub use dispatch::DeviceEvent;
pub(crate) use dispatch::Dispatcher;
pub use exchange::{Exchange, ExchangeError, LocalExchange, pair};
pub use grant::{Grant, GrantError, RefusedGrant};
pub use handle::{Drained, Link, LinkState};
pub use init::{FaultReport, LinkInit, RecoverIn, RecoveryReport};
pub use monitor::{LinkMonitor, LinkSetMonitor};
pub use set::{JoinError, LinkId, LinkSet, LinkSetInit, LinkSetSrq, NoLink, SetLink};
pub use wait::Wait;
