//! Completion queues: the device's queue, and the part of its completions that goes through core's ring.
//!
//! ```text
//!                  ┌─► poll ─────────────────────────► core's ledger
//!  device's queue ─┤                                     ▲
//!                  └─► fetch: Cqe64 in core's ring ──────┘
//! ```
//!
//! The poller of an extended queue takes the device's completions from it one at a time. Two kinds of
//! completions are written to core's ring instead, as entries in the ConnectX format: those of a plain queue,
//! which is polled in batches, and those fetched on the control path, where destroying a queue pair fetches
//! all completions so that those reported for it are not lost with it. Therefore only one thread at a time
//! takes completions, and the poller learns by the same atomic access whether core's ring holds entries,
//! which are older.
//!
//! A poll reads only the fields that the kind of the completed request has.

mod object;

pub use object::{CqChannel, CqObject};

use super::context::Context;
use super::qp::Qp;
use super::srq::Srq;
use super::sys;
use super::tag::{Kind, parts};
use super::wc;
use crate::error::Error;
use bellwire_core::cqe::{Cqe64, owner_bit};
use bellwire_core::port::DoorbellRecord;
use bellwire_core::queue::CqMemory;
use bellwire_core::wr::WcStatus;
use bellwire_provider::backoff::Backoff;
use bellwire_provider::event::AsyncQueue;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// Most entries fetched from a plain queue at once.
const BATCH: u32 = 16;

/// No thread takes completions, and core's ring holds none that the poller of an extended queue has to
/// report.
const FREE: u8 = 0;
/// No thread takes completions; core's ring may hold some.
const WAITING: u8 = 1;
/// A thread takes completions.
const TAKEN: u8 = 2;

/// The index in the consumer record has 24 bits.
const CI_MASK: u32 = 0xff_ffff;

/// The device's completion queue, and core's ring behind it.
#[derive(Debug)]
pub struct Cq {
    object: CqObject,
    consumer: &'static DoorbellRecord,
    /// [`FREE`], [`WAITING`], or [`TAKEN`].
    state: AtomicU8,
    /// Accessed only by the thread that set `state` to [`TAKEN`].
    inner: UnsafeCell<Inner>,
    /// Core's ring is no longer polled.
    retired: AtomicBool,
}

impl Deref for Cq {
    type Target = CqObject;

    #[inline(always)]
    fn deref(&self) -> &CqObject {
        &self.object
    }
}

/// The state that fetching completions needs.
pub(super) struct Inner {
    memory: CqMemory<'static>,
    /// Index after the last entry.
    pub producer: u32,
    /// Core's ring may hold entries that were not polled yet.
    pub waiting: bool,
    /// The queue pairs whose requests complete here, by queue pair number.
    pub users: Vec<User>,
    /// The shared receive queues for XRC whose receives complete here, by user index.
    srqs: Vec<(u32, Arc<Srq>)>,
    attr: sys::ibv_poll_cq_attr,
    wcs: Box<[MaybeUninit<sys::ibv_wc>; BATCH as usize]>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner")
            .field("producer", &self.producer)
            .field("users", &self.users)
            .finish_non_exhaustive()
    }
}

/// A queue pair whose requests complete here.
#[derive(Debug)]
pub(super) struct User {
    pub qpn: u32,
    /// The user index in the entries of its receives.
    pub user_index: u32,
    pub qp: Arc<Qp>,
}

// SAFETY: only the thread that has taken the queue accesses `inner`; libibverbs may be called from any
// thread.
unsafe impl Send for Cq {}
// SAFETY: only the thread that has taken the queue accesses `inner`; libibverbs may be called from any
// thread.
unsafe impl Sync for Cq {}

impl Cq {
    /// # Safety
    /// Memory and record outlive this, and nothing but the one consumer uses them.
    pub unsafe fn new(
        context: &Arc<Context>,
        memory: CqMemory<'static>,
        consumer: &'static DoorbellRecord,
        events: Arc<AsyncQueue>,
        channel: Option<CqChannel>,
    ) -> Result<Self, Error> {
        let plain = context.is_plain;
        Ok(Self {
            object: CqObject::new(context, memory.count(), plain, events, channel)?,
            consumer,
            state: AtomicU8::new(FREE),
            inner: UnsafeCell::new(Inner {
                memory,
                producer: 0,
                waiting: false,
                users: Vec::new(),
                srqs: Vec::new(),
                attr: sys::ibv_poll_cq_attr { comp_mask: 0 },
                wcs: Box::new([const { MaybeUninit::uninit() }; BATCH as usize]),
            }),
            retired: AtomicBool::new(false),
        })
    }

    /// Index after the last entry in core's ring.
    pub fn produced(&self) -> u32 {
        self.take().producer
    }

    /// Whether everything before `index` has been polled.
    pub fn polled(&self, index: u32) -> bool {
        self.consumer.load().wrapping_sub(index) & CI_MASK < CI_MASK.div_ceil(2)
    }

    /// Arms the queue (`ibv_req_notify_cq`).
    pub fn arm(&self, solicited_only: bool) -> Result<(), Error> {
        self.object.arm(solicited_only)
    }

    /// The program's object is gone: once this has returned, no event names the queue.
    pub fn retire(&self) {
        // Relaxed: the flag orders nothing else.
        self.retired.store(true, Ordering::Relaxed);
        self.object.retire();
    }

    /// Takes the queue, once no other thread takes completions.
    #[inline(always)]
    pub(super) fn take(&self) -> Taken<'_> {
        // Acquire: pairs with the Release when [`Taken`] is dropped.
        if self.state.swap(TAKEN, Ordering::Acquire) == TAKEN {
            self.wait();
        }
        Taken(self)
    }

    /// Takes the queue as [`take`](Self::take) does, if core's ring is empty and no other thread takes
    /// completions.
    #[inline(always)]
    pub(super) fn take_empty(&self) -> Option<Taken<'_>> {
        // Acquire: pairs with the Release when [`Taken`] is dropped.
        match self.state.swap(TAKEN, Ordering::Acquire) {
            FREE => Some(Taken(self)),
            found => self.not_empty(found),
        }
    }

    #[cold]
    #[inline(never)]
    fn not_empty(&self, found: u8) -> Option<Taken<'_>> {
        if found == TAKEN {
            self.wait();
        }
        drop(Taken(self));
        None
    }

    #[cold]
    fn wait(&self) {
        let mut backoff = Backoff::between_polls();
        // Acquire: pairs with the Release when [`Taken`] is dropped.
        while self.state.swap(TAKEN, Ordering::Acquire) == TAKEN {
            backoff.wait();
        }
    }

    /// Runs `look` while no other thread takes completions, so that none is written to core's ring.
    pub fn hold_still<R>(&self, look: impl FnOnce() -> R) -> R {
        let _taken = self.take();
        look()
    }

    /// Moves all completions of the device into core's ring; returns how many there were. For the control path.
    pub(super) fn fetch_all(&self) -> u32 {
        let mut inner = self.take();
        let mut all = 0;
        loop {
            match self.fetch(&mut inner) {
                0 => return all,
                some => all += some,
            }
        }
    }

    /// From now on, receives of this shared receive queue for XRC may complete here.
    pub fn admit(&self, user_index: u32, srq: &Arc<Srq>) {
        let srqs = &mut self.take().srqs;
        let at = srqs.partition_point(|(index, _)| *index < user_index);
        srqs.insert(at, (user_index, srq.clone()));
    }

    /// Fetches all completions of a shared receive queue for XRC, then destroys the queue by `destroy`.
    pub fn forget(&self, user_index: u32, destroy: impl FnOnce()) {
        self.fetch_all();
        let mut inner = self.take();
        destroy();
        // For a completion that arrived in between, libmlx5 finds no queue, and returns an error that also
        // discards the completions before it in the same batch. So they are polled one at a time, and each
        // error is that of one such completion.
        for _ in 0..inner.memory.count() {
            if self.room(&inner) == 0 || self.fetch_one(&mut inner) {
                break;
            }
        }
        inner.srqs.retain(|(index, _)| *index != user_index);
    }

    /// Moves one completion into core's ring, or skips one that fails; returns whether there was none.
    fn fetch_one(&self, inner: &mut Inner) -> bool {
        let Some(cq) = self.extended else {
            let wc: *mut sys::ibv_wc = inner.wcs.as_mut_ptr().cast();
            // SAFETY: the queue is alive, and there is room for one completion.
            let count = unsafe { sys::ibv_poll_cq(self.handle().as_ptr(), 1, wc) };
            if count == 1 {
                // SAFETY: filled in by the poll; nothing in `fetched` touches the batch.
                inner.fetched(unsafe { &*wc });
            }
            return count == 0;
        };
        // SAFETY: the queue is alive, and it is taken, so nothing else polls it.
        match unsafe { wc::Extended::try_start(cq, &raw mut inner.attr) } {
            Ok(wc) => {
                inner.fetched(&wc);
                false
            }
            Err(answer) => answer == libc::ENOENT,
        }
    }

    /// The entries that core's ring has room for: a whole batch when it is no longer polled.
    fn room(&self, inner: &Inner) -> u32 {
        // Relaxed: the flag orders nothing else.
        if self.retired.load(Ordering::Relaxed) {
            return BATCH;
        }
        let ahead = inner.producer.wrapping_sub(self.consumer.load()) & CI_MASK;
        inner.memory.count().saturating_sub(ahead)
    }

    /// Moves up to a batch of completions into core's ring; returns how many the device had.
    fn fetch(&self, inner: &mut Inner) -> u32 {
        let Some(cq) = self.extended else {
            return self.fetch_plain(inner);
        };
        if self.room(inner) == 0 {
            return 0;
        }
        // SAFETY: the queue is alive, and it is taken, so nothing else polls it.
        let found = unsafe { wc::Extended::start(cq, &raw mut inner.attr) };
        found.map_or(0, |wc| {
            inner.fetched(&wc);
            1
        })
    }

    pub(super) fn fetch_plain(&self, inner: &mut Inner) -> u32 {
        let limit = self.room(inner).min(BATCH);
        if limit == 0 {
            return 0;
        }
        let wcs: *mut sys::ibv_wc = inner.wcs.as_mut_ptr().cast();
        // SAFETY: the queue is alive, and there is room for a batch.
        let count = unsafe { sys::ibv_poll_cq(self.handle().as_ptr(), limit as i32, wcs) };
        let count = u32::try_from(count).unwrap_or(0).min(limit);
        for index in 0..count {
            // SAFETY: filled in by the poll; nothing in `fetched` touches the batch.
            inner.fetched(unsafe { &*wcs.add(index as usize) });
        }
        count
    }

    /// Writes an entry that is not the device's; `false`: there is no room.
    pub(super) fn produce(&self, cqe: &Cqe64) -> bool {
        let mut inner = self.take();
        let room = self.room(&inner) != 0;
        if room {
            inner.put(cqe);
            inner.waiting = true;
        }
        room
    }
}

/// A completion queue from which no other thread takes completions.
pub(super) struct Taken<'c>(&'c Cq);

impl Taken<'_> {
    /// Releases the queue in the state in which [`Cq::take_empty`] found it: nothing was written to core's
    /// ring.
    #[inline(always)]
    pub fn still_empty(self) {
        // Release: pairs with the Acquire in `take` and `take_empty`.
        self.0.state.store(FREE, Ordering::Release);
        std::mem::forget(self);
    }
}

impl Deref for Taken<'_> {
    type Target = Inner;

    #[inline(always)]
    fn deref(&self) -> &Inner {
        // SAFETY: the queue is taken, so no other thread accesses `inner`.
        unsafe { &*self.0.inner.get() }
    }
}

impl DerefMut for Taken<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Inner {
        // SAFETY: the queue is taken, so no other thread accesses `inner`.
        unsafe { &mut *self.0.inner.get() }
    }
}

impl Drop for Taken<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        let state = if self.waiting { WAITING } else { FREE };
        // Release: pairs with the Acquire in `take` and `take_empty`.
        self.0.state.store(state, Ordering::Release);
    }
}

impl Inner {
    /// Writes a completion to core's ring, unless it belongs to no request. There must be room for it.
    fn fetched(&mut self, wc: &impl wc::Fields) {
        if let Some(cqe) = self.entry(wc) {
            self.put(&cqe);
            self.waiting = true;
        }
    }

    /// Writes an entry. There must be room for it.
    #[inline(always)]
    pub(super) fn put(&mut self, cqe: &Cqe64) {
        let (index, count) = (self.producer, self.memory.count());
        let op_own = cqe.op_own() | owner_bit(index, count);
        // SAFETY: this is the only producer, and there is room: the consumer has passed the previous entry in
        // this place.
        unsafe { Cqe64::publish(self.memory.entry(index), cqe, op_own) };
        self.producer = index.wrapping_add(1);
    }

    /// The entry of a completion; `None`: the completion belongs to no request of the program, or ends a
    /// drain.
    #[inline(never)]
    pub fn entry(&mut self, wc: &impl wc::Fields) -> Option<Cqe64> {
        let (kind, user_index, counter) = parts(wc.wr_id());
        let failed = wc.status() != sys::ibv_wc_status::IBV_WC_SUCCESS;
        let user = || {
            let qpn = wc.qp_num();
            let found = self.users.binary_search_by_key(&qpn, |user| user.qpn);
            found.ok().map(|index| &self.users[index])
        };
        match kind? {
            Kind::LastSend => user()?.qp.drained(user_index, Kind::LastSend),
            Kind::LastRecv => user()?.qp.drained(user_index, Kind::LastRecv),
            Kind::Shared => {
                let user = user()?;
                user.qp.srq()?.completed(counter as u16);
                user.qp.note_failure(failed);
                return Some(match (failed, user.qp.is_datagram()) {
                    (true, _) => wc::failed(wc, Kind::Shared, user.user_index, counter),
                    (false, true) => wc::datagram(wc, user.user_index, counter),
                    (false, false) => wc::received(wc, user.user_index, counter),
                });
            }
            Kind::Xrc => {
                let srqs = &self.srqs;
                let found = srqs.binary_search_by_key(&user_index, |(index, _)| *index);
                srqs[found.ok()?].1.completed(counter as u16);
                return Some(match failed {
                    true => wc::failed(wc, Kind::Xrc, user_index, counter),
                    false => wc::received_by_target(wc, user_index, counter),
                });
            }
            kind if failed => {
                if let Some(user) = user() {
                    user.qp.note_failure(failed);
                    // The device does not know which call was refused.
                    let flushed = wc.status() == u32::from(WcStatus::WrFlushErr.number());
                    if let Kind::Send | Kind::Fetch = kind
                        && flushed
                        && let refusal @ Some(_) = user.qp.refusal(user_index, counter)
                    {
                        return refusal;
                    }
                }
                return Some(wc::failed(wc, kind, user_index, counter));
            }
            Kind::Send => return Some(wc::sent(user_index, counter)),
            Kind::Fetch => return Some(wc::fetched(wc.byte_len(), user_index, counter)),
            Kind::Recv => return Some(wc::received(wc, user_index, counter)),
            Kind::Datagram => return Some(wc::datagram(wc, user_index, counter)),
        }
        None
    }
}
