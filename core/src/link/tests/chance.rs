//! A world in which chance decides what happens.

use super::world::{Disturbance, Progress, RETRY, World};
use crate::fault::plan::Limits;
use crate::random::Random;
use core::ops::{Deref, DerefMut};

pub struct Chance {
    world: World,
    pub random: Random,
    /// Steps may fail or take time, and acknowledgements may be lost.
    pub chaos: bool,
    /// One message in so many is lost.
    pub loss: Option<usize>,
}

impl Deref for Chance {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl DerefMut for Chance {
    fn deref_mut(&mut self) -> &mut World {
        &mut self.world
    }
}

impl Chance {
    pub fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let new_qp_per_connection = random.below(2) == 0;
        Self {
            world: World::new(Limits::default(), new_qp_per_connection),
            random,
            chaos: true,
            loss: None,
        }
    }

    pub fn one_in(&mut self, many: usize) -> bool {
        self.random.below(many) == 0
    }

    /// Receives messages, and does one thing that the protocol asks for. Returns `false` if it waits.
    pub fn drive(&mut self, at: usize) -> bool {
        let most = self.random.below(3);
        for _ in 0..if self.chaos { most } else { usize::MAX } {
            if !self.receive(at) {
                break;
            }
        }
        let disturbance = self.disturbance();
        let progress = self.act(at, disturbance);
        self.check();
        progress == Progress::Acted
    }

    fn disturbance(&mut self) -> Option<Disturbance> {
        if self.loss.is_some_and(|many| self.one_in(many)) {
            return Some(Disturbance::Lost);
        }
        if !self.chaos {
            return None;
        }
        match self.random.below(100) {
            0..10 => Some(Disturbance::Pending),
            10 => Some(Disturbance::Failed),
            11..36 => Some(Disturbance::Changed),
            _ => None,
        }
    }

    /// Moves a request to the peer, or executes one there. Returns `false` if there is none.
    pub fn transfer(&mut self, at: usize) -> bool {
        if self.chaos && self.ends[at].may_cancel().is_some() && self.one_in(16) {
            self.cancel(at, false);
        }
        let wait = self.chaos && self.one_in(2);
        let done = self.transmit(at) && wait || self.execute(at);
        if !self.ends[at].acknowledgement() {
        } else if self.chaos && self.one_in(8) {
            let now = self.now;
            self.ends[at].fails(RETRY, now);
        } else if !self.chaos || !self.one_in(4) {
            self.ends[at].acknowledge();
        }
        self.check();
        done
    }

    /// Lets both ends do what they can until they wait, again and again as time passes, until nothing is left
    /// to do.
    pub fn settle(&mut self) {
        self.chaos = false;
        for _ in 0..100_000 {
            let busy = [0, 1].map(|at| self.drive(at) | self.transfer(at));
            if busy != [false; 2] {
                continue;
            }
            let pending = self.ends.iter().any(|end| end.protocol.busy());
            match self.deadline() {
                Some(deadline) if pending => self.now = self.now.max(deadline),
                _ if pending => panic!("it waits for ever: {:?}", self.ends),
                _ => return,
            }
        }
        panic!("it does not end: {:?}", self.ends);
    }

    /// Has both ends do what they can without waiting.
    pub fn drive_both(&mut self) {
        for at in [0, 1] {
            while self.drive(at) {}
        }
    }

    /// Lets a part of the time until the next deadline pass.
    pub fn pass_time(&mut self) {
        if let Some(deadline) = self.deadline() {
            let left = deadline.saturating_sub(self.now);
            self.world.now += left * (self.random.next() % 17) as u32 / 16;
        }
    }

    pub fn check(&self) {
        assert_eq!(self.violation(), None, "{:?}", self.ends);
    }

    pub fn check_agreement(&self) {
        assert!(self.agrees(), "{:?}", self.ends);
    }
}
