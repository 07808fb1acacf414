//! Polling several completions at once: their CQEs are returned to the device together where it can
//! wait for them.
//!
//! Only the CQEs of successful sends wait; every other CQE is returned with its completion. As many
//! may wait as no queue has reserved: then requests that the program posts while its completions
//! are being reported find both a slot and a CQE. So that some can wait, `bellwire` adds up to
//! 32 entries to those requested where the device writes the ring itself. If a queue pair reserves
//! no CQEs and relies on the device's overrun check, each CQE is returned before its completion is
//! reported.

use super::fast::{SENT, Waiting, not_written};
use super::steps::{Settled, Side};
use super::{Completion, CompletionQueue, Naming};
use crate::cqe::Cqe64;
use crate::queue::completion::Success;
use crate::queue::ledger::{Flight, Ledger};
use core::mem::ManuallyDrop;
use core::ptr::NonNull;

impl<'m, N: Naming> CompletionQueue<'m, N> {
    /// Polls up to `limit` completions, passes each to `each`, and returns how many there were.
    /// `each` may post: the slots of the completions that it was passed are free.
    #[inline(always)]
    pub fn poll(&mut self, limit: usize, mut each: impl FnMut(Completion<'m>)) -> usize {
        match limit <= self.spare {
            true => self.poll_batch(limit as u32, &mut each) as usize,
            false => self.poll_parts(limit, each),
        }
    }

    /// Polls like [`poll`](Self::poll), and returns all CQEs to the device at the end.
    #[inline(always)]
    fn poll_batch(&mut self, limit: u32, each: &mut impl FnMut(Completion<'m>)) -> u32 {
        let batch = Batch(self);
        let queue = &mut *batch.0;
        let mut left = limit;
        while left != 0 {
            let completion = match queue.waiting() {
                Waiting::Nothing => break,
                Waiting::Sent(ledger, entry) => {
                    // SAFETY: this queue is the attached ledger's poller; the CQE is written, and not
                    // overwritten before the consumer index passes it.
                    let (flight, counter) =
                        unsafe { (ledger.flight(), entry.as_ref().wqe_counter()) };
                    if !flight.oldest_is(counter) {
                        match queue.poll_later(each) {
                            true => left -= 1,
                            false => break,
                        }
                        continue;
                    }
                    // SAFETY: the next CQE is this one, and of the oldest request.
                    match unsafe { queue.sends(ledger, flight, entry, &mut left, each) } {
                        true => break,
                        false => continue,
                    }
                }
                Waiting::Received(ledger, cqe) => {
                    // SAFETY: this queue is the attached ledger's poller.
                    match unsafe { ledger.next() } {
                        Some(oldest) => {
                            left -= 1;
                            // Always returned at once: code that ends a queue pair counts which
                            // receives were not polled.
                            // SAFETY: just located.
                            each(unsafe { queue.finish::<true>(Side::Recv, ledger, oldest, cqe) });
                            continue;
                        }
                        None => queue.take_written(),
                    }
                }
                Waiting::Other => queue.take_written(),
            };
            let Some(completion) = completion else { break };
            left -= 1;
            each(completion.unpacked());
        }
        let queue = ManuallyDrop::new(batch);
        // The consumer index is in a cache line of its own, which polls that find nothing do not
        // touch.
        if left != limit {
            queue.0.give_back();
        }
        limit - left
    }

    /// Polls sends of one queue whose CQEs lie one behind the other, from the next CQE on, as long
    /// as each is the oldest of its queue. Takes as many from `left`, which is not zero. Returns
    /// whether the CQE behind them is known not to be written.
    ///
    /// # Safety
    /// The next CQE is this one, of a successful request of this queue without payload in it. `flight`
    /// is that of the queue, and the request is the oldest.
    #[inline(always)]
    unsafe fn sends(
        &mut self,
        ledger: &'m Ledger<'m>,
        mut flight: Flight<'m>,
        entry: NonNull<Cqe64>,
        left: &mut u32,
        each: &mut impl FnMut(Completion<'m>),
    ) -> bool {
        let most = (*left).min(self.next.left());
        let mut run = Run {
            entry,
            left: most,
            most,
            all: left,
            queue: self,
        };
        loop {
            // SAFETY: the CQE is written; the device does not overwrite it before the consumer
            // index passes it.
            let cqe = unsafe { run.entry.as_ref() };
            // SAFETY: within the ring.
            run.entry = unsafe { run.queue.memory.behind(run.entry) };
            run.left -= 1;
            // SAFETY: this queue is the poller, and the request was just located; so it is the last
            // one taken.
            let completion = unsafe {
                let taken = ledger.take(flight.oldest());
                flight.pass(&taken);
                let success = Success::new(taken.opcode, cqe);
                run.queue
                    .deliver::<false>(Settled::Own { ledger, taken }, Ok(success))
            };
            each(completion);
            if run.left == 0 {
                return false;
            }
            // SAFETY: within the ring, whose entries are initialised.
            let kind = unsafe { Cqe64::peek(run.entry) } ^ run.queue.next.owner();
            if kind != SENT {
                return not_written(kind);
            }
            // SAFETY: the CQE is written; the device does not overwrite it before the consumer
            // index passes it.
            let cqe = unsafe { Cqe64::read(run.entry) };
            let name = N::raw_name(cqe);
            if !run.queue.recent.sends.is(name) || !flight.oldest_is(cqe.wqe_counter()) {
                return false;
            }
        }
    }

    /// Polls a send that is not the oldest of its queue, or whatever the next completion is. Returns
    /// whether there was one.
    #[inline(never)]
    fn poll_later(&mut self, each: &mut impl FnMut(Completion<'m>)) -> bool {
        let mut completion = None;
        if let Waiting::Sent(ledger, entry) = self.waiting() {
            // SAFETY: the CQE is written, and not overwritten before the consumer index passes it.
            let cqe = unsafe { entry.as_ref() };
            // SAFETY: this queue is the attached ledger's poller.
            if let Some(located) = unsafe { ledger.locate(cqe.wqe_counter()) } {
                // SAFETY: just located.
                completion =
                    unsafe { Some(self.finish::<false>(Side::Send, ledger, located, cqe)) };
            }
        }
        let completion = completion.or_else(|| self.take_written());
        let found = completion.is_some();
        if let Some(completion) = completion {
            each(completion);
        }
        found
    }

    /// Polls like [`poll`](Self::poll) with a `limit` above the spare CQEs: in parts, or one by one
    /// where there are none to spare.
    #[inline(never)]
    fn poll_parts(&mut self, limit: usize, mut each: impl FnMut(Completion<'m>)) -> usize {
        let mut count = 0;
        while count < limit {
            let part = self.spare.min(limit - count);
            let polled = match part {
                0 => match self.poll_one() {
                    Some(completion) => {
                        each(completion);
                        1
                    }
                    None => 0,
                },
                _ => self.poll_batch(part as u32, &mut each) as usize,
            };
            count += polled;
            if polled < part.max(1) {
                break;
            }
        }
        count
    }

    /// Recomputes `spare`, after an attachment has changed.
    pub(in crate::queue) fn count_spare(&mut self) {
        self.spare = match self.unreserving {
            0 => self.unreserved() as usize,
            _ => 0,
        };
    }
}

/// Returns the polled CQEs to the device when the function that is passed the completions panics.
struct Batch<'q, 'm, N: Naming>(&'q mut CompletionQueue<'m, N>);

impl<N: Naming> Drop for Batch<'_, '_, N> {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

/// CQEs that lie one behind the other. The completion queue goes on behind them when it is dropped.
struct Run<'q, 'm, N: Naming> {
    queue: &'q mut CompletionQueue<'m, N>,
    /// The next CQE.
    entry: NonNull<Cqe64>,
    /// CQEs from there on that may belong to it.
    left: u32,
    most: u32,
    /// What is left of the limit.
    all: &'q mut u32,
}

impl<N: Naming> Drop for Run<'_, '_, N> {
    #[inline(always)]
    fn drop(&mut self) {
        let polled = self.most - self.left;
        *self.all -= polled;
        let queue = &mut *self.queue;
        queue.next.skip(&queue.memory, polled, self.entry);
    }
}
