//! Receives: what every side writes for them.

use super::*;

impl<T: Compared> World<'_, T> {
    /// Posts receives, and rings once.
    pub(super) fn receive(&mut self) -> Check {
        let free = self.shape.max_recv_wr as usize - self.received.len();
        let count = match chance(&mut self.random, 40) {
            true => 1,
            false => 1 + self.random.below(self.max_batch) as usize,
        };
        let count = count.min(free);
        if count == 0 {
            return Ok(());
        }
        let skip = if self.shape.srq { LINK_SEGMENT } else { 0 };
        for (at, side) in self.sides.iter().enumerate() {
            let posted: BTreeSet<u32> = self.received.iter().map(|of| of.slots[at]).collect();
            let free = (0..side.receives.count).filter(|slot| !posted.contains(slot));
            free.for_each(|slot| side.receives.blank(slot, skip));
        }
        let max_sge = self.shape.max_recv_sge;
        let list: Vec<_> = (0..count)
            .map(|_| receive(&mut self.random, max_sge, &self.ground.arena))
            .collect();
        // SAFETY: no device executes them; completions that bring bytes write to the arena.
        let posted = list.iter().try_for_each(|(wr_id, sges)| unsafe {
            match &mut self.srq {
                Some(srq) => srq.post(*wr_id, sges),
                None => self.qp.rq().post(*wr_id, sges),
            }
        });
        posted?;
        match &mut self.srq {
            Some(srq) => srq.ring(),
            None => self.qp.rq().ring(),
        }
        self.theirs
            .iter()
            .try_for_each(|theirs| theirs.receive(&list))?;

        let mask = self.sides[OURS].receives.count - 1;
        let mut slots = Vec::new();
        for at in 0..count as u32 {
            let own = self.receives.wrapping_add(at) & mask;
            slots.push(match self.shape.srq {
                true => self.sides.each_ref().map(|side| side.head),
                false => [own; SIDES],
            });
            for (side, slot) in self.sides.iter_mut().zip(slots[at as usize]) {
                side.head = if self.shape.srq { side.next(slot) } else { 0 };
            }
        }
        self.sabotage_receive(&slots);
        for (at, slots) in slots.iter().enumerate() {
            let entry = |side: usize| {
                let mut entry = self.sides[side].receives.read(slots[side], 0);
                if self.shape.srq {
                    entry[LINK].fill(0);
                }
                entry
            };
            for (side, way) in (1..).zip(WAYS) {
                same_bytes("entry", &entry(OURS), &entry(side))
                    .map_err(|error| format!("{way:?}, receive {at}, {:x?}: {error}", list[at]))?;
                if slots[side] != slots[OURS] {
                    self.tally.differs(Difference::FreeList);
                }
            }
        }
        let record = |side: usize| self.sides[side].receives.record();
        for side in 1..SIDES {
            same("record of receives", record(OURS), record(side))?;
        }
        self.receives = self.receives.wrapping_add(count as u32);
        self.tally.received(count, self.shape.srq);
        let posted = list.into_iter().zip(slots);
        let (elements, srq) = (
            self.sides[OURS].receives.stride as usize / 16,
            self.shape.srq,
        );
        self.received.extend(posted.map(|((wr_id, sges), slots)| {
            let used = sges.iter().filter(|sge| sge.length != 0).count();
            let bytes = sges.iter().map(|sge| u64::from(sge.length)).sum();
            Received {
                wr_id,
                slots,
                room: if used == elements && !srq {
                    u64::MAX
                } else {
                    bytes
                },
            }
        }));
        Ok(())
    }

    pub(super) fn sabotage_receive(&mut self, slots: &[[u32; SIDES]]) {
        if self.strikes(Sabotage::Receive) {
            let slot = slots[self.below(slots.len())][OURS];
            let bits = 8 * self.sides[OURS].receives.stride as usize;
            let bit = match self.shape.srq {
                // The link may differ.
                true => 8 * LINK.end + self.below(bits - 8 * LINK.end),
                false => self.below(bits),
            };
            self.sides[OURS].receives.flip(slot, bit);
        }
        if self.strikes(Sabotage::ReceiveRecord) {
            let bit = self.below(32) as u32;
            self.sides[OURS].receives.flip_record(bit);
        }
    }
}
