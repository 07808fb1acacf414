//! Which queue pairs complete on a completion queue, and room for all that they can have in flight.

use super::cq::{CompletionQueue, Recent};
use super::ledger::Ledger;
use super::naming::Naming;
use super::srq::SrqLedger;
use crate::cqe::{Cqe64, CqeFormat, CqeOpcode};
use crate::slab::Block;
use crate::wqe::{RecvRing, SendRing};
use crate::wr::QpType;
use core::fmt;

/// What a device puts into a completion entry to name the queue: slot and generation, 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserIndex(pub(super) u32);

impl UserIndex {
    pub(super) const SLOT_BITS: u32 = 16;
    /// More than 24 bits: no entry can name it.
    const NONE: u32 = u32::MAX;

    /// As a number.
    #[inline(always)]
    pub fn get(self) -> u32 {
        self.0
    }

    /// The slot: below the number of slots that the completion queue has.
    pub fn slot(self) -> usize {
        (self.0 & ((1 << Self::SLOT_BITS) - 1)) as usize
    }

    pub(super) fn new(slot: usize, generation: u8) -> Self {
        Self(slot as u32 | u32::from(generation) << Self::SLOT_BITS)
    }
}

/// Where received bytes go.
#[derive(Clone, Copy, Debug)]
pub(super) enum RecvSide<'m> {
    None,
    Own(&'m Ledger<'m>, RecvRing<'m>),
    Shared(&'m SrqLedger<'m>, SrqUser),
}

/// Who receives through an attached shared receive queue: the number that completions bear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SrqUser {
    /// The one queue pair of this number.
    Qp(u32),
    /// XRC: many targets through one attachment. Each entry says which.
    Xrc,
}

impl SrqUser {
    #[inline(always)]
    pub(super) fn qp_num(self, cqe: &Cqe64) -> u32 {
        match self {
            Self::Qp(number) => number,
            Self::Xrc => cqe.qpn(),
        }
    }
}

/// One queue pair attached to a completion queue. Created by [`Default`] in memory that the caller
/// gives to [`CompletionQueue::new`].
#[derive(Clone, Copy, Debug)]
pub struct QueueSlot<'m> {
    /// The user index that was given to it; [`UserIndex::NONE`] while nothing is attached.
    pub(super) current: u32,
    /// What entries call it; [`UserIndex::NONE`] as well.
    pub(super) name: u32,
    generation: u8,
    /// Entries reserved for its own queues; those of a shared one are reserved once for all.
    reserved: u32,
    reserves_shared: bool,
    /// The next slot to take when this one is, while nothing is attached.
    pub(super) next_free: u32,
    pub(super) send: Option<(&'m Ledger<'m>, SendRing<'m>, QpType)>,
    pub(super) recv: RecvSide<'m>,
}

impl QueueSlot<'_> {
    /// Whether entries are reserved for what is attached.
    fn reserves(&self) -> bool {
        self.reserved != 0 || self.reserves_shared
    }
}

impl Default for QueueSlot<'_> {
    fn default() -> Self {
        Self {
            current: UserIndex::NONE,
            name: UserIndex::NONE,
            generation: 0,
            reserved: 0,
            reserves_shared: false,
            next_free: 0,
            send: None,
            recv: RecvSide::None,
        }
    }
}

/// Why a queue cannot be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachError {
    /// All slots for queue pairs are taken.
    TooManyQueues {
        /// Slots.
        slots: usize,
    },
    /// Entries name queue pairs by number, and completions of an earlier one of this number have not
    /// been polled.
    NumberTaken {
        /// Number of the queue pair.
        qp_num: u32,
    },
    /// Entries name queue pairs by number, and what is to be attached has none.
    Unnamed,
    /// A flush of everything attached could overrun the completion queue.
    CqTooSmall {
        /// Entries that the queues need.
        needed: u32,
        /// Entries that are not reserved.
        free: u32,
    },
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TooManyQueues { slots } => write!(
                f,
                "the completion queue has slots for {slots} queue pairs and all are taken: \
                 use another one"
            ),
            Self::NumberTaken { qp_num } => write!(
                f,
                "completions of an earlier queue pair {qp_num} wait in the completion queue: poll it \
                 until it is empty"
            ),
            Self::Unnamed => write!(
                f,
                "the device names completions by queue pair: what has none cannot complete here"
            ),
            Self::CqTooSmall { needed, free } => write!(
                f,
                "the completion queue has {free} entries left and a flush could write {needed}: \
                 create it larger, or attach without reserving and poll in time"
            ),
        }
    }
}

impl core::error::Error for AttachError {}

/// What of a queue pair completes here.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attach<'m> {
    /// Its send queue's ledger and ring, and the transport.
    pub send: Option<(&'m Ledger<'m>, SendRing<'m>, QpType)>,
    /// Its own receive queue's ledger and ring.
    pub recv: Option<(&'m Ledger<'m>, RecvRing<'m>)>,
    /// The shared receive queue that it receives from, or one for XRC.
    pub srq: Option<(&'m SrqLedger<'m>, SrqUser)>,
}

impl Attach<'_> {
    /// Entries that a flush of the queue pair's own queues can write.
    fn entries(&self) -> u32 {
        let send = self.send.map_or(0, |(ledger, ..)| ledger.capacity());
        let recv = self.recv.map_or(0, |(ledger, _)| ledger.capacity());
        send + recv
    }

    /// Number of the queue pair; `None` of a shared receive queue for XRC.
    pub(super) fn qp_num(&self) -> Option<u32> {
        let send = self.send.map(|(ledger, ..)| ledger.qp_num());
        let recv = || self.recv.map(|(ledger, _)| ledger.qp_num());
        let shared = || match self.srq?.1 {
            SrqUser::Qp(number) => Some(number),
            SrqUser::Xrc => None,
        };
        send.or_else(recv).or_else(shared)
    }
}

impl<'m, N: Naming> CompletionQueue<'m, N> {
    /// Attaches the queues of a queue pair, and reserves an entry for each of their slots; for those
    /// of a shared receive queue once, however many queue pairs receive from it. The device is to
    /// name them by the index returned.
    ///
    /// # Errors
    /// [`AttachError`].
    ///
    /// # Safety
    /// This completion queue is the only poller of the ledgers (of a shared receive queue: one of
    /// its pollers).
    pub unsafe fn attach(&mut self, queues: Attach<'m>) -> Result<UserIndex, AttachError> {
        let own = queues.entries();
        let shared = queues.srq.map_or(0, |(srq, _)| self.not_reserved_for(srq));
        let (needed, free) = (own + shared, self.unreserved());
        if needed > free {
            return Err(AttachError::CqTooSmall { needed, free });
        }
        // SAFETY: the caller's promise.
        let index = unsafe { self.attach_unreserved(queues)? };
        let slot = &mut self.slots[index.slot()];
        slot.reserved = own;
        slot.reserves_shared = queues.srq.is_some();
        self.unreserving -= u32::from(slot.reserves());
        self.reserved += needed;
        self.count_spare();
        Ok(index)
    }

    /// As [`attach`](Self::attach), but reserves nothing: if the queues complete more than is polled
    /// the completion queue overruns, which ends it and every queue pair on it.
    ///
    /// # Errors
    /// [`AttachError`], but for a completion queue that is too small.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn attach_unreserved(
        &mut self,
        queues: Attach<'m>,
    ) -> Result<UserIndex, AttachError> {
        let index = self.free as usize;
        let slots = self.slots.len();
        let Some(slot) = self.slots.get_mut(index) else {
            return Err(AttachError::TooManyQueues { slots });
        };
        let user_index = UserIndex::new(index, slot.generation);
        slot.name = self.naming.admit(user_index, &queues)?;
        slot.current = user_index.get();
        self.free = slot.next_free;
        self.unreserving += 1;
        slot.send = queues.send;
        slot.recv = match (queues.recv, queues.srq) {
            (_, Some((ledger, user))) => RecvSide::Shared(ledger, user),
            (Some((ledger, ring)), None) => RecvSide::Own(ledger, ring),
            (None, None) => RecvSide::None,
        };
        self.count_spare();
        Ok(user_index)
    }

    /// Entries of a shared receive queue, unless they are reserved already.
    fn not_reserved_for(&self, srq: &SrqLedger<'m>) -> u32 {
        let reserved = self.slots.iter().any(|slot| {
            slot.reserves_shared
                && matches!(slot.recv, RecvSide::Shared(of, _) if core::ptr::eq(of, srq))
        });
        if reserved { 0 } else { srq.ring().count() }
    }

    /// Detaches the queues of `user_index` and removes their entries. Later entries that name them
    /// are dropped. Does nothing when the index is not (or no longer) attached.
    ///
    /// Requests of a shared receive queue that were completed and not polled go to `each`, oldest
    /// first: that queue goes on, and nobody else would tell them. Those of the queue pair's own
    /// queues are told by their `clear`.
    ///
    /// The device must have stopped writing entries of these queues.
    pub fn detach(&mut self, user_index: UserIndex, each: impl FnMut(u64, Option<Block<'m>>)) {
        if self.attached(user_index).is_none() {
            return;
        }
        self.purge(user_index, each);
        let index = user_index.slot();
        let free = self.free;
        let slot = &mut self.slots[index];
        let gone = *slot;
        self.recent = Recent::default();
        self.naming.forget(gone.name);
        *slot = QueueSlot {
            generation: gone.generation.wrapping_add(1),
            next_free: free,
            ..QueueSlot::default()
        };
        self.free = index as u32;
        self.unreserving -= u32::from(!gone.reserves());
        self.reserved -= gone.reserved;
        if let (true, RecvSide::Shared(srq, _)) = (gone.reserves_shared, gone.recv) {
            self.reserved -= self.not_reserved_for(srq);
        }
        self.count_spare();
    }

    /// Removes the entries that name `user_index`, closing up the others towards the producer, as
    /// the device's own rules of a reset have it. Producers may go on behind them meanwhile.
    fn purge(&mut self, user_index: UserIndex, mut each: impl FnMut(u64, Option<Block<'m>>)) {
        let mut end = self.ci;
        while end.wrapping_sub(self.ci) < self.memory.count() {
            let entry = self.memory.entry(end);
            // SAFETY: the entries are ours from `ci` on as long as their owner bit says so.
            let format = match unsafe { Cqe64::read_owned(entry, end, self.memory.count()) } {
                Some(cqe) => {
                    if let Some((wr_id, block)) = self.shared_request(user_index, cqe) {
                        each(wr_id, block);
                    }
                    cqe.format()
                }
                None => break,
            };
            // What a block stands for can be moved, the block cannot.
            if format != CqeFormat::Compressed {
                end = end.wrapping_add(1);
            } else if self.expand(end).is_none() {
                break;
            }
        }
        let mut removed = 0;
        let mut at = end;
        while at != self.ci {
            at = at.wrapping_sub(1);
            let from = self.memory.entry(at);
            // SAFETY: owned by us, as found above.
            let named = unsafe { self.is_of(from.as_ref(), user_index) };
            if named {
                removed += 1;
            } else if removed != 0 {
                let to = at.wrapping_add(removed);
                // SAFETY: both are owned by us.
                unsafe { Cqe64::move_entry(from, self.memory.entry(to), to, self.memory.count()) };
                if self.memory.cqe_size() == 128 {
                    // SAFETY: the half before the descriptor belongs to the same entry.
                    unsafe {
                        let inline = from.sub(1);
                        self.memory
                            .entry(to)
                            .sub(1)
                            .copy_from_nonoverlapping(inline, 1);
                    }
                }
            }
        }
        // What was moved is not to be found at its old place too.
        for at in 0..removed {
            // SAFETY: owned by us until the record below gives them back.
            unsafe { Cqe64::init(self.memory.entry(self.ci.wrapping_add(at))) };
        }
        self.ci = self.ci.wrapping_add(removed);
        self.record.store(self.ci & 0xff_ffff);
    }

    /// The request of a shared receive queue that an entry of `user_index` tells of.
    fn shared_request(
        &self,
        user_index: UserIndex,
        cqe: &Cqe64,
    ) -> Option<(u64, Option<Block<'m>>)> {
        let named = cqe.format() != CqeFormat::Compressed && self.is_of(cqe, user_index);
        let opcode = cqe.opcode();
        if !named || !(opcode.is_received() || opcode == CqeOpcode::RespErr) {
            return None;
        }
        let RecvSide::Shared(srq, _) = self.attached(user_index)?.recv else {
            return None;
        };
        let (wr_id, block, ()) = srq.retire(cqe.wqe_counter(), |_| ())?;
        Some((wr_id, block))
    }
}
