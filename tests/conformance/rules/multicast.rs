//! Multicast: who gets a copy of what is sent to a group.

use super::transports::ends::{QKEY, Receives, Service, Stands, Talker};
use crate::provider::Provider;
use crate::rule::rules;
use bellwire::state::{AhAttr, GlobalRoute, QpState};
use bellwire::wqe::*;
use bellwire::wr::WcStatus;
use bellwire::{Error, GRH_BYTES, Pd};
use bellwire_tests::fixture::*;

rules! {
    "multicast", "Groups of datagram queue pairs.", needs [Ud, Multicast];
    every_member_gets_one_copy: "IBTA vol. 1, 10.5.2; ibv_attach_mcast(3)",
        "What is sent to the group arrives once at each queue pair that is attached.";
    attached_twice_gets_one_copy: "ibv_attach_mcast(3)",
        "Attaching again changes nothing.";
    others_get_none: "ibv_attach_mcast(3)",
        "A queue pair that is not attached, or to another group, sees nothing.";
    detached_gets_none: "ibv_detach_mcast(3)",
        "After detaching nothing arrives any more; the others go on.";
    the_sender_need_not_be_a_member: "IBTA vol. 1, 10.5.2",
        "Anybody may send to a group.";
    a_member_gets_its_own: "IBTA vol. 1, 10.5.2",
        "A member that sends gets a copy as every other.";
    a_member_that_fails_its_own_copy_reports_each_request_once: "IBTA vol. 1, 10.3.1",
        "The copy does not fit the sender's receive: each request is reported, once.";
    copies_have_the_header: "IBTA vol. 1, 8.3, 10.5.2",
        "The global route header names the group as destination.";
    a_member_without_a_receive_is_left_out: "IBTA vol. 1, 9.8.3.2",
        "Its copy is dropped, the others' are not.";
    a_member_with_another_qkey_is_left_out: "IBTA vol. 1, 10.2.5",
        "The Q_Key is checked for each member.";
    to_an_empty_group_it_is_dropped: "IBTA vol. 1, 10.5.2",
        "The sender succeeds.";
    a_destroyed_member_leaves: "ibv_detach_mcast(3)",
        "A queue pair that is gone is in no group any more.";
    an_address_of_one_is_refused: "ibv_attach_mcast(3)",
        "A GID that is not a multicast address cannot be attached to.";
    detaching_a_stranger_is_refused: "ibv_detach_mcast(3)",
        "Detaching who is not attached is an error.";
}

const OK: WcStatus = WcStatus::Success;
const MLID: u16 = 0xc001;
/// The queue pair number that stands for a group.
const GROUP: u32 = 0xff_ffff;

const fn mgid(last: u8) -> [u8; 16] {
    // 232.1.1.x, mapped: what RoCE v2 has as a group as well.
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 232, 1, 1, last]
}

fn ends(p: &Provider, count: usize) -> (Pd, Vec<Talker<Ud>>) {
    let pds = p.pds();
    let ends = (0..count).map(|at| {
        let pd = if at % 2 == 0 { &pds.0 } else { &pds.1 };
        let (mut end, _) = Ud::ends_on((pd, pd), p, &init());
        end.bring(&Default::default(), QpState::Rts);
        end.receive(70, 16);
        end.receive(71, 16);
        end
    });
    let ends = ends.collect();
    (pds.0, ends)
}

fn send(tx: &mut Talker<Ud>, group: u8, bytes: &[u8]) {
    let way = tx.qp.pd().device().way_to(&Default::default(), 1, None);
    let attr = AhAttr {
        dlid: MLID,
        is_global: true,
        grh: GlobalRoute {
            dgid: mgid(group),
            sgid_index: way.grh.sgid_index,
            hop_limit: way.grh.hop_limit,
            ..GlobalRoute::default()
        },
        port_num: 1,
        ..AhAttr::default()
    };
    let ah = tx.qp.pd().create_ah(&attr).expect("an address handle");
    tx.qp
        .sq()
        .post_inline(1, ah.to(GROUP, QKEY), Send {}, bytes, SIGNALED)
        .expect("room");
    tx.qp.sq().ring();
}

fn join(end: &Talker<Ud>, group: u8) {
    end.qp.attach_mcast(mgid(group), MLID).expect("room");
}

fn gets(rx: &mut Talker<Ud>, bytes: &[u8]) {
    rx.completes(70, OK);
    let mut got = vec![0; bytes.len()];
    rx.region.read(GRH_BYTES, &mut got);
    assert_eq!(got, bytes);
    rx.nothing();
}

fn every_member_gets_one_copy(p: &Provider) {
    let (_pd, mut ends) = ends(p, 5);
    ends[1..].iter().for_each(|end| join(end, 1));
    send(&mut ends[0], 1, b"to all of you");
    ends[0].completes(1, OK);
    for rx in &mut ends[1..] {
        gets(rx, b"to all of you");
    }
}

fn attached_twice_gets_one_copy(p: &Provider) {
    let (_pd, mut ends) = ends(p, 2);
    join(&ends[1], 1);
    join(&ends[1], 1);
    send(&mut ends[0], 1, b"once");
    gets(&mut ends[1], b"once");
    ends[1].qp.detach_mcast(mgid(1), MLID).expect("attached");
    let again = ends[1].qp.detach_mcast(mgid(1), MLID);
    assert!(matches!(again, Err(Error::NotAttached { .. })), "{again:?}");
}

fn others_get_none(p: &Provider) {
    let (_pd, mut ends) = ends(p, 4);
    join(&ends[1], 1);
    join(&ends[2], 2);
    ends[3].qp.attach_mcast(mgid(1), MLID + 1).expect("room");
    send(&mut ends[0], 1, b"one");
    ends[0].completes(1, OK);
    gets(&mut ends[1], b"one");
    ends[2].nothing();
    ends[3].nothing();
}

fn detached_gets_none(p: &Provider) {
    let (_pd, mut ends) = ends(p, 3);
    ends[1..].iter().for_each(|end| join(end, 1));
    ends[1].qp.detach_mcast(mgid(1), MLID).expect("attached");
    send(&mut ends[0], 1, b"left");
    ends[0].completes(1, OK);
    gets(&mut ends[2], b"left");
    ends[1].nothing();
}

fn the_sender_need_not_be_a_member(p: &Provider) {
    let (_pd, mut ends) = ends(p, 2);
    join(&ends[1], 1);
    send(&mut ends[0], 1, b"hello");
    ends[0].completes(1, OK);
    ends[0].nothing();
    gets(&mut ends[1], b"hello");
}

fn a_member_gets_its_own(p: &Provider) {
    let (_pd, mut ends) = ends(p, 1);
    join(&ends[0], 1);
    send(&mut ends[0], 1, b"hello");
    let mut completed: Vec<u64> = (0..2).map(|_| ends[0].wait().wr_id).collect();
    completed.sort_unstable();
    assert_eq!(completed, [1, 70]);
    ends[0].nothing();
}

fn a_member_that_fails_its_own_copy_reports_each_request_once(p: &Provider) {
    let (_pd, mut ends) = ends(p, 1);
    join(&ends[0], 1);
    // The receives have room for 16 bytes.
    send(&mut ends[0], 1, &[7; 17]);
    let mut completed: Vec<(u64, WcStatus)> = (0..3)
        .map(|_| ends[0].wait())
        .map(|done| (done.wr_id, done.status()))
        .collect();
    completed.sort_unstable_by_key(|&(wr_id, _)| wr_id);
    let failed = [(70, WcStatus::LocLenErr), (71, WcStatus::WrFlushErr)];
    assert_eq!(completed[0], (1, OK));
    assert_eq!(completed[1..], failed);
    ends[0].nothing();
}

fn copies_have_the_header(p: &Provider) {
    let (_pd, mut ends) = ends(p, 2);
    join(&ends[1], 1);
    send(&mut ends[0], 1, b"hello");
    let done = ends[1].wait().result.expect("received");
    assert!(done.grh());
    assert_eq!(done.src_qp(), Some(ends[0].qp.qp_num()));
    let mut grh = [0; GRH_BYTES];
    ends[1].region.read(0, &mut grh);
    assert_eq!(grh[24..], mgid(1));
}

fn a_member_without_a_receive_is_left_out(p: &Provider) {
    let (_pd, mut ends) = ends(p, 3);
    ends[1..].iter().for_each(|end| join(end, 1));
    for count in 0..3u8 {
        send(&mut ends[0], 1, &[count]);
        ends[0].completes(1, OK);
    }
    for rx in &mut ends[1..] {
        rx.completes(70, OK);
        rx.completes(71, OK);
        rx.nothing();
        rx.receive(72, 16);
    }
    ends[1].receive(73, 16);
    for _ in 0..2 {
        send(&mut ends[0], 1, b"more");
        ends[0].completes(1, OK);
    }
    ends[1].completes(72, OK);
    ends[1].completes(73, OK);
    ends[2].completes(72, OK);
    ends[2].nothing();
}

fn a_member_with_another_qkey_is_left_out(p: &Provider) {
    use bellwire::state::{QpAttr, QpAttrMask};
    let (_pd, mut ends) = ends(p, 3);
    ends[1..].iter().for_each(|end| join(end, 1));
    let attr = QpAttr {
        qkey: QKEY ^ 1,
        ..QpAttr::default()
    };
    ends[1].qp.modify(&attr, QpAttrMask::QKEY).expect("in RTS");
    send(&mut ends[0], 1, b"hello");
    ends[0].completes(1, OK);
    gets(&mut ends[2], b"hello");
    ends[1].nothing();
}

fn to_an_empty_group_it_is_dropped(p: &Provider) {
    let (_pd, mut ends) = ends(p, 1);
    for _ in 0..100 {
        send(&mut ends[0], 1, b"hello");
        ends[0].completes(1, OK);
    }
    ends[0].nothing();
}

fn a_destroyed_member_leaves(p: &Provider) {
    let (_pd, mut ends) = ends(p, 3);
    ends[1..].iter().for_each(|end| join(end, 1));
    drop(ends.pop());
    send(&mut ends[0], 1, b"hello");
    ends[0].completes(1, OK);
    gets(&mut ends[1], b"hello");
}

fn an_address_of_one_is_refused(p: &Provider) {
    let (pd, ends) = ends(p, 1);
    let gid = pd.device().query_gid(1, 0).expect("the first");
    let refused = ends[0].qp.attach_mcast(gid, MLID);
    assert!(
        matches!(refused, Err(Error::NotMulticast { .. })),
        "{refused:?}"
    );
}

fn detaching_a_stranger_is_refused(p: &Provider) {
    let (_pd, ends) = ends(p, 2);
    join(&ends[0], 1);
    let refused = ends[1].qp.detach_mcast(mgid(1), MLID);
    assert!(
        matches!(refused, Err(Error::NotAttached { .. })),
        "{refused:?}"
    );
    let refused = ends[0].qp.detach_mcast(mgid(2), MLID);
    assert!(
        matches!(refused, Err(Error::NotAttached { .. })),
        "{refused:?}"
    );
}
