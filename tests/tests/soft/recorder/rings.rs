//! What rings still hold, while they go round and others work.

use super::*;

bellwire_tests::in_both_modes!(
    rings_that_went_round_show_the_last_entries,
    other_queue_pairs_go_on_while_one_is_dumped,
);

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
    // Each shows its own bytes.
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
    let done = |of: &bellwire::recorder::ReceiveEntry| of.status == Some(WcStatus::Success);
    assert!(received.receives.iter().all(done));
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
