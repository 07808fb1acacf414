//! Connections by address and port: the communication manager (rdma_cm(7)), of librdmacm with the
//! feature `cm`, and of the software HCA always. A program that uses it runs on either.
//!
//! ```text
//!   client                                    server
//!   channel.id(Tcp)                           channel.id(Tcp)
//!   resolve_addr ──► AddrResolved             bind, listen
//!   resolve_route ──► RouteResolved
//!   init_qp, post receives
//!   connect ─────────────────────────────────► ConnectRequest, with an id of its own
//!                                               init_qp, post receives
//!   ConnectResponse ◄──────────────────────────  accept
//!   establish ───────────────────────────────► Established
//!   disconnect ──────────────────────────────► Disconnected ──► disconnect
//!   Disconnected ◄──┘
//!   TimewaitExit                                TimewaitExit
//! ```
//!
//! The communication manager exchanges what two queue pairs have to know of each other, and says which
//! attributes follow from it; the queue pair stays the program's [`Qp`](crate::Qp), and every change of
//! its state goes through it. So what it has promised of each request holds here, too.
//!
//! An [`Event`] is acknowledged once, by whoever drops it. An [`Id`] is destroyed when its last handle
//! and its last event are gone, wherever that is: inside a handler as well, and without waiting for
//! anything.

mod channel;
mod event;
mod id;
mod link;
mod param;
#[cfg(feature = "cm")]
mod rdma;
mod soft;

pub use channel::EventChannel;
pub use event::{Conn, Event, EventKind, Multicast, UdPeer};
pub use id::Id;
pub use link::{Connector, Incoming, Listener, Outgoing, Retry};
pub use param::{ConnParam, Membership, Peer, PortSpace, PrivateData};
pub(crate) use soft::Managers;
