//! As many messages as the queues hold: one end posts batches, the other keeps up, or both do both.

use super::bounce::{Poster, look, succeeded};
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

/// All queue pairs of an end.
#[derive(Debug)]
pub struct Ends<'a, S, O> {
    /// Those by which it sends.
    pub floods: Vec<Flood<'a, S, O>>,
    /// Those whose messages take receives here.
    pub sinks: Vec<Sink<'a>>,
    /// Completion queues of those with which only the peer does something.
    pub quiet: Vec<&'a mut Cq>,
    pub wait: Wait<'a>,
}

impl<S: Source, O: Operation> Ends<'_, S, O>
where
    Rc: Supports<O>,
{
    /// Sends `count` messages and takes as many, spread over the queue pairs, until all are reported.
    #[inline(always)]
    pub fn run(&mut self, count: u64) -> Result<()> {
        let (floods, sinks) = (self.floods.len(), self.sinks.len());
        for (flood, count) in self.floods.iter_mut().zip(shares(count, floods)) {
            flood.end += count;
        }
        for (sink, count) in self.sinks.iter_mut().zip(shares(count, sinks)) {
            sink.left = count;
        }
        let wait = self.wait;
        while self.floods.iter().any(Flood::is_open) || self.sinks.iter().any(|s| s.left != 0) {
            wait.until(|| match self.turn() {
                Ok(false) => None,
                other => Some(other),
            })??;
        }
        Ok(())
    }

    /// Each queue pair's turn. Returns whether one of them had something to do.
    #[inline(always)]
    fn turn(&mut self) -> Result<bool> {
        let mut busy = false;
        for flood in &mut self.floods {
            busy |= flood.turn()?;
        }
        for sink in &mut self.sinks {
            busy |= sink.turn()?;
        }
        self.idle();
        Ok(busy)
    }

    /// Lets a software device answer what the peer asks of it.
    pub fn idle(&mut self) {
        for cq in &mut self.quiet {
            look(cq);
        }
    }
}

/// `count` in so many parts, which differ by one at most.
fn shares(count: u64, parts: usize) -> impl Iterator<Item = u64> {
    let parts = parts as u64;
    (0..parts).map(move |part| count / parts + u64::from(part < count % parts))
}

/// The posting end of a queue pair.
#[derive(Debug)]
pub struct Flood<'a, S, O> {
    sq: RcSendQueue<'a>,
    cq: &'a mut Cq,
    source: S,
    op: O,
    work: Workload,
    /// Where the peer says how many receives it has posted so far; `None` for operations that take
    /// none.
    credit: Option<&'a AtomicU64>,
    /// Messages to post.
    end: u64,
    /// Messages posted so far.
    posted: u64,
    in_flight: u32,
    /// Posted since the last signalled one.
    quiet: u32,
}

impl<'a, S: Source, O: Operation> Flood<'a, S, O>
where
    Rc: Supports<O>,
{
    pub fn new(
        sq: RcSendQueue<'a>,
        cq: &'a mut Cq,
        source: S,
        op: O,
        work: Workload,
        credit: Option<&'a AtomicU64>,
    ) -> Self {
        Self {
            sq,
            cq,
            source,
            op,
            work,
            credit,
            end: 0,
            posted: 0,
            in_flight: 0,
            quiet: 0,
        }
    }

    fn is_open(&self) -> bool {
        self.posted != self.end || self.in_flight != 0
    }

    /// Posts while there is room, a queue of them at most, and takes completions. Returns whether there was
    /// anything to do.
    #[inline(always)]
    fn turn(&mut self) -> Result<bool> {
        let mut busy = false;
        for _ in 0..self.work.depth / self.work.batch {
            let batch = u64::from(self.work.batch).min(self.end - self.posted) as u32;
            if batch == 0 || self.work.depth - self.in_flight < batch || !self.welcome(batch) {
                break;
            }
            for left in (0..batch).rev() {
                self.quiet += 1;
                self.posted += 1;
                // The last one reports all; and what nothing reports leaves room for a batch.
                let signal = self.quiet == self.work.signal_every
                    || self.posted == self.end
                    || (left == 0 && self.quiet + self.work.batch > self.work.depth);
                let mut flags = SendFlags::empty();
                if signal {
                    flags = SendFlags::SIGNALED;
                    self.quiet = 0;
                }
                self.source
                    .post(&mut self.sq, self.op, 0, flags)
                    .context("posting")?;
            }
            self.sq.ring();
            self.in_flight += batch;
            self.in_flight -= poll(self.cq)?;
            busy = true;
        }
        if !busy {
            let retired = poll(self.cq)?;
            self.in_flight -= retired;
            busy = retired != 0;
        }
        Ok(busy)
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
    /// Messages to take.
    left: u64,
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
        let mut sink = Self {
            poster,
            receives,
            cq,
            credit,
            posted: 0,
            // So few that credits held back never keep the sender from a batch.
            refill: (ahead / 4).min(ahead - work.batch + 1).max(1),
            taken: ahead,
            left: 0,
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

    /// Takes what has come. Returns whether anything had.
    #[inline(always)]
    fn turn(&mut self) -> Result<bool> {
        let got = poll(self.cq)?;
        self.left = self.left.saturating_sub(got.into());
        self.taken += got;
        if self.taken >= self.refill {
            self.refill()?;
        }
        Ok(got != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_differ_by_one_at_most() {
        let shares = |count, parts| shares(count, parts).collect::<Vec<_>>();
        assert_eq!(shares(7, 3), [3, 2, 2]);
        assert_eq!(shares(2, 3), [1, 1, 0]);
        assert!(shares(5, 0).is_empty());
    }
}
