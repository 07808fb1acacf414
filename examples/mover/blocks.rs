//! Fixed buffers and the requests on them. The sender's are blocks of a slab: one that is in a request
//! cannot be touched, and comes back with the completion.

use super::notice::{Notice, Trailer};
use anyhow::{Context, Result, bail};
use bellwire::be::Be32;
use bellwire::connect::ConnInfo;
use bellwire::queue::Imm;
use bellwire::wqe::{RdmaWrite, RdmaWriteWithImm};
use bellwire::wr::{Remote, SendFlags};
use bellwire::{
    AccessFlags, Block, ClassLayout, Cq, Pd, QpInit, Region, Slab, SlabCache, TakeError,
};
use bellwire_examples::{End, PeerGone, buffer};
use serde::{Deserialize, Serialize};
use std::sync::atomic::Ordering;

/// How many blocks of how many bytes each end has.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Shape {
    pub count: u32,
    pub size: usize,
}

impl Shape {
    fn bytes(&self) -> Result<usize> {
        let bytes = self.size.checked_mul(self.count as usize);
        bytes.context("blocks larger than the address space: ask for fewer or smaller ones")
    }

    fn end(&self, pd: &Pd) -> Result<End> {
        let init = QpInit {
            // Two requests for a block, one for the last notice.
            max_send_wr: 2 * self.count + 1,
            max_recv_wr: self.count + 1,
            ..QpInit::default()
        };
        End::new(pd, &init)
    }
}

fn region(pd: &Pd, bytes: usize, access: AccessFlags) -> Result<Region> {
    Ok(Region::new(pd, buffer(pd, bytes)?, access)?)
}

/// Of memory that the peer writes to.
const OPEN: AccessFlags = AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_WRITE);

/// The word with which a receiver that cannot go on stops the sender.
const STOP: u64 = u64::MAX;

/// The sender's end: its blocks, and what it may send.
#[derive(Debug)]
pub struct Outgoing {
    // The queue pair goes before the memory that its requests name.
    end: End,
    /// Only this side has access to them.
    blocks: SlabCache,
    /// Where the receiver counts the blocks that it is done with.
    credit: Region,
    shape: Shape,
    /// Requests whose outcome has not been told yet.
    in_flight: u64,
    /// Blocks sent so far.
    sent: u64,
    /// The receiver's blocks, and behind them its room for the trailer.
    target: Remote,
}

/// The receiver's end.
#[derive(Debug)]
pub struct Incoming {
    end: End,
    region: Region,
    shape: Shape,
    /// Blocks done with so far.
    done: u64,
    credit: Remote,
}

impl Outgoing {
    /// An end with blocks of this shape, not connected yet.
    ///
    /// # Errors
    /// Those of set-up.
    pub fn new(pd: &Pd, shape: Shape) -> Result<Self> {
        let layout = [ClassLayout {
            size: u32::try_from(shape.size)?.next_multiple_of(64),
            count: shape.count,
        }];
        let blocks = region(pd, Slab::bytes(&layout)?, AccessFlags::empty())?;
        Ok(Self {
            end: shape.end(pd)?,
            blocks: Slab::new(blocks, &layout)?.cache(1)?,
            credit: region(pd, size_of::<u64>(), OPEN)?,
            shape,
            in_flight: 0,
            sent: 0,
            target: Remote::default(),
        })
    }

    /// What the receiver has to know.
    pub fn info(&self) -> ConnInfo {
        self.end.info(&self.credit)
    }

    /// Connects to the receiver.
    ///
    /// # Errors
    /// Those of connecting.
    pub fn connect(&mut self, receiver: &ConnInfo) -> Result<()> {
        self.target = receiver.memory.remote(0);
        self.end.connect(receiver)
    }

    /// A block to fill, if one is free.
    ///
    /// # Errors
    /// A request that failed.
    pub fn take(&mut self) -> Result<Option<Block<'static>>> {
        self.collect()?;
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

    /// Whether the receiver has a free block.
    ///
    /// # Errors
    /// [`PeerGone`] when the receiver has stopped.
    pub fn may_send(&self) -> Result<bool> {
        // Acquire: partner of the release with which the device writes the word.
        let done = self.credit.word(0).load(Ordering::Acquire);
        if done == STOP {
            return Err(PeerGone.into());
        }
        Ok(self.sent < done.saturating_add(self.shape.count.into()))
    }

    /// Writes the first `length` bytes of the block to the receiver's next one, and says so.
    ///
    /// # Errors
    /// Those of posting.
    pub fn send(&mut self, block: Block<'static>, length: u32) -> Result<()> {
        let slot = self.sent % u64::from(self.shape.count);
        let remote = Remote {
            addr: self.target.addr + slot * self.shape.size as u64,
            ..self.target
        };
        let sq = self.end.qp.sq();
        sq.post_block(
            1,
            (),
            RdmaWrite { remote },
            block,
            length,
            SendFlags::SIGNALED,
        )?;
        self.in_flight += 1;
        self.sent += 1;
        self.notify(Notice::Data(length), &[], remote)
    }

    /// Says that no more blocks come, and why.
    ///
    /// # Errors
    /// Those of posting.
    pub fn finish(&mut self, end: Option<Trailer>) -> Result<()> {
        let remote = Remote {
            addr: self.target.addr + (self.shape.size * self.shape.count as usize) as u64,
            ..self.target
        };
        match end {
            Some(trailer) => self.notify(Notice::End, &trailer.encode(), remote),
            None => self.notify(Notice::Failed, &[], remote),
        }
    }

    /// WRITE_WITH_IMM: comes behind all that was written before, and takes a receive.
    fn notify(&mut self, notice: Notice, bytes: &[u8], remote: Remote) -> Result<()> {
        let imm = Be32::new(notice.encode());
        let op = RdmaWriteWithImm { remote, imm };
        let sq = self.end.qp.sq();
        sq.post_inline(0, (), op, bytes, SendFlags::SIGNALED)?;
        sq.ring();
        self.in_flight += 1;
        Ok(())
    }

    /// Whether everything sent has been told.
    ///
    /// # Errors
    /// A request that failed.
    pub fn all_told(&mut self) -> Result<bool> {
        self.collect()?;
        Ok(self.in_flight == 0)
    }

    /// Takes completions; those of blocks bring them back.
    fn collect(&mut self) -> Result<()> {
        while let Some(completion) = self.end.send_cq.poll_one() {
            completion
                .result
                .context("a request of the sender failed")?;
            self.in_flight -= 1;
            if let Some(block) = completion.block {
                self.blocks.put(block);
            }
        }
        Ok(())
    }
}

impl Incoming {
    /// An end with blocks of this shape, not connected yet. Its receives are posted.
    ///
    /// # Errors
    /// Those of set-up.
    pub fn new(pd: &Pd, shape: Shape) -> Result<Self> {
        let mut incoming = Self {
            end: shape.end(pd)?,
            region: region(pd, shape.bytes()? + Trailer::SIZE, OPEN)?,
            shape,
            done: 0,
            credit: Remote::default(),
        };
        for _ in 0..=shape.count {
            incoming.post_receive()?;
        }
        Ok(incoming)
    }

    /// What the sender has to know.
    pub fn info(&self) -> ConnInfo {
        self.end.info(&self.region)
    }

    /// Connects to the sender.
    ///
    /// # Errors
    /// Those of connecting.
    pub fn connect(&mut self, sender: &ConnInfo) -> Result<()> {
        self.credit = sender.memory.remote(0);
        self.end.connect(sender)
    }

    /// Bytes of a block.
    pub fn block_size(&self) -> usize {
        self.shape.size
    }

    /// A receive without memory: only notices come.
    fn post_receive(&mut self) -> Result<()> {
        let rq = self.end.qp.rq();
        // SAFETY: it names no memory.
        unsafe { rq.post(0, &[])? };
        rq.ring();
        Ok(())
    }

    /// The next notice, if it is there.
    ///
    /// # Errors
    /// A receive that failed, or something that is no notice.
    pub fn next(&mut self) -> Result<Option<Notice>> {
        let Some(completion) = self.end.recv_cq.poll_one() else {
            return Ok(None);
        };
        let done = completion.result.context("a receive failed")?;
        let Imm::Data(imm) = done.imm() else {
            bail!("a message without a notice");
        };
        let notice = Notice::decode(imm.get(), self.shape.size);
        Ok(Some(notice.context("a notice that cannot be")?))
    }

    /// Copies out of the next block.
    pub fn read(&self, to: &mut [u8]) {
        let slot = self.done % u64::from(self.shape.count);
        self.region.read(slot as usize * self.shape.size, to);
    }

    /// Copies the trailer out.
    pub fn trailer(&self) -> Trailer {
        let mut bytes = [0; Trailer::SIZE];
        let offset = self.shape.size * self.shape.count as usize;
        self.region.read(offset, &mut bytes);
        Trailer::decode(&bytes)
    }

    /// Gives the next block back to the sender.
    ///
    /// # Errors
    /// Those of posting, a request that failed.
    pub fn done(&mut self) -> Result<()> {
        self.post_receive()?;
        self.done += 1;
        self.tell(self.done)
    }

    /// Stops the sender.
    ///
    /// # Errors
    /// As [`done`](Self::done).
    pub fn stop(&mut self) -> Result<()> {
        self.tell(STOP)
    }

    fn tell(&mut self, word: u64) -> Result<()> {
        let op = RdmaWrite {
            remote: self.credit,
        };
        let End { qp, send_cq, .. } = &mut self.end;
        settle(send_cq)?;
        let bytes = word.to_ne_bytes();
        qp.sq()
            .post_inline(0, (), op, &bytes, SendFlags::SIGNALED)?;
        qp.sq().ring();
        Ok(())
    }
}

/// Takes all completions of requests whose success is all that matters.
fn settle(cq: &mut Cq) -> Result<()> {
    while let Some(completion) = cq.poll_one() {
        completion
            .result
            .context("a request of the receiver failed")?;
    }
    Ok(())
}
