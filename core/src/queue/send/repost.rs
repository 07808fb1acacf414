//! Reading entries back after a failure, and posting them again.

use super::{MAX_DS, SendQueue};
use crate::port::SendDoorbell;
use crate::queue::error::{PostError, Rejected};
use crate::queue::ledger::Record;
use crate::slab::Block;
use crate::wqe::{BASIC_BLOCK, SEGMENT, SendWqe, Transport, fm_ce_se, rebuild};
use crate::wr::WrOpcode;

impl<'m, T: Transport, D: SendDoorbell> SendQueue<'m, T, D> {
    /// The entry of a request that was posted earlier, by its counter
    /// ([`Failure::counter`](crate::queue::Failure), [`Unfinished`](crate::queue::Unfinished)). It stays in the ring until it is
    /// overwritten: as long as nothing is posted every request that was in flight can be read, before
    /// [`clear`](Self::clear) and after it. `None`: it is not there any more, or no entry began there.
    pub fn entry(&self, counter: u32) -> Option<SendWqe<'_>> {
        let left = self.lives.left(counter, self.head, self.ring.blocks())?;
        // SAFETY: posted, as its life has it; `&self` keeps the poster from writing as long as the
        // view lives.
        let entry = unsafe { SendWqe::read(self.ring, counter) };
        let whole = entry.index() == counter as u16 && (1..=left).contains(&entry.blocks());
        whole.then_some(entry)
    }

    /// Stages an earlier request again: `entry` are its bytes, as [`SendWqe::bytes`] gives them. All of
    /// it stays as it was, but for its counter and the queue pair's number. To be read before anything
    /// is posted, for this may overwrite entries that are still to be read.
    ///
    /// # Errors
    /// [`Rejected`], with the block; [`PostError::NoEntry`] where the bytes are no entry that this
    /// crate makes. Nothing was staged.
    ///
    /// # Safety
    /// As [`post`](Self::post); the memory is what the entry names. It was made by a queue of this
    /// transport.
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
        } else if self.limit.wrapping_sub(self.head) < blocks {
            self.refresh(blocks)
        } else {
            Ok(())
        };
        let (counter, qpn) = (self.head, self.ledger.qp_num());
        // SAFETY: only poster by `&mut self`; the blocks are free.
        let copied = free.and_then(|()| unsafe {
            rebuild(
                &self.ring,
                counter,
                qpn,
                self.next_fence | self.marks[0] & fm_ce_se::SIGNALED,
                entry,
            )
            .ok_or(PostError::NoEntry)
        });
        let operation = match copied {
            Ok(operation) => operation,
            Err(error) => return Err(Rejected { error, block }),
        };
        self.next_fence = match operation {
            WrOpcode::LocalInv | WrOpcode::BindMw => fm_ce_se::INITIATOR_SMALL_FENCE,
            _ => 0,
        };
        // SAFETY: as above; the ledger has a slot for each block.
        unsafe {
            self.ledger.record(Record {
                wr_id,
                block,
                counter,
                extra: self.extra,
                slots: blocks as u8,
                opcode: operation.completes_as(),
            });
        }
        self.head = counter.wrapping_add(blocks);
        // SAFETY: just written.
        self.last = unsafe { self.read_back(counter) };
        self.staged += 1;
        self.extra = self.extra.wrapping_add(blocks - 1);
        Ok(())
    }
}
