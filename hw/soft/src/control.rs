//! What the device's lock protects: the records of the queue pairs, timers, and free numbers. The verbs for
//! memory are here, those for queue pairs in [`lifecycle`](super::lifecycle).

use super::cq::CqCtx;
use super::fault::Pending;
use super::hca::{Hca, Locked};
use super::mr::{LOCAL_READ, MAX_MR, Opening};
use super::multicast::Groups;
use super::qp::{MAX_QP, QpCtx};
use super::random::Random;
use super::record::{QpRecord, Stall};
use super::remote::{Round, Scratch};
use super::srq::SrqNumbers;
use super::window::Window;
use super::xrcd::{FileId, XrcDomain};
use crate::error::Error;
use crate::fabric::MAX_PACKET;
use crate::pinned::{push, room_for};
use crate::remote::Entered;
use bellwire_core::access::AccessFlags;
use bellwire_provider::attr::{DeviceCounters, Resources};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Weak;
use std::sync::atomic::Ordering;

#[derive(Debug)]
pub(super) struct Control {
    pub qps: Vec<Option<QpRecord>>,
    pub free_qps: Vec<u16>,
    pub generations: Vec<u8>,
    free_mrs: Vec<u16>,
    used_mrs: usize,
    next_pd: u32,
    random: Random,
    next_timer: u64,
    pub(super) next_xrcd: u32,
    /// XRC domains by the files that name them.
    pub(super) xrcds: HashMap<FileId, Weak<XrcDomain>>,
    pub srqs: SrqNumbers,
    /// (due, stall, queue pair): the earliest on top, and among equal times the first added.
    pub timers: BinaryHeap<Reverse<(u64, u64, u32)>>,
    pub groups: Groups,
    /// By their keys without the low byte.
    pub windows: HashMap<u32, Window>,
    pub faults: Pending,
    /// Times that requests waited for a receive, and for an acknowledgement.
    pub rnr_naks: u64,
    pub retries: u64,
    /// Responders whose responses to another process are pending.
    pub pending_responses: Vec<u32>,
    /// Some requester waits for its response.
    pub asked: bool,
    /// Requesters that wait for a response, or for room.
    pub halted: Vec<u32>,
    /// Empty outside of `go_on`: kept for its memory.
    pub going_on: Vec<u32>,
    /// How far the requesters have been checked.
    pub round: Round,
    /// The waiting queue pairs, while `tend` checks them: kept for its memory.
    pub waiting: Vec<u32>,
    /// Room for a list of all queue pairs: kept for its memory.
    pub listed: Vec<u32>,
    /// Room for the requesters of all queue pairs: kept for its memory.
    pub requesters: Vec<(Entered, u32)>,
    /// Buffer that packets are copied to; taken while in use.
    pub inbox: Option<Box<[u8; MAX_PACKET]>>,
    /// How many more packets of the current peer are read before the other peers' turn. Data that is fetched
    /// from the peer's memory counts as the packets that it would have needed.
    pub turn: usize,
    /// Buffers in which requests of other processes are executed; taken while in use.
    pub scratch: Option<Scratch>,
    /// Every entry is executed under the lock, because a fault may affect it or a journal is kept.
    pub gated: bool,
    /// Nothing is executed while `hold_still` runs.
    pub held: bool,
    /// The device has had a fatal error.
    pub dead: bool,
}

impl Control {
    /// # Errors
    /// There is not enough memory.
    pub fn new(seed: u64, gated: bool) -> Result<Self, Error> {
        // Index 0 is not used: no queue pair has the number zero.
        let (mut qps, mut generations) = (Vec::new(), Vec::new());
        push(&mut qps, None)?;
        push(&mut generations, 0)?;
        Ok(Self {
            qps,
            free_qps: Vec::new(),
            generations,
            free_mrs: Vec::new(),
            used_mrs: 0,
            next_pd: 1,
            random: Random::new(seed),
            next_timer: 0,
            next_xrcd: 1,
            xrcds: HashMap::new(),
            srqs: SrqNumbers::default(),
            timers: BinaryHeap::new(),
            groups: Groups::default(),
            windows: HashMap::new(),
            faults: Pending::default(),
            rnr_naks: 0,
            retries: 0,
            pending_responses: Vec::new(),
            asked: false,
            halted: Vec::new(),
            going_on: Vec::new(),
            round: Round::default(),
            waiting: Vec::new(),
            listed: Vec::new(),
            requesters: Vec::new(),
            inbox: None,
            turn: 0,
            scratch: None,
            gated,
            held: false,
            dead: false,
        })
    }

    pub fn record(&mut self, qpn: u32) -> Option<&mut QpRecord> {
        self.qps
            .get_mut(qpn as usize & (MAX_QP - 1))?
            .as_mut()
            .filter(|record| record.qpn == qpn)
    }

    /// The record of the queue pair that has this context now.
    pub fn record_of(&mut self, ctx: &QpCtx) -> Option<&mut QpRecord> {
        self.qps.get_mut(ctx.sender.index)?.as_mut()
    }

    /// The queue pairs that complete on this completion queue.
    pub fn qps_on(&mut self, cq: &CqCtx) -> Vec<u32> {
        let on = |record: &QpRecord| {
            (record.parts.cqs().into_iter().flatten()).any(|of| std::ptr::eq(of, cq))
        };
        self.qpns_like(on)
    }

    /// The queue pairs for which `like` holds, in a list that has room for all. The caller gives it back to `listed`.
    pub fn qpns_like(&mut self, like: impl Fn(&QpRecord) -> bool) -> Vec<u32> {
        let mut list = std::mem::take(&mut self.listed);
        list.clear();
        let records = self.qps.iter().flatten();
        list.extend(
            records
                .filter(|record| like(record))
                .map(|record| record.qpn),
        );
        list
    }

    /// The first queue pair for which `like` holds.
    pub fn find(&self, like: impl Fn(&QpRecord) -> bool) -> Option<u32> {
        let mut records = self.qps.iter().flatten();
        records.find(|record| like(record)).map(|record| record.qpn)
    }

    /// The stall of the entry that a closed queue pair is to execute next, if there is such an entry.
    pub fn stall_at_hand(&mut self, qpn: u32) -> Option<Stall> {
        let record = self.record(qpn)?;
        let (work, end) = record.runnable()?;
        let at = work.consumer;
        (at != end).then(|| record.stall_at(at))
    }

    /// The numbers of all queue pairs, as [`qpns_like`](Self::qpns_like).
    pub fn qpns(&mut self) -> Vec<u32> {
        self.qpns_like(|_| true)
    }

    /// A timer number that is not in use.
    pub fn next_timer(&mut self) -> u64 {
        self.next_timer += 1;
        self.next_timer
    }

    /// Takes a free index of the key table.
    pub fn take_key(&mut self) -> Result<usize, Error> {
        match self.free_mrs.pop() {
            Some(index) => Ok(usize::from(index)),
            None if self.used_mrs < MAX_MR => {
                // Reserved now, so that `give_key` needs no memory.
                room_for(&mut self.free_mrs, self.used_mrs + 1)?;
                self.used_mrs += 1;
                Ok(self.used_mrs - 1)
            }
            None => Err(Error::Exhausted {
                what: "memory keys",
                max: MAX_MR,
            }),
        }
    }

    /// Gives an index back, whose key has been revoked.
    pub fn give_key(&mut self, index: usize) {
        self.free_mrs.push(index as u16);
    }

    /// How many objects exist, without the device's own.
    pub fn resources(&self) -> Resources {
        let mw = self.windows.len();
        let keys = self.used_mrs - self.free_mrs.len();
        let mut there = Resources::default();
        there.qp = self.qps.iter().flatten().count() as u32;
        there.mr = (keys - mw - usize::from(self.scratch.is_some())) as u32;
        there.mw = mw as u32;
        there.srq = self.srqs.used() as u32;
        there
    }

    pub fn random(&mut self) -> u32 {
        self.random.draw() as u32
    }

    /// # Errors
    /// [`Error::DeviceFatal`].
    pub fn alive(&self) -> Result<(), Error> {
        if self.dead {
            return Err(Error::DeviceFatal);
        }
        Ok(())
    }
}

impl Hca {
    /// # Errors
    /// [`Error::DeviceFatal`].
    pub fn check_alive(&self) -> Result<(), Error> {
        self.control().alive()
    }

    pub fn alloc_pd(&self) -> u32 {
        let mut control = self.control();
        control.next_pd += 1;
        control.next_pd - 1
    }

    pub fn resources(&self) -> Resources {
        let mut there = self.control().resources();
        // Relaxed: counters that order no other data.
        there.pd = self.pds.load(Ordering::Relaxed);
        there.cq = self.cqns.used();
        there
    }

    /// Counts of the device.
    pub fn counters(&self) -> DeviceCounters {
        let control = self.control();
        let mut counters = DeviceCounters::default();
        counters.rnr_naks = Some(control.rnr_naks);
        counters.retries = Some(control.retries);
        counters
    }

    /// Waits until each thread of this process has left the section in which it may have seen what was
    /// revoked before this call.
    pub(super) fn drain(&self, _held: &Control) {
        self.barriers.heavy();
        self.wait_for_all();
    }

    /// Allows peers of the fabric to map a region's memory.
    pub fn set_shown(&self, key: u32) {
        self.mrs.set_shown(key);
    }

    /// Registers memory. One key serves as lkey and rkey.
    ///
    /// # Safety
    /// The memory is valid until the key is revoked, its provenance is exposed, and the program accesses it
    /// only as the access flags permit.
    pub unsafe fn register_mr(
        &self,
        pd: u32,
        addr: u64,
        length: u64,
        access: AccessFlags,
    ) -> Result<u32, Error> {
        // Where there is none, accesses that fault end the process, as any other of its own does.
        let _without = bellwire_memory::fault::install();
        let mut control = self.control();
        control.alive()?;
        let index = control.take_key()?;
        let random = control.random();
        let key = self.mrs.reserve(index, random);
        let opening = Opening {
            owner: pd,
            access: access.bits() | LOCAL_READ,
            addr,
            length,
        };
        self.mrs.open(key, opening);
        Ok(key)
    }

    /// Revokes a key, and those of the windows that are bound to its region. After this returns, the device
    /// no longer accesses the memory.
    pub fn deregister_mr(&self, key: u32) -> Result<(), Error> {
        let mut control = self.control();
        self.unbind_all(&mut control, key);
        self.revoke_mr(control, key)
    }

    /// Revokes a region's key, and releases the lock.
    pub(super) fn revoke_mr(&self, mut control: Locked<'_>, key: u32) -> Result<(), Error> {
        let index = self.mrs.revoke(key)?;
        // Room for all was made with the queue pairs.
        let mut requesters = std::mem::take(&mut control.requesters);
        requesters.clear();
        let records = control.qps.iter().flatten();
        requesters.extend(records.filter_map(|of| Some((self.requester_of(of)?, 0))));
        match requesters.is_empty() {
            true => self.barriers.heavy(),
            false => self.barriers.heavy_everywhere(),
        }
        self.wait_for_all();
        drop(control);
        for (of, count) in &mut requesters {
            *count = of.with_count().1;
        }
        self.wait_for_requesters(&mut requesters);
        // They may still read the key's entry, so it is not reused before.
        let mut control = self.control();
        control.give_key(index);
        control.requesters = requesters;
        Ok(())
    }
}
