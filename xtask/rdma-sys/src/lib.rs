//! Has `rdma-sys` built, for what its build script writes.
