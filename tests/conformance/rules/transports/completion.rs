//! What completes, and in which order, on the transports beside RC.

use super::ends::*;
use super::kind::Kind;
use crate::provider::{Feature, Provider};
use crate::rule::{Group, Rule};
use bellwire::QpInit;
use bellwire::state::QpState::{self, *};
use bellwire::wqe::{Inline, NoPayload, Send, Uc, Ud, Xrc};
use bellwire::wr::{SendFlags, WcOpcode, WcStatus};
use bellwire_tests::fixture::{Random, SIGNALED, init};
use std::sync::atomic::Ordering;

const SILENT: SendFlags = SendFlags::empty();

pub fn groups() -> [Group; 3] {
    let mut uc = group::<Uc>(
        "completion::uc",
        "What completes on an unreliable connection, and in which order.",
    );
    uc.rules.extend(unreliable::<Uc>(uc.name));
    let mut ud = group::<Ud>(
        "completion::ud",
        "What completes of unreliable datagrams, and in which order.",
    );
    ud.rules.extend(unreliable::<Ud>(ud.name));
    let xrc = group::<Xrc>(
        "completion::xrc",
        "What completes on an extended reliable connection, and in which order.",
    );
    [uc, ud, xrc]
}

/// Name, source, words, and what it does.
type Line = (&'static str, &'static str, &'static str, fn(&Provider));

fn rules(group: &str, kind: Kind, lines: &[Line]) -> Vec<Rule> {
    let needs: Vec<Feature> = kind.needs(Rts);
    let rule =
        |&(name, source, says, check): &Line| Rule::new(group, name, source, says, &needs, check);
    lines.iter().map(rule).collect()
}

fn group<T: Service>(name: &'static str, about: &'static str) -> Group {
    let lines: [Line; 12] = [
        (
            "sends_complete_in_the_order_they_were_posted",
            "IBTA vol. 1, 10.8.3",
            "Completions of a send queue come in the order of its requests, whatever their lengths.",
            sends_complete_in_order::<T>,
        ),
        (
            "receives_complete_in_the_order_they_were_posted",
            "IBTA vol. 1, 10.8.3",
            "Receives are taken, and complete, in the order in which they were posted.",
            receives_complete_in_order::<T>,
        ),
        (
            "unsignalled_requests_complete_with_the_next_signalled",
            "ibv_post_send(3), IBV_SEND_SIGNALED",
            "An unsignalled request has no entry; the next signalled one says how many it retires.",
            unsignalled_complete_with_the_next::<T>,
        ),
        (
            "unsignalled_requests_alone_write_no_completion",
            "ibv_post_send(3), IBV_SEND_SIGNALED",
            "Unsignalled requests that succeed write no completion.",
            unsignalled_write_no_completion::<T>,
        ),
        (
            "every_request_of_sq_sig_all_has_an_entry",
            "ibv_create_qp(3), sq_sig_all",
            "With `sq_sig_all` every send request completes with an entry of its own.",
            sq_sig_all::<T>,
        ),
        (
            "errors_complete_though_unsignalled",
            "IBTA vol. 1, 10.7.3.1",
            "A request that fails completes, signalled or not.",
            errors_complete::<T>,
        ),
        (
            "the_failed_comes_first_then_the_flushed",
            "IBTA vol. 1, 10.3.1.6 and 10.3.1.7",
            "Requests before the one that fails succeed; it completes with its error, those behind it \
             as flushed, in order, signalled or not, and none of them reaches the peer.",
            the_failed_then_the_flushed::<T>,
        ),
        (
            "a_failed_send_leaves_the_state_that_it_has_to",
            "IBTA vol. 1, 10.3.1.6",
            if T::RELIABLE {
                "A send that fails takes a reliable queue pair to ERR."
            } else {
                "A send that fails takes an unreliable queue pair to SQE, not to ERR."
            },
            after_a_failed_send::<T>,
        ),
        (
            "err_flushes_what_is_in_flight",
            "IBTA vol. 1, 10.3.1.7",
            "Going to ERR completes every send that waits as flushed, in order, once.",
            err_flushes_sends::<T>,
        ),
        (
            "sends_posted_in_err_are_flushed",
            "IBTA vol. 1, 10.3.1.7",
            "Sends posted in ERR complete as flushed, signalled or not.",
            posted_in_err::<T>,
        ),
        (
            "a_completion_says_what_it_is_of",
            "ibv_poll_cq(3)",
            "Sends and receives have their opcodes, and the numbers of their queue pairs.",
            says_what_it_is_of::<T>,
        ),
        (
            "a_receive_says_how_long",
            "ibv_poll_cq(3), byte_len",
            "The length of a receive is the message's, and of a datagram 40 more.",
            says_how_long::<T>,
        ),
    ];
    Group {
        name,
        about,
        rules: rules(name, T::KIND, &lines),
    }
}

/// Where the sender learns nothing of the message's fate, and survives its own errors.
fn unreliable<T: Service<Receiver = Talker<T>>>(group: &str) -> Vec<Rule> {
    let lines: [Line; 8] = [
        (
            "a_send_completes_although_nobody_is_there",
            "IBTA vol. 1, 9.8.2 and 9.8.3",
            "Messages to a queue pair that is gone succeed: nothing reports it to the sender.",
            nobody_is_there::<T>,
        ),
        (
            "a_send_completes_although_there_is_no_receive",
            "IBTA vol. 1, 9.8.2 and 9.8.3",
            "A message that finds no receive succeeds at the sender, and is lost.",
            no_receive_is_there::<T>,
        ),
        (
            "err_flushes_receives",
            "IBTA vol. 1, 10.3.1.7",
            "Going to ERR completes every receive posted as flushed, in order, once.",
            err_flushes_receives::<T>,
        ),
        (
            "sends_posted_in_sqe_are_flushed",
            "IBTA vol. 1, 10.3.1.6",
            "Sends posted in SQE complete as flushed, signalled or not, and do not reach the peer.",
            posted_in_sqe::<T>,
        ),
        (
            "sqe_leaves_receives_alone",
            "IBTA vol. 1, 10.3.1.6",
            "Receives posted before a send fails are not flushed, and take what comes.",
            sqe_leaves_receives_alone::<T>,
        ),
        (
            "from_sqe_to_rts_sends_go_again",
            "IBTA vol. 1, 10.3.1.6; ibv_modify_qp(3)",
            "Back in RTS, sends reach the peer; those flushed in SQE are not sent after all.",
            sends_go_again::<T>,
        ),
        (
            "sqe_comes_back",
            "IBTA vol. 1, 10.3.1.6",
            "A queue pair can fail and be taken back to RTS any number of times; each request is reported \
             once.",
            sqe_comes_back::<T>,
        ),
        (
            "from_sqe_to_err_receives_are_flushed",
            "IBTA vol. 1, 10.3.1.7",
            "Going from SQE to ERR flushes the receives.",
            from_sqe_to_err::<T>,
        ),
    ];
    rules(group, T::KIND, &lines)
}

fn sends_complete_in_order<T: Service>(p: &Provider) {
    let (mut tx, mut rx) = pair::<T>(p);
    for round in 0..20 {
        for wr_id in 0..5 {
            rx.receive(wr_id, 2000);
            let here = tx.region.sge(0, if wr_id % 2 == 0 { 2000 } else { 8 });
            tx.post(round * 5 + wr_id, Send {}, here, SIGNALED)
                .expect("room");
        }
        tx.qp.sq().ring();
        for wr_id in 0..5 {
            tx.completes(round * 5 + wr_id, WcStatus::Success);
            rx.took(wr_id, WcStatus::Success);
        }
    }
}

fn receives_complete_in_order<T: Service>(p: &Provider) {
    let (mut tx, mut rx) = pair::<T>(p);
    for wr_id in 0..40 {
        rx.receive(wr_id, 200);
    }
    for wr_id in 0..40 {
        tx.go(wr_id, Send {}, Inline(&[1; 200][..wr_id as usize * 5]));
    }
    for wr_id in 0..40 {
        let done = rx.arrived();
        assert_eq!((done.wr_id, done.status()), (wr_id, WcStatus::Success));
        assert_eq!(done.retired, 1);
    }
    rx.took_nothing();
}

fn unsignalled_complete_with_the_next<T: Service>(p: &Provider) {
    let (mut tx, mut rx) = pair::<T>(p);
    let mut random = Random::new(6);
    for round in 0..100 {
        let silent = random.below(30) as u32;
        for _ in 0..silent {
            rx.receive(7, 150);
            let bytes = &[1; 150][..random.below(150) as usize];
            tx.post(u64::MAX, Send {}, Inline(bytes), SILENT)
                .expect("room");
            if random.below(4) == 0 {
                tx.qp.sq().ring();
            }
        }
        rx.receive(8, 8);
        tx.go(round, Send {}, Inline(&[2; 8]));
        let done = tx.wait();
        assert_eq!((done.wr_id, done.status()), (round, WcStatus::Success));
        assert_eq!(done.retired, silent + 1);
        for _ in 0..silent {
            rx.took(7, WcStatus::Success);
        }
        rx.took(8, WcStatus::Success);
    }
    tx.nothing();
}

fn unsignalled_write_no_completion<T: Service>(p: &Provider) {
    let (mut tx, mut rx) = pair::<T>(p);
    for wr_id in 0..20 {
        rx.receive(wr_id, 8);
        tx.post(wr_id, Send {}, NoPayload, SILENT).expect("room");
    }
    tx.qp.sq().ring();
    for wr_id in 0..20 {
        rx.took(wr_id, WcStatus::Success);
    }
    tx.nothing();
}

fn sq_sig_all<T: Service>(p: &Provider) {
    let init = QpInit {
        sq_sig_all: true,
        ..init()
    };
    let (mut tx, mut rx) = pair_of::<T>(p, &init);
    for wr_id in 0..20 {
        rx.receive(wr_id, 8);
        tx.post(wr_id, Send {}, NoPayload, SILENT).expect("room");
    }
    tx.qp.sq().ring();
    for wr_id in 0..20 {
        let done = tx.wait();
        assert_eq!((done.wr_id, done.retired), (wr_id, 1));
    }
    tx.nothing();
}

fn errors_complete<T: Service>(p: &Provider) {
    let (mut tx, _rx) = pair::<T>(p);
    tx.post(1, Send {}, NOWHERE, SILENT).expect("room");
    tx.qp.sq().ring();
    tx.completes(1, WcStatus::LocProtErr);
    tx.nothing();
}

fn the_failed_then_the_flushed<T: Service>(p: &Provider) {
    let (mut tx, mut rx) = pair::<T>(p);
    for wr_id in 0..10 {
        rx.receive(wr_id, 8);
        let flags = if wr_id % 2 == 1 { SIGNALED } else { SILENT };
        let posted = match wr_id {
            4 => tx.post(wr_id, Send {}, NOWHERE, flags),
            _ => tx.post(wr_id, Send {}, NoPayload, flags),
        };
        posted.expect("room");
    }
    tx.qp.sq().ring();
    for (wr_id, retired) in [(1, 2), (3, 2)] {
        let done = tx.wait();
        assert_eq!((done.wr_id, done.status()), (wr_id, WcStatus::Success));
        assert_eq!(done.retired, retired);
    }
    tx.completes(4, WcStatus::LocProtErr);
    for wr_id in 5..10 {
        tx.completes(wr_id, WcStatus::WrFlushErr);
    }
    tx.nothing();
    for wr_id in 0..4 {
        rx.took(wr_id, WcStatus::Success);
    }
    rx.took_nothing();
}

fn after_a_failed_send<T: Service>(p: &Provider) {
    let (mut tx, _rx) = pair::<T>(p);
    tx.go(1, Send {}, NOWHERE);
    tx.completes(1, WcStatus::LocProtErr);
    assert_eq!(tx.state(), if T::RELIABLE { Err } else { Sqe });
}

fn err_flushes_sends<T: Service>(p: &Provider) {
    let (mut tx, mut rx) = pair::<T>(p);
    tx.go_to(Sqd);
    rx.receive(70, 8);
    for wr_id in 0..10 {
        tx.go(wr_id, Send {}, NoPayload);
    }
    tx.go_to(Err);
    for wr_id in 0..10 {
        tx.completes(wr_id, WcStatus::WrFlushErr);
    }
    tx.nothing();
    rx.took_nothing();
    assert!(tx.reset().is_empty(), "all were reported");
}

fn posted_in_err<T: Service>(p: &Provider) {
    let (mut tx, _rx) = pair::<T>(p);
    tx.go_to(Err);
    posted_are_flushed(&mut tx);
}

fn posted_are_flushed<T: Service>(tx: &mut Talker<T>) {
    for wr_id in 0..10 {
        let flags = if wr_id % 2 == 1 { SIGNALED } else { SILENT };
        tx.post(wr_id, Send {}, NoPayload, flags).expect("room");
        if wr_id % 3 == 0 {
            tx.qp.sq().ring();
        }
    }
    for wr_id in 0..10 {
        tx.completes(wr_id, WcStatus::WrFlushErr);
    }
    tx.nothing();
}

fn says_what_it_is_of<T: Service>(p: &Provider) {
    let (mut tx, mut rx) = pair::<T>(p);
    rx.receive(70, 8);
    tx.go(1, Send {}, NoPayload);
    let sent = tx.wait();
    assert_eq!((sent.wr_id, sent.qp_num), (1, tx.qp.qp_num()));
    assert_eq!(sent.result.expect("sent").opcode, WcOpcode::Send);
    let received = rx.arrived();
    let qpn = rx.endpoint().qp_num;
    assert_eq!((received.wr_id, received.qp_num), (70, qpn));
    assert_eq!(received.result.expect("received").opcode, WcOpcode::Recv);
}

fn says_how_long<T: Service>(p: &Provider) {
    let (mut tx, mut rx) = pair::<T>(p);
    for length in [0, 1, 32, 33, 100, 200] {
        rx.receive(70, 200);
        tx.go(1, Send {}, Inline(&[1; 200][..length]));
        let sent = tx.wait().result.expect("sent");
        assert_eq!(sent.byte_len(), None, "a SEND has none");
        let received = rx.arrived().result.expect("received");
        let expected = length + T::HEAD;
        assert_eq!(received.byte_len(), Some(expected as u32));
    }
}

fn nobody_is_there<T: Service>(p: &Provider) {
    let (mut tx, rx) = pair::<T>(p);
    drop(rx);
    for wr_id in 0..10 {
        tx.go(wr_id, Send {}, Inline(&[1; 8]));
        tx.completes(wr_id, WcStatus::Success);
    }
    assert_eq!(tx.state(), Rts);
}

fn no_receive_is_there<T: Service>(p: &Provider) {
    let (mut tx, mut rx) = pair::<T>(p);
    tx.go(1, Send {}, Inline(&1u64.to_ne_bytes()));
    tx.completes(1, WcStatus::Success);
    rx.took_nothing();
    // A receive that comes later is the next message's.
    rx.receive(70, 8);
    rx.took_nothing();
    tx.go(2, Send {}, Inline(&2u64.to_ne_bytes()));
    tx.completes(2, WcStatus::Success);
    rx.took(70, WcStatus::Success);
    let word = rx.region().word(T::HEAD).load(Ordering::Acquire);
    assert_eq!(word, 2);
    rx.took_nothing();
}

fn err_flushes_receives<T: Service>(p: &Provider) {
    let (_tx, mut rx) = pair::<T>(p);
    for wr_id in 0..10 {
        rx.receive(wr_id, 8);
    }
    rx.go_to(Err);
    for wr_id in 10..15 {
        rx.receive(wr_id, 8);
    }
    for wr_id in 0..15 {
        rx.took(wr_id, WcStatus::WrFlushErr);
    }
    rx.took_nothing();
}

fn posted_in_sqe<T: Service>(p: &Provider) {
    let (mut tx, mut rx) = pair::<T>(p);
    rx.receive(70, 8);
    tx.fail_a_send();
    posted_are_flushed(&mut tx);
    assert_eq!(tx.state(), Sqe);
    rx.took_nothing();
}

fn sqe_leaves_receives_alone<T: Service<Receiver = Talker<T>>>(p: &Provider) {
    let (mut tx, mut rx) = pair::<T>(p);
    rx.receive(70, 8);
    rx.fail_a_send();
    rx.nothing();
    tx.go(1, Send {}, NoPayload);
    tx.completes(1, WcStatus::Success);
    rx.took(70, WcStatus::Success);
    assert_eq!(rx.state(), QpState::Sqe);
}

fn sends_go_again<T: Service>(p: &Provider) {
    let (mut tx, mut rx) = pair::<T>(p);
    rx.receive(70, 8);
    tx.fail_a_send();
    tx.go(1, Send {}, Inline(&1u64.to_ne_bytes()));
    tx.completes(1, WcStatus::WrFlushErr);
    tx.go_to(Rts);
    rx.took_nothing();
    tx.go(2, Send {}, Inline(&2u64.to_ne_bytes()));
    tx.completes(2, WcStatus::Success);
    rx.took(70, WcStatus::Success);
    let word = rx.region().word(T::HEAD).load(Ordering::Acquire);
    assert_eq!(word, 2);
    tx.nothing();
}

fn sqe_comes_back<T: Service>(p: &Provider) {
    let (mut tx, mut rx) = pair::<T>(p);
    // More often than the queue has entries.
    for round in 0..200 {
        rx.receive(round, 8);
        tx.post(1, Send {}, NoPayload, SIGNALED).expect("room");
        tx.post(2, Send {}, NOWHERE, SIGNALED).expect("room");
        tx.go(3, Send {}, NoPayload);
        tx.completes(1, WcStatus::Success);
        tx.completes(2, WcStatus::LocProtErr);
        tx.completes(3, WcStatus::WrFlushErr);
        rx.took(round, WcStatus::Success);
        tx.go_to(Rts);
    }
    tx.nothing();
    rx.took_nothing();
    assert_eq!(tx.cq.stale(), 0);
}

fn from_sqe_to_err<T: Service<Receiver = Talker<T>>>(p: &Provider) {
    let (_tx, mut rx) = pair::<T>(p);
    rx.receive(70, 8);
    rx.fail_a_send();
    rx.go_to(Err);
    rx.took(70, WcStatus::WrFlushErr);
    rx.nothing();
}
