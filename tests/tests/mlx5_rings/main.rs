//! Queues of a ConnectX device by themselves: what core writes and reads is what was recorded from rdma-core,
//! and what no device should write does no harm. Queues borrow their memory for good: `xtask/lsan.supp` has
//! this program's name.

mod arm;
mod cqe;
mod garbage;
mod recv;
mod send;
