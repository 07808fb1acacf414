//! Posting a list of requests of one operation.

use super::SendQueue;
use crate::port::SendDoorbell;
use crate::queue::error::BadRequest;
use crate::wqe::{Address, Operation, Payload, Supports, Transport};
use crate::wr::SendFlags;

/// One request of a list: the arguments of [`SendQueue::post`].
pub struct SendRequest<'a, T: Transport, O, P> {
    /// The caller's identifier, returned in the completion.
    pub wr_id: u64,
    /// The destination: `()` on connected transports.
    pub address: Address<'a, T>,
    /// The operation.
    pub operation: O,
    /// The local memory.
    pub payload: P,
    /// Its flags.
    pub flags: SendFlags,
}

impl<T: Transport, D: SendDoorbell> SendQueue<'_, T, D> {
    /// Stages a list of requests in order. `request` builds the request of an element; it may be
    /// called twice for the same element. Returns how many were staged: all, or those before the
    /// first element for which `request` returned `None`.
    ///
    /// # Errors
    /// [`BadRequest`] says which request was refused and why; those before it are staged.
    ///
    /// # Panics
    /// When `request` panics; the requests before it are staged.
    ///
    /// # Safety
    /// The requirements of [`post`](Self::post) hold for each request.
    #[inline(always)]
    pub unsafe fn post_list<'a, R, O: Operation, P: Payload>(
        &mut self,
        list: &'a [R],
        request: impl Fn(&'a R) -> Option<SendRequest<'a, T, O, P>>,
    ) -> Result<usize, BadRequest>
    where
        T: Supports<O>,
    {
        let build = &request;
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
            let at = queue.head;
            if queue.has_room(blocks) {
                // SAFETY: there is room; the caller guarantees that the payload's memory stays valid
                // until the request is reported.
                unsafe { queue.write_entry(request, None) };
            } else {
                // `request` is called again after `refresh`, so that no register has to be saved
                // across that call.
                match queue.refresh(blocks) {
                    Ok(()) if queue.fence.is_none() => continue,
                    // SAFETY: likewise; `refresh` has found room, which it does not show.
                    Ok(()) if unsafe { queue.write_fenced(one, build, blocks) } => {}
                    Ok(()) => break,
                    Err(error) => {
                        refused = Some(error);
                        break;
                    }
                }
            }
            listed.last = at;
            left.next();
        }
        let index = list.len() - left.len();
        match refused {
            Some(error) => Err(BadRequest { index, error }),
            None => Ok(index),
        }
    }
}

impl<T: Transport, D: SendDoorbell> SendQueue<'_, T, D> {
    /// Stages an element's request, which waits for registration work and takes up to so many
    /// blocks. `false`: the request is none, or another one, this time.
    ///
    /// # Safety
    /// The requirements of [`post`](Self::post); so many blocks are free.
    #[cold]
    #[inline(never)]
    unsafe fn write_fenced<'a, R, O: Operation, P: Payload>(
        &mut self,
        one: &'a R,
        build: &impl Fn(&'a R) -> Option<SendRequest<'a, T, O, P>>,
        blocks: u32,
    ) -> bool
    where
        T: Supports<O>,
    {
        let request = build(one).filter(|it| self.blocks::<O, P>(&it.payload) == Ok(blocks));
        // SAFETY: the caller guarantees it.
        let written = request.map(|request| unsafe { self.write_entry(request, None) });
        written.is_some()
    }
}

/// The staged part of a list. The queue's last entry is updated once for all of it, because the number
/// of stores limits how fast requests are posted.
struct Listed<'q, 'm, T: Transport, D: SendDoorbell> {
    queue: &'q mut SendQueue<'m, T, D>,
    /// Requests posted before.
    before: u32,
    /// Counter of the last request staged.
    last: u32,
}

impl<'q, 'm, T: Transport, D: SendDoorbell> Listed<'q, 'm, T, D> {
    #[inline(always)]
    fn new(queue: &'q mut SendQueue<'m, T, D>) -> Self {
        Self {
            before: queue.number,
            queue,
            last: 0,
        }
    }
}

/// Runs also when the caller's function panics: what was staged before stays staged.
impl<T: Transport, D: SendDoorbell> Drop for Listed<'_, '_, T, D> {
    #[inline(always)]
    fn drop(&mut self) {
        let queue = &mut *self.queue;
        if queue.number != self.before {
            // SAFETY: the entry is staged.
            queue.last = unsafe { queue.read_back(self.last) };
        }
    }
}
