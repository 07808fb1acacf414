//! What a message that arrives brings, and the way back to its sender.

use super::*;

pub fn a_message_arrives(p: &Provider) {
    let (mut tx, mut rx) = two(p);
    let port = tx.qp.pd().device().query_port(1).expect("the first port");
    let most = port.active_mtu.bytes() - 1;
    for (wr_id, length) in [0u32, 1, 7, 32, 33, 200, 1000, most]
        .into_iter()
        .enumerate()
    {
        let bytes: Vec<u8> = (0..length).map(|at| (at * 7 + length) as u8).collect();
        tx.region.write(0, &bytes);
        rx.receive(wr_id as u64, length);
        tx.go(wr_id as u64, Send {}, tx.region.sge(0, length));
        tx.completes(wr_id as u64, OK);
        arrives(&mut rx, wr_id as u64);
        assert_eq!(message(&rx, length as usize), bytes);
    }
}

pub fn immediate_data_arrives(p: &Provider) {
    let (mut tx, mut rx) = two(p);
    rx.receive(1, 8);
    let imm = Be32::from_bytes([1, 2, 3, 4]);
    tx.go(1, SendWithImm { imm }, Inline(b"12345678"));
    tx.completes(1, OK);
    assert_eq!(arrives(&mut rx, 1).imm(), Imm::Data(imm));
    assert_eq!(message(&rx, 8), b"12345678");
}

pub fn byte_len_counts_the_header(p: &Provider) {
    let (mut tx, mut rx) = two(p);
    for length in [0, 5, 100] {
        rx.receive(1, length);
        tx.go(1, Send {}, tx.region.sge(0, length));
        tx.completes(1, OK);
        assert_eq!(arrives(&mut rx, 1).byte_len(), Some(HEAD + length));
    }
}

pub fn the_sender_is_named(p: &Provider) {
    let (mut tx, mut rx) = two(p);
    rx.receive(1, 8);
    tx.go(1, Send {}, Inline(b"12345678"));
    let done = arrives(&mut rx, 1);
    let source = done.source().expect("datagrams have a source");
    assert_eq!(done.src_qp(), Some(tx.qp.qp_num()));
    assert_eq!(source.slid, tx.qp.endpoint().lid);
}

pub fn without_a_global_route_there_is_no_header(p: &Provider) {
    let (mut tx, mut rx) = two(p);
    rx.region.write(0, &[0xa5; GRH_BYTES]);
    rx.receive(1, 8);
    tx.go(1, Send {}, Inline(b"12345678"));
    assert!(!arrives(&mut rx, 1).grh());
    let mut head = [0; GRH_BYTES];
    rx.region.read(0, &mut head);
    assert_eq!(head, [0xa5; GRH_BYTES]);
}

pub fn a_global_route_comes_as_a_header(p: &Provider) {
    let (mut tx, mut rx) = two(p);
    let attr = routed(rx.qp.pd().device());
    rx.receive(1, 10);
    send_to(&mut tx, 1, &attr, rx.qp.qp_num(), QKEY, b"0123456789");
    assert!(arrives(&mut rx, 1).grh());
    let mut grh = [0; GRH_BYTES];
    rx.region.read(0, &mut grh);
    assert_eq!(grh[..4], (6u32 << 28 | 0x5a << 20 | 0x12345).to_be_bytes());
    // Transport headers of 20 bytes, payload and padding, checksum.
    assert_eq!(grh[4..6], (20u16 + 12 + 4).to_be_bytes());
    assert_eq!(grh[6..8], [0x1b, 9]);
    let source = tx.qp.pd().device().query_gid(1, 0).expect("the first GID");
    assert_eq!(grh[8..24], source);
    assert_eq!(grh[24..], attr.grh.dgid);
    assert_eq!(message(&rx, 10), b"0123456789");
}

pub fn an_answer_finds_its_way(p: &Provider) {
    let (mut tx, mut rx) = two(p);
    let there = here(rx.qp.pd().device());
    rx.receive(1, 8);
    tx.receive(2, 8);
    send_to(&mut tx, 1, &there, rx.qp.qp_num(), QKEY, b"question");
    tx.completes(1, OK);
    let wc = arrives(&mut rx, 1);
    let mut grh = [0; GRH_BYTES];
    rx.region.read(0, &mut grh);
    let back = rx.qp.pd().create_ah_from_wc(&wc, &grh, 1);
    let back = *back.expect("a way back").attr();
    send_to(
        &mut rx,
        3,
        &back,
        wc.src_qp().expect("a sender"),
        QKEY,
        b"answered",
    );
    rx.completes(3, OK);
    arrives(&mut tx, 2);
    assert_eq!(message(&tx, 8), b"answered");
}

pub fn the_way_back_leads_to_the_sender(p: &Provider) {
    for attr in [here, routed] {
        let (mut tx, mut rx) = two(p);
        let (attr, home) = (attr(rx.qp.pd().device()), attr(tx.qp.pd().device()));
        rx.receive(1, 8);
        tx.receive(2, 8);
        send_to(&mut tx, 1, &attr, rx.qp.qp_num(), QKEY, b"question");
        tx.completes(1, OK);
        let wc = arrives(&mut rx, 1);
        let mut grh = [0; GRH_BYTES];
        rx.region.read(0, &mut grh);
        let back = ah_attr_from_wc(&wc, &grh, 1).expect("a way back");
        assert_eq!((back.dlid, back.is_global), (home.dlid, home.is_global));
        if attr.is_global {
            assert_eq!(back.grh.dgid, home.grh.dgid);
            assert_eq!(back.grh.flow_label, attr.grh.flow_label);
            assert_eq!(back.grh.traffic_class, attr.grh.traffic_class);
        }
        let ah = rx
            .qp
            .pd()
            .create_ah_from_wc(&wc, &grh, 1)
            .expect("a handle");
        assert_eq!(*ah.attr(), back);
        let to = ah.to(wc.src_qp().expect("a sender"), QKEY);
        rx.qp
            .sq()
            .post_inline(3, to, Send {}, b"answer..", SIGNALED)
            .expect("room");
        rx.qp.sq().ring();
        rx.completes(3, OK);
        arrives(&mut tx, 2);
        assert_eq!(message(&tx, 8), b"answer..");
    }
}

pub fn there_is_no_way_back_from_anything_else(p: &Provider) {
    let (mut tx, mut rx) = two(p);
    let attr = routed(rx.qp.pd().device());
    rx.receive(1, 8);
    send_to(&mut tx, 1, &attr, rx.qp.qp_num(), QKEY, b"question");
    let wc = arrives(&mut rx, 1);
    let garbage = [0; GRH_BYTES];
    let refused = ah_attr_from_wc(&wc, &garbage, 1);
    assert!(matches!(refused, Err(Error::NotADatagram)), "{refused:?}");
    tx.completes(1, OK);
    // A send's completion is no datagram's.
    tx.go(2, Nop {}, NoPayload);
    let wc = tx.wait().result.expect("executed");
    assert!(ah_attr_from_wc(&wc, &garbage, 1).is_err());
}

pub fn the_header_spreads_over_the_elements(p: &Provider) {
    let (mut tx, mut rx) = two(p);
    let attr = routed(rx.qp.pd().device());
    let sges = [(0, 13), (100, 30), (200, 1), (300, 50)];
    let list = sges.map(|(at, length)| rx.region.sge(at, length));
    rx.post_receive(1, &list).expect("room");
    let bytes: Vec<u8> = (0..54).collect();
    send_to(&mut tx, 1, &attr, rx.qp.qp_num(), QKEY, &bytes);
    arrives(&mut rx, 1);
    let all: Vec<u8> = sges
        .iter()
        .flat_map(|&(at, length)| {
            let mut part = vec![0; length as usize];
            rx.region.read(at, &mut part);
            part
        })
        .collect();
    assert_eq!(all[0] >> 4, 6);
    assert_eq!(all[GRH_BYTES..], bytes);
}
