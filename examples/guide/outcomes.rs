//! A fault under a link, and the outcomes of its requests.

use crate::Result;
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::link::{Link, LinkInit, LinkState, pair};
use bellwire::memory::Mapping;
use bellwire::soft::{Fault, Script, Trigger};
use bellwire::wqe::{RdmaWrite, Send};
use bellwire::wr::{Remote, SendFlags};
use bellwire::{AccessFlags, Device, Region};
use std::time::Duration;

pub fn run() -> Result {
    // A device of this chapter alone: faults are injected into it.
    let device = Device::soft(Default::default());
    let pd = device.alloc_pd();
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let log = Region::new(&pd, Mapping::anonymous(4096).build()?, access)?;
    let (here, there) = pair();
    let mut primary = Link::new(&pd, LinkInit::default(), here)?;
    let mut replica = Link::new(&pd, LinkInit::default(), there)?;
    let mut poll = |primary: &mut Link, outcomes: &mut Vec<(u64, Outcome)>| {
        device.progress();
        primary.poll(16, |it| outcomes.push((it.wr_id, it.outcome)));
        replica.poll(16, |_| ());
    };
    let mut outcomes = Vec::new();
    while primary.state() != LinkState::Ready {
        poll(&mut primary, &mut outcomes);
    }

    // ANCHOR: replay
    let record = |index: usize| RdmaWrite {
        remote: log.remote(index * 64),
    };
    let signaled = SendFlags::SIGNALED;
    // Twice is as good as once: the same bytes at the same place.
    primary.post_inline(1, record(0), b"first", signaled, Replay::Anyway)?;
    // Only if it certainly was not executed.
    primary.post_inline(2, record(1), b"second", signaled, Replay::IfSafe)?;
    // A key that is wrong: this request fails, and stops the queue pair.
    let wrong = RdmaWrite {
        remote: Remote { addr: 0, rkey: 1 },
    };
    primary.post_inline(3, wrong, b"third", signaled, Replay::Surface)?;
    primary.ring();
    while outcomes.len() < 3 {
        poll(&mut primary, &mut outcomes);
    }
    // ANCHOR_END: replay
    outcomes.sort_unstable_by_key(|&(wr_id, _)| wr_id);
    println!("{outcomes:?}");
    assert_eq!(outcomes[..2], [(1, Outcome::Done), (2, Outcome::Done)]);
    assert!(matches!(outcomes[2], (3, Outcome::Failed(_))));

    while primary.state() != LinkState::Ready {
        poll(&mut primary, &mut outcomes);
    }
    outcomes.clear();

    // ANCHOR: inject
    let soft = device.as_soft().expect("the software HCA");
    let qpn = primary.qp_num().expect("it is connected");
    soft.inject(&Script::default().with(Trigger::After(Duration::ZERO), Fault::QpFatal(qpn)))?;
    let epoch = primary.epoch();
    while primary.epoch() == epoch || primary.state() != LinkState::Ready {
        poll(&mut primary, &mut outcomes);
    }
    primary.post_inline(4, record(2), b"fourth", signaled, Replay::Anyway)?;
    primary.ring();
    while outcomes.is_empty() {
        poll(&mut primary, &mut outcomes);
    }
    assert_eq!(outcomes, [(4, Outcome::Done)]);
    // ANCHOR_END: inject

    outcomes.clear();
    // ANCHOR: cancel
    // The peer has posted no receive, so the message waits.
    primary.post_inline(5, Send {}, b"hello", signaled, Replay::IfSafe)?;
    primary.ring();
    primary.cancel(5)?;
    while outcomes.is_empty() {
        poll(&mut primary, &mut outcomes);
    }
    assert_eq!(outcomes, [(5, Outcome::NotExecuted)]);
    // ANCHOR_END: cancel
    Ok(())
}
