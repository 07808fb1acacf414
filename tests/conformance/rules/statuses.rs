//! The 24 statuses of a completion: each caused as the specification has it where the device has a
//! cause, and by a fault on demand otherwise.

use crate::provider::{Feature, Provider};
use crate::rule::{Group, Rule};
use crate::support::{completes, impatient, strike};
use bellwire::queue::Failure;
use bellwire::soft::{Fault, Script, Trigger};
use bellwire::state::{AhAttr, QpState};
use bellwire::wqe::*;
use bellwire::wr::WcStatus::{self, *};
use bellwire::wr::{MwType, Remote, SendFlags, Sge};
use bellwire::{AccessFlags, ConnectAttr, Connected, Cq, Device, Endpoint, Qp, QpTransport};
use bellwire_tests::fixture::*;
use std::sync::atomic::Ordering;

/// Why a request completes with a status.
#[derive(Clone, Copy)]
struct Cause {
    says: &'static str,
    source: &'static str,
    /// Posts the request, number 2; may do something before.
    bad: fn(&mut World),
    /// When it was rung.
    then: fn(&World),
    /// `rnr_retry`
    patience: u8,
    needs: &'static [Feature],
}

struct World {
    device: Device,
    a: End,
    b: End,
}

impl World {
    fn send<O: Operation, P: Payload>(&mut self, operation: O, payload: P)
    where
        Rc: Supports<O>,
    {
        let flags = SendFlags::empty();
        self.a.post(2, operation, payload, flags).expect("room");
    }

    fn here(&self, length: u32) -> Sge {
        self.a.region.sge(0, length)
    }
}

const WINDOWS: &[Feature] = &[Feature::MemoryWindows];
const FAULTS: &[Feature] = &[Feature::FaultInjection];
const NOBODY: Remote = Remote { addr: 0, rkey: 1 };

fn cause(says: &'static str, source: &'static str, bad: fn(&mut World)) -> Cause {
    Cause {
        says,
        source,
        bad,
        then: |_| (),
        patience: 0,
        needs: &[],
    }
}

/// What the device has no cause for.
fn on_demand(status: WcStatus) -> Cause {
    let says = match status {
        LocEecOpErr | LocRddViolErr | RemInvRdReqErr | InvEecnErr | InvEecStateErr => {
            "On demand (a status of reliable datagrams, which nobody implements)"
        }
        TmErr | TmRndvIncomplete => "On demand (a status of tag matching)",
        _ => "On demand",
    };
    Cause {
        needs: FAULTS,
        ..cause(says, "ibv_poll_cq(3); IBTA vol. 1, 11.6.2", |_| ())
    }
}

fn cause_of(status: WcStatus) -> Option<Cause> {
    Some(match status {
        LocLenErr => cause(
            "An atomic with seven bytes for its result",
            "IBTA vol. 1, 11.6.2, local length error",
            |w| {
                let remote = w.b.region.remote(0);
                w.send(AtomicFetchAndAdd { remote, add: 1 }, w.here(7));
            },
        ),
        LocQpOpErr => cause(
            "A READ of a queue pair that may have none in flight",
            "IBTA vol. 1, 11.6.2, local QP operation error",
            |w| {
                // Begins anew, without depth.
                w.a.reset();
                w.b.reset();
                let none = ConnectAttr {
                    max_rd_atomic: 0,
                    ..impatient()
                };
                connect_with(&mut w.a.qp, &mut w.b.qp, &none);
                let remote = w.b.region.remote(0);
                w.send(RdmaRead { remote }, w.here(8));
            },
        ),
        LocProtErr => cause(
            "A SEND with an lkey of nobody",
            "IBTA vol. 1, 11.6.2, local protection error",
            |w| {
                let sge = Sge {
                    lkey: 1,
                    ..w.here(8)
                };
                w.send(Send {}, sge);
            },
        ),
        WrFlushErr => cause(
            "What is posted in ERR",
            "IBTA vol. 1, 10.3.1 and 11.6.2, work request flushed error",
            |w| {
                w.a.qp.to_error().expect("from any state");
                w.send(Send {}, NoPayload);
            },
        ),
        MwBindErr => Cause {
            needs: WINDOWS,
            ..cause(
                "A bind to a region that does not allow it",
                "IBTA vol. 1, 11.6.2, memory window bind error",
                |w| {
                    let mut window = w.a.qp.pd().alloc_mw(MwType::Type2).expect("a window");
                    let part = w.here(8);
                    let bind = window.bind_wr(&BindMwInfo {
                        lkey: part.lkey,
                        addr: part.addr,
                        length: part.length,
                        access: AccessFlags::REMOTE_READ.bits(),
                    });
                    w.send(bind, NoPayload);
                    // Judged before the window goes.
                    w.a.qp.sq().ring();
                    until("ERR", || w.a.qp.state() == QpState::Err);
                },
            )
        },
        RemInvReqErr => cause(
            "An atomic on a misaligned word",
            "IBTA vol. 1, 9.7.4.1 and 11.6.2, remote invalid request error",
            |w| {
                let remote = w.b.region.remote(4);
                w.send(AtomicFetchAndAdd { remote, add: 1 }, w.here(8));
            },
        ),
        RemAccessErr => cause(
            "A WRITE with an rkey of nobody",
            "IBTA vol. 1, 9.7.4.1 and 11.6.2, remote access error",
            |w| w.send(RdmaWrite { remote: NOBODY }, Inline(&[1])),
        ),
        RemOpErr => cause(
            "A SEND to a receive with an lkey of nobody",
            "IBTA vol. 1, 9.7.5.2 and 11.6.2, remote operation error",
            |w| {
                let sge = w.b.region.sge(0, 8);
                w.b.receive(70, &[Sge { lkey: 1, ..sge }]);
                w.send(Send {}, w.here(8));
            },
        ),
        RetryExcErr => cause(
            "A request to a peer in ERR, which does not answer,",
            "IBTA vol. 1, 9.7.6.1.3 and 11.6.2, transport retry counter exceeded",
            |w| {
                w.b.qp.to_error().expect("from any state");
                w.send(Send {}, NoPayload);
            },
        ),
        RnrRetryExcErr => cause(
            "A SEND to a peer without a receive, with `rnr_retry` 0,",
            "IBTA vol. 1, 9.7.5.2.8 and 11.6.2, RNR retry counter exceeded",
            |w| w.send(Send {}, NoPayload),
        ),
        FatalErr => Cause {
            patience: 7,
            needs: FAULTS,
            then: |w| strike(&w.device, Fault::DeviceFatal),
            ..cause(
                "What is in flight when the device breaks",
                "ibv_poll_cq(3); IBTA vol. 1, 11.6.2, fatal error",
                |w| w.send(Send {}, NoPayload),
            )
        },
        _ => return None,
    })
}

pub fn group() -> Group {
    let mut rules = vec![Rule::new(
        "statuses",
        "success",
        "IBTA vol. 1, 11.6.2, success",
        "A WRITE that was executed completes with SUCCESS; the queue pair stays in RTS.",
        &[Feature::Rc],
        success,
    )];
    for &status in WcStatus::ALL {
        if status == Success {
            continue;
        }
        let real = cause_of(status);
        let cause = real.unwrap_or_else(|| on_demand(status));
        let rest = match status {
            FatalErr => "so does what is behind it",
            _ => "what is behind it is flushed",
        };
        rules.push(Rule::new(
            "statuses",
            &status.name().to_lowercase(),
            cause.source,
            format!(
                "{} completes with {status}; the queue pair goes to ERR, {rest}.",
                cause.says
            ),
            &[&[Feature::Rc], cause.needs].concat(),
            move |p| judge(p, status, &cause, real.is_none()),
        ));
    }
    rules.extend([
        service("on_uc", Feature::Uc, "UC", "SQE", on_uc),
        service("on_ud", Feature::Ud, "UD", "SQE", on_ud),
        service("on_xrc", Feature::Xrc, "XRC", "ERR", on_xrc),
    ]);
    Group {
        name: "statuses",
        about: "Each status of a completion, what causes it, and what comes behind. Of what failed \
                identifier, queue pair, status and vendor code are reported, no more.",
        rules,
    }
}

fn service(name: &str, service: Feature, of: &str, state: &str, check: fn(&Provider)) -> Rule {
    let says = format!(
        "Whatever status a request of a {of} queue pair fails with, the queue pair goes to {state}, \
         and what is behind it is flushed."
    );
    let needs = [service, Feature::FaultInjection, Feature::Nop];
    Rule::new(
        "statuses",
        name,
        "IBTA vol. 1, 10.3.1 and 10.10",
        says,
        &needs,
        check,
    )
}

fn success(p: &Provider) {
    let (mut a, b) = p.pair();
    let remote = b.region.remote(0);
    for wr_id in 0..3 {
        a.go(wr_id, RdmaWrite { remote }, Inline(&[1]));
        let done = a.wait();
        assert_eq!((done.wr_id, done.qp_num), (wr_id, a.qp.qp_num()));
        assert_eq!(done.status(), Success);
        assert!(done.result.is_ok());
    }
    assert_eq!(a.qp.state(), QpState::Rts);
}

fn judge(p: &Provider, status: WcStatus, cause: &Cause, on_demand: bool) {
    let device = p.device();
    let connect = ConnectAttr {
        rnr_retry: cause.patience,
        ..impatient()
    };
    let (a, b) = pair_with(&device, p.quiet, &connect);
    let mut w = World { device, a, b };
    let remote = w.b.region.remote(0);
    w.a.go(1, RdmaWrite { remote }, NoPayload);
    completes(&mut w.a, 1, Success);
    if on_demand {
        fail_next(&w.device, status);
        w.send(RdmaWrite { remote }, Inline(&[1; 8]));
    } else {
        (cause.bad)(&mut w);
    }
    w.a.post(3, Send {}, NoPayload, SIGNALED).unwrap();
    w.a.post(4, Send {}, NoPayload, SendFlags::empty()).unwrap();
    w.a.qp.sq().ring();
    w.a.receive(5, &[]);
    (cause.then)(&w);

    let a = &mut w.a;
    // The first of the send queue: a receive that is flushed may be reported before, for the two queues of a
    // queue pair have no common order.
    let mut all: Vec<_> = (0..4).map(|_| a.wait()).collect();
    let first_send = all.iter().position(|done| done.wr_id != 5);
    let failed = all.remove(first_send.expect("there are three"));
    assert_eq!((failed.wr_id, failed.qp_num), (2, a.qp.qp_num()));
    assert_eq!(failed.retired, 1);
    // All that there is of it: neither opcode nor length nor immediate.
    let Failure {
        status: reported,
        vendor_err: _,
        syndrome: _,
        counter: _,
        is_recv,
    } = failed.result.expect_err("it failed");
    assert_eq!((reported, is_recv), (status, false));
    let mut behind: Vec<_> = (all.iter())
        .map(|done| (done.wr_id, done.status()))
        .collect();
    behind.sort_unstable_by_key(|outcome| outcome.0);
    let rest = if status == FatalErr {
        status
    } else {
        WrFlushErr
    };
    assert_eq!(behind, [3, 4, 5].map(|wr_id| (wr_id, rest)));
    a.nothing();
    assert_eq!(a.qp.state(), QpState::Err);
    if on_demand {
        let word = w.b.region.word(0).load(Ordering::Acquire);
        assert_eq!(word, 0, "it was executed all the same");
    }
}

/// The next request fails with this status.
fn fail_next(device: &Device, status: WcStatus) {
    let script = Script::default().with(Trigger::Entry(1), Fault::Status(status));
    device.as_soft().unwrap().inject(&script).unwrap();
}

/// A queue pair of any service, in RESET.
fn any<T: QpTransport>(p: &Provider) -> (Device, Cq, Qp<T>) {
    let device = p.device();
    let (send, recv) = init().cq_entries_of::<T>();
    let mut cq = device.create_cq(send + recv).unwrap();
    let qp = device.alloc_pd().create_qp_of(&mut cq, &init()).unwrap();
    (device, cq, qp)
}

/// Lets a request fail with each status, in a life of its own.
fn with_each_status<T: QpTransport>(
    p: &Provider,
    state: QpState,
    ready: impl Fn(&mut Qp<T>),
    post: impl Fn(&mut Qp<T>, u64),
) {
    let (device, mut cq, mut qp) = any::<T>(p);
    for &status in WcStatus::ALL {
        if status == Success {
            continue;
        }
        ready(&mut qp);
        fail_next(&device, status);
        (1..4).for_each(|wr_id| post(&mut qp, wr_id));
        qp.sq().ring();
        for (wr_id, status) in [(1, status), (2, WrFlushErr), (3, WrFlushErr)] {
            let done = wait(&mut cq);
            assert_eq!((done.wr_id, done.status()), (wr_id, status));
        }
        assert_eq!(qp.state(), state, "after {status}");
        qp.reset(&mut cq, |wr_id, _| panic!("{wr_id} was reported"))
            .unwrap();
    }
}

/// From RESET to RTS, towards a queue pair that there is not: nothing leaves.
fn alone<T: Connected>(qp: &mut Qp<T>) {
    let connect = ConnectAttr::default();
    qp.init(&connect).unwrap();
    qp.connect(&Endpoint::default(), &connect).unwrap();
}

fn on_uc(p: &Provider) {
    let nop = |qp: &mut Qp<Uc>, wr_id| {
        qp.sq()
            .post_empty(wr_id, (), Nop {}, SIGNALED)
            .expect("room");
    };
    with_each_status::<Uc>(p, QpState::Sqe, alone, nop);
}

fn on_xrc(p: &Provider) {
    let nop = |qp: &mut Qp<Xrc>, wr_id| {
        qp.sq()
            .post_empty(wr_id, 1, Nop {}, SIGNALED)
            .expect("room");
    };
    with_each_status::<Xrc>(p, QpState::Err, alone, nop);
}

fn on_ud(p: &Provider) {
    let start = |qp: &mut Qp<Ud>| {
        qp.init(&ConnectAttr::default()).unwrap();
        qp.start(&ConnectAttr::default()).unwrap();
    };
    let nop = |qp: &mut Qp<Ud>, wr_id| {
        let here = AhAttr {
            port_num: 1,
            ..AhAttr::default()
        };
        let ah = qp.pd().create_ah(&here).unwrap();
        let to = ah.to(qp.qp_num(), ConnectAttr::default().qkey);
        qp.sq()
            .post_empty(wr_id, to, Nop {}, SIGNALED)
            .expect("room");
    };
    with_each_status::<Ud>(p, QpState::Sqe, start, nop);
}
