//! Memory to register: huge pages, shared memory, files, NUMA nodes, locking.
//!
//! This is set-up work: it makes system calls, reads `/proc` and `/sys`, and allocates. Every page of a
//! [`Mapping`] is populated when it is created, so the data path takes no page fault in it.
//!
//! Programs use this crate as `bellwire::memory`.
//!
//! Every failure is a [`MemoryError`] whose text says what to do about it, and leaves nothing mapped, open or
//! locked.
//!
//! ```
//! use bellwire_memory::{Mapping, Pages};
//!
//! let region = Mapping::anonymous(8 << 20).pages(Pages::Auto).build()?;
//! println!("{region}"); // such as "8 MiB in 4 hugetlb pages of 2 MiB"
//! assert!(region.len() >= 8 << 20);
//! # Ok::<(), bellwire_memory::MemoryError>(())
//! ```

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod available;
mod error;
pub mod fault;
mod file;
mod file_limit;
pub mod fork;
mod limits;
mod lock;
mod mapping;
mod numa;
mod pages;
mod probe;
mod region;
mod shared;
mod size;
mod smaps;

#[cfg(test)]
mod pool;

pub use error::MemoryError;
pub use file::FileMapping;
pub use file_limit::set_length;
pub use limits::{Advice, ProcessLimit};
pub use lock::{memlock_limit, pin_limit};
pub use mapping::{Mapping, MappingBuilder};
pub use numa::{numa_node_of, online_nodes};
pub use pages::{PageKind, Pages};
pub use probe::{Use, probe};
