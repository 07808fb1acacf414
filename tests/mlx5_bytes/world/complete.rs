//! Completions: what every side makes of an entry.

use super::*;

impl<T: Compared> World<'_, T> {
    pub(super) fn complete_some(&mut self) -> Check {
        let count = 1 + self.below(4);
        (0..count).try_for_each(|_| self.complete())
    }

    /// Writes an entry as devices might, and has all sides poll.
    pub(super) fn complete(&mut self) -> Check {
        let wide = self.sides[OURS].cq.stride == 128;
        let (mut sent, mut received) = (None, None);
        let entry = match self.random.below(20) {
            0 => Entry::not_written(&mut self.random),
            1 => Entry::of_nothing(&mut self.random),
            2..=11 if !self.sent.is_empty() => {
                // Most complete a few requests; some all.
                let few = chance(&mut self.random, 70) && !self.long;
                let reach = if few { 4 } else { self.sent.len() };
                let at = self.below(reach.min(self.sent.len()));
                sent = Some(at);
                Entry::of_send(&mut self.random, self.sent[at].op, wide)
            }
            _ if !self.received.is_empty() => {
                let any = self.below(self.received.len());
                received = Some(if self.shape.srq { any } else { 0 });
                let room = self.received[if self.shape.srq { any } else { 0 }].room;
                let mut entry = Entry::of_receive(&mut self.random, wide, room);
                if self.shape.srq {
                    entry.is_no_page_fault();
                }
                entry
            }
            _ => return Ok(()),
        };
        // A device may say any counter of a receive that is not of a shared queue.
        let any = (self.random.number() >> 48) as u16;
        let mut bytes = [[0; 64]; SIDES];
        for (at, side) in self.sides.iter().enumerate() {
            let counter = match (sent, received) {
                (Some(sent), _) => self.sent[sent].counter as u16,
                (_, Some(received)) if self.shape.srq => self.received[received].slots[at] as u16,
                _ => any,
            };
            let own = Own {
                qpn: side.qpn,
                user_index: side.sends.user_index,
                counter,
            };
            bytes[at] = entry.bytes(&own, side.index, side.cq.count);
        }
        let said = bytes[OURS];
        let written = matches!(entry.completes, Completes::Send | Completes::Receive);
        if written && self.strikes(Sabotage::Completion) {
            let (byte, mask) = entry.bit_that_counts();
            bytes[OURS][byte] ^= mask;
        }
        for (side, bytes) in self.sides.iter().zip(&bytes) {
            entry.write(&side.cq, side.index, bytes);
        }

        let arena = &self.ground.arena;
        let untouched = [crate::place::UNTOUCHED; Arena::BYTES];
        arena.fill(&untouched);
        let stale = self.cq.stale();
        let ours = self.cq.poll_one();
        let stale = self.cq.stale() - stale;
        let memory = arena.content();
        if entry.format() == CqeFormat::None || entry.opcode().is_error() {
            same_bytes("memory that nobody was to touch", &memory, &untouched)?;
        }
        if let (Some(at), Some(ours)) = (sent, &ours) {
            same("requests retired", ours.retired as usize, at + 1)?;
        }
        let request = sent.map(|at| &self.sent[at]);
        let receive = received.map(|at| self.received[at].wr_id);
        let cqe = Cqe64::from_bytes(said);
        for (at, way) in WAYS.into_iter().enumerate() {
            arena.fill(&untouched);
            let polled = self.theirs[at].poll();
            let case = Case {
                entry: &entry,
                cqe: &cqe,
                posted: request.map(|sent| sent.op.completes_as()),
                wr_id: request.map(|sent| sent.wr_id).or(receive),
                our_qpn: self.sides[OURS].qpn,
                their_qpn: self.sides[1 + at].qpn,
            };
            let found = compare::compare(&case, (ours.as_ref(), stale), polled, way)
                .and_then(|found| {
                    same_bytes("memory", &memory, &arena.content())?;
                    Ok(found)
                })
                .map_err(|error| format!("{way:?}, {entry:x?}: {error}"))?;
            found
                .into_iter()
                .for_each(|found| self.tally.differs(found));
        }
        self.tally.completed(&entry);
        if entry.completes != Completes::NotWritten {
            for side in &mut self.sides {
                side.index = side.index.wrapping_add(1);
            }
        }
        if let Some(at) = sent {
            self.sent.drain(..=at);
        }
        if let Some(at) = received {
            self.received.remove(at);
        }
        Ok(())
    }
}
