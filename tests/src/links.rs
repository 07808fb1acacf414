//! Two links that work, for tests of what they cost.

use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::link::{Link, LinkInit, LinkState, Wait, pair};
use bellwire::soft::Mode;
use bellwire::wqe::{Inline, Operation, Payload, Rc, RdmaRead, RdmaWrite, Send, Supports};
use bellwire::wr::SendFlags;
use bellwire::{Pd, Region};

use crate::fixture::{DEADLINE, SIGNALED, device, fabric_name, init, node, region};
use std::time::Instant;

/// A link, and memory opened to everything.
#[derive(Debug)]
pub struct LinkEnd {
    /// The link.
    pub link: Link,
    /// 64 KiB.
    pub region: Region,
}

impl LinkEnd {
    fn new(pd: &Pd, exchange: impl bellwire::link::Exchange + 'static) -> Self {
        let init = LinkInit {
            qp: init(),
            ..LinkInit::default()
        };
        Self {
            link: Link::new(pd, init, exchange).expect("a link"),
            region: region(pd, 1 << 16),
        }
    }

    /// Posts a signalled request.
    fn go<O: Operation, P: Payload>(&mut self, wr_id: u64, operation: O, payload: P)
    where
        Rc: Supports<O>,
    {
        // SAFETY: the keys are those of regions, whose memory is only copied in and out.
        let posted =
            unsafe { (self.link).post(wr_id, operation, payload, SIGNALED, Replay::IfSafe) };
        posted.expect("room in the send queue");
        self.link.ring();
    }

    /// Polls for a request that was executed. How many there are.
    fn poll_one(&mut self, wr_id: u64) -> usize {
        let mut done = 0;
        self.link.poll(1, |completion| {
            let good = completion.wr_id == wr_id && completion.outcome == Outcome::Done;
            done += usize::from(good);
        });
        done
    }

    /// Polls both links until so many requests of each were executed.
    fn polled(&mut self, other: &mut Self, wr_id: u64, count: [usize; 2]) -> bool {
        let (start, mut done) = (Instant::now(), [0; 2]);
        while done != count && start.elapsed() < DEADLINE {
            done[1] += other.poll_one(wr_id);
            done[0] += self.poll_one(wr_id);
        }
        done == count
    }

    /// The next request that is reported; whether it was executed.
    fn next_done(&mut self, wr_id: u64) -> bool {
        let mut good = false;
        // Which a wait finds at once, without sleep.
        let polled = self.link.wait(1, &Wait::default(), |completion| {
            good = completion.wr_id == wr_id && completion.outcome == Outcome::Done;
        });
        good && matches!(polled, Ok(1))
    }
}

/// Two links of an inline device that work.
///
/// # Panics
/// When they do not.
pub fn links() -> (LinkEnd, LinkEnd) {
    let pd = device(Mode::Inline).alloc_pd();
    links_of([&pd, &pd])
}

/// Two links between two nodes of a fabric that work.
///
/// # Panics
/// When they do not.
pub fn links_between() -> (LinkEnd, LinkEnd) {
    let fabric = fabric_name();
    let [here, there] = [(); 2].map(|()| node(&fabric, Mode::Inline).alloc_pd());
    links_of([&here, &there])
}

fn links_of(pds: [&Pd; 2]) -> (LinkEnd, LinkEnd) {
    let (here, there) = pair();
    let (mut a, mut b) = (LinkEnd::new(pds[0], here), LinkEnd::new(pds[1], there));
    let start = Instant::now();
    while [a.link.state(), b.link.state()] != [LinkState::Ready; 2] {
        assert!(start.elapsed() < DEADLINE, "the links do not connect");
        a.link.poll(1, drop);
        b.link.poll(1, drop);
    }
    (a, b)
}

/// Operations by links between two nodes, of which both are polled. Whether each was executed.
///
/// # Panics
/// When one does not end, or there is no room for it.
pub fn operations_between(a: &mut LinkEnd, b: &mut LinkEnd, wr_id: u64) -> bool {
    let remote = b.region.remote(0);
    a.go(wr_id, RdmaWrite { remote }, Inline(&wr_id.to_ne_bytes()));
    let mut good = a.polled(b, wr_id, [1, 0]);
    for length in [8, 3000] {
        let sges = [b.region.sge(64, 4096)];
        // SAFETY: the key is the region's, whose memory is only copied in and out.
        good &= unsafe { b.link.post_recv(wr_id, &sges) }.is_ok();
        b.link.ring_recv();
        a.go(wr_id, Send {}, a.region.sge(0, length));
        // So many polls look after what waits, too.
        let early: usize = (0..300).map(|_| a.poll_one(wr_id)).sum();
        good &= a.polled(b, wr_id, [1 - early, 1]);
    }
    a.go(wr_id, RdmaRead { remote }, a.region.sge(8192, 500));
    good & a.polled(b, wr_id, [1, 0])
}

/// A WRITE, a SEND and a READ, posted, rung and polled, and unsignalled WRITEs; whether all was as it
/// has to be.
pub fn operations(a: &mut LinkEnd, b: &mut LinkEnd, wr_id: u64) -> bool {
    let remote = b.region.remote(0);
    a.go(wr_id, RdmaWrite { remote }, Inline(&wr_id.to_ne_bytes()));
    let mut good = a.next_done(wr_id);
    let sges = [b.region.sge(64, 4096)];
    // SAFETY: the key is the region's, whose memory is only copied in and out.
    good &= unsafe { b.link.post_recv(wr_id, &sges) }.is_ok();
    b.link.ring_recv();
    a.go(wr_id, Send {}, a.region.sge(0, 3000));
    good &= a.next_done(wr_id) && b.next_done(wr_id);
    for at in 0..8 {
        let (write, flags) = (RdmaWrite { remote }, SendFlags::empty());
        good &= (a.link)
            .post_inline(at, write, &[1; 16], flags, Replay::Surface)
            .is_ok();
    }
    a.go(wr_id, RdmaRead { remote }, a.region.sge(8192, 500));
    good & a.next_done(wr_id)
}
