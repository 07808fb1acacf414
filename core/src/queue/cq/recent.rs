//! A cache of the queue pair of the last CQE.

use crate::queue::ledger::Ledger;

/// The queues of the queue pair that the last CQE was for. The next one is most often for the same.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::queue) struct Recent<'m> {
    pub(super) sends: Named<'m>,
    pub(super) receives: Named<'m>,
}

/// A queue, and its name in CQEs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named<'m> {
    raw_name: u64,
    pub(super) ledger: Option<&'m Ledger<'m>>,
}

impl Default for Named<'_> {
    fn default() -> Self {
        Self {
            // More than a CQE has.
            raw_name: u64::MAX,
            ledger: None,
        }
    }
}

impl<'m> Named<'m> {
    pub(super) fn new(raw_name: u32, ledger: Option<&'m Ledger<'m>>) -> Self {
        match ledger {
            Some(_) => Self {
                raw_name: raw_name.into(),
                ledger,
            },
            None => Self::default(),
        }
    }

    /// Whether this is its name; if so there is a ledger, by `new`.
    #[inline(always)]
    pub(super) fn is(&self, raw_name: u32) -> bool {
        self.raw_name == u64::from(raw_name)
    }
}
