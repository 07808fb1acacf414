//! Ends that do something wrong, each as an implementation might: the model checker has to find them.

use crate::link::Message;
use crate::world::World;
use core::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wrong {
    /// The receives are counted when posting stops, while the queue pair still receives: the count is not
    /// final.
    CountsEarly,
    /// A count that may lack completions is sent as exact.
    CountsLossAsExact,
    /// A cancelled request is reported while the queue pairs still work.
    ReportsEarly,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CountsEarly => "counts its receives too early",
            Self::ReportsEarly => "reports cancelled requests too early",
            Self::CountsLossAsExact => "takes a count with losses for exact",
        })
    }
}

/// What each end has counted.
pub type Noted = [Option<u64>; 2];

impl Wrong {
    pub const ALL: [Self; 3] = [
        Self::CountsEarly,
        Self::CountsLossAsExact,
        Self::ReportsEarly,
    ];

    /// Changes what the end `at` has just done: the peer had `sent_before` messages before that.
    pub fn falsify(self, world: &mut World, noted: &mut Noted, at: usize, sent_before: usize) {
        let end = &world.ends[at];
        match end.open {
            true => noted[at] = None,
            false => _ = noted[at].get_or_insert(end.consumed),
        }
        let sent = world.ends[1 - at].inbox.range_mut(sent_before..).last();
        let Some(Message::Info(info)) = sent else {
            return;
        };
        match self {
            Self::CountsEarly => info.consumed = noted[at].unwrap_or(info.consumed),
            Self::CountsLossAsExact => info.exact = true,
            Self::ReportsEarly => {}
        }
    }
}
