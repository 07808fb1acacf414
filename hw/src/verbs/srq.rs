//! Shared receive queues.

use super::context::Context;
use super::recv::{Chain, LENGTH};
use super::sys;
use super::tag::{Kind, Tag};
use crate::error::Error;
use crate::event::{AsyncQueue, Element};
use bellwire_core::queue::SrqConsumer;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The device's shared receive queue.
#[derive(Debug)]
pub(crate) struct Srq {
    handle: NonNull<sys::ibv_srq>,
    number: u32,
    /// Which entries the device has.
    given: Box<[AtomicBool]>,
    /// Destroyed.
    gone: AtomicBool,
    context: Arc<Context>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Srq {}
// SAFETY: as above.
unsafe impl Sync for Srq {}

impl Srq {
    /// A queue for `count` receives, in this (parent) domain of `context`'s.
    ///
    /// # Safety
    /// The domain stays until the queue is destroyed.
    pub unsafe fn new(
        context: &Arc<Context>,
        domain: NonNull<sys::ibv_pd>,
        count: u32,
        max_sge: u32,
        limit: u16,
        events: &AsyncQueue,
    ) -> Result<Self, Error> {
        let context = context.clone();
        context.check_alive()?;
        let number = context.srqns.take()?;
        let mut init = sys::ibv_srq_init_attr {
            srq_context: std::ptr::without_provenance_mut(number as usize),
            attr: sys::ibv_srq_attr {
                max_wr: count,
                max_sge,
                srq_limit: 0,
            },
        };
        // SAFETY: the caller's promise.
        let made = sys::made(unsafe { sys::ibv_create_srq(domain.as_ptr(), &raw mut init) });
        let handle = made.map_err(|error| {
            context.srqns.give_back(number);
            Error::io("create a shared receive queue", error)
        })?;
        events.admit(Element::Srq(number));
        let srq = Self {
            handle,
            number,
            given: (0..count).map(|_| AtomicBool::new(false)).collect(),
            gone: AtomicBool::new(false),
            context,
        };
        if limit != 0 {
            srq.set_limit(limit)?;
        }
        Ok(srq)
    }

    pub(crate) fn handle(&self) -> NonNull<sys::ibv_srq> {
        self.handle
    }

    /// The number by which events name it. The device's own is not told.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Sets the limit (`ibv_modify_srq`).
    pub fn set_limit(&self, limit: u16) -> Result<(), Error> {
        let mut attr = sys::ibv_srq_attr {
            max_wr: 0,
            max_sge: 0,
            srq_limit: limit.into(),
        };
        let mask = sys::ibv_srq_attr_mask::IBV_SRQ_LIMIT.0 as i32;
        // SAFETY: alive.
        sys::check(unsafe { sys::ibv_modify_srq(self.handle.as_ptr(), &raw mut attr, mask) })
            .map_err(|error| Error::io("modify the shared receive queue", error))
    }

    /// The limit (`ibv_query_srq`); zero when the device does not tell.
    pub fn limit(&self) -> u32 {
        let mut attr = sys::ibv_srq_attr {
            max_wr: 0,
            max_sge: 0,
            srq_limit: 0,
        };
        // SAFETY: alive; the attributes can be written.
        let answer = unsafe { sys::ibv_query_srq(self.handle.as_ptr(), &raw mut attr) };
        if answer == 0 { attr.srq_limit } else { 0 }
    }

    /// The device has completed the entry.
    pub(super) fn completed(&self, index: u16) {
        if let Some(given) = self.given.get(usize::from(index)) {
            // Relaxed: looked at when nobody completes any more.
            given.store(false, Ordering::Relaxed);
        }
    }

    /// The entries that the device has not completed. After it was destroyed.
    pub fn left(&self) -> impl Iterator<Item = u16> {
        let left = |(index, given): (usize, &AtomicBool)| {
            // Relaxed: as above.
            given.load(Ordering::Relaxed).then_some(index as u16)
        };
        self.given.iter().enumerate().filter_map(left)
    }

    /// Destroys it. Once: `false` afterwards.
    pub fn destroy(&self) -> bool {
        // Relaxed: whoever destroys it has it alone.
        if self.gone.swap(true, Ordering::Relaxed) {
            return false;
        }
        // SAFETY: no queue pair uses it any more. Nothing can be done about an error (EIO).
        let _ = unsafe { sys::ibv_destroy_srq(self.handle.as_ptr()) };
        true
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        self.destroy();
        self.context.srqns.give_back(self.number);
    }
}

/// The poster's side.
#[derive(Debug)]
pub(crate) struct SrqDoorbell {
    srq: Arc<Srq>,
    consumer: SrqConsumer<'static>,
    /// Taken from the ring, and not by the device.
    waiting: Vec<u16>,
    chain: Box<Chain>,
}

impl SrqDoorbell {
    /// # Safety
    /// The consumer's ring and record stay as long as it is rung for.
    pub unsafe fn new(srq: Arc<Srq>, consumer: SrqConsumer<'static>) -> Self {
        let ring = consumer.ring();
        Self {
            waiting: Vec::with_capacity(ring.count() as usize),
            chain: Box::new(Chain::new(ring.max_sge())),
            srq,
            consumer,
        }
    }

    /// Posts what was rung. What the device does not take stays, and is posted by the next ring.
    pub fn ring(&mut self) {
        // Within its capacity: no more entries than the ring has.
        while let Some(popped) = self.consumer.pop() {
            self.waiting.push(popped.index);
        }
        let (tag, handle) = (Tag::new(Kind::Shared, 0), self.srq.handle.as_ptr());
        let mut taken = 0;
        while taken < self.waiting.len() {
            let waiting = &self.waiting[taken..];
            let count = waiting.len().min(LENGTH);
            for (place, &index) in waiting[..count].iter().enumerate() {
                // SAFETY: posted, and not written before it completes.
                let list = unsafe { self.consumer.ring().read(index.into()) };
                // Relaxed: looked at when nobody completes any more. Before it can complete.
                self.srq.given[usize::from(index)].store(true, Ordering::Relaxed);
                self.chain.put(place, tag.of(index.into()), list);
            }
            let posted = self.chain.post(count, |first, bad| {
                // SAFETY: alive; a list that was just linked.
                unsafe { sys::ibv_post_srq_recv(handle, first, bad) }
            });
            taken += posted;
            if posted != count {
                break;
            }
        }
        self.waiting.drain(..taken);
    }
}
