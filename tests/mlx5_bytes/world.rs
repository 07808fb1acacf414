//! A world: one queue pair of bellwire's and two of libibverbs', of one shape, to which the same requests
//! are posted and for which the same entries complete.

use crate::Check;
use crate::cqe::{Entry, Own, Tells};
use crate::differ::{self, Difference, Written, same, same_bytes};
use crate::ours::{Compared, Named};
use crate::place::{Kind, Place};
use crate::request::{Arena, Kind as Op, Limits, Request, chance, receive};
use crate::tally::Tally;
use crate::theirs::{Library, Shape, Theirs, Way};
use crate::told::{self, Case};
use bellwire::cqe::{Cqe64, CqeFormat};
use bellwire::queue::PostError;
use bellwire::{Cq, Pd, Qp, QpInit, SendDoorbell, Srq, SrqInit};
use bellwire_tests::fixture::Random;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What all worlds have in common.
pub struct Ground {
    pub pd: Pd,
    pub library: Library,
    pub named: Named,
    pub arena: Arena,
    /// Queue pairs that have all registers there are, so that others share one.
    pub crowd: Vec<Qp>,
}

/// A bit that is changed on our side, to see that it is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    Entry,
    Record,
    Register,
    Receive,
    ReceiveRecord,
    Completion,
}

impl Sabotage {
    pub const ALL: [Self; 6] = [
        Self::Entry,
        Self::Record,
        Self::Register,
        Self::Receive,
        Self::ReceiveRecord,
        Self::Completion,
    ];
}

/// How libmlx5 is called on each of its sides.
const WAYS: [Way; 2] = [Way::Legacy, Way::Extended];

/// Bellwire's side is the first, then those of [`WAYS`].
const OURS: usize = 0;
const SIDES: usize = 1 + WAYS.len();

/// A queue pair, as the stand-in knows it.
struct Side {
    qpn: u32,
    sends: Place,
    receives: Place,
    cq: Place,
    /// The completion entry that is polled next.
    index: u32,
    /// The entry of the shared receive queue that is posted next.
    head: u32,
}

impl Side {
    fn of(qpn: u32, srq: bool) -> Check<Self> {
        Ok(Self {
            qpn,
            sends: Place::of(Kind::Send, qpn)?,
            receives: Place::of(if srq { Kind::Srq } else { Kind::Recv }, qpn)?,
            cq: Place::of(Kind::Cq, qpn)?,
            index: 0,
            head: 0,
        })
    }

    /// The entry behind this one, of a shared receive queue.
    fn next(&self, slot: u32) -> u32 {
        let entry = self.receives.read(slot, LINK.start);
        u16::from_be_bytes([entry[0], entry[1]]).into()
    }
}

/// Where the link stands in an entry of a shared receive queue, and the segment that it is in.
const LINK: std::ops::Range<usize> = 2..4;
const LINK_SEGMENT: usize = 16;

struct Sent {
    wr_id: u64,
    op: Op,
    counter: u32,
}

struct Received {
    wr_id: u64,
    /// Where it is, on each side.
    slots: [u32; SIDES],
    /// Bytes of payload that may come in an entry. More than there is memory only where the list is as long
    /// as it can be, and not of a shared queue: libmlx5 goes on behind the end of others, with what stands
    /// there.
    room: u64,
}

pub struct World<'g, T: Compared> {
    random: Random,
    ground: &'g Ground,
    shape: Shape,
    limits: Limits,
    /// So many requests that the device's counters wrap.
    long: bool,
    max_batch: u64,
    qp: Qp<T>,
    srq: Option<Srq>,
    cq: Cq,
    theirs: [Theirs<'g>; WAYS.len()],
    sides: [Side; SIDES],
    sent: VecDeque<Sent>,
    received: VecDeque<Received>,
    /// Receives that were posted.
    receives: u32,
    /// Which half of a register was rung last, by page and register.
    rung: BTreeMap<(usize, usize), usize>,
    sabotage: Option<Sabotage>,
    tally: &'g mut Tally,
}

/// One power of two of these.
fn power(random: &mut Random, exponents: std::ops::Range<u64>) -> u32 {
    1 << (exponents.start + random.below(exponents.end - exponents.start))
}

impl Shape {
    /// `long`: so many requests that the device's counters of 16 bits wrap.
    fn random(random: &mut Random, long: bool) -> Self {
        let small = |random: &mut Random| 1 + random.below(4) as u32;
        let any = |random: &mut Random| 1 + random.below(28) as u32;
        let many = chance(random, 25) && !long;
        let few = |random: &mut Random| if many { any(random) } else { small(random) };
        Self {
            max_send_wr: if long { 512 } else { power(random, 0..8) },
            max_send_sge: few(random),
            max_inline: match random.below(4) {
                _ if long => 512,
                0 => 0,
                1 => 512,
                _ => random.below(200) as u32,
            },
            max_recv_wr: power(random, 0..7),
            max_recv_sge: few(random),
            sig_all: chance(random, 20),
            srq: chance(random, 35),
            cqes: power(random, 2..8),
        }
    }
}

impl<'g, T: Compared> World<'g, T> {
    pub fn new(
        ground: &'g Ground,
        seed: u64,
        cqe_size: u32,
        sabotage: Option<Sabotage>,
        tally: &'g mut Tally,
    ) -> Check<Self> {
        const LONG: u64 = 32;
        let mut random = Random::new(seed);
        let long = seed.is_multiple_of(LONG) && sabotage.is_none();
        let shape = Shape::random(&mut random, long);
        let mut cq = ground.pd.device().create_cq(shape.cqes)?;
        let srq = match shape.srq {
            true => Some(ground.pd.create_srq(&SrqInit {
                max_wr: shape.max_recv_wr,
                max_sge: shape.max_recv_sge,
                srq_limit: 0,
            })?),
            false => None,
        };
        let init = QpInit {
            max_send_wr: shape.max_send_wr,
            max_recv_wr: shape.max_recv_wr,
            max_send_sge: shape.max_send_sge,
            max_recv_sge: shape.max_recv_sge,
            max_inline_data: shape.max_inline,
            sq_sig_all: shape.sig_all,
            // Fewer entries than requests, so that they come round.
            reserve_cq: false,
            ..QpInit::default()
        };
        let mut qp: Qp<T> = match &srq {
            Some(srq) => ground.pd.create_qp_on_srq(&mut cq, srq, &init)?,
            None => ground.pd.create_qp_of(&mut cq, &init)?,
        };
        T::ready(&mut qp)?;
        let make = |way| Theirs::new(&ground.library, T::TYPE, &shape, way);
        let theirs = [make(WAYS[0])?, make(WAYS[1])?];
        let numbers = [qp.qp_num(), theirs[0].qp_num(), theirs[1].qp_num()];
        let side = |at: usize| Side::of(numbers[at], shape.srq);
        let sides = [side(0)?, side(1)?, side(2)?];
        for other in &sides[1..] {
            let ours = &sides[OURS];
            let like = ours.sends.is_like(&other.sends)
                && ours.receives.is_like(&other.receives)
                && ours.cq.is_like(&other.cq);
            if !like || ours.cq.stride != cqe_size {
                let (ours, other) = (ours.sends, other.sends);
                return Err(format!("{shape:?}: of other sizes, {ours:?} {other:?}").into());
            }
        }
        let shares = matches!(qp.sq().doorbell(), SendDoorbell::Mlx5Shared(_));
        same("a shared register", shares, !ground.crowd.is_empty())?;
        tally.world(&shape, shares);
        Ok(Self {
            limits: Limits {
                kinds: T::KINDS,
                max_sge: shape.max_send_sge,
                max_inline: shape.max_inline,
                handles: ground.named.ahs.len(),
                windows: ground.named.windows.len(),
            },
            long,
            max_batch: if long { 512 } else { 40 },
            random,
            ground,
            shape,
            qp,
            srq,
            cq,
            theirs,
            sides,
            sent: VecDeque::new(),
            received: VecDeque::new(),
            receives: 0,
            rung: BTreeMap::new(),
            sabotage,
            tally,
        })
    }

    /// Does what there is to do until it has done it so often.
    pub fn live(&mut self) -> Check {
        let steps = if self.long { 900 } else { 80 };
        for step in 0..steps {
            let done = match self.random.below(6) {
                0 | 1 => self.post().map_err(|error| format!("posting: {error}")),
                2 => self
                    .receive()
                    .map_err(|error| format!("receiving: {error}")),
                _ => self
                    .complete_some()
                    .map_err(|error| format!("completing: {error}")),
            };
            done.map_err(|error| format!("step {step} with {:?}: {error}", self.shape))?;
        }
        Ok(())
    }

    /// Whether it is now that a bit of this is to be changed; it is so once.
    fn strikes(&mut self, what: Sabotage) -> bool {
        let now = self.sabotage == Some(what) && chance(&mut self.random, 30);
        if now {
            self.sabotage = None;
        }
        now
    }

    /// Whether the bit was changed that was to be.
    pub fn struck(&self) -> bool {
        self.sabotage.is_none()
    }

    fn below(&mut self, end: usize) -> usize {
        self.random.below(end as u64) as usize
    }

    /// Posts sends, and rings once.
    fn post(&mut self) -> Check {
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
            match T::post(self.qp.sq(), &request, arena, named) {
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

    fn sabotage_post(&mut self, counters: &[u32]) {
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
    fn written(&self, side: usize, counters: &[u32]) -> Written {
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

    fn alternates(&mut self, side: usize, half: usize) -> Check {
        let register = (self.sides[side].sends.page.addr(), half / 2);
        match self.rung.insert(register, half) {
            Some(last) if last == half => {
                Err(format!("side {side} rings the same half again").into())
            }
            _ => Ok(()),
        }
    }

    /// Posts receives, and rings once.
    fn receive(&mut self) -> Check {
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

    fn sabotage_receive(&mut self, slots: &[[u32; SIDES]]) {
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

    fn complete_some(&mut self) -> Check {
        let count = 1 + self.below(4);
        (0..count).try_for_each(|_| self.complete())
    }

    /// Writes an entry as devices might, and has all sides poll.
    fn complete(&mut self) -> Check {
        let wide = self.sides[OURS].cq.stride == 128;
        let (mut sent, mut received) = (None, None);
        let entry = match self.random.below(20) {
            0 => Entry::not_written(&mut self.random),
            1 => Entry::of_nothing(&mut self.random),
            2..=11 if !self.sent.is_empty() => {
                // Most tell of a few requests; some of all.
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
        let written = matches!(entry.tells, Tells::Send | Tells::Receive);
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
            let found = told::told(&case, (ours.as_ref(), stale), polled, way)
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
        if entry.tells != Tells::NotWritten {
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

    /// Ends it: nothing that was posted is executed.
    pub fn end(mut self) -> Check {
        self.qp.reset(&mut self.cq, |_, _| ())?;
        drop(self.qp);
        match self.srq.take() {
            Some(srq) => srq.destroy(|_, _| ()).map_err(|(_, error)| error.into()),
            None => Ok(()),
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
