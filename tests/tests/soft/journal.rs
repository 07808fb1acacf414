//! The software HCA's journal: what it says was executed and reported is what memory and completions show.

use bellwire::be::Be32;
use bellwire::event::EventType;
use bellwire::soft::{
    ClockKind, Fault, HcaConfig, JournalEntry, Mode, RecvReport, RequestId, Script, Trigger,
};
use bellwire::state::QpState;
use bellwire::wqe::*;
use bellwire::wr::{SendFlags, WcStatus};
use bellwire::{ConnectAttr, Device, Error};
use bellwire_tests::fixture::*;
use std::sync::atomic::Ordering;
use std::time::Duration;

const LOCAL_LID: u16 = 1;

fn config() -> HcaConfig {
    HcaConfig {
        clock: ClockKind::Virtual,
        seed: Some(1),
        journal: true,
        ..HcaConfig::default()
    }
}

fn world() -> (Device, End, End) {
    let device = Device::soft(config());
    let attr = ConnectAttr {
        timeout: 8,
        retry_cnt: 2,
        ..ConnectAttr::default()
    };
    let (a, b) = pair_with(&device, Mode::Inline, &attr);
    (device, a, b)
}

fn inject(device: &Device, steps: &[(Trigger, Fault)]) {
    let script = steps
        .iter()
        .fold(Script::default(), |script, &(trigger, fault)| {
            script.with(trigger, fault)
        });
    device
        .as_soft()
        .unwrap()
        .inject(&script)
        .expect("a good script");
}

fn journal(device: &Device) -> Vec<JournalEntry> {
    device.as_soft().unwrap().journal().expect("it keeps one")
}

fn id(end: &End, life: u16, counter: u32) -> RequestId {
    RequestId {
        qp_num: end.qp.qp_num(),
        lid: end.qp.endpoint().lid,
        life,
        counter,
    }
}

fn executed(
    request: RequestId,
    to: &End,
    opcode: u8,
    bytes: u64,
    receive: RecvReport,
) -> JournalEntry {
    JournalEntry::Executed {
        request,
        responder: to.qp.qp_num(),
        opcode,
        bytes,
        receive,
    }
}

fn reported(request: RequestId, status: WcStatus) -> JournalEntry {
    JournalEntry::Reported {
        request,
        status,
        written: true,
    }
}

fn lost(request: RequestId, status: WcStatus) -> JournalEntry {
    JournalEntry::Reported {
        request,
        status,
        written: false,
    }
}

#[test]
fn only_a_device_that_was_asked_to_keeps_one() {
    let (device, mut a, b) = virtual_pair(&ConnectAttr::default());
    let remote = b.region.remote(0);
    a.go(1, RdmaWrite { remote }, a.region.sge(0, 8));
    assert_eq!(a.outcome(), (1, WcStatus::Success));
    assert!(matches!(
        device.as_soft().unwrap().journal(),
        Err(Error::NoJournal)
    ));
}

#[test]
fn each_operation_is_recorded_once_with_its_receive_and_its_bytes() {
    use RecvReport::{NotTaken, Written};
    let (device, mut a, mut b) = world();
    assert_eq!(journal(&device), []);
    for wr_id in 0..3 {
        b.receive(wr_id, &[b.region.sge(0, 4096)]);
    }
    let remote = b.region.remote(0);
    let imm = Be32::new(7);
    a.go(0, RdmaWrite { remote }, a.region.sge(0, 100));
    a.go(1, Send {}, a.region.sge(0, 200));
    a.go(2, SendWithImm { imm }, NoPayload);
    a.go(3, RdmaWriteWithImm { remote, imm }, a.region.sge(0, 33));
    a.go(4, RdmaRead { remote }, a.region.sge(0, 300));
    a.go(5, AtomicFetchAndAdd { remote, add: 1 }, a.region.sge(0, 8));
    a.go(6, Nop {}, NoPayload);
    let request = |counter| id(&a, 1, counter);
    assert_eq!(request(0).lid, LOCAL_LID);
    let expected = [
        executed(request(0), &b, opcode::RDMA_WRITE, 100, NotTaken),
        executed(request(1), &b, opcode::SEND, 200, Written),
        executed(request(2), &b, opcode::SEND_IMM, 0, Written),
        executed(request(3), &b, opcode::RDMA_WRITE_IMM, 33, Written),
        executed(request(4), &b, opcode::RDMA_READ, 300, NotTaken),
        executed(request(5), &b, opcode::ATOMIC_FA, 8, NotTaken),
        JournalEntry::Executed {
            request: request(6),
            responder: 0,
            opcode: opcode::NOP,
            bytes: 0,
            receive: NotTaken,
        },
    ];
    let all: Vec<_> = (0..7)
        .zip(expected)
        .flat_map(|(counter, entry)| [entry, reported(request(counter), WcStatus::Success)])
        .collect();
    assert_eq!(journal(&device), all);
    // Taken once.
    assert_eq!(journal(&device), []);
}

#[test]
fn what_asks_for_no_completion_is_executed_and_not_reported() {
    let (device, mut a, b) = world();
    let remote = b.region.remote(0);
    let sge = a.region.sge(0, 8);
    a.post(1, RdmaWrite { remote }, sge, SendFlags::empty())
        .expect("room");
    a.qp.sq().ring();
    let expected = executed(
        id(&a, 1, 0),
        &b,
        opcode::RDMA_WRITE,
        8,
        RecvReport::NotTaken,
    );
    assert_eq!(journal(&device), [expected]);
}

#[test]
fn a_lost_acknowledgement_leaves_one_execution_however_often_it_is_sent() {
    let (device, mut a, b) = world();
    let of = |nth| Trigger::PacketOf {
        qp_num: a.qp.qp_num(),
        nth,
    };
    inject(&device, &[1, 2, 3].map(|nth| (of(nth), Fault::DropAck)));
    let remote = b.region.remote(0);
    let sge = a.region.sge(8, 8);
    a.go(1, AtomicFetchAndAdd { remote, add: 1 }, sge);
    a.go(2, RdmaWrite { remote }, sge);
    device.as_soft().unwrap().advance(Duration::from_secs(1));
    assert_eq!(a.outcome(), (1, WcStatus::RetryExcErr));
    assert_eq!(a.outcome(), (2, WcStatus::WrFlushErr));
    assert_eq!(b.region.word(0).load(Ordering::Acquire), 1);
    assert_eq!(
        journal(&device),
        [
            executed(id(&a, 1, 0), &b, opcode::ATOMIC_FA, 8, RecvReport::NotTaken),
            reported(id(&a, 1, 0), WcStatus::RetryExcErr),
            reported(id(&a, 1, 1), WcStatus::WrFlushErr),
        ]
    );
}

#[test]
fn a_lost_or_refused_request_is_not_executed() {
    let (device, mut a, mut b) = world();
    let remote = b.region.remote(0);
    inject(
        &device,
        &[1, 2, 3].map(|nth| (Trigger::Packet(nth), Fault::DropRequest)),
    );
    a.go(1, RdmaWrite { remote }, a.region.sge(0, 8));
    device.as_soft().unwrap().advance(Duration::from_secs(1));
    assert_eq!(a.outcome(), (1, WcStatus::RetryExcErr));
    assert_eq!(
        journal(&device),
        [reported(id(&a, 1, 0), WcStatus::RetryExcErr)]
    );

    // A receive too short for it is consumed, and fails.
    a.reset();
    b.reset();
    connect_with(&mut a.qp, &mut b.qp, &ConnectAttr::default());
    b.receive(70, &[b.region.sge(0, 4)]);
    a.go(2, Send {}, a.region.sge(0, 8));
    assert_eq!(a.outcome(), (2, WcStatus::RemInvReqErr));
    assert_eq!(b.outcome(), (70, WcStatus::LocLenErr));
    // The second life counts on from the next multiple of 65536.
    let request = id(&a, 2, 1 << 16);
    let refused = JournalEntry::ReceiveFailed {
        request,
        responder: b.qp.qp_num(),
    };
    assert_eq!(
        journal(&device),
        [refused, reported(request, WcStatus::RemInvReqErr)]
    );
}

#[test]
fn a_receive_whose_completion_is_lost_by_an_overrun_was_executed() {
    let (device, mut a, mut b) = world();
    let at = Trigger::EntryOf {
        qp_num: a.qp.qp_num(),
        nth: 2,
    };
    inject(&device, &[(at, Fault::RecvCqOverrun)]);
    for wr_id in [70, 71, 72] {
        b.receive(wr_id, &[b.region.sge(0, 64)]);
    }
    for wr_id in [1, 2, 3] {
        a.go(wr_id, Send {}, a.region.sge(1024, 40));
    }
    assert_eq!(a.outcome(), (1, WcStatus::Success));
    assert_eq!(a.outcome(), (2, WcStatus::RemOpErr));
    assert_eq!(a.outcome(), (3, WcStatus::WrFlushErr));
    assert_eq!(b.outcome(), (70, WcStatus::Success));
    b.nothing();
    assert!(b.cq.overrun() && !a.cq.overrun());
    assert_eq!((a.qp.state(), b.qp.state()), (QpState::Err, QpState::Err));
    let send = |counter, receive| executed(id(&a, 1, counter), &b, opcode::SEND, 40, receive);
    assert_eq!(
        journal(&device),
        [
            send(0, RecvReport::Written),
            reported(id(&a, 1, 0), WcStatus::Success),
            send(1, RecvReport::Lost),
            reported(id(&a, 1, 1), WcStatus::RemOpErr),
            reported(id(&a, 1, 2), WcStatus::WrFlushErr),
        ]
    );
}

#[test]
fn an_overrun_of_the_receives_passes_over_a_request_that_takes_none() {
    let (device, mut a, b) = world();
    inject(&device, &[(Trigger::Entry(1), Fault::RecvCqOverrun)]);
    let remote = b.region.remote(0);
    a.go(1, RdmaWrite { remote }, a.region.sge(0, 8));
    assert_eq!(a.outcome(), (1, WcStatus::Success));
    assert!(!b.cq.overrun());
    assert_eq!(b.qp.state(), QpState::Rts);
}

#[test]
fn a_request_whose_own_completion_is_lost_was_executed() {
    for signaled in [true, false] {
        let (device, mut a, mut b) = world();
        inject(&device, &[(Trigger::Entry(1), Fault::SendCqOverrun)]);
        b.receive(70, &[]);
        let flags = if signaled {
            SIGNALED
        } else {
            SendFlags::empty()
        };
        a.post(1, Send {}, NoPayload, flags).expect("room");
        a.post(2, Nop {}, NoPayload, flags).expect("room");
        a.qp.sq().ring();
        a.nothing();
        assert!(a.cq.overrun());
        assert_eq!(a.qp.state(), QpState::Err);
        assert_eq!(b.outcome(), (70, WcStatus::Success));
        let mut expected = vec![executed(
            id(&a, 1, 0),
            &b,
            opcode::SEND,
            0,
            RecvReport::Written,
        )];
        if signaled {
            expected.push(lost(id(&a, 1, 0), WcStatus::Success));
        }
        // The device gives up at the first flush that finds no room.
        expected.push(lost(id(&a, 1, 1), WcStatus::WrFlushErr));
        assert_eq!(journal(&device), expected, "signaled: {signaled}");
    }
}

#[test]
fn a_status_after_execution_befalls_what_was_executed() {
    let (device, mut a, b) = world();
    let fault = Fault::StatusAfter(WcStatus::LocAccessErr);
    inject(&device, &[(Trigger::Entry(1), fault)]);
    let remote = b.region.remote(0);
    a.go(1, AtomicFetchAndAdd { remote, add: 5 }, a.region.sge(8, 8));
    assert_eq!(a.outcome(), (1, WcStatus::LocAccessErr));
    assert_eq!(b.region.word(0).load(Ordering::Acquire), 5);
    assert_eq!(
        journal(&device),
        [
            executed(id(&a, 1, 0), &b, opcode::ATOMIC_FA, 8, RecvReport::NotTaken),
            reported(id(&a, 1, 0), WcStatus::LocAccessErr),
        ]
    );
    let success = Script::default().with(Trigger::Entry(1), Fault::StatusAfter(WcStatus::Success));
    assert!(matches!(
        device.as_soft().unwrap().inject(&success),
        Err(Error::SuccessAsFault)
    ));
}

#[test]
fn a_fault_of_one_queue_pair_passes_over_the_others() {
    let (device, mut a, b) = world();
    let (mut c, d) = pair_with(&device, Mode::Inline, &ConnectAttr::default());
    let at = Trigger::EntryOf {
        qp_num: c.qp.qp_num(),
        nth: 2,
    };
    inject(&device, &[(at, Fault::Status(WcStatus::LocProtErr))]);
    for wr_id in 0..4 {
        let remote = b.region.remote(0);
        a.go(wr_id, RdmaWrite { remote }, a.region.sge(0, 8));
        assert_eq!(a.outcome(), (wr_id, WcStatus::Success));
    }
    let remote = d.region.remote(0);
    c.go(1, RdmaWrite { remote }, c.region.sge(0, 8));
    c.go(2, RdmaWrite { remote }, c.region.sge(0, 8));
    assert_eq!(c.outcome(), (1, WcStatus::Success));
    assert_eq!(c.outcome(), (2, WcStatus::LocProtErr));
}

#[test]
fn a_fault_strikes_between_two_steps_of_a_connection() {
    let device = Device::soft(config());
    let (mut a, mut b) = ends(&device, Mode::Inline);
    let attr = ConnectAttr::default();
    // RESET to INIT, INIT to RTR; before RTR to RTS it breaks.
    let broken = Fault::QpFatal(a.qp.qp_num());
    inject(&device, &[(Trigger::Modify(3), broken)]);
    a.qp.init(&attr).expect("INIT");
    a.qp.connect(&b.qp.endpoint(), &attr)
        .expect_err("it is in ERR by then");
    assert_eq!(a.qp.state(), QpState::Err);
    let event = device.get_async_event().expect("it is there");
    assert_eq!(event.event_type(), EventType::QpFatal);
    event.ack();
    // Once.
    a.reset();
    connect_with(&mut a.qp, &mut b.qp, &attr);
    a.go(1, Nop {}, NoPayload);
    assert_eq!(a.outcome(), (1, WcStatus::Success));
    let of_request = Script::default().with(Trigger::Modify(1), Fault::DropAck);
    assert!(matches!(
        device.as_soft().unwrap().inject(&of_request),
        Err(Error::FaultWithoutRequest { .. })
    ));
}

#[test]
fn a_refused_step_can_be_taken_again() {
    let device = Device::soft(config());
    let (mut a, mut b) = ends(&device, Mode::Inline);
    let attr = ConnectAttr::default();
    inject(&device, &[(Trigger::Modify(2), Fault::RefuseModify)]);
    a.qp.init(&attr).expect("INIT");
    let error = a.qp.connect(&b.qp.endpoint(), &attr).expect_err("refused");
    assert!(matches!(error, Error::Io { .. }), "{error}");
    assert_eq!(a.qp.state(), QpState::Init, "nothing was changed");
    b.qp.init(&attr).expect("INIT");
    a.qp.connect(&b.qp.endpoint(), &attr).expect("RTS");
    b.qp.connect(&a.qp.endpoint(), &attr).expect("RTS");
    let remote = b.region.remote(0);
    a.go(1, RdmaWrite { remote }, a.region.sge(0, 8));
    assert_eq!(a.outcome(), (1, WcStatus::Success));
    let elsewhere = Script::default().with(Trigger::Entry(1), Fault::RefuseModify);
    assert!(matches!(
        device.as_soft().unwrap().inject(&elsewhere),
        Err(Error::FaultWithoutModify { .. })
    ));
}

#[test]
fn what_an_unreliable_responder_drops_is_not_recorded_as_executed() {
    let (device, pd, init) = {
        let device = Device::soft(config());
        let pd = device.alloc_pd();
        (device, pd, init())
    };
    let mut cq = cq_for(&device, &init);
    let (mut first, mut second): (bellwire::Qp<Uc>, bellwire::Qp<Uc>) = (
        pd.create_qp_of(&mut cq, &init).expect("a queue pair"),
        pd.create_qp_of(&mut cq_for(&device, &init), &init)
            .expect("a queue pair"),
    );
    let attr = ConnectAttr::default();
    first.init(&attr).expect("INIT");
    second.init(&attr).expect("INIT");
    first.connect(&second.endpoint(), &attr).expect("RTS");
    second.connect(&first.endpoint(), &attr).expect("RTS");
    // No receive is posted: the first message is dropped without a word.
    for wr_id in [1, 2] {
        first
            .sq()
            .post_inline(wr_id, (), Send {}, b"message", SIGNALED)
            .expect("room");
        first.sq().ring();
        assert_eq!(wait(&mut cq).status(), WcStatus::Success);
        // SAFETY: no memory.
        unsafe { second.rq().post(70, &[]).expect("room") };
        second.rq().ring();
    }
    let request = |counter| RequestId {
        qp_num: first.qp_num(),
        lid: LOCAL_LID,
        life: 1,
        counter,
    };
    // The second finds a receive that is too short for it.
    assert_eq!(
        journal(&device),
        [
            reported(request(0), WcStatus::Success),
            JournalEntry::ReceiveFailed {
                request: request(1),
                responder: second.qp_num(),
            },
            reported(request(1), WcStatus::Success),
        ]
    );
}

#[test]
fn nodes_record_each_its_own_part() {
    let fabric = fabric_name();
    let config = HcaConfig {
        journal: true,
        ..HcaConfig::default()
    };
    let join = || Device::join(&fabric, config).expect("a node");
    let (here, there) = (join(), join());
    let end = |device: &Device| End::new(&device.alloc_pd(), Mode::Inline, &init());
    let (mut a, mut b) = (end(&here), end(&there));
    connect_with(&mut a.qp, &mut b.qp, &ConnectAttr::default());
    b.receive(70, &[b.region.sge(0, 64)]);
    a.go(1, Send {}, a.region.sge(0, 48));
    assert_eq!(b.outcome(), (70, WcStatus::Success));
    assert_eq!(a.outcome(), (1, WcStatus::Success));
    let sent = executed(id(&a, 1, 0), &b, opcode::SEND, 48, RecvReport::Written);
    assert_eq!(journal(&there), [sent]);
    assert_eq!(journal(&here), [reported(id(&a, 1, 0), WcStatus::Success)]);
    let remote = b.region.remote(0);
    a.go(2, RdmaWrite { remote }, a.region.sge(0, 128));
    assert_eq!(a.outcome(), (2, WcStatus::Success));
    // Once, by whichever node carried it out.
    let request = id(&a, 1, 1);
    let wrote = executed(request, &b, opcode::RDMA_WRITE, 128, RecvReport::NotTaken);
    let mut both = journal(&here);
    both.extend(journal(&there));
    assert_eq!(both.iter().filter(|entry| **entry == wrote).count(), 1);
    assert_eq!(both.len(), 2, "{both:?}");
    assert!(both.contains(&reported(request, WcStatus::Success)));
}

/// Random traffic with random faults: the journal's account is that of the memory and the receives.
#[test]
fn the_journal_adds_up_with_memory_and_completions() {
    let kinds = [
        Fault::DropRequest,
        Fault::DropAck,
        Fault::Delay(Duration::from_micros(3)),
        Fault::RemoteAccess,
        Fault::Rnr,
        Fault::Status(WcStatus::LocProtErr),
        Fault::StatusAfter(WcStatus::RemOpErr),
        Fault::SendCqOverrun,
        Fault::RecvCqOverrun,
    ];
    let (mut lost_receives, mut failures) = (0, 0);
    for seed in 0..300 {
        let (device, mut a, mut b) = world();
        let script = Script::seeded(seed, 40, 3, &kinds);
        device
            .as_soft()
            .unwrap()
            .inject(&script)
            .expect("a good script");
        let mut random = Random::new(seed);
        for wr_id in 0..32 {
            b.receive(wr_id, &[b.region.sge(128, 64)]);
        }
        for wr_id in 0..32 {
            let remote = b.region.remote(0);
            let sge = a.region.sge(64, 8);
            match random.below(3) {
                0 => a.post(wr_id, AtomicFetchAndAdd { remote, add: 1 }, sge, SIGNALED),
                1 => a.post(wr_id, Send {}, sge, SIGNALED),
                _ => a.post(wr_id, Send {}, sge, SendFlags::empty()),
            }
            .expect("room");
            if random.below(2) == 0 {
                a.qp.sq().ring();
            }
        }
        a.qp.sq().ring();
        device.as_soft().unwrap().advance(Duration::from_secs(10));
        let mut received = 0;
        while let Some(completion) = b.cq.poll_one() {
            received += u64::from(completion.status() == WcStatus::Success);
        }
        let mut polled = Vec::new();
        while let Some(completion) = a.cq.poll_one() {
            polled.push(completion.status());
        }
        let (mut added, mut written, mut statuses) = (0, 0, Vec::new());
        let mut seen = std::collections::HashSet::new();
        for entry in journal(&device) {
            match entry {
                JournalEntry::Executed {
                    request,
                    opcode,
                    receive,
                    ..
                } => {
                    assert!(seen.insert(request), "executed twice: {request:?}");
                    added += u64::from(opcode == opcode::ATOMIC_FA);
                    written += u64::from(receive == RecvReport::Written);
                    lost_receives += u64::from(receive == RecvReport::Lost);
                }
                JournalEntry::Reported {
                    status, written, ..
                } => {
                    if written {
                        statuses.push(status);
                    }
                    failures += u64::from(status != WcStatus::Success);
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(added, b.region.word(0).load(Ordering::Acquire), "{seed}");
        assert_eq!(written, received, "{seed}");
        assert_eq!(statuses, polled, "{seed}");
    }
    assert!(
        lost_receives > 10 && failures > 100,
        "{lost_receives} {failures}"
    );
}
