//! The sender's end: a slab of blocks, and the requests on them. A block that is in a request cannot be
//! touched, and comes back with its completion.

use super::blocks::{OPEN, Shape, region};
use super::faults::Faults;
use super::line::{Line, Polled, executed, posted};
use super::log::Log;
use super::notice::Notice;
use anyhow::{Result, bail};
use bellwire::be::Be32;
use bellwire::fault::outcome::Replay;
use bellwire::link::{Exchange, LinkCompletion, LinkError};
use bellwire::wqe::{RdmaWrite, RdmaWriteWithImm};
use bellwire::wr::{Remote, SendFlags};
use bellwire::{AccessFlags, Block, ClassLayout, Pd, Region, Slab, SlabCache, TakeError};
use std::sync::atomic::Ordering;

/// The sender's end: its blocks, and what it may send.
#[derive(Debug)]
pub struct Outgoing {
    // The queue pair goes before the memory that its requests name.
    line: Line,
    /// Only this side has access to them.
    blocks: SlabCache,
    /// Where the receiver counts the blocks that it is done with.
    credit: Region,
    shape: Shape,
    /// Requests whose outcome has not been reported yet.
    in_flight: u32,
    /// Blocks sent so far: the number of the next.
    sent: u64,
    /// The last notices, each in its place.
    notices: Box<[Notice]>,
    /// Numbers of notices in doubt, which are to be posted again.
    again: Vec<u64>,
    /// Requests that were reported and failed.
    failed: Option<anyhow::Error>,
    /// The receiver's memory, once it has sent it.
    target: Option<Remote>,
}

/// What a request is: of the block, or of the notice, of this number.
const fn wr_id(number: u64, notice: bool) -> u64 {
    number << 1 | notice as u64
}

impl Outgoing {
    /// An end with blocks of this shape, which connects as it is polled.
    ///
    /// # Errors
    /// Those of set-up.
    pub fn new(
        pd: &Pd,
        shape: Shape,
        exchange: impl Exchange + 'static,
        order: (Faults, Log),
    ) -> Result<Self> {
        let layout = [ClassLayout {
            size: u32::try_from(shape.size)?.next_multiple_of(64),
            count: shape.count,
        }];
        let blocks = region(pd, Slab::bytes(&layout)?, AccessFlags::empty())?;
        let credit = region(pd, size_of::<u64>(), OPEN)?;
        Ok(Self {
            line: Line::new(pd, shape.qp(), &credit, exchange, order)?,
            blocks: Slab::new(blocks, &layout)?.cache(1)?,
            credit,
            shape,
            in_flight: 0,
            sent: 0,
            notices: vec![Notice::Data(0); shape.notices()].into(),
            again: Vec::new(),
            failed: None,
            target: None,
        })
    }

    /// A block to fill, if one is free.
    ///
    /// # Errors
    /// Those of polling.
    pub fn take(&mut self) -> Result<Option<Block<'static>>> {
        self.poll()?;
        match self.blocks.take() {
            Ok(block) => Ok(Some(block)),
            Err(TakeError::Empty { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Gives a block back unsent.
    pub fn put_back(&mut self, block: Block<'static>) {
        self.blocks.put(block);
    }

    /// Bytes that go into a block.
    pub fn block_size(&self) -> usize {
        self.shape.size
    }

    /// Whether the connection works, has room, and the receiver has a free block.
    ///
    /// # Errors
    /// Those of polling.
    pub fn may_send(&mut self) -> Result<bool> {
        // Acquire: partner of the release with which the device writes the word.
        let done = self.credit.word(0).load(Ordering::Acquire);
        let free = self.sent < done.saturating_add(self.shape.count.into());
        if free && self.may_post() {
            return Ok(true);
        }
        self.poll()?;
        Ok(false)
    }

    /// Whether two more requests can be posted.
    fn may_post(&mut self) -> bool {
        if self.target.is_none() {
            self.target = self.line.target();
        }
        let room = self.in_flight + 2 <= self.shape.qp().max_send_wr;
        room && self.target.is_some() && self.line.is_ready()
    }

    fn remote(&self, offset: usize) -> Result<Remote, LinkError> {
        let target = self.target.ok_or(LinkError::Recovering)?;
        Ok(Remote {
            addr: target.addr.wrapping_add(offset as u64),
            ..target
        })
    }

    /// Writes the first `length` bytes of the block to the receiver's next one, and says so. Only when
    /// it [may](Self::may_send).
    ///
    /// # Errors
    /// Those of posting.
    pub fn send(&mut self, block: Block<'static>, length: u32) -> Result<()> {
        let number = self.sent;
        let remote = self.remote(self.shape.block(number))?;
        let write = RdmaWrite { remote };
        // The same bytes at the same place, and nobody writes others there before this is reported: once
        // more does no harm.
        let (id, replay) = (wr_id(number, false), Replay::Anyway);
        (self.line.link).post_block(id, write, block, length, SendFlags::SIGNALED, replay)?;
        self.in_flight += 1;
        self.notify(Notice::Data(length))
    }

    /// Says that this was all, if it can be said now.
    ///
    /// # Errors
    /// Those of polling and posting.
    pub fn finish(&mut self, notice: Notice) -> Result<bool> {
        self.poll()?;
        if !self.may_post() {
            return Ok(false);
        }
        self.notify(notice)?;
        Ok(true)
    }

    fn notify(&mut self, notice: Notice) -> Result<()> {
        let number = self.sent;
        self.notices[self.shape.place(number)] = notice;
        self.sent += 1;
        if !self.post_notice(number)? {
            bail!("the connection stopped between a block and its notice");
        }
        Ok(())
    }

    /// WRITE_WITH_IMM: comes behind all that was written before, and takes a receive. The library does
    /// not post it again where it may have been executed.
    fn post_notice(&mut self, number: u64) -> Result<bool> {
        let bytes = self.notices[self.shape.place(number)].encode();
        let write = RdmaWriteWithImm {
            remote: self.remote(self.shape.header(number))?,
            // The low bits of the number will do.
            imm: Be32::new(number as u32),
        };
        let (id, flags) = (wr_id(number, true), SendFlags::SIGNALED);
        let link = &mut self.line.link;
        let done = posted(link.post_inline(id, write, &bytes, flags, Replay::IfSafe))?;
        if done {
            link.ring();
            self.in_flight += 1;
        }
        Ok(done)
    }

    /// Whether everything sent has been executed.
    ///
    /// # Errors
    /// Those of polling.
    pub fn all_reported(&mut self) -> Result<bool> {
        self.poll()?;
        Ok(self.is_idle())
    }

    /// Ends the connection, when all has been reported.
    pub fn close(mut self) {
        self.line.close();
    }

    fn post_again(&mut self) -> Result<()> {
        while self.may_post()
            && let Some(number) = self.again.pop()
        {
            // The receiver knows one that it has had by its number.
            if !self.post_notice(number)? {
                self.again.push(number);
                break;
            }
            self.line.log.resolve();
        }
        Ok(())
    }
}

impl Polled for Outgoing {
    fn line(&mut self) -> &mut Line {
        &mut self.line
    }

    fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.again.is_empty()
    }

    fn poll(&mut self) -> Result<()> {
        let Self {
            line,
            blocks,
            in_flight,
            again,
            failed,
            ..
        } = self;
        line.poll(|completion: LinkCompletion| {
            *in_flight -= 1;
            if let Some(block) = completion.block {
                blocks.put(block);
            }
            let number = completion.wr_id >> 1;
            let notice = completion.wr_id == wr_id(number, true);
            let what = if notice {
                "a notice"
            } else {
                "a block's WRITE"
            };
            match executed(completion.outcome, what) {
                Ok(true) => {}
                Ok(false) if notice => again.push(number),
                Ok(false) => {
                    let outcome = completion.outcome;
                    failed.get_or_insert(anyhow::anyhow!("{what} was given up: {outcome:?}"));
                }
                Err(error) => {
                    failed.get_or_insert(error);
                }
            }
        });
        // That it has ended is why its requests were given up; it is said when they all are reported.
        if let Some(error) = line.ended() {
            return Err(error);
        }
        if !line.is_over()
            && let Some(error) = failed.take()
        {
            return Err(error);
        }
        if again.is_empty() {
            return Ok(());
        }
        self.post_again()
    }
}
