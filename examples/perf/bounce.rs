//! Ping-pong: the leader's turn ends when the answer is there.

use super::page::Line;
use super::side::{MARKS, Receives, Source};
use super::workload::Workload;
use anyhow::{Context, Result};
use bellwire::queue::{Completion, PostError};
use bellwire::wqe::{Operation, Rc, RdmaWrite, Supports};
use bellwire::wr::SendFlags;
use bellwire::{Cq, RcSendQueue};
use bellwire_examples::Wait;
use std::sync::atomic::{AtomicU64, Ordering};

/// One end of a ping-pong.
pub trait Bounce {
    /// The leader's turn: sends, and waits for the answer.
    fn ping(&mut self) -> Result<()>;

    /// The follower's turn: waits, and answers.
    fn pong(&mut self) -> Result<()>;

    /// What the follower does while it has no turn.
    fn idle(&mut self) {}
}

/// The bare machine: each side writes a line that the other polls. Nothing that goes through memory
/// can be faster.
#[derive(Debug)]
pub struct Raw<'a> {
    mine: &'a Line,
    theirs: &'a Line,
    turn: u64,
    wait: Wait<'a>,
}

impl<'a> Raw<'a> {
    /// Goes on where the lines are.
    pub fn new(mine: &'a Line, theirs: &'a Line, wait: Wait<'a>) -> Self {
        Self {
            mine,
            theirs,
            // Relaxed: only this side writes it.
            turn: theirs.0.load(Ordering::Relaxed),
            wait,
        }
    }

    #[inline(always)]
    fn arrived(&mut self) -> Result<()> {
        let expected = self.turn;
        let mine = &self.mine.0;
        // Acquire: partner of the release in `send`.
        self.wait
            .until(|| (mine.load(Ordering::Acquire) == expected).then_some(()))?;
        Ok(())
    }

    #[inline(always)]
    fn send(&self) {
        // Release: partner of the acquire in `arrived`.
        self.theirs.0.store(self.turn, Ordering::Release);
    }
}

impl Bounce for Raw<'_> {
    #[inline(always)]
    fn ping(&mut self) -> Result<()> {
        self.turn += 1;
        self.send();
        self.arrived()
    }

    #[inline(always)]
    fn pong(&mut self) -> Result<()> {
        self.turn += 1;
        self.arrived()?;
        self.send();
        Ok(())
    }
}

/// Posts messages one at a time, signals some of them, and takes the completions.
#[derive(Debug)]
pub struct Poster<'a, S> {
    sq: RcSendQueue<'a>,
    cq: &'a mut Cq,
    pub source: S,
    signal_every: u32,
    /// Posted since the last signalled one.
    quiet: u32,
    /// Signalled and not reported yet.
    due: u32,
    pub wait: Wait<'a>,
}

impl<'a, S: Source> Poster<'a, S> {
    pub fn new(
        sq: RcSendQueue<'a>,
        cq: &'a mut Cq,
        source: S,
        signal_every: u32,
        wait: Wait<'a>,
    ) -> Self {
        Self {
            sq,
            cq,
            source,
            signal_every,
            quiet: 0,
            due: 0,
            wait,
        }
    }

    /// Posts the message of a turn and rings.
    #[inline(always)]
    pub fn send<O: Operation>(&mut self, op: O, turn: usize) -> Result<()>
    where
        Rc: Supports<O>,
    {
        let mut flags = SendFlags::empty();
        self.quiet += 1;
        if self.quiet == self.signal_every {
            self.quiet = 0;
            self.due += 1;
            flags = SendFlags::SIGNALED;
        }
        loop {
            match self.source.post(&mut self.sq, op, turn, flags) {
                Ok(()) => break,
                Err(PostError::QueueFull) => self.make_room()?,
                Err(error) => return Err(error).context("posting"),
            }
        }
        self.sq.ring();
        Ok(())
    }

    /// Takes a completion, if one is due: to be called when there is nothing more urgent.
    #[inline(always)]
    pub fn settle(&mut self) -> Result<()> {
        if self.due != 0
            && let Some(completion) = self.cq.poll_one()
        {
            self.due -= 1;
            succeeded(completion)?;
        }
        Ok(())
    }

    #[cold]
    fn make_room(&mut self) -> Result<()> {
        let cq = &mut *self.cq;
        let completion = self.wait.until(|| cq.poll_one())?;
        self.due = self.due.saturating_sub(1);
        succeeded(completion)?;
        Ok(())
    }
}

/// A completion's outcome, and how many requests it reports.
#[inline(always)]
pub fn succeeded(completion: Completion<'_>) -> Result<u32> {
    completion.result.context("a request failed")?;
    Ok(completion.retired)
}

/// RDMA WRITEs, each polled for in the memory that it arrives in.
#[derive(Debug)]
pub struct Written<'a, S> {
    pub poster: Poster<'a, S>,
    /// The word that the peer's WRITE ends with.
    pub word: &'a AtomicU64,
    pub op: RdmaWrite,
    pub turn: usize,
    pub wait: Wait<'a>,
}

impl<S: Source> Written<'_, S> {
    #[inline(always)]
    fn arrived(&mut self) -> Result<()> {
        let (word, mark) = (self.word, MARKS[self.turn]);
        // Acquire: partner of the release with which the device writes a message's last bytes.
        self.wait.until(|| {
            let [.., last] = word.load(Ordering::Acquire).to_ne_bytes();
            (last == mark).then_some(())
        })?;
        Ok(())
    }

    #[inline(always)]
    fn send(&mut self) -> Result<()> {
        self.poster.send(self.op, self.turn)?;
        self.poster.settle()
    }
}

impl<S: Source> Bounce for Written<'_, S> {
    #[inline(always)]
    fn ping(&mut self) -> Result<()> {
        self.turn ^= 1;
        self.send()?;
        self.arrived()
    }

    #[inline(always)]
    fn pong(&mut self) -> Result<()> {
        self.turn ^= 1;
        self.arrived()?;
        self.send()
    }
}

/// Messages that take a receive: each is waited for at the receive completion queue.
#[derive(Debug)]
pub struct Messages<'a, S, O> {
    poster: Poster<'a, S>,
    op: O,
    receives: Receives<'a>,
    cq: &'a mut Cq,
    /// Receives taken and not posted again.
    taken: u32,
    /// Receives posted at a time.
    refill: u32,
    wait: Wait<'a>,
}

impl<'a, S: Source, O: Operation> Messages<'a, S, O>
where
    Rc: Supports<O>,
{
    /// Posts all the receives that the queue holds.
    pub fn new(
        poster: Poster<'a, S>,
        op: O,
        mut receives: Receives<'a>,
        cq: &'a mut Cq,
        work: &Workload,
    ) -> Result<Self> {
        receives.post(work.receives())?;
        let wait = poster.wait;
        Ok(Self {
            poster,
            op,
            receives,
            cq,
            taken: 0,
            refill: (work.receives() / 4).max(1),
            wait,
        })
    }

    #[inline(always)]
    fn arrived(&mut self) -> Result<()> {
        let cq = &mut *self.cq;
        succeeded(self.wait.until(|| cq.poll_one())?)?;
        self.taken += 1;
        Ok(())
    }

    #[inline(always)]
    fn send(&mut self) -> Result<()> {
        self.poster.send(self.op, 0)?;
        // The message is on its way: now is the time for what can wait.
        self.poster.settle()?;
        if self.taken >= self.refill {
            self.receives.post(self.taken)?;
            self.taken = 0;
        }
        Ok(())
    }
}

impl<S: Source, O: Operation> Bounce for Messages<'_, S, O>
where
    Rc: Supports<O>,
{
    #[inline(always)]
    fn ping(&mut self) -> Result<()> {
        self.send()?;
        self.arrived()
    }

    #[inline(always)]
    fn pong(&mut self) -> Result<()> {
        self.arrived()?;
        self.send()
    }
}

/// Nothing is to come: the look lets a software device answer what other processes ask of it.
pub fn look(cq: &mut Cq) {
    let _ = cq.poll_one();
}

/// READs and atomics: the leader waits for the completion, the follower has nothing to do.
#[derive(Debug)]
pub struct Fetches<'a, S, O> {
    pub poster: Poster<'a, S>,
    pub op: O,
}

impl<S: Source, O: Operation> Bounce for Fetches<'_, S, O>
where
    Rc: Supports<O>,
{
    #[inline(always)]
    fn ping(&mut self) -> Result<()> {
        self.poster.send(self.op, 0)?;
        let (cq, wait) = (&mut *self.poster.cq, self.poster.wait);
        succeeded(wait.until(|| cq.poll_one())?)?;
        self.poster.due = 0;
        Ok(())
    }

    #[inline(always)]
    fn pong(&mut self) -> Result<()> {
        Ok(())
    }

    fn idle(&mut self) {
        look(self.poster.cq);
    }
}
