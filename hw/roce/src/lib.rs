//! RoCE v2 as a protocol: RDMA over UDP, without sockets, threads or clocks.
//!
//! Packets, time and memory go in; packets, timers and completions come out. So one text serves a UDP socket, a wire that
//! loses packets in a test, and a fuzzer. No function waits or calls the system, and memory is reserved when an object is
//! made. There is no unsafe code.
//!
//! ```text
//!   requests                                                    receives, memory
//!      │ post            ┌── datagrams ──►                        ▲ Target
//!  Requester ── Transmit ┤ Header::encode, icrc::seal             │
//!      ▲                 │                 icrc::check, Packet ► Responder
//!      │ completions     ◄── datagrams ──┤                        │
//!      └─ Packet, icrc::check              seal, encode ◄ Transmit┘
//! ```
//!
//! | module | what it has |
//! |---|---|
//! | [`opcode`] | the table of opcodes, and which headers each has |
//! | [`packet`] | headers, encoded and decoded |
//! | [`icrc`] | the checksum, which covers the IP header, too |
//! | [`Requester`], [`Responder`] | reliable connections: numbers, acknowledgements, retries, a window |
//! | [`UcSender`], [`UcReceiver`] | unreliable connections |
//! | [`Datagram`] | unreliable datagrams |
//! | [`cm`] | messages of the communication manager |
//!
//! A peer is not trusted. The caller's [`Target`] checks each address, key and length that a packet names. The memory that
//! a peer can make an end keep is bounded by attributes of this end. A packet whose number is not awaited changes nothing.
//! RoCE has no authentication: an attacker that reads a connection's packets can forge others. An attacker that does not
//! has to guess 24 bits of a queue pair number and 24 bits of a packet's number.
//!
//! Credits of acknowledgements are not used: a requester sends, and waits if it reads an RNR NAK.
//!
//! ```
//! use bellwire_core::{qp::Mtu, wr::WcStatus};
//! use bellwire_roce::{Extra, Psn, Request, Requester, RequesterAttr, Verb};
//! use core::time::Duration;
//!
//! let mut requester = Requester::new(
//!     &RequesterAttr {
//!         dest_qp: 17,
//!         mtu: Mtu::Mtu1024,
//!         sq_psn: Psn::new(0xabcdef),
//!         timeout: 14,
//!         retry_cnt: 7,
//!         rnr_retry: 7,
//!         max_rd_atomic: 1,
//!     },
//!     16,
//! )?;
//! let verb = Verb::Send(Extra::Nothing);
//! let send = Request { id: 1, verb, length: 3000, solicited: false, fence: false };
//! requester.post(send).unwrap();
//!
//! let now = Duration::ZERO;
//! let packets: Vec<_> = std::iter::from_fn(|| requester.poll_transmit(now)).collect();
//! assert_eq!(packets.len(), 3);
//! assert!(packets[2].header.bth.ack_request);
//! // Nobody answers: after the eighth time-out the request fails.
//! while let Some(time) = requester.poll_timeout() {
//!     requester.handle_timeout(time);
//!     while requester.poll_transmit(time).is_some() {}
//! }
//! assert_eq!(requester.poll_completion().unwrap().status, WcStatus::RetryExcErr);
//! # Ok::<_, std::collections::TryReserveError>(())
//! ```

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![forbid(unsafe_code)]
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod arrival;
pub mod cm;
mod datagram;
pub mod icrc;
pub mod opcode;
pub mod packet;
mod psn;
mod request;
mod requester;
mod responder;
mod unreliable;
mod window;

pub use arrival::{Access, Arrival, Atomic, Range, Refusal, Target};
pub use datagram::Datagram;
pub use psn::Psn;
pub use request::{Extra, Payload, Request, Span, Transmit, Verb};
pub use requester::{
    Completion, Refused, Requester, RequesterAttr, RequesterCounters, Results, Unplaceable,
};
pub use responder::{Responder, ResponderAttr, ResponderCounters};
pub use unreliable::{UcReceiver, UcSender};
