//! What the peer's queue pair does not allow, whatever the memory.

use super::{Case, remote};
use bellwire::wqe::*;
use bellwire::wr::WcStatus::*;
use bellwire::{AccessFlags, ConnectAttr};

pub fn cases() -> Vec<Case> {
    let no_write = |_: &mut ConnectAttr, b: &mut ConnectAttr| b.access -= AccessFlags::REMOTE_WRITE;
    let no_read = |_: &mut ConnectAttr, b: &mut ConnectAttr| b.access -= AccessFlags::REMOTE_READ;
    let no_atomic =
        |_: &mut ConnectAttr, b: &mut ConnectAttr| b.access -= AccessFlags::REMOTE_ATOMIC;
    let no_depth = |_: &mut ConnectAttr, b: &mut ConnectAttr| b.max_rd_atomic = 0;
    vec![
        Case {
            attr: no_write,
            ..remote(
                "write_to_a_queue_pair_without_it",
                "A WRITE to a queue pair without REMOTE_WRITE",
                RemInvReqErr,
                |w| {
                    w.write_to(w.there());
                },
            )
        },
        Case {
            attr: no_write,
            ..remote(
                "empty_write_to_a_queue_pair_without_it",
                "An empty WRITE to a queue pair without REMOTE_WRITE",
                RemInvReqErr,
                |w| {
                    let remote = w.there();
                    w.send(RdmaWrite { remote }, NoPayload);
                },
            )
        },
        Case {
            attr: no_read,
            ..remote(
                "read_of_a_queue_pair_without_it",
                "A READ of a queue pair without REMOTE_READ",
                RemInvReqErr,
                |w| {
                    w.read_from(w.there());
                },
            )
        },
        Case {
            attr: no_read,
            ..remote(
                "empty_read_of_a_queue_pair_without_it",
                "An empty READ of a queue pair without REMOTE_READ",
                RemInvReqErr,
                |w| {
                    let remote = w.there();
                    w.send(RdmaRead { remote }, NoPayload);
                },
            )
        },
        Case {
            attr: no_atomic,
            ..remote(
                "atomic_on_a_queue_pair_without_it",
                "An atomic on a queue pair without REMOTE_ATOMIC",
                RemInvReqErr,
                |w| {
                    w.add_at(w.there());
                },
            )
        },
        Case {
            attr: no_depth,
            ..remote(
                "read_of_a_peer_without_depth",
                "A READ of a peer with `max_dest_rd_atomic` 0",
                RemInvReqErr,
                |w| {
                    w.read_from(w.there());
                },
            )
        },
        Case {
            attr: no_depth,
            ..remote(
                "atomic_on_a_peer_without_depth",
                "An atomic on a peer with `max_dest_rd_atomic` 0",
                RemInvReqErr,
                |w| {
                    w.add_at(w.there());
                },
            )
        },
    ]
}
