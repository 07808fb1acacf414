//! Requests that fail: what each end is told, and that everything works again after a reset.

use bellwire::be::Be32;
use bellwire::memory::Mapping;
use bellwire::queue::{AttachError, PostError};
use bellwire::soft::Mode;
use bellwire::state::{ModifyError, QpAttr, QpAttrMask, QpState};
use bellwire::wqe::*;
use bellwire::wr::{Remote, SendFlags, Sge, WcStatus};
use bellwire::{AccessFlags, ConnectAttr, Error, QpInit, Region};
use bellwire_tests::fixture::*;
use bellwire_tests::in_both_modes;

in_both_modes! {
    requests_that_the_device_refuses, posts_that_the_queue_refuses, a_full_queue_takes_more_later,
    changes_that_are_refused, creations_that_are_refused, regions_that_are_refused,
}

const IMM: Be32 = Be32::new(1);

/// What the peer of a failed request sees.
enum Peer {
    /// Nothing: the request never left.
    Untouched,
    /// It goes to ERR, and its receives are flushed.
    Flushed,
    /// As above, but the first receive was consumed and failed with this.
    Failed(WcStatus),
}

struct World<'w> {
    a: End,
    b: End,
    /// In another protection domain.
    foreign: &'w Region,
    /// Opened to nothing.
    closed: &'w Region,
    /// Not registered any more.
    gone: (Sge, Remote),
}

struct Case {
    name: &'static str,
    attr: fn(&mut ConnectAttr, &mut ConnectAttr),
    /// Where the first receive goes, if not to good memory.
    receive: Option<fn(&World<'_>) -> Sge>,
    bad: fn(&mut World<'_>),
    status: WcStatus,
    peer: Peer,
}

const GOOD: fn(&mut ConnectAttr, &mut ConnectAttr) = |_, _| {};

fn local(name: &'static str, status: WcStatus, bad: fn(&mut World<'_>)) -> Case {
    Case {
        name,
        attr: GOOD,
        receive: None,
        bad,
        status,
        peer: Peer::Untouched,
    }
}

fn remote(name: &'static str, status: WcStatus, bad: fn(&mut World<'_>)) -> Case {
    Case {
        peer: Peer::Flushed,
        ..local(name, status, bad)
    }
}

impl World<'_> {
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
}

fn wrong(key: u32) -> u32 {
    key ^ 0x40
}

#[rustfmt::skip]
fn cases() -> Vec<Case> {
    use WcStatus::*;
    vec![
        local("lkey of nobody", LocProtErr, |w| {
            let sge = Sge { lkey: wrong(w.here(8).lkey), ..w.here(8) };
            w.send(Send {}, sge);
        }),
        local("lkey of nobody, WRITE", LocProtErr, |w| {
            let sge = Sge { lkey: wrong(w.here(8).lkey), ..w.here(8) };
            let remote = w.there();
            w.send(RdmaWrite { remote }, &[w.here(8), sge][..]);
        }),
        local("lkey zero", LocProtErr, |w| w.send(Send {}, Sge { lkey: 0, ..w.here(8) })),
        local("lkey of another domain", LocProtErr, |w| w.send(Send {}, w.foreign.sge(0, 8))),
        local("lkey deregistered", LocProtErr, |w| w.send(Send {}, w.gone.0)),
        local("one byte too far", LocProtErr, |w| {
            let end = w.a.region.len();
            w.send(Send {}, w.a.region.sge(end - 8, 9));
        }),
        local("before the region", LocProtErr, |w| {
            let sge = Sge { addr: w.here(8).addr - 1, ..w.here(8) };
            w.send(Send {}, sge);
        }),
        local("around the address space", LocProtErr, |w| {
            let sge = Sge { addr: u64::MAX - 3, ..w.here(8) };
            w.send(Send {}, sge);
        }),
        local("READ to memory not opened to local writes", LocProtErr, |w| {
            let remote = w.there();
            w.send(RdmaRead { remote }, w.closed.sge(0, 8));
        }),
        local("atomic to memory not opened to local writes", LocProtErr, |w| {
            let remote = w.there();
            w.send(AtomicFetchAndAdd { remote, add: 1 }, w.closed.sge(0, 8));
        }),
        local("atomic with too little room", LocLenErr, |w| {
            let remote = w.there();
            w.send(AtomicFetchAndAdd { remote, add: 1 }, w.here(7));
        }),
        local("atomic with too much room", LocLenErr, |w| {
            let remote = w.there();
            w.send(AtomicCmpAndSwp { remote, compare: 0, swap: 1 }, w.here(16));
        }),
        local("atomic with no room", LocLenErr, |w| {
            let remote = w.there();
            w.send(AtomicFetchAndAdd { remote, add: 1 }, NoPayload);
        }),
        local("SEND of more than 2 GiB", LocLenErr, |w| w.send(Send {}, &huge(w.closed)[..])),
        local("WRITE of more than 2 GiB", LocLenErr, |w| {
            let remote = w.there();
            w.send(RdmaWrite { remote }, &huge(w.closed)[..]);
        }),
        Case {
            attr: |a, _| a.max_rd_atomic = 0,
            ..local("READ without depth", LocQpOpErr, |w| {
                let remote = w.there();
                w.send(RdmaRead { remote }, w.here(8));
            })
        },
        Case {
            attr: |a, _| a.max_rd_atomic = 0,
            ..local("atomic without depth", LocQpOpErr, |w| {
                let remote = w.there();
                w.send(AtomicFetchAndAdd { remote, add: 1 }, w.here(8));
            })
        },
        local("a window that there is not", MwBindErr, |w| {
            w.send(LocalInv { rkey: w.there().rkey }, NoPayload);
        }),
        remote("rkey of nobody", RemAccessErr, |w| {
            let remote = Remote { rkey: wrong(w.there().rkey), ..w.there() };
            w.send(RdmaWrite { remote }, Inline(&[1; 8]));
        }),
        remote("rkey of nobody, READ", RemAccessErr, |w| {
            let remote = Remote { rkey: wrong(w.there().rkey), ..w.there() };
            w.send(RdmaRead { remote }, w.here(8));
        }),
        remote("rkey of nobody, atomic", RemAccessErr, |w| {
            let remote = Remote { rkey: wrong(w.there().rkey), ..w.there() };
            w.send(AtomicFetchAndAdd { remote, add: 1 }, w.here(8));
        }),
        remote("rkey of nobody, WRITE with immediate", RemAccessErr, |w| {
            let remote = Remote { rkey: wrong(w.there().rkey), ..w.there() };
            w.send(RdmaWriteWithImm { remote, imm: IMM }, w.here(8));
        }),
        remote("rkey zero", RemAccessErr, |w| {
            let remote = Remote { rkey: 0, ..w.there() };
            w.send(RdmaWrite { remote }, Inline(&[1; 8]));
        }),
        remote("rkey of another domain", RemAccessErr, |w| {
            let remote = w.foreign.remote(0);
            w.send(RdmaWrite { remote }, Inline(&[1; 8]));
        }),
        remote("rkey deregistered", RemAccessErr, |w| {
            let remote = w.gone.1;
            w.send(RdmaWrite { remote }, Inline(&[1; 8]));
        }),
        remote("WRITE one byte too far", RemAccessErr, |w| {
            let remote = w.b.region.remote(w.b.region.len() - 7);
            w.send(RdmaWrite { remote }, Inline(&[1; 8]));
        }),
        remote("READ around the address space", RemAccessErr, |w| {
            let remote = Remote { addr: u64::MAX - 3, ..w.there() };
            w.send(RdmaRead { remote }, w.here(8));
        }),
        remote("WRITE to a closed region", RemAccessErr, |w| {
            let remote = w.closed.remote(0);
            w.send(RdmaWrite { remote }, Inline(&[1; 8]));
        }),
        remote("READ of a closed region", RemAccessErr, |w| {
            let remote = w.closed.remote(0);
            w.send(RdmaRead { remote }, w.here(8));
        }),
        remote("atomic on a closed region", RemAccessErr, |w| {
            let remote = w.closed.remote(0);
            w.send(AtomicFetchAndAdd { remote, add: 1 }, w.here(8));
        }),
        remote("misaligned atomic", RemInvReqErr, |w| {
            let remote = w.b.region.remote(4);
            w.send(AtomicFetchAndAdd { remote, add: 1 }, w.here(8));
        }),
        remote("misaligned atomic, and no key", RemAccessErr, |w| {
            let remote = Remote { rkey: 0, ..w.b.region.remote(4) };
            w.send(AtomicFetchAndAdd { remote, add: 1 }, w.here(8));
        }),
        Case {
            attr: |_, b| b.access -= AccessFlags::REMOTE_WRITE,
            ..remote("queue pair without REMOTE_WRITE", RemInvReqErr, |w| {
                let remote = w.there();
                w.send(RdmaWrite { remote }, Inline(&[1; 8]));
            })
        },
        Case {
            attr: |_, b| b.access -= AccessFlags::REMOTE_WRITE,
            ..remote("empty WRITE without REMOTE_WRITE", RemInvReqErr, |w| {
                let remote = w.there();
                w.send(RdmaWrite { remote }, NoPayload);
            })
        },
        Case {
            attr: |_, b| b.access -= AccessFlags::REMOTE_READ,
            ..remote("queue pair without REMOTE_READ", RemInvReqErr, |w| {
                let remote = w.there();
                w.send(RdmaRead { remote }, w.here(8));
            })
        },
        Case {
            attr: |_, b| b.access -= AccessFlags::REMOTE_READ,
            ..remote("empty READ without REMOTE_READ", RemInvReqErr, |w| {
                let remote = w.there();
                w.send(RdmaRead { remote }, NoPayload);
            })
        },
        Case {
            attr: |_, b| b.access -= AccessFlags::REMOTE_ATOMIC,
            ..remote("queue pair without REMOTE_ATOMIC", RemInvReqErr, |w| {
                let remote = w.there();
                w.send(AtomicFetchAndAdd { remote, add: 1 }, w.here(8));
            })
        },
        Case {
            attr: |_, b| b.max_rd_atomic = 0,
            ..remote("READ of a peer without depth", RemInvReqErr, |w| {
                let remote = w.there();
                w.send(RdmaRead { remote }, w.here(8));
            })
        },
        Case {
            attr: |_, b| b.max_rd_atomic = 0,
            ..remote("atomic on a peer without depth", RemInvReqErr, |w| {
                let remote = w.there();
                w.send(AtomicFetchAndAdd { remote, add: 1 }, w.here(8));
            })
        },
        Case {
            peer: Peer::Failed(LocLenErr),
            ..remote("message longer than the receive", RemInvReqErr, |w| {
                w.send(Send {}, w.here(101));
            })
        },
        Case {
            receive: Some(|w| w.b.region.sge(0, 3)),
            peer: Peer::Failed(LocLenErr),
            ..remote("inline message longer than the receive", RemInvReqErr, |w| {
                w.send(SendWithImm { imm: IMM }, Inline(&[1; 4]));
            })
        },
        Case {
            receive: Some(|w| Sge { lkey: wrong(w.b.region.sge(0, 9).lkey), ..w.b.region.sge(0, 9) }),
            peer: Peer::Failed(LocProtErr),
            ..remote("receive with the key of nobody", RemOpErr, |w| w.send(Send {}, w.here(8)))
        },
        Case {
            receive: Some(|w| w.closed.sge(0, 100)),
            peer: Peer::Failed(LocProtErr),
            ..remote("receive into memory not opened to it", RemOpErr, |w| w.send(Send {}, w.here(64)))
        },
        Case {
            receive: Some(|w| w.foreign.sge(0, 100)),
            peer: Peer::Failed(LocProtErr),
            ..remote("receive into another domain", RemOpErr, |w| w.send(Send {}, w.here(64)))
        },
        Case {
            receive: Some(|w| w.gone.0),
            peer: Peer::Failed(LocProtErr),
            ..remote("receive into memory that is gone", RemOpErr, |w| w.send(Send {}, w.here(8)))
        },
        Case {
            receive: Some(|w| w.b.region.sge(w.b.region.len() - 63, 64)),
            peer: Peer::Failed(LocProtErr),
            ..remote("receive over the region's end", RemOpErr, |w| w.send(Send {}, w.here(64)))
        },
    ]
}

/// More than 2 GiB out of one region, which is never read.
fn huge(region: &Region) -> [Sge; 30] {
    [region.sge(0, region.len() as u32); 30]
}

fn requests_that_the_device_refuses(mode: Mode) {
    let device = device(mode);
    let (pd, other) = (device.alloc_pd(), device.alloc_pd());
    let foreign = region(&other, 4096);
    let closed = region_with(&pd, 72 << 20, AccessFlags::empty());
    let init = QpInit {
        max_send_sge: 30,
        ..init()
    };
    for case in cases() {
        let mut world = World {
            a: End::new(&pd, mode, &init),
            b: End::new(&pd, mode, &init),
            foreign: &foreign,
            closed: &closed,
            gone: {
                let region = region(&pd, 4096);
                (region.sge(0, 8), region.remote(0))
            },
        };
        let (mut ours, mut theirs) = (ConnectAttr::default(), ConnectAttr::default());
        (case.attr)(&mut ours, &mut theirs);
        connect(&mut world, &ours, &theirs);
        fails(&mut world, &case);

        let told = world.a.reset();
        assert!(
            told.is_empty(),
            "{}: everything of ours was told",
            case.name
        );
        let told = world.b.reset();
        let expected: &[u64] = match case.peer {
            Peer::Untouched => &[70, 71],
            Peer::Flushed | Peer::Failed(_) => &[],
        };
        assert_eq!(told, expected, "{}", case.name);
        connect(&mut world, &ConnectAttr::default(), &ConnectAttr::default());
        works(&mut world.a, &mut world.b);
        works(&mut world.b, &mut world.a);
        assert_eq!((world.a.cq.stale(), world.b.cq.stale()), (0, 0));
    }
}

fn connect(world: &mut World<'_>, ours: &ConnectAttr, theirs: &ConnectAttr) {
    let (a, b) = (&mut world.a.qp, &mut world.b.qp);
    a.init(ours).unwrap();
    b.init(theirs).unwrap();
    a.connect(&b.endpoint(), ours).unwrap();
    b.connect(&a.endpoint(), theirs).unwrap();
}

fn fails(world: &mut World<'_>, case: &Case) {
    let name = case.name;
    let first = match case.receive {
        Some(sge) => sge(world),
        None => world.b.region.sge(0, 100),
    };
    world.b.receive(70, &[first]);
    world.b.receive(71, &[]);
    world.a.post(1, Nop {}, NoPayload, SIGNALED).unwrap();
    (case.bad)(world);
    world.a.post(3, Nop {}, NoPayload, SIGNALED).unwrap();
    world
        .a
        .post(4, Nop {}, NoPayload, SendFlags::empty())
        .unwrap();
    world.a.qp.sq().ring();
    assert_eq!(world.a.outcome(), (1, WcStatus::Success), "{name}");
    let failed = world.a.wait();
    assert_eq!((failed.wr_id, failed.status()), (2, case.status), "{name}");
    assert_eq!(failed.retired, 1, "{name}");
    for wr_id in [3, 4] {
        assert_eq!(world.a.outcome(), (wr_id, WcStatus::WrFlushErr), "{name}");
    }
    assert_eq!(world.a.qp.state(), QpState::Err, "{name}");
    // Later posts are taken, and flushed.
    world.a.go(5, Nop {}, NoPayload);
    assert_eq!(world.a.outcome(), (5, WcStatus::WrFlushErr), "{name}");
    world.a.receive(72, &[]);
    assert_eq!(world.a.outcome(), (72, WcStatus::WrFlushErr), "{name}");
    let b = &mut world.b;
    let first = match case.peer {
        Peer::Untouched => {
            b.nothing();
            assert_eq!(b.qp.state(), QpState::Rts, "{name}");
            return;
        }
        Peer::Flushed => WcStatus::WrFlushErr,
        Peer::Failed(status) => status,
    };
    assert_eq!(b.outcome(), (70, first), "{name}");
    assert_eq!(b.outcome(), (71, WcStatus::WrFlushErr), "{name}");
    b.nothing();
    world.a.nothing();
    assert_eq!(b.qp.state(), QpState::Err, "{name}");
}

/// A message goes through.
fn works(a: &mut End, b: &mut End) {
    b.receive(70, &[b.region.sge(0, 100)]);
    a.go(1, Send {}, a.region.sge(0, 100));
    let remote = b.region.remote(0);
    a.go(2, RdmaRead { remote }, a.region.sge(0, 100));
    assert_eq!(a.outcome(), (1, WcStatus::Success));
    assert_eq!(a.outcome(), (2, WcStatus::Success));
    assert_eq!(b.outcome(), (70, WcStatus::Success));
    a.nothing();
    b.nothing();
}

fn posts_that_the_queue_refuses(mode: Mode) {
    let (mut a, mut b) = pair(mode);
    let sge = a.region.sge(0, 8);
    let remote = b.region.remote(0);
    let long = Sge {
        length: 1 << 31,
        ..sge
    };
    for _ in 0..3 {
        let many = PostError::TooManySges { given: 5, max: 4 };
        assert_eq!(a.post(1, Send {}, &[sge; 5][..], SIGNALED), Err(many));
        assert_eq!(
            a.post(1, RdmaWrite { remote }, Inline(&[0; 201]), SIGNALED),
            Err(PostError::InlineTooLong {
                given: 201,
                max: 200
            })
        );
        assert_eq!(
            a.post(1, Send {}, long, SIGNALED),
            Err(PostError::SgeTooLong { length: 1 << 31 })
        );
        assert_eq!(post_recv(&mut a.qp, 1, &[sge; 5]), Err(many));
        assert_eq!(
            post_recv(&mut a.qp, 1, &[sge, long]),
            Err(PostError::SgeTooLong { length: 1 << 31 })
        );
        a.qp.sq().ring();
        a.qp.rq().ring();
        works(&mut a, &mut b);
    }
    assert!(a.reset().is_empty());
}

fn a_full_queue_takes_more_later(mode: Mode) {
    let (mut a, mut b) = pair(mode);
    for round in 0..10 {
        let mut posted = 0;
        while a
            .post(posted, Nop {}, NoPayload, SendFlags::empty())
            .is_ok()
        {
            posted += 1;
        }
        assert!(posted >= 64, "as many as were asked for");
        let full = Err(PostError::QueueFull);
        assert_eq!(a.post(0, Nop {}, NoPayload, SIGNALED), full);
        a.qp.sq().ring();
        a.nothing();
        // Nothing was signalled, so nothing is told and no slot comes back: a reset tells all.
        assert_eq!(a.post(0, Nop {}, NoPayload, SIGNALED), full);
        if round % 2 == 0 {
            a.qp.to_error().unwrap();
            b.qp.to_error().unwrap();
        }
        let told = a.reset();
        assert_eq!(told, (0..posted).collect::<Vec<_>>());
        b.reset();
        connect_with(&mut a.qp, &mut b.qp, &ConnectAttr::default());

        for wr_id in 0..64 {
            post_recv(&mut b.qp, wr_id, &[]).unwrap();
        }
        assert_eq!(post_recv(&mut b.qp, 0, &[]), full);
        b.qp.rq().ring();
        a.go(1, Send {}, NoPayload);
        assert_eq!(a.outcome(), (1, WcStatus::Success));
        assert_eq!(b.outcome(), (0, WcStatus::Success));
        b.receive(64, &[]);
        assert_eq!(post_recv(&mut b.qp, 0, &[]), full);
        b.reset();
        a.reset();
        connect_with(&mut a.qp, &mut b.qp, &ConnectAttr::default());
    }
}

fn modify_error(result: Result<(), Error>) -> ModifyError {
    match result {
        Err(Error::Modify(error)) => error,
        other => panic!("{other:?}"),
    }
}

fn changes_that_are_refused(mode: Mode) {
    let device = device(mode);
    let (mut a, mut b) = ends(&device, mode);
    let good = ConnectAttr::default();
    let peer = b.qp.endpoint();
    assert!(matches!(
        modify_error(a.qp.connect(&peer, &good)),
        ModifyError::IllegalTransition(_)
    ));
    let attr = QpAttr {
        qp_state: QpState::Init,
        ..QpAttr::default()
    };
    assert!(matches!(
        modify_error(a.qp.modify(&attr, QpAttrMask::STATE)),
        ModifyError::Missing { .. }
    ));
    assert!(matches!(
        a.qp.modify(&QpAttr::default(), QpAttrMask::STATE),
        Err(Error::ResetByModify)
    ));
    assert_eq!(a.qp.state(), QpState::Reset);
    a.qp.init(&good).unwrap();
    for (name, bad) in [
        (
            "min_rnr_timer",
            ConnectAttr {
                min_rnr_timer: 32,
                ..good
            },
        ),
        (
            "timeout",
            ConnectAttr {
                timeout: 32,
                ..good
            },
        ),
        (
            "retry_cnt",
            ConnectAttr {
                retry_cnt: 8,
                ..good
            },
        ),
        (
            "rnr_retry",
            ConnectAttr {
                rnr_retry: 8,
                ..good
            },
        ),
    ] {
        let error = modify_error(a.qp.connect(&peer, &bad));
        match error {
            ModifyError::OutOfRange { attribute, .. } => assert_eq!(attribute, name),
            other => panic!("{name}: {other}"),
        }
        a.reset();
        a.qp.init(&good).unwrap();
    }
    // The device's own limits.
    let deep = ConnectAttr {
        max_rd_atomic: 17,
        ..good
    };
    assert!(matches!(
        a.qp.connect(&peer, &deep),
        Err(Error::TooLarge {
            given: 17,
            max: 16,
            ..
        })
    ));
    assert_eq!(a.qp.state(), QpState::Init);
    let port = QpAttr {
        port_num: 2,
        ..QpAttr::default()
    };
    assert!(matches!(
        a.qp.modify(&port, QpAttrMask::PORT),
        Err(Error::TooLarge {
            given: 2,
            max: 1,
            ..
        })
    ));
    // Nothing was changed by any of them.
    b.qp.init(&good).unwrap();
    a.qp.connect(&peer, &good).unwrap();
    b.qp.connect(&a.qp.endpoint(), &good).unwrap();
    works(&mut a, &mut b);
    let mut other = cq_for(&device, &init());
    assert!(matches!(
        a.qp.reset(&mut other, |_, _| ()),
        Err(Error::Foreign { .. })
    ));
    works(&mut a, &mut b);
}

fn creations_that_are_refused(mode: Mode) {
    let device = device(mode);
    let pd = device.alloc_pd();
    let (send, recv) = init().cq_entries();
    let mut small = device.create_cq((send + recv) / 2).unwrap();
    for _ in 0..3 {
        let error = pd.create_qp(&mut small, &init()).unwrap_err();
        let expected = AttachError::CqTooSmall {
            needed: send + recv,
            free: small.capacity(),
        };
        match &error {
            Error::Attach(attach) => assert_eq!(*attach, expected),
            other => panic!("{other}"),
        }
        let text = error.to_string();
        assert!(text.contains(&(send + recv).to_string()), "{text}");
    }
    // Half of it fits: sends only here, receives there.
    let mut other = device.create_cq(recv / 2).unwrap();
    let error = pd.create_qp((&mut small, &mut other), &init()).unwrap_err();
    assert!(matches!(error, Error::Attach(_)), "{error}");
    assert_eq!(
        small.unreserved(),
        small.capacity(),
        "nothing half attached"
    );
    let stranger = bellwire::Device::soft(Default::default());
    let mut foreign = stranger.create_cq(1024).unwrap();
    assert!(matches!(
        pd.create_qp(&mut foreign, &init()),
        Err(Error::Foreign { .. })
    ));
    let mut cq = device.create_cq(1 << 16).unwrap();
    for init in [
        QpInit {
            max_send_wr: 1 << 15,
            ..init()
        },
        QpInit {
            max_recv_wr: u32::MAX,
            ..init()
        },
        QpInit {
            max_send_sge: 31,
            ..init()
        },
        QpInit {
            max_recv_sge: u32::MAX,
            ..init()
        },
        QpInit {
            max_inline_data: 513,
            ..init()
        },
        QpInit {
            max_send_wr: 1 << 14,
            max_inline_data: 512,
            ..init()
        },
    ] {
        let error = pd.create_qp(&mut cq, &init).unwrap_err();
        assert!(matches!(error, Error::TooLarge { .. }), "{init:?}: {error}");
    }
    assert!(device.create_cq(0).is_err());
    assert!(device.create_cq(u32::MAX).is_err());
    assert_eq!(cq.unreserved(), cq.capacity());
    // As many as there are slots for.
    let mut few = device.create_cq_for(1 << 12, 2).unwrap();
    let _kept = [(); 2].map(|()| pd.create_qp(&mut few, &init()).unwrap());
    match pd.create_qp(&mut few, &init()) {
        Err(Error::Attach(AttachError::TooManyQueues { slots: 2 })) => {}
        other => panic!("{other:?}"),
    }
}

fn regions_that_are_refused(mode: Mode) {
    let device = device(mode);
    let pd = device.alloc_pd();
    for access in [AccessFlags::REMOTE_WRITE, AccessFlags::REMOTE_ATOMIC] {
        let mapping = Mapping::anonymous(4096).build().unwrap();
        assert!(matches!(
            Region::new(&pd, mapping, access),
            Err(Error::AccessWithoutLocalWrite)
        ));
    }
    let mapping = Mapping::anonymous(4096).build().unwrap();
    let start = std::ptr::NonNull::new(mapping.as_ptr()).unwrap();
    for length in [0, usize::MAX] {
        // SAFETY: refused, so nothing is reached by it.
        let refused = unsafe { pd.register(start, length, ALL) };
        assert!(matches!(refused, Err(Error::BadRegion { .. })), "{length}");
    }
}
