//! The flight recorder: a dump has what the rings still hold, and its text and JSON say the same.

use bellwire::be::Be32;
use bellwire::event::EventType;
use bellwire::recorder::{
    Atomic, CompletionEntry, DumpOptions, Inline, Record, Segment, SendEntry, Stage, Target, What,
};
use bellwire::soft::Mode;
use bellwire::state::QpState;
use bellwire::wqe::*;
use bellwire::wr::{QpType, SendFlags, Sge, WcStatus};
use bellwire::{ConnectAttr, Cqs, Error, Qp, QpInit, SrqInit};
use bellwire_tests::fixture::*;
use serde_json::Value;
use std::sync::atomic::{AtomicBool, Ordering};

bellwire_tests::in_both_modes!(
    a_failure_and_the_flush_behind_it_are_seen,
    rings_that_went_round_show_the_last_entries,
    other_queue_pairs_go_on_while_one_is_dumped,
);

const UNSIGNALED: SendFlags = SendFlags::empty();

fn dump(end: &mut End) -> Record {
    let record = end.qp.dump(&mut end.cq, &DumpOptions::default());
    let record = record.expect("its own completion queue");
    says_the_same(&record);
    record
}

fn segment(sge: Sge) -> Segment {
    Segment {
        addr: sge.addr,
        length: sge.length,
        key: sge.lkey,
    }
}

fn wr_ids(record: &Record) -> Vec<u64> {
    record.sends.iter().map(|send| send.wr_id).collect()
}

fn stages(record: &Record) -> Vec<(u64, Stage, Option<WcStatus>)> {
    let sends = record.sends.iter();
    sends
        .map(|send| (send.wr_id, send.stage, send.status))
        .collect()
}

fn completion(record: &Record, wr_id: u64) -> &CompletionEntry {
    let mut all = record.completions.iter();
    all.find(|of| of.wr_id == Some(wr_id))
        .expect("a completion")
}

/// Each fact of the JSON stands in the text, in the line of its entry.
fn says_the_same(record: &Record) {
    let text = record.to_string();
    let json = serde_json::to_string(record).expect("it can be written");
    let json: Value = serde_json::from_str(&json).expect("and read");
    let head = text.lines().next().expect("a line");
    for key in ["qp_num", "transport", "state", "dest_qp_num"] {
        fact(head, key, &json[key]);
    }
    for queue in ["send_queue", "recv_queue", "send_cq", "recv_cq"] {
        let Some(fields) = json[queue].as_object() else {
            assert!(json[queue].is_null());
            continue;
        };
        let name = match queue {
            "send_queue" => "send queue: ".to_owned(),
            "recv_queue" => "receive queue: ".to_owned(),
            _ => format!("completion queue {}:", fields["cqn"]),
        };
        let line = text.lines().find(|line| line.starts_with(&name));
        let line = line.unwrap_or_else(|| panic!("no line {name} in {text}"));
        for (key, value) in fields {
            fact(line, key, value);
        }
    }
    for list in ["sends", "receives", "completions", "notes"] {
        let entries = json[list].as_array().expect("a list");
        let mut lines = text.lines().skip_while(|line| !line.starts_with(list));
        let first = lines.next().expect("its heading");
        assert_eq!(first == format!("{list}: none"), entries.is_empty());
        let lines: Vec<_> = lines.take_while(|line| line.starts_with("  ")).collect();
        assert_eq!(lines.len(), entries.len(), "{list}: {text}");
        for (line, entry) in lines.iter().zip(entries) {
            for (key, value) in entry.as_object().expect("fields") {
                fact(line, key, value);
            }
        }
    }
}

/// Flags are words that stand there or not; addresses and keys are hexadecimal in the text.
fn fact(line: &str, key: &str, value: &Value) {
    let words: Vec<_> = line.split([' ', ',', ':', '+', '[', ']', '#']).collect();
    let has = |word: &str| words.contains(&word);
    let stands = match (key, value) {
        (_, Value::Null) => true,
        ("polled", Value::Bool(polled)) => line.contains(" not polled") != *polled,
        ("overrun", Value::Bool(overrun)) => has("OVERRUN") == *overrun,
        (flag, Value::Bool(set)) => has(flag) == *set,
        ("syndrome" | "vendor_err", Value::Number(number)) => {
            number.as_u64() == Some(0) || has(&format!("{:#04x}", number.as_u64().expect("whole")))
        }
        ("addr" | "key" | "imm" | "invalidates", Value::Number(number)) => {
            has(&format!("{:#x}", number.as_u64().expect("whole")))
        }
        ("at", Value::Number(at)) => {
            let at = at.as_u64().expect("microseconds");
            has(&format!("{}.{:06}", at / 1_000_000, at % 1_000_000))
        }
        (_, Value::Number(number)) => has(&number.to_string()),
        (_, Value::String(text)) => line.contains(text.as_str()),
        (_, Value::Array(all)) => {
            all.iter().for_each(|one| fact(line, key, one));
            true
        }
        (_, Value::Object(fields)) => {
            fields
                .iter()
                .for_each(|(key, value)| fact(line, key, value));
            true
        }
    };
    assert!(stands, "{key} {value} is not in {line:?}");
}

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

    // What is polled is told, and stays; it takes those before it along.
    a.qp.sq().ring();
    for wr_id in 10..15 {
        assert_eq!(a.outcome(), (wr_id, WcStatus::Success));
    }
    assert_eq!(a.outcome(), (17, WcStatus::Success));
    let record = dump(&mut a);
    assert!(record.sends.iter().all(|send| send.stage == Stage::Told));
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

/// Payload that stands in the entry.
use bellwire::wqe::Inline as Inline2;

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
            Stage::Told
        } else {
            Stage::Completed
        };
        assert_eq!(
            stages(record),
            [
                (1, Stage::Told, Some(WcStatus::Success)),
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
    // A dump tells of it, and takes nothing away.
    assert_eq!(b.outcome(), (70, WcStatus::WrFlushErr));
    b.nothing();
}

fn rings_that_went_round_show_the_last_entries(mode: Mode) {
    let (mut a, mut b) = pair(mode);
    let mut random = Random::new(9);
    let mut sent = Vec::new();
    let remote = b.region.remote(0);
    for round in 0..500 {
        b.receive(1000 + round, &[b.region.sge(0, 4096)]);
        // Entries of one to four blocks, so that the laps differ.
        let length = 1 + random.below(200) as usize;
        let bytes = random.bytes(length);
        sent.push(
            bytes
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>(),
        );
        a.post(2 * round, Send {}, Inline2(&bytes), UNSIGNALED)
            .expect("room");
        a.go(2 * round + 1, RdmaWrite { remote }, a.region.sge(0, 8));
        assert_eq!(a.outcome(), (2 * round + 1, WcStatus::Success));
        assert_eq!(b.outcome().0, 1000 + round);
    }
    let all = DumpOptions {
        entries: usize::MAX,
        inline: true,
    };
    let record = a.qp.dump(&mut a.cq, &all).expect("a dump");
    says_the_same(&record);
    let ids = wr_ids(&record);
    // As many as the ring still has, without a gap, up to the last.
    assert_eq!(ids.last(), Some(&999));
    assert!(ids.windows(2).all(|pair| pair[1] == pair[0] + 1));
    let blocks: u32 = record.sends.iter().map(|send| u32::from(send.blocks)).sum();
    let slots = record.send_queue.slots;
    assert!(blocks <= slots && blocks > slots - 5, "{blocks} of {slots}");
    for pair in record.sends.windows(2) {
        let next = pair[0].counter + u32::from(pair[0].blocks);
        assert_eq!(pair[1].counter, next);
    }
    // Each tells its own bytes.
    for send in &record.sends {
        let hex = send
            .inline
            .as_ref()
            .map(|inline| inline.hex.as_ref().expect("shown"));
        let (round, odd) = ((send.wr_id / 2) as usize, send.wr_id % 2 == 1);
        assert_eq!(hex, (!odd).then(|| &sent[round]));
        assert_eq!(send.status.is_some(), odd);
    }
    let received = b.qp.dump(&mut b.cq, &all).expect("a dump");
    says_the_same(&received);
    let receives: Vec<_> = received.receives.iter().map(|of| of.wr_id).collect();
    assert_eq!(receives, Vec::from_iter(1436..1500));
    let told = |of: &bellwire::recorder::ReceiveEntry| of.status == Some(WcStatus::Success);
    assert!(received.receives.iter().all(told));
    // The default has the last of them.
    let short = dump(&mut a);
    assert_eq!(wr_ids(&short), Vec::from_iter(968..1000));
}

/// While a queue pair is dumped again and again, others on the same completion queue and device work
/// on other threads: nothing is lost, nothing is torn.
fn other_queue_pairs_go_on_while_one_is_dumped(mode: Mode) {
    let device = device(mode);
    let (mut a, mut b) = pair_with(&device, mode, &ConnectAttr::default());
    let stop = AtomicBool::new(false);
    let sge = a.region.sge(0, 8);
    for wr_id in 0..60 {
        b.receive(wr_id, &[b.region.sge(0, 64)]);
    }
    std::thread::scope(|scope| {
        let (a, stop) = (&mut a, &stop);
        scope.spawn(move || {
            for wr_id in 0..60 {
                a.go(wr_id, Send {}, sge);
                assert_eq!(a.outcome(), (wr_id, WcStatus::Success));
            }
            // SeqCst: nothing here is fast.
            stop.store(true, Ordering::SeqCst);
        });
        let mut before = 0;
        while !stop.load(Ordering::SeqCst) {
            let record = dump(&mut b);
            let completed = (record.receives.iter())
                .filter(|of| of.stage == Stage::Completed)
                .count();
            assert!(completed >= before.min(32), "{completed} after {before}");
            before = completed;
        }
    });
    for wr_id in 0..60 {
        assert_eq!(b.outcome(), (wr_id, WcStatus::Success));
    }
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
    for wr_id in 0..6 {
        qp.sq()
            .post_empty(wr_id, (), Nop {}, SIGNALED)
            .expect("room");
    }
    qp.sq().ring();
    assert!(cq.overrun());
    let record = qp.dump(&mut cq, &DumpOptions::default()).expect("a dump");
    says_the_same(&record);
    assert!(record.send_cq.overrun && record.state == QpState::Err);
    let staged: Vec<_> = record.sends.iter().map(|send| send.stage).collect();
    assert_eq!(staged[..4], [Stage::Completed; 4]);
    assert_eq!(staged[4..], [Stage::InFlight; 2]);
    assert_eq!(record.completions.len(), 4);
}

#[test]
fn the_last_notes_are_kept_in_order() {
    let (mut a, _b) = pair(Mode::Inline);
    let states = [QpState::Init, QpState::Rtr, QpState::Rts].map(What::State);
    let whats = |record: Record| Vec::from_iter(record.notes.into_iter().map(|note| note.what));
    assert_eq!(whats(dump(&mut a)), states);
    a.qp.note(EventType::CommEst);
    a.qp.init(&ConnectAttr::default())
        .expect_err("it is in RTS");
    a.qp.to_error().expect("ERR");
    a.qp.note("drained");
    let record = dump(&mut a);
    let text = record.to_string();
    assert!(
        text.contains(" event COMM_EST\n") && text.contains(" drained\n"),
        "{text}"
    );
    assert!(record.notes.windows(2).all(|pair| pair[0].at <= pair[1].at));
    let whats_now = whats(record);
    assert_eq!(whats_now[3], What::Event(EventType::CommEst));
    assert!(
        matches!(&whats_now[4], What::Refused(why) if why.contains("RTS")),
        "{whats_now:?}"
    );
    assert_eq!(whats_now[5], What::State(QpState::Err));
    for number in 0..100 {
        a.qp.note(format!("note {number}"));
    }
    let last = whats(dump(&mut a));
    assert_eq!(last.len(), 64);
    assert_eq!(last[0], What::Text("note 36".to_owned()));
    assert_eq!(last[63], What::Text("note 99".to_owned()));
}
