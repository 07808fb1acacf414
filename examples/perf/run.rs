//! Brings a workload, an end of it and a measurement together.

use super::bounce::{Fetches, Messages, Poster, Written};
use super::flood::{Ends, Flood, Sink};
use super::measure::{Latency, Part, Rate, keep_up, latency, rate};
use super::side::{Buffers, Bytes, Layout, MARKS, Receives, Side, Source, Words};
use super::workload::{Measure, Op, Workload};
use anyhow::Result;
use bellwire::Cq;
use bellwire::be::Be32;
use bellwire::connect::ConnInfo;
use bellwire::wqe::{
    AtomicCmpAndSwp, AtomicFetchAndAdd, Operation, Rc, RdmaRead, RdmaWrite, RdmaWriteWithImm,
    SendWithImm, Supports,
};
use bellwire::wr::{Remote, WrOpcode};

/// Immediate data that nobody looks at.
const IMM: u32 = 0x6265_6c6c;

/// Does one end's part of a measurement: that of connected sides, whose peers sent these. The end that
/// leads has figures of it.
///
/// # Errors
/// A request that failed, an end that has gone.
pub fn run<J: Job>(
    job: J,
    part: Part<'_>,
    work: &Workload,
    sides: &mut [Side],
    peers: &[ConnInfo],
) -> Result<Option<J::Figures>> {
    // Inline messages, of which requests carry copies.
    let bytes = MARKS.map(|mark| vec![mark; work.size]);
    let words = Words(MARKS.map(|mark| [mark; 8]));
    let bytes = Bytes([&bytes[0], &bytes[1]]);
    let set = Setting { part, work, peers };
    let imm = Be32::new(IMM);
    macro_rules! send {
        ($method:ident $(, $op:expr)?) => {
            if !work.inline {
                job.$method(set, sides, $($op,)? sources)
            } else if work.size == 8 {
                job.$method(set, sides, $($op,)? |_| words)
            } else {
                job.$method(set, sides, $($op,)? |_| bytes)
            }
        };
    }
    match work.op {
        Op::Write => send!(write),
        Op::WriteImm => send!(message, |remote| RdmaWriteWithImm { remote, imm }),
        Op::Send => send!(message, |_| bellwire::wqe::Send {}),
        Op::SendImm => send!(message, |_| SendWithImm { imm }),
        Op::Read => job.fetch(set, sides, |remote| RdmaRead { remote }),
        // The words are equal at first and differ then: both cost the same.
        Op::CmpSwap => {
            let (compare, swap) = (0, 1);
            job.fetch(set, sides, |remote| AtomicCmpAndSwp {
                remote,
                compare,
                swap,
            })
        }
        Op::FetchAdd => job.fetch(set, sides, |remote| AtomicFetchAndAdd { remote, add: 1 }),
    }
}

/// The messages of a side, in registered memory.
fn sources(side: &Side) -> Buffers {
    // SAFETY: a side's memory outlives its queue pair, and after set-up nobody writes to the sources.
    unsafe { Buffers::new([side.source(0), side.source(1)]) }
}

/// Where the results of a side's READs and atomics go.
fn results(side: &Side) -> Buffers {
    // SAFETY: a side's memory outlives its queue pair, and nobody touches the landing.
    unsafe { Buffers::new([side.landing(); 2]) }
}

/// What a job runs in.
#[derive(Clone, Copy)]
pub struct Setting<'a> {
    part: Part<'a>,
    work: &'a Workload,
    /// Of each side.
    peers: &'a [ConnInfo],
}

impl Setting<'_> {
    /// The peer's memory that the first side works on.
    fn remote(&self, side: &Side) -> Remote {
        self.peers[0].memory.remote(side.layout.inbox())
    }
}

/// A measurement, for each kind of operation, at one of the two ends.
pub trait Job: Copy + Sync {
    /// Its name.
    const MEASURE: Measure;

    /// What comes of it.
    type Figures: Send;

    /// WRITEs: the peer can only see them in its memory.
    fn write<S: Source>(
        self,
        set: Setting<'_>,
        sides: &mut [Side],
        source: impl Fn(&Side) -> S,
    ) -> Result<Option<Self::Figures>>;

    /// Operations that take a receive of the peer.
    fn message<O: Operation, S: Source>(
        self,
        set: Setting<'_>,
        sides: &mut [Side],
        op: impl Fn(Remote) -> O,
        source: impl Fn(&Side) -> S,
    ) -> Result<Option<Self::Figures>>
    where
        Rc: Supports<O>;

    /// Operations that bring data from the peer.
    fn fetch<O: Operation>(
        self,
        set: Setting<'_>,
        sides: &mut [Side],
        op: impl Fn(Remote) -> O,
    ) -> Result<Option<Self::Figures>>
    where
        Rc: Supports<O>;
}

/// Measures how long operations take.
#[derive(Clone, Copy)]
pub struct LatencyJob;

impl Job for LatencyJob {
    const MEASURE: Measure = Measure::Latency;
    type Figures = Latency;

    fn write<S: Source>(
        self,
        set: Setting<'_>,
        sides: &mut [Side],
        source: impl Fn(&Side) -> S,
    ) -> Result<Option<Latency>> {
        let wait = set.part.wait;
        let side = &mut sides[0];
        let (source, remote) = (source(side), set.remote(side));
        let Side {
            end,
            region,
            layout,
        } = side;
        if !end.qp.data_in_order(WrOpcode::RdmaWrite) {
            eprintln!(
                "perf: this device does not promise to place the last bytes of a WRITE last, and the times are until \
                 its last byte: --op write-imm measures until all bytes are there"
            );
        }
        let (sq, every) = (end.qp.sq(), set.work.signal_every);
        let written = Written {
            poster: Poster::new(sq, &mut end.send_cq, source, every, wait),
            op: RdmaWrite { remote },
            word: region.word(layout.inbox_word()),
            turn: 0,
            wait,
        };
        latency(set.part, written, true)
    }

    fn message<O: Operation, S: Source>(
        self,
        set: Setting<'_>,
        sides: &mut [Side],
        op: impl Fn(Remote) -> O,
        source: impl Fn(&Side) -> S,
    ) -> Result<Option<Latency>>
    where
        Rc: Supports<O>,
    {
        let side = &mut sides[0];
        let (source, op) = (source(side), op(set.remote(side)));
        let (poster, receives, cq) = two_way(set, side, source);
        let messages = Messages::new(poster, op, receives, cq, set.work)?;
        latency(set.part, messages, true)
    }

    fn fetch<O: Operation>(
        self,
        set: Setting<'_>,
        sides: &mut [Side],
        op: impl Fn(Remote) -> O,
    ) -> Result<Option<Latency>>
    where
        Rc: Supports<O>,
    {
        let side = &mut sides[0];
        let (source, op) = (results(side), op(set.remote(side)));
        let (sq, every) = (side.end.qp.sq(), set.work.signal_every);
        let poster = Poster::new(sq, &mut side.end.send_cq, source, every, set.part.wait);
        latency(set.part, Fetches { poster, op }, false)
    }
}

/// What an end needs that both sends and receives.
fn two_way<'a, S: Source>(
    set: Setting<'a>,
    side: &'a mut Side,
    source: S,
) -> (Poster<'a, S>, Receives<'a>, &'a mut Cq) {
    let landing = side.landing();
    let end = &mut side.end;
    let (sq, rq) = end.qp.split();
    let (every, wait) = (set.work.signal_every, set.part.wait);
    let poster = Poster::new(sq, &mut end.send_cq, source, every, wait);
    // SAFETY: the side's memory outlives its queue pair, and nobody touches the landing.
    let receives = unsafe { Receives::new(rq, landing) };
    (poster, receives, &mut end.recv_cq)
}

/// Measures how many operations there are in a second.
#[derive(Clone, Copy)]
pub struct RateJob;

/// An end: some of its sides post, and the others take what the peer's post.
fn flood<O: Operation, S: Source>(
    set: Setting<'_>,
    sides: &mut [Side],
    op: impl Fn(Remote) -> O,
    source: impl Fn(&Side) -> S,
    credited: bool,
) -> Result<Option<Rate>>
where
    Rc: Supports<O>,
{
    let Setting { part, work, peers } = set;
    let mut ends = Ends {
        floods: Vec::new(),
        sinks: Vec::new(),
        quiet: Vec::new(),
        wait: part.wait,
    };
    for (index, (side, peer)) in sides.iter_mut().zip(peers).enumerate() {
        // The leader posts on the first ones, the follower, if it posts, on the others.
        let posts = (index < work.queue_pairs as usize) == part.lead.is_some();
        if posts {
            let op = op(peer.memory.remote(side.layout.inbox()));
            let source = source(side);
            let Side { end, region, .. } = side;
            let credit = credited.then(|| region.word(Layout::CREDIT));
            let (sq, cq) = (end.qp.sq(), &mut end.send_cq);
            ends.floods
                .push(Flood::new(sq, cq, source, op, *work, credit));
        } else if credited {
            let credit = peer.memory.remote(Layout::CREDIT);
            let (poster, receives, cq) = two_way(set, side, Words::default());
            ends.sinks
                .push(Sink::new(poster, receives, cq, credit, work)?);
        } else {
            ends.quiet.push(&mut side.end.send_cq);
        }
    }
    let Some(lead) = part.lead else {
        keep_up(part, &mut ends, Ends::run, Ends::idle)?;
        return Ok(None);
    };
    let both_ways = |count| {
        ends.run(count)?;
        if work.bidirectional {
            part.page.until_done(part.wait, || ends.idle())?;
        }
        Ok(())
    };
    rate(part, lead, work, both_ways).map(Some)
}

impl Job for RateJob {
    const MEASURE: Measure = Measure::Rate;
    type Figures = Rate;

    fn write<S: Source>(
        self,
        set: Setting<'_>,
        sides: &mut [Side],
        source: impl Fn(&Side) -> S,
    ) -> Result<Option<Rate>> {
        flood(set, sides, |remote| RdmaWrite { remote }, source, false)
    }

    fn message<O: Operation, S: Source>(
        self,
        set: Setting<'_>,
        sides: &mut [Side],
        op: impl Fn(Remote) -> O,
        source: impl Fn(&Side) -> S,
    ) -> Result<Option<Rate>>
    where
        Rc: Supports<O>,
    {
        flood(set, sides, op, source, true)
    }

    fn fetch<O: Operation>(
        self,
        set: Setting<'_>,
        sides: &mut [Side],
        op: impl Fn(Remote) -> O,
    ) -> Result<Option<Rate>>
    where
        Rc: Supports<O>,
    {
        flood(set, sides, op, results, false)
    }
}
