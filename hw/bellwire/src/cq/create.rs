//! Creation of completion queues.

use super::side::{CqShared, OwnRing};
use super::{Cq, CqInit};
use crate::device::Device;
use crate::error::Error;
use crate::event::CompChannel;
use crate::pinned::{Pinned, boxed, defaults, headroom};
use crate::provider::{CqSide, Polled};
use bellwire_core::port::DoorbellRecord;
use bellwire_core::queue::{
    AttachError, ByQpNum, CompletionQueue, CqMemory, NumberSlot, QueueSlot,
};
use std::sync::Arc;

/// The most queue pairs that one completion queue can serve.
const MAX_QPS: usize = 1 << 16;

/// Memory that `core` borrows for as long as it lives.
#[derive(Debug)]
pub(crate) struct Lent<T>(*mut [T]);

// SAFETY: only the owner accesses the memory.
unsafe impl<T: Send> Send for Lent<T> {}

impl<T: Default> Lent<T> {
    pub fn new(count: usize) -> Result<Self, Error> {
        Ok(Self(Box::into_raw(defaults(count)?)))
    }
}

impl<T> Lent<T> {
    /// # Safety
    /// It is called once, and not used after `self` was dropped.
    pub unsafe fn get(&mut self) -> &'static mut [T] {
        // SAFETY: from `Box::into_raw`, and freed in `drop`.
        unsafe { &mut *self.0 }
    }

    /// Bytes of the memory.
    pub fn bytes(&self) -> usize {
        self.0.len() * size_of::<T>()
    }
}

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        // SAFETY: from `Box::into_raw`; `core`, which borrowed it, was dropped before.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

impl Device {
    /// Creates a completion queue of at least `entries` entries, for up to 256 queue pairs. The number is
    /// rounded up to a power of two, with room for a batch of completions whose entries [`Cq::poll`] frees
    /// together. [`QpInit::cq_entries`](crate::QpInit::cq_entries) returns what a queue pair needs.
    ///
    /// # Errors
    /// `entries` is zero or exceeds the device's limit, or there is no memory.
    pub fn create_cq(&self, entries: u32) -> Result<Cq, Error> {
        self.create_cq_with(&CqInit::new(entries))
    }

    /// Creates a completion queue like [`create_cq`](Self::create_cq), for up to `qps` queue pairs.
    ///
    /// # Errors
    /// Those of [`create_cq`](Self::create_cq).
    pub fn create_cq_for(&self, entries: u32, qps: usize) -> Result<Cq, Error> {
        self.create_cq_with(&CqInit {
            qps,
            ..CqInit::new(entries)
        })
    }

    /// Creates a completion queue like [`create_cq`](Self::create_cq), with all attributes given.
    ///
    /// # Errors
    /// Those of [`create_cq`](Self::create_cq); [`Error::Foreign`] for a channel of another context.
    pub fn create_cq_with(&self, init: &CqInit<'_>) -> Result<Cq, Error> {
        headroom()?;
        let &CqInit {
            entries,
            qps,
            channel,
        } = init;
        if channel.is_some_and(|channel| !self.is_same_context(channel.device())) {
            return Err(Error::Foreign {
                what: "completion channel",
            });
        }
        self.hca.check_alive()?;
        let max = self.attr().max_cqe;
        if entries == 0 || entries > max {
            return Err(Error::TooLarge {
                what: "cqe",
                given: entries.into(),
                max: max.into(),
            });
        }
        self.hca.create_cq(&NewCq {
            device: self,
            entries,
            max,
            qps: qps.clamp(1, MAX_QPS),
            channel,
        })
    }
}

/// The attributes of a completion queue to be created, which were checked.
pub(crate) struct NewCq<'a> {
    pub device: &'a Device,
    /// The least number of entries.
    pub entries: u32,
    /// The most that the device supports.
    max: u32,
    qps: usize,
    pub channel: Option<&'a CompChannel>,
}

impl NewCq<'_> {
    /// The entries of a ring with room for a batch of completions, so that the consumer record is written
    /// once per batch, even if all the requested entries are reserved.
    pub fn with_batch(&self) -> u32 {
        const BATCH: u32 = 32;
        let entries = self.entries;
        entries.saturating_add(entries.min(BATCH)).min(self.max)
    }

    /// Creates the queue on a ring of at least `entries` entries in our own memory, with the producer and the
    /// polling side that these functions create. The producer is given the ring and the consumer record,
    /// which exist as long as it.
    pub fn on_own_ring(
        &self,
        entries: u32,
        producer: impl FnOnce(CqMemory<'static>, &'static DoorbellRecord) -> Result<CqSide, Error>,
        polled: impl FnOnce(CompletionQueue<'static>, &CqSide) -> Result<Polled, Error>,
    ) -> Result<Cq, Error> {
        let count = entries.next_power_of_two();
        let own = OwnRing {
            ring: Pinned::zeroed(count as usize * 64)?,
            records: boxed(Default::default())?,
        };
        // SAFETY: `CqShared` keeps ring and records until the queue and every queue pair on it are gone; the
        // sizes were checked.
        let (memory, records) = unsafe {
            let memory = CqMemory::new(own.ring.start(), count, 64);
            (memory, &*std::ptr::from_ref(&*own.records))
        };
        let memory = memory.ok_or(Error::TooLarge {
            what: "cqe",
            given: self.entries.into(),
            max: self.max.into(),
        })?;
        // Before the device creates anything that would have to be destroyed again.
        let mut slots = Lent::new(self.qps)?;
        let ctx = producer(memory, &records[0])?;
        // SAFETY: this is the only consumer; the slots stay until `core` is dropped.
        let core = unsafe { CompletionQueue::new(memory, slots.get(), records) };
        let core = polled(core, &ctx)?;
        Ok(self.cq(core, (ctx, Some(own)), slots, None))
    }

    /// Creates the queue on the device's own ring, whose entries name queue pairs by number.
    ///
    /// # Safety
    /// `ctx` keeps ring and records; this is their only consumer.
    pub unsafe fn by_qp_num(
        &self,
        (memory, records): (CqMemory<'static>, &'static [DoorbellRecord; 2]),
        ctx: CqSide,
        polled: impl FnOnce(CompletionQueue<'static, ByQpNum<'static>>) -> Polled,
    ) -> Result<Cq, Error> {
        let mut slots = Lent::new(self.qps)?;
        let mut numbers = Lent::<NumberSlot>::new((2 * self.qps).next_power_of_two())?;
        // SAFETY: the table stays until `core` is dropped.
        let naming = ByQpNum::new(unsafe { numbers.get() });
        let naming = naming.ok_or(Error::Attach(AttachError::TooManyQueues { slots: 0 }))?;
        // SAFETY: this is the only consumer; `CqShared` keeps the ring, and the slots stay until `core` is
        // dropped.
        let core = unsafe { CompletionQueue::with_naming(memory, slots.get(), records, naming) };
        Ok(self.cq(polled(core), (ctx, None), slots, Some(numbers)))
    }

    fn cq(
        &self,
        core: Polled,
        (ctx, own): (CqSide, Option<OwnRing>),
        slots: Lent<QueueSlot<'static>>,
        numbers: Option<Lent<NumberSlot>>,
    ) -> Cq {
        Cq {
            core,
            attached: Vec::new(),
            swept: 0,
            shared: Arc::new(CqShared {
                ctx,
                _own: own,
                device: self.device.clone(),
            }),
            device: self.device.clone(),
            _slots: slots,
            _numbers: numbers,
        }
    }
}
