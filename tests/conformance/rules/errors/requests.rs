//! What fails on its own side, and never leaves.

use super::{Case, case, wrong};
use bellwire::Region;
use bellwire::wqe::*;
use bellwire::wr::Sge;
use bellwire::wr::WcStatus::*;

pub fn cases() -> Vec<Case> {
    vec![
        case(
            "lkey_of_nobody",
            "A SEND with an lkey that was never given out",
            LocProtErr,
            |w| {
                let sge = w.here(8);
                w.send(
                    Send {},
                    Sge {
                        lkey: wrong(sge.lkey),
                        ..sge
                    },
                );
            },
        ),
        case(
            "lkey_of_nobody_in_a_later_element",
            "A WRITE whose second lkey is bad",
            LocProtErr,
            |w| {
                let (sge, remote) = (w.here(8), w.there());
                let bad = Sge {
                    lkey: wrong(sge.lkey),
                    ..sge
                };
                w.send(RdmaWrite { remote }, &[sge, bad][..]);
            },
        ),
        case("lkey_zero", "A SEND with the lkey zero", LocProtErr, |w| {
            w.send(
                Send {},
                Sge {
                    lkey: 0,
                    ..w.here(8)
                },
            );
        }),
        case(
            "lkey_of_another_domain",
            "A SEND with the lkey of another protection domain",
            LocProtErr,
            |w| {
                w.send(Send {}, w.foreign.sge(0, 8));
            },
        ),
        case(
            "lkey_deregistered",
            "A SEND with an lkey that was deregistered",
            LocProtErr,
            |w| {
                w.send(Send {}, w.gone.0);
            },
        ),
        case(
            "local_one_byte_too_far",
            "A SEND one byte beyond its region",
            LocProtErr,
            |w| {
                w.send(Send {}, w.a.region.sge(w.a.region.len() - 8, 9));
            },
        ),
        case(
            "local_before_the_region",
            "A SEND one byte before its region",
            LocProtErr,
            |w| {
                let sge = w.here(8);
                w.send(
                    Send {},
                    Sge {
                        addr: sge.addr - 1,
                        ..sge
                    },
                );
            },
        ),
        case(
            "local_around_the_address_space",
            "A SEND around the end of the address space",
            LocProtErr,
            |w| {
                w.send(
                    Send {},
                    Sge {
                        addr: u64::MAX - 3,
                        ..w.here(8)
                    },
                );
            },
        ),
        case(
            "read_into_closed_memory",
            "A READ into memory without LOCAL_WRITE",
            LocProtErr,
            |w| {
                let remote = w.there();
                w.send(RdmaRead { remote }, w.closed.sge(0, 8));
            },
        ),
        case(
            "atomic_into_closed_memory",
            "An atomic whose result goes to memory without LOCAL_WRITE",
            LocProtErr,
            |w| {
                let remote = w.there();
                w.send(AtomicFetchAndAdd { remote, add: 1 }, w.closed.sge(0, 8));
            },
        ),
        case(
            "atomic_with_too_little_room",
            "An atomic with seven bytes for its result",
            LocLenErr,
            |w| {
                let remote = w.there();
                w.send(AtomicFetchAndAdd { remote, add: 1 }, w.here(7));
            },
        ),
        case(
            "atomic_with_too_much_room",
            "An atomic with sixteen bytes for its result",
            LocLenErr,
            |w| {
                let remote = w.there();
                w.send(
                    AtomicCmpAndSwp {
                        remote,
                        compare: 0,
                        swap: 1,
                    },
                    w.here(16),
                );
            },
        ),
        Case {
            closed: LARGE,
            ..case(
                "send_of_more_than_2_gib",
                "A SEND longer than a message can be",
                LocLenErr,
                |w| {
                    w.send(Send {}, &huge(&w.closed)[..]);
                },
            )
        },
        Case {
            closed: LARGE,
            ..case(
                "write_of_more_than_2_gib",
                "A WRITE longer than a message can be",
                LocLenErr,
                |w| {
                    let remote = w.there();
                    w.send(RdmaWrite { remote }, &huge(&w.closed)[..]);
                },
            )
        },
        Case {
            attr: |a, _| a.max_rd_atomic = 0,
            ..case(
                "read_without_depth",
                "A READ with `max_rd_atomic` 0",
                LocQpOpErr,
                |w| {
                    w.read_from(w.there());
                },
            )
        },
        Case {
            attr: |a, _| a.max_rd_atomic = 0,
            ..case(
                "atomic_without_depth",
                "An atomic with `max_rd_atomic` 0",
                LocQpOpErr,
                |w| {
                    w.add_at(w.there());
                },
            )
        },
    ]
}

/// Bytes of a region that is longer than 2 GiB when it is taken as often as a request has elements.
const LARGE: usize = 72 << 20;

/// More than 2 GiB out of one region, which is never read.
fn huge(region: &Region) -> [Sge; 30] {
    [region.sge(0, region.len() as u32); 30]
}
