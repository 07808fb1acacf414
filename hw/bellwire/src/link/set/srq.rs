//! The shared receive queue of a set: the slab that supplies its buffers, and when it is refilled.
//!
//! It is refilled by polls, not at its limit event (`SRQ_LIMIT_REACHED`): every receive that was consumed
//! passes through a poll, which counts them for nothing. The event comes later than that, and costs two calls
//! of the kernel: to get it, and to set the limit again.

use super::LinkSet;
use crate::error::Error;
use crate::pd::Pd;
use crate::pinned::collected;
use crate::slab::Slab;
use crate::srq::{Srq, SrqInit};
use bellwire_core::slab::Block;
use std::time::Duration;

/// Receives that are consumed before the queue is refilled, at most.
const BATCH: u32 = 64;

/// How long a set that sleeps waits before it looks for buffers that the program has returned: dropping a
/// block wakes nobody.
pub(super) const PAUSE: Duration = Duration::from_millis(1);

/// The shared receive queue of a set of links ([`LinkSetInit::srq`](super::LinkSetInit::srq)): all links
/// receive from it, in place of receive queues of their own, whose memory is saved.
///
/// The set posts the receives; a link refuses the program's with
/// [`NoRecvQueue`](bellwire_core::queue::PostError::NoRecvQueue). A message comes as a completion with a block
/// of the slab, and its `wr_id` is the address of that block. It retires no request, and only messages that
/// were received are reported. When the program drops the block, in any thread, the next polls post it again.
///
/// While the program holds all blocks, or messages come faster than it polls, the peers' messages wait: their
/// queue pairs try again as often as their `rnr_retry` says (7: for ever), and have a fault then.
///
/// A failed connection leaves the receives that it did not consume to the others. So that none is lost with
/// its queue pair the queue pair is not reset or destroyed before `LAST_WQE_REACHED`, or as long as
/// [`Limits::last_wqe`](bellwire_core::fault::plan::Limits::last_wqe) allows.
#[derive(Clone, Debug)]
pub struct LinkSetSrq {
    /// Supplies the buffers: all its blocks of this size are posted, as far as a device's queue has room for
    /// them. It is of the set's protection domain, and may have blocks of other sizes for other uses.
    pub slab: Slab,
    /// Bytes of a receive, at least: the blocks of the slab's smallest class that has as many are posted, as
    /// they are. A message that is longer than its block is a fault of its link.
    pub length: u32,
    /// Buffers that the messages of one link may hold, so that no peer takes those of the others: received,
    /// and not returned. A link whose peer sends more than that has a fault
    /// ([`Fault::RecvLimitExceeded`](bellwire_core::fault::Fault::RecvLimitExceeded)) and ends; a shared
    /// receive queue cannot make one peer wait. So it is at least the number of messages that the program's
    /// protocol lets a peer have outstanding. A link may have another limit,
    /// [`LinkInit::max_held`](super::super::LinkInit::max_held). `None`: without a limit, and nothing is counted.
    ///
    /// How many sends a link may have in flight is the size of its send queue,
    /// [`LinkInit::qp`](super::super::LinkInit::qp).
    pub max_held: Option<u32>,
}

impl LinkSetSrq {
    /// All blocks that the slab has for it.
    ///
    /// # Errors
    /// [`Error::Foreign`]: the slab is of another protection domain; [`Error::NoBlock`]: it has none of this
    /// size, or none that is free.
    pub(super) fn blocks(&self, pd: &Pd) -> Result<Vec<Block<'static>>, Error> {
        if !self.slab.mr().pd().is_same(pd) {
            return Err(Error::Foreign { what: "slab" });
        }
        let first = self.slab.take(self.length).map_err(Error::NoBlock)?;
        let others = std::iter::from_fn(|| self.slab.take(self.length).ok());
        collected(std::iter::once(first).chain(others))
    }
}

/// Attributes of each of so many shared receive queues, which have so many receives together.
pub(super) fn srq_init(pd: &Pd, receives: usize, queues: u32) -> SrqInit {
    let most = pd.device().attr().max_srq_wr;
    SrqInit {
        max_wr: (receives as u32).div_ceil(queues.max(1)).min(most),
        ..SrqInit::default()
    }
}

/// How full one shared receive queue is kept.
#[derive(Debug)]
pub(super) struct Filling {
    /// Receives posted at a time, at most.
    max_wr: u32,
    /// Receives that are consumed before it is refilled.
    batch: u32,
    /// Receives consumed since it was filled.
    consumed: u32,
}

impl Filling {
    pub fn new(init: &SrqInit) -> Self {
        Self {
            max_wr: init.max_wr,
            batch: (init.max_wr / 4).clamp(1, BATCH),
            consumed: 0,
        }
    }

    /// Counts a receive that was consumed. Returns whether the queue has to be refilled.
    #[inline(always)]
    pub fn count(&mut self) -> bool {
        self.consumed += 1;
        self.consumed >= self.batch
    }

    /// Posts the blocks that the slab has, and passes their addresses to `each`. Returns whether the queue is
    /// short of them: fewer receives are posted than are consumed before it is refilled.
    fn fill(&mut self, srq: &mut Srq, supply: &LinkSetSrq, mut each: impl FnMut(u64)) -> bool {
        let posted = srq.posted();
        let missing = self.max_wr.saturating_sub(posted);
        let blocks = std::iter::from_fn(|| supply.slab.take(supply.length).ok());
        let mut more = 0;
        for block in blocks.take(missing as usize) {
            each(block.addr());
            // There is room; otherwise the block goes back.
            more += u32::from(srq.post_block(block.addr(), block).is_ok());
        }
        srq.ring();
        self.consumed = 0;
        posted + more < self.batch
    }
}

impl LinkSet {
    /// Posts the blocks that the program has returned.
    pub(super) fn refill(&mut self) {
        let Self {
            init,
            queues,
            slots,
            noted,
            short,
            ..
        } = self;
        let Some(supply) = &init.srq else {
            return;
        };
        *short = false;
        for (queue, filling) in queues.iter_mut().zip(&mut noted.fillings) {
            if queue.receives()
                && let Some(srq) = &mut queue.srq
            {
                *short |= filling.fill(srq, supply, |address| {
                    if let Some(held) = &mut noted.held {
                        held.take_back(slots, address);
                    }
                });
            }
        }
    }

    /// Numbers of its shared receive queues: one for each completion queue. One that has failed and is not
    /// replaced yet has none. A queue that replaces another has another number.
    pub fn srqns(&self) -> impl Iterator<Item = u32> {
        let queues = self.queues.iter().filter_map(|queue| queue.srq.as_ref());
        queues.map(Srq::srq_num)
    }

    /// Buffers of its shared receive queues that are not posted: the program holds them, or has returned them
    /// and the next polls post them. 0 without [`LinkSetInit::srq`](super::LinkSetInit::srq).
    pub fn receives_held(&mut self) -> u32 {
        self.buffers.saturating_sub(self.receives_posted())
    }

    /// Receives posted to its shared receive queues, consumed ones included that were not polled yet.
    pub fn receives_posted(&mut self) -> u32 {
        let queues = (self.queues.iter_mut()).filter_map(|queue| queue.srq.as_mut());
        queues.map(Srq::posted).sum()
    }
}
