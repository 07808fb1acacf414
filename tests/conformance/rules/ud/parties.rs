//! Who sends to whom, and what a failure stops.

use super::*;

pub fn a_local_error_stops_the_send_queue_alone(p: &Provider) {
    let (mut tx, mut rx) = two(p);
    tx.post(1, Send {}, NOWHERE, SIGNALED).expect("room");
    tx.post(2, Send {}, NoPayload, SIGNALED).expect("room");
    tx.qp.sq().ring();
    tx.completes(1, LocProtErr);
    tx.completes(2, WcStatus::WrFlushErr);
    assert_eq!(tx.qp.state(), QpState::Sqe);
    tx.receive(3, 8);
    let (attr, qpn) = (here(tx.qp.pd().device()), tx.qp.qp_num());
    send_to(&mut rx, 1, &attr, qpn, QKEY, b"12345678");
    arrives(&mut tx, 3);
    tx.go_to(QpState::Rts);
    rx.completes(1, OK);
    rx.receive(4, 8);
    tx.go(5, Send {}, NoPayload);
    tx.completes(5, OK);
    arrives(&mut rx, 4);
}

pub fn many_send_to_one(p: &Provider) {
    const SENDERS: u64 = 3;
    const EACH: u64 = 500;
    let (tx, mut rx) = two(p);
    let pd = tx.qp.pd().clone();
    let (attr, qpn) = (here(rx.qp.pd().device()), rx.qp.qp_num());
    // More than can be on the way at once: none is dropped for want of a receive.
    for wr_id in 0..60 {
        rx.receive(wr_id, 16);
    }
    let turns = std::sync::Barrier::new(SENDERS as usize + 1);
    std::thread::scope(|scope| {
        for sender in 0..SENDERS {
            let (pd, turns) = (&pd, &turns);
            scope.spawn(move || {
                let (mut tx, _) = <Ud as Service>::ends_on((pd, pd), p, &init());
                tx.bring(&Default::default(), QpState::Rts);
                for round in 0..EACH / 10 {
                    turns.wait();
                    for at in 0..10 {
                        let mut bytes = [0; 16];
                        bytes[..8].copy_from_slice(&sender.to_ne_bytes());
                        bytes[8..].copy_from_slice(&(round * 10 + at).to_ne_bytes());
                        send_to(&mut tx, 1, &attr, qpn, QKEY, &bytes);
                        tx.completes(1, OK);
                    }
                    turns.wait();
                }
            });
        }
        let mut next = [0; SENDERS as usize];
        for _ in 0..EACH / 10 {
            turns.wait();
            for _ in 0..SENDERS * 10 {
                let done = rx.wait();
                let length = done.result.expect("received").byte_len();
                assert_eq!(length, Some(HEAD + 16));
                // All receives share one place: what is there is one message, whole.
                let bytes = message(&rx, 16);
                let sender = u64::from_ne_bytes(bytes[..8].try_into().expect("eight"));
                assert!(sender < SENDERS);
                next[sender as usize] += 1;
                rx.receive(done.wr_id, 16);
            }
            turns.wait();
        }
        assert!(next.iter().sum::<u64>() == SENDERS * EACH);
    });
    rx.nothing();
}

pub fn one_sends_to_many(p: &Provider) {
    let (mut tx, rx) = two(p);
    let pd = tx.qp.pd().clone();
    let there = rx.qp.pd().clone();
    let mut all = vec![rx];
    for at in 0..4 {
        let pd = if at % 2 == 0 { &pd } else { &there };
        let (mut end, _) = <Ud as Service>::ends_on((pd, pd), p, &init());
        end.bring(&Default::default(), QpState::Rts);
        all.push(end);
    }
    for (at, rx) in all.iter_mut().enumerate() {
        rx.receive(at as u64, 8);
        let attr = here(rx.qp.pd().device());
        send_to(&mut tx, 1, &attr, rx.qp.qp_num(), QKEY, &[at as u8; 8]);
    }
    for (at, rx) in all.iter_mut().enumerate() {
        arrives(rx, at as u64);
        assert_eq!(message(rx, 8), [at as u8; 8]);
        rx.nothing();
    }
}

pub fn a_queue_pair_sends_to_itself(p: &Provider) {
    let (mut tx, _rx) = two(p);
    let (attr, qpn) = (here(tx.qp.pd().device()), tx.qp.qp_num());
    tx.receive(7, 8);
    send_to(&mut tx, 1, &attr, qpn, QKEY, b"12345678");
    let mut completed: Vec<u64> = (0..2).map(|_| tx.wait().wr_id).collect();
    completed.sort_unstable();
    assert_eq!(completed, [1, 7]);
    assert_eq!(message(&tx, 8), b"12345678");
}

pub fn a_queue_pair_that_fails_itself_reports_each_request_once(p: &Provider) {
    let (mut tx, _rx) = two(p);
    let ah = tx
        .qp
        .pd()
        .create_ah(&here(tx.qp.pd().device()))
        .expect("a handle");
    let qpn = tx.qp.qp_num();
    tx.receive(70, 7);
    tx.receive(71, 8);
    for wr_id in 1..4 {
        let to = ah.to(qpn, QKEY);
        let posted = tx
            .qp
            .sq()
            .post_inline(wr_id, to, Send {}, b"12345678", SIGNALED);
        posted.expect("room");
    }
    tx.qp.sq().ring();
    let mut completed: Vec<(u64, WcStatus)> = (0..5)
        .map(|_| tx.wait())
        .map(|done| (done.wr_id, done.status()))
        .collect();
    completed.sort_unstable_by_key(|&(wr_id, _)| wr_id);
    let flushed = WcStatus::WrFlushErr;
    assert_eq!(completed[..1], [(1, OK)]);
    assert_eq!(completed[1..3], [(2, flushed), (3, flushed)]);
    assert_eq!(completed[3..], [(70, LocLenErr), (71, flushed)]);
    tx.nothing();
}

pub fn solicited_is_reported(p: &Provider) {
    use bellwire::wr::SendFlags;
    let (mut tx, mut rx) = two(p);
    for flags in [SIGNALED, SIGNALED | SendFlags::SOLICITED] {
        rx.receive(1, 8);
        tx.post(1, Send {}, NoPayload, flags).expect("room");
        tx.qp.sq().ring();
        let solicited = flags.contains(SendFlags::SOLICITED);
        assert_eq!(arrives(&mut rx, 1).solicited(), solicited);
    }
}

pub fn address_handles_are_checked(p: &Provider) {
    let pd = p.device().alloc_pd();
    let good = here(pd.device());
    pd.create_ah(&good).expect("good");
    type Change = fn(&mut AhAttr);
    let bad: [(&str, Change); 5] = [
        ("port_num", |attr| attr.port_num = 0),
        ("port_num", |attr| attr.port_num = 200),
        ("sgid_index", |attr| attr.grh.sgid_index = 200),
        ("sl", |attr| attr.sl = 16),
        ("flow_label", |attr| attr.grh.flow_label = 1 << 20),
    ];
    for (name, change) in bad {
        let mut attr = good;
        change(&mut attr);
        let error = pd.create_ah(&attr).expect_err(name);
        assert!(error.to_string().contains(name), "{error}");
    }
}

pub fn addresses_are_queried(p: &Provider) {
    let device = p.device();
    let port = device.query_port(1).expect("the first port");
    assert_ne!(port.lid, 0);
    assert!(port.gid_tbl_len >= 1 && port.pkey_tbl_len >= 1);
    assert!(port.active_mtu <= port.max_mtu);
    for index in 0..port.gid_tbl_len {
        device.query_gid(1, index).expect("within the table");
    }
    assert_ne!(device.query_gid(1, 0).expect("the first"), [0; 16]);
    assert_eq!(device.query_pkey(1, 0).expect("the first") & 0x7fff, 0x7fff);
    assert!(device.query_gid(1, port.gid_tbl_len).is_err());
    assert!(device.query_pkey(1, port.pkey_tbl_len).is_err());
    for port in [0, device.attr().phys_port_cnt + 1] {
        assert!(device.query_port(port).is_err());
        assert!(device.query_gid(port, 0).is_err());
        assert!(device.query_pkey(port, 0).is_err());
    }
}
