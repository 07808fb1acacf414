//! The receiver's end: blocks that the sender writes to, and credits for blocks that are free again.

use super::blocks::{OPEN, Shape, region};
use super::faults::Faults;
use super::line::{Line, Polled, executed, posted};
use super::log::Log;
use super::notice::Notice;
use anyhow::{Context, Result, anyhow};
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::link::{Exchange, LinkCompletion};
use bellwire::queue::Imm;
use bellwire::wqe::RdmaWrite;
use bellwire::wr::SendFlags;
use bellwire::{Pd, Region};

/// The receiver's end.
#[derive(Debug)]
pub struct Incoming {
    line: Line,
    region: Region,
    shape: Shape,
    /// Blocks done with so far.
    done: u64,
    /// How many of these the sender was notified of.
    credited: u64,
    /// Credits whose outcome has not been reported yet.
    in_flight: u32,
    /// Notices given out so far: the number of the next.
    heard: u64,
    /// Of the next notices, each in its place: whether it has come.
    arrived: Box<[bool]>,
    /// Receives that are to be posted.
    receives: u32,
    /// What came, or was reported, and is no good.
    failed: Option<anyhow::Error>,
}

impl Incoming {
    /// An end with blocks of this shape, which connects as it is polled. Its receives are posted.
    ///
    /// # Errors
    /// Those of set-up.
    pub fn new(
        pd: &Pd,
        shape: Shape,
        exchange: impl Exchange + 'static,
        order: (Faults, Log),
    ) -> Result<Self> {
        let region = region(pd, shape.bytes()?, OPEN)?;
        let mut incoming = Self {
            line: Line::new(pd, shape.qp(), &region, exchange, order)?,
            region,
            shape,
            done: 0,
            credited: 0,
            in_flight: 0,
            heard: 0,
            arrived: vec![false; shape.notices()].into(),
            receives: shape.count + 1,
            failed: None,
        };
        incoming.post_receives()?;
        Ok(incoming)
    }

    /// Bytes of a block.
    pub fn block_size(&self) -> usize {
        self.shape.size
    }

    /// Receives without memory: only notices come.
    fn post_receives(&mut self) -> Result<()> {
        let link = &mut self.line.link;
        while self.receives != 0 {
            // SAFETY: it names no memory.
            if !posted(unsafe { link.post_recv(0, &[]) })? {
                break;
            }
            self.receives -= 1;
        }
        link.ring_recv();
        Ok(())
    }

    /// The next notice, if it is there.
    ///
    /// # Errors
    /// Those of polling, or something that is no notice.
    pub fn next(&mut self) -> Result<Option<Notice>> {
        let place = self.shape.place(self.heard);
        if !self.arrived[place] {
            let polled = self.poll();
            // What came before the end counts.
            if !self.arrived[place] {
                return polled.map(|()| None);
            }
        }
        self.arrived[place] = false;
        let mut header = [0; Notice::SIZE];
        self.region.read(self.shape.header(self.heard), &mut header);
        self.heard += 1;
        let notice = Notice::decode(&header, self.shape.size);
        Ok(Some(notice.context("a notice that cannot be")?))
    }

    /// Copies out of the next block.
    pub fn read(&self, to: &mut [u8]) {
        self.region.read(self.shape.block(self.done), to);
    }

    /// Gives the next block back to the sender.
    ///
    /// # Errors
    /// Those of posting.
    pub fn done(&mut self) -> Result<()> {
        self.done += 1;
        self.credit()
    }

    /// Whether the sender has ended the connection, for it was notified that all came.
    pub fn is_over(&mut self) -> bool {
        // Whatever else it is that ends it.
        self.poll().is_err()
    }

    /// Sends the sender the number of blocks that are done with, if it can be sent now.
    fn credit(&mut self) -> Result<()> {
        if self.credited == self.done || self.in_flight == self.shape.qp().max_send_wr {
            return Ok(());
        }
        let Some(remote) = self.line.target() else {
            return Ok(());
        };
        let bytes = self.done.to_ne_bytes();
        let (write, flags) = (RdmaWrite { remote }, SendFlags::SIGNALED);
        let link = &mut self.line.link;
        // A count that is written once more, in its old order.
        if posted(link.post_inline(0, write, &bytes, flags, Replay::Anyway))? {
            link.ring();
            self.credited = self.done;
            self.in_flight += 1;
        }
        Ok(())
    }
}

/// Which of the next notices this is; `None`: it has come before.
///
/// # Errors
/// One that cannot be.
fn ahead(number: u32, heard: u64, notices: usize) -> Result<Option<usize>> {
    let ahead = number.wrapping_sub(heard as u32);
    if (ahead as usize) < notices {
        return Ok(Some(ahead as usize));
    }
    if ahead.wrapping_neg() as usize <= 2 * notices {
        return Ok(None);
    }
    Err(anyhow!(
        "the notice of number {number} came, and number {heard} was due"
    ))
}

impl Polled for Incoming {
    fn line(&mut self) -> &mut Line {
        &mut self.line
    }

    fn is_idle(&self) -> bool {
        self.in_flight == 0
    }

    fn poll(&mut self) -> Result<()> {
        let Self {
            line,
            shape,
            heard,
            arrived,
            receives,
            in_flight,
            credited,
            failed,
            ..
        } = self;
        let heard = *heard;
        line.poll(|completion: LinkCompletion| {
            if !completion.is_recv() {
                *in_flight -= 1;
                match executed(completion.outcome, "a credit") {
                    Ok(true) => {}
                    // The count is sent again.
                    Ok(false) => *credited = 0,
                    Err(error) => {
                        failed.get_or_insert(error);
                    }
                }
                return;
            }
            *receives += 1;
            let (Outcome::Done, Some(success)) = (completion.outcome, completion.success) else {
                return;
            };
            let Imm::Data(imm) = success.imm() else {
                failed.get_or_insert(anyhow!("a message without a notice"));
                return;
            };
            match ahead(imm.get(), heard, shape.notices()) {
                Ok(Some(ahead)) => arrived[shape.place(heard + ahead as u64)] = true,
                Ok(None) => {}
                Err(error) => {
                    failed.get_or_insert(error);
                }
            }
        });
        if let Some(error) = failed.take() {
            return Err(error);
        }
        if let Some(error) = line.ended() {
            return Err(error);
        }
        if self.receives != 0 {
            self.post_receives()?;
        }
        self.credit()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_are_distinguished_by_their_numbers() {
        for heard in [0u64, 5, u64::from(u32::MAX), u64::from(u32::MAX) + 3] {
            let number = |ahead: i64| (heard as i64 + ahead) as u32;
            let seen = |at: i64| ahead(number(at), heard, 4).ok();
            assert_eq!(seen(0), Some(Some(0)));
            assert_eq!(seen(3), Some(Some(3)));
            assert_eq!(seen(-1), Some(None));
            assert_eq!(seen(-8), Some(None));
            assert_eq!(seen(4), None);
            assert_eq!(seen(-9), None);
        }
    }
}
