//! Whose messages hold the buffers of a set's shared receive queue.
//!
//! A buffer counts for a link from when the program is given it until the set posts it again. The set posts
//! all that are returned, so that nothing has to be noted when the program drops one.

use super::super::completion::LinkCompletion;
use super::slots::{Joined, Slots};
use super::{LinkId, LinkSet};
use crate::error::Error;
use crate::pinned::defaults;
use bellwire_core::fault::Fault;
use bellwire_core::slab::Block;

/// Buffers that the messages of a link hold.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Holding {
    pub count: u32,
    /// So many at most.
    pub limit: u32,
}

#[derive(Debug)]
pub(super) struct Held {
    /// Buffers that the messages of a link may hold that has no limit of its own.
    pub limit: u32,
    /// The address of the first buffer, and bytes of each.
    first: u64,
    size: u64,
    /// The link that each counts for.
    owners: Box<[Option<LinkId>]>,
    /// Links that have exceeded the limit, until the poll ends.
    exceeded: Vec<LinkId>,
}

impl Held {
    /// Of these blocks.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn new(limit: u32, blocks: &[Block<'_>]) -> Result<Self, Error> {
        let addresses = || blocks.iter().map(Block::addr);
        let first = addresses().min().unwrap_or(0);
        let size = blocks.first().map_or(1, |block| block.capacity().into());
        let last = addresses().max().unwrap_or(0);
        let count = (last - first) / size + 1;
        Ok(Self {
            limit,
            first,
            size,
            owners: defaults(count as usize)?,
            exceeded: Vec::new(),
        })
    }

    /// The place of a buffer. `None` for one that was not in the slab when the set was created.
    #[inline(always)]
    fn owner(&mut self, address: u64) -> Option<&mut Option<LinkId>> {
        let offset = address.wrapping_sub(self.first);
        self.owners.get_mut((offset / self.size) as usize)
    }

    /// The program is given the buffer of a message. Returns whether the link exceeds the limit.
    #[inline(always)]
    pub fn give(&mut self, id: LinkId, held: &mut Holding, address: u64) -> bool {
        if let Some(owner) = self.owner(address) {
            *owner = Some(id);
            held.count += 1;
        }
        let exceeds = held.count > held.limit;
        if exceeds {
            self.exceeded.push(id);
        }
        exceeds
    }

    /// The same, of any completion of a link on a shared receive queue.
    pub fn give_with(&mut self, id: LinkId, held: &mut Holding, completion: &LinkCompletion) {
        if completion.is_recv()
            && let Some(block) = &completion.block
        {
            self.give(id, held, block.addr());
        }
    }

    /// A buffer is posted again.
    pub fn take_back(&mut self, slots: &mut Slots, address: u64) {
        let owner = self.owner(address).and_then(Option::take);
        // The link may have been removed.
        if let Some(joined) = owner.and_then(|id| slots.get_mut(id)) {
            joined.held.count -= 1;
        }
    }
}

impl LinkSet {
    /// Ends the links that have exceeded the limit, also now that returned buffers are posted again.
    pub(super) fn check_held(&mut self) {
        let Some(held) = &mut self.noted.held else {
            return;
        };
        for id in std::mem::take(&mut held.exceeded) {
            let exceeds = |joined: &&Joined| {
                joined.held.count > joined.held.limit && self.queues[joined.queue].receives()
            };
            if self.slots.get(id).filter(exceeds).is_some() {
                self.fault(id.index(), Fault::RecvLimitExceeded);
            }
        }
    }
}
