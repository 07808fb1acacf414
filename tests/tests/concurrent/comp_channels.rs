//! What this library says about completion channels beside the rules of the verbs, which
//! `conformance` has: what outlives what, and what is refused.

use bellwire::event::CompChannel;
use bellwire::soft::Mode;
use bellwire::wqe::*;
use bellwire::{ConnectAttr, Cq, CqInit, Error, Qp};
use bellwire_tests::fixture::*;
use bellwire_tests::in_both_modes;
use bellwire_tests::readiness::readable;

in_both_modes! {
    a_queue_may_outlive_its_channel, queue_pairs_may_outlive_their_queue,
    a_drop_acknowledges, a_queue_without_a_channel_cannot_be_armed,
    a_channel_of_another_context_is_refused, numbers_distinguish_queues,
}

fn cq_on(channel: &CompChannel) -> Cq {
    let (send, recv) = init().cq_entries();
    let init = CqInit {
        channel: Some(channel),
        ..CqInit::new(send + recv)
    };
    channel.device().create_cq_with(&init).unwrap()
}

/// A queue pair that is connected with itself, on a channel.
fn looped(mode: Mode) -> (CompChannel, Cq, Qp) {
    let pd = device(mode).alloc_pd();
    let channel = pd.device().create_comp_channel().unwrap();
    let mut cq = cq_on(&channel);
    let mut qp = pd.create_qp(&mut cq, &init()).unwrap();
    let connect = ConnectAttr::default();
    qp.init(&connect).unwrap();
    qp.connect(&qp.endpoint(), &connect).unwrap();
    (channel, cq, qp)
}

fn complete(qp: &mut Qp) {
    post(qp, 1, Nop {}, NoPayload, SIGNALED).unwrap();
    qp.sq().ring();
}

fn a_queue_may_outlive_its_channel(mode: Mode) {
    let (channel, mut cq, mut qp) = looped(mode);
    drop(channel);
    cq.req_notify(false).unwrap();
    complete(&mut qp);
    assert_eq!(wait(&mut cq).wr_id, 1);
    // The event that nobody can get does not keep it.
    drop(cq);
}

fn queue_pairs_may_outlive_their_queue(mode: Mode) {
    let (channel, mut cq, mut qp) = looped(mode);
    cq.req_notify(false).unwrap();
    let cqn = cq.cqn();
    drop(cq);
    // No event comes of a queue that is gone, and nobody else has its number.
    complete(&mut qp);
    assert!(!readable(&channel, Quiet::from(mode).0));
    assert_ne!(cq_on(&channel).cqn(), cqn);
}

fn a_drop_acknowledges(mode: Mode) {
    let (channel, mut cq, mut qp) = looped(mode);
    cq.req_notify(false).unwrap();
    complete(&mut qp);
    drop(channel.get_cq_event().unwrap());
    drop(qp);
    // Does not hang.
    drop(cq);
}

fn a_queue_without_a_channel_cannot_be_armed(mode: Mode) {
    let device = device(mode);
    let mut cq = device.create_cq(16).unwrap();
    let cqn = cq.cqn();
    let unarmed = [cq.req_notify(false), cq.req_notify(true), cq.ack_events(1)];
    for error in unarmed {
        let error = error.unwrap_err();
        assert!(
            matches!(error, Error::NoChannel { cqn: of } if of == cqn),
            "{error}"
        );
        assert!(error.to_string().contains("create it with one"), "{error}");
    }
}

fn a_channel_of_another_context_is_refused(mode: Mode) {
    let first = device(mode);
    let channel = first.create_comp_channel().unwrap();
    for other in [first.reopen().unwrap(), device(mode)] {
        let init = CqInit {
            channel: Some(&channel),
            ..CqInit::new(16)
        };
        let error = other.create_cq_with(&init).unwrap_err();
        let foreign = matches!(
            error,
            Error::Foreign {
                what: "completion channel"
            }
        );
        assert!(foreign, "{error}");
    }
}

fn numbers_distinguish_queues(mode: Mode) {
    let device = device(mode);
    let kept: Vec<Cq> = (0..20).map(|_| device.create_cq(1).unwrap()).collect();
    let mut numbers: Vec<u32> = kept.iter().map(Cq::cqn).collect();
    for _ in 0..20 {
        numbers.push(device.reopen().unwrap().create_cq(1).unwrap().cqn());
    }
    assert!(numbers.iter().all(|&cqn| cqn != 0 && cqn < 1 << 24));
    let count = numbers.len();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), count);
}
