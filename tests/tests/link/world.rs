//! Two links on one inline device whose clock moves only when it is advanced, and a log of what each
//! reported.

use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::fault::plan::Limits;
use bellwire::link::{Link, LinkCompletion, LinkInit, LinkState, pair};
use bellwire::wqe::{Operation, Rc, Supports};
use bellwire::wr::{Remote, SendFlags};
use bellwire::{ClassLayout, ConnectAttr, Device, Pd, QpInit, Region, Slab};
use bellwire_tests::fixture::{SIGNALED, region, slab, virtual_device};
use std::time::Duration;

pub const BLOCK: u32 = 256;

/// What was reported of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    pub wr_id: u64,
    pub recv: bool,
    pub outcome: Outcome,
    pub retired: u32,
    /// The first eight bytes of its block.
    pub word: Option<u64>,
    /// Bytes received.
    pub length: Option<u32>,
}

/// One end.
pub struct End {
    pub link: Link,
    pub slab: Slab,
    pub region: Region,
    pub log: Vec<Line>,
    pub posted: u32,
}

/// How links are made here: a poll that finds nothing looks at everything.
pub fn init() -> LinkInit {
    LinkInit {
        qp: QpInit {
            max_send_wr: 16,
            max_recv_wr: 16,
            ..QpInit::default()
        },
        connect: ConnectAttr {
            timeout: 10,
            retry_cnt: 2,
            rnr_retry: 3,
            ..ConnectAttr::default()
        },
        limits: Limits {
            settle: Duration::ZERO,
            ..Limits::default()
        },
        check_every: 1,
        ..LinkInit::default()
    }
}

impl End {
    pub fn new(pd: &Pd, init: LinkInit, exchange: impl bellwire::link::Exchange + 'static) -> Self {
        let layout = [ClassLayout {
            size: BLOCK,
            count: 64,
        }];
        Self {
            link: Link::new(pd, init, exchange).unwrap(),
            slab: slab(pd, &layout),
            region: region(pd, 4096),
            log: Vec::new(),
            posted: 0,
        }
    }

    pub fn poll(&mut self) -> usize {
        let log = &mut self.log;
        self.link.poll(64, |completion| log.push(line(completion)))
    }

    pub fn state(&self) -> LinkState {
        self.link.state()
    }

    /// Posts receives of these identifiers.
    pub fn receive(&mut self, wr_ids: impl IntoIterator<Item = u64>) {
        for wr_id in wr_ids {
            let block = self.slab.take(BLOCK).unwrap();
            self.link.post_recv_block(wr_id, block).unwrap();
            self.posted += 1;
        }
        self.link.ring_recv();
    }

    /// Stages a request on a block that begins with its identifier.
    pub fn stage<O: Operation>(
        &mut self,
        wr_id: u64,
        operation: O,
        flags: SendFlags,
        replay: Replay,
    ) where
        Rc: Supports<O>,
    {
        let mut block = self.slab.take(BLOCK).unwrap();
        block.as_mut_slice()[..8].copy_from_slice(&wr_id.to_le_bytes());
        self.link
            .post_block(wr_id, operation, block, BLOCK, flags, replay)
            .unwrap();
        self.posted += 1;
    }

    /// Posts a signalled request.
    pub fn go<O: Operation>(&mut self, wr_id: u64, operation: O, replay: Replay)
    where
        Rc: Supports<O>,
    {
        self.stage(wr_id, operation, SIGNALED, replay);
        self.link.ring();
    }

    /// Memory that the peer may write to.
    pub fn memory(&mut self) -> Remote {
        let mr = self.region.mr();
        Remote {
            addr: mr.addr(),
            rkey: mr.rkey(),
        }
    }

    /// Outcomes of its sends, in the order in which they were reported.
    pub fn sends(&self) -> Vec<(u64, Outcome)> {
        let sends = self.log.iter().filter(|line| !line.recv);
        sends.map(|line| (line.wr_id, line.outcome)).collect()
    }

    /// Outcomes of its receives, and the words that came.
    pub fn received(&self) -> Vec<(u64, Outcome, u64)> {
        let receives = self.log.iter().filter(|line| line.recv);
        let received = receives.map(|line| (line.wr_id, line.outcome, line.word.unwrap_or(0)));
        received.collect()
    }

    /// Requests that were reported, unsignalled ones included.
    pub fn reported(&self) -> u32 {
        self.log.iter().map(|line| line.retired).sum()
    }
}

pub fn line(completion: LinkCompletion) -> Line {
    let word = completion.block.as_ref().map(|block| {
        let word = block.as_slice()[..8].try_into().unwrap();
        u64::from_le_bytes(word)
    });
    Line {
        wr_id: completion.wr_id,
        recv: completion.is_recv(),
        outcome: completion.outcome,
        retired: completion.retired,
        word,
        length: completion.success.and_then(|success| success.byte_len()),
    }
}

pub struct World {
    pub device: Device,
    pub a: End,
    pub b: End,
}

impl World {
    /// Two links that are not connected yet.
    pub fn unconnected(init: &LinkInit) -> Self {
        let device = virtual_device(1);
        let pd = device.alloc_pd();
        let (first, second) = pair();
        Self {
            a: End::new(&pd, init.clone(), first),
            b: End::new(&pd, init.clone(), second),
            device,
        }
    }

    /// Two links that are connected.
    pub fn with(init: &LinkInit) -> Self {
        let mut world = Self::unconnected(init);
        world.settle();
        assert_eq!(world.states(), [LinkState::Ready; 2]);
        world
    }

    pub fn new() -> Self {
        Self::with(&init())
    }

    pub fn states(&self) -> [LinkState; 2] {
        [self.a.state(), self.b.state()]
    }

    /// Polls both ends, by turns, until nothing more happens, at the present time.
    pub fn poll(&mut self) {
        for _ in 0..32 {
            self.a.poll();
            self.b.poll();
        }
    }

    /// Polls both, and moves the clock on, until neither recovers.
    pub fn settle(&mut self) {
        for _ in 0..100_000 {
            self.poll();
            if !self.states().contains(&LinkState::Recovering) {
                return;
            }
            self.device
                .as_soft()
                .unwrap()
                .advance(Duration::from_millis(5));
        }
        panic!("neither end nor recovery: {:?}", self.states());
    }

    /// As [`settle`](Self::settle), of the first end.
    pub fn settle_a(&mut self) {
        for _ in 0..100_000 {
            self.poll();
            if self.a.state() != LinkState::Recovering {
                return;
            }
            self.device
                .as_soft()
                .unwrap()
                .advance(Duration::from_millis(5));
        }
        panic!("neither end nor recovery: {:?}", self.states());
    }

    /// A message goes each way, and comes.
    pub fn talk(&mut self) {
        use bellwire::wqe::Send;
        let (a, b) = (self.a.log.len(), self.b.log.len());
        self.a.receive([900]);
        self.b.receive([900]);
        self.a.go(901, Send {}, Replay::Surface);
        self.b.go(902, Send {}, Replay::Surface);
        self.poll();
        for (end, from) in [(&self.a, a), (&self.b, b)] {
            let new = &end.log[from..];
            assert!(
                new.len() >= 2 && new.iter().all(|line| line.outcome == Outcome::Done),
                "{new:?}"
            );
        }
    }

    /// Everything that was posted has been reported, but so many receives at each end; all blocks but
    /// theirs are back.
    pub fn all_reported(&self, receives: [u32; 2]) {
        for (end, left) in [&self.a, &self.b].into_iter().zip(receives) {
            assert_eq!(end.reported() + left, end.posted, "{:?}", end.log);
            assert_eq!(end.slab.outstanding(), left as usize);
        }
    }

    /// As [`all_reported`](Self::all_reported), of the second end, without receives.
    pub fn all_reported_at_b(&self) {
        assert_eq!(self.b.reported(), self.b.posted, "{:?}", self.b.log);
        assert_eq!(self.b.slab.outstanding(), 0);
    }
}
