//! The state table: seven states, six behaviours, a rule for each cell.
//!
//! What is expected stands here once more, as the specification has it, and is not taken from the
//! library's own table.

use crate::provider::{Feature, Provider};
use crate::rule::{Group, Rule};
use crate::support::{bring, completes, drain_started, go_to, impatient, quick_rnr};
use bellwire::queue::PostError;
use bellwire::state::QpState::{self, *};
use bellwire::wqe::*;
use bellwire::wr::WcStatus;
use bellwire_tests::fixture::*;
use std::sync::atomic::Ordering;

/// What the library and the device do in one state.
struct Cell {
    behaviour: &'static str,
    /// What the specification says of it, state by state.
    says: [&'static str; 7],
    check: fn(&Provider, QpState),
}

const REFUSED: &str = "refused at once";
const TAKEN: &str = "taken";
const WAIT: &str = "nothing is processed";
const ALL: &str = "all are processed";
const FLUSH: &str = "flushed";
const DROPPED: &str = "dropped, unanswered";
const HANDLED: &str = "handled";

/// In the order RESET, INIT, RTR, RTS, SQD, SQE, ERR.
const TABLE: [Cell; 6] = [
    Cell {
        behaviour: "post_receive",
        says: [REFUSED, TAKEN, TAKEN, TAKEN, TAKEN, TAKEN, TAKEN],
        check: post_receive,
    },
    Cell {
        behaviour: "post_send",
        says: [REFUSED, REFUSED, REFUSED, TAKEN, TAKEN, TAKEN, TAKEN],
        check: post_send,
    },
    Cell {
        behaviour: "receive_processing",
        says: [WAIT, WAIT, ALL, ALL, ALL, ALL, FLUSH],
        check: receive_processing,
    },
    Cell {
        behaviour: "send_processing",
        says: [
            WAIT,
            WAIT,
            WAIT,
            ALL,
            "the started ones are finished, the others wait",
            FLUSH,
            FLUSH,
        ],
        check: send_processing,
    },
    Cell {
        behaviour: "incoming_packets",
        says: [
            DROPPED, DROPPED, HANDLED, HANDLED, HANDLED, HANDLED, DROPPED,
        ],
        check: incoming_packets,
    },
    Cell {
        behaviour: "outgoing_packets",
        says: [
            "none",
            "none",
            "responses only",
            "responses and requests",
            "responses, and what is left of started requests",
            "responses only",
            "none",
        ],
        check: outgoing_packets,
    },
];

pub fn group() -> Group {
    let cells = QpState::ALL.into_iter().flat_map(|state| {
        TABLE.iter().map(move |cell| {
            let says = cell.says[usize::from(state.number())];
            let behaviour = cell.behaviour.replace('_', " ");
            Rule::new(
                "states::rc",
                &format!("{}::{}", state.name().to_lowercase(), cell.behaviour),
                "IBTA vol. 1, 10.3.1",
                format!("In {state}, {behaviour}: {says}."),
                if state == Sqe {
                    &[Feature::Rc, Feature::RcSqe]
                } else {
                    &[Feature::Rc]
                },
                move |provider| (cell.check)(provider, state),
            )
        })
    });
    Group {
        name: "states::rc",
        about: "The state table of a reliable connection: seven states, six behaviours.",
        rules: cells.collect(),
    }
}

/// One end in `state`, and a peer that is ready to talk to it and gives up soon.
fn end_in(p: &Provider, state: QpState) -> (End, End) {
    let (mut a, mut b) = p.ends();
    b.qp.init(&impatient()).expect("INIT");
    b.qp.connect(&a.qp.endpoint(), &impatient()).expect("RTS");
    if matches!(state, Sqd | Sqe | QpState::Err) {
        // They have talked: a first packet may go a way of its own.
        bring(&mut a.qp, &b.qp.endpoint(), Rts);
        let (there, here) = (b.region.remote(0), a.region.remote(0));
        a.go(90, RdmaWrite { remote: there }, NoPayload);
        completes(&mut a, 90, WcStatus::Success);
        b.go(90, RdmaWrite { remote: here }, NoPayload);
        completes(&mut b, 90, WcStatus::Success);
        go_to(&mut a, state);
    } else {
        bring(&mut a.qp, &b.qp.endpoint(), state);
    }
    (a, b)
}

fn post_receive(p: &Provider, state: QpState) {
    let (mut a, _b) = end_in(p, state);
    let expected = match state {
        Reset => Result::Err(PostError::WrongState),
        _ => Ok(()),
    };
    assert_eq!(post_recv(&mut a.qp, 70, &[]), expected);
}

fn post_send(p: &Provider, state: QpState) {
    let (mut a, _b) = end_in(p, state);
    let expected = match state {
        Reset | Init | Rtr => Result::Err(PostError::WrongState),
        _ => Ok(()),
    };
    assert_eq!(a.post(1, Send {}, NoPayload, SIGNALED), expected);
}

fn receive_processing(p: &Provider, state: QpState) {
    let (mut a, mut b) = end_in(p, state);
    match state {
        Reset => {
            // The only receives that there can be are those of an earlier life.
            bring(&mut a.qp, &b.qp.endpoint(), Init);
            a.receive(70, &[]);
            assert_eq!(a.reset(), [70]);
            b.go(1, Send {}, NoPayload);
            completes(&mut b, 1, WcStatus::RetryExcErr);
            a.nothing();
        }
        Init => {
            a.receive(70, &[]);
            b.go(1, Send {}, NoPayload);
            completes(&mut b, 1, WcStatus::RetryExcErr);
            a.nothing();
        }
        Err => {
            a.receive(70, &[]);
            completes(&mut a, 70, WcStatus::WrFlushErr);
        }
        _ => {
            a.receive(70, &[a.region.sge(0, 8)]);
            b.go(1, Send {}, Inline(&7u64.to_ne_bytes()));
            completes(&mut a, 70, WcStatus::Success);
            assert_eq!(a.region.word(0).load(Ordering::Acquire), 7);
        }
    }
}

fn send_processing(p: &Provider, state: QpState) {
    let (mut a, mut b) = end_in(p, state);
    let remote = b.region.remote(0);
    let written = |b: &End| b.region.word(0).load(Ordering::Acquire);
    match state {
        Reset => {
            // The only sends that there can be are those of an earlier life.
            bring(&mut a.qp, &b.qp.endpoint(), Rts);
            go_to(&mut a, Sqd);
            a.go(1, RdmaWrite { remote }, Inline(&[1; 8]));
            assert_eq!(a.reset(), [1]);
            a.nothing();
            assert_eq!(written(&b), 0);
        }
        Init | Rtr => {
            // Refused, so none is there to be processed.
            let refused = a.post(1, RdmaWrite { remote }, Inline(&[1; 8]), SIGNALED);
            assert_eq!(refused, Result::Err(PostError::WrongState));
            a.qp.sq().ring();
            a.nothing();
            assert_eq!(written(&b), 0);
        }
        Sqd => {
            a.go(1, RdmaWrite { remote }, Inline(&[1; 8]));
            a.nothing();
            assert_eq!(written(&b), 0, "posted in SQD, it waits");
            go_to(&mut a, Rts);
            completes(&mut a, 1, WcStatus::Success);
            // Started, it is finished.
            a.go(2, Send {}, NoPayload);
            drain_started(&mut a);
            b.receive(70, &[]);
            completes(&mut a, 2, WcStatus::Success);
        }
        Sqe | Err => {
            a.go(1, RdmaWrite { remote }, Inline(&[1; 8]));
            completes(&mut a, 1, WcStatus::WrFlushErr);
            assert_eq!(written(&b), 0);
        }
        Rts => {
            a.go(1, RdmaWrite { remote }, Inline(&[1; 8]));
            completes(&mut a, 1, WcStatus::Success);
            assert_ne!(written(&b), 0);
        }
    }
}

fn incoming_packets(p: &Provider, state: QpState) {
    let (a, mut b) = end_in(p, state);
    let remote = a.region.remote(0);
    b.go(1, RdmaWrite { remote }, Inline(&7u64.to_ne_bytes()));
    let (status, word) = match state {
        Reset | Init | Err => (WcStatus::RetryExcErr, 0),
        _ => (WcStatus::Success, 7),
    };
    completes(&mut b, 1, status);
    assert_eq!(a.region.word(0).load(Ordering::Acquire), word);
}

/// Responses: the peer's READ is answered. Requests: a receive of the peer is consumed.
fn outgoing_packets(p: &Provider, state: QpState) {
    let (mut a, mut b) = end_in(p, state);
    b.receive(70, &[]);
    if a.post(1, Send {}, NoPayload, SIGNALED).is_ok() {
        a.qp.sq().ring();
    }
    match state {
        Rts => completes(&mut b, 70, WcStatus::Success),
        _ => b.nothing(),
    }
    let remote = a.region.remote(0);
    b.go(2, RdmaRead { remote }, b.region.sge(0, 8));
    match state {
        Reset | Init | Err => completes(&mut b, 2, WcStatus::RetryExcErr),
        _ => completes(&mut b, 2, WcStatus::Success),
    }
    if state == Sqd {
        let (mut a, mut b) = p.pair_with(&quick_rnr());
        // The first packet has gone, and goes again: the peer was not ready.
        a.go(1, Send {}, NoPayload);
        drain_started(&mut a);
        b.receive(70, &[]);
        completes(&mut b, 70, WcStatus::Success);
    }
}
