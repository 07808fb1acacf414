//! Changes of state, faults, and the ends of lives: of a queue pair's, and of the world.

use super::actor::Kind;
use super::tally::Tally;
use super::world::{WORDS, What, World};
use bellwire::Srq;
use bellwire::soft::{Fault, Script, Trigger};
use bellwire::state::QpState;
use bellwire::wr::WcStatus;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl World {
    /// Leaves SQE, SQD and ERR.
    pub fn mend(&mut self, at: usize) {
        match self.actors[at].qp.state() {
            QpState::Sqe | QpState::Sqd => {
                if self.actors[at].qp.state() == QpState::Sqe {
                    // What failed is reported before what comes next.
                    self.drain();
                }
                if self.actors[at].qp.go_to(QpState::Rts).is_ok() {
                    self.actors[at].failed = false;
                }
            }
            QpState::Err => self.again(at),
            _ => {}
        }
    }

    /// Goes where the verbs let it go.
    pub fn turn(&mut self, at: usize) {
        match self.random.below(4) {
            0 => self.actors[at].qp.fail().expect("from every state"),
            1 => self.again(at),
            _ => {
                // Refused unless it is in RTS.
                let _ = self.actors[at].qp.go_to(QpState::Sqd);
            }
        }
    }

    /// Polls until nothing is left.
    pub fn drain(&mut self) {
        for cq in 0..self.cqs.len() {
            while self.poll(cq, 64) == 64 {}
        }
    }

    /// Ends an actor's life, and its peer's, and begins the next.
    pub fn again(&mut self, at: usize) {
        self.drain();
        let ends: Vec<usize> = [Some(at), self.actors[at].peer]
            .into_iter()
            .flatten()
            .collect();
        for &end in &ends {
            if !self.reset(end) {
                return;
            }
        }
        for &end in &ends {
            self.settled(end);
        }
        if self.actors[at].kind == Kind::Xrc {
            let (target, ..) = self.xrc.as_ref().expect("there is a target");
            let attr = bellwire::state::QpAttr::default();
            let reset = bellwire::state::QpAttrMask::STATE;
            target.modify(&attr, reset).expect("RESET");
        }
        self.introduce(at);
    }

    /// To RESET; `false`: the device is dead.
    pub fn reset(&mut self, at: usize) -> bool {
        self.say(|| format!("{at}: reset"));
        let mut reported = Vec::new();
        let actor = &mut self.actors[at];
        let reset = actor.qp.reset(&mut self.cqs[actor.cq], |wr_id, block| {
            reported.push((wr_id, block));
        });
        if reset.is_err() {
            assert!(reported.is_empty() && self.ended);
            return false;
        }
        for (wr_id, block) in reported {
            self.tally.reported_by_reset += 1;
            self.tally.blocks += u64::from(block.is_some());
            let held = self
                .held
                .remove(&wr_id)
                .expect("reported by a reset, and not in flight");
            self.places.extend(held.place);
            match held.what {
                What::Receive { shared } => {
                    assert!(!shared, "a shared receive stays where it is");
                    self.actors[at].receives.completed(wr_id);
                }
                _ => {
                    self.actors[at].sends.cleared(wr_id);
                    self.undone(at, &held);
                }
            }
        }
        let actor = &mut self.actors[at];
        assert_eq!(
            (actor.sends.flying(), actor.receives.flying()),
            (0, 0),
            "lost"
        );
        actor.failed = false;
        actor.life += 1;
        true
    }

    /// At the end of a life everything acknowledged has arrived, and every add is accounted for.
    pub fn settled(&mut self, at: usize) {
        let actor = &self.actors[at];
        if actor.kind.reliable() && !self.ended {
            let inbox = match actor.peer {
                Some(peer) => &self.actors[peer].inbox,
                None => &self.xrc_inbox,
            };
            for (&flow, &seq) in &actor.acknowledged {
                assert!(
                    inbox.last(flow) >= seq,
                    "message {seq} was acknowledged, and is not there"
                );
            }
        }
        let counted = self
            .region
            .word(WORDS + at * 32 + 8)
            .load(Ordering::Acquire);
        let (_, done, doubt) = actor.added;
        assert!(
            (done..=done + doubt).contains(&counted),
            "{counted} adds, {done} done, {doubt} in doubt"
        );
        self.actors[at].acknowledged.clear();
    }

    pub fn fault(&mut self) {
        self.tally.faults += 1;
        let at = self.someone();
        let qpn = self.actors[at].qp.qp_num();
        let packet = Trigger::Packet(1 + self.random.below(5));
        let fault = match self.random.below(80) {
            0..10 => Fault::DropRequest,
            10..20 => Fault::DropAck,
            20..30 => Fault::Delay(Duration::from_micros(self.random.below(500))),
            30..36 => Fault::RemoteAccess,
            36..44 => Fault::Rnr,
            44..48 => Fault::Status(WcStatus::GeneralErr),
            48..52 => Fault::QpFatal(qpn),
            52..60 => return self.device.as_soft().unwrap().set_port_up(false),
            60..78 => return self.device.as_soft().unwrap().set_port_up(true),
            78 => {
                self.ended = true;
                match self.random.below(2) {
                    0 => Fault::CqOverrun(self.cqs[self.actors[at].cq].cqn()),
                    _ => Fault::SrqErr(self.srq.srq_num()),
                }
            }
            _ => {
                self.ended = true;
                Fault::DeviceFatal
            }
        };
        self.say(|| format!("{fault:?} at {packet:?}"));
        let trigger = if self.ended {
            Trigger::After(Duration::ZERO)
        } else {
            packet
        };
        let script = Script::default().with(trigger, fault);
        self.device
            .as_soft()
            .unwrap()
            .inject(&script)
            .expect("a good script");
        if self.ended {
            self.device
                .as_soft()
                .unwrap()
                .advance(Duration::from_nanos(1));
        }
    }

    /// Ends the world: everything is reported, and nothing is left.
    pub fn end(mut self) -> Tally {
        for actor in &mut self.actors {
            actor.qp.fail().expect("from every state");
            actor.qp.ring();
        }
        self.drain();
        self.watch();
        let mut alive = true;
        for at in 0..self.actors.len() {
            alive &= self.reset(at);
        }
        for at in 0..self.actors.len() {
            if alive {
                self.settled(at);
            }
        }
        let Self {
            actors,
            srq,
            xrc,
            mut held,
            cqs,
            slab,
            mut tally,
            ..
        } = self;
        if !alive {
            // A dead device resets nothing: what is left was executed, and nobody asked for its completion.
            for actor in &actors {
                for wr_id in actor.sends.silent() {
                    held.remove(&wr_id).expect("in flight");
                }
            }
        }
        drop(actors);
        let mut clear = |srq: Srq| {
            let destroyed = srq.destroy(|wr_id, _| {
                tally.reported_by_reset += 1;
                let what = held
                    .remove(&wr_id)
                    .expect("reported at the end, and not in flight")
                    .what;
                assert!(matches!(what, What::Receive { shared: true }));
            });
            assert!(destroyed.is_ok(), "the shared queue is used by nobody");
        };
        clear(srq);
        if let Some((target, srq, _)) = xrc {
            drop(target);
            clear(srq);
        }
        assert!(
            held.is_empty(),
            "{} requests were never reported",
            held.len()
        );
        drop(cqs);
        let outstanding = slab.map_or(0, |slab| slab.outstanding());
        assert_eq!(outstanding, 0, "blocks were lost");
        tally
    }
}
