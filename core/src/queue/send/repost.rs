//! Reading WQEs back after a failure and posting them again.

use super::{MAX_DS, SendQueue};
use crate::port::SendDoorbell;
use crate::queue::error::Rejected;
use crate::queue::ledger::Record;
use crate::slab::Block;
use crate::wqe::PostError;
use crate::wqe::{BASIC_BLOCK, SEGMENT, SendWqe, Transport, fm_ce_se, rebuild};

impl<'m, T: Transport, D: SendDoorbell> SendQueue<'m, T, D> {
    /// Returns the entry of a request that was posted earlier, by its counter
    /// ([`Failure::counter`](crate::queue::Failure), [`Unfinished`](crate::queue::Unfinished)). An
    /// entry stays in the ring until it is overwritten: as long as nothing is posted, every request
    /// that was in flight can be read, before [`clear`](Self::clear) and after it. `None`: the
    /// entry is overwritten, or no entry began at this counter.
    pub fn entry(&self, counter: u32) -> Option<SendWqe<'_>> {
        let left = self.lives.left(counter, self.head, self.ring.blocks())?;
        // SAFETY: `lives` says that this counter was posted; `&self` keeps the poster from writing
        // as long as the view lives.
        let entry = unsafe { SendWqe::read(self.ring, counter) };
        let whole = entry.index() == counter as u16 && (1..=left).contains(&entry.blocks());
        whole.then_some(entry)
    }

    /// Stages an earlier request again. `entry` holds its bytes as [`SendWqe::bytes`] returns them;
    /// only its counter and the queue pair number are changed. Read all entries that are to be
    /// reposted before posting anything, because a post may overwrite them.
    ///
    /// # Errors
    /// [`Rejected`], which returns the block; [`PostError::NoEntry`] where the bytes are no entry
    /// that this crate builds for the queue's transport. Nothing was staged then.
    ///
    /// # Safety
    /// The requirements of [`post`](Self::post) for the memory that the entry refers to. The entry
    /// was built by a queue of the same transport.
    #[cold]
    pub unsafe fn repost(
        &mut self,
        wr_id: u64,
        entry: &[u8],
        block: Option<Block<'m>>,
    ) -> Result<(), Rejected<Option<Block<'m>>>> {
        let blocks = entry.len().div_ceil(BASIC_BLOCK) as u32;
        let free = if entry.len() > MAX_DS * SEGMENT {
            Err(PostError::NoEntry)
        } else if !self.has_room(blocks) {
            self.refresh(blocks)
        } else {
            Ok(())
        };
        let (counter, qpn) = (self.head, self.ledger.qp_num());
        let kept = fm_ce_se::SIGNALED | fm_ce_se::INITIATOR_SMALL_FENCE;
        // SAFETY: `&mut self` makes this the only poster; the blocks are free.
        let copied = free.and_then(|()| unsafe {
            rebuild(
                &self.ring,
                counter,
                qpn,
                self.marks[0].get() as u8 & kept,
                T::TYPE,
                entry,
            )
            .ok_or(PostError::NoEntry)
        });
        let operation = match copied {
            Ok(operation) => operation,
            Err(error) => return Err(Rejected { error, block }),
        };
        // SAFETY: only poster, blocks free; the ledger has a slot for each block.
        unsafe {
            let record = Record {
                wr_id,
                block,
                end: counter.wrapping_add(blocks),
                number: self.number,
                opcode: Some(operation.completes_as()),
            };
            self.ledger
                .record(self.ledger.slot(counter), counter, record);
        }
        self.head = counter.wrapping_add(blocks);
        // SAFETY: the entry was just written.
        self.last = unsafe { self.read_back(counter) };
        if self.unsignaled != fm_ce_se::NO_FLUSH {
            self.last_completes();
        }
        self.number = self.number.wrapping_add(1);
        if operation.is_registration() {
            self.fence_next();
        }
        Ok(())
    }
}
