//! What the device's lock guards: the queue pairs' records, what waits, which numbers are free. The
//! verbs for memory are here, those for queue pairs in [`lifecycle`](super::lifecycle).

use super::cq::CqCtx;
use super::fault::Pending;
use super::hca::Hca;
use super::mr::{LOCAL_READ, MAX_MR, Opening};
use super::multicast::Groups;
use super::qp::MAX_QP;
use super::random::Random;
use super::record::{QpRecord, Stall};
use super::remote::Scratch;
use super::srq::SrqNumbers;
use super::window::Window;
use super::xrcd::{FileId, XrcDomain};
use crate::error::Error;
use crate::fabric::MAX_PACKET;
use crate::resources::Resources;
use bellwire_core::access::AccessFlags;
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
    /// (due, stall, queue pair): the earliest on top, and of the same time the first.
    pub timers: BinaryHeap<Reverse<(u64, u64, u32)>>,
    pub groups: Groups,
    /// By their keys without the low byte.
    pub windows: HashMap<u32, Window>,
    pub faults: Pending,
    /// Responders that owe another process an answer.
    pub owing: Vec<u32>,
    /// Some requester waits for its answer.
    pub asked: bool,
    /// Requesters that wait for an answer, or for room.
    pub halted: Vec<u32>,
    /// Where packets are copied to; taken meanwhile.
    pub inbox: Option<Box<[u8; MAX_PACKET]>>,
    /// Where what other processes send is executed; taken meanwhile.
    pub scratch: Option<Scratch>,
    /// Every entry is executed under the lock: something may be about to go wrong with it, or it is to
    /// be recorded.
    pub gated: bool,
    /// Nothing is to be executed: somebody looks at what was told.
    pub held: bool,
    /// The device is broken.
    pub dead: bool,
}

impl Control {
    pub fn new(seed: u64, gated: bool) -> Self {
        Self {
            // Index 0 is not used: no queue pair has the number zero.
            qps: vec![None],
            free_qps: Vec::new(),
            generations: vec![0],
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
            owing: Vec::new(),
            asked: false,
            halted: Vec::new(),
            inbox: None,
            scratch: None,
            gated,
            held: false,
            dead: false,
        }
    }

    pub fn record(&mut self, qpn: u32) -> Option<&mut QpRecord> {
        self.qps
            .get_mut(qpn as usize & (MAX_QP - 1))?
            .as_mut()
            .filter(|record| record.qpn == qpn)
    }

    /// The queue pairs that complete on this queue.
    pub fn qps_on(&self, cq: &CqCtx) -> Vec<u32> {
        let on = |record: &QpRecord| {
            (record.parts.cqs().into_iter().flatten()).any(|of| std::ptr::eq(of, cq))
        };
        let records = self.qps.iter().flatten();
        records
            .filter(|record| on(record))
            .map(|record| record.qpn)
            .collect()
    }

    /// Entries of the table of queue pairs that were ever used.
    pub fn slots(&self) -> usize {
        self.qps.len()
    }

    /// The first queue pair that is like this.
    pub fn find(&self, like: impl Fn(&QpRecord) -> bool) -> Option<u32> {
        let mut records = self.qps.iter().flatten();
        records.find(|record| like(record)).map(|record| record.qpn)
    }

    /// What is known of the entry that a closed queue pair is to execute next, if it is to.
    pub fn stall_at_hand(&mut self, qpn: u32) -> Option<Stall> {
        let record = self.record(qpn)?;
        let (work, end) = record.runnable()?;
        let at = work.consumer;
        (at != end).then(|| record.stall_at(at))
    }

    /// The numbers of all queue pairs.
    pub fn qpns(&self) -> Vec<u32> {
        self.qps.iter().flatten().map(|record| record.qpn).collect()
    }

    /// A number that no other timer has.
    pub fn next_timer(&mut self) -> u64 {
        self.next_timer += 1;
        self.next_timer
    }

    /// An index of the table of keys.
    pub fn take_key(&mut self) -> Result<usize, Error> {
        match self.free_mrs.pop() {
            Some(index) => Ok(usize::from(index)),
            None if self.used_mrs < MAX_MR => {
                self.used_mrs += 1;
                Ok(self.used_mrs - 1)
            }
            None => Err(Error::Exhausted {
                what: "memory keys",
                max: MAX_MR,
            }),
        }
    }

    /// Gives an index back. Its key opens nothing any more.
    pub fn give_key(&mut self, index: usize) {
        self.free_mrs.push(index as u16);
    }

    /// What there is, beside what the device has for itself.
    pub fn resources(&self) -> Resources {
        let mw = self.windows.len();
        let keys = self.used_mrs - self.free_mrs.len();
        Resources {
            qp: self.qps.iter().flatten().count() as u32,
            mr: (keys - mw - usize::from(self.scratch.is_some())) as u32,
            mw: mw as u32,
            srq: self.srqs.used() as u32,
            ..Resources::default()
        }
    }

    pub fn random(&mut self) -> u32 {
        self.random.next() as u32
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
    pub(crate) fn check_alive(&self) -> Result<(), Error> {
        self.control().alive()
    }

    pub(crate) fn alloc_pd(&self) -> u32 {
        let mut control = self.control();
        control.next_pd += 1;
        control.next_pd - 1
    }

    pub(crate) fn resources(&self) -> Resources {
        Resources {
            // Relaxed: numbers on their own.
            pd: self.pds.load(Ordering::Relaxed),
            cq: self.cqns.used(),
            ..self.control().resources()
        }
    }

    /// Waits until each thread has left the section in which it may have seen what was revoked
    /// before.
    pub(super) fn drain(&self, control: &Control) {
        self.barriers.heavy();
        self.qps.wait_for_all(control.qps.len());
        self.wait_for_requesters(control);
    }

    /// Peers of the fabric may map a region's memory.
    pub(crate) fn set_shown(&self, key: u32) {
        self.mrs.set_shown(key);
    }

    /// Registers memory; one key serves as lkey and rkey.
    ///
    /// # Safety
    /// The memory is valid until the key is revoked, its provenance exposed, and the program treats
    /// it as the access flags say.
    pub(crate) unsafe fn register_mr(
        &self,
        pd: u32,
        addr: u64,
        length: u64,
        access: AccessFlags,
    ) -> Result<u32, Error> {
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

    /// Revokes a key, and those of the windows that are bound to its region. When this returns the
    /// device does not touch its memory any more.
    pub(crate) fn deregister_mr(&self, key: u32) -> Result<(), Error> {
        let mut control = self.control();
        self.unbind_all(&mut control, key);
        self.revoke_mr(&mut control, key)
    }

    pub(super) fn revoke_mr(&self, control: &mut Control, key: u32) -> Result<(), Error> {
        let index = self.mrs.revoke(key)?;
        self.drain(control);
        control.give_key(index);
        Ok(())
    }
}
