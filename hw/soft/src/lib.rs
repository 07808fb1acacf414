//! The software HCA: a verbs device that needs neither a NIC nor a kernel module. It connects queue pairs
//! within one process and between the processes of one host.
//!
//! It reads and writes the same WQE and CQE formats as ConnectX devices, in the memory of core's queues.
//!
//! ```text
//!            data path: no lock, no system call                 control path: one lock
//!  ring ──► execute ───────► run ──► respond ──┐                lifecycle: create, modify, destroy
//!               │             │                ├─► receive      slow: wait, retry   fail: flush
//!               │             └────► datagram ─┘      │         under_lock: window, multicast
//!            quiesce         mr     qp, turn      srq, cq, copy inject, clock
//!               └────────────── when it cannot go on ──────────► slow
//! ```
//!
//! Execution is synchronous: by the time `run` goes on to the next request, the responder has executed and
//! acknowledged this one. Before a memory key or a connection is taken away, `quiesce` waits until no
//! execution uses it.
//!
//! Requests to another process leave `run` through `remote`; requests from another process arrive there.
//!
//! # The way of a request to another process
//! Out, from `execute`:
//! - a SEND of up to 32 bytes inline, or of up to 12 with immediate data: `remote::send::send_there`;
//! - other SENDs, and WRITEs with immediate data: `remote::eager`;
//! - a WRITE or a READ of one element: `remote::send::write_there` or `one_sided::transfer_there`, without a packet;
//! - a datagram: `run`, `datagram::send`, `remote::datagram`;
//! - every other request, and any that these leave: `run`, `remote::requester::step`, `remote::outgoing`.
//!
//! `eager` and `outgoing` share one encoder, `remote::packet`: the packet has the data or, above 2 KiB, its place.
//!
//! In, from a poll's `remote::look` or from the holder of the lock:
//! - without the lock: `remote::entry` decodes (`remote::pulled` where the packet has the data's place),
//!   `remote::unlocked::accepting` checks the queue pair, and `receive::deliver` delivers;
//! - under the lock: `remote::link::read`, `remote::arrival`, `receive`.
//!
//! Back: the next packet carries the acknowledgement (`remote::post`), or `remote::acks` sends it. The requester completes
//! in `remote::unlocked::acknowledge_unlocked` or, under the lock, in `remote::answer`.
//!
//! # Words
//! - **Packet**: the lines of a ring that carry one request, datagram, response or list of acknowledgements to another
//!   process.
//! - **Carriage**: where a packet's data is: in its first line, in the entry, behind the entry, or in shared memory.
//! - **Delivery**: a message takes a receive. The responder claims it, places the data, and reports it.
//! - **Report**: the poll that finds a message returns its receive, without a completion entry.
//! - **Acknowledgement**: the number of the last request that the responder has executed. It completes all before it, and
//!   is pending until a packet carries it.
//! - **Grant**: a range of memory to which a key gives access, as was checked once. It ends when any region is revoked.
//! - **Turn**: the right of one thread to write to a peer, or to read its packets.
//! - **Section**: a counter that is odd while its thread uses what can be revoked.
//! - **Gate**: whether a queue pair's requests may be executed without the device's lock, and where its peer is.
//! - **Stop**: why a request is left to the holder of the lock.
//! - **Life**: the time that a queue pair is connected. Requests of an earlier life are not executed.
//!
//! # Order
//! Requests are executed in order by two tiers: without the device's lock, and under it. They keep one order because of
//! these rules. Where code keeps one, a comment names its number.
//! 1. Both tiers execute at `work.consumer` and read at `reader.position`. A tier that does not finish moves neither.
//! 2. A stop stores `work.stop`, closes the gate, leaves the section, and then takes the lock. If the gate is open again,
//!    nothing is left to do.
//! 3. The poster stores `producer` before it loads the gate. If the gate was closed, it takes the lock and looks again.
//! 4. No thread opens a gate while `gated`, or outside RTS.
//! 5. A request is executed without a packet only if none is outstanding and no packet was sent for it.
//! 6. No request passes an outstanding READ or atomic.
//! 7. A responder takes only the request that it expects.
//! 8. An acknowledgement may be applied again, and is, if its packet is left to the lock's holder.
//! 9. A message that was not taken may leave three traces: an applied acknowledgement, a receive of a shared queue that
//!    is held for it, and bytes in its target.
//! 10. A receive is reported to a poll only if that polls the receive's completion queue, has found it empty, and no entry
//!     has been written since.
//! 11. Revoking: revoke, count, heavy barrier, wait for all sections; then release the lock and wait for other processes.
//!     The data path loads a count before it checks what the count covers.
//! 12. No thread with a turn, or in a section, waits for the lock. The reading turn is taken before the writing turn.
//! 13. A failing queue pair is first in ERR or RESET; then its data path is shut out, rewound, settled, and flushed.
//! 14. Fault injection and the journal close all gates, and packets are read under the lock.
//!
//! # Where the specification leaves a choice
//! - A receive that is too small for an unreliable message, or whose keys are invalid, completes in error and takes
//!   its queue pair to ERR, as on ConnectX devices. An unreliable responder drops all other requests that it cannot
//!   execute.
//! - A responder that refuses a request, and has no receive to report the refusal by, raises `QP_ACCESS_ERR`
//!   (memory, misaligned atomics) or `QP_REQ_ERR` (everything else).
//! - After `DEVICE_FATAL` everything in flight completes with `FATAL_ERR`. All verbs except destruction are
//!   refused.
//! - Statuses without a ConnectX syndrome are in reserved bytes of the error entry.
//! - The port has one LID, one GID and one partition. LID 0 in an address means the port itself.
//! - Alternate paths are accepted and not used. `PATH_MIG` and the events of subnet management are injected only.
//!
//! Messages of up to 32 bytes travel within the receiver's completion entry (ConnectX: scatter to CQE). The poll
//! copies them to the receive's memory. All other copies write the last bytes last, so that a peer may poll for
//! them.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod arm;
mod attempt;
mod clock;
mod connection;
mod control;
mod copy;
mod cq;
mod datagram;
mod doorbell;
mod engine;
mod execute;
mod fabric;
mod fail;
mod fault;
mod fetched;
#[cfg(fuzzing)]
pub mod fuzzing;
mod gate;
mod generation;
mod hca;
mod inject;
mod journal;
mod lifecycle;
mod lists;
mod managers;
mod mr;
mod multicast;
mod one_sided;
mod packets;
mod poll_history;
mod polled;
mod polls;
mod port;
pub mod process;
mod producer;
mod qp;
pub mod random;
mod receive;
mod record;
mod remote;
mod respond;
mod run;
mod slow;
mod srq;
mod sync;
mod target;
mod turn;
mod under_lock;
mod window;
mod xrcd;

pub use clock::ClockKind;
pub use cq::CqCtx;
pub use doorbell::{RecvDoorbell, SendDoorbell};
pub use fabric::Owner;
pub use fault::{Fault, Script, Trigger};
pub use hca::Running;
pub use hca::{HcaConfig, Mode};
pub use journal::{JournalEntry, RecvReport, RequestId};
pub use managers::{Listener, Managers};
pub use polled::Polled;
pub use port::address_vector;
pub use record::{QpParts, RecvParts};
pub use remote::ShownMemory;
pub use srq::{SrqCtx, XrcSrq};
pub use target::XrcTarget;
pub use xrcd::XrcDomain;

use bellwire_provider::attr::{DeviceAttr, of_rings};
use bellwire_provider::{error, event, pinned};

/// Ports of a software HCA.
pub const PORTS: u8 = 1;

/// The device attributes of a software HCA.
pub fn limits() -> DeviceAttr {
    let mut attr = of_rings();
    attr.max_qp = qp::MAX_QP as u32 - 1;
    attr.max_qp_wr = 1 << 14;
    attr.max_mr = mr::MAX_MR as u32;
    attr.max_mw = window::MAX_MW as u32;
    attr.max_mr_size = u64::MAX;
    attr.max_msg_sz = lists::MAX_MESSAGE;
    attr.max_qp_rd_atom = 16;
    attr.max_mcast_qp_attach = multicast::MAX_MEMBERS as u32;
    attr.max_pkeys = 1;
    attr.phys_port_cnt = port::NUMBER;
    attr.max_srq = srq::MAX_SRQ as u32 - 1;
    attr
}
