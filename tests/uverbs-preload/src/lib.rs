//! A stand-in for the kernel below the stock libibverbs and libmlx5.
//!
//! Preloaded, it plays the uverbs character device of a ConnectX-5 and its sysfs, and runs the software
//! HCA behind the rings that the provider makes. Everything above runs unmodified, with neither NIC
//! nor kernel support:
//!
//! ```text
//! a program ── libibverbs ── libmlx5, or code that posts to its rings
//!   │ sysfs        │ open, write, mmap, read         │ entries, records, registers
//!   ▼              ▼                                 ▼
//! sysfs        hook, descriptors                  uar ◄── watched by ── engine
//!                  │                                                      │
//!                  ▼                                                      ▼
//!              command/*, by the layouts of abi ─────────────► bellwire::rings, the software HCA
//! ```
//!
//! - **hook** has libc's functions that libibverbs and libmlx5 call. What is none of ours goes to
//!   libc.
//! - **sysfs** makes the folder that `SYSFS_PATH` names. Real devices are not seen: RDMA netlink is
//!   refused, so that libibverbs looks there.
//! - The ioctl of the newer ABI is answered `ENOTTY`, so that commands come by `write()`. What has no
//!   such form is not there: device memory, counters, dma-bufs, DEVX.
//! - **engine** is one thread, the device's: it watches the register pages, and executes.
//!
//! What is to go wrong is ordered by a function that the library adds, `uverbs_preload_control`; a
//! program finds it by dlsym(3), or declares it weak. With `UVERBS_PRELOAD_JOURNAL=1` the device notes
//! what it executes, and `uverbs_preload_journal` reports it. `uverbs_preload_place` says
//! where rings are, for who has the device pause and looks at what is written there.
//!
//! Environment: with `UVERBS_PRELOAD_FABRIC=NAME` the device is a node of the fabric `soft:NAME`, so
//! that processes reach each other; without, each process is alone with its device.
//!
//! What a real kernel does and this does not: it does not keep memory that is unmapped while it is
//! registered or has rings in it, and it does not know descriptors that were duplicated. A child that
//! is forked after the device was opened cannot use it. A process that is killed leaves its folder of
//! sysfs behind, in the folder for temporary files. Needs Linux 5.14 (`MADV_POPULATE_WRITE`).
//!
//! # As on a NIC, and not
//! - **Rings.** `CREATE_CQ`, `CREATE_QP` and `CREATE_SRQ` carry their addresses. The pages are
//!   populated once, as pinning them would do.
//! - **Registers** are memory. A doorbell record alone executes nothing: a program that does not ring
//!   the doorbell is not served, as by a NIC.
//! - **Resizing** a completion queue is announced by the last entry of its old ring, as by a NIC; the
//!   HCA is paused meanwhile.
//! - **Arming** is noticed late. So completions that are already in the queue behind the index that it
//!   names raise an event at once, as on a NIC.
//! - **Commands** and their responses are copied by process_vm_readv(2) and process_vm_writev(2), so
//!   that a bad address is `EFAULT`. Handles, lengths and sizes are checked: `tests/c/bad.c` passes
//!   invalid ones.
//! - **Events** that were read are counted for the responses of the commands that destroy an object,
//!   because libibverbs waits until it has acknowledged as many.
//! - **Faults.** A device that failed stays failed for each process that has it open. After `reset`,
//!   processes that open it find another one. After `pause` the device looks at no ring and no register
//!   until `resume`.
//!
//! `tests/stock` runs the C programs of `tests/c` and those of rdma-core; those that need two processes
//! run on a fabric of the software HCA.

mod abi;
mod command;
mod context;
mod control;
mod descriptors;
mod engine;
mod events;
mod hook;
mod journal;
mod memory;
mod object;
mod places;
mod real;
mod sysfs;
mod uar;
