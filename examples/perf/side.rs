//! One end of the connection that is measured: its queues and the buffers in its memory.

use super::workload::Workload;
use anyhow::Result;
use bellwire::connect::ConnInfo;
use bellwire::memory::Mapping;
use bellwire::queue::PostError;
use bellwire::wqe::{Operation, Rc, Supports};
use bellwire::wr::{SendFlags, Sge};
use bellwire::{Pd, QpInit, QpRecvQueue, RcSendQueue, Region};
use bellwire_examples::{ALL_ACCESS, End, buffer};

/// Buffers do not share a line, nor a pair of lines, which processors fetch together.
const ALIGN: usize = 128;
/// Enough for a huge page.
const AT_LEAST: usize = 2 << 20;

/// Where things are in a region:
///
/// ```text
///  0       128             128 + r         128 + 2r       128 + 3r        128 + 4r
///  │credit  │ ······ inbox │ ···· landing  │ ··· source 0 │ ··· source 1  │
/// ```
///
/// Each buffer stands at the end of its room of r bytes, so that the last byte of the inbox is the
/// last byte of an aligned word.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    size: usize,
    room: usize,
}

impl Layout {
    fn new(size: usize) -> Self {
        let room = size.next_multiple_of(ALIGN).max(ALIGN);
        Self { size, room }
    }

    fn bytes(&self) -> usize {
        ALIGN + 4 * self.room
    }

    fn at(&self, buffer: usize) -> usize {
        ALIGN + (buffer + 1) * self.room - self.size
    }

    /// Where the peer says how many receives it has posted.
    pub const CREDIT: usize = 0;

    /// Where the peer's WRITEs arrive, and what its READs and atomics work on.
    pub fn inbox(&self) -> usize {
        self.at(0)
    }

    /// The word at the end of the inbox.
    pub fn inbox_word(&self) -> usize {
        ALIGN + self.room - size_of::<u64>()
    }

    /// Where receives, and results of READs and atomics, go.
    pub fn landing(&self) -> usize {
        self.at(1)
    }

    /// The message for even (0) and odd (1) turns.
    pub fn source(&self, turn: usize) -> usize {
        self.at(2 + turn)
    }
}

/// The last byte of a message, by which its receiver knows it from the one before.
pub const MARKS: [u8; 2] = [1, 2];

/// One end.
#[derive(Debug)]
pub struct Side {
    // The queue pair goes before the memory that its requests name.
    pub end: End,
    pub region: Region,
    /// Of both ends.
    pub layout: Layout,
}

impl Side {
    /// Memory for messages of this size.
    ///
    /// # Errors
    /// When there is not enough.
    pub fn memory(pd: &Pd, size: usize) -> Result<Mapping> {
        buffer(pd, Layout::new(size).bytes().max(AT_LEAST))
    }

    /// An end for a workload, not connected yet.
    ///
    /// # Errors
    /// Those of set-up.
    pub fn new(pd: &Pd, work: &Workload) -> Result<Self> {
        let init = QpInit {
            max_send_wr: work.depth,
            max_recv_wr: work.receives(),
            // Credits are eight inline bytes.
            max_inline_data: if work.inline {
                work.size.max(8) as u32
            } else {
                8
            },
            ..QpInit::default()
        };
        let layout = Layout::new(work.size);
        let end = End::new(pd, &init)?;
        let region = Region::new(pd, Self::memory(pd, work.size)?, ALL_ACCESS)?;
        for (turn, mark) in MARKS.iter().enumerate() {
            let message = vec![*mark; layout.size];
            region.write(layout.source(turn), &message);
        }
        Ok(Self {
            end,
            region,
            layout,
        })
    }

    /// The message of a turn. Nothing ever writes to it, so it may be in any number of requests.
    pub fn source(&self, turn: usize) -> Sge {
        let offset = self.layout.source(turn);
        self.region.sge(offset, self.layout.size as u32)
    }

    /// Where receives and results go. Nothing reads it, so any number may.
    pub fn landing(&self) -> Sge {
        let offset = self.layout.landing();
        self.region.sge(offset, self.layout.size as u32)
    }

    /// What the other end has to know.
    pub fn info(&self) -> ConnInfo {
        self.end.info(&self.region)
    }
}

/// The two messages of a side, in one of the forms that a request can carry them.
pub trait Source: Copy + Send {
    /// Posts the message of a turn.
    fn post<O: Operation>(
        &self,
        sq: &mut RcSendQueue<'_>,
        op: O,
        turn: usize,
        flags: SendFlags,
    ) -> Result<(), PostError>
    where
        Rc: Supports<O>;
}

/// Eight inline bytes: the length is known when this is compiled.
#[derive(Clone, Copy, Debug, Default)]
pub struct Words(pub [[u8; 8]; 2]);

impl Source for Words {
    #[inline(always)]
    fn post<O: Operation>(
        &self,
        sq: &mut RcSendQueue<'_>,
        op: O,
        turn: usize,
        flags: SendFlags,
    ) -> Result<(), PostError>
    where
        Rc: Supports<O>,
    {
        sq.post_inline(0, (), op, &self.0[turn], flags)
    }
}

/// Inline bytes.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a>(pub [&'a [u8]; 2]);

impl Source for Bytes<'_> {
    #[inline(always)]
    fn post<O: Operation>(
        &self,
        sq: &mut RcSendQueue<'_>,
        op: O,
        turn: usize,
        flags: SendFlags,
    ) -> Result<(), PostError>
    where
        Rc: Supports<O>,
    {
        sq.post_inline(0, (), op, self.0[turn], flags)
    }
}

/// Registered memory, which the device reads or, with a READ or an atomic, writes.
#[derive(Clone, Copy, Debug)]
pub struct Buffers([Sge; 2]);

impl Buffers {
    /// # Safety
    /// The memory outlives the queue pairs that it is posted to, and the program never writes to it
    /// (for operations that bring data: never touches it).
    pub unsafe fn new(buffers: [Sge; 2]) -> Self {
        Self(buffers)
    }
}

impl Source for Buffers {
    #[inline(always)]
    fn post<O: Operation>(
        &self,
        sq: &mut RcSendQueue<'_>,
        op: O,
        turn: usize,
        flags: SendFlags,
    ) -> Result<(), PostError>
    where
        Rc: Supports<O>,
    {
        // SAFETY: the promise made to `new`.
        unsafe { sq.post(0, (), op, self.0[turn], flags) }
    }
}

/// The receives of a side, all into the same place.
#[derive(Debug)]
pub struct Receives<'a> {
    rq: QpRecvQueue<'a>,
    landing: Sge,
}

impl<'a> Receives<'a> {
    /// # Safety
    /// As [`Buffers::new`], for operations that bring data.
    pub unsafe fn new(rq: QpRecvQueue<'a>, landing: Sge) -> Self {
        Self { rq, landing }
    }

    /// Posts `count` of them.
    ///
    /// # Errors
    /// Those of posting.
    #[inline(always)]
    pub fn post(&mut self, count: u32) -> Result<(), PostError> {
        for _ in 0..count {
            // SAFETY: the promise made to `new`.
            unsafe { self.rq.post(0, &[self.landing])? };
        }
        self.rq.ring();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_do_not_overlap_and_end_on_lines() {
        for size in [0, 1, 7, 8, 64, 127, 128, 129, 4096, 5000] {
            let layout = Layout::new(size);
            let starts = [
                layout.inbox(),
                layout.landing(),
                layout.source(0),
                layout.source(1),
            ];
            let mut before = Layout::CREDIT + size_of::<u64>();
            for start in starts {
                assert!(start >= before, "{layout:?}");
                before = start + size;
                assert!(before.is_multiple_of(ALIGN), "{layout:?}");
            }
            assert!(before <= layout.bytes());
            let word = layout.inbox_word();
            assert!(word.is_multiple_of(8) && word + 8 == layout.inbox() + size);
        }
    }
}
