//! Links that were removed. Their handles are gone at once; the queue pair of a link on a shared receive
//! queue is destroyed when it takes no more receives, because otherwise a device may lose the receives that
//! it took.

use super::LinkSet;
use super::slots::Joined;
use crate::event::{Element, EventType};
use bellwire_core::fault::Fault;
use bellwire_core::fault::plan::StepResult;

impl LinkSet {
    /// Ends a link that was removed: at once, unless its queue pair may still take receives.
    pub(super) fn end(&mut self, mut joined: Joined) {
        if joined.watched {
            let fd = joined.member.here().and_then(|state| state.peer.fd());
            self.attention.forget(fd);
        }
        joined.member.begin(&mut None, []);
        let panics = &mut self.panics;
        if let Some(state) = joined.state() {
            let hooks = std::mem::take(&mut state.hooks);
            panics.catch(|| drop(hooks));
            state.leave();
        }
        self.leaving.push(joined);
        self.end_leaving();
    }

    /// Ends the links that were removed, as far as that is possible now. Nothing of those is left in the
    /// completion queue.
    pub(super) fn end_leaving(&mut self) {
        // From the last on: the place of one that has ended is taken by one that was looked at.
        for at in (0..self.leaving.len()).rev() {
            let joined = &mut self.leaving[at];
            let (queue, number) = (joined.queue, joined.qp_num());
            let Some(state) = joined.state() else {
                continue;
            };
            self.queues[queue].lend(state);
            let closed = state.close();
            self.queues[queue].take_back(state);
            let found = joined.found();
            if closed != StepResult::Pending {
                let mut joined = self.leaving.swap_remove(at);
                if let Some(number) = number {
                    self.queues[queue].attached -= 1;
                    let events = &self.pd.device().links;
                    events.unwatch(self.mailbox, Element::Qp(number));
                }
                let published = joined.member.published();
                let panics = &mut self.panics;
                panics.catch(|| joined.member.resume_panics());
                panics.catch(|| drop(joined));
                self.published.remove(&published);
            }
            self.pass_on(found);
        }
    }

    /// Takes in an event of a queue pair that is of no link.
    pub(super) fn event_of_leaving(&mut self, event: EventType, number: u32) {
        let now = self.pd.device().now();
        let of_it = |joined: &&mut Joined| joined.qp_num() == Some(number);
        if let Some(joined) = self.leaving.iter_mut().find(of_it)
            && let Some(state) = joined.state()
        {
            state.fault(Fault::Event(event), now);
        }
    }
}
