//! Taking a window's key away: by its owner, by its peer, by destruction.

use super::*;
use crate::rule::rules;

rules! {
    "windows::taking_away", "Local and remote invalidation, and what goes with windows, regions and queue pairs.", needs [Rc, MemoryWindows];
    local_inv_takes_the_key_away: "IBTA vol. 1, 10.6.5",
        "After LOCAL_INV the key reaches nothing.";
    local_inv_of_nothing_fails: "IBTA vol. 1, 10.6.5",
        "LOCAL_INV of a key that is no bound window's fails as a memory operation.";
    local_inv_by_another_queue_pair_fails: "IBTA vol. 1, 10.6.5",
        "A window of type 2 is taken away by its own queue pair only.";
    send_with_inv_takes_the_key_away: "IBTA vol. 1, 9.4.1.1.1",
        "The receive reports which key the peer's SEND_WITH_INV took away, and it is dead by then.";
    send_with_inv_waits_for_a_receive: "IBTA vol. 1, 9.7.5.2.8",
        "Without a receive nothing is taken away yet.";
    send_with_inv_of_nothing_fails: "IBTA vol. 1, 9.9.6.3",
        "A key that cannot be taken away: an error is reported on both sides, and both go to ERR.";
    a_destroyed_queue_pair_leaves_its_windows: "IBTA vol. 1, 10.6.7.2",
        "What it had bound of type 2 is unbound, and is bound by others.";
    a_dropped_window_opens_nothing: "ibv_dealloc_mw(3)",
        "When the window is gone, so is its key.";
    a_region_with_windows_stays: "ibv_dereg_mr(3)",
        "A region is not deregistered while windows are bound to it.";
    a_dropped_region_takes_its_windows: "ibv_dereg_mr(3)",
        "Dropping the region takes the keys of its windows away first.";
    nothing_lands_behind_an_invalidation: "IBTA vol. 1, 10.6.5",
        "Once the invalidation has completed, no peer's WRITE under that key lands any more.";
}

fn local_inv_takes_the_key_away(p: &Provider) {
    let mut w = World::new(p);
    let window = w.bound(MwType::Type2, WRITE);
    w.a.go(
        2,
        LocalInv {
            rkey: window.rkey(),
        },
        NoPayload,
    );
    completes(&mut w.a, 2, OK);
    assert_eq!(w.write(w.at(0), window.rkey()), DENIED);
}

fn local_inv_of_nothing_fails(p: &Provider) {
    let mut w = World::new(p);
    let unbound = w.window(MwType::Type2);
    let bound = w.bound(MwType::Type2, WRITE);
    let region = w.region.mr().rkey();
    for rkey in [
        unbound.rkey(),
        bound.rkey() ^ 1,
        bound.rkey() ^ 0x100,
        region,
        0,
    ] {
        w.a.go(2, LocalInv { rkey }, NoPayload);
        completes(&mut w.a, 2, NOT_BOUND);
        w.again();
    }
    assert_eq!(w.write(w.at(0), bound.rkey()), OK);
}

fn local_inv_by_another_queue_pair_fails(p: &Provider) {
    let mut w = World::new(p);
    let window = w.bound(MwType::Type2, WRITE);
    let (mut other, _peer) = others(&w);
    other.go(
        2,
        LocalInv {
            rkey: window.rkey(),
        },
        NoPayload,
    );
    completes(&mut other, 2, NOT_BOUND);
    assert_eq!(w.write(w.at(0), window.rkey()), OK);
}

fn send_with_inv_takes_the_key_away(p: &Provider) {
    let mut w = World::new(p);
    let window = w.bound(MwType::Type2, WRITE);
    w.a.receive(70, &[w.a.region.sge(0, 64)]);
    let rkey = window.rkey();
    w.b.go(2, SendWithInv { rkey }, Inline(b"done with it"));
    completes(&mut w.b, 2, OK);
    let done = w.a.wait();
    assert_eq!(done.wr_id, 70);
    let done = done.result.expect("received");
    assert_eq!(done.imm(), Imm::Invalidated(rkey));
    assert_eq!(done.byte_len(), Some(12));
    let mut bytes = [0; 12];
    w.a.region.read(0, &mut bytes);
    assert_eq!(&bytes, b"done with it");
    assert_eq!(w.write(w.at(0), rkey), DENIED);
}

fn send_with_inv_waits_for_a_receive(p: &Provider) {
    let mut w = World::new(p);
    let window = w.bound(MwType::Type2, WRITE);
    let rkey = window.rkey();
    w.b.go(2, SendWithInv { rkey }, NoPayload);
    w.b.nothing();
    assert_eq!(through_another(&w, rkey), DENIED);
    w.a.receive(70, &[]);
    completes(&mut w.b, 2, OK);
    completes(&mut w.a, 70, OK);
}

fn send_with_inv_of_nothing_fails(p: &Provider) {
    let mut w = World::new(p);
    w.a.receive(70, &[]);
    let rkey = w.region.mr().rkey();
    w.b.go(2, SendWithInv { rkey }, NoPayload);
    completes(&mut w.b, 2, WcStatus::RemInvReqErr);
    completes(&mut w.a, 70, WcStatus::RemInvReqErr);
    assert_eq!(w.a.qp.state(), QpState::Err);
    assert_eq!(w.b.qp.state(), QpState::Err);
}

fn a_destroyed_queue_pair_leaves_its_windows(p: &Provider) {
    let mut w = World::new(p);
    let (mut other, peer) = others(&w);
    let info = w.info(WRITE);
    let mut window = w.window(MwType::Type2);
    let bind = window.bind_wr(&info);
    other.go(1, bind, NoPayload);
    completes(&mut other, 1, OK);
    let old = window.rkey();
    drop((other, peer));
    assert_eq!(w.write(w.at(0), old), DENIED);
    w.bind_to(&mut window, &info, OK);
    assert_eq!(w.write(w.at(0), window.rkey()), OK);
}

fn a_dropped_window_opens_nothing(p: &Provider) {
    for kind in BOTH {
        let mut w = World::new(p);
        let window = w.bound(kind, WRITE);
        let rkey = window.rkey();
        drop(window);
        assert_eq!(w.write(w.at(0), rkey), DENIED);
    }
}

fn a_region_with_windows_stays(p: &Provider) {
    let mut w = World::new(p);
    let pd = w.a.qp.pd().clone();
    let mut memory = vec![0u8; 256];
    let start = std::ptr::NonNull::from(&mut memory[..]).cast();
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND;
    // SAFETY: the memory outlives the registration, and nobody touches it meanwhile.
    let mr = unsafe { pd.register(start, 256, access) }.expect("a region");
    let info = BindMwInfo {
        lkey: mr.lkey(),
        addr: mr.addr(),
        length: 16,
        access: WRITE.bits(),
    };
    let mut window = w.window(MwType::Type2);
    w.bind_to(&mut window, &info, OK);
    let (mr, error) = mr.deregister().expect_err("a window is bound");
    assert!(
        matches!(error, Error::WindowsBound { windows: 1 }),
        "{error}"
    );
    w.a.go(
        2,
        LocalInv {
            rkey: window.rkey(),
        },
        NoPayload,
    );
    completes(&mut w.a, 2, OK);
    mr.deregister()
        .map_err(|(_, error)| error)
        .expect("no window is bound");
}

fn a_dropped_region_takes_its_windows(p: &Provider) {
    for kind in BOTH {
        let mut w = World::new(p);
        let window = w.bound(kind, WRITE);
        let addr = w.at(0);
        w.region = region_with(w.a.qp.pd(), 4096, AccessFlags::LOCAL_WRITE);
        assert_eq!(w.write(addr, window.rkey()), DENIED);
    }
}

fn nothing_lands_behind_an_invalidation(p: &Provider) {
    // Long enough that one is mostly under way.
    const LONG: usize = 1 << 15;
    let (mut a, _b) = p.pair_with(&impatient());
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND;
    let region = region_with(a.qp.pd(), LONG, access);
    let all = region.sge(0, LONG as u32);
    let info = BindMwInfo {
        lkey: all.lkey,
        addr: all.addr,
        length: all.length,
        access: WRITE.bits(),
    };
    let mut window = a.qp.pd().alloc_mw(MwType::Type1).expect("a window");
    for _ in 0..30 {
        let mut own = End::new(a.qp.pd(), a.quiet(), &init());
        let mut peer = End::new(a.qp.pd(), a.quiet(), &init());
        connect_with(&mut own.qp, &mut peer.qp, &impatient());
        window
            .bind(&mut a.qp, 1, (), &info, SIGNALED)
            .expect("room");
        a.qp.sq().ring();
        completes(&mut a, 1, OK);
        let remote = Remote {
            addr: all.addr,
            rkey: window.rkey(),
        };
        peer.region.write(0, &[7; LONG]);
        let writer = std::thread::spawn(move || {
            loop {
                peer.go(1, RdmaWrite { remote }, peer.region.sge(0, LONG as u32));
                if peer.outcome().1 != OK {
                    return;
                }
            }
        });
        until("a write", || region.word(0).load(Ordering::Acquire) != 0);
        let nothing = BindMwInfo { length: 0, ..info };
        window
            .bind(&mut a.qp, 2, (), &nothing, SIGNALED)
            .expect("room");
        a.qp.sq().ring();
        completes(&mut a, 2, OK);
        region.write(0, &[0; LONG]);
        writer.join().expect("the writer");
        let mut left = vec![0; LONG];
        region.read(0, &mut left);
        assert!(left.iter().all(|&byte| byte == 0), "a late write");
    }
}
