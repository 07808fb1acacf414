//! What happens in a schedule: requests and faults in turn, and a message each way at the end.

use super::{MS, Met, Side, World};
use bellwire::event::{Element, EventType};
use bellwire::fault::outcome::Outcome;
use bellwire::link::LinkState;
use bellwire::soft::{Fault, Script, Trigger};
use bellwire::wr::WcStatus;
use std::time::Duration;

impl World {
    fn any(&mut self) -> (usize, usize) {
        let side = self.random.below(2) as usize;
        let at = self.random.below(self.sides[side].ends.len() as u64) as usize;
        (side, at)
    }

    fn order_fault(&mut self) {
        let (side, at) = self.any();
        let (qp, cq) = (self.sides[side].qp_num(at), self.sides[side].cqn(at));
        let srq = (self.sides[side].set.as_ref()).and_then(|set| set.srqns().next());
        let nth = 1 + self.random.below(24);
        let later = Duration::from_micros(self.random.below(5_000));
        let trigger = match self.random.below(4) {
            0 => Trigger::Entry(nth),
            1 => Trigger::Modify(1 + self.random.below(24)),
            2 => Trigger::After(later),
            _ => Trigger::After(Duration::ZERO),
        };
        let script = Script::default();
        let script = match (self.random.below(110), qp, cq) {
            (100.., ..) => match srq {
                Some(srq) => script.with(trigger, Fault::SrqErr(srq)),
                None => return,
            },
            (0..35, Some(qp), _) => script.with(trigger, Fault::QpFatal(qp)),
            (35..55, _, Some(cq)) => script.with(trigger, Fault::CqOverrun(cq)),
            (55..60, _, Some(cq)) => {
                let raised = Fault::Raise(EventType::CqErr, Element::Cq(cq));
                script.with(trigger, raised)
            }
            (60..70, ..) => script.with(Trigger::Entry(nth), Fault::SendCqOverrun),
            (70..78, ..) => script.with(Trigger::Entry(nth), Fault::RecvCqOverrun),
            (78..86, ..) => {
                let fault = Fault::StatusAfter(WcStatus::RetryExcErr);
                script.with(Trigger::Entry(nth), fault)
            }
            (86..92, ..) => script.with(Trigger::Packet(nth), Fault::DropRequest),
            (92..98, ..) => script
                .with(trigger, Fault::PortDown)
                .with(Trigger::After(later + 5 * MS), Fault::PortUp),
            (98..100, ..) if self.fatal => script.with(trigger, Fault::DeviceFatal),
            _ => return,
        };
        self.say(|| format!("ordered: {:?}", script.steps()));
        for &(_, fault) in script.steps() {
            self.completions_lost |= matches!(
                fault,
                Fault::SendCqOverrun
                    | Fault::RecvCqOverrun
                    | Fault::CqOverrun(_)
                    | Fault::DeviceFatal
                    | Fault::Raise(EventType::CqErr, _)
            );
        }
        self.hca
            .inject(&script, |_| None)
            .expect("the software HCA");
        self.advance(Duration::from_nanos(1));
    }

    /// Removes a pair of links, whatever it does, and connects another in its slots.
    fn replace(&mut self, met: &mut Met) {
        let (_, at) = self.any();
        self.say(|| format!("{at} is replaced"));
        met.removed += 1;
        self.connect(at);
    }

    fn act(&mut self, met: &mut Met) {
        let (side, at) = self.any();
        if self.random.below(8) == 0 {
            met.cancelled += self.cancel(side, at);
        }
        match self.random.below(100) {
            0..35 => {
                for _ in 0..1 + self.random.below(4) {
                    if self.send(side, at).is_err() {
                        break;
                    }
                }
            }
            35..60 => (0..1 + self.random.below(4)).for_each(|_| self.receive(side, at)),
            60..85 => {
                let limit = 1 + self.random.below(16) as usize;
                self.poll(side, limit);
            }
            85..94 => {
                let time = Duration::from_micros(self.random.below(3_000));
                self.advance(time);
            }
            94..99 => self.order_fault(),
            // Nothing joins a device that has failed.
            _ if !self.fatal => self.replace(met),
            _ => {}
        }
    }

    fn recovers(&self) -> bool {
        let all =
            |side: &Side| (0..side.ends.len()).any(|at| side.state(at) == LinkState::Recovering);
        self.sides.iter().any(all)
    }

    /// Ends that do not work, or wait for a request: side, link, state, the first such request.
    fn waiting(&self) -> Vec<(usize, usize, LinkState, Option<usize>)> {
        let mut waiting = Vec::new();
        for (side, of) in self.sides.iter().enumerate() {
            for (at, end) in of.ends.iter().enumerate() {
                let mut all = end.sends.iter().zip(&end.signaled);
                let first = all.position(|(sent, signaled)| sent.is_none() && *signaled);
                let state = of.state(at);
                if state != LinkState::Ready || first.is_some() {
                    waiting.push((side, at, state, first));
                }
            }
        }
        waiting
    }

    fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let end = self.now + 2 * self.limits.max_duration();
        let mut pause = Duration::from_micros(100);
        while !done(self) {
            // Sets look at their links in every third poll at the least, at a few of those that recover.
            let polls = if self.recovers() { 8 } else { 3 };
            let polled: usize = (0..polls).map(|_| self.poll_both()).sum();
            self.sides.iter_mut().for_each(|side| side.held.clear());
            if polled == 0 && !done(self) {
                self.advance(pause);
                pause = (pause * 2).min(10 * MS);
            } else {
                pause = Duration::from_micros(100);
            }
            assert!(self.now < end, "it still {what}: {:?}", self.waiting());
        }
    }

    /// A message each way on each link that works.
    fn talk(&mut self, met: &mut Met) {
        for at in 0..self.sides[0].ends.len() {
            if [0, 1]
                .iter()
                .any(|side| self.sides[*side].state(at) != LinkState::Ready)
            {
                continue;
            }
            for side in 0..2 {
                (0..8).for_each(|_| self.receive(1 - side, at));
                let _ = self.send(side, at);
            }
            met.talks += 1;
        }
        self.until_answered();
        // Also those that have no completion.
        let rest = self.now + 300 * MS;
        self.until("rests", |world| world.now >= rest && !world.recovers());
        // One by one, each waited for, so that there is a buffer for each: nothing fails any more, except a
        // completion queue that is too small, if it is full of keep-alives.
        let mut emptied = None;
        for at in 0..self.sides[0].ends.len() {
            for side in 0..2 {
                if self.small && emptied != Some(self.now) {
                    self.take_keep_alives();
                    emptied = Some(self.now);
                }
                if self.small && self.recovers() {
                    // It was overrun by them.
                    continue;
                }
                let ready = |side: &Side| side.state(at) == LinkState::Ready;
                if !self.sides.iter().all(ready) {
                    continue;
                }
                while self.poll_both() != 0 {}
                self.receive(1 - side, at);
                let number = self.sides[side].ends[at].sends.len();
                if self.send_this(side, at, true).is_ok() {
                    self.until_answered();
                    let outcome = self.sides[side].ends[at].sends[number];
                    let done = Some(Outcome::Done);
                    assert_eq!(outcome, done, "{side}.{at}: at the end");
                    met.last_done += 1;
                }
            }
        }
    }

    /// Polls until no keep-alive is due at this time, and none is left in a completion queue.
    fn take_keep_alives(&mut self) {
        // A set may look at one link in every third poll, and drive one in each, of those that it is to look at.
        for _ in 0..6 * self.sides[0].ends.len() {
            self.sides.iter_mut().for_each(|side| side.held.clear());
            self.poll_both();
        }
    }

    fn until_answered(&mut self) {
        self.until("talks", |world| {
            world.sides.iter().all(|side| {
                side.ends.iter().enumerate().all(|(at, end)| {
                    end.unanswered == 0 || matches!(side.state(at), LinkState::Ended(_))
                })
            })
        });
    }

    pub(super) fn live(&mut self, met: &mut Met) {
        if self.random.below(4) != 0 {
            self.until("connects", |world| !world.recovers());
        }
        for _ in 0..60 + self.random.below(200) {
            self.act(met);
        }
        if self.random.below(8) != 0 {
            self.hca.clear_faults();
            self.hca.port_up();
            self.until("recovers", |world| !world.recovers());
            self.talk(met);
        }
        let within = [Duration::ZERO, 10 * MS][self.random.below(2) as usize];
        for side in 0..2 {
            for at in 0..self.sides[side].ends.len() {
                self.sides[side].close(at, within);
            }
        }
        self.until("closes", |world| {
            let ended = |side: &Side| {
                (0..side.ends.len()).all(|at| matches!(side.state(at), LinkState::Ended(_)))
            };
            world.sides.iter().all(ended)
        });
        while self.poll_both() != 0 {}
        self.sides.iter_mut().for_each(|side| side.held.clear());
        // Each set looks for returned buffers.
        (0..4).for_each(|_| _ = self.poll_both());
    }
}
