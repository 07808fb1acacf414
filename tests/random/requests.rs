//! Posting: whatever the transport has, now and then something bad.

use super::actor::{Data, Kind, Op, To};
use super::message::{HEADER, message};
use super::world::{Held, PLACE, What, World};
use bellwire::queue::PostError;
use bellwire::wr::SendFlags;

impl World {
    pub fn receive(&mut self, at: usize) {
        let Some(place) = self.place() else { return };
        let wr_id = self.number();
        // Now and then one that is too short, or of a key that there is not.
        let (length, spoil) = match self.random.below(150) {
            0 => (16, false),
            1 => (PLACE, true),
            _ => (PLACE, false),
        };
        let mut sge = self.sge(place, length);
        if spoil {
            sge.lkey ^= 0x1000;
        }
        let actor = &mut self.actors[at];
        let (shared, posted) = if actor.kind == Kind::Xrc {
            let (_, srq, _) = self.xrc.as_mut().expect("there is a target");
            // SAFETY: the memory is a region's, which is only ever copied in and out.
            let posted = unsafe { srq.post(wr_id, &[sge]) };
            srq.ring();
            (true, posted)
        } else if actor.shared {
            // SAFETY: the memory is a region's, which is only ever copied in and out.
            let posted = unsafe { self.srq.post(wr_id, &[sge]) };
            self.srq.ring();
            (true, posted)
        } else {
            (false, actor.qp.post_recv(wr_id, &[sge]))
        };
        match posted {
            Ok(()) => {
                self.tally.operations += 1;
                match (actor.kind, shared) {
                    (Kind::Xrc, _) => self.xrc_flying.posted(wr_id),
                    (_, true) => self.srq_flying.posted(wr_id),
                    (_, false) => actor.receives.posted(wr_id),
                }
                let what = What::Receive { shared };
                self.held.insert(
                    wr_id,
                    Held {
                        actor: at,
                        place: Some(place),
                        what,
                    },
                );
                self.say(|| format!("{at}: receive {wr_id}"));
            }
            Err(error) => {
                let full = error == PostError::QueueFull || error == PostError::WrongState;
                assert!(full, "{error}");
                self.places.push(place);
            }
        }
    }

    pub fn send(&mut self, at: usize) {
        let wr_id = self.number();
        let kind = self.actors[at].kind;
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, self.random.below(3) != 0);
        flags.set(SendFlags::FENCE, self.random.below(10) == 0);
        flags.set(SendFlags::SOLICITED, self.random.below(10) == 0);
        let choice = match kind {
            Kind::Ud => self.random.below(60),
            Kind::Uc => self.random.below(80),
            _ => self.random.below(100),
        };
        let Some(place) = self.place() else { return };
        let spoiled = self.random.below(400) == 0;
        let mut remote = self.word(at, usize::from(choice >= 90));
        if spoiled {
            match (choice, self.random.below(2)) {
                // A misaligned atomic.
                (90.., 0) => remote.addr += 4,
                _ => remote.rkey ^= 0x1000,
            }
        }
        let (op, what, bytes) = match choice {
            0..57 => {
                let (flow, to) = self.flow(at);
                let seq = self.actors[at].seq.get(&flow).map_or(1, |seq| seq + 1);
                let length = HEADER + self.random.below(150) as usize;
                let op = match self.random.below(2) {
                    0 => Op::Send,
                    _ => Op::SendImm(seq as u32),
                };
                let bytes = message(flow, seq, length);
                return self.send_message(at, to, (flow, seq), wr_id, op, &bytes, place, flags);
            }
            57..60 => (Op::Nop, What::Nothing, None),
            60..68 => {
                // A message whose number is its immediate.
                let (flow, to) = self.flow(at);
                let seq = self.actors[at].seq.get(&flow).map_or(1, |seq| seq + 1);
                let op = Op::WriteImm(self.word(at, 2), seq as u32);
                let bytes = seq.to_ne_bytes();
                return self.send_message(at, to, (flow, seq), wr_id, op, &bytes, place, flags);
            }
            68..80 => {
                let value = self.actors[at].wrote + 1;
                (Op::Write(remote), What::Write { value }, Some(value))
            }
            80..90 => {
                let at_least = self.actors[at].written;
                (Op::Read(remote), What::Read { at_least }, None)
            }
            _ => (Op::Add(remote), What::Add, None),
        };
        let bytes = bytes.map(u64::to_ne_bytes);
        let data = match (&what, &bytes) {
            (What::Write { .. }, Some(bytes)) => Data::Inline(bytes),
            (What::Nothing, _) => Data::Nothing,
            _ => Data::Sge(self.sge(place, 8)),
        };
        let to = self.srqn(at).map_or(To::Peer, To::Queue);
        let posted = match kind {
            Kind::Ud => {
                let to = To::Datagram(&self.ah, 1, 1);
                self.actors[at].qp.post(wr_id, &to, op, data, flags)
            }
            _ => self.actors[at].qp.post(wr_id, &to, op, data, flags),
        };
        if self.took(at, wr_id, posted, flags, place, what) && !spoiled {
            let actor = &mut self.actors[at];
            match op {
                Op::Write(_) => actor.wrote += 1,
                Op::Add(_) => actor.added.0 += 1,
                _ => {}
            }
        } else if let (Op::Add(_), Some(_)) = (op, self.held.get(&wr_id)) {
            self.actors[at].added.0 += 1;
        } else if let (Op::Write(_), Some(held)) = (op, self.held.get_mut(&wr_id)) {
            held.what = What::Nothing;
        }
    }

    pub fn srqn(&self, at: usize) -> Option<u32> {
        let xrc = self.actors[at].kind == Kind::Xrc;
        (xrc.then_some(self.xrc.as_ref()).flatten()).map(|(_, srq, _)| srq.srq_num())
    }

    /// A flow of messages: from whom, to whom, in which lives.
    pub fn flow(&mut self, at: usize) -> (u64, usize) {
        let to = match self.actors[at].kind {
            Kind::Ud => {
                let uds: Vec<usize> = (0..self.actors.len())
                    .filter(|&other| self.actors[other].kind == Kind::Ud)
                    .collect();
                uds[self.random.below(uds.len() as u64) as usize]
            }
            Kind::Xrc => at,
            _ => self.actors[at].peer.expect("connected"),
        };
        (Self::name(at, to, self.actors[at].life), to)
    }

    pub fn name(from: usize, to: usize, life: u64) -> u64 {
        (from as u64) << 56 | (to as u64) << 48 | life
    }

    #[allow(clippy::too_many_arguments, reason = "a request has many parts")]
    pub fn send_message(
        &mut self,
        at: usize,
        to: usize,
        (flow, seq): (u64, u64),
        wr_id: u64,
        op: Op,
        bytes: &[u8],
        place: usize,
        flags: SendFlags,
    ) {
        let kind = self.actors[at].kind;
        self.region.write(place * PLACE, bytes);
        let block = self.random.below(4) == 0;
        let block = block.then(|| self.slab.as_ref()?.take(256).ok()).flatten();
        let data = match block {
            Some(mut block) => {
                block.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
                Data::Block(block, bytes.len() as u32)
            }
            None if bytes.len() <= 64 => Data::Inline(bytes),
            None => {
                let mut sge = self.sge(place, bytes.len());
                if self.random.below(300) == 0 {
                    sge.lkey ^= 0x1000;
                }
                Data::Sge(sge)
            }
        };
        let posted = match kind {
            Kind::Ud => {
                let (qpn, qkey) = (self.actors[to].qp.qp_num(), self.connect.qkey);
                let address = To::Datagram(&self.ah, qpn, qkey);
                self.actors[at].qp.post(wr_id, &address, op, data, flags)
            }
            _ => {
                let address = self.srqn(at).map_or(To::Peer, To::Queue);
                self.actors[at].qp.post(wr_id, &address, op, data, flags)
            }
        };
        if self.took(at, wr_id, posted, flags, place, What::Message { flow, seq }) {
            self.actors[at].seq.insert(flow, seq);
        }
    }

    /// Notes a request that the queue took.
    pub fn took(
        &mut self,
        at: usize,
        wr_id: u64,
        posted: Result<(), PostError>,
        flags: SendFlags,
        place: usize,
        what: What,
    ) -> bool {
        if let Err(error) = posted {
            let full = error == PostError::QueueFull || error == PostError::WrongState;
            assert!(full, "{error}");
            self.places.push(place);
            return false;
        }
        self.tally.operations += 1;
        let signaled = flags.contains(SendFlags::SIGNALED) || self.actors[at].signals_all;
        self.actors[at].sends.posted(wr_id, signaled);
        self.held.insert(
            wr_id,
            Held {
                actor: at,
                place: Some(place),
                what,
            },
        );
        self.say(|| format!("{at}: send {wr_id}, {flags:?}"));
        if self.random.below(3) != 0 {
            self.actors[at].qp.ring();
        }
        true
    }
}
