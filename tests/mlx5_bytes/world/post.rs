//! Sends: what every side writes for them.

use super::*;

impl<T: Compared> World<'_, T> {
    /// Posts sends, and rings once.
    pub(super) fn post(&mut self) -> Check {
        let free = self.shape.max_send_wr as usize - self.sent.len();
        let wanted = match chance(&mut self.random, 40) {
            true => 1,
            false => 1 + self.random.below(self.max_batch) as usize,
        };
        let start = self.qp.sq().counter();
        let oldest = self.sent.front().map_or(start, |sent| sent.counter);
        let behind = oldest.wrapping_add(self.sides[OURS].sends.count);
        for side in &self.sides {
            (start..behind).for_each(|block| side.sends.blank(block, 0));
        }
        let before = self.sides.each_ref().map(|side| side.sends.all());
        let content = self.random.bytes(Arena::BYTES);
        self.ground.arena.fill(&content);

        let Ground { arena, named, .. } = self.ground;
        let (mut requests, mut counters) = (Vec::new(), vec![start]);
        self.sides[OURS].sends.blank_registers();
        for _ in 0..wanted.min(free) {
            let request = Request::random(&mut self.random, &self.limits, arena);
            match T::post(&mut self.qp.sq(), &request, arena, named) {
                Ok(()) => requests.push(request),
                Err(PostError::QueueFull) => break,
                Err(error) => return Err(format!("{request:?} is refused: {error}").into()),
            }
            counters.push(self.qp.sq().counter());
        }
        if requests.is_empty() {
            return Ok(());
        }
        self.qp.sq().ring();
        self.sabotage_post(&counters);
        let mut written = vec![self.written(OURS, &counters)];
        for (at, theirs) in self.theirs.iter().enumerate() {
            self.sides[1 + at].sends.blank_registers();
            theirs.post(&requests, arena)?;
            written.push(self.written(1 + at, &counters));
        }

        let end = self.qp.sq().counter();
        for (side, before) in self.sides.iter().zip(&before) {
            check_strays(side, before, start..end)?;
        }
        for (at, way) in WAYS.into_iter().enumerate() {
            let (ours, theirs) = (&self.sides[OURS], &self.sides[1 + at]);
            let (halves, unwritten) = differ::posted(
                &requests,
                (&written[OURS], ours.qpn),
                (&written[1 + at], theirs.qpn),
            )
            .map_err(|error| format!("{way:?}: {error}"))?;
            // Our half is one ring, with whichever it is compared.
            let first = usize::from(at != 0);
            for (side, half) in [OURS, 1 + at].into_iter().zip(halves).skip(first) {
                self.alternates(side, half)?;
            }
            self.tally.differs(Difference::QpNumber);
            if unwritten {
                self.tally.differs(Difference::LeftUnwritten);
            }
            self.tally.differs(Difference::RegisterHalf);
        }
        self.tally.posted(&requests, start..end, &written[OURS]);
        let counters = counters.into_iter();
        for (request, counter) in requests.iter().zip(counters) {
            self.sent.push_back(Sent {
                wr_id: request.wr_id,
                op: request.op.kind(),
                counter,
            });
        }
        Ok(())
    }

    pub(super) fn sabotage_post(&mut self, counters: &[u32]) {
        if self.strikes(Sabotage::Entry) {
            let (start, end) = (counters[0], counters[counters.len() - 1]);
            let block = start + self.below((end - start) as usize) as u32;
            let bit = self.below(64 * 8);
            self.sides[OURS].sends.flip(block, bit);
        }
        if self.strikes(Sabotage::Record) {
            let bit = self.below(32) as u32;
            self.sides[OURS].sends.flip_record(bit);
        }
        if self.strikes(Sabotage::Register) {
            let bit = self.below(2048 * 8);
            self.sides[OURS].sends.flip_register(bit);
        }
    }

    /// What was written by posting the entries that start at these counters, and end at the last.
    pub(super) fn written(&self, side: usize, counters: &[u32]) -> Written {
        let place = &self.sides[side].sends;
        let entry = |ends: &[u32]| {
            (ends[0]..ends[1])
                .flat_map(|at| place.read(at, 0))
                .collect()
        };
        Written {
            entries: counters.windows(2).map(entry).collect(),
            record: place.record(),
            registers: place.registers(),
        }
    }

    pub(super) fn alternates(&mut self, side: usize, half: usize) -> Check {
        let register = (self.sides[side].sends.page.addr(), half / 2);
        match self.rung.insert(register, half) {
            Some(last) if last == half => {
                Err(format!("side {side} rings the same half again").into())
            }
            _ => Ok(()),
        }
    }
}

/// Nothing but the entries of these blocks was written.
fn check_strays(side: &Side, before: &[u8], entries: std::ops::Range<u32>) -> Check {
    let mut after = side.sends.all();
    let stride = side.sends.stride as usize;
    for block in entries {
        let at = (block & (side.sends.count - 1)) as usize * stride;
        after[at..at + stride].copy_from_slice(&before[at..at + stride]);
    }
    same_bytes("blocks that were not posted", &after, before)
}
