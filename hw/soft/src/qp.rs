//! The device's state of a queue pair.
//!
//! A [`QpCtx`] stays valid until the device is dropped, so that a peer may read one at any time. A queue pair
//! number that no longer matches shows the peer that the queue pair was destroyed.

use super::cq::CqCtx;
use super::gate::{Gate, Way};
use super::mr::{Grant, LOCAL_READ, LocalGrant};
use super::receive::RecvWork;
use super::remote::{Accepted, Acknowledged, Inbound, Remote};
use super::run::Stop;
use super::turn::Turn;
use crate::error::Error;
use crate::fabric::Number;
use crate::pinned::{boxed, defaults};
use bellwire_core::access::AccessFlags;
use bellwire_core::wqe::SendRing;
use bellwire_core::wr::QpType;
use bellwire_provider::quiesce::{Barriers, Section};
use crossbeam_utils::CachePadded;
use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence, fence,
};

/// The device's side of a queue pair.
#[derive(Debug)]
pub struct QpCtx {
    pub rights: CachePadded<Rights>,
    pub sender: CachePadded<Sender>,
    pub receiver: CachePadded<Receiver>,
    pub inbound: CachePadded<Inbound>,
}

impl QpCtx {
    fn new(index: usize) -> Self {
        let sender = Sender {
            index,
            ..Sender::default()
        };
        Self {
            rights: CachePadded::default(),
            sender: sender.into(),
            receiver: CachePadded::default(),
            inbound: CachePadded::default(),
        }
    }
}

/// What peers read, and who posts receives. It changes rarely.
#[derive(Debug, Default)]
pub struct Rights {
    /// Whose requests are accepted: a [`connection`](super::connection), or all
    /// [`datagrams`](super::connection::datagrams); zero while none are. It contains the responder's own number
    /// too, because the context may belong to another queue pair by now.
    pub accepts: AtomicU64,
    /// Incarnation of the node whose requests are accepted, if that is another one; zero: there is none yet.
    pub incarnation: AtomicU64,
    pub pd: AtomicU32,
    /// Q_Key that datagrams have to carry.
    pub qkey: AtomicU32,
    /// Remote access flags of the queue pair.
    pub access: AtomicU32,
    /// RNR NAK timer code, sent to peers when no receive is posted.
    pub min_rnr_timer: AtomicU8,
    pub flushing: Flushing,
}

/// The requester. What a short message needs is in front, so that it is in few cache lines.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Sender {
    /// Entered by the one thread that executes: the poster, or a thread of the engine.
    pub section: Section,
    /// Whether the data path keeps out, and where packets go.
    pub gate: Gate,
    /// Counter behind the last entry that the doorbell announced.
    pub producer: AtomicU32,
    /// For a peer in another process: counter of the oldest unacknowledged entry. Written by the reader of
    /// the peer's packets while requests are outstanding, otherwise by the executing thread.
    pub acked: AtomicU32,
    /// Likewise for a peer in another process: the [`Number`] of the next request. Written by the executing thread.
    pub number: AtomicU32,
    /// Likewise, of the requests in the other direction.
    pub acknowledged: Acknowledged,
    /// While the gate is not closed, owned by the thread in the section; otherwise by the holder of the device's lock.
    pub work: UnsafeCell<Option<SendWork>>,
    /// Index in the device's tables, which several queue pairs have one after the other. The executing thread
    /// knows only this index: the queue pair may have been destroyed, and another created in its place, since
    /// the doorbell.
    pub index: usize,
}

impl Sender {
    /// The number of the next request to another process.
    #[inline(always)]
    pub fn number(&self, order: Ordering) -> Number {
        Number::of_word(self.number.load(order))
    }

    /// The next request has been sent. In the section: a thread that sees the response earlier waits until it is left.
    #[inline(always)]
    pub fn pass_number(&self) {
        let next = self.number(Ordering::Relaxed).next();
        // Release: pairs with the Acquire in `Hca::take_answer`; the entry comes before.
        self.set_number(next, Ordering::Release);
    }

    #[inline(always)]
    pub fn set_number(&self, number: Number, order: Ordering) {
        self.number.store(number.word(), order);
    }
}

/// State of a requester. What a short message needs is in front.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SendWork {
    /// Counter of the next entry to execute.
    pub consumer: u32,
    pub qpn: u32,
    /// Set if the peer is in another process; `peer` is then unused.
    pub remote: Option<Remote>,
    pub ring: SendRing<'static>,
    pub transport: QpType,
    pub way: Way,
    pub max_rd_atomic: u8,
    pub pd: u32,
    pub peer: &'static QpCtx,
    pub own: &'static QpCtx,
    /// The value that `peer` has to accept.
    pub connection: u64,
    /// The memory of a peer in this process that was reached last: that was read, and that was written to.
    pub grants: [Grant; 2],
    /// The local memory of requests of one element: that is written to, and that is read.
    pub local: [LocalGrant; 2],
    /// Why the data path stopped at `consumer`, until the holder of the lock handles it.
    pub(super) stop: Option<Stop>,
    pub cq: &'static CqCtx,
    pub user_index: u32,
    /// For datagrams: the Q_Key sent instead of a request's Q_Key whose top bit is set.
    pub qkey: u32,
}

/// [`SendWork::local`] of a queue pair in this protection domain.
pub(super) fn locals(pd: u32) -> [LocalGrant; 2] {
    [AccessFlags::LOCAL_WRITE.bits(), LOCAL_READ].map(|access| LocalGrant::new(pd, access))
}

impl SendWork {
    /// Under the device's lock: everything before this counter has been reported.
    pub fn pass(&mut self, counter: u32) {
        self.consumer = counter;
        // Relaxed: the queue pair is closed, so nothing is sent.
        self.own.sender.acked.store(counter, Ordering::Relaxed);
    }
}

/// Whether receives are flushed as they are posted, for which the poster takes the device's lock. One value to check
/// for the usual case.
///
/// ```text
/// poster                                     control path
/// doorbell record               store        flushing            store
/// barrier of the compiler                    heavy barrier
/// flushing? [`FENCED`](Self::FENCED):        doorbell record     load
/// a fence, and look again       load
/// ```
#[derive(Debug)]
pub struct Flushing(AtomicU8);

impl Default for Flushing {
    fn default() -> Self {
        Self(AtomicU8::new(Self::not()))
    }
}

impl Flushing {
    const NO: u8 = 0;
    /// No, but only a fence orders this load behind the store of the doorbell record.
    const FENCED: u8 = 1;
    const YES: u8 = 2;

    fn not() -> u8 {
        match Barriers::get().is_asymmetric() {
            true => Self::NO,
            false => Self::FENCED,
        }
    }

    /// Ordered by the caller's barrier.
    pub fn set(&self, flushing: bool) {
        let value = if flushing { Self::YES } else { Self::not() };
        self.0.store(value, Ordering::Relaxed);
    }

    /// Whether nothing more has to be looked at, behind the store of the doorbell record.
    #[inline(always)]
    pub fn is_off(&self) -> bool {
        // Orders the store before the load. Pairs with the system call in `Barriers::heavy`.
        compiler_fence(Ordering::SeqCst);
        // Relaxed: ordered by the barrier.
        self.0.load(Ordering::Relaxed) == Self::NO
    }

    pub fn is_on(&self) -> bool {
        // Orders the store of the doorbell record before the load. Pairs with the fence in `Barriers::heavy`.
        fence(Ordering::SeqCst);
        // Acquire: the doorbell record that is read next contains what was posted after this was set.
        self.0.load(Ordering::Acquire) == Self::YES
    }
}

/// The responder's receive queue. What a short message from another process needs is in front.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Receiver {
    /// For a peer in another process.
    pub accepted: Accepted,
    /// Owned by the accepted peer while it is in its section (for datagrams, it also needs `turn`); by the
    /// holder of the device's lock once no peer is accepted.
    pub work: UnsafeCell<Option<RecvWork>>,
    /// Decides which sender of datagrams may take receives.
    pub turn: Turn,
}

// SAFETY: each cell's documentation names its owner; ownership passes through `closed`, `accepts`, the
// sections and the device's lock.
unsafe impl Sync for QpCtx {}
// SAFETY: the same ownership rules let any thread use it.
unsafe impl Send for QpCtx {}

/// Contexts by index, created on first use.
#[derive(Debug)]
pub(super) struct QpTable {
    slots: Box<[AtomicPtr<QpCtx>; MAX_QP]>,
    /// No context was made from this index on.
    end: AtomicUsize,
}

/// Maximum number of queue pairs of a device, plus one: index 0 is not used.
pub(super) const MAX_QP: usize = 1 << 16;

impl QpTable {
    pub fn new() -> Result<Self, Error> {
        let Ok(slots) = defaults(MAX_QP)?.try_into() else {
            unreachable!("as many as were asked for");
        };
        let table = Self {
            slots,
            end: AtomicUsize::new(0),
        };
        // Queue pairs without a peer refer to it.
        table.make(0)?;
        Ok(table)
    }

    /// Creates the context for a queue pair number, if there is none. Call under the device's lock.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn make(&self, qpn: u32) -> Result<(), Error> {
        let index = qpn as usize & (MAX_QP - 1);
        let slot = &self.slots[index];
        // Relaxed: stored under the lock.
        if slot.load(Ordering::Relaxed).is_null() {
            let ctx = Box::into_raw(boxed(QpCtx::new(index))?);
            // Release: pairs with the Acquire in `find` and `wait_for_all`.
            slot.store(ctx, Ordering::Release);
            // Relaxed: under the lock.
            self.end.fetch_max(index + 1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The context for a queue pair number, if one was ever created.
    ///
    /// # Safety
    /// The context must not be used after the table has been dropped.
    #[inline(always)]
    pub unsafe fn find(&self, qpn: u32) -> Option<&'static QpCtx> {
        // Acquire: pairs with the Release in `make`.
        let ctx = self.slots[qpn as usize & (MAX_QP - 1)].load(Ordering::Acquire);
        // SAFETY: made by Box, and freed only when the table is dropped.
        NonNull::new(ctx).map(|ctx| unsafe { ctx.as_ref() })
    }

    /// Waits until every requester's section has been left: see [`Hca::wait_for_all`](super::hca::Hca::wait_for_all). Under
    /// the device's lock.
    pub fn wait_for_all(&self) {
        // Relaxed: changed under the lock.
        for slot in &self.slots[..self.end.load(Ordering::Relaxed)] {
            // Acquire: pairs with the Release in `make`.
            if let Some(ctx) = NonNull::new(slot.load(Ordering::Acquire)) {
                // SAFETY: freed only when the table is dropped.
                unsafe { ctx.as_ref() }.sender.section.wait();
            }
        }
    }
}

impl Drop for QpTable {
    fn drop(&mut self) {
        for slot in &mut *self.slots {
            let ctx = *slot.get_mut();
            if !ctx.is_null() {
                // SAFETY: from `Box::into_raw`, and the device is no longer used.
                drop(unsafe { Box::from_raw(ctx) });
            }
        }
    }
}
