//! The state table: seven states, six behaviours, a rule for each cell of each transport.
//!
//! What is expected stands here, as the specification has it, and is not taken from the library's own
//! table. Where nothing is acknowledged, what a queue pair sends shows at its peer.

use super::ends::{Receives, Service, Stands, Talker, ends, greet, pair};
use super::kind::Kind;
use crate::provider::{Feature, Provider};
use crate::rule::{Group, Rule};
use bellwire::queue::PostError;
use bellwire::state::QpState::{self, *};
use bellwire::wqe::*;
use bellwire::wr::WcStatus;
use bellwire_tests::fixture::{SIGNALED, until};
use std::sync::atomic::Ordering;

/// One behaviour of a transport.
struct Line {
    behaviour: &'static str,
    /// What the specification says of it, in the order RESET, INIT, RTR, RTS, SQD, SQE, ERR.
    says: [&'static str; 7],
    needs: Option<Feature>,
    check: fn(&Provider, QpState),
}

const REFUSED: &str = "refused at once";
const TAKEN: &str = "taken";
const WAIT: &str = "nothing is processed";
const ALL: &str = "all are processed";
const FLUSH: &str = "flushed";
const DROPPED: &str = "dropped, unanswered";
const HANDLED: &str = "handled";
const NO_PACKETS: &str = "none";
const THERE_IS_NONE: &str = "there is none";

pub fn groups() -> [Group; 4] {
    [
        group(
            Kind::Uc,
            "states::uc",
            "The state table of an unreliable connection: seven states, six behaviours.",
            both::<Uc>(),
        ),
        group(
            Kind::Ud,
            "states::ud",
            "The state table of unreliable datagrams: seven states, six behaviours.",
            both::<Ud>(),
        ),
        group(
            Kind::XrcSend,
            "states::xrc_send",
            "The state table of an extended reliable connection's initiator, which only sends.",
            initiator(),
        ),
        group(
            Kind::XrcRecv,
            "states::xrc_recv",
            "The state table of an extended reliable connection's target, which only receives, from \
             shared receive queues.",
            target(),
        ),
    ]
}

fn group(kind: Kind, name: &'static str, about: &'static str, lines: [Line; 6]) -> Group {
    let cell = |state: QpState, line: &Line| {
        let says = line.says[usize::from(state.number())];
        let behaviour = line.behaviour.replace('_', " ");
        let mut needs = kind.needs(state);
        needs.extend(line.needs);
        let check = line.check;
        Rule::new(
            name,
            &format!("{}::{}", state.name().to_lowercase(), line.behaviour),
            "IBTA vol. 1, 10.3.1",
            format!("In {state}, {behaviour}: {says}."),
            &needs,
            move |provider| check(provider, state),
        )
    };
    let cells = QpState::ALL
        .into_iter()
        .flat_map(|state| lines.iter().map(move |line| cell(state, line)));
    Group {
        name,
        about,
        rules: cells.collect(),
    }
}

fn line(behaviour: &'static str, says: [&'static str; 7], check: fn(&Provider, QpState)) -> Line {
    Line {
        behaviour,
        says,
        needs: None,
        check,
    }
}

/// A line that the kind cannot have.
fn lacks(behaviour: &'static str, needs: Feature) -> Line {
    Line {
        needs: Some(needs),
        ..line(behaviour, [THERE_IS_NONE; 7], |_, _| {
            panic!("a check is missing")
        })
    }
}

fn sends<T: Service>() -> [Line; 3] {
    const DRAIN: &str = "what was started is finished, the others wait";
    [
        line(
            "post_send",
            [REFUSED, REFUSED, REFUSED, TAKEN, TAKEN, TAKEN, TAKEN],
            post_send::<T>,
        ),
        line(
            "send_processing",
            [WAIT, WAIT, WAIT, ALL, DRAIN, FLUSH, FLUSH],
            send_processing::<T>,
        ),
        line(
            "outgoing_packets",
            [
                NO_PACKETS,
                NO_PACKETS,
                NO_PACKETS,
                "requests",
                "what is left of started requests",
                NO_PACKETS,
                NO_PACKETS,
            ],
            requests::<T>,
        ),
    ]
}

const INCOMING: [&str; 7] = [
    DROPPED, DROPPED, HANDLED, HANDLED, HANDLED, HANDLED, DROPPED,
];

fn both<T: Service>() -> [Line; 6] {
    let [post_send, send_processing, outgoing] = sends::<T>();
    [
        line(
            "post_receive",
            [REFUSED, TAKEN, TAKEN, TAKEN, TAKEN, TAKEN, TAKEN],
            post_receive::<T>,
        ),
        post_send,
        line(
            "receive_processing",
            [WAIT, WAIT, ALL, ALL, ALL, ALL, FLUSH],
            receive_processing::<T>,
        ),
        send_processing,
        line("incoming_packets", INCOMING, incoming_packets::<T>),
        outgoing,
    ]
}

fn initiator() -> [Line; 6] {
    let [post_send, send_processing, outgoing] = sends::<Xrc>();
    [
        line(
            "post_receive",
            ["refused at once: it has no receive queue"; 7],
            post_receive_to_none,
        ),
        post_send,
        lacks("receive_processing", Feature::XrcInitiatorReceives),
        send_processing,
        lacks("incoming_packets", Feature::XrcInitiatorReceives),
        outgoing,
    ]
}

fn target() -> [Line; 6] {
    const ANSWERS: &str = "responses";
    [
        line(
            "post_receive",
            ["taken, by the shared receive queue"; 7],
            post_receive::<Xrc>,
        ),
        lacks("post_send", Feature::XrcTargetSends),
        line(
            "receive_processing",
            [WAIT, WAIT, ALL, ALL, ALL, ALL, "left for other targets"],
            receive_processing::<Xrc>,
        ),
        lacks("send_processing", Feature::XrcTargetSends),
        line("incoming_packets", INCOMING, incoming_packets::<Xrc>),
        line(
            "outgoing_packets",
            [
                NO_PACKETS, NO_PACKETS, ANSWERS, ANSWERS, ANSWERS, ANSWERS, NO_PACKETS,
            ],
            responses,
        ),
    ]
}

/// Whether this state comes behind RTS, so that messages have gone before.
fn is_late(state: QpState) -> bool {
    matches!(state, Sqd | Sqe | Err)
}

/// A sender in `state`, and a receiver that is ready for it.
fn sender_in<T: Service>(p: &Provider, state: QpState) -> (Talker<T>, T::Receiver) {
    if is_late(state) {
        let (mut tx, mut rx) = pair::<T>(p);
        greet(&mut tx, &mut rx);
        tx.leave_rts(state);
        return (tx, rx);
    }
    let (mut tx, mut rx) = ends::<T>(p);
    rx.bring(&tx.endpoint(), Rts);
    tx.bring(&rx.endpoint(), state);
    (tx, rx)
}

/// A receiver in `state`, and a sender that is ready to talk to it and gives up soon.
fn receiver_in<T: Service>(p: &Provider, state: QpState) -> (Talker<T>, T::Receiver) {
    if is_late(state) {
        let (mut tx, mut rx) = pair::<T>(p);
        greet(&mut tx, &mut rx);
        rx.leave_rts(state);
        return (tx, rx);
    }
    let (mut tx, mut rx) = ends::<T>(p);
    tx.bring(&rx.endpoint(), Rts);
    rx.bring(&tx.endpoint(), state);
    (tx, rx)
}

/// What is reported to the sender of a message that was not taken.
const fn untaken<T: Service>() -> WcStatus {
    if T::RELIABLE {
        WcStatus::RetryExcErr
    } else {
        WcStatus::Success
    }
}

fn word<T: Service>(rx: &T::Receiver) -> u64 {
    rx.region().word(T::HEAD).load(Ordering::Acquire)
}

fn post_receive<T: Service>(p: &Provider, state: QpState) {
    let (_tx, mut rx) = receiver_in::<T>(p, state);
    let expected = match state {
        Reset if T::Receiver::OWN => Result::Err(PostError::WrongState),
        _ => Ok(()),
    };
    assert_eq!(rx.post_receive(70, &[]), expected);
}

fn post_receive_to_none(p: &Provider, state: QpState) {
    let (mut tx, _rx) = sender_in::<Xrc>(p, state);
    let refused = tx.post_recv(70, &[]);
    assert_eq!(refused, Result::Err(PostError::NoRecvQueue));
}

fn post_send<T: Service>(p: &Provider, state: QpState) {
    let (mut tx, _rx) = sender_in::<T>(p, state);
    let expected = match state {
        Reset | Init | Rtr => Result::Err(PostError::WrongState),
        _ => Ok(()),
    };
    assert_eq!(tx.post(1, Send {}, NoPayload, SIGNALED), expected);
}

fn receive_processing<T: Service>(p: &Provider, state: QpState) {
    let (mut tx, mut rx) = receiver_in::<T>(p, state);
    match state {
        Reset if T::Receiver::OWN => {
            // The only receives that there can be are those of an earlier life.
            rx.bring(&tx.endpoint(), Init);
            rx.receive(70, 8);
            assert_eq!(rx.reset(), [70]);
        }
        Err if T::Receiver::OWN => {
            rx.receive(70, 8);
            rx.took(70, WcStatus::WrFlushErr);
        }
        _ => rx.receive(70, 8),
    }
    tx.go(1, Send {}, Inline(&7u64.to_ne_bytes()));
    match state {
        Reset | Init | Err => {
            tx.completes(1, untaken::<T>());
            rx.took_nothing();
            assert_eq!(word::<T>(&rx), 0);
        }
        Rtr | Rts | Sqd | Sqe => {
            tx.completes(1, WcStatus::Success);
            rx.took(70, WcStatus::Success);
            assert_eq!(word::<T>(&rx), 7);
        }
    }
}

fn send_processing<T: Service>(p: &Provider, state: QpState) {
    let (mut tx, mut rx) = sender_in::<T>(p, state);
    rx.receive(70, 8);
    match state {
        Reset => {
            // The only sends that there can be are those of an earlier life.
            tx.bring(&rx.endpoint(), Rts);
            tx.go(0, Send {}, NoPayload);
            tx.completes(0, WcStatus::Success);
            rx.took(70, WcStatus::Success);
            rx.receive(71, 8);
            tx.go_to(Sqd);
            tx.go(1, Send {}, NoPayload);
            assert_eq!(tx.reset(), [1]);
            tx.nothing();
            rx.took_nothing();
        }
        Init | Rtr => {
            // Refused, so none is there to be processed.
            let refused = tx.post(1, Send {}, NoPayload, SIGNALED);
            assert_eq!(refused, Result::Err(PostError::WrongState));
            tx.qp.sq().ring();
            tx.nothing();
            rx.took_nothing();
        }
        Rts => {
            tx.go(1, Send {}, NoPayload);
            tx.completes(1, WcStatus::Success);
            rx.took(70, WcStatus::Success);
        }
        Sqd => {
            tx.go(1, Send {}, NoPayload);
            tx.nothing();
            rx.took_nothing();
            tx.go_to(Rts);
            tx.completes(1, WcStatus::Success);
            rx.took(70, WcStatus::Success);
            if T::RELIABLE {
                start(&mut tx, &mut rx);
                tx.go_to(Sqd);
                rx.receive(72, 8);
                tx.completes(3, WcStatus::Success);
                rx.took(72, WcStatus::Success);
            }
        }
        Sqe | Err => {
            tx.go(1, Send {}, NoPayload);
            tx.completes(1, WcStatus::WrFlushErr);
            rx.took_nothing();
        }
    }
}

fn incoming_packets<T: Service>(p: &Provider, state: QpState) {
    let (mut tx, mut rx) = receiver_in::<T>(p, state);
    T::put(&mut tx, 1, &mut rx, 7);
    match state {
        Reset | Init | Err => {
            tx.completes(1, untaken::<T>());
            // Long enough for it to come.
            tx.nothing();
            assert_eq!(word::<T>(&rx), 0);
        }
        Rtr | Rts | Sqd | Sqe => {
            tx.completes(1, WcStatus::Success);
            until("the message", || word::<T>(&rx) == 7);
        }
    }
}

/// Has the sender start a request, 3, that finds no receive: its packet has gone, and goes again.
fn start<T: Service>(tx: &mut Talker<T>, rx: &mut T::Receiver) {
    rx.receive(71, 8);
    tx.post(2, Send {}, NoPayload, SIGNALED).expect("room");
    // Together with another one: when that is reported, this one has been started.
    tx.go(3, Send {}, NoPayload);
    tx.completes(2, WcStatus::Success);
    rx.took(71, WcStatus::Success);
}

/// A receive of the peer is consumed where requests leave.
fn requests<T: Service>(p: &Provider, state: QpState) {
    let (mut tx, mut rx) = sender_in::<T>(p, state);
    rx.receive(70, 8);
    if tx.post(1, Send {}, NoPayload, SIGNALED).is_ok() {
        tx.qp.sq().ring();
    }
    match state {
        Rts => rx.took(70, WcStatus::Success),
        _ => rx.took_nothing(),
    }
    if state == Sqd && T::RELIABLE {
        let (mut tx, mut rx) = sender_in::<T>(p, Rts);
        start(&mut tx, &mut rx);
        tx.go_to(Sqd);
        rx.receive(72, 8);
        rx.took(72, WcStatus::Success);
    }
}

/// The initiator's READ is answered where responses leave.
fn responses(p: &Provider, state: QpState) {
    let (mut tx, rx) = receiver_in::<Xrc>(p, state);
    let remote = rx.region().remote(0);
    tx.go(1, RdmaRead { remote }, tx.region.sge(0, 8));
    match state {
        Reset | Init | Err => tx.completes(1, WcStatus::RetryExcErr),
        Rtr | Rts | Sqd | Sqe => tx.completes(1, WcStatus::Success),
    }
}
