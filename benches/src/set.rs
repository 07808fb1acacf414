//! A set of links that work, and their peers in another set.

use crate::SMALL;
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::link::{LinkId, LinkInit, LinkSet, LinkSetInit, LinkSetSrq, LinkState, pair};
use bellwire::memory::Mapping;
use bellwire::wqe::{RdmaWrite, Send};
use bellwire::wr::SendFlags;
use bellwire::{AccessFlags, ClassLayout, Device, Pd, Region, Slab};
use std::fmt;
use std::hint::black_box;

/// Links that connect at the same time: few enough to do so in time under Valgrind, on a busy machine.
const AT_ONCE: usize = 50;

/// Polls between two checks of a set: more often than by default, so that a run of as many requests has one in it,
/// whatever came before.
const CHECK_EVERY: u32 = 32;

/// Two sets on one inline device, each link of the first connected with one of the second, which receives.
pub struct Sets {
    /// The first, as of a server.
    pub set: LinkSet,
    /// The others' peers.
    pub peers: LinkSet,
    /// Handles in the first, and of the same links' peers in the second.
    ids: Vec<(LinkId, LinkId)>,
    region: Region,
    /// The second receives from a shared receive queue.
    on_srq: bool,
}

impl fmt::Debug for Sets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sets")
            .field("links", &self.ids.len())
            .finish_non_exhaustive()
    }
}

impl Sets {
    /// Sets of `count` links each that work.
    ///
    /// # Panics
    /// When there is no memory.
    pub fn new(count: usize) -> Self {
        let pd = Device::soft(Default::default()).alloc_pd();
        Self::with(count, &pd, None)
    }

    /// The same, and the second set receives from a shared receive queue.
    ///
    /// # Panics
    /// When there is no memory.
    pub fn on_srq(count: usize) -> Self {
        let pd = Device::soft(Default::default()).alloc_pd();
        let layout = [ClassLayout {
            size: 64,
            count: 256,
        }];
        let bytes = Slab::bytes(&layout).expect("a layout");
        let mapping = Mapping::anonymous(bytes).build().expect("memory");
        let region = Region::new(&pd, mapping, AccessFlags::LOCAL_WRITE).expect("a region");
        let srq = LinkSetSrq {
            slab: Slab::new(region, &layout).expect("a slab"),
            length: 64,
            max_held: Some(64),
        };
        Self::with(count, &pd, Some(srq))
    }

    fn with(count: usize, pd: &Pd, srq: Option<LinkSetSrq>) -> Self {
        let mapping = Mapping::anonymous(4096).build().expect("memory");
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let region = Region::new(pd, mapping, access).expect("a region");
        let set_init = LinkSetInit {
            links: count as u32,
            qp: SMALL,
            check_every: CHECK_EVERY,
            ..LinkSetInit::default()
        };
        let set = |init: &LinkSetInit| LinkSet::new(pd, init.clone()).expect("a set");
        let on_srq = srq.is_some();
        let peers_init = LinkSetInit {
            srq,
            ..set_init.clone()
        };
        let init = LinkInit {
            qp: SMALL,
            ..LinkInit::default()
        };
        let mut sets = Self {
            set: set(&set_init),
            peers: set(&peers_init),
            ids: Vec::new(),
            region,
            on_srq,
        };
        while sets.ids.len() < count {
            let joining = AT_ONCE.min(count - sets.ids.len());
            for _ in 0..joining {
                let (here, there) = pair();
                let id = sets.set.join(init.clone(), here).expect("room");
                let peer = sets.peers.join(init.clone(), there).expect("room");
                sets.ids.push((id, peer));
            }
            sets.until_ready(joining);
        }
        // The last messages of the connections are received, and nothing is left to do.
        for _ in 0..64 * (count / 16 + 2) {
            sets.set.poll(1, |_, _| ());
            sets.peers.poll(1, |_, _| ());
        }
        (0..count).for_each(|at| sets.receive(at));
        for at in 0..count {
            // A link's first requests look up what later ones find: the peer and its memory.
            (0..SMALL.max_send_wr).for_each(|_| sets.write(at));
            (0..SMALL.max_recv_wr).for_each(|_| sets.send(at));
        }
        sets
    }

    fn until_ready(&mut self, joining: usize) {
        let mut left = 2 * joining;
        while left != 0 {
            for set in [&mut self.set, &mut self.peers] {
                set.poll(1, |_, _| ());
                while let Some((_, state)) = set.next_change() {
                    assert!(
                        !matches!(state, LinkState::Ended(_)),
                        "it did not connect in time"
                    );
                    left -= usize::from(state == LinkState::Ready);
                }
            }
        }
    }

    /// How many links.
    pub fn count(&self) -> usize {
        self.ids.len()
    }

    fn receive(&mut self, at: usize) {
        if self.on_srq {
            return;
        }
        let sge = self.region.sge(0, 64);
        let mut link = self.peers.link(self.ids[at].1).expect("never removed");
        // SAFETY: the region outlives the link.
        unsafe { link.post_recv(0, &[sge]).expect("room") };
        link.ring_recv();
    }

    /// An inline WRITE of 8 bytes by link `at`, and its completion.
    #[inline(always)]
    pub fn write(&mut self, at: usize) {
        let write = RdmaWrite {
            remote: self.region.remote(0),
        };
        let data: &[u8; 8] = black_box(&[7; 8]);
        if let Ok(mut link) = self.set.link(self.ids[at].0) {
            let _ = link.post_inline(0, write, data, SendFlags::SIGNALED, Replay::IfSafe);
            link.ring();
        }
        Self::take(&mut self.set);
    }

    /// An inline SEND of 8 bytes by link `at`, both completions, and the receive posted again, from a shared
    /// receive queue by a poll.
    #[inline(always)]
    pub fn send(&mut self, at: usize) {
        let data: &[u8; 8] = black_box(&[7; 8]);
        if let Ok(mut link) = self.set.link(self.ids[at].0) {
            let _ = link.post_inline(0, Send {}, data, SendFlags::SIGNALED, Replay::IfSafe);
            link.ring();
        }
        Self::take(&mut self.peers);
        Self::take(&mut self.set);
        self.receive(at);
    }

    #[inline(always)]
    fn take(set: &mut LinkSet) {
        let polled = set.poll(16, |id, completion| {
            assert!(completion.outcome == Outcome::Done);
            black_box((id, completion.wr_id));
        });
        assert_eq!(polled, 1);
    }
}
