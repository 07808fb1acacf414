//! librdmacm.
//!
//! Its objects have no lock of their own: calls write an id's fields, and so does whoever gets an event
//! of it. So one lock is around all its calls (`ids`); none of them waits, for descriptors do not block
//! and every event is acknowledged before the lock is given back. That the program holds an event is our
//! own affair: it holds the id.
//!
//! The queue pair is not librdmacm's: it is told numbers, and asked for attributes (`rdma_init_qp_attr`,
//! `rdma_establish`). The contexts that it opens for itself are used for their devices' names alone.

mod channel;
mod id;
mod ids;
mod raw;
mod sockaddr;

pub(super) use channel::Channel;
pub(super) use id::Id;
