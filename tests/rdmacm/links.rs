//! Links that find each other by librdmacm, for the first time and again.

use crate::support::*;
use crate::tests;
use bellwire::connect::cm::{Connector, Listener, Retry};
use bellwire::event::EventType;
use bellwire::fault::Fault;
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::memory::Mapping;
use bellwire::recovery::{Exchange, Link, LinkInit, LinkState};
use bellwire::wqe::Send;
use bellwire::{AccessFlags, ClassLayout, Device, Region, Slab};
use bellwire_tests::ends::{ALONE, open};
use bellwire_tests::fixture::{SIGNALED, init, until};
use std::time::Duration;

tests! { links_recover, a_link_whose_peer_goes_ends }

struct End {
    link: Link,
    slab: Slab,
    came: Vec<u8>,
    sent: u64,
}

impl End {
    fn new(device: &Device, exchange: impl Exchange + 'static) -> Self {
        let pd = device.alloc_pd();
        let layout = [ClassLayout {
            size: 64,
            count: 32,
        }];
        let mapping = Mapping::anonymous(Slab::bytes(&layout).expect("it fits"));
        let mapping = mapping.build().expect("memory");
        let region = Region::new(&pd, mapping, AccessFlags::LOCAL_WRITE).expect("a region");
        let init = LinkInit {
            qp: init(),
            ..LinkInit::default()
        };
        let mut end = Self {
            link: Link::new(&pd, init, exchange).expect("a link"),
            slab: Slab::new(region, &layout).expect("it fits"),
            came: Vec::new(),
            sent: 0,
        };
        (0..16).for_each(|_| end.receive());
        end
    }

    fn receive(&mut self) {
        let block = self.slab.take(64).expect("a block");
        self.link.post_recv_block(1, block).expect("room");
        self.link.ring_recv();
    }

    fn poll(&mut self) {
        let (came, sent) = (&mut self.came, &mut self.sent);
        let mut lost = None;
        self.link.poll(16, |told| match (told.outcome, told.block) {
            (Outcome::Done, Some(block)) => came.push(block.as_slice()[0]),
            (Outcome::Done, None) => *sent += 1,
            (outcome, _) => lost = Some(outcome),
        });
        let state = self.link.state();
        assert!(
            lost.is_none(),
            "{lost:?}, {state:?}: {:?}",
            self.link.exchange_error()
        );
    }
}

/// Waits for a peer that has gone as long as all attempts may take: some four seconds.
fn retry() -> Retry {
    Retry {
        step: Duration::from_secs(1),
        attempts: 4,
        ..Retry::default()
    }
}

/// Polls both until they work in an epoch of this number, then sends a message each way.
fn works(a: &mut End, b: &mut End, epoch: u64, byte: u8) {
    until("links that work", || {
        a.poll();
        b.poll();
        [&*a, &*b]
            .iter()
            .all(|end| end.link.state() == LinkState::Ready && end.link.epoch() >= epoch)
    });
    for end in [&mut *a, &mut *b] {
        let posted = end
            .link
            .post_inline(2, Send {}, &[byte], SIGNALED, Replay::IfSafe);
        posted.expect("it works");
        end.link.ring();
    }
    until("messages", || {
        a.poll();
        b.poll();
        [&*a, &*b].iter().all(|end| end.came.last() == Some(&byte))
    });
}

fn pair(listener: &mut Listener) -> (End, End) {
    let device = open(ALONE);
    let peer = address(HERE, listener.port());
    let connector = Connector::new(&device, peer, retry());
    let mut asked = End::new(&device, connector.exchange().expect("a channel"));
    let mut incoming = None;
    until("a link", || {
        asked.poll();
        incoming = listener.accept().expect("a channel");
        incoming.is_some()
    });
    let mut took = End::new(&device, incoming.expect("it came"));
    works(&mut asked, &mut took, 1, 0);
    (asked, took)
}

fn listener() -> Listener {
    let device = open(ALONE);
    Listener::bind(&device, address(HERE, 0), 4, retry()).expect("a free port")
}

/// A fault at either end, or at both.
fn links_recover() {
    let mut listener = listener();
    let (mut asked, mut took) = pair(&mut listener);
    for (round, [first, second]) in (1..).zip([[true, false], [false, true], [true, true]]) {
        let epoch = asked.link.epoch();
        for (end, fails) in [(&mut asked, first), (&mut took, second)] {
            if fails {
                end.link.report(Fault::Event(EventType::QpFatal));
            }
        }
        works(&mut asked, &mut took, epoch + 1, round);
    }
    assert_eq!(asked.came, [0, 1, 2, 3]);
    assert_eq!(took.came, [0, 1, 2, 3]);
    until("the last sends", || {
        asked.poll();
        took.poll();
        (asked.sent, took.sent) == (4, 4)
    });
}

fn a_link_whose_peer_goes_ends() {
    let mut listener = listener();
    let (asked, mut took) = pair(&mut listener);
    drop(asked);
    until("the end", || {
        took.link.poll(16, |_| ());
        matches!(took.link.state(), LinkState::Ended(_))
    });
    let (mut asked, took) = pair(&mut listener);
    drop(took);
    // It asks, and hears from the listener that nobody is there, which somebody has to look after.
    until("the end", || {
        assert!(listener.accept().expect("a channel").is_none());
        asked.link.poll(16, |_| ());
        matches!(asked.link.state(), LinkState::Ended(_))
    });
}
