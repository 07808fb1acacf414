//! What one thread has, and how it goes on.

use bellwire::link::Link;
use bellwire::queue::Completion;
use bellwire::wr::Remote;
use bellwire::{Block, Cq, Device, Endpoint, Mw, Pd, Qp, Region, Slab, SlabCache, Srq};
use bellwire_tests::fixture::Random;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, PoisonError};

/// What may be moved to another thread, or forgotten.
#[derive(Debug)]
pub enum Thing {
    Device(Device),
    Pd(Pd),
    Cq(Cq),
    Qp(Box<Owned>),
    Srq(Srq),
    Slab(Slab),
    Cache(SlabCache),
    Block(Held),
    Window(Mw),
    Region(Region),
    Link(Box<Link>),
}

/// On the way between threads.
pub type Parcels = Mutex<VecDeque<Thing>>;

/// Never dropped. It stays where the leak checker finds it, which is the only difference to
/// [`std::mem::forget`].
static FORGOTTEN: Mutex<Vec<Thing>> = Mutex::new(Vec::new());

/// How many things are forgotten at the most: they keep memory.
const MAX_FORGOTTEN: usize = 1000;

/// A queue pair, and the numbers of its completion queues.
#[derive(Debug)]
pub struct Owned {
    pub qp: Qp,
    pub cqns: (u32, u32),
}

/// A block, and what was written into each of its bytes.
#[derive(Debug)]
pub struct Held {
    block: Block<'static>,
    byte: u8,
}

impl Held {
    pub fn new(mut block: Block<'static>, byte: u8) -> Self {
        block.as_mut_slice().fill(byte);
        Self { block, byte }
    }

    /// The block, in which nobody else has written.
    pub fn into_block(self) -> Block<'static> {
        let bytes = self.block.as_slice();
        assert!(
            bytes.iter().all(|byte| *byte == self.byte),
            "somebody else has {:#x}",
            self.block.addr()
        );
        self.block
    }
}

/// What came of the steps.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub posted: u64,
    pub refused: u64,
    pub executed: u64,
    pub failed: u64,
    pub flushed: u64,
    pub panics: u64,
    pub moved: u64,
    pub forgotten: u64,
    pub made: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Self) {
        let Self {
            posted,
            refused,
            executed,
            failed,
            flushed,
            panics,
            moved,
            forgotten,
            made,
        } = other;
        self.posted += posted;
        self.refused += refused;
        self.executed += executed;
        self.failed += failed;
        self.flushed += flushed;
        self.panics += panics;
        self.moved += moved;
        self.forgotten += forgotten;
        self.made += made;
    }
}

/// The panic of a function that the library calls.
#[derive(Debug)]
struct Planned;

/// How often a function of the program panics: once in so many calls.
const PANICS: u64 = 24;

/// Panics now and then, without a word.
pub fn perhaps_panic(random: &mut Random) {
    if random.below(PANICS) == 0 {
        resume_unwind(Box::new(Planned));
    }
}

/// Whether `call` panicked as planned.
pub fn panics(call: impl FnOnce()) -> bool {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(()) => false,
        Err(panic) if panic.is::<Planned>() => true,
        Err(panic) => resume_unwind(panic),
    }
}

/// One thread's part of the walk.
#[derive(Debug)]
pub struct World<'w> {
    pub random: Random,
    pub parcels: &'w Parcels,
    pub devices: Vec<Device>,
    pub pds: Vec<Pd>,
    pub cqs: Vec<Cq>,
    pub qps: Vec<Owned>,
    pub srqs: Vec<Srq>,
    pub slabs: Vec<Slab>,
    pub caches: Vec<SlabCache>,
    pub blocks: Vec<Held>,
    pub windows: Vec<Mw>,
    pub regions: Vec<Region>,
    pub links: Vec<Link>,
    /// Of queue pairs that are there, or were.
    pub ends: Vec<Endpoint>,
    /// Memory that can be reached, or could.
    pub remotes: Vec<Remote>,
    pub tally: Tally,
}

/// Any of them.
pub fn any<'a, T>(random: &mut Random, all: &'a mut [T]) -> Option<&'a mut T> {
    let at = random.below(all.len().max(1) as u64) as usize;
    all.get_mut(at)
}

/// Takes any of them.
pub fn take<T>(random: &mut Random, all: &mut Vec<T>) -> Option<T> {
    match all.len() {
        0 => None,
        len => Some(all.swap_remove(random.below(len as u64) as usize)),
    }
}

/// Keeps one more; when there are too many, any of them goes.
pub fn keep<T>(random: &mut Random, all: &mut Vec<T>, max: usize, one: T) {
    all.push(one);
    if all.len() > max {
        drop(take(random, all));
    }
}

impl<'w> World<'w> {
    pub fn new(seed: u64, parcels: &'w Parcels) -> Self {
        Self {
            random: Random::new(seed),
            parcels,
            devices: Vec::new(),
            pds: Vec::new(),
            cqs: Vec::new(),
            qps: Vec::new(),
            srqs: Vec::new(),
            slabs: Vec::new(),
            caches: Vec::new(),
            blocks: Vec::new(),
            windows: Vec::new(),
            regions: Vec::new(),
            links: Vec::new(),
            ends: Vec::new(),
            remotes: Vec::new(),
            tally: Tally::default(),
        }
    }

    /// One step.
    pub fn step(&mut self) {
        // Out of 10,000: what costs much is rare.
        match self.random.below(10_000) {
            ..3000 => self.post(),
            3000..6000 => self.poll(),
            6000..7000 => self.blocks_in_and_out(),
            7000..7500 => self.make(),
            7500..8300 => self.post_by_swapped_queues(),
            8300..8800 => self.swap_objects(),
            8800..9000 => self.use_links(),
            9000..9100 => self.connect(),
            9100..9170 => self.bind(),
            9170..9640 => self.reset(),
            9640..9690 => self.split(),
            9690..9790 => self.send_away(),
            9790..9890 => self.receive_parcel(),
            9890..9892 => self.forget(),
            9892..9980 => self.drop_any(),
            _ => self.look_closely(),
        }
    }

    pub fn hold(&mut self, block: Block<'static>) {
        let held = Held::new(block, self.random.number() as u8);
        keep(&mut self.random, &mut self.blocks, 200, held);
    }

    /// What a completion brings.
    pub fn completed(&mut self, completion: Completion<'static>) {
        match &completion.result {
            Ok(_) => self.tally.executed += 1,
            Err(failure) if failure.status == bellwire::wr::WcStatus::WrFlushErr => {
                self.tally.flushed += 1;
            }
            Err(_) => self.tally.failed += 1,
        }
        if let Some(block) = completion.block {
            self.hold(block);
        }
    }

    /// Takes any thing, of any kind.
    pub fn any_thing(&mut self) -> Option<Thing> {
        let random = &mut self.random;
        match random.below(24) {
            0 => take(random, &mut self.devices).map(Thing::Device),
            1 => take(random, &mut self.pds).map(Thing::Pd),
            2..6 => take(random, &mut self.cqs).map(Thing::Cq),
            6..14 => take(random, &mut self.qps).map(|owned| Thing::Qp(Box::new(owned))),
            14..16 => take(random, &mut self.srqs).map(Thing::Srq),
            // One with blocks out keeps its memory for good.
            16 if random.below(16) == 0
                || self.slabs.iter().all(|slab| slab.outstanding() == 0) =>
            {
                take(random, &mut self.slabs).map(Thing::Slab)
            }
            16 => None,
            17 => take(random, &mut self.caches).map(Thing::Cache),
            18..21 => take(random, &mut self.blocks).map(Thing::Block),
            21 => take(random, &mut self.windows).map(Thing::Window),
            22 => take(random, &mut self.regions).map(Thing::Region),
            _ => take(random, &mut self.links).map(|link| Thing::Link(Box::new(link))),
        }
    }

    fn drop_any(&mut self) {
        drop(self.any_thing());
    }

    fn forget(&mut self) {
        let Some(thing) = self.any_thing() else {
            return;
        };
        let mut forgotten = FORGOTTEN.lock().unwrap_or_else(PoisonError::into_inner);
        if forgotten.len() < MAX_FORGOTTEN {
            forgotten.push(thing);
            self.tally.forgotten += 1;
        }
    }

    fn send_away(&mut self) {
        if let Some(thing) = self.any_thing() {
            let mut parcels = self.parcels.lock().expect("nobody panics with it");
            parcels.push_back(thing);
        }
    }

    fn receive_parcel(&mut self) {
        let parcel = self
            .parcels
            .lock()
            .expect("nobody panics with it")
            .pop_front();
        let Some(parcel) = parcel else {
            return;
        };
        self.tally.moved += 1;
        let random = &mut self.random;
        match parcel {
            Thing::Device(device) => keep(random, &mut self.devices, 3, device),
            Thing::Pd(pd) => keep(random, &mut self.pds, 4, pd),
            Thing::Cq(cq) => keep(random, &mut self.cqs, 6, cq),
            Thing::Qp(owned) => keep(random, &mut self.qps, 10, *owned),
            Thing::Srq(srq) => keep(random, &mut self.srqs, 3, srq),
            Thing::Slab(slab) => keep(random, &mut self.slabs, 4, slab),
            Thing::Cache(cache) => keep(random, &mut self.caches, 4, cache),
            Thing::Block(held) => self.hold(held.into_block()),
            Thing::Window(window) => keep(random, &mut self.windows, 4, window),
            Thing::Region(region) => keep(random, &mut self.regions, 4, region),
            Thing::Link(link) => keep(random, &mut self.links, 4, *link),
        }
    }
}
