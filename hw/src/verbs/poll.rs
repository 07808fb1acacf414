//! Polling: core tells of the device's completions without entries of its ring.

use super::calls::Poller;
use super::cq::{Cq, Taken};
use super::sys;
use super::tag::{Kind, bits};
use super::told::Told;
use super::wc::{self, Fields as _};
use crate::cq::OldCqe;
use bellwire_core::queue::{Completion, CompletionQueue};
use std::ptr::NonNull;

type Core = CompletionQueue<'static>;

/// The poller's part of an extended queue.
pub(crate) struct Extended {
    poller: Poller,
    cq: NonNull<Cq>,
    attr: sys::ibv_poll_cq_attr,
    told: Told,
}

impl std::fmt::Debug for Extended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Extended").finish_non_exhaustive()
    }
}

// SAFETY: the queue may be shared between threads, and libibverbs called from any.
unsafe impl Send for Extended {}

impl Extended {
    /// `None`: it is a plain one.
    ///
    /// # Safety
    /// The queue outlives this, which is its only poller.
    pub unsafe fn new(cq: &Cq, entries: u32) -> Option<Self> {
        Some(Self {
            poller: cq.extended?,
            cq: NonNull::from(cq),
            attr: sys::ibv_poll_cq_attr { comp_mask: 0 },
            told: Told::new(entries),
        })
    }

    /// Takes one completion: what stands in core's ring first, for it is older; else the device's next.
    #[inline(always)]
    pub fn poll_one(&mut self, core: &mut Core) -> Option<Completion<'static>> {
        self.poll_or(core, Self::poll_on)
    }

    /// As [`poll_one`](Self::poll_one), behind a completion that was nobody's.
    #[cold]
    #[inline(never)]
    fn poll_on(&mut self, core: &mut Core) -> Option<Completion<'static>> {
        loop {
            let mut passed = false;
            let told = self.poll_or(core, |_, _| {
                passed = true;
                None
            });
            if !passed {
                return told;
            }
        }
    }

    /// As [`poll_one`](Self::poll_one); asks `nobodys` when the completion is nobody's.
    #[inline(always)]
    fn poll_or(
        &mut self,
        core: &mut Core,
        nobodys: impl FnOnce(&mut Self, &mut Core) -> Option<Completion<'static>>,
    ) -> Option<Completion<'static>> {
        const SEND: u8 = Kind::Send as u8;
        const FETCH: u8 = Kind::Fetch as u8;
        const RECV: u8 = Kind::Recv as u8;
        // SAFETY: alive, by the promise of `new`.
        let cq = unsafe { self.cq.as_ref() };
        let Some(inner) = cq.take_empty() else {
            return match self.poll_ring(core) {
                None => nobodys(self, core).map(Completion::unpacked),
                told => told.map(Completion::unpacked),
            };
        };
        // SAFETY: alive, and `inner` is ours: nobody else polls.
        let Some(wc) = (unsafe { wc::Extended::start(self.poller, &raw mut self.attr) }) else {
            inner.still_empty();
            return None;
        };
        let wr_id = wc.wr_id();
        let (kind, user_index, counter) = bits(wr_id);
        let failed = wc.status() != sys::ibv_wc_status::IBV_WC_SUCCESS;
        // What there is most of has code of its own. Older completions than this come into the ring no
        // more, so that all may go on before core tells of it.
        match kind {
            SEND if !failed => {
                drop(wc);
                inner.still_empty();
                self.told.sent(wr_id);
                core.tell_sent(user_index, counter, 0, |core| nobodys(self, core))
            }
            RECV if !failed && wc::is_plain(&wc) => {
                let bytes = wc.byte_len();
                drop(wc);
                inner.still_empty();
                self.told.brought(wr_id, bytes);
                core.tell_received(user_index, bytes, |core| nobodys(self, core))
            }
            FETCH if !failed => {
                let bytes = wc.byte_len();
                drop(wc);
                inner.still_empty();
                self.told.brought(wr_id, bytes);
                core.tell_sent(user_index, counter, bytes, |core| nobodys(self, core))
            }
            _ => match self.seldom(core, inner, wc) {
                None => nobodys(self, core).map(Completion::unpacked),
                told => told.map(Completion::unpacked),
            },
        }
    }

    /// While something may stand in core's ring.
    #[cold]
    #[inline(never)]
    fn poll_ring(&mut self, core: &mut Core) -> Option<Completion<'static>> {
        // SAFETY: as in `poll_or`.
        let mut inner = unsafe { self.cq.as_ref() }.take();
        inner.waiting = inner.producer != core.next_index();
        if !inner.waiting {
            return None;
        }
        drop(inner);
        let index = core.next_index();
        let completion = core.poll_one();
        // With those that were nobody's.
        let taken = core.next_index().wrapping_sub(index);
        (0..taken).for_each(|at| self.told.in_ring(index.wrapping_add(at)));
        completion
    }

    /// A completion that is none of a plain success.
    #[inline(never)]
    fn seldom(
        &mut self,
        core: &mut Core,
        mut inner: Taken<'_>,
        wc: wc::Extended,
    ) -> Option<Completion<'static>> {
        let Some(cqe) = inner.entry(&wc) else {
            drop(wc);
            inner.still_empty();
            return None;
        };
        // Told before anybody looks there: the ring is still empty then.
        inner.put(&cqe);
        drop(wc);
        inner.still_empty();
        self.told.in_ring(core.next_index());
        core.tell(cqe)
    }

    /// Completions told in all: the index of the next.
    pub fn count(&self) -> u32 {
        self.told.count()
    }

    /// All completions that are known, oldest first, given what stands in core's ring.
    pub fn history(&self, ring: Vec<OldCqe>) -> Vec<OldCqe> {
        self.told.history(ring)
    }
}

impl Cq {
    /// As [`Extended::poll_one`], of a plain queue.
    pub fn poll_one(&self, core: &mut Core) -> Option<Completion<'static>> {
        loop {
            if let told @ Some(_) = core.poll_one() {
                return told;
            }
            let mut inner = self.take();
            // Be it that somebody else has fetched since the ring was looked at.
            if self.fetch_plain(&mut inner) == 0 && inner.producer == core.next_index() {
                return None;
            }
        }
    }
}
