//! A world: one queue pair of bellwire's and two of libibverbs', of one shape, to which the same requests
//! are posted and for which the same entries complete.

mod complete;
mod post;
mod receive;

use crate::Check;
use crate::compare::{self, Case};
use crate::cqe::{Completes, Entry, Own};
use crate::differ::{self, Difference, Written, same, same_bytes};
use crate::ours::{Compared, Named};
use crate::place::{Kind, Place};
use crate::request::{Arena, Kind as Op, Limits, Request, chance, receive};
use crate::tally::Tally;
use crate::theirs::{Library, Shape, Theirs, Way};
use bellwire::cqe::{Cqe64, CqeFormat};
use bellwire::queue::PostError;
use bellwire::{Cq, Pd, Qp, QpInit, Srq, SrqInit};
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
            cqes: power(random, 1..7),
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
        let mut shape = Shape::random(&mut random, long);
        let mut cq = ground.pd.device().create_cq(shape.cqes)?;
        // It may have more.
        shape.cqes = cq.capacity();
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
        let shares = qp.sq().shares_register();
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
