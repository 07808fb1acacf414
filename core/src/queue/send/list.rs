//! Posting several requests of one operation.

use super::SendQueue;
use crate::port::SendDoorbell;
use crate::queue::error::BadRequest;
use crate::wqe::{Address, Operation, Payload, Supports, Transport};
use crate::wr::SendFlags;

/// A request of a list: what [`SendQueue::post`] takes.
pub struct SendRequest<'a, T: Transport, O, P> {
    /// The caller's identifier, which the completion has.
    pub wr_id: u64,
    /// Where it goes: `()` on connections.
    pub address: Address<'a, T>,
    /// What is asked for.
    pub operation: O,
    /// The local memory.
    pub payload: P,
    /// How.
    pub flags: SendFlags,
}

impl<T: Transport, D: SendDoorbell> SendQueue<'_, T, D> {
    /// Stages a list of requests in order: of each element what `request` makes of it. It may be asked for
    /// an element twice. Gives how many were staged: all, or those before the first element of which it
    /// makes none.
    ///
    /// # Errors
    /// [`BadRequest`] says which was refused and why; those before it are staged.
    ///
    /// # Panics
    /// When `request` does; those before are staged.
    ///
    /// # Safety
    /// Of each as [`post`](Self::post) says.
    #[inline(always)]
    pub unsafe fn post_list<'a, R, O: Operation, P: Payload>(
        &mut self,
        list: &'a [R],
        request: impl Fn(&'a R) -> Option<SendRequest<'a, T, O, P>>,
    ) -> Result<usize, BadRequest>
    where
        T: Supports<O>,
    {
        let mut left = list.iter();
        let mut refused = None;
        let mut listed = Listed::new(self);
        while let Some(one) = left.as_slice().first()
            && let Some(request) = request(one)
        {
            let queue = &mut *listed.queue;
            let blocks = match queue.blocks::<O, P>(&request.payload) {
                Ok(blocks) => blocks,
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            };
            if queue.limit.wrapping_sub(queue.head) < blocks {
                // The request is made anew behind this call: so no register is saved for it.
                match queue.refresh(blocks) {
                    Ok(()) => continue,
                    Err(error) => {
                        refused = Some(error);
                        break;
                    }
                }
            }
            // SAFETY: there is room; the memory is the caller's promise.
            let entry = unsafe { queue.write_entry(request, None) };
            listed.last = entry.counter;
            left.next();
        }
        let index = list.len() - left.len();
        match refused {
            Some(error) => Err(BadRequest { index, error }),
            None => Ok(index),
        }
    }
}

/// What of a list is staged. The queue is told of all at once: posting is bound by how many stores it makes.
struct Listed<'q, 'm, T: Transport, D: SendDoorbell> {
    queue: &'q mut SendQueue<'m, T, D>,
    /// Requests staged before, as the queue's counters have them.
    before: u32,
    /// Counter of the last.
    last: u32,
}

impl<'q, 'm, T: Transport, D: SendDoorbell> Listed<'q, 'm, T, D> {
    #[inline(always)]
    fn new(queue: &'q mut SendQueue<'m, T, D>) -> Self {
        let before = queue.head.wrapping_sub(queue.extra);
        Self {
            queue,
            before,
            last: 0,
        }
    }
}

/// Also when the program's function panics: what was staged before stays so.
impl<T: Transport, D: SendDoorbell> Drop for Listed<'_, '_, T, D> {
    #[inline(always)]
    fn drop(&mut self) {
        let queue = &mut *self.queue;
        // Each request takes one block beside its extra ones.
        let count = (queue.head.wrapping_sub(queue.extra)).wrapping_sub(self.before);
        if count != 0 {
            queue.staged += count;
            // SAFETY: staged.
            queue.last = unsafe { queue.read_back(self.last) };
        }
    }
}
