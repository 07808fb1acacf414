//! The communication manager of librdmacm.
//!
//! Its objects have no locks of their own: calls write an id's fields, and so does taking an event of it.
//! So one lock surrounds all its calls (`ids`). None of them blocks, because the descriptors are
//! non-blocking and every event is acknowledged before the lock is released. An event that the program
//! holds keeps its id alive on our side only.
//!
//! librdmacm does not own the queue pair: it is only given numbers, and asked for attributes
//! (`rdma_init_qp_attr`, `rdma_establish`). The contexts that it opens itself are used only for their
//! devices' names.
//!
//! The contexts stay open until the process ends: the kernel removes an rxe device only then. A channel
//! opens each device once for its ids.
//!
//! Ids are found by the address of librdmacm's own. An id whose last handle has been dropped is not
//! found any more, and its events are dropped.

mod channel;
mod id;
mod ids;
mod raw;
mod sockaddr;

pub(super) use channel::Channel;
pub(super) use id::Id;
