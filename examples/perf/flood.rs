//! As many messages as the queue holds: the leader posts batches, the follower keeps up.

use super::bounce::{Poster, succeeded};
use super::side::{Receives, Source, Words};
use super::workload::Workload;
use anyhow::{Context, Result};
use bellwire::wqe::{Operation, Rc, RdmaWrite, Supports};
use bellwire::wr::{Remote, SendFlags};
use bellwire::{Cq, RcSendQueue};
use bellwire_examples::Wait;
use std::sync::atomic::{AtomicU64, Ordering};

/// Completions taken at a time.
const POLL: usize = 64;

/// The posting end.
#[derive(Debug)]
pub struct Flood<'a, S, O> {
    pub sq: RcSendQueue<'a>,
    pub cq: &'a mut Cq,
    pub source: S,
    pub op: O,
    pub work: Workload,
    /// Where the peer says how many receives it has posted so far; `None` for operations that take
    /// none.
    pub credit: Option<&'a AtomicU64>,
    /// Messages posted so far.
    pub posted: u64,
    pub wait: Wait<'a>,
}

impl<S: Source, O: Operation> Flood<'_, S, O>
where
    Rc: Supports<O>,
{
    /// Sends `count` messages and waits until all are reported.
    #[inline(always)]
    pub fn run(&mut self, count: u64) -> Result<()> {
        let end = self.posted + count;
        let mut in_flight = 0;
        let mut quiet = 0;
        while self.posted != end || in_flight != 0 {
            let batch = u64::from(self.work.batch).min(end - self.posted) as u32;
            if batch != 0 && self.work.depth - in_flight >= batch && self.welcome(batch) {
                for left in (0..batch).rev() {
                    quiet += 1;
                    self.posted += 1;
                    // The last one reports all; and what nothing reports leaves room for a batch.
                    let signal = quiet == self.work.signal_every
                        || self.posted == end
                        || (left == 0 && quiet + self.work.batch > self.work.depth);
                    let mut flags = SendFlags::empty();
                    if signal {
                        flags = SendFlags::SIGNALED;
                        quiet = 0;
                    }
                    self.source
                        .post(&mut self.sq, self.op, 0, flags)
                        .context("posting")?;
                }
                self.sq.ring();
                in_flight += batch;
                in_flight -= poll(self.cq)?;
            } else {
                // Full, or out of credit, or at the end.
                let (cq, credit) = (&mut *self.cq, self.credit);
                let needed = self.posted + u64::from(batch);
                let full = batch == 0 || self.work.depth - in_flight < batch;
                in_flight -= self.wait.until(|| match poll(cq) {
                    Ok(0) if full => None,
                    // Acquire: as in `welcome`.
                    Ok(0) => credit?.load(Ordering::Acquire).ge(&needed).then_some(Ok(0)),
                    other => Some(other),
                })??;
            }
        }
        Ok(())
    }

    /// Whether the peer has receives for `batch` more messages.
    #[inline(always)]
    fn welcome(&self, batch: u32) -> bool {
        self.credit.is_none_or(|posted| {
            // Acquire: partner of the release with which the device writes the word.
            posted.load(Ordering::Acquire) >= self.posted + u64::from(batch)
        })
    }
}

/// Requests that have completed.
#[inline(always)]
fn poll(cq: &mut Cq) -> Result<u32> {
    let mut retired = Ok(0);
    cq.poll(POLL, |completion| {
        retired = match (&retired, succeeded(completion)) {
            (Ok(so_far), Ok(more)) => Ok(so_far + more),
            (Ok(_), Err(error)) => Err(error),
            (Err(_), _) => return,
        };
    });
    retired
}

/// The receiving end of messages that take receives: posts them again, and notifies the sender.
#[derive(Debug)]
pub struct Sink<'a> {
    poster: Poster<'a, Words>,
    receives: Receives<'a>,
    cq: &'a mut Cq,
    credit: Remote,
    /// Receives posted so far.
    posted: u64,
    /// Receives posted at a time.
    refill: u32,
    /// Receives taken and not posted again.
    taken: u32,
    wait: Wait<'a>,
}

impl<'a> Sink<'a> {
    /// Posts all the receives that the queue holds, and says so.
    pub fn new(
        poster: Poster<'a, Words>,
        receives: Receives<'a>,
        cq: &'a mut Cq,
        credit: Remote,
        work: &Workload,
    ) -> Result<Self> {
        let ahead = work.receives();
        let wait = poster.wait;
        let mut sink = Self {
            poster,
            receives,
            cq,
            credit,
            posted: 0,
            // So few that credits held back never keep the sender from a batch.
            refill: (ahead / 4).min(ahead - work.batch + 1).max(1),
            taken: ahead,
            wait,
        };
        sink.refill()?;
        Ok(sink)
    }

    fn refill(&mut self) -> Result<()> {
        self.receives.post(self.taken)?;
        self.posted += u64::from(self.taken);
        self.taken = 0;
        self.poster.source = Words([self.posted.to_ne_bytes(); 2]);
        let remote = self.credit;
        self.poster.send(RdmaWrite { remote }, 0)?;
        self.poster.settle()
    }

    /// Takes `count` messages.
    #[inline(always)]
    pub fn run(&mut self, count: u64) -> Result<()> {
        let mut left = count;
        while left != 0 {
            let cq = &mut *self.cq;
            let got = self.wait.until(|| match poll(cq) {
                Ok(0) => None,
                other => Some(other),
            })??;
            left = left.saturating_sub(got.into());
            self.taken += got;
            if self.taken >= self.refill {
                self.refill()?;
            }
        }
        Ok(())
    }
}
