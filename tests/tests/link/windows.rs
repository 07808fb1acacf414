//! Memory windows that are bound on a link.

use crate::world::World;
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::link::LinkState;
use bellwire::soft::{Fault, Script, Trigger};
use bellwire::wqe::{BindMwInfo, RdmaWrite};
use bellwire::wr::{MwType, Remote, WcStatus};
use bellwire::{AccessFlags, Mw};
use bellwire_tests::fixture::{SIGNALED, region_with};
use std::time::Duration;

/// `b` binds, and has to hear that it is bound.
fn bind(world: &mut World, wr_id: u64, window: &mut Mw, info: &BindMwInfo) {
    let link = &mut world.b.link;
    link.post_bind(wr_id, window, info, SIGNALED, Replay::Surface)
        .unwrap();
    link.ring();
    world.b.posted += 1;
    world.poll();
    assert_eq!(world.b.sends().last(), Some(&(wr_id, Outcome::Done)));
}

/// `a` writes through the window.
fn write(world: &mut World, wr_id: u64, remote: Remote) -> Outcome {
    world.a.go(wr_id, RdmaWrite { remote }, Replay::Surface);
    world.settle();
    assert_eq!(world.states(), [LinkState::Ready; 2]);
    let last = *world.a.sends().last().unwrap();
    assert_eq!(last.0, wr_id);
    last.1
}

/// A window of type 2 goes with the queue pair, and stays where that is only reset; one of type 1 stays.
#[test]
fn windows_through_a_recovery() {
    for kind in [MwType::Type1, MwType::Type2] {
        let mut world = World::new();
        let pd = world.b.link.pd().unwrap().clone();
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND;
        let region = region_with(&pd, 4096, access);
        let mr = region.mr();
        let info = BindMwInfo {
            lkey: mr.lkey(),
            addr: mr.addr(),
            length: 1024,
            access: AccessFlags::REMOTE_WRITE.bits(),
        };
        let mut window = pd.alloc_mw(kind).unwrap();
        let through = |window: &Mw| Remote {
            addr: info.addr,
            rkey: window.rkey(),
        };
        bind(&mut world, 1, &mut window, &info);
        assert_eq!(write(&mut world, 2, through(&window)), Outcome::Done);

        let link = &world.b.link;
        let reset = Fault::QpFatal(link.qp_num().unwrap());
        let rebuilt = Fault::CqOverrun(link.cqn().unwrap());
        for (wr_id, fault) in [(3, reset), (4, rebuilt)] {
            let script = Script::default().with(Trigger::After(Duration::ZERO), fault);
            world.device.as_soft().unwrap().inject(&script).unwrap();
            world
                .device
                .as_soft()
                .unwrap()
                .advance(Duration::from_nanos(1));
            world.settle();
            let expected = match kind {
                MwType::Type2 if fault == rebuilt => Outcome::Failed(WcStatus::RemAccessErr),
                _ => Outcome::Done,
            };
            assert_eq!(write(&mut world, wr_id, through(&window)), expected);
        }
        // Whatever became of it: another one.
        window = pd.alloc_mw(kind).unwrap();
        bind(&mut world, 5, &mut window, &info);
        assert_eq!(write(&mut world, 6, through(&window)), Outcome::Done);
        world.all_reported([0, 0]);
    }
}
