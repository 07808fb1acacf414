//! Brings a workload, an end of it and a measurement together.

use super::bounce::{Fetches, Messages, Poster, Written, look};
use super::flood::{Flood, Sink};
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

/// Immediate data that nobody looks at.
const IMM: u32 = 0x6265_6c6c;

/// Does one end's part of a measurement: a connected side's, whose peer sent this. The end that
/// leads has figures of it.
///
/// # Errors
/// A request that failed, an end that has gone.
pub fn run<J: Job>(
    job: J,
    part: Part<'_>,
    work: &Workload,
    side: &mut Side,
    peer: &ConnInfo,
) -> Result<Option<J::Figures>> {
    // Inline messages, of which requests carry copies.
    let bytes = MARKS.map(|mark| vec![mark; work.size]);
    let words = Words(MARKS.map(|mark| [mark; 8]));
    let bytes = Bytes([&bytes[0], &bytes[1]]);
    let set = Setting { part, work, peer };
    let imm = Be32::new(IMM);
    let remote = peer.memory.remote(side.layout.inbox());
    macro_rules! send {
        ($method:ident, $op:expr) => {{
            let op = $op;
            if !work.inline {
                let sources = sources(side);
                job.$method(set, side, op, sources)
            } else if work.size == 8 {
                job.$method(set, side, op, words)
            } else {
                job.$method(set, side, op, bytes)
            }
        }};
    }
    match work.op {
        Op::Write => send!(write, RdmaWrite { remote }),
        Op::WriteImm => send!(message, RdmaWriteWithImm { remote, imm }),
        Op::Send => send!(message, bellwire::wqe::Send {}),
        Op::SendImm => send!(message, SendWithImm { imm }),
        Op::Read => job.fetch(set, side, RdmaRead { remote }),
        // The words are equal at first and differ then: both cost the same.
        Op::CmpSwap => {
            let (compare, swap) = (0, 1);
            let op = AtomicCmpAndSwp {
                remote,
                compare,
                swap,
            };
            job.fetch(set, side, op)
        }
        Op::FetchAdd => job.fetch(set, side, AtomicFetchAndAdd { remote, add: 1 }),
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
    peer: &'a ConnInfo,
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
        side: &mut Side,
        op: RdmaWrite,
        source: S,
    ) -> Result<Option<Self::Figures>>;

    /// Operations that take a receive of the peer.
    fn message<O: Operation, S: Source>(
        self,
        set: Setting<'_>,
        side: &mut Side,
        op: O,
        source: S,
    ) -> Result<Option<Self::Figures>>
    where
        Rc: Supports<O>;

    /// Operations that bring data from the peer.
    fn fetch<O: Operation>(
        self,
        set: Setting<'_>,
        side: &mut Side,
        op: O,
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
        side: &mut Side,
        op: RdmaWrite,
        source: S,
    ) -> Result<Option<Latency>> {
        let wait = set.part.wait;
        let Side {
            end,
            region,
            layout,
        } = side;
        let (sq, every) = (end.qp.sq(), set.work.signal_every);
        let written = Written {
            poster: Poster::new(sq, &mut end.send_cq, source, every, wait),
            op,
            word: region.word(layout.inbox_word()),
            turn: 0,
            wait,
        };
        latency(set.part, written, true)
    }

    fn message<O: Operation, S: Source>(
        self,
        set: Setting<'_>,
        side: &mut Side,
        op: O,
        source: S,
    ) -> Result<Option<Latency>>
    where
        Rc: Supports<O>,
    {
        let (poster, receives, cq) = two_way(set, side, source);
        let messages = Messages::new(poster, op, receives, cq, set.work)?;
        latency(set.part, messages, true)
    }

    fn fetch<O: Operation>(
        self,
        set: Setting<'_>,
        side: &mut Side,
        op: O,
    ) -> Result<Option<Latency>>
    where
        Rc: Supports<O>,
    {
        let source = results(side);
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

/// The end that posts, or its peer, which has nothing to do.
fn flood<O: Operation, S: Source>(
    set: Setting<'_>,
    side: &mut Side,
    op: O,
    source: S,
    credited: bool,
) -> Result<Option<Rate>>
where
    Rc: Supports<O>,
{
    let Side { end, region, .. } = side;
    let Some(lead) = set.part.lead else {
        keep_up(set.part, &mut end.send_cq, |_, _| Ok(()), look)?;
        return Ok(None);
    };
    let mut flood = Flood {
        sq: end.qp.sq(),
        cq: &mut end.send_cq,
        source,
        op,
        work: *set.work,
        credit: credited.then(|| region.word(Layout::CREDIT)),
        posted: 0,
        wait: set.part.wait,
    };
    rate(set.part, lead, |count| flood.run(count), set.work.size).map(Some)
}

impl Job for RateJob {
    const MEASURE: Measure = Measure::Rate;
    type Figures = Rate;

    fn write<S: Source>(
        self,
        set: Setting<'_>,
        side: &mut Side,
        op: RdmaWrite,
        source: S,
    ) -> Result<Option<Rate>> {
        flood(set, side, op, source, false)
    }

    fn message<O: Operation, S: Source>(
        self,
        set: Setting<'_>,
        side: &mut Side,
        op: O,
        source: S,
    ) -> Result<Option<Rate>>
    where
        Rc: Supports<O>,
    {
        if set.part.lead.is_some() {
            return flood(set, side, op, source, true);
        }
        let credit = set.peer.memory.remote(Layout::CREDIT);
        let (poster, receives, cq) = two_way(set, side, Words::default());
        let mut sink = Sink::new(poster, receives, cq, credit, set.work)?;
        keep_up(set.part, &mut sink, Sink::run, |_| ())?;
        Ok(None)
    }

    fn fetch<O: Operation>(self, set: Setting<'_>, side: &mut Side, op: O) -> Result<Option<Rate>>
    where
        Rc: Supports<O>,
    {
        let source = results(side);
        flood(set, side, op, source, false)
    }
}
