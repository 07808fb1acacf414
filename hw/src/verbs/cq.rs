//! Completion queues: the device's, and what of it has to stand in core's ring.
//!
//! ```text
//!                  ┌─► poll ─────────────────────────► core's ledger
//!  device's queue ─┤                                     ▲
//!                  └─► fetch: Cqe64 in core's ring ──────┘
//! ```
//!
//! Who polls an extended queue takes the device's completions from it, one at a time. Into core's ring,
//! as entries in the ConnectX format, come those of a plain queue, which are polled in batches, and
//! those that are taken on the control path: who destroys a queue pair fetches, so that what it has
//! told is not lost with it. Hence one at a time takes completions; and the poller learns with the same
//! look whether something stands in core's ring, which is older.

mod object;

pub(crate) use object::{CqChannel, CqObject};

use super::context::Context;
use super::qp::Qp;
use super::srq::Srq;
use super::sys;
use super::tag::{Kind, parts};
use super::wc;
use crate::error::Error;
use crate::event::AsyncQueue;
use bellwire_core::cqe::{Cqe64, owner_bit};
use bellwire_core::port::DoorbellRecord;
use bellwire_core::queue::CqMemory;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// Entries fetched at once from a plain queue.
const BATCH: u32 = 16;

/// Nobody takes completions, and none stands in core's ring that an extended queue's poller has to tell.
const FREE: u8 = 0;
/// Nobody takes completions; some may stand in core's ring.
const WAITING: u8 = 1;
/// Somebody takes completions.
const TAKEN: u8 = 2;

/// The consumer record has 24 bits.
const CI_MASK: u32 = 0xff_ffff;

/// The device's completion queue, and core's ring behind it.
#[derive(Debug)]
pub(crate) struct Cq {
    object: CqObject,
    consumer: &'static DoorbellRecord,
    /// [`FREE`], [`WAITING`], or [`TAKEN`].
    state: AtomicU8,
    /// Of whoever has taken it.
    inner: UnsafeCell<Inner>,
    /// Nobody polls core's ring any more.
    retired: AtomicBool,
}

impl Deref for Cq {
    type Target = CqObject;

    #[inline(always)]
    fn deref(&self) -> &CqObject {
        &self.object
    }
}

/// What fetching needs.
pub(super) struct Inner {
    memory: CqMemory<'static>,
    /// Index behind the last entry.
    pub producer: u32,
    /// Entries may stand in core's ring that are still to be polled.
    pub waiting: bool,
    /// The queue pairs that complete here, by number.
    pub users: Vec<User>,
    /// The shared receive queues for XRC that complete here, by user index.
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

/// A queue pair that completes here.
#[derive(Debug)]
pub(super) struct User {
    pub qpn: u32,
    /// How entries of its receives name it.
    pub user_index: u32,
    pub qp: Arc<Qp>,
}

// SAFETY: `inner` belongs to whoever has taken the queue; libibverbs may be called from any thread.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

impl Cq {
    /// # Safety
    /// The memory and the record stay until this has gone, and are used by nobody else but the one
    /// consumer.
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

    /// Index behind the last entry in core's ring.
    pub fn produced(&self) -> u32 {
        self.take().producer
    }

    /// Whether everything before `index` has been polled.
    pub fn polled(&self, index: u32) -> bool {
        self.consumer.load().wrapping_sub(index) & CI_MASK < CI_MASK.div_ceil(2)
    }

    /// Arms it.
    pub fn arm(&self, solicited_only: bool) -> Result<(), Error> {
        self.object.arm(solicited_only)
    }

    /// The program's side is gone: no event names it any more when this returns.
    pub fn retire(&self) {
        // Relaxed: a flag on its own.
        self.retired.store(true, Ordering::Relaxed);
        self.object.retire();
    }

    /// Waits until nobody else takes completions.
    #[inline(always)]
    pub(super) fn take(&self) -> Taken<'_> {
        // Acquire: partner of the release when it is dropped.
        if self.state.swap(TAKEN, Ordering::Acquire) == TAKEN {
            self.wait();
        }
        Taken(self)
    }

    /// As [`take`](Self::take), if core's ring is empty and nobody else takes completions.
    #[inline(always)]
    pub(super) fn take_empty(&self) -> Option<Taken<'_>> {
        // Acquire: as above.
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
        // Acquire: as above.
        while self.state.swap(TAKEN, Ordering::Acquire) == TAKEN {
            std::thread::yield_now();
        }
    }

    /// Runs `look` while nobody takes completions, and so writes to core's ring.
    pub fn hold_still<R>(&self, look: impl FnOnce() -> R) -> R {
        let _taken = self.take();
        look()
    }

    /// Moves all that the device has into core's ring. For the control path.
    pub(super) fn fetch_all(&self) {
        let mut inner = self.take();
        while self.fetch(&mut inner) != 0 {}
    }

    /// From here on completions of a shared receive queue for XRC may come.
    pub fn admit(&self, user_index: u32, srq: &Arc<Srq>) {
        let srqs = &mut self.take().srqs;
        let at = srqs.partition_point(|(index, _)| *index < user_index);
        srqs.insert(at, (user_index, srq.clone()));
    }

    /// Has a shared receive queue for XRC destroyed, all of whose completions are fetched before.
    pub fn forget(&self, user_index: u32, destroy: impl FnOnce()) {
        self.fetch_all();
        let mut inner = self.take();
        destroy();
        // What has come meanwhile libmlx5 finds no queue for, and answers with an error, which takes the
        // completions before it in a batch along: so one at a time, and each error is one of those.
        for _ in 0..inner.memory.count() {
            if self.room(&inner) == 0 || self.fetch_one(&mut inner) {
                break;
            }
        }
        inner.srqs.retain(|(index, _)| *index != user_index);
    }

    /// Moves one completion into core's ring, or passes over one in error; whether there was none.
    fn fetch_one(&self, inner: &mut Inner) -> bool {
        let Some(cq) = self.extended else {
            let wc: *mut sys::ibv_wc = inner.wcs.as_mut_ptr().cast();
            // SAFETY: alive; there is room for one.
            let count = unsafe { sys::ibv_poll_cq(self.handle().as_ptr(), 1, wc) };
            if count == 1 {
                // SAFETY: filled in by the poll; nothing in `fetched` touches the batch.
                inner.fetched(unsafe { &*wc });
            }
            return count == 0;
        };
        // SAFETY: alive, and `inner` is ours: nobody else polls.
        match unsafe { wc::Extended::try_start(cq, &raw mut inner.attr) } {
            Ok(wc) => {
                inner.fetched(&wc);
                false
            }
            Err(answer) => answer == libc::ENOENT,
        }
    }

    /// Entries that core's ring has room for: any number, when nobody reads it any more.
    fn room(&self, inner: &Inner) -> u32 {
        // Relaxed: a flag on its own.
        if self.retired.load(Ordering::Relaxed) {
            return BATCH;
        }
        let ahead = inner.producer.wrapping_sub(self.consumer.load()) & CI_MASK;
        inner.memory.count().saturating_sub(ahead)
    }

    /// Moves up to a batch into core's ring; how many the device had.
    fn fetch(&self, inner: &mut Inner) -> u32 {
        let Some(cq) = self.extended else {
            return self.fetch_plain(inner);
        };
        if self.room(inner) == 0 {
            return 0;
        }
        // SAFETY: alive, and `inner` is ours: nobody else polls.
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
        // SAFETY: alive; there is room for a batch.
        let count = unsafe { sys::ibv_poll_cq(self.handle().as_ptr(), limit as i32, wcs) };
        let count = u32::try_from(count).unwrap_or(0).min(limit);
        for index in 0..count {
            // SAFETY: filled in by the poll; nothing in `fetched` touches the batch.
            inner.fetched(unsafe { &*wcs.add(index as usize) });
        }
        count
    }

    /// Writes an entry that the device did not; `false`: there is no room.
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

/// A queue whose completions nobody else takes meanwhile.
pub(super) struct Taken<'c>(&'c Cq);

impl Taken<'_> {
    /// Ends it as [`Cq::take_empty`] began it: nothing was written to core's ring.
    #[inline(always)]
    pub fn still_empty(self) {
        // Release: as when it is dropped.
        self.0.state.store(FREE, Ordering::Release);
        std::mem::forget(self);
    }
}

impl Deref for Taken<'_> {
    type Target = Inner;

    #[inline(always)]
    fn deref(&self) -> &Inner {
        // SAFETY: taken.
        unsafe { &*self.0.inner.get() }
    }
}

impl DerefMut for Taken<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Inner {
        // SAFETY: taken.
        unsafe { &mut *self.0.inner.get() }
    }
}

impl Drop for Taken<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        let state = if self.waiting { WAITING } else { FREE };
        // Release: partner of the acquire in `take`.
        self.0.state.store(state, Ordering::Release);
    }
}

impl Inner {
    /// Writes a completion into core's ring, unless it is nobody's. There is room for it.
    fn fetched(&mut self, wc: &impl wc::Fields) {
        if let Some(cqe) = self.entry(wc) {
            self.put(&cqe);
            self.waiting = true;
        }
    }

    /// Writes an entry. There is room for it.
    #[inline(always)]
    pub(super) fn put(&mut self, cqe: &Cqe64) {
        let (index, count) = (self.producer, self.memory.count());
        let op_own = cqe.op_own() | owner_bit(index, count);
        // SAFETY: the only producer, and there is room: the consumer has passed the last use.
        unsafe { Cqe64::publish(self.memory.entry(index), cqe, op_own) };
        self.producer = index.wrapping_add(1);
    }

    /// The entry of a completion; `None`: it is nobody's, or the end of a drain.
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
