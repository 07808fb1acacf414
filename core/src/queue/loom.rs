//! Models of the state shared by the poster and the pollers, for loom and Miri.

use super::ledger::{Ledger, LedgerSlot, Record};
use super::srq::{Consumed, SharedRecvQueue, SrqLedger, SrqSlot};
use super::srq_device::{Popped, SrqConsumer};
use crate::port::DoorbellRecord;
use crate::sync::model::{Arc, check, thread};
#[cfg(loom)]
use crate::sync::needs_orderings;
use crate::wqe::SrqRing;
use crate::wr::{Sge, WcOpcode};
use core::ptr::NonNull;
use std::boxed::Box;
use std::vec::Vec;

/// A value and the memory that it borrows, which is dropped after it.
struct Owner<T, S> {
    value: Option<T>,
    slots: *mut S,
}

// SAFETY: the pointer is only used when the owner is dropped.
unsafe impl<T: Send, S> Send for Owner<T, S> {}
// SAFETY: the pointer is only used when the owner is dropped.
unsafe impl<T: Sync, S> Sync for Owner<T, S> {}

impl<T, S> Owner<T, S> {
    fn new(slots: S, value: impl FnOnce(&'static mut S) -> T) -> Self
    where
        S: 'static,
    {
        let slots = Box::into_raw(Box::new(slots));
        // SAFETY: from `Box::into_raw`, and freed after the value.
        let value = Some(value(unsafe { &mut *slots }));
        Self { value, slots }
    }

    /// # Safety
    /// The reference is not used after the owner is dropped or moved.
    unsafe fn get(&self) -> &'static T {
        let value = self.value.as_ref().expect("until it is dropped");
        // SAFETY: the caller guarantees that the owner outlives the reference.
        unsafe { &*core::ptr::from_ref(value) }
    }
}

impl<T, S> Drop for Owner<T, S> {
    fn drop(&mut self) {
        self.value = None;
        // SAFETY: from `Box::into_raw`; the value that borrowed it is dropped.
        drop(unsafe { Box::from_raw(self.slots) });
    }
}

fn post(ledger: &Ledger<'_>, counter: u32, publish: bool) {
    // SAFETY: the models have one poster, which respects the capacity.
    unsafe {
        let record = Record {
            wr_id: u64::from(counter) + 10,
            block: None,
            end: counter + 1,
            number: counter,
            opcode: Some(WcOpcode::Send),
        };
        ledger.record(ledger.slot(counter), counter, record);
    }
    if publish {
        ledger.publish(counter + 1);
    }
}

/// Polls a completion with `counter`; returns the `wr_id`, and how many requests it retires.
fn poll(ledger: &Ledger<'_>, counter: u16) -> Option<(u64, u32)> {
    // SAFETY: the models have one poller.
    unsafe {
        let taken = ledger.take(ledger.locate(counter)?);
        drop(ledger.release::<true>(&taken));
        Some((taken.wr_id, taken.retired))
    }
}

/// The poster reuses slots that the poller releases; the poller reads only complete records.
#[test]
fn loom_ledger_hands_records_over_and_slots_back() {
    check(|| {
        let slots = [LedgerSlot::default(), LedgerSlot::default()];
        let owner = Owner::new(slots, |slots| Ledger::new(slots, 1).expect("two slots"));
        let owner = Arc::new(owner);
        // SAFETY: the owner outlives the reference in this model.
        let ledger = unsafe { owner.get() };
        let poller = {
            let owner = owner.clone();
            thread::spawn(move || {
                // SAFETY: the thread holds the owner.
                let ledger = unsafe { owner.get() };
                let mut reported = Vec::new();
                // The second request is unsignalled; the third is in the slot of the first.
                for counter in [0, 2, 0] {
                    reported.extend(poll(ledger, counter));
                }
                reported
            })
        };
        post(ledger, 0, true);
        post(ledger, 1, false);
        let mut head = 2;
        ledger.publish(head);
        if ledger.retired() >= 1 {
            post(ledger, 2, true);
            head = 3;
        }
        let mut reported = poller.join().expect("no panic");
        // Completions that the poller missed.
        for counter in 0..head {
            reported.extend(poll(ledger, counter as u16));
        }
        let retired: u32 = reported.iter().map(|(_, count)| count).sum();
        assert_eq!((retired, ledger.in_flight()), (head, 0));
        assert!(
            reported.windows(2).all(|pair| pair[0].0 < pair[1].0),
            "{reported:?}"
        );
    });
}

/// The poller of a receive queue takes the oldest request, without a counter.
#[test]
fn loom_ledger_gives_the_oldest_in_order() {
    check(|| {
        let slots = [LedgerSlot::default(), LedgerSlot::default()];
        let owner = Owner::new(slots, |slots| Ledger::new(slots, 1).expect("two slots"));
        let owner = Arc::new(owner);
        let poster = {
            let owner = owner.clone();
            thread::spawn(move || {
                // SAFETY: the thread holds the owner.
                let ledger = unsafe { owner.get() };
                let mut posted = 0;
                while posted < 3 && posted < ledger.retired() + 2 {
                    post(ledger, posted, true);
                    posted += 1;
                }
                posted
            })
        };
        // SAFETY: the owner outlives the reference in this model.
        let ledger = unsafe { owner.get() };
        let take = || {
            // SAFETY: this is the only poller.
            unsafe {
                let taken = ledger.take(ledger.next()?);
                drop(ledger.release::<true>(&taken));
                Some(taken.wr_id)
            }
        };
        let mut reported: Vec<u64> = [take(), take()].into_iter().flatten().collect();
        let posted = poster.join().expect("no panic");
        while let Some(wr_id) = take() {
            reported.push(wr_id);
        }
        assert!(
            reported
                .iter()
                .copied()
                .eq((0..posted).map(|n| u64::from(n) + 10))
        );
    });
}

#[repr(align(64))]
struct Entries([u8; 4 * 32]);

type Shared = Owner<
    (SrqLedger<'static>, &'static DoorbellRecord),
    (Entries, [SrqSlot<'static>; 4], DoorbellRecord),
>;

/// A shared receive queue of four entries.
fn shared() -> (Arc<Shared>, SharedRecvQueue<'static>) {
    let slots = (
        Entries([0; 4 * 32]),
        core::array::from_fn(|_| SrqSlot::default()),
        DoorbellRecord::default(),
    );
    let owner = Owner::new(slots, |(entries, slots, record)| {
        let memory = NonNull::from(&mut entries.0).cast();
        // SAFETY: the entries live as long as the owner, and nothing else uses them.
        let ring = unsafe { SrqRing::new(memory, 4, 32) }.expect("sizes");
        (SrqLedger::new(ring, slots).expect("four slots"), &*record)
    });
    let owner = Arc::new(owner);
    // SAFETY: the models keep the owner as long as the queue, and do not move it.
    let (ledger, record) = unsafe { owner.get() };
    // SAFETY: the only queue on the ledger.
    let queue = unsafe { SharedRecvQueue::new(ledger, record) }.expect("four entries");
    (owner, queue)
}

fn receive(queue: &mut SharedRecvQueue<'_>, wr_id: u64) -> bool {
    let sge = Sge {
        addr: wr_id,
        length: 1,
        lkey: 1,
    };
    // SAFETY: no device writes to this memory.
    unsafe { queue.post(wr_id, &[sge]) }.is_ok()
}

/// A poller of completions for these slots, correct or not; returns the requests that it retires.
fn poller<const N: usize>(owner: &Arc<Shared>, slots: [u16; N]) -> thread::JoinHandle<Vec<u64>> {
    let owner = owner.clone();
    thread::spawn(move || {
        // SAFETY: the thread holds the owner.
        let (ledger, _) = unsafe { owner.get() };
        let reported = slots.map(|slot| ledger.locate(slot).map(Consumed::release));
        reported
            .into_iter()
            .flatten()
            .map(|(wr_id, ..)| wr_id)
            .collect()
    })
}

/// Two pollers return slots while the poster collects them: each request is reported once, no slot
/// is lost, and none is posted twice.
#[test]
fn loom_srq_slots_come_back_from_two_pollers() {
    check(|| {
        let (owner, mut queue) = shared();
        let mut posted = (0..3).filter(|wr_id| receive(&mut queue, *wr_id)).count() as u64;
        assert_eq!(posted, 3);
        // Both complete slot 0, one of them wrongly.
        let (a, b) = (poller(&owner, [0, 1]), poller(&owner, [0, 2]));
        posted += u64::from(receive(&mut queue, posted));
        let mut reported = a.join().expect("no panic");
        reported.extend(b.join().expect("no panic"));
        while receive(&mut queue, posted) {
            posted += 1;
        }
        assert_eq!(posted, 3 + reported.len() as u64, "slots were lost");
        // SAFETY: the owner outlives the reference in this model.
        let (ledger, _) = unsafe { owner.get() };
        let late = (0..4).filter_map(|slot| ledger.locate(slot).map(Consumed::release));
        reported.extend(late.map(|(wr_id, ..)| wr_id));
        reported.sort_unstable();
        assert!(
            reported.iter().copied().eq(0..posted),
            "{reported:?} of {posted}"
        );
    });
}

/// A device completes a slot that is just being posted: the poller finds nothing, or the whole
/// request. (The state of the slot after that is not checked: loom allows a store to be followed by
/// an exchange that did not see it.)
#[test]
fn loom_srq_reports_a_whole_request() {
    check(|| {
        let (owner, mut queue) = shared();
        let poller = poller(&owner, [0]);
        assert!(receive(&mut queue, 7));
        let reported = poller.join().expect("no panic");
        assert!(reported.is_empty() || reported == [7], "{reported:?}");
    });
}

/// A thread of the device: consumes an entry, and completes it.
fn popper(
    owner: &Arc<Shared>,
    device: &Arc<SrqConsumer<'static>>,
) -> thread::JoinHandle<Option<(u64, bool)>> {
    let (owner, device) = (owner.clone(), device.clone());
    thread::spawn(move || {
        // SAFETY: the thread holds the owner.
        let (ledger, _) = unsafe { owner.get() };
        device.pop().map(|popped| complete(ledger, &device, popped))
    })
}

/// Completes a consumed entry; panics when it was not posted, or was consumed by another thread
/// too.
fn complete(ledger: &SrqLedger<'_>, device: &SrqConsumer<'_>, popped: Popped) -> (u64, bool) {
    // SAFETY: consumed, and not returned yet.
    let sge = unsafe { device.ring().read(popped.index.into()).next() };
    let (wr_id, _) = (ledger.locate(popped.index).map(Consumed::release)).expect("taken once");
    assert_eq!(sge.map(|sge| sge.addr), Some(wr_id), "another request's");
    (wr_id, popped.limit_reached)
}

/// Two threads consume entries while the poster links the returned ones behind the tail and posts
/// them again: no entry is consumed twice, none is lost, and the limit is reported once.
#[test]
fn loom_srq_entries_are_taken_once() {
    check(|| {
        let (owner, mut queue) = shared();
        // SAFETY: the owner outlives the consumer in this model.
        let (ledger, record) = unsafe { owner.get() };
        let device = Arc::new(SrqConsumer::new(*ledger.ring(), record));
        let mut posted = (0..3).filter(|wr_id| receive(&mut queue, *wr_id)).count() as u64;
        queue.ring();
        device.set_limit(2);
        let (a, b) = (popper(&owner, &device), popper(&owner, &device));
        // Where a slot was returned already, this is the second round of an entry.
        posted += u64::from(receive(&mut queue, posted));
        queue.ring();
        let reported = [a, b].map(|thread| thread.join().expect("no panic"));
        let mut reported: Vec<_> = reported.into_iter().flatten().collect();
        assert_eq!(reported.len(), 2, "there was one for each");
        while let Some(popped) = device.pop() {
            reported.push(complete(ledger, &device, popped));
        }
        assert_eq!(reported.iter().filter(|(_, limit)| *limit).count(), 1);
        reported.sort_unstable();
        assert!(
            reported.iter().map(|(wr_id, _)| *wr_id).eq(0..posted),
            "{reported:?} of {posted}"
        );
    });
}

/// For each ordering a model fails without it.
#[cfg(loom)]
#[test]
fn loom_ledger_needs_its_orderings() {
    let models: [fn(); 2] = [
        loom_ledger_hands_records_over_and_slots_back,
        loom_ledger_gives_the_oldest_in_order,
    ];
    // In `in_flight`, whose result is out of date as it returns.
    let unseen = [".load(Ordering::Acquire)"];
    needs_orderings(&models, "queue/ledger.rs", &unseen);
}

#[cfg(loom)]
#[test]
fn loom_srq_needs_its_orderings() {
    let models: [fn(); 2] = [
        loom_srq_reports_a_whole_request,
        loom_srq_slots_come_back_from_two_pollers,
    ];
    needs_orderings(&models, "queue/srq.rs", &[]);
}

/// A thread of the device consumes a request while it is posted, or finds nothing yet.
#[test]
fn loom_srq_entry_is_consumed_whole() {
    check(|| {
        let (owner, mut queue) = shared();
        // SAFETY: the owner outlives the consumer in this model.
        let (ledger, record) = unsafe { owner.get() };
        let device = Arc::new(SrqConsumer::new(*ledger.ring(), record));
        let popper = popper(&owner, &device);
        assert!(receive(&mut queue, 7));
        queue.ring();
        let reported = popper.join().expect("no panic");
        assert!(reported.is_none_or(|(wr_id, _)| wr_id == 7));
        assert_eq!(device.pop().is_some(), reported.is_none());
    });
}
