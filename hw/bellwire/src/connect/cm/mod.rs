//! Connections by address and port: the communication manager (rdma_cm(7)), with librdmacm or the
//! software HCA as its provider. A program that uses it runs with either.
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
//! ```
//! use bellwire::connect::cm::{ConnParam, EventChannel, EventKind, Id, PortSpace};
//! use bellwire::wqe::Send;
//! use bellwire::wr::SendFlags;
//! use bellwire::{AccessFlags, Cq, Qp, QpInit};
//! use std::time::Duration;
//!
//! const SOON: Duration = Duration::from_secs(5);
//!
//! // A queue pair for an id, in INIT: receives are posted here.
//! fn end(id: &Id) -> Result<(Qp, Cq), Box<dyn std::error::Error>> {
//!     let device = id.device()?.expect("bound by its address");
//!     let init = QpInit::default();
//!     let (sends, receives) = init.cq_entries();
//!     let mut cq = device.create_cq(sends + receives)?;
//!     let mut qp = device.alloc_pd().create_qp(&mut cq, &init)?;
//!     id.init_qp(&mut qp, AccessFlags::empty())?;
//!     unsafe { qp.rq().post(1, &[])? }; // SAFETY: names no memory
//!     qp.rq().ring();
//!     Ok((qp, cq))
//! }
//!
//! // Both ends in one thread, by one channel; "rdma" and the host's address do as well.
//! let channel = EventChannel::open("soft")?;
//! let next = || Ok::<_, bellwire::Error>(channel.get(SOON)?.expect("in time").ack());
//! let listener = channel.id(PortSpace::Tcp)?;
//! listener.bind(("127.0.0.1", 7471))?;
//! listener.listen(8)?;
//!
//! let client = channel.id(PortSpace::Tcp)?;
//! client.resolve_addr(None, ("127.0.0.1", 7471), SOON)?;
//! assert!(matches!(next()?, EventKind::AddrResolved));
//! client.resolve_route(SOON)?;
//! assert!(matches!(next()?, EventKind::RouteResolved));
//! let (mut a, mut a_cq) = end(&client)?;
//! client.connect(&a, &ConnParam { private_data: b"who?".to_vec(), ..ConnParam::default() })?;
//!
//! let EventKind::ConnectRequest { id: server, conn } = next()? else { panic!() };
//! assert!(conn.param.private_data.starts_with(b"who?"));
//! let (mut b, _b_cq) = end(&server)?;
//! server.accept(&mut b, &ConnParam::default())?;
//! assert!(matches!(next()?, EventKind::ConnectResponse { .. }));
//! client.establish(&mut a)?;
//! assert!(matches!(next()?, EventKind::Established));
//!
//! a.sq().post_inline(2, (), Send {}, b"", SendFlags::SIGNALED)?;
//! a.sq().ring();
//! let sent = loop {
//!     if let Some(completion) = a_cq.poll_one() { break completion }
//! };
//! assert!(sent.result.is_ok());
//!
//! client.disconnect(&mut a)?;
//! assert!(matches!(next()?, EventKind::Disconnected)); // the server's
//! server.disconnect(&mut b)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The communication manager exchanges what the two queue pairs need to know of each other, and provides
//! the attributes that follow from it. The queue pair remains the program's [`Qp`](crate::Qp), and every
//! change of its state goes through it, so its guarantees for requests hold here too. A queue pair that
//! is [put on its id](Id::put_qp) changes its state as events are received, without `establish`.
//!
//! An [`Event`] is acknowledged once, when it is dropped. An [`Id`] is destroyed when its last handle and
//! its last event are dropped, anywhere, also inside an event handler, and without blocking.
//!
//! - librdmacm never gets a queue pair: `Id` changes the program's queue pair by `Qp::modify`, with the attributes
//!   of `rdma_init_qp_attr`. So every connecting end gets CONNECT_RESPONSE and calls `establish`.
//! - Ids are of reliable connections and datagrams only: rdma_create_id(3) creates none of UC or XRC.
//! - The device and this end's own offer bound the peer's numbers. Private data is the program's to check.

mod attempts;
mod channel;
mod event;
mod id;
mod link;
mod on_id;
mod param;
mod path;
mod rdma;
mod share;
mod soft;
#[cfg(fuzzing)]
pub use {link::fuzz as fuzz_private_data, soft::fuzz as fuzz_message};

pub use bellwire_provider::address::Tried;
pub use channel::EventChannel;
pub use event::{Conn, Event, EventKind, Multicast, UdPeer};
pub use id::Id;
pub use link::{Connector, Incoming, Listener, Outgoing, Retry};
pub use param::{ConnParam, Membership, Peer, PortSpace, PrivateData};
