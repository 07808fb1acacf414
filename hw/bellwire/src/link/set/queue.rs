//! The completion queues of a set.

use super::super::wake::Wake;
use super::LinkSetInit;
use crate::cq::{Cq, CqInit};
use crate::error::Error;
use crate::pd::Pd;

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
    /// As few queues as the device's limit of entries allows.
    pub fn new(init: &LinkSetInit, max_cqe: u32) -> Self {
        let (sends, receives) = init.qp.cq_entries();
        let each = sends.saturating_add(receives).max(1);
        let links = init.links.max(1);
        let at_most = match init.cq_entries {
            Some(_) => MAX_QPS,
            None => (max_cqe / each).clamp(1, MAX_QPS),
        };
        let queues = links.div_ceil(at_most);
        let links = links.div_ceil(queues);
        Self {
            queues,
            links,
            entries: init.cq_entries.unwrap_or(links.saturating_mul(each)),
            reserve: init.cq_entries.is_none(),
        }
    }
}

/// A completion queue that links share.
#[derive(Debug)]
pub(super) struct SharedCq {
    /// `None` while a link that is driven has it, and after it failed until it is created again.
    pub cq: Option<Cq>,
    /// It has failed: the links leave it, each with its outcomes, and the last is followed by another queue.
    pub failed: bool,
    /// Queue pairs on it.
    pub attached: u32,
}

impl SharedCq {
    pub fn new(pd: &Pd, division: &Division, wake: Option<&Wake>) -> Result<Self, Error> {
        Ok(Self {
            cq: Some(Self::create(pd, division, wake)?),
            failed: false,
            attached: 0,
        })
    }

    /// Creates a queue of the size that the set's queues have.
    pub fn create(pd: &Pd, division: &Division, wake: Option<&Wake>) -> Result<Cq, Error> {
        pd.device().create_cq_with(&CqInit {
            qps: division.links as usize,
            channel: wake.map(|wake| &wake.channel),
            ..CqInit::new(division.entries)
        })
    }

    /// Whether links can be added to it.
    pub fn accepts(&self, division: &Division) -> bool {
        self.cq.is_some() && !self.failed && self.attached < division.links
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
            let division = Division::new(&init(links, None), max_cqe);
            let expected = Division {
                queues,
                links: links_each,
                entries: links_each * each,
                reserve: true,
            };
            assert_eq!(division, expected, "{links} links, {max_cqe} entries");
        }
        let division = Division::new(&init(1000, Some(64)), 128);
        assert_eq!(
            (division.queues, division.entries, division.reserve),
            (1, 64, false)
        );
    }
}
