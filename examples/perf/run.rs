//! Brings a workload, its two ends and a measurement together.

use super::bounce::{Bounce, Fetches, Messages, Poster, Written};
use super::flood::{Flood, Sink};
use super::machine::Machine;
use super::measure::{Effort, Latency, Rate, latency, rate};
use super::side::{Buffers, Bytes, Layout, MARKS, Receives, Side, Source, Words, sides};
use super::workload::{Op, Workload};
use anyhow::Result;
use bellwire::Pd;
use bellwire::be::Be32;
use bellwire::wqe::{
    AtomicCmpAndSwp, AtomicFetchAndAdd, Operation, Rc, RdmaRead, RdmaWrite, RdmaWriteWithImm,
    SendWithImm, Supports,
};
use bellwire_examples::{Progress, Wait};
use std::sync::atomic::AtomicBool;

/// Immediate data that nobody looks at.
const IMM: u32 = 0x6265_6c6c;

/// What measurements have in common.
#[derive(Clone, Copy, Debug)]
pub struct Bench<'a> {
    pub machine: &'a Machine,
    pub pd: &'a Pd,
    pub progress: &'a Progress,
    pub effort: Effort,
}

impl Bench<'_> {
    /// Measures a workload's latency.
    ///
    /// # Errors
    /// Those of set-up, and a request that failed.
    pub fn latency(&self, work: &Workload) -> Result<Latency> {
        self.run(work, LatencyJob)
    }

    /// Measures a workload's rate.
    ///
    /// # Errors
    /// As [`latency`](Self::latency).
    pub fn rate(&self, work: &Workload) -> Result<Rate> {
        self.run(work, RateJob)
    }

    fn run<J: Job>(&self, work: &Workload, job: J) -> Result<J::Figures> {
        let (mut a, mut b) = sides(self.pd, work)?;
        let remotes = (b.inbox(), a.inbox());
        // The inline messages of both ends, which post copies of them.
        let bytes = MARKS.map(|mark| vec![mark; work.size]);
        let words = Words(MARKS.map(|mark| [mark; 8]));
        let bytes = Bytes([&bytes[0], &bytes[1]]);
        let gone = AtomicBool::new(false);
        let set = Setting {
            bench: self,
            work,
            gone: &gone,
        };
        let imm = Be32::new(IMM);
        let ends = (&mut a, &mut b);
        macro_rules! send {
            ($method:ident, |$remote:pat_param| $op:expr) => {{
                let op = |$remote| $op;
                let ops = (op(remotes.0), op(remotes.1));
                if !work.inline {
                    let sources = (sources(ends.0), sources(ends.1));
                    job.$method(set, ends, ops, sources)
                } else if work.size == 8 {
                    job.$method(set, ends, ops, (words, words))
                } else {
                    job.$method(set, ends, ops, (bytes, bytes))
                }
            }};
        }
        let remote = remotes.0;
        match work.op {
            Op::Write => send!(write, |remote| RdmaWrite { remote }),
            Op::WriteImm => send!(message, |remote| RdmaWriteWithImm { remote, imm }),
            Op::Send => send!(message, |_| bellwire::wqe::Send {}),
            Op::SendImm => send!(message, |_| SendWithImm { imm }),
            Op::Read => job.fetch(set, ends, RdmaRead { remote }),
            // The words are equal at first and differ then: both cost the same.
            Op::CmpSwap => {
                let (compare, swap) = (0, 1);
                let op = AtomicCmpAndSwp {
                    remote,
                    compare,
                    swap,
                };
                job.fetch(set, ends, op)
            }
            Op::FetchAdd => job.fetch(set, ends, AtomicFetchAndAdd { remote, add: 1 }),
        }
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
struct Setting<'a> {
    bench: &'a Bench<'a>,
    work: &'a Workload,
    gone: &'a AtomicBool,
}

impl<'a> Setting<'a> {
    fn wait(&self) -> Wait<'a> {
        self.bench.machine.wait(self.gone)
    }

    fn bounce<B: Bounce>(&self, ends: (B, B), one_way: bool) -> Result<Latency> {
        let Bench {
            machine,
            progress,
            effort,
            ..
        } = self.bench;
        latency(machine, self.gone, ends, one_way, effort, progress)
    }

    fn rate(
        &self,
        run: impl FnMut(u64) -> Result<()> + Send,
        keep_up: impl FnMut(u64) -> Result<()> + Send,
    ) -> Result<Rate> {
        let Bench {
            machine,
            progress,
            effort,
            ..
        } = self.bench;
        let size = self.work.size;
        rate(machine, self.gone, run, keep_up, size, effort, progress)
    }
}

type Ends<'a> = (&'a mut Side, &'a mut Side);

/// A measurement, for each kind of operation; `ops` and `sources` are those of the two ends.
trait Job {
    type Figures;

    /// WRITEs: the peer can only see them in its memory.
    fn write<S: Source>(
        self,
        set: Setting<'_>,
        ends: Ends<'_>,
        ops: (RdmaWrite, RdmaWrite),
        sources: (S, S),
    ) -> Result<Self::Figures>;

    /// Operations that take a receive of the peer.
    fn message<O: Operation + Send, S: Source>(
        self,
        set: Setting<'_>,
        ends: Ends<'_>,
        ops: (O, O),
        sources: (S, S),
    ) -> Result<Self::Figures>
    where
        Rc: Supports<O>;

    /// Operations that bring data from the peer.
    fn fetch<O: Operation + Send>(
        self,
        set: Setting<'_>,
        ends: Ends<'_>,
        op: O,
    ) -> Result<Self::Figures>
    where
        Rc: Supports<O>;
}

struct LatencyJob;

impl Job for LatencyJob {
    type Figures = Latency;

    fn write<S: Source>(
        self,
        set: Setting<'_>,
        (a, b): Ends<'_>,
        ops: (RdmaWrite, RdmaWrite),
        sources: (S, S),
    ) -> Result<Latency> {
        fn end<'a, S: Source>(
            set: Setting<'a>,
            side: &'a mut Side,
            op: RdmaWrite,
            source: S,
        ) -> Written<'a, S> {
            let wait = set.wait();
            let Side {
                end,
                region,
                layout,
            } = side;
            let (sq, every) = (end.qp.sq(), set.work.signal_every);
            Written {
                poster: Poster::new(sq, &mut end.send_cq, source, every, wait),
                op,
                word: region.word(layout.inbox_word()),
                turn: 0,
                wait,
            }
        }
        let ends = (end(set, a, ops.0, sources.0), end(set, b, ops.1, sources.1));
        set.bounce(ends, true)
    }

    fn message<O: Operation + Send, S: Source>(
        self,
        set: Setting<'_>,
        (a, b): Ends<'_>,
        ops: (O, O),
        sources: (S, S),
    ) -> Result<Latency>
    where
        Rc: Supports<O>,
    {
        fn end<'a, O: Operation, S: Source>(
            set: Setting<'a>,
            side: &'a mut Side,
            op: O,
            source: S,
        ) -> Result<Messages<'a, S, O>>
        where
            Rc: Supports<O>,
        {
            let landing = side.landing();
            let end = &mut side.end;
            let (sq, rq) = end.qp.split();
            let every = set.work.signal_every;
            let poster = Poster::new(sq, &mut end.send_cq, source, every, set.wait());
            // SAFETY: the side's memory outlives its queue pair, and nobody touches the landing.
            let receives = unsafe { Receives::new(rq, landing) };
            Messages::new(poster, op, receives, &mut end.recv_cq, set.work)
        }
        let ends = (
            end(set, a, ops.0, sources.0)?,
            end(set, b, ops.1, sources.1)?,
        );
        set.bounce(ends, true)
    }

    fn fetch<O: Operation + Send>(
        self,
        set: Setting<'_>,
        (a, b): Ends<'_>,
        op: O,
    ) -> Result<Latency>
    where
        Rc: Supports<O>,
    {
        fn end<'a, O>(set: Setting<'a>, side: &'a mut Side, op: O) -> Fetches<'a, Buffers, O> {
            let source = results(side);
            let (sq, every) = (side.end.qp.sq(), set.work.signal_every);
            let poster = Poster::new(sq, &mut side.end.send_cq, source, every, set.wait());
            Fetches { poster, op }
        }
        set.bounce((end(set, a, op), end(set, b, op)), false)
    }
}

struct RateJob;

/// The posting end of a rate's measurement.
fn flood<'a, O, S>(
    set: Setting<'a>,
    side: &'a mut Side,
    op: O,
    source: S,
    credited: bool,
) -> Flood<'a, S, O> {
    let Side { end, region, .. } = side;
    Flood {
        sq: end.qp.sq(),
        cq: &mut end.send_cq,
        source,
        op,
        work: *set.work,
        credit: credited.then(|| region.word(Layout::CREDIT)),
        posted: 0,
        wait: set.wait(),
    }
}

impl Job for RateJob {
    type Figures = Rate;

    fn write<S: Source>(
        self,
        set: Setting<'_>,
        (a, _): Ends<'_>,
        (op, _): (RdmaWrite, RdmaWrite),
        (source, _): (S, S),
    ) -> Result<Rate> {
        let mut flood = flood(set, a, op, source, false);
        set.rate(|count| flood.run(count), |_| Ok(()))
    }

    fn message<O: Operation + Send, S: Source>(
        self,
        set: Setting<'_>,
        (a, b): Ends<'_>,
        (op, _): (O, O),
        (source, _): (S, S),
    ) -> Result<Rate>
    where
        Rc: Supports<O>,
    {
        let credit = a.region.remote(Layout::CREDIT);
        let landing = b.landing();
        let end = &mut b.end;
        let (sq, rq) = end.qp.split();
        // SAFETY: the side's memory outlives its queue pair, and nobody touches the landing.
        let receives = unsafe { Receives::new(rq, landing) };
        let poster = Poster::new(
            sq,
            &mut end.send_cq,
            Words::default(),
            set.work.signal_every,
            set.wait(),
        );
        let mut sink = Sink::new(poster, receives, &mut end.recv_cq, credit, set.work)?;
        let mut flood = flood(set, a, op, source, true);
        set.rate(|count| flood.run(count), |count| sink.run(count))
    }

    fn fetch<O: Operation + Send>(self, set: Setting<'_>, (a, _): Ends<'_>, op: O) -> Result<Rate>
    where
        Rc: Supports<O>,
    {
        let source = results(a);
        let mut flood = flood(set, a, op, source, false);
        set.rate(|count| flood.run(count), |_| Ok(()))
    }
}
