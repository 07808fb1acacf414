//! A client: one connection.

use super::{DEPTH, MESSAGE, init, slab, sleep};
use crate::cm::{expect, explained, route};
use anyhow::{Context as _, Result, bail, ensure};
use bellwire::connect::cm::{ConnParam, EventChannel, Id, Peer, PortSpace};
use bellwire::event::CompChannel;
use bellwire::fault::CmEvent;
use bellwire::wqe::Send;
use bellwire::wr::SendFlags;
use bellwire::{AccessFlags, Cq, CqInit, Qp, Slab};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// What its requests are called.
const RECEIVE: u64 = 1;
const SEND: u64 = 2;

/// A connection with a [`Server`](super::Server). Dropping it ends it without a word, as the end of
/// the process does.
#[derive(Debug)]
pub struct Client {
    id: Id,
    qp: Qp,
    cq: Cq,
    completions: CompChannel,
    slab: Slab,
    events: EventChannel,
    /// How long each step may take.
    patience: Duration,
}

impl Client {
    /// Asks for a connection. The channel is this client's alone.
    ///
    /// # Errors
    /// What keeps it from being asked for, or no answer within `patience`.
    pub fn ask(events: EventChannel, server: impl Into<Peer>, patience: Duration) -> Result<Self> {
        let id = route(&events, PortSpace::Tcp, None, &server.into())?;
        let device = id.device()?.context("a resolved address has a device")?;
        let pd = device.alloc_pd();
        let completions = device.create_comp_channel()?;
        completions.set_nonblocking(true)?;
        let (sends, receives) = init().cq_entries();
        let mut cq = device.create_cq_with(&CqInit {
            channel: Some(&completions),
            ..CqInit::new(sends + receives)
        })?;
        let mut qp = pd.create_qp(&mut cq, &init())?;
        id.init_qp(&mut qp, AccessFlags::empty())?;
        let slab = slab(&pd, 2 * DEPTH)?;
        id.connect(&qp, &ConnParam::default())?;
        Ok(Self {
            id,
            qp,
            cq,
            completions,
            slab,
            events,
            patience,
        })
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// The server refuses, or does not answer in time.
    pub fn await_response(&mut self) -> Result<()> {
        expect(&self.events, CmEvent::ConnectResponse, self.patience)?.ack();
        Ok(())
    }

    /// Waits for the answer, and goes on to be connected.
    ///
    /// # Errors
    /// As [`await_response`](Self::await_response); the queue pair cannot be connected.
    pub fn establish(&mut self) -> Result<()> {
        self.await_response()?;
        Ok(self.id.establish(&mut self.qp)?)
    }

    /// Sends a message, without waiting for its echo.
    ///
    /// # Errors
    /// A message that is longer than [`MESSAGE`], or too many at a time.
    pub fn send(&mut self, message: &[u8]) -> Result<()> {
        ensure!(message.len() <= MESSAGE as usize, "at most {MESSAGE} bytes");
        self.qp.rq().post_block(RECEIVE, self.slab.take(MESSAGE)?)?;
        self.qp.rq().ring();
        let mut block = self.slab.take(MESSAGE)?;
        block.as_mut_slice()[..message.len()].copy_from_slice(message);
        let (length, flags) = (message.len() as u32, SendFlags::SIGNALED);
        (self.qp.sq()).post_block(SEND, (), Send {}, block, length, flags)?;
        self.qp.sq().ring();
        Ok(())
    }

    /// Waits for an echo, the oldest that is still to come.
    ///
    /// # Errors
    /// The connection is gone, or nothing comes in time.
    pub fn receive(&mut self) -> Result<Vec<u8>> {
        let deadline = Instant::now() + self.patience;
        loop {
            // Armed before it is polled: an entry that was there before raises nothing.
            while let Ok(event) = self.completions.get_cq_event() {
                event.ack();
            }
            self.cq.req_notify(false)?;
            while let Some(completion) = self.cq.poll_one() {
                let done = completion.result?;
                if completion.wr_id == RECEIVE {
                    let block = completion.block.context("posted with a block")?;
                    let length = done.byte_len().unwrap_or(0) as usize;
                    return Ok(block.as_slice()[..length].to_vec());
                }
            }
            if let Some(event) = self.events.try_get()? {
                bail!("{}", explained(&event));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            ensure!(!left.is_zero(), "no echo in time");
            sleep(&[self.completions.as_fd(), self.events.as_fd()], left)?;
        }
    }

    /// Ends the connection, and waits until the server has, too.
    ///
    /// # Errors
    /// The server does not, in time.
    pub fn disconnect(mut self) -> Result<()> {
        self.id.disconnect(&mut self.qp)?;
        expect(&self.events, CmEvent::Disconnected, self.patience)?.ack();
        Ok(())
    }

    /// Refuses the answer.
    ///
    /// # Errors
    /// There is none.
    pub fn reject(self) -> Result<()> {
        Ok(self.id.reject(b"changed my mind")?)
    }
}
