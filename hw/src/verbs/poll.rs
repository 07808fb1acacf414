//! Polling: core tells of the device's completions without reading them back from its ring.

use super::cq::{Cq, Taken};
use super::sys;
use super::tag::{Kind, parts};
use super::wc::{self, Fields as _};
use bellwire_core::queue::{Completion, CompletionQueue};
use std::ptr::NonNull;

impl Cq {
    /// Takes one completion: what stands in core's ring first, for it is older; else the device's next.
    #[inline(always)]
    pub fn poll_one(&self, core: &mut CompletionQueue<'static>) -> Option<Completion<'static>> {
        match self.extended {
            Some(cq) => self.poll_extended(core, cq),
            None => self.poll_plain(core),
        }
    }

    #[inline(always)]
    fn poll_extended(
        &self,
        core: &mut CompletionQueue<'static>,
        cq: NonNull<sys::ibv_cq_ex>,
    ) -> Option<Completion<'static>> {
        loop {
            let mut inner = self.take();
            if inner.producer != core.next_index() {
                drop(inner);
                if let told @ Some(_) = core.poll_one() {
                    return told;
                }
                continue;
            }
            // SAFETY: alive, and `inner` is ours: nobody else polls.
            let wc = unsafe { wc::Extended::start(cq) }?;
            let (kind, user_index, counter) = parts(wc.wr_id());
            let failed = wc.status() != sys::ibv_wc_status::IBV_WC_SUCCESS;
            // What there is most of has code of its own. Older entries than this come into the ring no
            // more, so that all may go on before core tells of it.
            match kind {
                Some(Kind::Send) if !failed => {
                    let cqe = wc::sent(user_index, counter);
                    inner.put(&cqe);
                    drop((wc, inner));
                    if let told @ Some(_) = core.tell(cqe) {
                        return told;
                    }
                }
                Some(Kind::Fetch) if !failed => {
                    let cqe = wc::fetched(&wc, user_index, counter);
                    inner.put(&cqe);
                    drop((wc, inner));
                    if let told @ Some(_) = core.tell(cqe) {
                        return told;
                    }
                }
                Some(Kind::Recv) if !failed && wc::is_plain(&wc) => {
                    let cqe = wc::plain(&wc, user_index, counter);
                    inner.put(&cqe);
                    drop((wc, inner));
                    if let told @ Some(_) = core.tell(cqe) {
                        return told;
                    }
                }
                _ => {
                    if let told @ Some(_) = seldom(core, inner, wc) {
                        return told;
                    }
                }
            }
        }
    }

    fn poll_plain(&self, core: &mut CompletionQueue<'static>) -> Option<Completion<'static>> {
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

/// What core tells of a completion that is none of a plain success. `None`: it is nobody's.
#[inline(never)]
fn seldom(
    core: &mut CompletionQueue<'static>,
    mut inner: Taken<'_>,
    wc: wc::Extended,
) -> Option<Completion<'static>> {
    let cqe = inner.entry(&wc)?;
    inner.put(&cqe);
    drop((wc, inner));
    core.tell(cqe)
}
