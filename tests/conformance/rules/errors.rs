//! Requests that fail: what each end is told, which state it goes to, and that everything works
//! again after a reset.

use crate::provider::{Feature, Provider};
use crate::rule::{Group, Rule};
use crate::support::told;
use bellwire::be::Be32;
use bellwire::state::QpState;
use bellwire::wqe::*;
use bellwire::wr::WcStatus::{self, *};
use bellwire::wr::{Remote, SendFlags, Sge};
use bellwire::{AccessFlags, ConnectAttr, QpInit, Region};
use bellwire_tests::fixture::*;

const LOCAL: &str = "IBTA vol. 1, 10.10.2 and 11.6.2";
const RESPONDER: &str = "IBTA vol. 1, 9.7.4.1 and 11.6.2";
const NAK: &str = "IBTA vol. 1, 9.7.5.2.4 and 11.6.2";
const IMM: Be32 = Be32::new(1);

/// What the peer of a failed request sees.
#[derive(Clone, Copy)]
enum Peer {
    /// Nothing: the request never left.
    Untouched,
    /// It goes to ERR, and its receives are flushed.
    Flushed,
    /// As above, but the first receive was consumed and failed with this.
    Failed(WcStatus),
}

struct World {
    a: End,
    b: End,
    /// In another protection domain.
    foreign: Region,
    /// Opened to nothing.
    closed: Region,
    /// Not registered any more.
    gone: (Sge, Remote),
}

#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    says: &'static str,
    source: &'static str,
    attr: fn(&mut ConnectAttr, &mut ConnectAttr),
    /// Where the first receive goes.
    receive: fn(&World) -> Sge,
    bad: fn(&mut World),
    status: WcStatus,
    peer: Peer,
}

pub fn group() -> Group {
    let cases = local_cases()
        .into_iter()
        .chain(key_cases())
        .chain(queue_pair_cases());
    let rules = cases.chain(receive_cases()).map(|case| {
        let told = match case.peer {
            Peer::Untouched => "the peer sees nothing".to_owned(),
            Peer::Flushed => "both go to ERR, and flush".to_owned(),
            Peer::Failed(status) => format!("the receive completes with {status}, both go to ERR"),
        };
        let says = format!("{} completes with {}; {told}.", case.says, case.status);
        let check = move |p: &Provider| judge(p, &case);
        Rule::new(
            "errors::rc",
            case.name,
            case.source,
            says,
            &[Feature::Rc],
            check,
        )
    });
    Group {
        name: "errors::rc",
        about: "Every status that a reliable connection causes, on both sides, with the states of \
                both afterwards. Each rule also sees that what came after was flushed, and that both \
                ends work again after a reset.",
        rules: rules.collect(),
    }
}

impl World {
    fn send<O: Operation, P: Payload>(&mut self, operation: O, payload: P)
    where
        Rc: Supports<O>,
    {
        self.a
            .post(2, operation, payload, SendFlags::empty())
            .expect("the queue takes it");
    }

    fn there(&self) -> Remote {
        self.b.region.remote(0)
    }

    fn here(&self, length: u32) -> Sge {
        self.a.region.sge(0, length)
    }

    fn write_to(&mut self, remote: Remote) {
        self.send(RdmaWrite { remote }, Inline(&[1; 8]));
    }

    fn read_from(&mut self, remote: Remote) {
        self.send(RdmaRead { remote }, self.here(8));
    }

    fn add_at(&mut self, remote: Remote) {
        self.send(AtomicFetchAndAdd { remote, add: 1 }, self.here(8));
    }

    /// With a key that nobody has.
    fn wrong(&self) -> Remote {
        let there = self.there();
        Remote {
            rkey: wrong(there.rkey),
            ..there
        }
    }
}

fn wrong(key: u32) -> u32 {
    key ^ 0x40
}

fn case(name: &'static str, says: &'static str, status: WcStatus, bad: fn(&mut World)) -> Case {
    Case {
        name,
        says,
        source: LOCAL,
        attr: |_, _| (),
        receive: |w| w.b.region.sge(0, 100),
        bad,
        status,
        peer: Peer::Untouched,
    }
}

fn remote(name: &'static str, says: &'static str, status: WcStatus, bad: fn(&mut World)) -> Case {
    Case {
        source: RESPONDER,
        peer: Peer::Flushed,
        ..case(name, says, status, bad)
    }
}

fn local_cases() -> Vec<Case> {
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
        case(
            "send_of_more_than_2_gib",
            "A SEND longer than a message can be",
            LocLenErr,
            |w| {
                w.send(Send {}, &huge(&w.closed)[..]);
            },
        ),
        case(
            "write_of_more_than_2_gib",
            "A WRITE longer than a message can be",
            LocLenErr,
            |w| {
                let remote = w.there();
                w.send(RdmaWrite { remote }, &huge(&w.closed)[..]);
            },
        ),
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

fn key_cases() -> Vec<Case> {
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

fn queue_pair_cases() -> Vec<Case> {
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

/// A request, and the receive that it finds.
fn receive(
    name: &'static str,
    says: &'static str,
    (status, theirs): (WcStatus, WcStatus),
    receive: fn(&World) -> Sge,
    bad: fn(&mut World),
) -> Case {
    Case {
        source: NAK,
        receive,
        peer: Peer::Failed(theirs),
        ..case(name, says, status, bad)
    }
}

fn receive_cases() -> Vec<Case> {
    let long = (RemInvReqErr, LocLenErr);
    let unreachable = (RemOpErr, LocProtErr);
    vec![
        receive(
            "message_longer_than_the_receive",
            "A SEND longer than its receive",
            long,
            |w| w.b.region.sge(0, 100),
            |w| {
                w.send(Send {}, w.here(101));
            },
        ),
        receive(
            "inline_message_longer_than_the_receive",
            "An inline SEND longer than its receive",
            long,
            |w| w.b.region.sge(0, 3),
            |w| {
                w.send(SendWithImm { imm: IMM }, Inline(&[1; 4]));
            },
        ),
        receive(
            "receive_with_the_key_of_nobody",
            "A SEND to a receive with a bad lkey",
            unreachable,
            |w| {
                let sge = w.b.region.sge(0, 9);
                Sge {
                    lkey: wrong(sge.lkey),
                    ..sge
                }
            },
            |w| w.send(Send {}, w.here(8)),
        ),
        receive(
            "receive_into_closed_memory",
            "A SEND to a receive into memory without LOCAL_WRITE",
            unreachable,
            |w| w.closed.sge(0, 100),
            |w| {
                w.send(Send {}, w.here(64));
            },
        ),
        receive(
            "receive_into_another_domain",
            "A SEND to a receive into another protection domain",
            unreachable,
            |w| w.foreign.sge(0, 100),
            |w| {
                w.send(Send {}, w.here(64));
            },
        ),
        receive(
            "receive_into_memory_that_is_gone",
            "A SEND to a receive into deregistered memory",
            unreachable,
            |w| w.gone.0,
            |w| {
                w.send(Send {}, w.here(8));
            },
        ),
        receive(
            "receive_over_the_regions_end",
            "A SEND to a receive beyond its region",
            unreachable,
            |w| w.b.region.sge(w.b.region.len() - 63, 64),
            |w| w.send(Send {}, w.here(64)),
        ),
    ]
}

/// More than 2 GiB out of one region, which is never read.
fn huge(region: &Region) -> [Sge; 30] {
    [region.sge(0, region.len() as u32); 30]
}

fn judge(p: &Provider, case: &Case) {
    let device = p.device();
    let pd = device.alloc_pd();
    let init = QpInit {
        max_send_sge: 30,
        ..init()
    };
    let mut world = World {
        a: End::new(&pd, p.quiet, &init),
        b: End::new(&pd, p.quiet, &init),
        foreign: region(&device.alloc_pd(), 4096),
        closed: region_with(&pd, 72 << 20, AccessFlags::empty()),
        gone: {
            let region = region(&pd, 4096);
            (region.sge(0, 8), region.remote(0))
        },
    };
    let (mut ours, mut theirs) = (ConnectAttr::default(), ConnectAttr::default());
    (case.attr)(&mut ours, &mut theirs);
    let (a, b) = (&mut world.a.qp, &mut world.b.qp);
    a.init(&ours).unwrap();
    b.init(&theirs).unwrap();
    a.connect(&b.endpoint(), &ours).unwrap();
    b.connect(&a.endpoint(), &theirs).unwrap();
    fails(&mut world, case);

    let World { a, b, .. } = &mut world;
    assert!(a.reset().is_empty(), "everything of ours was told");
    let untold: &[u64] = match case.peer {
        Peer::Untouched => &[70, 71],
        Peer::Flushed | Peer::Failed(_) => &[],
    };
    assert_eq!(b.reset(), untold);
    connect_with(&mut a.qp, &mut b.qp, &ConnectAttr::default());
    for (from, to) in [(0, 1), (1, 0)] {
        let ends = [&mut *a, &mut *b];
        works(ends, from, to);
    }
    assert_eq!((a.cq.stale(), b.cq.stale()), (0, 0));
}

fn works(ends: [&mut End; 2], from: usize, to: usize) {
    let sge = ends[to].region.sge(0, 100);
    ends[to].receive(70, &[sge]);
    let (sge, remote) = (ends[from].region.sge(0, 100), ends[to].region.remote(0));
    ends[from].go(1, Send {}, sge);
    ends[from].go(2, RdmaRead { remote }, sge);
    told(ends[from], 1, Success);
    told(ends[from], 2, Success);
    told(ends[to], 70, Success);
}

fn fails(world: &mut World, case: &Case) {
    let first = (case.receive)(world);
    world.b.receive(70, &[first]);
    world.b.receive(71, &[]);
    (case.bad)(world);
    let World { a, b, .. } = world;
    a.post(3, Send {}, NoPayload, SIGNALED).unwrap();
    a.post(4, Send {}, NoPayload, SendFlags::empty()).unwrap();
    a.qp.sq().ring();
    let failed = a.wait();
    assert_eq!((failed.wr_id, failed.status()), (2, case.status));
    assert_eq!(failed.retired, 1);
    told(a, 3, WrFlushErr);
    told(a, 4, WrFlushErr);
    assert_eq!(a.qp.state(), QpState::Err);
    a.go(5, Send {}, NoPayload);
    told(a, 5, WrFlushErr);
    a.receive(72, &[]);
    told(a, 72, WrFlushErr);
    a.nothing();
    let first = match case.peer {
        Peer::Untouched => {
            b.nothing();
            assert_eq!(b.qp.state(), QpState::Rts);
            return;
        }
        Peer::Flushed => WrFlushErr,
        Peer::Failed(status) => status,
    };
    told(b, 70, first);
    told(b, 71, WrFlushErr);
    b.nothing();
    assert_eq!(b.qp.state(), QpState::Err);
}
