//! Transports beside RC, through the public interface.

use bellwire::soft::Mode;
use bellwire::state::{AhAttr, GlobalRoute, QpState};
use bellwire::wqe::*;
use bellwire::wr::WcStatus;
use bellwire::*;
use bellwire_tests::fixture::*;
use bellwire_tests::in_both_modes;

in_both_modes! { uc_sends_and_writes, uc_drops, uc_local_error_is_sqe, ud_sends, ud_multicast, ud_answers }

struct E<T: QpTransport> {
    qp: Qp<T>,
    cq: Cq,
    region: Region,
    mode: Mode,
}
impl<T: QpTransport> E<T> {
    fn new(pd: &Pd, mode: Mode) -> Self {
        let (s, r) = init().cq_entries_of::<T>();
        let mut cq = pd.device().create_cq(s + r).unwrap();
        let qp = pd.create_qp_of::<T>(&mut cq, &init()).unwrap();
        Self {
            qp,
            cq,
            region: region(pd, 1 << 16),
            mode,
        }
    }
    fn receive(&mut self, id: u64, sges: &[wr::Sge]) {
        unsafe { self.qp.rq().post(id, sges).unwrap() };
        self.qp.rq().ring();
    }
    fn outcome(&mut self) -> (u64, WcStatus) {
        let c = wait(&mut self.cq);
        (c.wr_id, c.status())
    }
    fn nothing(&mut self) {
        nothing(&mut self.cq, self.mode)
    }
}
fn uc(mode: Mode) -> (E<Uc>, E<Uc>) {
    let pd = device(mode).alloc_pd();
    let (mut a, mut b) = (E::new(&pd, mode), E::new(&pd, mode));
    let at = ConnectAttr::default();
    a.qp.init(&at).unwrap();
    b.qp.init(&at).unwrap();
    a.qp.connect(&b.qp.endpoint(), &at).unwrap();
    b.qp.connect(&a.qp.endpoint(), &at).unwrap();
    (a, b)
}
fn uc_sends_and_writes(mode: Mode) {
    let (mut a, mut b) = uc(mode);
    for i in 0..50u64 {
        b.receive(i, &[b.region.sge(0, 100)]);
        let bytes = vec![i as u8; 60];
        a.qp.sq()
            .post_inline(i, (), Send {}, &bytes, SIGNALED)
            .unwrap();
        a.qp.sq().ring();
        assert_eq!(a.outcome(), (i, WcStatus::Success));
        assert_eq!(b.outcome(), (i, WcStatus::Success));
        let mut got = [0; 60];
        b.region.read(0, &mut got);
        assert_eq!(got[..], bytes[..]);
        let remote = b.region.remote(1000);
        a.qp.sq()
            .post_inline(i, (), RdmaWrite { remote }, &bytes, SIGNALED)
            .unwrap();
        a.qp.sq().ring();
        assert_eq!(a.outcome(), (i, WcStatus::Success));
        b.region.read(1000, &mut got);
        assert_eq!(got[..], bytes[..]);
        b.receive(i, &[]);
        a.qp.sq()
            .post_inline(
                i,
                (),
                RdmaWriteWithImm {
                    remote,
                    imm: be::Be32::new(7),
                },
                &bytes,
                SIGNALED,
            )
            .unwrap();
        a.qp.sq().ring();
        assert_eq!(a.outcome(), (i, WcStatus::Success));
        assert_eq!(b.outcome(), (i, WcStatus::Success));
    }
}
fn uc_drops(mode: Mode) {
    let (mut a, mut b) = uc(mode);
    a.qp.sq()
        .post_inline(1, (), Send {}, &[1; 9], SIGNALED)
        .unwrap();
    let bad = wr::Remote { addr: 0, rkey: 77 };
    a.qp.sq()
        .post_inline(2, (), RdmaWrite { remote: bad }, &[1; 9], SIGNALED)
        .unwrap();
    a.qp.sq().ring();
    assert_eq!(a.outcome(), (1, WcStatus::Success));
    assert_eq!(a.outcome(), (2, WcStatus::Success));
    b.nothing();
    b.receive(70, &[b.region.sge(0, 4)]);
    a.qp.sq()
        .post_inline(3, (), Send {}, &[1; 9], SIGNALED)
        .unwrap();
    a.qp.sq().ring();
    assert_eq!(a.outcome(), (3, WcStatus::Success));
    assert_eq!(b.outcome(), (70, WcStatus::LocLenErr));
    assert_eq!(b.qp.state(), QpState::Err);
    a.qp.sq()
        .post_inline(4, (), Send {}, &[1; 9], SIGNALED)
        .unwrap();
    a.qp.sq().ring();
    assert_eq!(a.outcome(), (4, WcStatus::Success));
    assert_eq!(a.qp.state(), QpState::Rts);
}
fn uc_local_error_is_sqe(mode: Mode) {
    let (mut a, mut b) = uc(mode);
    let bad = wr::Sge {
        addr: 1,
        length: 8,
        lkey: 99,
    };
    unsafe { a.qp.sq().post(1, (), Send {}, bad, SIGNALED).unwrap() };
    a.qp.sq()
        .post_inline(2, (), Send {}, &[1], SIGNALED)
        .unwrap();
    a.qp.sq().ring();
    assert_eq!(a.outcome(), (1, WcStatus::LocProtErr));
    assert_eq!(a.outcome(), (2, WcStatus::WrFlushErr));
    assert_eq!(a.qp.state(), QpState::Sqe);
    a.qp.sq()
        .post_inline(3, (), Send {}, &[1], SIGNALED)
        .unwrap();
    a.qp.sq().ring();
    assert_eq!(a.outcome(), (3, WcStatus::WrFlushErr));
    // still receives
    a.receive(70, &[a.region.sge(0, 10)]);
    b.qp.sq()
        .post_inline(1, (), Send {}, &[1], SIGNALED)
        .unwrap();
    b.qp.sq().ring();
    assert_eq!(a.outcome(), (70, WcStatus::Success));
    a.qp.modify(
        &state::QpAttr {
            qp_state: QpState::Rts,
            ..Default::default()
        },
        state::QpAttrMask::STATE,
    )
    .unwrap();
    b.receive(71, &[b.region.sge(0, 10)]);
    a.qp.sq()
        .post_inline(4, (), Send {}, &[1], SIGNALED)
        .unwrap();
    a.qp.sq().ring();
    assert_eq!(a.outcome(), (4, WcStatus::Success));
}
fn ud(mode: Mode, n: usize) -> (Pd, Vec<E<Ud>>) {
    let pd = device(mode).alloc_pd();
    let es = (0..n)
        .map(|_| {
            let mut e: E<Ud> = E::new(&pd, mode);
            let at = ConnectAttr::default();
            e.qp.init(&at).unwrap();
            e.qp.start(&at).unwrap();
            e
        })
        .collect();
    (pd, es)
}
fn local(pd: &Pd) -> AhAttr {
    AhAttr {
        dlid: pd.device().query_port(1).unwrap().lid,
        port_num: 1,
        ..Default::default()
    }
}
fn ud_sends(mode: Mode) {
    let (pd, mut es) = ud(mode, 2);
    let [a, b] = &mut es[..] else { panic!() };
    let ah = pd.create_ah(&local(&pd)).unwrap();
    let key = ConnectAttr::default().qkey;
    b.receive(70, &[b.region.sge(0, 140)]);
    a.qp.sq()
        .post_inline(
            1,
            ah.to(b.qp.qp_num(), key ^ 1),
            Send {},
            &[9; 100],
            SIGNALED,
        )
        .unwrap();
    a.qp.sq()
        .post_inline(2, ah.to(b.qp.qp_num(), key), Send {}, &[9; 100], SIGNALED)
        .unwrap();
    a.qp.sq()
        .post_inline(3, ah.to(b.qp.qp_num(), key), Send {}, &[9; 100], SIGNALED)
        .unwrap();
    a.qp.sq().ring();
    for i in 1..4 {
        assert_eq!(a.outcome(), (i, WcStatus::Success));
    }
    let c = wait(&mut b.cq);
    let ok = c.result.unwrap();
    assert_eq!(
        (c.wr_id, ok.byte_len(), ok.src_qp(), ok.grh()),
        (70, Some(140), Some(a.qp.qp_num()), false)
    );
    let mut got = [0; 100];
    b.region.read(40, &mut got);
    assert_eq!(got, [9; 100]);
    b.nothing();
}
fn ud_answers(mode: Mode) {
    let (pd, mut es) = ud(mode, 2);
    let [a, b] = &mut es[..] else { panic!() };
    let gid = pd.device().query_gid(1, 0).unwrap();
    let ah = pd
        .create_ah(&AhAttr {
            is_global: true,
            grh: GlobalRoute {
                dgid: gid,
                flow_label: 0x12345,
                traffic_class: 9,
                hop_limit: 3,
                sgid_index: 0,
            },
            ..local(&pd)
        })
        .unwrap();
    let key = ConnectAttr::default().qkey;
    b.receive(70, &[b.region.sge(0, 30), b.region.sge(30, 100)]);
    a.receive(71, &[a.region.sge(0, 100)]);
    a.qp.sq()
        .post_inline(2, ah.to(b.qp.qp_num(), key), Send {}, &[9; 20], SIGNALED)
        .unwrap();
    a.qp.sq().ring();
    assert_eq!(a.outcome(), (2, WcStatus::Success));
    let ok = wait(&mut b.cq).result.unwrap();
    assert!(ok.grh());
    let mut grh = [0; 40];
    b.region.read(0, &mut grh);
    let back = pd.create_ah_from_wc(&ok, &grh, 1).unwrap();
    assert_eq!(back.attr().grh.dgid, gid);
    assert_eq!(back.attr().grh.flow_label, 0x12345);
    b.qp.sq()
        .post_inline(
            3,
            back.to(ok.src_qp().unwrap(), key),
            Send {},
            &[8; 20],
            SIGNALED,
        )
        .unwrap();
    b.qp.sq().ring();
    assert_eq!(b.outcome(), (3, WcStatus::Success));
    assert_eq!(a.outcome(), (71, WcStatus::Success));
}
fn ud_multicast(mode: Mode) {
    let (pd, mut es) = ud(mode, 4);
    let mgid = {
        let mut g = [0; 16];
        g[0] = 0xff;
        g[15] = 5;
        g
    };
    for e in &mut es[1..] {
        e.qp.attach_mcast(mgid, 0xc000).unwrap();
        e.qp.attach_mcast(mgid, 0xc000).unwrap();
        let s = e.region.sge(0, 100);
        e.receive(70, &[s]);
        e.receive(71, &[s]);
    }
    let ah = pd
        .create_ah(&AhAttr {
            dlid: 0xc000,
            is_global: true,
            grh: GlobalRoute {
                dgid: mgid,
                ..Default::default()
            },
            port_num: 1,
            ..Default::default()
        })
        .unwrap();
    let key = ConnectAttr::default().qkey;
    for i in 0..2 {
        es[0]
            .qp
            .sq()
            .post_inline(i, ah.to(0xff_ffff, key), Send {}, &[9; 20], SIGNALED)
            .unwrap();
        es[0].qp.sq().ring();
        assert_eq!(es[0].outcome(), (i, WcStatus::Success));
        for e in &mut es[1..] {
            if i == 1 && e.qp.qp_num() & 1 == 1 {
                e.nothing();
            } else {
                assert_eq!(e.outcome(), (70 + i, WcStatus::Success));
                e.nothing();
            }
        }
        for e in &mut es[1..] {
            if e.qp.qp_num() & 1 == 1 && i == 0 {
                e.qp.detach_mcast(mgid, 0xc000).unwrap();
                assert!(e.qp.detach_mcast(mgid, 0xc000).is_err());
            }
        }
    }
}

mod srq {
    use super::*;
    use bellwire::event::{Element, EventType};
    in_both_modes! { rc_takes_in_order, limit, many_threads, xrc, last_wqe }
    fn pair_on(mode: Mode, n: usize, max_wr: u32) -> (Device, Srq, Vec<End>, Vec<(Qp, Cq)>) {
        let d = device(mode);
        d.set_async_nonblocking(true).unwrap();
        let pd = d.alloc_pd();
        let srq = pd
            .create_srq(&SrqInit {
                max_wr,
                max_sge: 2,
                srq_limit: 0,
            })
            .unwrap();
        let (mut ends, mut on) = (vec![], vec![]);
        for _ in 0..n {
            let mut a = End::new(&pd, mode, &init());
            let mut cq = d.create_cq(4096).unwrap();
            let mut qp: Qp = pd.create_qp_on_srq(&mut cq, &srq, &init()).unwrap();
            connect_with(&mut a.qp, &mut qp, &ConnectAttr::default());
            ends.push(a);
            on.push((qp, cq));
        }
        (d, srq, ends, on)
    }
    fn rc_takes_in_order(mode: Mode) {
        let (_d, mut srq, mut ends, mut on) = pair_on(mode, 2, 8);
        let r = region(srq.pd(), 4096);
        assert!(unsafe { on[0].0.rq().post(1, &[]) }.is_err());
        for round in 0..100u64 {
            for i in 0..8 {
                unsafe { srq.post(i, &[r.sge(i as usize * 64, 64)]).unwrap() };
            }
            srq.ring();
            for i in 0..8u64 {
                let e = (i ^ round) as usize & 1;
                ends[e].go(i, Send {}, Inline(&[i as u8; 50]));
                assert_eq!(ends[e].outcome(), (i, WcStatus::Success));
                let c = wait(&mut on[e].1);
                assert_eq!((c.wr_id, c.qp_num), (i, on[e].0.qp_num()));
                let mut b = [0; 50];
                r.read(i as usize * 64, &mut b);
                assert_eq!(b, [i as u8; 50]);
            }
        }
    }
    fn limit(mode: Mode) {
        let (d, mut srq, mut ends, mut on) = pair_on(mode, 1, 8);
        for i in 0..8 {
            unsafe { srq.post(i, &[]).unwrap() };
        }
        srq.ring();
        while d.get_async_event().is_ok() {}
        srq.modify(6).unwrap();
        for i in 0..4 {
            ends[0].go(i, Send {}, NoPayload);
            ends[0].outcome();
            wait(&mut on[0].1).result.unwrap();
        }
        let e = d.get_async_event().unwrap();
        assert_eq!(
            (e.event_type(), e.element()),
            (EventType::SrqLimitReached, Element::Srq(srq.srq_num()))
        );
        drop(e);
        assert!(d.get_async_event().is_err());
        assert_eq!(srq.query().srq_limit, 0);
    }
    fn many_threads(mode: Mode) {
        let (_d, mut srq, ends, on) = pair_on(mode, 3, 64);
        const EACH: u64 = 3000;
        std::thread::scope(|s| {
            let (tx, rx) = std::sync::mpsc::channel();
            for mut e in ends {
                s.spawn(move || {
                    for i in 0..EACH {
                        e.go(i, Send {}, Inline(&i.to_ne_bytes()));
                        assert_eq!(e.outcome(), (i, WcStatus::Success));
                    }
                });
            }
            for (_qp, mut cq) in on {
                let tx = tx.clone();
                s.spawn(move || {
                    for _ in 0..EACH {
                        let c = wait(&mut cq);
                        c.result.unwrap();
                        tx.send(c.wr_id).unwrap();
                    }
                    drop(_qp);
                });
            }
            drop(tx);
            let r = region(srq.pd(), 8192);
            let post = |srq: &mut Srq, id: u64| {
                unsafe { srq.post(id, &[r.sge(id as usize * 8, 8)]).unwrap() };
                srq.ring();
            };
            for i in 0..64 {
                post(&mut srq, i);
            }
            let mut told = 0;
            for id in rx {
                told += 1;
                post(&mut srq, id);
            }
            assert_eq!(told, 3 * EACH);
        });
    }
    fn xrc(mode: Mode) {
        let d = device(mode);
        let pd = d.alloc_pd();
        let xrcd = d.open_xrcd();
        let mut rcq = d.create_cq(256).unwrap();
        let mut srqs: Vec<Srq> = (0..2)
            .map(|_| {
                pd.create_xrc_srq(&xrcd, &mut rcq, &SrqInit::default().max(16))
                    .unwrap()
            })
            .collect();
        let at = ConnectAttr::default();
        let target = xrcd.create_target().unwrap();
        let mut cq = d.create_cq(1024).unwrap();
        let mut ini: Qp<Xrc> = pd.create_qp_of(&mut cq, &init()).unwrap();
        ini.init(&at).unwrap();
        target.init(&at).unwrap();
        ini.connect(&target.endpoint(), &at).unwrap();
        target.connect(&ini.endpoint(), &at).unwrap();
        assert_eq!(target.state(), QpState::Rts);
        let r = region(&pd, 4096);
        for i in 0..20u64 {
            let k = (i & 1) as usize;
            unsafe { srqs[k].post(i, &[r.sge(0, 100)]).unwrap() };
            srqs[k].ring();
            ini.sq()
                .post_inline(i, srqs[k].srq_num(), Send {}, &[i as u8; 70], SIGNALED)
                .unwrap();
            ini.sq().ring();
            let c = wait(&mut cq);
            assert_eq!((c.wr_id, c.status()), (i, WcStatus::Success));
            let c = wait(&mut rcq);
            assert_eq!(
                (c.wr_id, c.status(), c.qp_num),
                (i, WcStatus::Success, target.qp_num())
            );
            let mut b = [0; 70];
            r.read(0, &mut b);
            assert_eq!(b, [i as u8; 70]);
            ini.sq()
                .post_inline(
                    i,
                    srqs[k].srq_num(),
                    RdmaWrite {
                        remote: r.remote(500),
                    },
                    &[i as u8 ^ 7; 70],
                    SIGNALED,
                )
                .unwrap();
            ini.sq().ring();
            let c = wait(&mut cq);
            assert_eq!((c.wr_id, c.status()), (i, WcStatus::Success));
            r.read(500, &mut b);
            assert_eq!(b, [i as u8 ^ 7; 70]);
        }
        ini.sq()
            .post_inline(9, 12345, Send {}, &[1; 70], SIGNALED)
            .unwrap();
        ini.sq().ring();
        let c = wait(&mut cq);
        assert_eq!((c.wr_id, c.status()), (9, WcStatus::RemInvReqErr));
        assert_eq!(target.state(), QpState::Err);
    }
    trait Max {
        fn max(self, n: u32) -> Self;
    }
    impl Max for SrqInit {
        fn max(self, n: u32) -> Self {
            SrqInit { max_wr: n, ..self }
        }
    }
    fn last_wqe(mode: Mode) {
        let (d, _srq, _ends, mut on) = pair_on(mode, 1, 8);
        while d.get_async_event().is_ok() {}
        on[0].0.to_error().unwrap();
        let e = d.get_async_event().unwrap();
        assert_eq!(
            (e.event_type(), e.element()),
            (EventType::QpLastWqeReached, Element::Qp(on[0].0.qp_num()))
        );
    }
}
