//! What failed, was flushed, reset or lost.

use super::*;

bellwire_tests::in_both_modes!(a_failure_and_the_flush_behind_it_are_seen);

fn a_failure_and_the_flush_behind_it_are_seen(mode: Mode) {
    let (mut a, mut b) = pair(mode);
    b.receive(70, &[b.region.sge(0, 64)]);
    let remote = b.region.remote(0);
    let mut wrong = remote;
    wrong.rkey ^= 0xff00;
    let sge = a.region.sge(0, 8);
    a.go(1, RdmaWrite { remote }, sge);
    assert_eq!(a.outcome(), (1, WcStatus::Success));
    a.post(2, RdmaWrite { remote: wrong }, sge, UNSIGNALED)
        .expect("room");
    a.post(3, Send {}, sge, UNSIGNALED).expect("room");
    a.qp.sq().ring();
    until("the flush", || a.qp.state() == QpState::Err);
    let check = |record: &Record, polled: bool| {
        let stage = if polled {
            Stage::Retired
        } else {
            Stage::Completed
        };
        assert_eq!(
            stages(record),
            [
                (1, Stage::Retired, Some(WcStatus::Success)),
                (2, stage, Some(WcStatus::RemAccessErr)),
                (3, stage, Some(WcStatus::WrFlushErr))
            ]
        );
        let failed = completion(record, 2);
        assert_eq!((failed.syndrome, failed.polled), (0x13, polled));
        assert_eq!(failed.operation, "RDMA_WRITE");
        assert_eq!(completion(record, 3).syndrome, 5);
        assert_eq!(record.state, QpState::Err);
        assert_eq!(record.dest_qp_num, b.qp.qp_num());
        let text = record.to_string();
        let line = format!(
            "REM_ACCESS_ERR: RDMA_WRITE wr_id 2 remote {:#x}",
            wrong.addr
        );
        assert!(text.contains(&line), "{text}");
        assert!(text.contains("REM_ACCESS_ERR syndrome 0x13"), "{text}");
    };
    check(&dump(&mut a), false);
    assert_eq!(a.outcome(), (2, WcStatus::RemAccessErr));
    assert_eq!(a.outcome(), (3, WcStatus::WrFlushErr));
    check(&dump(&mut a), true);
    // The receiver's flushed receive.
    until("the receiver's", || b.qp.state() == QpState::Err);
    let record = dump(&mut b);
    assert_eq!(record.receives[0].status, Some(WcStatus::WrFlushErr));
    assert_eq!(record.receives[0].stage, Stage::Completed);
    // A dump shows it, and takes nothing away.
    assert_eq!(b.outcome(), (70, WcStatus::WrFlushErr));
    b.nothing();
}

#[test]
fn a_reset_leaves_other_queue_pairs_their_completions_once() {
    let device = device(Mode::Inline);
    let pd = device.alloc_pd();
    let init = init();
    let (sends, receives) = init.cq_entries();
    let mut cq = device.create_cq(4 * (sends + receives)).expect("a queue");
    let mut make = || pd.create_qp(&mut cq, &init).expect("a queue pair");
    let (mut first, mut second): (Qp, Qp) = (make(), make());
    let attr = ConnectAttr::default();
    for qp in [&mut first, &mut second] {
        qp.init(&attr).expect("INIT");
        let own = qp.endpoint();
        qp.connect(&own, &attr).expect("RTS");
    }
    for wr_id in 0..4 {
        for qp in [&mut first, &mut second] {
            qp.sq()
                .post_empty(wr_id, (), Nop {}, SIGNALED)
                .expect("room");
            qp.sq().ring();
        }
    }
    first.reset(&mut cq, |_, _| ()).expect("RESET");
    let record = second
        .dump(&mut cq, &DumpOptions::default())
        .expect("a dump");
    says_the_same(&record);
    let of: Vec<_> = (record.completions.iter())
        .map(|of| (of.wr_id, of.polled))
        .collect();
    assert_eq!(of, [0, 1, 2, 3].map(|wr_id| (Some(wr_id), false)));
    let record = first
        .dump(&mut cq, &DumpOptions::default())
        .expect("a dump");
    says_the_same(&record);
    assert!(record.sends.is_empty() && record.completions.is_empty());
    // Its next life starts at the next multiple of 65536; what was polled of the last one is stale.
    first.init(&attr).expect("INIT");
    let own = first.endpoint();
    first.connect(&own, &attr).expect("RTS");
    for life in 0..2 {
        first
            .sq()
            .post_empty(9, (), Nop {}, SIGNALED)
            .expect("room");
        first.sq().ring();
        while cq.poll_one().is_some() {}
        let record = first
            .dump(&mut cq, &DumpOptions::default())
            .expect("a dump");
        says_the_same(&record);
        assert_eq!(record.sends[0].counter, (life + 1) << 16);
        let stale: Vec<_> = record.completions.iter().map(|of| of.stale).collect();
        assert_eq!(stale, [vec![false], vec![true, false]][life as usize]);
        if life == 0 {
            first.reset(&mut cq, |_, _| ()).expect("RESET");
            first.init(&attr).expect("INIT");
            let own = first.endpoint();
            first.connect(&own, &attr).expect("RTS");
        }
    }
}

#[test]
fn an_overrun_completion_queue_can_be_dumped() {
    let device = device(Mode::Inline);
    let pd = device.alloc_pd();
    let init = QpInit {
        reserve_cq: false,
        ..init()
    };
    let mut cq = device.create_cq(4).expect("a queue");
    let mut qp = pd.create_qp(&mut cq, &init).expect("a queue pair");
    let attr = ConnectAttr::default();
    qp.init(&attr).expect("INIT");
    let own = qp.endpoint();
    qp.connect(&own, &attr).expect("RTS");
    let entries = cq.capacity() as usize;
    for wr_id in 0..entries + 2 {
        qp.sq()
            .post_empty(wr_id as u64, (), Nop {}, SIGNALED)
            .expect("room");
    }
    qp.sq().ring();
    assert!(cq.overrun());
    let record = qp.dump(&mut cq, &DumpOptions::default()).expect("a dump");
    says_the_same(&record);
    assert!(record.send_cq.overrun && record.state == QpState::Err);
    let staged: Vec<_> = record.sends.iter().map(|send| send.stage).collect();
    let (completed, rest) = staged.split_at(entries);
    assert!(completed.iter().all(|&stage| stage == Stage::Completed));
    assert_eq!(rest, [Stage::InFlight; 2]);
    assert_eq!(record.completions.len(), entries);
}
