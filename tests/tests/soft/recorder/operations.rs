//! Every operation is shown, with what it names.

use super::*;

#[test]
fn empty_queues_have_nothing_to_show() {
    let (mut a, _) = ends(&device(Mode::Inline), Mode::Inline);
    let record = dump(&mut a);
    assert_eq!(record.qp_num, a.qp.qp_num());
    assert_eq!(
        (record.transport, record.state),
        (QpType::Rc, QpState::Reset)
    );
    assert!(record.sends.is_empty() && record.receives.is_empty());
    assert!(record.completions.is_empty() && record.notes.is_empty());
    assert!(record.recv_cq.is_none());
    assert_eq!(record.send_queue.counter, 0);
    let text = record.to_string();
    for list in ["sends", "receives", "completions", "notes"] {
        assert!(text.contains(&format!("\n{list}: none\n")), "{text}");
    }
}

#[test]
fn every_operation_is_shown_with_what_it_names() {
    let (mut a, mut b) = pair(Mode::Inline);
    let remote = b.region.remote(128);
    let target = Some(Target {
        addr: remote.addr,
        key: remote.rkey,
    });
    let sge = a.region.sge(64, 8);
    for wr_id in 70..73 {
        b.receive(wr_id, &[b.region.sge(0, 64), b.region.sge(256, 64)]);
    }
    let imm = Be32::new(0x1234);
    a.go(
        10,
        RdmaWrite { remote },
        [sge, a.region.sge(1024, 100)].as_slice(),
    );
    a.go(11, RdmaRead { remote }, sge);
    let (compare, swap) = (3, 4);
    a.go(
        12,
        AtomicCmpAndSwp {
            remote,
            compare,
            swap,
        },
        sge,
    );
    a.go(13, AtomicFetchAndAdd { remote, add: 5 }, sge);
    let flags = SIGNALED | SendFlags::SOLICITED | SendFlags::FENCE;
    a.post(14, SendWithImm { imm }, Inline2(b"hello"), flags)
        .expect("room");
    a.post(15, RdmaWriteWithImm { remote, imm }, NoPayload, UNSIGNALED)
        .expect("room");
    a.post(16, Send {}, sge, UNSIGNALED).expect("room");
    a.qp.sq().ring();
    a.post(17, Nop {}, NoPayload, SIGNALED).expect("room");
    let record = dump(&mut a);
    let operations: Vec<_> = record.sends.iter().map(|send| send.operation).collect();
    assert_eq!(
        operations,
        [
            "RDMA_WRITE",
            "RDMA_READ",
            "ATOMIC_CMP_AND_SWP",
            "ATOMIC_FETCH_AND_ADD",
            "SEND_WITH_IMM",
            "RDMA_WRITE_WITH_IMM",
            "SEND",
            "NOP"
        ]
    );
    assert_eq!(wr_ids(&record), [10, 11, 12, 13, 14, 15, 16, 17]);
    let send = |at: usize| -> &SendEntry { &record.sends[at] };
    assert_eq!(
        send(0).data,
        [segment(sge), segment(a.region.sge(1024, 100))]
    );
    for at in [0, 1, 2, 3, 5] {
        assert_eq!(send(at).remote, target);
    }
    let atomic = |operand, compare| Some(Atomic { operand, compare });
    assert_eq!(send(2).atomic, atomic(swap, compare));
    assert_eq!(send(3).atomic, atomic(5, 0));
    assert_eq!(send(3).data, [segment(sge)]);
    let flags = |at| (send(at).signaled, send(at).solicited, send(at).fence);
    assert_eq!(flags(4), (true, true, true));
    assert_eq!(flags(5), (false, false, false));
    assert_eq!((send(4).imm, send(5).imm), (Some(0x1234), Some(0x1234)));
    let hello = Inline {
        length: 5,
        hex: Some("68656c6c6f".to_owned()),
    };
    assert_eq!(send(4).inline, Some(hello));
    // Completed and not polled; without a completion of its own it is not known; and staged.
    let success = Some(WcStatus::Success);
    let completed = |wr_id| (wr_id, Stage::Completed, success);
    let in_flight = |wr_id| (wr_id, Stage::InFlight, None);
    let mut expected: Vec<_> = (10..15).map(completed).collect();
    expected.extend([in_flight(15), in_flight(16), (17, Stage::Staged, None)]);
    assert_eq!(stages(&record), expected);
    assert_eq!(record.send_queue.in_flight, 7);
    assert_eq!(record.send_queue.counter, 8);

    // What is polled is reported, and stays; it takes those before it along.
    a.qp.sq().ring();
    for wr_id in 10..15 {
        assert_eq!(a.outcome(), (wr_id, WcStatus::Success));
    }
    assert_eq!(a.outcome(), (17, WcStatus::Success));
    let record = dump(&mut a);
    assert!(record.sends.iter().all(|send| send.stage == Stage::Retired));
    assert_eq!(record.sends[5].status, None, "by a later one");
    assert_eq!(record.completions.len(), 6);
    assert!(record.completions.iter().all(|of| of.polled && !of.stale));
    assert_eq!(completion(&record, 11).byte_len, Some(8));

    // The receiver's side.
    let received = dump(&mut b);
    let receives: Vec<_> = (received.receives.iter())
        .map(|of| (of.counter, of.wr_id, of.stage, of.status))
        .collect();
    assert_eq!(
        receives,
        [
            (0, 70, Stage::Completed, success),
            (1, 71, Stage::Completed, success),
            (2, 72, Stage::Completed, success)
        ]
    );
    assert_eq!(
        received.receives[0].data,
        [segment(b.region.sge(0, 64)), segment(b.region.sge(256, 64))]
    );
    assert_eq!(completion(&received, 70).operation, "RECV_WITH_IMM");
    assert_eq!(completion(&received, 71).operation, "RECV_RDMA_WITH_IMM");
    // Short messages come within the completion.
    let inline = completion(&received, 70).inline.clone();
    assert_eq!(
        inline.and_then(|inline| inline.hex).as_deref(),
        Some("68656c6c6f")
    );
}

#[test]
fn inline_bytes_can_be_left_out() {
    let (mut a, mut b) = pair(Mode::Inline);
    b.receive(70, &[b.region.sge(0, 64)]);
    a.go(1, Send {}, Inline2(b"secret"));
    let secret = "736563726574";
    let without = DumpOptions {
        inline: false,
        ..DumpOptions::default()
    };
    for end in [&mut a, &mut b] {
        assert!(dump(end).to_string().contains(secret));
        let record = end.qp.dump(&mut end.cq, &without).expect("a dump");
        says_the_same(&record);
        let text = record.to_string();
        assert!(
            !text.contains(secret) && text.contains("inline 6"),
            "{text}"
        );
        assert!(
            !serde_json::to_string(&record)
                .expect("JSON")
                .contains(secret)
        );
    }
}
