//! What a poll of a set does apart from polling: it connects and recovers links, a few at a time, lends them
//! their completion queue meanwhile, and replaces a queue that failed.

use super::super::completion::LinkCompletion;
use super::super::handle::LinkState;
use super::super::member::Delivery;
use super::deadlines::Due;
use super::queue::{Make, SharedQueues};
use super::slots::{Found, Joined};
use super::{LinkId, LinkSet};
use crate::event::{Element, EventType};
use bellwire_core::fault::Fault;
use bellwire_core::queue::Completion;
use std::cmp::Reverse;
use std::time::{Duration, Instant};

impl LinkSet {
    /// Passes the outcomes that were found before to the program: one of each link that has any, in turn.
    #[cold]
    #[inline(never)]
    pub(super) fn report_found(
        &mut self,
        limit: usize,
        each: &mut dyn FnMut(LinkId, LinkCompletion),
    ) -> usize {
        let mut count = 0;
        // A link leaves the list behind its last outcome: if `each` panics it is still there.
        while count < limit
            && let Some(&id) = self.reporting.front()
        {
            count += usize::from(self.report_one(id, each));
            self.reporting.pop_front();
            let Some(joined) = self.slots.get_mut(id) else {
                continue;
            };
            if joined.has_outcomes() {
                self.reporting.push_back(id);
                continue;
            }
            joined.reporting = false;
            // It may work now, or have ended. A link that is urgent is settled in its turn.
            if joined.member.delivery == Delivery::ByState && !joined.urgent {
                self.settle(id.index());
            }
        }
        count
    }

    /// Passes the oldest outcome of a link to the program. Returns whether it had one.
    fn report_one(&mut self, id: LinkId, each: &mut dyn FnMut(LinkId, LinkCompletion)) -> bool {
        // The link may have been removed, or have taken its completions with it into its recovery.
        let Some(joined) = self.slots.get_mut(id) else {
            return false;
        };
        let Joined {
            member,
            held,
            waiting,
            ..
        } = joined;
        let waiting = waiting.pop_front();
        // Only successes of links that work wait.
        let success = waiting
            .as_ref()
            .and_then(|completion| completion.result.ok());
        member.received += u64::from(success.is_some_and(|success| success.opcode.is_recv()));
        let Some(state) = member.here_mut() else {
            return false;
        };
        let report = match waiting.zip(success) {
            Some((completion, success)) => Some(state.done(completion, success)),
            None => state.next_outcome(),
        };
        let Some(report) = report else {
            return false;
        };
        if let Some(limited) = &mut self.noted.held {
            limited.give_with(id, held, &report);
            // What is exceeded is looked at there.
            self.noted.busy = true;
        }
        each(id, report);
        true
    }

    /// Has a link's outcomes reported by the next polls.
    fn list_outcomes(&mut self, index: u32) {
        if let Some((id, joined)) = self.slots.at(index)
            && joined.has_outcomes()
            && !std::mem::replace(&mut joined.reporting, true)
        {
            self.reporting.push_back(id);
        }
    }

    /// The slow path of a poll.
    #[cold]
    #[inline(never)]
    pub(super) fn poll_slow(
        &mut self,
        limit: usize,
        each: &mut dyn FnMut(LinkId, LinkCompletion),
    ) -> usize {
        // The fast path makes no system call of the C library.
        let _whole = bellwire_provider::thread::Uncancelled::new();
        self.take_aside();
        let now = self.pd.device().now();
        if self.polls_left == 0 {
            self.polls_left = self.init.check_every;
            self.check(now);
            self.count();
        }
        let turns = (self.urgent.len()).min(self.init.links_per_poll as usize);
        for _ in 0..turns {
            let Some(id) = self.urgent.pop_front() else {
                break;
            };
            // It may have been removed since.
            if self.slots.get(id).is_some() {
                self.drive(id.index(), now);
                self.settle(id.index());
            }
        }
        let count = self.report_found(limit, each);
        self.end_leaving();
        self.replace_queues();
        self.refill();
        self.check_held();
        self.noted.busy = false;
        self.update_sleep();
        self.finish();
        count
    }

    /// Something is left to do in the next poll.
    pub(super) fn has_work(&mut self) {
        self.noted.busy |= !(self.urgent.is_empty() && self.noted.aside.is_empty());
        if let Some(sleep) = &self.sleep
            && sleep.is_armed()
            && (self.noted.busy || !self.reporting.is_empty())
        {
            sleep.poll_again();
        }
    }

    /// Ends a call that may have left something to do.
    pub(super) fn finish(&mut self) {
        self.has_work();
        self.panics.resume();
    }

    fn update_sleep(&mut self) {
        if !self.sleep.as_ref().is_some_and(|sleep| sleep.is_armed()) {
            return;
        }
        let time_left = match self.pd.device().has_virtual_time() {
            // A real timer cannot follow a virtual clock.
            true => None,
            false => self.time_left(),
        };
        if let Some(sleep) = &mut self.sleep {
            sleep.wake_at(time_left.and_then(|left| Instant::now().checked_add(left)));
        }
    }

    /// Has a link looked at in the next polls.
    pub(super) fn list(&mut self, index: u32) {
        if let Some((id, joined)) = self.slots.at(index)
            && !std::mem::replace(&mut joined.urgent, true)
        {
            self.urgent.push_back(id);
            self.noted.busy = true;
        }
    }

    /// Takes the queues of a link from the program, to recover them, with `failed` of its completions.
    pub(super) fn begin(&mut self, index: u32, failed: Vec<Completion<'static>>) {
        let Some((_, joined)) = self.slots.at(index) else {
            return;
        };
        let before = std::mem::take(&mut joined.waiting);
        joined
            .member
            .begin(&mut None, before.into_iter().chain(failed));
        self.list(index);
    }

    /// Takes in a fault of a link.
    pub(super) fn fault(&mut self, index: u32, fault: Fault) {
        let Some((_, joined)) = self.slots.at(index) else {
            return;
        };
        if (joined.member.here()).is_none_or(|state| state.protocol.ended().is_some()) {
            return;
        }
        let queue = joined.queue;
        if joined.member.fault(fault) {
            self.begin(index, Vec::new());
        }
        self.list(index);
        if let Fault::Event(event @ (EventType::CqErr | EventType::SrqErr)) = fault {
            self.fail_queue(queue, event);
        }
    }

    /// Takes in completions of a link: such as failed, of a link that recovers, and those that do not go to
    /// the program as they are.
    fn take(&mut self, index: u32, completions: Vec<Completion<'static>>) {
        let now = self.pd.device().now();
        let Some((_, joined)) = self.slots.at(index) else {
            return;
        };
        if joined.member.active.is_some() {
            let mut completions = completions.into_iter();
            let failed = (completions.by_ref()).find_map(|one| joined.member.take(one));
            if let Some(failed) = failed {
                return self.begin(index, [failed].into_iter().chain(completions).collect());
            }
            return self.list(index);
        }
        if let Some(state) = joined.state() {
            let mut fault = None;
            for completion in completions {
                let found = state.take(completion);
                fault = fault.or(found);
            }
            if let Some(fault) = fault {
                state.broke(fault, now);
            }
        }
        self.list(index);
    }

    /// Takes in what the polls of the queues set aside.
    pub(super) fn take_aside(&mut self) {
        let mut aside = std::mem::take(&mut self.noted.aside);
        // A stable sort: those of a link stay in order.
        aside.sort_by_key(|(index, _)| *index);
        let mut aside = aside.into_iter().peekable();
        while let Some((index, first)) = aside.next() {
            let mut completions = vec![first];
            while let Some((_, next)) = aside.next_if(|(at, _)| *at == index) {
                completions.push(next);
            }
            self.take(index, completions);
        }
    }

    /// Checks the asynchronous events and the exchanges, and looks at a few of the links that wait.
    fn check(&mut self, now: Duration) {
        let device = self.pd.device().clone();
        for (event, of) in device.links.collect(&device, self.mailbox) {
            self.event(event, of);
        }
        let at_once = self.init.links_per_poll;
        for _ in 0..at_once {
            let Some(&Reverse((at, id))) = self.timers.peek().filter(|next| next.0.0 <= now) else {
                break;
            };
            self.timers.pop();
            if let Some(joined) = self.slots.get_mut(id)
                && joined.timed.take_if(|timed| *timed == at).is_some()
            {
                self.list(id.index());
            }
        }
        // Room for all was made when they joined.
        let mut heard = std::mem::take(&mut self.listed);
        heard.clear();
        self.attention.take(|slot| heard.push(slot));
        heard.iter().for_each(|&slot| self.list(slot));
        self.listed = heard;
        for id in self.deadlines.due(now, at_once as usize) {
            self.list(id.index());
        }
        for _ in 0..(self.patient.len()).min(at_once as usize) {
            let Some(id) = self.patient.pop_front() else {
                break;
            };
            // It may have been removed since it was put there.
            if let Some(joined) = self.slots.get_mut(id) {
                joined.patient = false;
                self.list(id.index());
            }
        }
    }

    /// Takes in an asynchronous event.
    fn event(&mut self, event: EventType, of: Element) {
        let fault = Fault::Event(event);
        let concerned = match of {
            Element::Qp(number) => {
                match self.slots.of_qp(number).map(|(id, _)| id.index()) {
                    Some(index) => self.fault(index, fault),
                    None => self.event_of_leaving(event, number),
                }
                return;
            }
            Element::Cq(_) | Element::Srq(_) => {
                let is_it = |queue: &SharedQueues| queue.elements().any(|element| element == of);
                // Otherwise the limit: the poll that takes it refills the queue.
                let fails = matches!(event, EventType::CqErr | EventType::SrqErr);
                if let Some(queue) = self.queues.iter().position(is_it).filter(|_| fails) {
                    self.fail_queue(queue, event);
                }
                return;
            }
            Element::Port(port) => self.indices(|joined| {
                let state = joined.member.here();
                state.is_some_and(|state| state.init.connect.port_num == port)
            }),
            Element::Wq(_) | Element::Device => self.indices(|_| true),
        };
        for &index in &concerned {
            self.fault(index, fault);
        }
        self.listed = concerned;
    }

    /// Slots of the links for which `wanted` is true, in a list that has room for all. The caller gives it back to
    /// `listed`.
    fn indices(&mut self, wanted: impl Fn(&Joined) -> bool) -> Vec<u32> {
        let mut list = std::mem::take(&mut self.listed);
        list.clear();
        let wanted = |id: &LinkId| self.slots.get(*id).is_some_and(&wanted);
        list.extend(self.slots.ids().filter(wanted).map(LinkId::index));
        list
    }

    /// A completion queue, or the shared receive queue of the same links, has failed: every link leaves both.
    fn fail_queue(&mut self, queue: usize, event: EventType) {
        if !self.queues[queue].fails(event) {
            return;
        }
        // Not the link that found it.
        let unaware = |joined: &Joined| {
            let state = joined.member.here();
            joined.queue == queue && state.is_some_and(|state| !state.knows_failed(event))
        };
        let indices = self.indices(unaware);
        for &index in &indices {
            self.fault(index, Fault::Event(event));
        }
        self.listed = indices;
    }

    /// Creates the queues again that have failed, and that no link uses any more.
    fn replace_queues(&mut self) {
        for queue in 0..self.queues.len() {
            let it = &mut self.queues[queue];
            if !it.are_left() {
                continue;
            }
            let links = &self.pd.device().links;
            let mut before = [None; 2];
            before
                .iter_mut()
                .zip(it.elements())
                .for_each(|(slot, element)| *slot = Some(element));
            it.destroy();
            // An event of a queue that is kept may have come since the last look.
            for element in before.into_iter().flatten() {
                if it.elements().all(|kept| kept != element) {
                    links.unwatch(self.mailbox, element);
                }
            }
            let make = Make {
                division: &self.division,
                srq: self.srq_init.as_ref(),
                wake: self.sleep.as_ref().map(|sleep| &sleep.wake),
            };
            let created = it.create(&self.pd, &make);
            let watched =
                (it.elements()).try_for_each(|element| links.watch_also(self.mailbox, element));
            if watched.is_err() {
                it.destroy();
            }
            if created.and(watched).is_err() {
                // The links wait for it, for as long as their limits allow.
                continue;
            }
            let indices = self.indices(|joined| joined.queue == queue);
            for &index in &indices {
                if let Some(state) = self.slots.at(index).and_then(|(_, joined)| joined.state()) {
                    state.queues_replaced();
                }
                self.list(index);
            }
            self.listed = indices;
        }
    }

    /// Receives a link's messages and, if it does not work, does what can be done at once.
    fn drive(&mut self, index: u32, now: Duration) {
        let Some((_, joined)) = self.slots.at(index) else {
            return;
        };
        let works = joined.member.active.is_some();
        let Some(state) = joined.state() else {
            return;
        };
        if works && !state.look(now) {
            // What waits is reported before anything newer.
            let checks = joined.waiting.is_empty();
            let fault = checks.then(|| joined.member.check(now)).flatten();
            let Some(fault) = fault else {
                return self.sort(index);
            };
            self.fault(index, fault);
        } else if works {
            self.begin(index, Vec::new());
        }
        let Some((_, joined)) = self.slots.at(index) else {
            return;
        };
        let (queue, before) = (joined.queue, joined.qp_num());
        let Some(state) = joined.member.here_mut() else {
            return;
        };
        self.queues[queue].lend(state);
        state.drive(now);
        self.queues[queue].take_back(state);
        let after = joined.qp_num();
        self.renumber(index, queue, before, after);
        self.sort(index);
    }

    /// Records that a link's queue pair was destroyed or created. Its events were [watched](RecoveryState::watch) then.
    fn renumber(&mut self, index: u32, queue: usize, before: Option<u32>, after: Option<u32>) {
        if before == after {
            return;
        }
        self.slots.renumber(index, before, after);
        let attached = &mut self.queues[queue].attached;
        *attached = *attached + u32::from(after.is_some()) - u32::from(before.is_some());
    }

    /// Passes on what a link came across that was not its own.
    fn sort(&mut self, index: u32) {
        let Some((_, joined)) = self.slots.at(index) else {
            return;
        };
        let queue = joined.queue;
        let cq_failed = joined.state().is_some_and(|state| state.cq_failed);
        let found = joined.found();
        self.pass_on(found);
        if cq_failed {
            self.fail_queue(queue, EventType::CqErr);
        }
    }

    pub(super) fn pass_on(&mut self, (completions, events): Found) {
        for completion in completions {
            let Some((id, joined)) = self.slots.of_qp(completion.qp_num) else {
                continue;
            };
            match completion.result {
                Ok(_) if joined.member.delivery != Delivery::ByState => {
                    joined.waiting.push_back(completion);
                    self.list_outcomes(id.index());
                }
                _ => self.take(id.index(), vec![completion]),
            }
        }
        for (event, of) in events {
            self.event(event, of);
        }
    }

    /// Drops entries that do not count, once there are as many as others. An earlier one of the same link has taken their
    /// place, or the link was removed.
    pub(super) fn tidy_timers(&mut self) {
        if self.timers.len() >= 2 * self.slots.len().max(1) {
            let slots = &self.slots;
            let counts = |at, id| slots.get(id).is_some_and(|joined| joined.timed == Some(at));
            (self.timers).retain(|Reverse((at, id))| counts(*at, *id));
        }
    }

    /// After a link was driven: returns it to the program, if it works, and lists it again, if it does not.
    fn settle(&mut self, index: u32) {
        let Some((id, joined)) = self.slots.at(index) else {
            return;
        };
        joined.urgent = false;
        joined.member.resume();
        joined.member.settle();
        let panics = &mut self.panics;
        panics.catch(|| joined.member.resume_panics());
        let works = joined.member.active.is_some();
        let ended = matches!(joined.member.state(), LinkState::Ended(_));
        let unheard = joined.unheard;
        let Some(state) = joined.state() else {
            return;
        };
        let urgent = state.wants_poll() && !ended;
        let asks = !state.protocol.peer_gone() && (unheard || state.peer.deadline().is_some());
        let deaf = state.protocol.peer_gone() || ended;
        let next_check = state.next_check().filter(|_| works);
        let waits = !urgent && !ended && (!works || asks);
        let due = match waits {
            true => Due::of(state),
            false => Due::default(),
        };
        if joined.watched && deaf {
            joined.watched = false;
            let fd = joined.member.here().and_then(|state| state.peer.fd());
            self.attention.forget(fd);
        }
        if urgent {
            joined.urgent = true;
            self.urgent.push_back(id);
        } else if waits && !std::mem::replace(&mut joined.patient, true) {
            self.patient.push_back(id);
        }
        let before = std::mem::replace(&mut joined.due, due);
        self.deadlines.replace(id, before, due);
        if let Some(at) = next_check
            && joined.timed.is_none_or(|timed| at < timed)
        {
            joined.timed = Some(at);
            self.tidy_timers();
            self.timers.push(Reverse((at, id)));
        }
        self.list_outcomes(index);
        let Some((_, joined)) = self.slots.at(index) else {
            return;
        };
        let noted = joined.member.state();
        if noted != std::mem::replace(&mut joined.noted, noted) && !joined.change_waits {
            joined.change_waits = true;
            self.changes.push_back(id);
            if let Some(sleep) = self.sleep.as_ref().filter(|sleep| sleep.is_armed()) {
                sleep.poll_again();
            }
        }
    }
}
