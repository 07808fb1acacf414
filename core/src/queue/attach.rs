//! Which queue pairs complete on a completion queue, and reserving CQEs for all their requests in
//! flight.

use super::cq::{CompletionQueue, Cursor, Recent};
use super::ledger::Ledger;
use super::naming::Naming;
use super::srq::{Consumed, SrqLedger};
use crate::cqe::{Cqe64, CqeFormat, CqeOpcode};
use crate::slab::Block;
use crate::wqe::{RecvRing, SendRing};
use crate::wr::QpType;
use core::fmt;

/// The user index by which CQEs identify a queue pair: slot and generation, 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserIndex(pub(super) u32);

impl UserIndex {
    pub(super) const SLOT_BITS: u32 = 16;
    /// More than 24 bits, so that no CQE contains it.
    const NONE: u32 = u32::MAX;

    /// The index as a number.
    #[inline(always)]
    pub fn get(self) -> u32 {
        self.0
    }

    /// The slot number, less than the number of slots of the completion queue.
    pub fn slot(self) -> usize {
        (self.0 & ((1 << Self::SLOT_BITS) - 1)) as usize
    }

    pub(super) fn new(slot: usize, generation: u8) -> Self {
        Self(slot as u32 | u32::from(generation) << Self::SLOT_BITS)
    }
}

/// The receive queue of an attached queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) enum RecvSide<'m> {
    None,
    /// Receives complete in order; the counter in the CQE is ignored.
    Own(&'m Ledger<'m>, RecvRing<'m>),
    /// The counter in the CQE identifies the receive.
    Counted(&'m Ledger<'m>, RecvRing<'m>),
    Shared(&'m SrqLedger<'m>, SrqUser),
}

/// The queue pairs behind an attached shared receive queue, which determine the QP number of
/// completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SrqUser {
    /// The one queue pair with this number.
    Qp(u32),
    /// XRC: many target queue pairs through one attachment. Each CQE has the number.
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
/// passes to [`CompletionQueue::new`].
///
/// What finding the receive queue of a CQE needs is in front, in one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct QueueSlot<'m> {
    /// Its user index; [`UserIndex::NONE`] while nothing is attached.
    pub(super) current: u32,
    /// Its name in CQEs; [`UserIndex::NONE`] while nothing is attached.
    pub(super) name: u32,
    pub(super) recv: RecvSide<'m>,
    pub(super) send: Option<(&'m Ledger<'m>, SendRing<'m>, QpType)>,
    generation: u8,
    /// CQEs reserved for its own queues; those of a shared receive queue are reserved only once.
    reserved: u32,
    reserves_shared: bool,
    /// The next slot of the free list, while nothing is attached.
    pub(super) next_free: u32,
}

static_assertions::const_assert!(core::mem::offset_of!(QueueSlot<'static>, send) <= 64);

impl QueueSlot<'_> {
    /// Whether CQEs are reserved for this queue pair.
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
    /// CQEs identify queue pairs by number, and completions of an earlier queue pair with this
    /// number were not polled yet.
    NumberTaken {
        /// Number of the queue pair.
        qp_num: u32,
    },
    /// CQEs identify queue pairs by number, and the queues to be attached have none.
    Unnamed,
    /// Flushing all attached queues could overrun the completion queue.
    CqTooSmall {
        /// CQEs that the queues need.
        needed: u32,
        /// CQEs that are not reserved.
        free: u32,
    },
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TooManyQueues { slots } => write!(
                f,
                "the completion queue has slots for {slots} queue pairs and all are taken: use another \
                 one, or, if queue pairs were destroyed, poll it until it is empty"
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

/// The queues of a queue pair that complete on one completion queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attach<'m> {
    /// The ledger and ring of its send queue, and the transport.
    pub send: Option<(&'m Ledger<'m>, SendRing<'m>, QpType)>,
    /// The ledger and ring of its own receive queue.
    pub recv: Option<(&'m Ledger<'m>, RecvRing<'m>)>,
    /// Whether the counter of a CQE identifies the receive that completed. If it is not the oldest
    /// one, the CQE is dropped as stale, because completions before it were lost. It and all
    /// receives behind it wait for [`RecvQueue::clear`](super::RecvQueue::clear), which returns
    /// them as unfinished. Otherwise receives complete in order, as devices consume them, and the
    /// counter is ignored.
    pub recv_counted: bool,
    /// The shared receive queue that it receives from; also a shared receive queue for XRC.
    pub srq: Option<(&'m SrqLedger<'m>, SrqUser)>,
}

impl Attach<'_> {
    /// CQEs that flushing the queue pair's own queues can write.
    fn entries(&self) -> u32 {
        let send = self.send.map_or(0, |(ledger, ..)| ledger.capacity());
        let recv = self.recv.map_or(0, |(ledger, _)| ledger.capacity());
        send + recv
    }

    /// Number of the queue pair; `None` for an XRC shared receive queue.
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
    /// Attaches the queues of a queue pair and reserves one CQE for each of their slots. The slots
    /// of a shared receive queue are reserved once for all queue pairs that receive from it.
    /// Configure the device to use the returned index as the user index of the queue pair.
    ///
    /// # Errors
    /// [`AttachError`], if a queue cannot be attached.
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
        // SAFETY: the caller guarantees that this completion queue polls the ledgers.
        let index = unsafe { self.attach_unreserved(queues)? };
        let slot = &mut self.slots[index.slot()];
        slot.reserved = own;
        slot.reserves_shared = queues.srq.is_some();
        self.unreserving -= u32::from(slot.reserves());
        self.reserved += needed;
        self.count_spare();
        Ok(index)
    }

    /// Attaches queues like [`attach`](Self::attach), but reserves nothing: if they complete faster
    /// than the completion queue is polled, it overruns, which is fatal to it and to every queue
    /// pair on it.
    ///
    /// # Errors
    /// [`AttachError`], except [`AttachError::CqTooSmall`].
    ///
    /// # Safety
    /// The requirements of [`attach`](Self::attach).
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
            (Some((ledger, ring)), None) if queues.recv_counted => RecvSide::Counted(ledger, ring),
            (Some((ledger, ring)), None) => RecvSide::Own(ledger, ring),
            (None, None) => RecvSide::None,
        };
        self.count_spare();
        Ok(user_index)
    }

    /// CQEs needed for a shared receive queue; zero if they are reserved already.
    fn not_reserved_for(&self, srq: &SrqLedger<'m>) -> u32 {
        let reserved = self.slots.iter().any(|slot| {
            slot.reserves_shared
                && matches!(slot.recv, RecvSide::Shared(of, _) if core::ptr::eq(of, srq))
        });
        if reserved { 0 } else { srq.ring().count() }
    }

    /// Detaches the queues of `user_index` and removes their CQEs. Later CQEs for them are dropped.
    /// Does nothing when the index is not (or no longer) attached.
    ///
    /// Requests of a shared receive queue that completed and were not polled are passed to `each`,
    /// oldest first: that queue goes on, and nothing else would report them. Those of the queue
    /// pair's own queues are reported by `clear` of these queues.
    ///
    /// # Panics
    /// When `each` panics: the queues then stay attached, with the CQEs for which it was not
    /// called.
    ///
    /// # Safety
    /// The device writes no more CQEs of these queues.
    pub unsafe fn detach(
        &mut self,
        user_index: UserIndex,
        each: impl FnMut(u64, Option<Block<'m>>),
    ) {
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

    /// Starts the next life of queues that stay attached and keep their reserved CQEs: removes
    /// their CQEs like [`detach`](Self::detach), and returns the user index that the device has to
    /// use from here on. `None` when the index is not (or no longer) attached.
    ///
    /// # Panics
    /// When `each` panics, like [`detach`](Self::detach).
    ///
    /// # Safety
    /// The device has stopped writing CQEs of these queues.
    pub unsafe fn renew(
        &mut self,
        user_index: UserIndex,
        each: impl FnMut(u64, Option<Block<'m>>),
    ) -> Option<UserIndex> {
        self.attached(user_index)?;
        self.purge(user_index, each);
        let slot = &mut self.slots[user_index.slot()];
        slot.generation = slot.generation.wrapping_add(1);
        let next = UserIndex::new(user_index.slot(), slot.generation);
        slot.name = self.naming.renew(slot.name, next);
        slot.current = next.get();
        self.recent = Recent::default();
        Some(next)
    }

    /// Removes the CQEs of `user_index` and moves the others together towards the producer, as
    /// ConnectX requires after a reset. Producers may append CQEs meanwhile.
    fn purge(&mut self, user_index: UserIndex, mut each: impl FnMut(u64, Option<Block<'m>>)) {
        let next = self.next.index();
        let mut end = next;
        while end.wrapping_sub(next) < self.memory.count() {
            let entry = self.memory.entry(end);
            // SAFETY: from `next` on, the owner bit says whether the entry is the program's.
            let found = unsafe { Cqe64::read_owned(entry, end, self.memory.count()) };
            let Some(cqe) = found else {
                break;
            };
            let format = cqe.format();
            if let Some((wr_id, block)) = self.shared_request(user_index, cqe) {
                // The slot of the request may be posted again, so the CQE is voided in case `each`
                // panics.
                // SAFETY: the entry is the program's; what was read of it is not used any more.
                unsafe { Cqe64::make_void(entry) };
                each(wr_id, block);
            }
            // A compressed block is expanded: its mini CQEs can be moved, the block itself cannot.
            if format != CqeFormat::Compressed {
                end = end.wrapping_add(1);
            } else if self.expand(end).is_none() {
                break;
            }
        }
        let mut removed = 0;
        let mut at = end;
        while at != next {
            at = at.wrapping_sub(1);
            let from = self.memory.entry(at);
            // SAFETY: the entry is the program's, as found by the loop above.
            let named = unsafe { self.is_of(from.as_ref(), user_index) };
            if named {
                removed += 1;
            } else if removed != 0 {
                let to = at.wrapping_add(removed);
                // SAFETY: both entries are the program's.
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
        // The old places of moved CQEs must not be found again.
        for at in 0..removed {
            // SAFETY: the entries are the program's until the consumer index below returns them.
            unsafe { Cqe64::init(self.memory.entry(next.wrapping_add(at))) };
        }
        self.next = Cursor::at(&self.memory, next.wrapping_add(removed));
        self.record.store(self.next.index() & 0xff_ffff);
    }

    /// Retires the request of a shared receive queue that a CQE of `user_index` is for.
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
        srq.locate(cqe.wqe_counter()).map(Consumed::release)
    }
}
