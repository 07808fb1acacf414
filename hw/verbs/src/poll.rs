//! Polling: completions of an extended queue are reported by core without being written to its ring.

use super::calls::Poller;
use super::cq::{Cq, Taken};
use super::reported::Reported;
use super::sys;
use super::tag::{Kind, bits};
use super::wc::{self, Fields as _};
use crate::error::Error;
use bellwire_core::cqe::Cqe64;
use bellwire_core::queue::{Completion, CompletionQueue};
use bellwire_provider::history::OldCqe;
use std::ptr::NonNull;

type Core = CompletionQueue<'static>;

/// The poller of an extended queue.
pub struct Extended {
    poller: Poller,
    cq: NonNull<Cq>,
    attr: sys::ibv_poll_cq_attr,
    reported: Reported,
}

impl std::fmt::Debug for Extended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Extended").finish_non_exhaustive()
    }
}

// SAFETY: the queue may be shared between threads, and libibverbs called from any.
unsafe impl Send for Extended {}

impl Extended {
    /// `None`: the queue is a plain one.
    ///
    /// # Errors
    /// There is no memory for the record of past completions.
    ///
    /// # Safety
    /// The queue outlives this, and nothing else polls it.
    pub unsafe fn new(cq: &Cq, entries: u32) -> Result<Option<Self>, Error> {
        let Some(poller) = cq.extended else {
            return Ok(None);
        };
        Ok(Some(Self {
            poller,
            cq: NonNull::from(cq),
            attr: sys::ibv_poll_cq_attr { comp_mask: 0 },
            reported: Reported::new(entries)?,
        }))
    }

    /// Polls one completion: the first entry in core's ring if there is one, since it is older, otherwise the
    /// device's next completion.
    #[inline(always)]
    pub fn poll_one(&mut self, core: &mut Core) -> Option<Completion<'static>> {
        const SEND: u8 = Kind::Send as u8;
        const FETCH: u8 = Kind::Fetch as u8;
        const RECV: u8 = Kind::Recv as u8;
        // Again only after completions that belong to no request.
        loop {
            // SAFETY: the caller of `new` guarantees that the queue outlives this.
            let cq = unsafe { self.cq.as_ref() };
            let Some(inner) = cq.take_empty() else {
                if let completion @ Some(_) = self.poll_ring(core) {
                    return completion;
                }
                continue;
            };
            // SAFETY: the queue is alive, and it is taken, so nothing else polls it.
            let Some(wc) = (unsafe { wc::Extended::start(self.poller, &raw mut self.attr) }) else {
                inner.still_empty();
                return None;
            };
            let wr_id = wc.wr_id();
            let (kind, user_index, counter) = bits(wr_id);
            let failed = wc.status() != sys::ibv_wc_status::IBV_WC_SUCCESS;
            // The most frequent completions have code of their own. No completion older than this one can be
            // written to the ring now, so the queue may be released before core reports it.
            let completion = match kind {
                SEND if !failed => {
                    drop(wc);
                    inner.still_empty();
                    self.reported.sent(wr_id);
                    // SAFETY: libibverbs has reported this completion.
                    unsafe { core.complete_send(user_index, counter, 0) }
                }
                RECV if !failed && wc::is_plain(&wc) => {
                    let bytes = wc.byte_len();
                    drop(wc);
                    inner.still_empty();
                    self.reported.brought(wr_id, bytes);
                    // SAFETY: libibverbs has reported this completion.
                    unsafe { core.complete_recv(user_index, counter, bytes) }
                }
                FETCH if !failed => {
                    let bytes = wc.byte_len();
                    drop(wc);
                    inner.still_empty();
                    self.reported.brought(wr_id, bytes);
                    // SAFETY: libibverbs has reported this completion.
                    unsafe { core.complete_send(user_index, counter, bytes) }
                }
                _ => match self.seldom(core, inner, wc, failed) {
                    // SAFETY: the entry was just put there, as libibverbs reported it.
                    Some(cqe) => unsafe { core.complete(&cqe) },
                    None => None,
                },
            };
            if completion.is_some() {
                return completion;
            }
        }
    }

    /// Polls core's ring, which may hold entries. `None`: none that belongs to a request.
    #[inline(always)]
    fn poll_ring(&mut self, core: &mut Core) -> Option<Completion<'static>> {
        if !self.ring_holds(core) {
            return None;
        }
        let index = core.next_index();
        let completion = core.poll_out_of_line();
        self.polled_ring(index, core.next_index());
        completion
    }

    /// Whether core's ring holds entries.
    #[cold]
    #[inline(never)]
    fn ring_holds(&mut self, core: &mut Core) -> bool {
        // SAFETY: the caller of `new` guarantees that the queue outlives this.
        let cq = unsafe { self.cq.as_ref() };
        let mut inner = cq.take();
        let holds = inner.producer != core.next_index();
        inner.waiting = holds;
        drop(inner);
        if holds && cq.overrun() {
            core.entries_lost();
        }
        holds
    }

    /// Remembers the entries of core's ring from `index` up to `end` as reported, including entries that
    /// belonged to no request.
    #[cold]
    #[inline(never)]
    fn polled_ring(&mut self, index: u32, end: u32) {
        let taken = end.wrapping_sub(index);
        (0..taken).for_each(|at| self.reported.in_ring(index.wrapping_add(at)));
    }

    /// Writes a completion that is not a plain success to core's ring, and returns its entry. `None`: it
    /// belongs to no request.
    #[inline(never)]
    fn seldom(
        &mut self,
        core: &mut Core,
        mut inner: Taken<'_>,
        wc: wc::Extended,
        failed: bool,
    ) -> Option<Cqe64> {
        // SAFETY: the caller of `new` guarantees that the queue outlives this.
        if failed && unsafe { self.cq.as_ref() }.overrun() {
            core.entries_lost();
        }
        let entry = inner.entry(&wc);
        if let Some(cqe) = &entry {
            // The ring is marked as empty: the entry is reported before the ring is looked at again.
            inner.put(cqe);
            self.reported.in_ring(core.next_index());
        }
        drop(wc);
        inner.still_empty();
        entry
    }

    /// Number of completions reported so far: the index of the next one.
    pub fn count(&self) -> u32 {
        self.reported.count()
    }

    /// All completions that are known, oldest first, given the contents of core's ring.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn history(&self, ring: &[OldCqe]) -> Result<Vec<OldCqe>, Error> {
        self.reported.history(ring)
    }
}

impl Cq {
    /// Polls one completion of a plain queue.
    #[inline(always)]
    pub fn poll_one(&self, core: &mut Core) -> Option<Completion<'static>> {
        loop {
            let completion = core.poll_out_of_line();
            if completion.is_some() || !self.fetch_for(core) {
                return completion;
            }
        }
    }

    /// Fetches completions of a plain queue to core's ring, which was found empty; returns whether it holds
    /// any.
    #[inline(never)]
    fn fetch_for(&self, core: &mut Core) -> bool {
        if self.overrun() {
            core.entries_lost();
        }
        let mut inner = self.take();
        // Another thread may have fetched completions since the ring was looked at.
        self.fetch_plain(&mut inner) != 0 || inner.producer != core.next_index()
    }
}
