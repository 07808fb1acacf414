//! The end that the program asks for.

use super::inside::Inside;
use super::told::LinkEnd;
use bellwire_core::fault::plan::{Step, StepResult};
use std::time::Duration;

/// How far the end has come.
#[derive(Clone, Copy, Debug)]
pub(super) enum Closing {
    /// Until then what was posted may go on.
    Waits(Duration),
    /// Until then everything is flushed.
    Flushes(Duration),
}

impl Inside {
    /// Ends the link: what was posted may go on for as long as `within`.
    pub fn close_within(&mut self, within: Duration, now: Duration) {
        if self.ended.is_none() && self.closing.is_none() {
            self.closing = Some(Closing::Waits(now.saturating_add(within)));
        }
    }

    /// Nothing more is waited for.
    pub fn close_now(&mut self) {
        if self.ended.is_none() {
            self.finish();
        }
    }

    /// Carries the end on. `false`: a recovery is under way, and may go on for now.
    pub fn drive_close(&mut self, now: Duration) -> bool {
        match self.closing {
            None => return false,
            Some(Closing::Waits(end)) => {
                if now < end {
                    if !self.plan.running() && self.goes_on() {
                        return true;
                    }
                    // It may just have met a fault.
                    if self.plan.running() {
                        return false;
                    }
                }
                // A queue pair that cannot go to ERR is destroyed as it is.
                let _ = self.enter_error();
                let flushed_by = now.saturating_add(self.init.limits.drain);
                self.closing = Some(Closing::Flushes(flushed_by));
            }
            Some(Closing::Flushes(_)) => {}
        }
        if let Some(Closing::Flushes(end)) = self.closing
            && now < end
            && self.carry_out(Step::Drain) == StepResult::Pending
        {
            return true;
        }
        self.finish();
        true
    }

    /// Whether sends are in flight that may end well: until the last, an empty WRITE of the link's own,
    /// was acknowledged.
    fn goes_on(&mut self) -> bool {
        self.connected()
            && self.life.is_some()
            && self.carry_out(Step::Probe) == StepResult::Pending
    }

    fn finish(&mut self) {
        self.carry_out(Step::Close);
        self.carry_out(Step::Surface);
        self.closing = None;
        self.ended = Some(LinkEnd::Closed);
    }
}
