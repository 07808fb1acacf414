//! Where registered regions come from: huge pages, shared memory, files, NUMA nodes, locking.
//!
//! All of it is set-up work: it makes system calls, reads `/proc` and `/sys`, and allocates. What
//! it hands out, a [`Mapping`], is touched through and through, so that the data path that runs in
//! it never takes a page fault.
//!
//! Every failure is a [`MemoryError`] whose text says what to do about it, and leaves nothing
//! mapped, open or locked.
//!
//! ```
//! use bellwire::memory::{Mapping, Pages};
//!
//! let region = Mapping::anonymous(8 << 20).pages(Pages::Auto).build()?;
//! println!("{region}"); // such as "8 MiB in 4 hugetlb pages of 2 MiB"
//! assert!(region.len() >= 8 << 20);
//! # Ok::<(), bellwire::memory::MemoryError>(())
//! ```

mod error;
mod file;
mod lock;
mod mapping;
mod numa;
mod pages;
mod region;
mod shared;
mod size;
mod smaps;

#[cfg(test)]
mod pool;

pub use error::MemoryError;
pub use file::FileMapping;
pub use lock::memlock_limit;
#[cfg(feature = "verbs")]
pub(crate) use lock::pin_limit;
pub use mapping::{Mapping, MappingBuilder};
pub use numa::{numa_node_of, online_nodes};
pub use pages::{PageKind, Pages};
