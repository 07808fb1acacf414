//! The completion queues of a set, each with its shared receive queue, if the set has one.

use super::super::state::RecoveryState;
use super::super::wake::Wake;
use super::LinkSetInit;
use crate::cq::{Cq, CqInit};
use crate::error::Error;
use crate::event::{Element, EventType};
use crate::memory::fork::Life;
use crate::pd::Pd;
use crate::srq::{Srq, SrqInit};

/// The most queue pairs that one completion queue can serve.
const MAX_QPS: u32 = 1 << 16;

/// How a set divides its links among completion queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Division {
    pub queues: u32,
    /// Links that each has room for, at most.
    pub links: u32,
    /// Entries of each.
    pub entries: u32,
    /// Everything that can be in flight has an entry reserved.
    pub reserve: bool,
}

impl Division {
    /// As few queues as the device's limit of entries allows. `shared`: entries of a shared receive queue,
    /// for each of them, in place of receive queues.
    pub fn new(init: &LinkSetInit, max_cqe: u32, shared: Option<u32>) -> Self {
        let (sends, receives) = init.qp.cq_entries();
        let receives = shared.map_or(receives, |_| 0);
        let shared = shared.unwrap_or(0);
        let each = sends.saturating_add(receives).max(1);
        let links = init.links.max(1);
        let at_most = match init.cq_entries {
            Some(_) => MAX_QPS,
            None => (max_cqe.saturating_sub(shared) / each).clamp(1, MAX_QPS),
        };
        let queues = links.div_ceil(at_most);
        let links = links.div_ceil(queues);
        Self {
            queues,
            links,
            entries: (init.cq_entries)
                .unwrap_or_else(|| links.saturating_mul(each).saturating_add(shared)),
            reserve: init.cq_entries.is_none(),
        }
    }
}

/// A completion queue that links share, and the shared receive queue of the same links.
#[derive(Debug)]
pub(super) struct SharedQueues {
    // Queue pairs are destroyed before both. The receives of the shared receive queue, whose completions this
    // may still hold, are destroyed after it.
    /// `None` while a link that is driven has it, and after it failed until it is created again.
    pub cq: Option<Cq>,
    /// As `cq`, in a set that has one.
    pub srq: Option<Srq>,
    /// The completion queue has failed: the links leave both, each with its outcomes, and the last is followed
    /// by other queues. Receives whose completions were lost are found by destroying their queue.
    cq_failed: bool,
    /// The shared receive queue has failed: the same, but the completion queue is kept.
    srq_failed: bool,
    /// Queue pairs on it.
    pub attached: u32,
    /// Of the process that made it.
    life: Life,
}

impl SharedQueues {
    pub fn new(pd: &Pd, make: &Make<'_>) -> Result<Self, Error> {
        Ok(Self {
            cq: Some(make.cq(pd)?),
            srq: make.srq(pd)?,
            cq_failed: false,
            srq_failed: false,
            attached: 0,
            life: Life::current(),
        })
    }

    /// Those that are there, as events name them.
    pub fn elements(&self) -> impl Iterator<Item = Element> {
        let cq = self.cq.as_ref().map(|cq| Element::Cq(cq.cqn()));
        let srq = self.srq.as_ref().map(|srq| Element::Srq(srq.srq_num()));
        cq.into_iter().chain(srq)
    }

    /// Lends them to a link that is driven.
    pub fn lend(&mut self, state: &mut RecoveryState) {
        state.cq = self.cq.take();
        state.srq = self.srq.take();
    }

    /// Takes back the queue that was [lent](Self::lend).
    pub fn take_back(&mut self, state: &mut RecoveryState) {
        self.cq = state.cq.take();
        self.srq = state.srq.take();
    }

    /// Whether links can be added to it.
    pub fn accepts(&self, division: &Division) -> bool {
        let works = !self.cq_failed && !self.srq_failed;
        self.cq.is_some() && works && self.attached < division.links
    }

    /// One of them has failed. Returns `false` if that was known.
    pub fn fails(&mut self, event: EventType) -> bool {
        let failed = match event {
            EventType::SrqErr => &mut self.srq_failed,
            _ => &mut self.cq_failed,
        };
        !std::mem::replace(failed, true)
    }

    /// Whether the shared receive queue may be used.
    pub fn receives(&self) -> bool {
        !self.cq_failed && !self.srq_failed
    }

    /// Whether they have to be replaced, and no link uses them any more.
    pub fn are_left(&self) -> bool {
        (self.cq_failed || self.srq_failed) && self.attached == 0
    }

    /// Destroys those that are to be replaced.
    pub fn destroy(&mut self) {
        if self.cq_failed {
            self.cq = None;
        }
        if let Some(srq) = self.srq.take() {
            // Every buffer goes back to the slab. If a queue pair did use it, they would when that is destroyed.
            let _ = srq.destroy(|_, block| drop(block));
        }
    }

    /// Creates those again that are not there.
    pub fn create(&mut self, pd: &Pd, make: &Make<'_>) -> Result<(), Error> {
        if self.cq.is_none() {
            self.cq = Some(make.cq(pd)?);
        }
        if self.srq.is_none() {
            self.srq = make.srq(pd)?;
        }
        (self.cq_failed, self.srq_failed) = (false, false);
        Ok(())
    }
}

impl Drop for SharedQueues {
    fn drop(&mut self) {
        // A child of fork leaves what belongs to its parent as it is.
        if !self.life.is_current() {
            return;
        }
        self.cq_failed = true;
        self.destroy();
    }
}

/// How the queues of a set are created.
pub(super) struct Make<'a> {
    pub division: &'a Division,
    pub srq: Option<&'a SrqInit>,
    pub wake: Option<&'a Wake>,
}

impl Make<'_> {
    fn cq(&self, pd: &Pd) -> Result<Cq, Error> {
        pd.device().create_cq_with(&CqInit {
            qps: self.division.links as usize,
            channel: self.wake.map(|wake| &wake.channel),
            ..CqInit::new(self.division.entries)
        })
    }

    fn srq(&self, pd: &Pd) -> Result<Option<Srq>, Error> {
        self.srq.map(|init| pd.create_srq(init)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::QpInit;

    #[test]
    fn a_set_has_no_more_queues_than_it_needs() {
        let init = |links, cq_entries| LinkSetInit {
            links,
            qp: QpInit {
                max_send_wr: 64,
                max_recv_wr: 64,
                ..QpInit::default()
            },
            cq_entries,
            ..LinkSetInit::default()
        };
        let (sends, receives) = init(1, None).qp.cq_entries();
        let each = sends + receives;
        for (links, max_cqe, queues, links_each) in [
            (0, 1 << 22, 1, 1),
            (1, 1 << 22, 1, 1),
            (1000, each * 1000, 1, 1000),
            (1000, each * 999, 2, 500),
            (1000, each * 300, 4, 250),
            (1000, 1, 1000, 1),
            (200_000, u32::MAX, 4, 50_000),
        ] {
            let division = Division::new(&init(links, None), max_cqe, None);
            let expected = Division {
                queues,
                links: links_each,
                entries: links_each * each,
                reserve: true,
            };
            assert_eq!(division, expected, "{links} links, {max_cqe} entries");
        }
        let division = Division::new(&init(1000, Some(64)), 128, None);
        assert_eq!(
            (division.queues, division.entries, division.reserve),
            (1, 64, false)
        );
    }
}
