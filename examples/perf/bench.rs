//! Measures workloads between the two ends: two threads of this process, or this process and
//! another.

use super::duo::duo;
use super::machine::Machine;
use super::measure::{Effort, Latency, Lead, Part, Rate};
use super::page::{Page, SharedPage};
use super::run::{Job, LatencyJob, RateJob, run};
use super::side::Side;
use super::workload::{Measure, Workload};
use anyhow::{Context, Result};
use bellwire::Pd;
use bellwire::connect::ConnInfo;
use bellwire::memory::Mapping;
use bellwire_examples::{Listener, Peer, Progress, pin};
use serde::{Deserialize, Serialize};
use std::sync::atomic::AtomicBool;

/// The program's name at meetings.
pub const PROGRAM: &str = "perf";

/// What the end that leads sends the one that follows.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Task {
    measure: Measure,
    work: Workload,
}

/// Another process that has the other end.
#[derive(Debug)]
pub struct Other {
    peer: Peer,
    page: SharedPage,
}

/// What measurements have in common.
#[derive(Debug)]
pub struct Bench {
    pub machine: Machine,
    pub pd: Pd,
    /// `None`: the other end is a thread.
    pub other: Option<Other>,
}

impl Bench {
    /// From here on the other end is the process that listens under this name.
    ///
    /// # Errors
    /// When there is none.
    pub fn connect(&mut self, name: &str) -> Result<()> {
        let mut peer = Peer::connect(PROGRAM, name)?;
        let memory = Mapping::shared(PROGRAM, size_of::<Page>()).build()?;
        peer.share(&memory)?;
        let page = SharedPage::new(memory)?;
        self.other = Some(Other { peer, page });
        pin(self.machine.cpus.0)
    }

    /// Measures a workload's latency.
    ///
    /// # Errors
    /// Those of set-up, and a request that failed.
    pub fn latency(
        &mut self,
        work: &Workload,
        effort: Effort,
        progress: &Progress,
    ) -> Result<Latency> {
        self.lead(LatencyJob, work, effort, progress)
    }

    /// Measures a workload's rate.
    ///
    /// # Errors
    /// As [`latency`](Self::latency).
    pub fn rate(&mut self, work: &Workload, effort: Effort, progress: &Progress) -> Result<Rate> {
        self.lead(RateJob, work, effort, progress)
    }

    fn lead<J: Job>(
        &mut self,
        job: J,
        work: &Workload,
        effort: Effort,
        progress: &Progress,
    ) -> Result<J::Figures> {
        let Self { machine, pd, other } = self;
        let lead = Lead {
            clock: &machine.clock,
            effort,
            progress,
        };
        let figures = match other {
            None => two_threads(machine, pd, work, job, lead),
            Some(Other { peer, page }) => {
                let (measure, work) = (J::MEASURE, *work);
                peer.send(&Task { measure, work })?;
                let led = alone(machine, pd, peer, page, &work, job, Some(lead));
                peer.conclude(led)
            }
        };
        figures?.context("the end that leads has no figures")
    }
}

fn two_threads<J: Job>(
    machine: &Machine,
    pd: &Pd,
    work: &Workload,
    job: J,
    lead: Lead<'_>,
) -> Result<Option<J::Figures>> {
    let (mut ours, mut theirs) = (sides(pd, work)?, sides(pd, work)?);
    let infos = (infos(&ours), infos(&theirs));
    connect(&mut ours, &infos.1)?;
    connect(&mut theirs, &infos.0)?;
    let (page, gone) = (Page::default(), AtomicBool::new(false));
    let part = |lead| Part {
        page: &page,
        wait: machine.wait(&gone),
        lead,
    };
    let (leads, follows) = (part(Some(lead)), part(None));
    duo(
        machine,
        &gone,
        || run(job, leads, work, &mut ours, &infos.1),
        || run(job, follows, work, &mut theirs, &infos.0).map(|_| ()),
    )
}

/// The sides of an end, not connected yet.
fn sides(pd: &Pd, work: &Workload) -> Result<Vec<Side>> {
    (0..work.connections())
        .map(|_| Side::new(pd, work))
        .collect()
}

fn infos(sides: &[Side]) -> Vec<ConnInfo> {
    sides.iter().map(Side::info).collect()
}

fn connect(sides: &mut [Side], peers: &[ConnInfo]) -> Result<()> {
    let mut pairs = sides.iter_mut().zip(peers);
    pairs.try_for_each(|(side, peer)| side.end.connect(peer))
}

/// This process's end of a measurement with another process.
fn alone<J: Job>(
    machine: &Machine,
    pd: &Pd,
    peer: &mut Peer,
    page: &Page,
    work: &Workload,
    job: J,
    lead: Option<Lead<'_>>,
) -> Result<Option<J::Figures>> {
    let mut sides = sides(pd, work)?;
    let mut theirs = Vec::new();
    for ours in infos(&sides) {
        theirs.push(peer.exchange_info(&ours)?);
    }
    connect(&mut sides, &theirs)?;
    // Nobody sends before both are connected.
    peer.exchange(&())?;
    let wait = machine.wait(peer);
    run(job, Part { page, wait, lead }, work, &mut sides, &theirs)
}

/// Follows the process that comes, until it leaves.
///
/// # Errors
/// Those of set-up, a request that failed, a process that left in the middle of it.
pub fn serve(listener: Listener, machine: &Machine, pd: &Pd) -> Result<()> {
    let mut peer = listener.accept()?;
    let page = SharedPage::new(peer.shared()?)?;
    pin(machine.cpus.1)?;
    while let Some(Task { measure, work }) = peer.hear()? {
        let followed = match measure {
            Measure::Latency => {
                alone(machine, pd, &mut peer, &page, &work, LatencyJob, None).map(drop)
            }
            Measure::Rate => alone(machine, pd, &mut peer, &page, &work, RateJob, None).map(drop),
        };
        peer.report(followed)?;
    }
    Ok(())
}
