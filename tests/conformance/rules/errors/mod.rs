//! Requests that fail: what is reported to each end, which state it goes to, and that everything works
//! again after a reset.

mod keys;
mod queue_pairs;
mod receives;
mod requests;

use crate::provider::{Feature, Provider};
use crate::rule::{Group, Rule};
use crate::support::completes;
use bellwire::be::Be32;
use bellwire::state::QpState;
use bellwire::wqe::*;
use bellwire::wr::WcStatus::{self, *};
use bellwire::wr::{Remote, SendFlags, Sge};
use bellwire::{AccessFlags, ConnectAttr, QpInit, Region};
use bellwire_tests::fixture::*;

const LOCAL: &str = "IBTA vol. 1, 10.10 and 11.6.2";
const RESPONDER: &str = "IBTA vol. 1, 9.7.4.1 and 11.6.2";
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
    /// Bytes of the region that is opened to nothing.
    closed: usize,
    /// Where the first receive goes.
    receive: fn(&World) -> Sge,
    bad: fn(&mut World),
    status: WcStatus,
    peer: Peer,
}

pub fn group() -> Group {
    let cases = [
        requests::cases(),
        keys::cases(),
        queue_pairs::cases(),
        receives::cases(),
    ];
    let rules = cases.into_iter().flatten().map(|case| {
        let peer = match case.peer {
            Peer::Untouched => "the peer sees nothing".to_owned(),
            Peer::Flushed => "both go to ERR, and flush".to_owned(),
            Peer::Failed(status) => format!("the receive completes with {status}, both go to ERR"),
        };
        let says = format!("{} completes with {}; {peer}.", case.says, case.status);
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
        closed: 4096,
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
        closed: region_with(&pd, case.closed, AccessFlags::empty()),
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
    assert!(a.reset().is_empty(), "everything of ours was reported");
    let unreported: &[u64] = match case.peer {
        Peer::Untouched => &[70, 71],
        Peer::Flushed | Peer::Failed(_) => &[],
    };
    assert_eq!(b.reset(), unreported);
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
    completes(ends[from], 1, Success);
    completes(ends[from], 2, Success);
    completes(ends[to], 70, Success);
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
    completes(a, 3, WrFlushErr);
    completes(a, 4, WrFlushErr);
    assert_eq!(a.qp.state(), QpState::Err);
    a.go(5, Send {}, NoPayload);
    completes(a, 5, WrFlushErr);
    a.receive(72, &[]);
    completes(a, 72, WrFlushErr);
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
    completes(b, 70, first);
    completes(b, 71, WrFlushErr);
    b.nothing();
    assert_eq!(b.qp.state(), QpState::Err);
}
