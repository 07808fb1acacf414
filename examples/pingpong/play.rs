//! The game: each message is answered, by as many in turn as there are.

use super::args::{Game, Kind};
use super::content::Content;
use super::end::{End, Request};
use super::service::Service;
use anyhow::{Context, Result, bail, ensure};
use bellwire::queue::{Completion, Success};
use bellwire::wr::WcStatus;
use bellwire::{Cq, Error, event::CompChannel};
use bellwire_examples::{Gone, Wait, allowed};
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Sleeps at the most this long before it lets an inline device go on.
const NAP: Duration = Duration::from_millis(20);

/// The time within which something has to happen; it begins with the first look at it.
#[derive(Debug)]
struct Limit {
    begun: OnceLock<Instant>,
    within: Duration,
}

impl Gone for Limit {
    fn is_gone(&self) -> bool {
        self.begun.get_or_init(Instant::now).elapsed() > self.within
    }
}

/// Waits for completions.
#[derive(Debug)]
struct Waiting {
    within: Duration,
    /// There is one processor only.
    crowded: bool,
}

impl Waiting {
    fn limit(&self) -> Limit {
        Limit {
            begun: OnceLock::new(),
            within: self.within,
        }
    }

    /// The next one, looking for it all the time.
    fn poll(&self, cq: &mut Cq) -> Option<Completion<'static>> {
        let limit = self.limit();
        let wait = Wait {
            crowded: self.crowded,
            gone: &limit,
        };
        wait.until(|| cq.poll_one()).ok()
    }

    /// The next one, sleeping until there is one. The queue is armed whenever it was empty.
    fn sleep(&self, cq: &mut Cq, channel: &CompChannel) -> Result<Option<Completion<'static>>> {
        let limit = self.limit();
        loop {
            if let Some(completion) = cq.poll_one() {
                return Ok(Some(completion));
            }
            match channel.get_cq_event() {
                Ok(event) => {
                    event.ack();
                    cq.req_notify(false)?;
                }
                Err(Error::WouldBlock) if limit.is_gone() => return Ok(None),
                Err(Error::WouldBlock) => {
                    readable_within(channel, NAP)?;
                    channel.device().progress();
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn readable_within(channel: &CompChannel, within: Duration) -> Result<()> {
    let mut poll = libc::pollfd {
        fd: channel.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry, which is readable and writable.
    let ready = unsafe { libc::poll(&raw mut poll, 1, within.as_millis() as i32) };
    let error = std::io::Error::last_os_error();
    if ready < 0 && error.kind() != std::io::ErrorKind::Interrupted {
        return Err(error).context("waiting for a completion");
    }
    Ok(())
}

/// A queue pair's part.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    /// Messages received, by which the next is known.
    received: u64,
    /// Nothing was received since its last send.
    awaits_message: bool,
    /// Its last send has not completed.
    awaits_completion: bool,
}

/// A side that is connected.
pub struct Player<'a, T: Service> {
    game: &'a Game,
    end: &'a mut End<T>,
    turns: Vec<Turn>,
    /// What messages hold; of a server it is known when the first has come.
    content: Option<Content>,
    waiting: Waiting,
    posted: u64,
    sent: u64,
    received: u64,
}

/// Arms the queue before anything can come.
///
/// # Errors
/// When the system refuses.
pub fn arm<T: Service>(end: &mut End<T>) -> Result<()> {
    if let Some(channel) = &end.channel {
        channel.set_nonblocking(true)?;
        end.cq.req_notify(false)?;
    }
    Ok(())
}

impl<'a, T: Service> Player<'a, T> {
    /// # Errors
    /// When the system does not report its processors.
    pub fn new(game: &'a Game, end: &'a mut End<T>) -> Result<Self> {
        let client = game.host.is_some();
        let turn = Turn {
            awaits_message: true,
            ..Turn::default()
        };
        Ok(Self {
            game,
            end,
            turns: vec![turn; game.num_qp],
            content: client.then(|| Content::ours(game.size as usize)),
            waiting: Waiting {
                within: game.timeout,
                crowded: allowed()?.len() < 2,
            },
            posted: 0,
            sent: 0,
            received: 0,
        })
    }

    /// Plays to the end.
    ///
    /// # Errors
    /// A request that failed, a message that is wrong, a peer that has gone silent.
    pub fn play(mut self) -> Result<()> {
        let iters = self.game.iters;
        if self.game.host.is_some() {
            (0..self.game.num_qp).try_for_each(|n| self.serve(n))?;
        }
        while self.sent < iters || self.received < iters {
            let completion = match &self.end.channel {
                Some(channel) => self.waiting.sleep(&mut self.end.cq, channel)?,
                None => self.waiting.poll(&mut self.end.cq),
            };
            let completion = completion.with_context(|| self.silence())?;
            self.take(&completion)?;
        }
        Ok(())
    }

    fn silence(&self) -> String {
        let lost = match self.game.kind {
            Kind::Uc | Kind::Ud => ", or a message was lost, which this transport does not repeat",
            Kind::Rc | Kind::Srq => "",
        };
        format!(
            "nothing has come for {:?}, after {} of {} messages: the peer has stopped{lost}",
            self.game.timeout, self.received, self.game.iters
        )
    }

    fn take(&mut self, completion: &Completion<'_>) -> Result<()> {
        let qp_num = completion.qp_num;
        let n = self.end.find(qp_num);
        let n = n.with_context(|| format!("a completion of queue pair {qp_num:#x}, not ours"))?;
        let request = Request::of(completion);
        let done = match &completion.result {
            Ok(done) => done,
            Err(failure) => bail!(
                "{} failed: {failure}{}",
                match request {
                    Request::Send => "a send",
                    Request::Receive(_) => "a receive",
                },
                advice(failure.status)
            ),
        };
        match request {
            Request::Send => {
                self.sent += 1;
                self.turns[n].awaits_completion = false;
            }
            Request::Receive(slot) => self.receive(n, slot, done)?,
        }
        let turn = self.turns[n];
        if self.posted < self.game.iters && !turn.awaits_message && !turn.awaits_completion {
            self.serve(n)?;
        }
        Ok(())
    }

    fn receive(&mut self, n: usize, slot: usize, done: &Success) -> Result<()> {
        let came = done.byte_len().unwrap_or(0);
        let due = self.game.grh() + self.game.size;
        ensure!(
            came == due,
            "the peer's message has {came} bytes, this side's {due}: give the same -s to both"
        );
        let number = self.number(self.turns[n].received);
        let message = self.end.take(slot);
        match &self.content {
            Some(content) => content.check(number, message)?,
            None => self.content = Some(Content::of(message)?),
        }
        self.end.refill()?;
        self.received += 1;
        self.turns[n].received += 1;
        self.turns[n].awaits_message = false;
        Ok(())
    }

    /// The message with which a queue pair's exchange `n` is done. Where queue pairs share memory, as
    /// rdma-core's server has it, messages would not come back as they went if they differed.
    fn number(&self, n: u64) -> u64 {
        match self.game.kind {
            Kind::Srq => 0,
            _ => n,
        }
    }

    /// Sends a queue pair's next message: the client's is new, the server's is the one that has come.
    fn serve(&mut self, n: usize) -> Result<()> {
        if self.posted == self.game.iters {
            return Ok(());
        }
        let received = self.turns[n].received;
        let number = match self.game.host {
            Some(_) => received,
            None => received - 1,
        };
        let number = self.number(number);
        let content = self.content.as_ref().context("nothing to send")?;
        self.end.send(n, content, number)?;
        self.posted += 1;
        let turn = &mut self.turns[n];
        (turn.awaits_message, turn.awaits_completion) = (true, true);
        Ok(())
    }
}

fn advice(status: WcStatus) -> &'static str {
    match status {
        WcStatus::RetryExcErr => {
            "; the peer does not answer: see what it says, and that both devices are on one network"
        }
        WcStatus::LocLenErr | WcStatus::RemInvReqErr => {
            "; the sides differ in the size of messages: give the same -s to both"
        }
        _ => "",
    }
}
