//! Datagrams: what arrives, what is dropped, and the way back.

use super::transports::ends::{NOWHERE, QKEY, Receives, Stands, Talker, pair};
use crate::provider::Provider;
use crate::rule::rules;
use bellwire::be::Be32;
use bellwire::queue::{Imm, Success};
use bellwire::state::{AhAttr, GlobalRoute, QpState};
use bellwire::wqe::*;
use bellwire::wr::WcStatus::{self, LocLenErr, LocProtErr};
use bellwire::{Device, Error, GRH_BYTES, Pd, ah_attr_from_wc};
use bellwire_tests::fixture::*;

rules! {
    "ud", "Unreliable datagrams: SEND to whom each request names.", needs [Ud];
    a_message_arrives: "IBTA vol. 1, 9.8.3",
        "A datagram lands behind the first 40 bytes of the receive, whatever its length.";
    immediate_data_arrives: "IBTA vol. 1, 9.8.3; ibv_post_send(3)",
        "The immediate comes with it, as the sender's memory had it.";
    byte_len_counts_the_header: "ibv_poll_cq(3), byte_len",
        "The length is that of the message and of the 40 bytes in front of it.";
    the_sender_is_named: "ibv_poll_cq(3), src_qp and slid",
        "The completion names the sender's queue pair and port.";
    without_a_global_route_there_is_no_header: "ibv_poll_cq(3), IBV_WC_GRH",
        "Sent to a local address: no GRH is announced, and the first 40 bytes stay as they were.";
    a_global_route_comes_as_a_header: "IBTA vol. 1, 8.3; ibv_poll_cq(3), IBV_WC_GRH",
        "The header is in the first 40 bytes: version, class, flow, length, hop limit, both GIDs.";
    an_answer_finds_its_way: "ibv_create_ah_from_wc(3)",
        "A handle made of a completion and its header leads back to the sender, whatever header it is.";
    the_way_back_leads_to_the_sender: "ibv_init_ah_from_wc(3), ibv_create_ah_from_wc(3)",
        "An address handle made from a completion answers it, with and without a global route.";
    there_is_no_way_back_from_anything_else: "ibv_init_ah_from_wc(3)",
        "A header that is not one is refused.";
    the_header_spreads_over_the_elements: "ibv_post_recv(3)",
        "A receive of many elements takes header and message one behind the other.";
    another_qkey_is_dropped: "IBTA vol. 1, 9.8.3.1; 10.2.5",
        "A datagram with a Q_Key that is not the receiver's is dropped, unseen.";
    a_controlled_qkey_is_the_senders_own: "IBTA vol. 1, 10.2.5",
        "With its top bit set the request's Q_Key gives way to the queue pair's.";
    a_new_qkey_holds_at_once: "ibv_modify_qp(3), IBV_QP_QKEY",
        "What is changed in RTS is in force for the next datagram.";
    without_a_receive_it_is_dropped: "IBTA vol. 1, 9.8.3.2",
        "Nothing is told, nothing waits, and the next one arrives.";
    to_nobody_it_is_dropped: "IBTA vol. 1, 9.8.3.2",
        "A number of no queue pair: the sender succeeds.";
    to_another_transport_it_is_dropped: "IBTA vol. 1, 9.8.3.1",
        "A connected queue pair takes no datagrams.";
    to_another_port_it_is_dropped: "IBTA vol. 1, 9.6",
        "A LID or a GID that is not here: the sender succeeds.";
    a_message_of_the_mtu_arrives: "IBTA vol. 1, 9.8.3.1; ibv_query_port(3), active_mtu",
        "One packet's payload is the longest message.";
    a_message_beyond_the_mtu_fails: "IBTA vol. 1, 9.8.3.1",
        "One byte more completes LOC_LEN_ERR, and the send queue goes to SQE.";
    a_receive_that_is_too_short_fails: "IBTA vol. 1, 10.10.2.3",
        "It completes LOC_LEN_ERR, its queue pair goes to ERR, and the sender succeeds.";
    a_receive_needs_room_for_the_header: "ibv_post_recv(3)",
        "The 40 bytes count, though no header comes.";
    a_local_error_stops_the_send_queue_alone: "IBTA vol. 1, 10.3.1.6",
        "LOC_PROT_ERR, the rest flushed, SQE; receiving goes on, RTS leads out.";
    many_send_to_one: "IBTA vol. 1, 9.8.3",
        "Each sender's datagrams arrive in their order, none twice.";
    one_sends_to_many: "IBTA vol. 1, 9.8.3",
        "Each request names its receiver.";
    a_queue_pair_sends_to_itself: "IBTA vol. 1, 9.8.3",
        "Its own datagram arrives.";
    a_queue_pair_that_fails_itself_is_told_once: "IBTA vol. 1, 10.3.1",
        "Its own datagram does not fit its receive: each request is told, once.";
    solicited_is_told: "ibv_post_send(3), IBV_SEND_SOLICITED",
        "The receiver sees that the sender asked for an event.";
    address_handles_are_checked: "ibv_create_ah(3)",
        "Ports, source GIDs and fields that there are not are refused, with their range.";
    addresses_are_queried: "ibv_query_port(3), ibv_query_gid(3), ibv_query_pkey(3)",
        "Port, GID and P_Key tables tell their sizes, and refuse what is beyond them.";
}

const OK: WcStatus = WcStatus::Success;
const HEAD: u32 = GRH_BYTES as u32;

fn two(p: &Provider) -> (Talker<Ud>, Talker<Ud>) {
    pair::<Ud>(p)
}

fn here(device: &Device) -> AhAttr {
    device.way_to(&device.endpoint(0, 1, None), 1, None)
}

fn routed(device: &Device) -> AhAttr {
    let here = here(device);
    AhAttr {
        is_global: true,
        grh: GlobalRoute {
            dgid: device.endpoint(0, 1, None).gid,
            flow_label: 0x12345,
            sgid_index: here.grh.sgid_index,
            hop_limit: 9,
            traffic_class: 0x5a,
        },
        ..here
    }
}

/// Sends to this address, not to the pair's other end.
fn send_to(tx: &mut Talker<Ud>, wr_id: u64, attr: &AhAttr, qpn: u32, qkey: u32, bytes: &[u8]) {
    let ah = tx.qp.pd().create_ah(attr).expect("an address handle");
    tx.qp
        .sq()
        .post_inline(wr_id, ah.to(qpn, qkey), Send {}, bytes, SIGNALED)
        .expect("room in the send queue");
    tx.qp.sq().ring();
}

fn arrives(rx: &mut Talker<Ud>, wr_id: u64) -> Success {
    let done = rx.wait();
    assert_eq!(done.wr_id, wr_id);
    done.result.expect("received")
}

fn message(rx: &Talker<Ud>, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    rx.region.read(GRH_BYTES, &mut bytes);
    bytes
}

fn a_message_arrives(p: &Provider) {
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
        tx.told(wr_id as u64, OK);
        arrives(&mut rx, wr_id as u64);
        assert_eq!(message(&rx, length as usize), bytes);
    }
}

fn immediate_data_arrives(p: &Provider) {
    let (mut tx, mut rx) = two(p);
    rx.receive(1, 8);
    let imm = Be32::from_bytes([1, 2, 3, 4]);
    tx.go(1, SendWithImm { imm }, Inline(b"12345678"));
    tx.told(1, OK);
    assert_eq!(arrives(&mut rx, 1).imm(), Imm::Data(imm));
    assert_eq!(message(&rx, 8), b"12345678");
}

fn byte_len_counts_the_header(p: &Provider) {
    let (mut tx, mut rx) = two(p);
    for length in [0, 5, 100] {
        rx.receive(1, length);
        tx.go(1, Send {}, tx.region.sge(0, length));
        tx.told(1, OK);
        assert_eq!(arrives(&mut rx, 1).byte_len(), Some(HEAD + length));
    }
}

fn the_sender_is_named(p: &Provider) {
    let (mut tx, mut rx) = two(p);
    rx.receive(1, 8);
    tx.go(1, Send {}, Inline(b"12345678"));
    let done = arrives(&mut rx, 1);
    let source = done.source().expect("datagrams have a source");
    assert_eq!(done.src_qp(), Some(tx.qp.qp_num()));
    assert_eq!(source.slid, tx.qp.endpoint().lid);
}

fn without_a_global_route_there_is_no_header(p: &Provider) {
    let (mut tx, mut rx) = two(p);
    rx.region.write(0, &[0xa5; GRH_BYTES]);
    rx.receive(1, 8);
    tx.go(1, Send {}, Inline(b"12345678"));
    assert!(!arrives(&mut rx, 1).grh());
    let mut head = [0; GRH_BYTES];
    rx.region.read(0, &mut head);
    assert_eq!(head, [0xa5; GRH_BYTES]);
}

fn a_global_route_comes_as_a_header(p: &Provider) {
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

fn an_answer_finds_its_way(p: &Provider) {
    let (mut tx, mut rx) = two(p);
    let there = here(rx.qp.pd().device());
    rx.receive(1, 8);
    tx.receive(2, 8);
    send_to(&mut tx, 1, &there, rx.qp.qp_num(), QKEY, b"question");
    tx.told(1, OK);
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
    rx.told(3, OK);
    arrives(&mut tx, 2);
    assert_eq!(message(&tx, 8), b"answered");
}

fn the_way_back_leads_to_the_sender(p: &Provider) {
    for attr in [here, routed] {
        let (mut tx, mut rx) = two(p);
        let (attr, home) = (attr(rx.qp.pd().device()), attr(tx.qp.pd().device()));
        rx.receive(1, 8);
        tx.receive(2, 8);
        send_to(&mut tx, 1, &attr, rx.qp.qp_num(), QKEY, b"question");
        tx.told(1, OK);
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
        rx.told(3, OK);
        arrives(&mut tx, 2);
        assert_eq!(message(&tx, 8), b"answer..");
    }
}

fn there_is_no_way_back_from_anything_else(p: &Provider) {
    let (mut tx, mut rx) = two(p);
    let attr = routed(rx.qp.pd().device());
    rx.receive(1, 8);
    send_to(&mut tx, 1, &attr, rx.qp.qp_num(), QKEY, b"question");
    let wc = arrives(&mut rx, 1);
    let garbage = [0; GRH_BYTES];
    let refused = ah_attr_from_wc(&wc, &garbage, 1);
    assert!(matches!(refused, Err(Error::NotADatagram)), "{refused:?}");
    tx.told(1, OK);
    // A send's completion is no datagram's.
    tx.go(2, Nop {}, NoPayload);
    let wc = tx.wait().result.expect("executed");
    assert!(ah_attr_from_wc(&wc, &garbage, 1).is_err());
}

fn the_header_spreads_over_the_elements(p: &Provider) {
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

fn another_qkey_is_dropped(p: &Provider) {
    let (mut tx, mut rx) = two(p);
    let (attr, qpn) = (here(rx.qp.pd().device()), rx.qp.qp_num());
    rx.receive(1, 8);
    for qkey in [QKEY ^ 1, 0, QKEY << 1] {
        send_to(&mut tx, 1, &attr, qpn, qkey, b"12345678");
        tx.told(1, OK);
    }
    rx.nothing();
    send_to(&mut tx, 2, &attr, qpn, QKEY, b"12345678");
    arrives(&mut rx, 1);
}

fn a_controlled_qkey_is_the_senders_own(p: &Provider) {
    let (mut tx, mut rx) = two(p);
    let (attr, qpn) = (here(rx.qp.pd().device()), rx.qp.qp_num());
    rx.receive(1, 8);
    send_to(&mut tx, 1, &attr, qpn, 1 << 31 | 77, b"12345678");
    tx.told(1, OK);
    arrives(&mut rx, 1);
}

fn a_new_qkey_holds_at_once(p: &Provider) {
    use bellwire::state::{QpAttr, QpAttrMask};
    let (mut tx, mut rx) = two(p);
    let attr = QpAttr {
        qkey: 99,
        ..QpAttr::default()
    };
    rx.qp.modify(&attr, QpAttrMask::QKEY).expect("in RTS");
    rx.receive(1, 8);
    tx.go(1, Send {}, NoPayload);
    tx.told(1, OK);
    rx.nothing();
    let (to, qpn) = (here(rx.qp.pd().device()), rx.qp.qp_num());
    send_to(&mut tx, 2, &to, qpn, 99, b"12345678");
    arrives(&mut rx, 1);
}

fn without_a_receive_it_is_dropped(p: &Provider) {
    let (mut tx, mut rx) = two(p);
    for wr_id in 0..5 {
        tx.go(wr_id, Send {}, Inline(&[wr_id as u8]));
        tx.told(wr_id, OK);
    }
    // As long as it takes them to arrive.
    rx.nothing();
    rx.receive(1, 8);
    rx.nothing();
    tx.go(9, Send {}, Inline(&[9]));
    arrives(&mut rx, 1);
    assert_eq!(message(&rx, 1), [9]);
}

fn to_nobody_it_is_dropped(p: &Provider) {
    let (mut tx, rx) = two(p);
    let attr = here(tx.qp.pd().device());
    let gone = rx.qp.qp_num();
    drop(rx);
    for qpn in [0, 1, 0xff_fffe, 0x12_3456, gone] {
        send_to(&mut tx, 1, &attr, qpn, QKEY, b"12345678");
        tx.told(1, OK);
    }
    assert_eq!(tx.qp.state(), QpState::Rts);
}

fn to_another_transport_it_is_dropped(p: &Provider) {
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
    tx.told(1, OK);
    a.nothing();
}

fn to_another_port_it_is_dropped(p: &Provider) {
    let (mut tx, mut rx) = two(p);
    rx.receive(1, 8);
    let device = tx.qp.pd().device().clone();
    let (mut lid, mut gid) = (here(&device), routed(&device));
    lid.dlid ^= 0x100;
    gid.grh.dgid[15] ^= 1;
    for attr in [lid, gid] {
        send_to(&mut tx, 1, &attr, rx.qp.qp_num(), QKEY, b"12345678");
        tx.told(1, OK);
    }
    rx.nothing();
}

fn mtu(pd: &Pd) -> u32 {
    let port = pd.device().query_port(1).expect("the first port");
    port.active_mtu.bytes()
}

fn a_message_of_the_mtu_arrives(p: &Provider) {
    let (mut tx, mut rx) = two(p);
    let length = mtu(tx.qp.pd());
    rx.receive(1, length);
    tx.go(1, Send {}, tx.region.sge(0, length));
    tx.told(1, OK);
    assert_eq!(arrives(&mut rx, 1).byte_len(), Some(HEAD + length));
}

fn a_message_beyond_the_mtu_fails(p: &Provider) {
    let (mut tx, mut rx) = two(p);
    let length = mtu(tx.qp.pd()) + 1;
    rx.receive(1, length);
    tx.go(1, Send {}, tx.region.sge(0, length));
    tx.told(1, LocLenErr);
    assert_eq!(tx.qp.state(), QpState::Sqe);
    rx.nothing();
}

fn a_receive_that_is_too_short_fails(p: &Provider) {
    let (mut tx, mut rx) = two(p);
    rx.receive(1, 7);
    rx.receive(2, 8);
    tx.go(1, Send {}, Inline(b"12345678"));
    tx.told(1, OK);
    rx.told(1, LocLenErr);
    rx.told(2, WcStatus::WrFlushErr);
    assert_eq!(rx.qp.state(), QpState::Err);
    assert_eq!(tx.qp.state(), QpState::Rts);
}

fn a_receive_needs_room_for_the_header(p: &Provider) {
    let (mut tx, mut rx) = two(p);
    rx.post_receive(1, &[rx.region.sge(0, HEAD - 1)])
        .expect("room");
    tx.go(1, Send {}, NoPayload);
    tx.told(1, OK);
    rx.told(1, LocLenErr);
}

fn a_local_error_stops_the_send_queue_alone(p: &Provider) {
    let (mut tx, mut rx) = two(p);
    tx.post(1, Send {}, NOWHERE, SIGNALED).expect("room");
    tx.post(2, Send {}, NoPayload, SIGNALED).expect("room");
    tx.qp.sq().ring();
    tx.told(1, LocProtErr);
    tx.told(2, WcStatus::WrFlushErr);
    assert_eq!(tx.qp.state(), QpState::Sqe);
    tx.receive(3, 8);
    let (attr, qpn) = (here(tx.qp.pd().device()), tx.qp.qp_num());
    send_to(&mut rx, 1, &attr, qpn, QKEY, b"12345678");
    arrives(&mut tx, 3);
    tx.go_to(QpState::Rts);
    rx.told(1, OK);
    rx.receive(4, 8);
    tx.go(5, Send {}, NoPayload);
    tx.told(5, OK);
    arrives(&mut rx, 4);
}

fn many_send_to_one(p: &Provider) {
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
                let (mut tx, _) =
                    <Ud as super::transports::ends::Service>::ends_on((pd, pd), p, &init());
                tx.bring(&Default::default(), QpState::Rts);
                for round in 0..EACH / 10 {
                    turns.wait();
                    for at in 0..10 {
                        let mut bytes = [0; 16];
                        bytes[..8].copy_from_slice(&sender.to_ne_bytes());
                        bytes[8..].copy_from_slice(&(round * 10 + at).to_ne_bytes());
                        send_to(&mut tx, 1, &attr, qpn, QKEY, &bytes);
                        tx.told(1, OK);
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

fn one_sends_to_many(p: &Provider) {
    let (mut tx, rx) = two(p);
    let pd = tx.qp.pd().clone();
    let there = rx.qp.pd().clone();
    let mut all = vec![rx];
    for at in 0..4 {
        let pd = if at % 2 == 0 { &pd } else { &there };
        let (mut end, _) = <Ud as super::transports::ends::Service>::ends_on((pd, pd), p, &init());
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

fn a_queue_pair_sends_to_itself(p: &Provider) {
    let (mut tx, _rx) = two(p);
    let (attr, qpn) = (here(tx.qp.pd().device()), tx.qp.qp_num());
    tx.receive(7, 8);
    send_to(&mut tx, 1, &attr, qpn, QKEY, b"12345678");
    let mut told: Vec<u64> = (0..2).map(|_| tx.wait().wr_id).collect();
    told.sort_unstable();
    assert_eq!(told, [1, 7]);
    assert_eq!(message(&tx, 8), b"12345678");
}

fn a_queue_pair_that_fails_itself_is_told_once(p: &Provider) {
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
    let mut told: Vec<(u64, WcStatus)> = (0..5)
        .map(|_| tx.wait())
        .map(|done| (done.wr_id, done.status()))
        .collect();
    told.sort_unstable_by_key(|&(wr_id, _)| wr_id);
    let flushed = WcStatus::WrFlushErr;
    assert_eq!(told[..1], [(1, OK)]);
    assert_eq!(told[1..3], [(2, flushed), (3, flushed)]);
    assert_eq!(told[3..], [(70, LocLenErr), (71, flushed)]);
    tx.nothing();
}

fn solicited_is_told(p: &Provider) {
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

fn address_handles_are_checked(p: &Provider) {
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

fn addresses_are_queried(p: &Provider) {
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
