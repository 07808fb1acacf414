//! Creating completion queues.

use super::polled::Polled;
use super::side::{CqShared, CqSide, OwnRing};
use super::{Cq, CqInit};
use crate::device::Device;
use crate::error::Error;
use crate::event::CompChannel;
#[cfg(feature = "mlx5")]
use crate::mlx5;
use crate::pinned::Pinned;
use crate::provider::Provider;
use crate::soft::{CqCtx, Running};
#[cfg(feature = "verbs")]
use crate::verbs;
use bellwire_core::port::DoorbellRecord;
#[cfg(feature = "mlx5")]
use bellwire_core::queue::{AttachError, ByQpNum, NumberSlot};
use bellwire_core::queue::{CompletionQueue, CqMemory};
use std::sync::Arc;

/// Queue pairs that one completion queue can serve.
const MAX_QPS: usize = 1 << 16;

/// What `core` borrows for as long as it lives.
#[derive(Debug)]
pub(super) struct Lent<T>(*mut [T]);

// SAFETY: memory that only its owner touches.
unsafe impl<T: Send> Send for Lent<T> {}

impl<T: Default> Lent<T> {
    fn new(count: usize) -> Self {
        Self(Box::into_raw((0..count).map(|_| T::default()).collect()))
    }
}

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        // SAFETY: from `Box::into_raw`; `core`, which borrowed it, has gone before.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// Entries of a ring on which a batch of completions is polled for one writing of the consumer record, also
/// where all that were asked for are reserved.
fn with_batch(entries: u32, max: u32) -> u32 {
    const BATCH: u32 = 32;
    entries.saturating_add(entries.min(BATCH)).min(max)
}

impl Device {
    /// Creates a completion queue of at least `entries` entries, for up to 256 queue pairs. It has a power of
    /// two, and some more than was asked for: [`Cq::poll`] gives those of a batch back together.
    /// [`QpInit::cq_entries`](crate::QpInit::cq_entries) tells what a queue pair needs.
    ///
    /// # Errors
    /// More entries than the device has, none, or no memory.
    pub fn create_cq(&self, entries: u32) -> Result<Cq, Error> {
        self.create_cq_with(&CqInit::new(entries))
    }

    /// As [`create_cq`](Self::create_cq), for up to `qps` queue pairs.
    ///
    /// # Errors
    /// As there.
    pub fn create_cq_for(&self, entries: u32, qps: usize) -> Result<Cq, Error> {
        self.create_cq_with(&CqInit {
            qps,
            ..CqInit::new(entries)
        })
    }

    /// As [`create_cq`](Self::create_cq), with everything that can be said.
    ///
    /// # Errors
    /// As there; and [`Error::Foreign`] for a channel of another context.
    pub fn create_cq_with(&self, init: &CqInit<'_>) -> Result<Cq, Error> {
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
                what: "cqe (at least 1)",
                given: entries.into(),
                max: max.into(),
            });
        }
        let qps = qps.clamp(1, MAX_QPS);
        #[cfg(feature = "mlx5")]
        if let Provider::Verbs(context) = &self.hca
            && context.drives_rings()
        {
            return self.mlx5_cq(context, with_batch(entries, max), qps, channel);
        }
        let count = match &self.hca {
            Provider::Soft(_) => with_batch(entries, max),
            // The library keeps the device's consumer record.
            #[cfg(feature = "verbs")]
            Provider::Verbs(_) => entries,
        };
        let count = count.next_power_of_two();
        let own = OwnRing {
            ring: Pinned::zeroed(count as usize * 64),
            records: Box::default(),
        };
        // SAFETY: `CqShared` keeps ring and records until the queue and every queue pair on it are
        // gone; sizes were checked.
        let (memory, records) = unsafe {
            let memory = CqMemory::new(own.ring.start(), count, 64);
            (memory, &*std::ptr::from_ref(&*own.records))
        };
        let Some(memory) = memory else {
            return Err(Error::TooLarge {
                what: "cqe",
                given: entries.into(),
                max: max.into(),
            });
        };
        let ctx = match &self.hca {
            Provider::Soft(hca) => {
                CqSide::Soft(Box::new(self.soft_cq(hca, memory, &records[0], channel)?))
            }
            #[cfg(feature = "verbs")]
            Provider::Verbs(context) => {
                let (channel, events) = (kernel_channel(channel)?, self.events.clone());
                // SAFETY: `CqShared` keeps the memory longer; the only producer.
                let cq = unsafe { verbs::Cq::new(context, memory, &records[0], events, channel)? };
                CqSide::Verbs(Box::new(cq))
            }
        };
        let slots = Lent::new(qps);
        #[cfg(feature = "verbs")]
        let extended = match &ctx {
            // SAFETY: kept in `shared` as long as the queue; its only poller.
            CqSide::Verbs(cq) => unsafe { verbs::Extended::new(cq, count) }.map(Box::new),
            _ => None,
        };
        // SAFETY: the only consumer; the slots stay until `core` is gone.
        let core = unsafe { CompletionQueue::new(memory, &mut *slots.0, records) };
        Ok(Cq {
            core: Polled::ByUserIndex(core),
            #[cfg(feature = "verbs")]
            extended,
            attached: Vec::new(),
            swept: 0,
            shared: Arc::new(CqShared {
                ctx,
                _own: Some(own),
                device: self.clone(),
            }),
            device: self.clone(),
            _slots: slots,
            #[cfg(feature = "mlx5")]
            _numbers: None,
        })
    }

    /// On the device's own ring.
    #[cfg(feature = "mlx5")]
    fn mlx5_cq(
        &self,
        context: &Arc<verbs::Context>,
        entries: u32,
        qps: usize,
        channel: Option<&CompChannel>,
    ) -> Result<Cq, Error> {
        let channel = kernel_channel(channel)?;
        let cq = Box::new(mlx5::Cq::new(
            context,
            entries,
            self.events.clone(),
            channel,
        )?);
        let slots = Lent::new(qps);
        let numbers = Lent::<NumberSlot>::new((2 * qps).next_power_of_two());
        // SAFETY: the table stays until `core` is gone.
        let naming = ByQpNum::new(unsafe { &mut *numbers.0 });
        let naming = naming.ok_or(Error::Attach(AttachError::TooManyQueues { slots: 0 }))?;
        // SAFETY: the only consumer; `CqShared` keeps the ring, and the slots stay until `core` is gone.
        let core = unsafe {
            let (memory, records) = cq.ring();
            CompletionQueue::with_naming(memory, &mut *slots.0, records, naming)
        };
        Ok(Cq {
            core: Polled::ByQpNum(core),
            extended: None,
            attached: Vec::new(),
            swept: 0,
            shared: Arc::new(CqShared {
                ctx: CqSide::Mlx5(cq),
                _own: None,
                device: self.clone(),
            }),
            device: self.clone(),
            _slots: slots,
            _numbers: Some(numbers),
        })
    }

    fn soft_cq(
        &self,
        hca: &Running,
        memory: CqMemory<'static>,
        consumer: &'static DoorbellRecord,
        channel: Option<&CompChannel>,
    ) -> Result<CqCtx, Error> {
        let cqn = hca.cqns.take()?;
        let channel = channel.map(|channel| channel.queue().clone());
        let (events, armed) = (self.events.clone(), hca.armed());
        Ok(CqCtx::new(memory, consumer, cqn, events, channel, armed))
    }
}

/// The kernel's side of a channel.
#[cfg(feature = "verbs")]
fn kernel_channel(channel: Option<&CompChannel>) -> Result<Option<verbs::CqChannel>, Error> {
    let kernel = |channel: &CompChannel| {
        let queue = channel.queue();
        match queue.kernel_source() {
            Some(verbs::Source::Channel(kernel)) => Ok((queue.clone(), kernel.clone())),
            _ => Err(Error::Foreign {
                what: "completion channel",
            }),
        }
    };
    channel.map(kernel).transpose()
}
