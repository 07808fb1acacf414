//! The tables of faults: their page is fresh, and their names and numbers are those of rdma-core and
//! of this system. `cargo xtask faults` writes the page.

mod device;
mod names;
mod page;
mod texts;
