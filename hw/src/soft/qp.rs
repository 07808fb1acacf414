//! What the device knows of a queue pair.
//!
//! Memory of a [`QpCtx`] stays valid until the device goes, so that a peer may look at one at any
//! time; a number that no longer fits tells it that the queue pair is gone.

use super::cq::CqCtx;
use super::quiesce::Section;
use super::receive::RecvWork;
use super::remote::Remote;
use super::run::Stop;
use super::turn::Turn;
use bellwire_core::wqe::SendRing;
use bellwire_core::wr::QpType;
use crossbeam_utils::CachePadded;
use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

/// The device's side of a queue pair.
#[derive(Debug, Default)]
pub(crate) struct QpCtx {
    pub face: CachePadded<Face>,
    pub sender: CachePadded<Sender>,
    pub receiver: CachePadded<Receiver>,
}

/// What peers look at. Changes seldom.
#[derive(Debug, Default)]
pub(crate) struct Face {
    /// Whose requests are taken: a [`connection`](super::record::connection), or those of all
    /// [`datagrams`](super::record::datagrams); zero while none are. It has the responder's own
    /// number too: the context may be another queue pair's by now.
    pub accepts: AtomicU64,
    pub pd: AtomicU32,
    /// Key that datagrams have to name.
    pub qkey: AtomicU32,
    /// Remote access that the queue pair allows.
    pub access: AtomicU32,
    /// The code that peers wait for when no receive is posted.
    pub min_rnr_timer: AtomicU8,
}

/// The requester.
#[derive(Debug, Default)]
pub(crate) struct Sender {
    /// Raised by the one thread that executes: the poster, or the engine.
    pub section: Section,
    /// The data path keeps out: entries are executed, or flushed, under the device's lock.
    pub closed: AtomicBool,
    /// Counter behind the last entry that was rung.
    pub producer: AtomicU32,
    /// Of a peer in another process: counter of the first entry that it has not acknowledged. Changed
    /// by the lock's holder while requests are under way, by whoever executes else.
    pub acked: AtomicU32,
    /// As well: number of the next request, in 16 bits.
    pub sent: AtomicU32,
    /// What the responder owes its requester in another process, for the next packet that goes there:
    /// changed by the lock's holder.
    pub owed: AtomicU64,
    /// What of that the last packet has told: changed by whoever executes.
    pub told: AtomicU64,
    /// Owned by the thread in the section while not `closed`, by the lock's holder else.
    pub work: UnsafeCell<Option<SendWork>>,
}

/// Where a requester stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendWork {
    pub transport: QpType,
    /// A reliable connection within this process: one look, for what is the usual case.
    pub is_local_rc: bool,
    pub ring: SendRing<'static>,
    /// Counter of the next entry to execute.
    pub consumer: u32,
    pub qpn: u32,
    pub pd: u32,
    pub peer: &'static QpCtx,
    pub own: &'static QpCtx,
    /// Set where the peer is in another process; `peer` is nobody's then.
    pub remote: Option<Remote>,
    /// What `peer` has to accept.
    pub connection: u64,
    /// Why the data path stopped at `consumer`, until the lock's holder deals with it.
    pub(super) stop: Option<Stop>,
    pub cq: &'static CqCtx,
    pub user_index: u32,
    pub max_rd_atomic: u8,
    /// Of datagrams: stands in for a request's Q_Key that has its top bit set.
    pub qkey: u32,
}

impl SendWork {
    /// Under the device's lock: everything before this counter has been told.
    pub fn pass(&mut self, counter: u32) {
        self.consumer = counter;
        // Relaxed: closed, so nobody sends.
        self.own.sender.acked.store(counter, Ordering::Relaxed);
    }
}

/// The responder's receive queue.
#[derive(Debug, Default)]
pub(crate) struct Receiver {
    /// Receives are flushed as they are posted: the poster takes the device's lock.
    pub flushing: AtomicBool,
    /// Among those who send datagrams, whose turn it is.
    pub turn: Turn,
    /// Owned by the peer that is accepted, within its section (of datagrams: by whoever has the
    /// turn as well); by the lock's holder once none is.
    pub work: UnsafeCell<Option<RecvWork>>,
}

// SAFETY: the cells' owners are named at each; ownership passes through `closed`, `accepts`, the
// sections and the device's lock.
unsafe impl Sync for QpCtx {}
// SAFETY: as above.
unsafe impl Send for QpCtx {}

/// Contexts by index, made when first used.
#[derive(Debug)]
pub(super) struct QpTable {
    slots: Box<[std::sync::atomic::AtomicPtr<QpCtx>]>,
}

/// Queue pairs that a device can have at once. Index 0 is not used.
pub(super) const MAX_QP: usize = 1 << 16;

impl QpTable {
    pub fn new() -> Self {
        Self {
            slots: (0..MAX_QP).map(|_| Default::default()).collect(),
        }
    }

    /// The context that a queue pair number falls on. Under the device's lock.
    ///
    /// # Safety
    /// Not used after the table has gone.
    pub unsafe fn get(&self, qpn: u32) -> &'static QpCtx {
        use std::sync::atomic::Ordering;
        let slot = &self.slots[qpn as usize & (MAX_QP - 1)];
        // Acquire: partner of the release below, should another thread have made it.
        let mut ctx = slot.load(Ordering::Acquire);
        if ctx.is_null() {
            let new = Box::<QpCtx>::default();
            // Relaxed: not shared yet.
            new.sender
                .closed
                .store(true, std::sync::atomic::Ordering::Relaxed);
            ctx = Box::into_raw(new);
            // Release: partner of the acquire above.
            slot.store(ctx, Ordering::Release);
        }
        // SAFETY: made by Box, and freed only when the table goes.
        unsafe { NonNull::new_unchecked(ctx).as_ref() }
    }

    /// The context that a queue pair number falls on, if there ever was one.
    ///
    /// # Safety
    /// As [`get`](Self::get).
    #[inline(always)]
    pub unsafe fn find(&self, qpn: u32) -> Option<&'static QpCtx> {
        use std::sync::atomic::Ordering;
        // Acquire: partner of the release in `get`.
        let ctx = self.slots[qpn as usize & (MAX_QP - 1)].load(Ordering::Acquire);
        // SAFETY: made by Box, and freed only when the table goes.
        NonNull::new(ctx).map(|ctx| unsafe { ctx.as_ref() })
    }

    /// Waits until every section of the first `count` contexts has been left. Call after
    /// [`super::quiesce::Barriers::heavy`].
    pub fn wait_for_all(&self, count: usize) {
        use std::sync::atomic::Ordering;
        for slot in &self.slots[..count] {
            // Acquire: partner of the release in `get`.
            if let Some(ctx) = NonNull::new(slot.load(Ordering::Acquire)) {
                // SAFETY: freed only when the table goes.
                unsafe { ctx.as_ref() }.sender.section.wait();
            }
        }
    }
}

impl Drop for QpTable {
    fn drop(&mut self) {
        for slot in &mut self.slots {
            let ctx = *slot.get_mut();
            if !ctx.is_null() {
                // SAFETY: from `Box::into_raw`, and nobody uses the device any more.
                drop(unsafe { Box::from_raw(ctx) });
            }
        }
    }
}
