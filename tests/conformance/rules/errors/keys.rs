//! Keys, bounds and rights of the peer's memory.

use super::{Case, IMM, remote};
use bellwire::wqe::*;
use bellwire::wr::Remote;
use bellwire::wr::WcStatus::*;

pub fn cases() -> Vec<Case> {
    vec![
        remote(
            "rkey_of_nobody_write",
            "A WRITE with an rkey that was never given out",
            RemAccessErr,
            |w| {
                w.write_to(w.wrong());
            },
        ),
        remote(
            "rkey_of_nobody_write_with_immediate",
            "A WRITE with immediate and such an rkey",
            RemAccessErr,
            |w| {
                let remote = w.wrong();
                w.send(RdmaWriteWithImm { remote, imm: IMM }, w.here(8));
            },
        ),
        remote(
            "rkey_of_nobody_read",
            "A READ with an rkey that was never given out",
            RemAccessErr,
            |w| {
                w.read_from(w.wrong());
            },
        ),
        remote(
            "rkey_of_nobody_atomic",
            "An atomic with an rkey that was never given out",
            RemAccessErr,
            |w| {
                w.add_at(w.wrong());
            },
        ),
        remote(
            "rkey_zero",
            "A WRITE with the rkey zero",
            RemAccessErr,
            |w| {
                w.write_to(Remote {
                    rkey: 0,
                    ..w.there()
                });
            },
        ),
        remote(
            "rkey_of_another_domain",
            "A WRITE with the rkey of another protection domain",
            RemAccessErr,
            |w| {
                w.write_to(w.foreign.remote(0));
            },
        ),
        remote(
            "rkey_deregistered_write",
            "A WRITE with an rkey that was deregistered",
            RemAccessErr,
            |w| {
                w.write_to(w.gone.1);
            },
        ),
        remote(
            "rkey_deregistered_read",
            "A READ with an rkey that was deregistered",
            RemAccessErr,
            |w| {
                w.read_from(w.gone.1);
            },
        ),
        remote(
            "write_one_byte_too_far",
            "A WRITE one byte beyond the region",
            RemAccessErr,
            |w| {
                w.write_to(w.b.region.remote(w.b.region.len() - 7));
            },
        ),
        remote(
            "read_one_byte_too_far",
            "A READ one byte beyond the region",
            RemAccessErr,
            |w| {
                w.read_from(w.b.region.remote(w.b.region.len() - 7));
            },
        ),
        remote(
            "write_before_the_region",
            "A WRITE one byte before the region",
            RemAccessErr,
            |w| {
                let there = w.there();
                w.write_to(Remote {
                    addr: there.addr - 1,
                    ..there
                });
            },
        ),
        remote(
            "read_around_the_address_space",
            "A READ around the end of the address space",
            RemAccessErr,
            |w| {
                w.read_from(Remote {
                    addr: u64::MAX - 3,
                    ..w.there()
                });
            },
        ),
        remote(
            "write_to_closed_memory",
            "A WRITE to a region without REMOTE_WRITE",
            RemAccessErr,
            |w| {
                w.write_to(w.closed.remote(0));
            },
        ),
        remote(
            "read_of_closed_memory",
            "A READ of a region without REMOTE_READ",
            RemAccessErr,
            |w| {
                w.read_from(w.closed.remote(0));
            },
        ),
        remote(
            "atomic_on_closed_memory",
            "An atomic on a region without REMOTE_ATOMIC",
            RemAccessErr,
            |w| {
                w.add_at(w.closed.remote(0));
            },
        ),
        remote(
            "misaligned_atomic",
            "An atomic on a word that is not aligned to eight",
            RemInvReqErr,
            |w| {
                w.add_at(w.b.region.remote(4));
            },
        ),
        remote(
            "misaligned_atomic_without_a_key",
            "A misaligned atomic with a bad rkey",
            RemAccessErr,
            |w| {
                w.add_at(Remote {
                    rkey: 0,
                    ..w.b.region.remote(4)
                });
            },
        ),
    ]
}
