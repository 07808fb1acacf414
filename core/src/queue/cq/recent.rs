//! The queue pair that is told of most often: the last one.

use crate::queue::ledger::Ledger;

/// The queue pair that the last entry told of, which the next one most often tells of too: its own
/// queues.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::queue) struct Recent<'m> {
    pub(super) sends: Named<'m>,
    pub(super) receives: Named<'m>,
}

/// A queue, and what entries call it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named<'m> {
    raw_name: u32,
    pub(super) ledger: Option<&'m Ledger<'m>>,
}

impl Default for Named<'_> {
    fn default() -> Self {
        Self {
            // No entry has a name of more than 24 bits.
            raw_name: u32::MAX,
            ledger: None,
        }
    }
}

impl<'m> Named<'m> {
    pub(super) fn new(raw_name: u32, ledger: Option<&'m Ledger<'m>>) -> Self {
        match ledger {
            Some(_) => Self { raw_name, ledger },
            None => Self::default(),
        }
    }

    /// Whether it is called so: then there is a ledger, by `new`.
    #[inline(always)]
    pub(super) fn is(&self, raw_name: u32) -> bool {
        self.raw_name == raw_name
    }
}
