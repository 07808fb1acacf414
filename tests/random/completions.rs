//! What completions report, held against what may be.

use super::actor::Kind;
use super::message::read;
use super::world::{GRH, Held, PLACE, WORDS, What, World};
use bellwire::queue::{Completion, Imm};
use bellwire::wr::{WcOpcode, WcStatus};
use std::sync::atomic::Ordering;

impl World {
    pub fn poll(&mut self, cq: usize, limit: usize) -> usize {
        for count in 0..limit {
            let Some(completion) = self.cqs[cq].poll_one() else {
                return count;
            };
            self.completed(completion);
        }
        limit
    }

    pub fn completed(&mut self, completion: Completion<'static>) {
        let wr_id = completion.wr_id;
        let status = completion.status();
        self.say(|| format!("completed {wr_id}: {status}"));
        let held = self
            .held
            .remove(&wr_id)
            .expect("completed, and not in flight");
        self.places.extend(held.place);
        match held.what {
            What::Receive { .. } => self.received(&held, completion),
            _ => self.sent(&held, completion),
        }
    }

    pub fn received(&mut self, held: &Held, completion: Completion<'static>) {
        let status = completion.status();
        *self.tally.receives.entry(status.name()).or_default() += 1;
        let by_target = self.xrc.as_ref().map(|(target, ..)| target.qp_num());
        let by_target = by_target == Some(completion.qp_num);
        let by = self
            .actors
            .iter()
            .position(|actor| actor.qp.qp_num() == completion.qp_num);
        let shared = matches!(held.what, What::Receive { shared: true });
        self.tally.shared += u64::from(shared);
        match (by_target, shared) {
            (true, _) => self.xrc_flying.completed(completion.wr_id),
            (_, true) => self.srq_flying.completed(completion.wr_id),
            (_, false) => {
                assert_eq!(by, Some(held.actor), "a receive of another queue pair");
                self.actors[held.actor].receives.completed(completion.wr_id);
            }
        }
        let Ok(done) = completion.result else { return };
        assert!(done.opcode.is_recv(), "a receive completes as one");
        if done.opcode == WcOpcode::RecvRdmaWithImm {
            let Imm::Data(imm) = done.imm() else {
                panic!("it was sent with an immediate");
            };
            let to = by.filter(|_| !by_target);
            let from = match to {
                Some(to) => self.actors[to].peer,
                None => self.actors.iter().position(|actor| actor.kind == Kind::Xrc),
            };
            let from = from.expect("somebody sent it");
            let flow = Self::name(from, to.unwrap_or(from), self.actors[from].life);
            let reliable = self.actors[from].kind.reliable();
            let inbox = match to {
                Some(to) => &mut self.actors[to].inbox,
                None => &mut self.xrc_inbox,
            };
            return inbox.message(flow, imm.get().into(), reliable);
        }
        let place = held.place.expect("receives have a place");
        let length = done.byte_len().expect("receives have a length") as usize;
        let by = by.filter(|_| !by_target);
        let datagram = by.is_some_and(|by| self.actors[by].kind == Kind::Ud);
        let head = if datagram { GRH } else { 0 };
        let mut bytes = vec![0; length - head];
        self.region.read(place * PLACE + head, &mut bytes);
        let (flow, seq) = read(&bytes);
        if let Imm::Data(imm) = done.imm() {
            assert_eq!(imm.get(), seq as u32, "the immediate of another message");
        }
        let sender = (flow >> 56) as usize;
        let reliable = self.actors[sender].kind.reliable();
        if datagram {
            self.tally.datagrams += 1;
            assert_eq!(done.src_qp(), Some(self.actors[sender].qp.qp_num()));
        }
        let inbox = match by {
            Some(by) => &mut self.actors[by].inbox,
            None => &mut self.xrc_inbox,
        };
        inbox.message(flow, seq, reliable);
    }

    pub fn sent(&mut self, held: &Held, completion: Completion<'static>) {
        let status = completion.status();
        *self.tally.sends.entry(status.name()).or_default() += 1;
        self.tally.blocks += u64::from(completion.block.is_some());
        let at = held.actor;
        assert_eq!(completion.qp_num, self.actors[at].qp.qp_num());
        let success = status == WcStatus::Success;
        let front = self.passed(at, completion.wr_id, completion.retired);
        for wr_id in front {
            let passed = self
                .held
                .remove(&wr_id)
                .expect("passed over, and not in flight");
            self.tally.passed_over += 1;
            self.places.extend(passed.place);
            self.done(at, &passed, None);
        }
        let actor = &mut self.actors[at];
        actor
            .sends
            .completed(completion.wr_id, completion.retired, success);
        if success {
            assert!(!actor.failed, "a success behind a failure");
            let opcode = completion.result.expect("a success").opcode;
            assert!(!opcode.is_recv());
            self.done(at, held, Some(opcode));
        } else {
            let flushed = matches!(status, WcStatus::WrFlushErr | WcStatus::FatalErr);
            assert!(flushed || !actor.failed, "{status} behind a failure");
            actor.failed = true;
            self.undone(at, held);
        }
    }

    /// The unsignalled requests that a completion passes over.
    pub fn passed(&self, at: usize, wr_id: u64, retired: u32) -> Vec<u64> {
        self.actors[at].sends.before(wr_id, retired)
    }

    /// A request is known to have been executed.
    pub fn done(&mut self, at: usize, held: &Held, opcode: Option<WcOpcode>) {
        let word = |world: &Self, which: usize| {
            let offset = WORDS + at * 32 + which * 8;
            world.region.word(offset).load(Ordering::Acquire)
        };
        let reliable = self.actors[at].kind.reliable();
        match held.what {
            What::Message { flow, seq } => {
                self.actors[at].acknowledged.insert(flow, seq);
            }
            What::Write { value } if reliable => {
                let there = word(self, 0);
                let actor = &mut self.actors[at];
                assert!(
                    (value..=actor.wrote).contains(&there),
                    "written {value}, found {there}"
                );
                actor.written = value;
            }
            What::Read { at_least } if opcode.is_some() => {
                let mut bytes = [0; 8];
                let place = held.place.expect("results have a place");
                self.region.read(place * PLACE, &mut bytes);
                let found = u64::from_ne_bytes(bytes);
                let newest = self.actors[at].wrote;
                assert!(
                    (at_least..=newest).contains(&found),
                    "read {found}, of {at_least} and more"
                );
            }
            What::Add => {
                let there = word(self, 1);
                let actor = &mut self.actors[at];
                actor.added.1 += 1;
                let (posted, done, doubt) = actor.added;
                assert!(
                    (done..=posted).contains(&there),
                    "{there} adds, {done} done, {doubt} in doubt"
                );
            }
            _ => {}
        }
    }

    /// What became of a request is not known, or it was not executed.
    pub fn undone(&mut self, at: usize, held: &Held) {
        if matches!(held.what, What::Add) {
            self.actors[at].added.2 += 1;
        }
    }
}
