//! bellwire is an RDMA data plane: memory, devices and connections for the queues and entries of
//! `bellwire-core`. This is the crate that Rust programs depend on.

pub mod memory;
