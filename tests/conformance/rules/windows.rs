//! Memory windows: binding, reaching through them, taking them away.

use crate::provider::Provider;
use crate::rule::rules;
use crate::support::{impatient, told};
use bellwire::queue::Imm;
use bellwire::state::QpState;
use bellwire::wqe::*;
use bellwire::wr::{MwType, Remote, WcOpcode, WcStatus};
use bellwire::{AccessFlags, Error, Mw, Region};
use bellwire_tests::fixture::*;
use std::sync::atomic::Ordering;

rules! {
    "windows", "Memory windows of both types, local and remote invalidation.", needs [Rc, MemoryWindows];
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
    local_inv_takes_the_key_away: "IBTA vol. 1, 10.6.5",
        "After LOCAL_INV the key reaches nothing.";
    local_inv_of_nothing_fails: "IBTA vol. 1, 10.6.5",
        "LOCAL_INV of a key that is no bound window's fails as a memory operation.";
    local_inv_by_another_queue_pair_fails: "IBTA vol. 1, 10.6.5",
        "A window of type 2 is taken away by its own queue pair only.";
    send_with_inv_takes_the_key_away: "IBTA vol. 1, 9.4.1.1.1",
        "The receive tells which key the peer's SEND_WITH_INV took away, and it is dead by then.";
    send_with_inv_waits_for_a_receive: "IBTA vol. 1, 9.7.5.2.8",
        "Without a receive nothing is taken away yet.";
    send_with_inv_of_nothing_fails: "IBTA vol. 1, 9.9.6.3",
        "A key that cannot be taken away: both sides are told, and go to ERR.";
    a_bind_names_the_present_key: "IBTA vol. 1, 10.6.7.2.2",
        "A bind that names a key of the window that is not its present one is refused.";
    a_destroyed_queue_pair_leaves_its_windows: "IBTA vol. 1, 10.6.7.2",
        "What it had bound of type 2 is unbound, and is bound by others.";
    a_dropped_window_opens_nothing: "ibv_dealloc_mw(3)",
        "When the window is gone, so is its key.";
    a_region_with_windows_stays: "ibv_dereg_mr(3)",
        "A region is not deregistered while windows are bound to it.";
    a_dropped_region_takes_its_windows: "ibv_dereg_mr(3)",
        "Dropping the region takes the keys of its windows away first.";
    the_wrong_type_is_refused: "ibv_bind_mw(3); ibv_post_send(3), IBV_WR_BIND_MW",
        "Windows of type 1 are not bound by type 2's requests, nor the other way round.";
    nothing_lands_behind_an_invalidation: "IBTA vol. 1, 10.6.5",
        "Once the invalidation has completed, no peer's WRITE under that key lands any more.";
}

const WRITE: AccessFlags = AccessFlags::REMOTE_WRITE;
const ALL_BUT_MW: AccessFlags = ALL;
const PART: usize = 256;
const LENGTH: u32 = 64;

/// Two connected ends, and a region of the first that windows may be bound to.
struct World {
    a: End,
    b: End,
    region: Region,
}

impl World {
    fn new(p: &Provider) -> Self {
        Self::with(p, AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND)
    }

    fn with(p: &Provider, access: AccessFlags) -> Self {
        let (a, b) = p.pair_with(&impatient());
        let region = region_with(a.qp.pd(), 4096, access);
        Self { a, b, region }
    }

    fn window(&self, kind: MwType) -> Mw {
        self.a.qp.pd().alloc_mw(kind).expect("a window")
    }

    fn info(&self, access: AccessFlags) -> BindMwInfo {
        let part = self.region.sge(PART, LENGTH);
        BindMwInfo {
            lkey: part.lkey,
            addr: part.addr,
            length: part.length,
            access: access.bits(),
        }
    }

    fn bind_to(&mut self, window: &mut Mw, info: &BindMwInfo, status: WcStatus) {
        match window.mw_type() {
            MwType::Type1 => window
                .bind(&mut self.a.qp, 1, (), info, SIGNALED)
                .expect("room"),
            MwType::Type2 => {
                let bind = window.bind_wr(info);
                self.a.post(1, bind, NoPayload, SIGNALED).expect("room");
            }
        }
        self.a.qp.sq().ring();
        told(&mut self.a, 1, status);
    }

    fn bound(&mut self, kind: MwType, access: AccessFlags) -> Mw {
        let mut window = self.window(kind);
        self.bind_to(&mut window, &self.info(access), WcStatus::Success);
        window
    }

    fn at(&self, offset: i64) -> u64 {
        self.region.sge(PART, 0).addr.wrapping_add_signed(offset)
    }

    /// The peer writes one byte.
    fn write(&mut self, addr: u64, rkey: u32) -> WcStatus {
        let remote = Remote { addr, rkey };
        self.b.go(9, RdmaWrite { remote }, Inline(&[7]));
        let (wr_id, status) = self.b.outcome();
        assert_eq!(wr_id, 9);
        if status != WcStatus::Success {
            self.again();
        }
        status
    }

    /// A new life for both.
    fn again(&mut self) {
        self.a.reset();
        self.b.reset();
        connect_with(&mut self.a.qp, &mut self.b.qp, &impatient());
    }
}

const OK: WcStatus = WcStatus::Success;
const DENIED: WcStatus = WcStatus::RemAccessErr;
const NOT_BOUND: WcStatus = WcStatus::MwBindErr;
const BOTH: [MwType; 2] = [MwType::Type1, MwType::Type2];

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
        told(&mut w.b, 2, OK);
        w.b.go(
            3,
            AtomicFetchAndAdd { remote, add: 1 },
            w.b.region.sge(0, 8),
        );
        told(&mut w.b, 3, OK);
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
    told(&mut w.b, 70, OK);
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

fn refused(p: &Provider, region: AccessFlags, change: fn(&mut BindMwInfo, &mut World)) {
    for kind in BOTH {
        let mut w = World::with(p, region);
        let mut info = w.info(WRITE);
        change(&mut info, &mut w);
        let mut window = w.window(kind);
        w.bind_to(&mut window, &info, NOT_BOUND);
        w.again();
        assert_eq!(w.write(w.at(0), window.rkey()), DENIED);
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
    told(&mut w.a, 1, NOT_BOUND);
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
    told(&mut w.a, 1, NOT_BOUND);
    told(&mut w.a, 2, WcStatus::WrFlushErr);
    assert_eq!(w.a.qp.state(), QpState::Err);
}

/// A second queue pair of the first end's domain, and its peer.
fn others(w: &World) -> (End, End) {
    let pd = w.a.qp.pd();
    let (mut a, mut b) = (
        End::new(pd, w.a.quiet(), &init()),
        End::new(pd, w.a.quiet(), &init()),
    );
    connect_with(&mut a.qp, &mut b.qp, &impatient());
    (a, b)
}

fn through_another(w: &World, rkey: u32) -> WcStatus {
    let (_a, mut b) = others(w);
    let remote = Remote {
        addr: w.at(0),
        rkey,
    };
    b.go(1, RdmaWrite { remote }, Inline(&[7]));
    b.outcome().1
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
        told(&mut w.a, 1, OK);
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
    told(&mut w.a, 1, OK);
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
        told(&mut w.a, 2, OK);
        let info = w.info(WRITE);
        w.bind_to(&mut window, &info, OK);
        assert_ne!(window.rkey(), old);
        assert_eq!(w.write(w.at(0), window.rkey()), OK);
    }
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
    told(&mut w.a, 2, OK);
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
        told(&mut w.a, 2, NOT_BOUND);
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
    told(&mut other, 2, NOT_BOUND);
    assert_eq!(w.write(w.at(0), window.rkey()), OK);
}

fn send_with_inv_takes_the_key_away(p: &Provider) {
    let mut w = World::new(p);
    let window = w.bound(MwType::Type2, WRITE);
    w.a.receive(70, &[w.a.region.sge(0, 64)]);
    let rkey = window.rkey();
    w.b.go(2, SendWithInv { rkey }, Inline(b"done with it"));
    told(&mut w.b, 2, OK);
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
    told(&mut w.b, 2, OK);
    told(&mut w.a, 70, OK);
}

fn send_with_inv_of_nothing_fails(p: &Provider) {
    let mut w = World::new(p);
    w.a.receive(70, &[]);
    let rkey = w.region.mr().rkey();
    w.b.go(2, SendWithInv { rkey }, NoPayload);
    told(&mut w.b, 2, WcStatus::RemInvReqErr);
    told(&mut w.a, 70, WcStatus::RemInvReqErr);
    assert_eq!(w.a.qp.state(), QpState::Err);
    assert_eq!(w.b.qp.state(), QpState::Err);
}

fn a_bind_names_the_present_key(p: &Provider) {
    let mut w = World::new(p);
    let mut bind = w.window(MwType::Type2).bind_wr(&w.info(WRITE));
    bind.mw_rkey ^= 1;
    w.a.go(1, bind, NoPayload);
    told(&mut w.a, 1, NOT_BOUND);
}

fn a_destroyed_queue_pair_leaves_its_windows(p: &Provider) {
    let mut w = World::new(p);
    let (mut other, peer) = others(&w);
    let info = w.info(WRITE);
    let mut window = w.window(MwType::Type2);
    let bind = window.bind_wr(&info);
    other.go(1, bind, NoPayload);
    told(&mut other, 1, OK);
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
    told(&mut w.a, 2, OK);
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

fn the_wrong_type_is_refused(p: &Provider) {
    let mut w = World::new(p);
    let mut window = w.window(MwType::Type2);
    let (info, before) = (w.info(WRITE), window.rkey());
    let refused = window.bind(&mut w.a.qp, 1, (), &info, SIGNALED);
    assert!(matches!(refused, Err(Error::MwType { .. })), "{refused:?}");
    assert_eq!(window.rkey(), before);
    let bind = w.window(MwType::Type1).bind_wr(&info);
    w.a.go(1, bind, NoPayload);
    told(&mut w.a, 1, NOT_BOUND);
    w.again();
    let window = w.bound(MwType::Type1, WRITE);
    let rkey = window.rkey();
    w.a.go(1, LocalInv { rkey }, NoPayload);
    told(&mut w.a, 1, NOT_BOUND);
    w.again();
    assert_eq!(w.write(w.at(0), rkey), OK);
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
        told(&mut a, 1, OK);
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
        told(&mut a, 2, OK);
        region.write(0, &[0; LONG]);
        writer.join().expect("the writer");
        let mut left = vec![0; LONG];
        region.read(0, &mut left);
        assert!(left.iter().all(|&byte| byte == 0), "a late write");
    }
}
