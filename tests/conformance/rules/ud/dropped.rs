//! Messages that are dropped, or do not fit.

use super::*;

pub fn another_qkey_is_dropped(p: &Provider) {
    let (mut tx, mut rx) = two(p);
    let (attr, qpn) = (here(rx.qp.pd().device()), rx.qp.qp_num());
    rx.receive(1, 8);
    for qkey in [QKEY ^ 1, 0, QKEY << 1] {
        send_to(&mut tx, 1, &attr, qpn, qkey, b"12345678");
        tx.completes(1, OK);
    }
    rx.nothing();
    send_to(&mut tx, 2, &attr, qpn, QKEY, b"12345678");
    arrives(&mut rx, 1);
}

pub fn a_controlled_qkey_is_the_senders_own(p: &Provider) {
    let (mut tx, mut rx) = two(p);
    let (attr, qpn) = (here(rx.qp.pd().device()), rx.qp.qp_num());
    rx.receive(1, 8);
    send_to(&mut tx, 1, &attr, qpn, 1 << 31 | 77, b"12345678");
    tx.completes(1, OK);
    arrives(&mut rx, 1);
}

pub fn a_new_qkey_holds_at_once(p: &Provider) {
    use bellwire::state::{QpAttr, QpAttrMask};
    let (mut tx, mut rx) = two(p);
    let attr = QpAttr {
        qkey: 99,
        ..QpAttr::default()
    };
    rx.qp.modify(&attr, QpAttrMask::QKEY).expect("in RTS");
    rx.receive(1, 8);
    tx.go(1, Send {}, NoPayload);
    tx.completes(1, OK);
    rx.nothing();
    let (to, qpn) = (here(rx.qp.pd().device()), rx.qp.qp_num());
    send_to(&mut tx, 2, &to, qpn, 99, b"12345678");
    arrives(&mut rx, 1);
}

pub fn without_a_receive_it_is_dropped(p: &Provider) {
    let (mut tx, mut rx) = two(p);
    for wr_id in 0..5 {
        tx.go(wr_id, Send {}, Inline(&[wr_id as u8]));
        tx.completes(wr_id, OK);
    }
    // As long as it takes them to arrive.
    rx.nothing();
    rx.receive(1, 8);
    rx.nothing();
    tx.go(9, Send {}, Inline(&[9]));
    arrives(&mut rx, 1);
    assert_eq!(message(&rx, 1), [9]);
}

pub fn to_nobody_it_is_dropped(p: &Provider) {
    let (mut tx, rx) = two(p);
    let attr = here(tx.qp.pd().device());
    let gone = rx.qp.qp_num();
    drop(rx);
    for qpn in [0, 1, 0xff_fffe, 0x12_3456, gone] {
        send_to(&mut tx, 1, &attr, qpn, QKEY, b"12345678");
        tx.completes(1, OK);
    }
    assert_eq!(tx.qp.state(), QpState::Rts);
}

pub fn to_another_transport_it_is_dropped(p: &Provider) {
    let (mut tx, _rx) = two(p);
    let pd = tx.qp.pd().clone();
    let (mut a, mut b) = (
        End::new(&pd, p.quiet, &init()),
        End::new(&pd, p.quiet, &init()),
    );
    connect_with(&mut a.qp, &mut b.qp, &Default::default());
    a.receive(1, &[a.region.sge(0, 100)]);
    let attr = here(pd.device());
    send_to(&mut tx, 1, &attr, a.qp.qp_num(), QKEY, b"12345678");
    tx.completes(1, OK);
    a.nothing();
}

pub fn to_another_port_it_is_dropped(p: &Provider) {
    let (mut tx, mut rx) = two(p);
    rx.receive(1, 8);
    let device = tx.qp.pd().device().clone();
    let (mut lid, mut gid) = (here(&device), routed(&device));
    lid.dlid ^= 0x100;
    gid.grh.dgid[15] ^= 1;
    for attr in [lid, gid] {
        send_to(&mut tx, 1, &attr, rx.qp.qp_num(), QKEY, b"12345678");
        tx.completes(1, OK);
    }
    rx.nothing();
}

fn mtu(pd: &Pd) -> u32 {
    let port = pd.device().query_port(1).expect("the first port");
    port.active_mtu.bytes()
}

pub fn a_message_of_the_mtu_arrives(p: &Provider) {
    let (mut tx, mut rx) = two(p);
    let length = mtu(tx.qp.pd());
    rx.receive(1, length);
    tx.go(1, Send {}, tx.region.sge(0, length));
    tx.completes(1, OK);
    assert_eq!(arrives(&mut rx, 1).byte_len(), Some(HEAD + length));
}

pub fn a_message_beyond_the_mtu_fails(p: &Provider) {
    let (mut tx, mut rx) = two(p);
    let length = mtu(tx.qp.pd()) + 1;
    rx.receive(1, length);
    tx.go(1, Send {}, tx.region.sge(0, length));
    tx.completes(1, LocLenErr);
    assert_eq!(tx.qp.state(), QpState::Sqe);
    rx.nothing();
}

pub fn a_receive_that_is_too_short_fails(p: &Provider) {
    let (mut tx, mut rx) = two(p);
    rx.receive(1, 7);
    rx.receive(2, 8);
    tx.go(1, Send {}, Inline(b"12345678"));
    tx.completes(1, OK);
    rx.completes(1, LocLenErr);
    rx.completes(2, WcStatus::WrFlushErr);
    assert_eq!(rx.qp.state(), QpState::Err);
    assert_eq!(tx.qp.state(), QpState::Rts);
}

pub fn a_receive_needs_room_for_the_header(p: &Provider) {
    let (mut tx, mut rx) = two(p);
    rx.post_receive(1, &[rx.region.sge(0, HEAD - 1)])
        .expect("room");
    tx.go(1, Send {}, NoPayload);
    tx.completes(1, OK);
    rx.completes(1, LocLenErr);
}
