//! Binding memory windows, and reaching through them.

use super::*;
use crate::rule::rules;

rules! {
    "windows::binding", "What a bind opens, and to whom.", needs [Rc, MemoryWindows];
    a_bound_window_opens_its_part: "IBTA vol. 1, 10.6.7.2; ibv_bind_mw(3)",
        "Peers reach what the window is bound to, from its first byte to its last.";
    a_window_opens_no_more_than_its_part: "IBTA vol. 1, 10.6.7.2",
        "A byte before or behind the bound part is refused, though it lies in the region.";
    a_window_opens_no_more_than_it_says: "IBTA vol. 1, 10.6.7.2.3",
        "Access that the bind did not ask for is refused.";
    a_window_narrows_what_a_closed_region_is: "IBTA vol. 1, 10.6.7.2.3",
        "The window's access holds, though the region itself is closed to peers.";
    an_unbound_window_opens_nothing: "IBTA vol. 1, 10.6.7.2",
        "The key of a window that was never bound reaches nothing.";
    a_bind_completes_as_one: "ibv_poll_cq(3), IBV_WC_BIND_MW and IBV_WC_LOCAL_INV",
        "Binds and local invalidations complete with opcodes of their own.";
    requests_behind_a_bind_may_use_it: "IBTA vol. 1, 10.6.7.2.2",
        "What is posted behind the bind is executed behind it.";
    a_zero_based_window_counts_from_its_start: "ibv_bind_mw(3), IBV_ACCESS_ZERO_BASED",
        "Address zero is the window's first byte; the region's addresses are refused.";
    a_region_without_mw_bind_is_refused: "ibv_bind_mw(3), IBV_ACCESS_MW_BIND",
        "A bind to a region that does not allow it completes with MW_BIND_ERR.";
    a_part_outside_the_region_is_refused: "IBTA vol. 1, 10.6.7.2.2",
        "A bind beyond the region completes with MW_BIND_ERR.";
    a_writable_window_needs_a_writable_region: "ibv_bind_mw(3)",
        "Remote write or atomics on a region without local write: MW_BIND_ERR.";
    a_bind_with_an_unknown_key_is_refused: "IBTA vol. 1, 10.6.7.2.2",
        "Neither the window's key nor the region's may be made up.";
    a_window_of_another_domain_is_refused: "IBTA vol. 1, 10.6.7.2.2",
        "Window, region and queue pair belong to one protection domain.";
    a_failed_bind_breaks_the_queue_pair: "IBTA vol. 1, 10.3.1.7",
        "It goes to ERR, and what is behind the bind is flushed.";
    type_1_is_reached_through_any_queue_pair: "IBTA vol. 1, 10.6.7.2.4",
        "A window of type 1 belongs to the protection domain.";
    type_1_is_bound_again_at_will: "ibv_bind_mw(3)",
        "A new bind replaces the old one, whose key is dead.";
    type_1_of_length_zero_is_unbound: "ibv_bind_mw(3)",
        "A bind of no bytes takes the window's key away.";
    type_2_is_reached_through_its_queue_pair: "IBTA vol. 1, 10.6.7.2.4",
        "A window of type 2 belongs to the queue pair that bound it.";
    type_2_is_not_bound_twice: "IBTA vol. 1, 10.6.7.2.2",
        "A bound window of type 2 has to be taken away before it is bound again.";
    type_2_is_bound_again_after_invalidation: "IBTA vol. 1, 10.6.7.2.2",
        "After a local invalidation it takes another bind, under another key.";
    a_bind_names_the_present_key: "IBTA vol. 1, 10.6.7.2.2",
        "A bind that names a key of the window that is not its present one is refused.";
    the_wrong_type_is_refused: "ibv_bind_mw(3); ibv_post_send(3), IBV_WR_BIND_MW",
        "Windows of type 1 are not bound by type 2's requests, nor the other way round.";
}

fn a_bound_window_opens_its_part(p: &Provider) {
    for kind in BOTH {
        let mut w = World::new(p);
        let access = WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
        let window = w.bound(kind, access);
        for offset in [0, 1, i64::from(LENGTH) - 1] {
            assert_eq!(
                w.write(w.at(offset), window.rkey()),
                OK,
                "{kind:?} {offset}"
            );
            let mut byte = [0];
            w.region.read(PART + offset as usize, &mut byte);
            assert_eq!(byte, [7]);
        }
        let remote = Remote {
            addr: w.at(0),
            rkey: window.rkey(),
        };
        w.b.go(2, RdmaRead { remote }, w.b.region.sge(0, LENGTH));
        completes(&mut w.b, 2, OK);
        w.b.go(
            3,
            AtomicFetchAndAdd { remote, add: 1 },
            w.b.region.sge(0, 8),
        );
        completes(&mut w.b, 3, OK);
    }
}

fn a_window_opens_no_more_than_its_part(p: &Provider) {
    for kind in BOTH {
        for offset in [-1, i64::from(LENGTH)] {
            let mut w = World::new(p);
            let window = w.bound(kind, WRITE);
            assert_eq!(w.write(w.at(offset), window.rkey()), DENIED);
        }
    }
}

fn a_window_opens_no_more_than_it_says(p: &Provider) {
    for kind in BOTH {
        let mut w = World::new(p);
        let window = w.bound(kind, AccessFlags::REMOTE_READ);
        assert_eq!(w.write(w.at(0), window.rkey()), DENIED);
    }
}

fn a_window_narrows_what_a_closed_region_is(p: &Provider) {
    let mut w = World::new(p);
    let closed = w.region.remote(PART);
    assert_eq!(w.write(closed.addr, closed.rkey), DENIED);
    let window = w.bound(MwType::Type1, WRITE);
    assert_eq!(w.write(w.at(0), window.rkey()), OK);
}

fn an_unbound_window_opens_nothing(p: &Provider) {
    for kind in BOTH {
        let mut w = World::new(p);
        let window = w.window(kind);
        assert_eq!(w.write(w.at(0), window.rkey()), DENIED);
    }
}

fn a_bind_completes_as_one(p: &Provider) {
    let mut w = World::new(p);
    let mut window = w.window(MwType::Type2);
    let bind = window.bind_wr(&w.info(WRITE));
    w.a.go(1, bind, NoPayload);
    w.a.go(
        2,
        LocalInv {
            rkey: window.rkey(),
        },
        NoPayload,
    );
    for (wr_id, opcode) in [(1, WcOpcode::BindMw), (2, WcOpcode::LocalInv)] {
        let done = w.a.wait();
        assert_eq!(done.wr_id, wr_id);
        assert_eq!(done.result.expect("executed").opcode, opcode);
    }
}

fn requests_behind_a_bind_may_use_it(p: &Provider) {
    let mut w = World::new(p);
    w.b.receive(70, &[w.b.region.sge(0, 64)]);
    let mut window = w.window(MwType::Type2);
    let bind = window.bind_wr(&w.info(WRITE));
    w.a.post(1, bind, NoPayload, SIGNALED).unwrap();
    w.a.post(2, Send {}, Inline(&window.rkey().to_ne_bytes()), SIGNALED)
        .unwrap();
    w.a.qp.sq().ring();
    completes(&mut w.b, 70, OK);
    // The peer knows the key: it is open by now.
    assert_eq!(w.write(w.at(0), window.rkey()), OK);
}

fn a_zero_based_window_counts_from_its_start(p: &Provider) {
    for kind in BOTH {
        let mut w = World::new(p);
        let window = w.bound(kind, WRITE | AccessFlags::ZERO_BASED);
        assert_eq!(w.write(u64::from(LENGTH) - 1, window.rkey()), OK);
        let mut byte = [0];
        w.region.read(PART + LENGTH as usize - 1, &mut byte);
        assert_eq!(byte, [7]);
        assert_eq!(w.write(w.at(0), window.rkey()), DENIED);
        let window = w.bound(kind, WRITE | AccessFlags::ZERO_BASED);
        assert_eq!(w.write(u64::from(LENGTH), window.rkey()), DENIED);
    }
}

fn a_region_without_mw_bind_is_refused(p: &Provider) {
    refused(p, ALL_BUT_MW, |_, _| {});
}

fn a_part_outside_the_region_is_refused(p: &Provider) {
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND;
    refused(p, access, |info, w| info.addr = w.at(-1 - PART as i64));
    refused(p, access, |info, _| info.length = 4097 - PART as u32);
}

fn a_writable_window_needs_a_writable_region(p: &Provider) {
    refused(p, AccessFlags::MW_BIND, |_, _| {});
    refused(p, AccessFlags::MW_BIND, |info, _| {
        info.access = AccessFlags::REMOTE_ATOMIC.bits();
    });
    let mut w = World::with(p, AccessFlags::MW_BIND);
    w.bound(MwType::Type2, AccessFlags::REMOTE_READ);
}

fn a_bind_with_an_unknown_key_is_refused(p: &Provider) {
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND;
    refused(p, access, |info, _| info.lkey ^= 0x100);
    let mut w = World::new(p);
    let mut bind = w.window(MwType::Type2).bind_wr(&w.info(WRITE));
    bind.mw_rkey ^= 0x1000;
    bind.new_rkey ^= 0x1000;
    w.a.go(1, bind, NoPayload);
    completes(&mut w.a, 1, NOT_BOUND);
}

fn a_window_of_another_domain_is_refused(p: &Provider) {
    let mut w = World::new(p);
    let other = w.a.qp.pd().device().alloc_pd();
    let mut window = other.alloc_mw(MwType::Type2).expect("a window");
    let info = w.info(WRITE);
    w.bind_to(&mut window, &info, NOT_BOUND);
    w.again();
    let foreign = region_with(&other, 4096, ALL | AccessFlags::MW_BIND);
    let part = foreign.sge(PART, LENGTH);
    let info = BindMwInfo {
        lkey: part.lkey,
        addr: part.addr,
        ..info
    };
    let mut window = w.window(MwType::Type2);
    w.bind_to(&mut window, &info, NOT_BOUND);
    let mut window = other.alloc_mw(MwType::Type1).expect("a window");
    let refused = window.bind(&mut w.a.qp, 1, (), &info, SIGNALED);
    assert!(matches!(refused, Err(Error::Foreign { .. })), "{refused:?}");
}

fn a_failed_bind_breaks_the_queue_pair(p: &Provider) {
    let mut w = World::with(p, AccessFlags::LOCAL_WRITE);
    let bind = w.window(MwType::Type2).bind_wr(&w.info(WRITE));
    w.a.post(1, bind, NoPayload, SIGNALED).unwrap();
    w.a.post(2, Send {}, NoPayload, SIGNALED).unwrap();
    w.a.qp.sq().ring();
    completes(&mut w.a, 1, NOT_BOUND);
    completes(&mut w.a, 2, WcStatus::WrFlushErr);
    assert_eq!(w.a.qp.state(), QpState::Err);
}

fn type_1_is_reached_through_any_queue_pair(p: &Provider) {
    let mut w = World::new(p);
    let window = w.bound(MwType::Type1, WRITE);
    assert_eq!(through_another(&w, window.rkey()), OK);
}

fn type_1_is_bound_again_at_will(p: &Provider) {
    let mut w = World::new(p);
    let mut window = w.window(MwType::Type1);
    let mut keys = Vec::new();
    for _ in 0..5 {
        let info = w.info(WRITE);
        window
            .bind(&mut w.a.qp, 1, (), &info, SIGNALED)
            .expect("room");
        w.a.qp.sq().ring();
        completes(&mut w.a, 1, OK);
        assert_eq!(w.write(w.at(0), window.rkey()), OK);
        keys.push(window.rkey());
    }
    assert!(keys.windows(2).all(|pair| pair[0] != pair[1]));
    for old in &keys[..4] {
        assert_eq!(w.write(w.at(0), *old), DENIED);
    }
    assert_eq!(w.write(w.at(0), window.rkey()), OK);
}

fn type_1_of_length_zero_is_unbound(p: &Provider) {
    let mut w = World::new(p);
    let mut window = w.bound(MwType::Type1, WRITE);
    let old = window.rkey();
    let nothing = BindMwInfo {
        length: 0,
        ..w.info(WRITE)
    };
    window
        .bind(&mut w.a.qp, 1, (), &nothing, SIGNALED)
        .expect("room");
    w.a.qp.sq().ring();
    completes(&mut w.a, 1, OK);
    assert_eq!(w.write(w.at(0), old), DENIED);
    assert_eq!(w.write(w.at(0), window.rkey()), DENIED);
}

fn type_2_is_reached_through_its_queue_pair(p: &Provider) {
    let mut w = World::new(p);
    let window = w.bound(MwType::Type2, WRITE);
    assert_eq!(w.write(w.at(0), window.rkey()), OK);
    assert_eq!(through_another(&w, window.rkey()), DENIED);
}

fn type_2_is_not_bound_twice(p: &Provider) {
    let mut w = World::new(p);
    let mut window = w.bound(MwType::Type2, WRITE);
    let info = w.info(WRITE);
    w.bind_to(&mut window, &info, NOT_BOUND);
}

fn type_2_is_bound_again_after_invalidation(p: &Provider) {
    let mut w = World::new(p);
    let mut window = w.bound(MwType::Type2, WRITE);
    for _ in 0..300 {
        let old = window.rkey();
        w.a.go(2, LocalInv { rkey: old }, NoPayload);
        completes(&mut w.a, 2, OK);
        let info = w.info(WRITE);
        w.bind_to(&mut window, &info, OK);
        assert_ne!(window.rkey(), old);
        assert_eq!(w.write(w.at(0), window.rkey()), OK);
    }
}

fn a_bind_names_the_present_key(p: &Provider) {
    let mut w = World::new(p);
    let mut bind = w.window(MwType::Type2).bind_wr(&w.info(WRITE));
    bind.mw_rkey ^= 1;
    w.a.go(1, bind, NoPayload);
    completes(&mut w.a, 1, NOT_BOUND);
}

fn the_wrong_type_is_refused(p: &Provider) {
    let mut w = World::new(p);
    let mut window = w.window(MwType::Type2);
    let (info, before) = (w.info(WRITE), window.rkey());
    let refused = window.bind(&mut w.a.qp, 1, (), &info, SIGNALED);
    assert!(matches!(refused, Err(Error::MwType { .. })), "{refused:?}");
    assert_eq!(window.rkey(), before);
    let bind = w.window(MwType::Type1).bind_wr(&info);
    w.a.go(1, bind, NoPayload);
    completes(&mut w.a, 1, NOT_BOUND);
    w.again();
    let window = w.bound(MwType::Type1, WRITE);
    let rkey = window.rkey();
    w.a.go(1, LocalInv { rkey }, NoPayload);
    completes(&mut w.a, 1, NOT_BOUND);
    w.again();
    assert_eq!(w.write(w.at(0), rkey), OK);
}
