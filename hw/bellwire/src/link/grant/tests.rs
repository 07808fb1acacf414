use super::super::handle::{Link, LinkState};
use super::super::init::LinkInit;
use super::super::member::StateOwner;
use super::super::pair;
use super::post::BIND_BLOCKS;
use super::table::{Grants, Key};
use crate::{ClassLayout, Device, Region, Slab};
use bellwire_core::access::AccessFlags;
use bellwire_core::fault::outcome::{Outcome, Replay};
use bellwire_core::wqe::{RdmaWrite, Send};
use bellwire_core::wr::{Remote, SendFlags, WcStatus};
use bellwire_memory::Mapping;

const LENGTH: u32 = 4096;

struct Pair {
    a: Link,
    b: Link,
    outcomes: Vec<(u64, Outcome)>,
    /// Dropped after the links, which have blocks.
    slab: Slab,
}

impl Pair {
    fn new() -> Self {
        let pd = Device::soft(Default::default()).alloc_pd();
        let layout = [ClassLayout {
            size: LENGTH,
            count: 8,
        }];
        let mapping = Mapping::anonymous(Slab::bytes(&layout).unwrap());
        let region = Region::new(&pd, mapping.build().unwrap(), AccessFlags::LOCAL_WRITE).unwrap();
        let slab = Slab::with_grants(region, &layout).unwrap();
        let (here, there) = pair();
        let init = LinkInit {
            check_every: 1,
            ..LinkInit::default()
        };
        let mut pair = Self {
            a: Link::new(&pd, init.clone(), here).unwrap(),
            b: Link::new(&pd, init, there).unwrap(),
            outcomes: Vec::new(),
            slab,
        };
        pair.settle();
        pair
    }

    fn poll(&mut self) {
        let outcomes = &mut self.outcomes;
        for link in [&mut self.a, &mut self.b] {
            link.poll(64, |one| outcomes.push((one.wr_id, one.outcome)));
        }
    }

    /// Until neither recovers.
    fn settle(&mut self) {
        while [self.a.state(), self.b.state()] != [LinkState::Ready; 2] {
            self.poll();
            std::thread::yield_now();
        }
    }

    fn grants(&mut self) -> &mut Grants {
        let StateOwner::Here(state) = &mut self.a.member.recovery else {
            panic!("a thread has it");
        };
        state.grants.get_or_insert_with(|| Box::new(Grants::new()))
    }

    fn lend(&mut self, wr_id: u64) -> Remote {
        let block = self.slab.take(LENGTH).unwrap();
        let grant = self
            .slab
            .grant(block, LENGTH, AccessFlags::REMOTE_WRITE)
            .unwrap();
        let receive = self.slab.take(LENGTH).unwrap();
        self.b.post_recv_block(wr_id, receive).unwrap();
        self.b.ring_recv();
        let mut at = Remote::default();
        let message = |remote| {
            at = remote;
            [0; 8]
        };
        (self.a)
            .post_grant(wr_id, grant, Send {}, message, SendFlags::empty())
            .unwrap();
        self.a.ring();
        at
    }

    fn write(&mut self, wr_id: u64, remote: Remote) -> Outcome {
        let write = RdmaWrite { remote };
        let flags = SendFlags::SIGNALED;
        (self.b)
            .post_inline(wr_id, write, b"value", flags, Replay::Surface)
            .unwrap();
        self.b.ring();
        loop {
            self.poll();
            if let Some(&(_, outcome)) = self.outcomes.iter().find(|(id, _)| *id == wr_id) {
                return outcome;
            }
        }
    }
}

/// A device without windows: each grant has a registration of its own.
#[test]
fn without_windows_the_memory_is_registered() {
    let mut pair = Pair::new();
    pair.grants().registers = true;
    for round in 0..3 {
        let (request, write, late) = (10 * round, 10 * round + 1, 10 * round + 2);
        let remote = pair.lend(request);
        let registered = matches!(pair.grants().slots[0].key, Some(Key::Registration(_)));
        assert!(registered);
        assert_eq!(pair.write(write, remote), Outcome::Done);
        pair.outcomes.clear();
        pair.a.end_grant(request).unwrap();
        pair.poll();
        assert_eq!(pair.outcomes, [(request, Outcome::Done)]);
        assert!(pair.grants().slots[0].key.is_none());
        let denied = Outcome::Failed(WcStatus::RemAccessErr);
        assert_eq!(pair.write(late, remote), denied);
        pair.settle();
    }
    // One that is not answered ends with the link.
    pair.lend(100);
    pair.poll();
    pair.outcomes.clear();
    pair.a.close(std::time::Duration::ZERO);
    while !matches!(pair.a.state(), LinkState::Ended(_)) {
        pair.poll();
    }
    assert!(pair.outcomes.iter().any(|(id, _)| *id == 100));
    let Pair { slab, a, b, .. } = pair;
    drop((a, b));
    assert_eq!(slab.outstanding(), 0);
}

/// No room for an invalidation: the window is destroyed, and the next grant has another.
#[test]
fn a_full_queue_does_not_delay_a_revocation() {
    let mut pair = Pair::new();
    let remote = pair.lend(1);
    while pair.outcomes.is_empty() {
        pair.poll();
    }
    pair.outcomes.clear();
    // The receive is reported; the request waits. Staged, and not rung.
    let flags = SendFlags::empty();
    while (pair.a)
        .post_inline(2, Send {}, b"", flags, Replay::Surface)
        .is_ok()
    {}
    pair.a.end_grant(1).unwrap();
    assert!(pair.grants().slots[0].key.is_none());
    pair.poll();
    assert_eq!(pair.outcomes, [(1, Outcome::Done)]);
    let denied = Outcome::Failed(WcStatus::RemAccessErr);
    assert_eq!(pair.write(3, remote), denied);
}

#[test]
fn a_bind_takes_so_many_blocks() {
    let mut pair = Pair::new();
    let free = |link: &mut Link| link.member.active.as_mut().unwrap().qp.sq().free_blocks();
    let before = free(&mut pair.a);
    let block = pair.slab.take(LENGTH).unwrap();
    let grant = pair
        .slab
        .grant(block, LENGTH, AccessFlags::REMOTE_WRITE)
        .unwrap();
    let message = |_| [0; 0];
    (pair.a)
        .post_grant(1, grant, Send {}, message, SendFlags::empty())
        .unwrap();
    assert_eq!(before - free(&mut pair.a), BIND_BLOCKS + 1);
}
