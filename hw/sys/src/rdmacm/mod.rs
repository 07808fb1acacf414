//! librdmacm (`rdma/rdma_cma.h`).

mod functions;
mod numbers;
mod types;

pub use functions::*;
pub use numbers::*;
pub use types::*;
