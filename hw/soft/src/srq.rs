//! The device's state of shared receive queues.

use super::cq::CqCtx;
use super::hca::Hca;
use crate::error::Error;
use crate::event::{AsyncQueue, Element, EventType};
use crate::pinned::{defaults, place, push, room_for};
use bellwire_core::queue::{Popped, SrqConsumer};
use bellwire_core::wr::QpType;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The device's side of a shared receive queue.
#[derive(Debug)]
pub struct SrqCtx {
    /// Its number; zero until one is assigned.
    number: u32,
    /// The protection domain of its receives.
    pub pd: u32,
    /// Entries, doorbell record, limit, error state.
    pub queue: SrqConsumer<'static>,
    /// Domain and completion queue of an XRC shared receive queue; for others, the queue pair names the
    /// completion queue.
    pub xrc: Option<XrcSrq>,
    /// The event queue of the context that it was created in.
    events: Arc<AsyncQueue>,
}

/// What an XRC request needs of a shared receive queue.
#[derive(Clone, Copy, Debug)]
pub struct XrcSrq {
    /// The XRC domain that it belongs to.
    pub xrcd: u32,
    /// The completion queue of its receives.
    pub cq: &'static CqCtx,
    /// User index in its completions.
    pub user_index: u32,
}

impl SrqCtx {
    /// The device's side of `queue`, in this protection domain. `events` receives the events of its limit and
    /// its errors.
    pub fn new(
        pd: u32,
        queue: SrqConsumer<'static>,
        xrc: Option<XrcSrq>,
        events: Arc<AsyncQueue>,
    ) -> Self {
        Self {
            number: 0,
            pd,
            queue,
            xrc,
            events,
        }
    }

    /// Its number (24 bits).
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Takes the oldest receive, which the caller owns until it completes it. Any number of requesters'
    /// threads may call it at once.
    #[inline(always)]
    pub fn pop(&self) -> Option<Popped> {
        self.queue.pop()
    }

    /// Raises an asynchronous event. May be called within a section.
    #[cold]
    pub fn raise(&self, event: EventType) {
        // Not delivered while the queue is being destroyed.
        let _known = self.events.push(Element::Srq(self.number), event);
    }

    /// Moves the queue to the error state and raises its event. `false`: it already was in that state.
    pub fn fail(&self) -> bool {
        let first = !self.queue.failed();
        if first {
            self.queue.fail();
            self.raise(EventType::SrqErr);
        }
        first
    }
}

/// Contexts by index. A context is freed once its queue has been destroyed and every section in which it may
/// have been found has been left.
#[derive(Debug)]
pub(super) struct SrqTable {
    slots: Box<[AtomicPtr<SrqCtx>]>,
}

/// Maximum number of shared receive queues of a device, plus one: index 0 is not used.
pub(super) const MAX_SRQ: usize = 1 << INDEX_BITS;
const INDEX_BITS: u32 = 14;
const GENERATION: u16 = (1 << (24 - INDEX_BITS)) - 1;

impl SrqTable {
    pub fn new() -> Result<Self, Error> {
        Ok(Self {
            slots: defaults(MAX_SRQ)?,
        })
    }

    fn slot(&self, number: u32) -> &AtomicPtr<SrqCtx> {
        &self.slots[number as usize & (MAX_SRQ - 1)]
    }

    /// The shared receive queue of this number, if it exists.
    ///
    /// # Safety
    /// The queue is used only within the section, or under the device's lock, in which it was found.
    #[inline(always)]
    pub unsafe fn get(&self, number: u32) -> Option<&'static SrqCtx> {
        // Acquire: pairs with the Release in `create_srq`.
        let ctx = NonNull::new(self.slot(number).load(Ordering::Acquire))?;
        // SAFETY: from `Box::into_raw`. `destroy_srq` waits for the section, or needs the lock, in which the
        // caller guarantees to use it.
        Some(unsafe { ctx.as_ref() }).filter(|ctx| ctx.number == number)
    }
}

impl Drop for SrqTable {
    fn drop(&mut self) {
        for slot in &mut self.slots {
            let ctx = *slot.get_mut();
            if !ctx.is_null() {
                // SAFETY: from `Box::into_raw`, and the device is no longer used.
                drop(unsafe { Box::from_raw(ctx) });
            }
        }
    }
}

/// Which numbers are free.
#[derive(Debug, Default)]
pub(super) struct SrqNumbers {
    free: Vec<u16>,
    /// The generation of the last number of each index used so far. Index 1 is at place 0.
    generations: Vec<u16>,
}

impl SrqNumbers {
    fn take(&mut self) -> Result<u32, Error> {
        let index = match self.free.pop() {
            Some(index) => usize::from(index),
            None if self.generations.len() < MAX_SRQ - 1 => {
                // Reserved now, so that `give` needs no memory.
                room_for(&mut self.free, self.generations.len() + 1)?;
                push(&mut self.generations, 0)?;
                self.generations.len()
            }
            None => {
                return Err(Error::Exhausted {
                    what: "shared receive queues",
                    max: MAX_SRQ - 1,
                });
            }
        };
        let generation = &mut self.generations[index - 1];
        *generation = generation.wrapping_add(1) & GENERATION;
        Ok(u32::from(*generation) << INDEX_BITS | index as u32)
    }

    pub fn used(&self) -> usize {
        self.generations.len() - self.free.len()
    }

    fn give(&mut self, number: u32) {
        self.free.push((number as usize & (MAX_SRQ - 1)) as u16);
    }
}

impl Hca {
    /// Adds a shared receive queue to the device and assigns its number.
    pub fn create_srq(&self, mut ctx: SrqCtx) -> Result<NonNull<SrqCtx>, Error> {
        let room = place()?;
        let mut control = self.control();
        control.alive()?;
        ctx.number = control.srqs.take()?;
        let number = ctx.number;
        let ctx = NonNull::from(Box::leak(Box::write(room, ctx)));
        // Release: pairs with the Acquire in `get`.
        self.srqs
            .slot(number)
            .store(ctx.as_ptr(), Ordering::Release);
        Ok(ctx)
    }

    /// Removes a shared receive queue. After this returns, no XRC request finds or uses it. The caller
    /// ensures that no queue pair receives from it.
    pub fn destroy_srq(&self, number: u32) -> Option<Box<SrqCtx>> {
        let mut control = self.control();
        let slot = self.srqs.slot(number);
        // Relaxed: written under the lock, which is held.
        let ctx = NonNull::new(slot.load(Ordering::Relaxed))?;
        // SAFETY: from `Box::leak`, and freed only below, under the lock.
        if unsafe { ctx.as_ref() }.number != number {
            return None;
        }
        // Relaxed: the barrier in `drain` orders it before what follows.
        slot.store(std::ptr::null_mut(), Ordering::Relaxed);
        self.drain(&control);
        for record in control.qps.iter().flatten() {
            // An XRC target may hold a receive of any queue of its domain.
            if record.parts.transport == QpType::XrcRecv
                && record.responder.is_some()
                // SAFETY: XRC requests of other processes are executed under the lock, which is held.
                && let Some(recv) = unsafe { &mut *record.ctx.receiver.work.get() }
            {
                // SAFETY: freed only below.
                recv.release(Some(unsafe { ctx.as_ref() }));
            }
        }
        control.srqs.give(number);
        // SAFETY: from `Box::leak`. It can no longer be found, and the sections in which it was found have
        // been left.
        Some(unsafe { Box::from_raw(ctx.as_ptr()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pinned::Pinned;
    use crate::{HcaConfig, Running};
    use bellwire_core::port::DoorbellRecord;
    use bellwire_core::wqe::SrqRing;

    /// The memory of a queue's ring, and its doorbell record.
    fn memory() -> (Pinned, DoorbellRecord) {
        let pinned = Pinned::zeroed(64).expect("memory");
        (pinned, DoorbellRecord::default())
    }

    fn create(hca: &Running, events: &Arc<AsyncQueue>, memory: &(Pinned, DoorbellRecord)) -> u32 {
        let (pinned, record) = memory;
        // SAFETY: each test makes it before the device, so it outlives what the device holds.
        let record: &'static DoorbellRecord = unsafe { &*std::ptr::from_ref(record) };
        // SAFETY: likewise, and the memory has no other user.
        let ring = unsafe { SrqRing::new(pinned.start(), 4, 32) }.expect("a ring");
        let ctx = SrqCtx::new(7, SrqConsumer::new(ring, record), None, events.clone());
        let ctx = hca.create_srq(ctx).expect("a queue");
        // SAFETY: it has just been created.
        unsafe { ctx.as_ref() }.number()
    }

    fn exists(hca: &Running, number: u32) -> bool {
        // SAFETY: it is used before anything could destroy it.
        unsafe { hca.srqs.get(number) }.is_some_and(|ctx| ctx.pd == 7)
    }

    #[test]
    fn a_number_finds_its_queue_while_that_is_there() {
        let memory = [memory(), memory(), memory()];
        let hca = Running::start(HcaConfig::default()).expect("a device");
        let events = hca.contexts.open(1).expect("a context");
        let [first, second] = [&memory[0], &memory[1]].map(|memory| create(&hca, &events, memory));
        assert!(first != second && first != 0 && first | second < 1 << 24);
        assert!(exists(&hca, first) && exists(&hca, second));
        assert!(!exists(&hca, 0) && !exists(&hca, first ^ 1 << INDEX_BITS));
        assert!(hca.destroy_srq(first).is_some());
        assert!(!exists(&hca, first) && exists(&hca, second));
        assert!(hca.destroy_srq(first).is_none());
        // The same index, with another number.
        let third = create(&hca, &events, &memory[2]);
        assert_ne!(third, first);
        assert_eq!((third ^ first) & (MAX_SRQ as u32 - 1), 0);
        assert!(!exists(&hca, first) && exists(&hca, third));
        assert!(hca.destroy_srq(second).is_some() && hca.destroy_srq(third).is_some());
    }

    #[test]
    fn generations_go_round_within_24_bits() {
        let mut numbers = SrqNumbers::default();
        let first = numbers.take().expect("one");
        numbers.give(first);
        for _ in 0..GENERATION {
            let number = numbers.take().expect("one");
            assert!(number != first && number < 1 << 24);
            numbers.give(number);
        }
        assert_eq!(numbers.take().unwrap(), first);
        for index in 2..MAX_SRQ as u32 {
            assert_eq!(numbers.take().unwrap(), 1 << INDEX_BITS | index);
        }
        assert!(matches!(numbers.take(), Err(Error::Exhausted { .. })));
    }
}
