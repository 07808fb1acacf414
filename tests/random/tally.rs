//! What happened, in numbers.

use super::Statuses;

/// What happened, in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub operations: u64,
    pub sends: Statuses,
    pub receives: Statuses,
    pub reported_by_reset: u64,
    pub passed_over: u64,
    pub shared: u64,
    pub datagrams: u64,
    pub blocks: u64,
    pub lives: u64,
    pub events: u64,
    pub faults: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in [
            (&mut self.sends, &other.sends),
            (&mut self.receives, &other.receives),
        ] {
            for (status, count) in theirs {
                *mine.entry(status).or_default() += count;
            }
        }
        for (mine, theirs) in [
            (&mut self.operations, other.operations),
            (&mut self.reported_by_reset, other.reported_by_reset),
            (&mut self.passed_over, other.passed_over),
            (&mut self.shared, other.shared),
            (&mut self.datagrams, other.datagrams),
            (&mut self.blocks, other.blocks),
            (&mut self.lives, other.lives),
            (&mut self.events, other.events),
            (&mut self.faults, other.faults),
        ] {
            *mine += theirs;
        }
    }
}
