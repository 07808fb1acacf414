//! Whose entries are shown.

use super::*;

#[test]
fn datagrams_and_shared_receives_are_shown_as_far_as_they_are_the_queue_pairs_own() {
    let device = device(Mode::Inline);
    let pd = device.alloc_pd();
    let mut srq = pd.create_srq(&SrqInit::default()).expect("a queue");
    let mut cqs = [0; 2].map(|_| device.create_cq(1024).expect("a queue"));
    let [send_cq, recv_cq] = &mut cqs;
    let init = QpInit::default();
    let mut qp: Qp<Ud> = pd
        .create_qp_on_srq((&mut *send_cq, &mut *recv_cq), &srq, &init)
        .expect("a queue pair");
    let attr = ConnectAttr::default();
    qp.init(&attr).expect("INIT");
    qp.start(&attr).expect("RTS");
    // SAFETY: no memory; the message is the route header's room short, so the receive fails.
    unsafe { srq.post(5, &[]).expect("room") };
    srq.ring();
    let way = device.way_to(&qp.endpoint(), 1, None);
    let ah = pd.create_ah(&way).expect("an address handle");
    let own = qp.qp_num();
    let to = ah.to(own, attr.qkey);
    qp.sq()
        .post_inline(3, to, Send {}, b"datagram", SIGNALED)
        .expect("room");
    qp.sq().ring();
    let record = qp
        .dump((&mut *send_cq, &mut *recv_cq), &DumpOptions::default())
        .expect("a dump");
    says_the_same(&record);
    assert_eq!(record.transport, QpType::Ud);
    assert_eq!(record.sends[0].dest_qp_num, Some(own));
    assert_eq!(record.sends[0].remote, None);
    assert!(record.recv_queue.is_none() && record.receives.is_empty());
    let cqns: Vec<_> = (record.completions.iter())
        .map(|of| (of.cqn, of.operation, of.status, of.wr_id))
        .collect();
    let recv_cqn = record.recv_cq.expect("two of them").cqn;
    assert_eq!(
        cqns,
        [
            (record.send_cq.cqn, "SEND", Some(WcStatus::Success), Some(3)),
            (recv_cqn, "RECV", Some(WcStatus::LocLenErr), None)
        ]
    );
}

#[test]
fn only_its_own_completion_queues_will_do() {
    let (mut a, mut b) = pair(Mode::Inline);
    let options = DumpOptions::default();
    let foreign = |result| matches!(result, Err(Error::Foreign { .. }));
    assert!(foreign(a.qp.dump(&mut b.cq, &options)));
    let split = Cqs::Split(&mut a.cq, &mut b.cq);
    assert!(foreign(a.qp.dump(split, &options)));
    let none = DumpOptions {
        entries: 0,
        ..options
    };
    a.go(1, Nop {}, NoPayload);
    let record = a.qp.dump(&mut a.cq, &none).expect("a dump");
    assert!(record.sends.is_empty() && record.completions.is_empty());
}
