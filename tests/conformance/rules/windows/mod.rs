//! Memory windows: binding, reaching through them, taking them away.

mod binding;
mod taking_away;

use crate::provider::Provider;
use crate::rule::Group;
use crate::support::{completes, impatient};
use bellwire::queue::Imm;
use bellwire::state::QpState;
use bellwire::wqe::*;
use bellwire::wr::{MwType, Remote, WcOpcode, WcStatus};
use bellwire::{AccessFlags, Error, Mw, Region};
use bellwire_tests::fixture::*;
use std::sync::atomic::Ordering;

pub fn groups() -> [Group; 2] {
    [binding::group(), taking_away::group()]
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
        completes(&mut self.a, 1, status);
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
