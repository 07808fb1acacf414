//! Memory that a link lends to its peer for one exchange, and the same exchange without that.

use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::fault::plan::Limits;
use bellwire::link::{Link, LinkInit, LinkState, pair};
use bellwire::memory::Mapping;
use bellwire::wqe::{Send, SendWithInv};
use bellwire::wr::{Remote, SendFlags};
use bellwire::{AccessFlags, Block, ClassLayout, Device, Region, Slab};
use std::fmt;
use std::time::Duration;

const BLOCK: u32 = 4096;

/// How the memory of an exchange is lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lending {
    /// It is not: a message, and an answer.
    No,
    /// The peer gives it back with its answer.
    GivenBack,
    /// The program ends the exchange, when it has the answer.
    Ended,
}

/// Two links, of which the first lends blocks to the second.
pub struct Lends {
    a: Link,
    b: Link,
    slab: Slab,
    /// Blocks of the receives at each end.
    places: [Option<Block<'static>>; 2],
}

impl fmt::Debug for Lends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lends").finish_non_exhaustive()
    }
}

impl Lends {
    /// Two links of a device.
    ///
    /// # Panics
    /// When there is no memory, or the device refuses something.
    pub fn on(device: &Device) -> Self {
        let pd = device.alloc_pd();
        let layout = [ClassLayout {
            size: BLOCK,
            count: 16,
        }];
        let bytes = Slab::bytes(&layout).expect("a layout");
        let mapping = Mapping::anonymous(bytes).build().expect("memory");
        let region = Region::new(&pd, mapping, AccessFlags::LOCAL_WRITE).expect("a region");
        let slab = Slab::with_grants(region, &layout).expect("a slab");
        let (here, there) = pair();
        let init = LinkInit {
            limits: Limits {
                settle: Duration::ZERO,
                ..Limits::default()
            },
            ..LinkInit::default()
        };
        let mut lends = Self {
            a: Link::new(&pd, init.clone(), here).expect("a link"),
            b: Link::new(&pd, init, there).expect("a link"),
            places: [(); 2].map(|()| slab.take(BLOCK).ok()),
            slab,
        };
        while [lends.a.state(), lends.b.state()] != [LinkState::Ready; 2] {
            lends.a.poll(1, drop);
            lends.b.poll(1, drop);
        }
        for lending in [Lending::No, Lending::GivenBack, Lending::Ended] {
            lends.exchange(lending);
        }
        lends
    }

    /// One exchange, whose messages have 12 bytes.
    ///
    /// # Panics
    /// When a request fails.
    pub fn exchange(&mut self, lending: Lending) {
        let Self {
            a,
            b,
            slab,
            places: [at_a, at_b],
        } = self;
        for (link, place) in [(&mut *a, &mut *at_a), (&mut *b, &mut *at_b)] {
            let place = place.take().expect("it came back");
            link.post_recv_block(1, place).expect("room");
            link.ring_recv();
        }
        let (none, signaled) = (SendFlags::empty(), SendFlags::SIGNALED);
        let block = slab.take(BLOCK).expect("all are back");
        let mut rkey = 0;
        if lending == Lending::No {
            a.post_inline(2, Send {}, &[7; 12], signaled, Replay::Surface)
                .expect("room");
        } else {
            let grant = slab
                .grant(block, BLOCK, AccessFlags::REMOTE_WRITE)
                .expect("it can be");
            let message = |remote: Remote| {
                rkey = remote.rkey;
                [7; 12]
            };
            a.post_grant(2, grant, Send {}, message, none)
                .expect("room");
        }
        a.ring();
        while at_b.is_none() {
            b.poll(4, |completion| *at_b = completion.block);
        }
        let answer = &[7; 12];
        match lending {
            Lending::GivenBack => {
                b.post_inline(3, SendWithInv { rkey }, answer, signaled, Replay::Surface)
            }
            _ => b.post_inline(3, Send {}, answer, signaled, Replay::Surface),
        }
        .expect("room");
        b.ring();
        let mut over = false;
        let mut ended = lending != Lending::Ended;
        while !(over && at_a.is_some()) {
            a.poll(4, |completion| {
                assert_eq!(completion.outcome, Outcome::Done, "{completion:?}");
                match completion.wr_id {
                    1 => *at_a = completion.block,
                    _ => over = true,
                }
            });
            if !ended && at_a.is_some() {
                a.end_grant(2).expect("it is open");
                ended = true;
            }
        }
        while b.poll(4, drop) == 0 {}
    }
}
