//! What the device knows of shared receive queues.

use super::cq::CqCtx;
use super::hca::Hca;
use crate::error::Error;
use crate::event::{AsyncQueue, Element, EventType};
use bellwire_core::queue::{Popped, SrqConsumer};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The device's side of a shared receive queue.
#[derive(Debug)]
pub(crate) struct SrqCtx {
    /// Its number; zero until it has one.
    number: u32,
    /// The protection domain of its receives.
    pub pd: u32,
    /// Entries, doorbell record, limit, error state.
    pub queue: SrqConsumer<'static>,
    /// Where its completions go, for XRC. Else it is the queue pair that knows.
    pub xrc: Option<XrcSrq>,
    /// Those of the context that it was created in.
    events: Arc<AsyncQueue>,
}

/// What an XRC request finds at a shared receive queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct XrcSrq {
    /// The domain that it is open to.
    pub xrcd: u32,
    /// Where receives complete.
    pub cq: &'static CqCtx,
    /// How completions name the queue.
    pub user_index: u32,
}

impl SrqCtx {
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

    /// Takes the oldest receive, which is the caller's until it completes it. By any number of
    /// requesters' threads at once.
    #[inline(always)]
    pub fn pop(&self) -> Option<Popped> {
        self.queue.pop()
    }

    /// Tells its context of an event. May be called within a section.
    #[cold]
    pub fn raise(&self, event: EventType) {
        // While it is being destroyed nobody wants to know.
        let _known = self.events.push(Element::Srq(self.number), event);
    }

    /// Takes it to the error state, and says so. `false`: it was there.
    pub fn fail(&self) -> bool {
        let first = !self.queue.failed();
        if first {
            self.queue.fail();
            self.raise(EventType::SrqErr);
        }
        first
    }
}

/// Contexts by index. A context goes when its queue is destroyed and every section has been left in
/// which it may have been found.
#[derive(Debug)]
pub(super) struct SrqTable {
    slots: Box<[AtomicPtr<SrqCtx>]>,
}

/// Shared receive queues that a device can have at once. Index 0 is not used.
pub(super) const MAX_SRQ: usize = 1 << INDEX_BITS;
const INDEX_BITS: u32 = 14;
const GENERATION: u16 = (1 << (24 - INDEX_BITS)) - 1;

impl SrqTable {
    pub fn new() -> Self {
        Self {
            slots: (0..MAX_SRQ).map(|_| AtomicPtr::default()).collect(),
        }
    }

    fn slot(&self, number: u32) -> &AtomicPtr<SrqCtx> {
        &self.slots[number as usize & (MAX_SRQ - 1)]
    }

    /// The shared receive queue of this number, if there is one now.
    ///
    /// # Safety
    /// It is used within the section in which it was found, or while the device's lock is held
    /// under which it was found.
    #[inline(always)]
    pub unsafe fn get(&self, number: u32) -> Option<&'static SrqCtx> {
        // Acquire: partner of the release in `create_srq`.
        let ctx = NonNull::new(self.slot(number).load(Ordering::Acquire))?;
        // SAFETY: from `Box::into_raw`; `destroy_srq` waits for the section, by the caller's
        // promise, or for the lock.
        Some(unsafe { ctx.as_ref() }).filter(|ctx| ctx.number == number)
    }
}

impl Drop for SrqTable {
    fn drop(&mut self) {
        for slot in &mut self.slots {
            let ctx = *slot.get_mut();
            if !ctx.is_null() {
                // SAFETY: from `Box::into_raw`, and nobody uses the device any more.
                drop(unsafe { Box::from_raw(ctx) });
            }
        }
    }
}

/// Which numbers are free.
#[derive(Debug, Default)]
pub(super) struct SrqNumbers {
    free: Vec<u16>,
    /// Of each index used so far, the generation of its last number. Index 0 comes at one place
    /// before the first.
    generations: Vec<u16>,
}

impl SrqNumbers {
    fn take(&mut self) -> Option<u32> {
        let index = match self.free.pop() {
            Some(index) => usize::from(index),
            None if self.generations.len() < MAX_SRQ - 1 => {
                self.generations.push(0);
                self.generations.len()
            }
            None => return None,
        };
        let generation = &mut self.generations[index - 1];
        *generation = generation.wrapping_add(1) & GENERATION;
        Some(u32::from(*generation) << INDEX_BITS | index as u32)
    }

    pub fn used(&self) -> usize {
        self.generations.len() - self.free.len()
    }

    fn give(&mut self, number: u32) {
        self.free.push((number as usize & (MAX_SRQ - 1)) as u16);
    }
}

impl Hca {
    /// Makes a shared receive queue known, and gives it a number.
    pub(crate) fn create_srq(&self, mut ctx: SrqCtx) -> Result<NonNull<SrqCtx>, Error> {
        let mut control = self.control();
        control.alive()?;
        let Some(number) = control.srqs.take() else {
            return Err(Error::Exhausted {
                what: "shared receive queues",
                max: MAX_SRQ - 1,
            });
        };
        ctx.number = number;
        let ctx = NonNull::from(Box::leak(Box::new(ctx)));
        // Release: partner of the acquire in `get`.
        self.srqs
            .slot(number)
            .store(ctx.as_ptr(), Ordering::Release);
        Ok(ctx)
    }

    /// Takes a shared receive queue away. When this returns no XRC request finds it any more, nor
    /// uses it. Queue pairs that receive from it are the caller's to exclude.
    pub(crate) fn destroy_srq(&self, number: u32) -> Option<Box<SrqCtx>> {
        let mut control = self.control();
        let slot = self.srqs.slot(number);
        // Relaxed: under the lock that it is written under.
        let ctx = NonNull::new(slot.load(Ordering::Relaxed))?;
        // SAFETY: from `Box::leak`, and freed only below, under the lock.
        if unsafe { ctx.as_ref() }.number != number {
            return None;
        }
        // Relaxed: ordered before what follows by the barrier.
        slot.store(std::ptr::null_mut(), Ordering::Relaxed);
        self.drain(&control);
        control.srqs.give(number);
        // SAFETY: from `Box::leak`; nobody finds it any more, and whoever had found it has left.
        Some(unsafe { Box::from_raw(ctx.as_ptr()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soft::HcaConfig;
    use crate::{Device, Srq, SrqInit};

    fn create(device: &Device) -> Srq {
        let made = device.alloc_pd().create_srq(&SrqInit::default());
        made.expect("a queue")
    }

    fn hca(device: &Device) -> &Hca {
        device.hca.soft("its tables").expect("a software HCA")
    }

    fn found(device: &Device, number: u32) -> bool {
        // SAFETY: not used.
        unsafe { hca(device).srqs.get(number) }.is_some()
    }

    #[test]
    fn a_number_finds_its_queue_while_that_is_there() {
        let device = Device::soft(HcaConfig::default());
        let (a, b) = (create(&device), create(&device));
        let (first, second) = (a.srq_num(), b.srq_num());
        assert!(first != second && first != 0 && first | second < 1 << 24);
        assert!(found(&device, first) && found(&device, second));
        assert!(!found(&device, 0) && !found(&device, first ^ 1 << INDEX_BITS));
        // SAFETY: `a` is there.
        let (ctx, by_number) = unsafe {
            (
                a.shared_with(a.pd()).unwrap().ctx().unwrap(),
                hca(&device).srqs.get(first).expect("it"),
            )
        };
        assert!(std::ptr::eq(ctx, by_number));
        assert_eq!(ctx.pd, a.pd().id());
        drop(a);
        assert!(!found(&device, first) && found(&device, second));
        assert!(hca(&device).destroy_srq(first).is_none());
        // The same place, by another number.
        let c = create(&device);
        assert_ne!(c.srq_num(), first);
        assert_eq!((c.srq_num() ^ first) & (MAX_SRQ as u32 - 1), 0);
        assert!(!found(&device, first) && found(&device, c.srq_num()));
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
        assert_eq!(numbers.take(), Some(first));
        for index in 2..MAX_SRQ as u32 {
            assert_eq!(numbers.take(), Some(1 << INDEX_BITS | index));
        }
        assert_eq!(numbers.take(), None);
    }
}
