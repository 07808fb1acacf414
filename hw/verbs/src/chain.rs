//! Posting by `ibv_post_send`: requests are linked in preallocated memory and posted as a list.

use super::operation::Operation;
use super::qp::Qp;
use super::request::{MAX_SGE, Request, To, elements};
use super::sys;
use crate::error::Error;
use crate::pinned::{collected, defaults};
use bellwire_core::wqe::{SendRing, SendWqe};
use std::iter::repeat_with;
use std::mem::{MaybeUninit, zeroed};
use std::ptr::null_mut;

/// Most requests of one list, on a queue pair that posts all requests this way.
pub(super) const LENGTH: usize = 16;

/// Preallocated memory for a list of requests.
pub(super) struct Chain {
    wrs: Box<[MaybeUninit<sys::ibv_send_wr>]>,
    counters: Box<[u32]>,
    sges: Box<[[MaybeUninit<sys::ibv_sge>; MAX_SGE]]>,
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chain").finish_non_exhaustive()
    }
}

// SAFETY: the pointers in it are used during one call, on one thread.
unsafe impl Send for Chain {}
// SAFETY: it is only used through `&mut`.
unsafe impl Sync for Chain {}

impl Chain {
    /// For lists of up to `length` requests.
    ///
    /// # Errors
    /// There is no memory for the list.
    pub fn new(length: usize) -> Result<Self, Error> {
        let sges = repeat_with(|| [const { MaybeUninit::uninit() }; MAX_SGE]);
        Ok(Self {
            wrs: collected(repeat_with(MaybeUninit::uninit).take(length))?.into(),
            counters: defaults(length)?,
            sges: collected(sges.take(length))?.into(),
        })
    }

    /// Posts one entry; returns whether it was taken. The list must be empty.
    #[cold]
    pub fn post_alone(&mut self, own: &Qp, wqe: SendWqe<'_>, counter: u32) -> bool {
        let Some(request) = Request::read(own, &wqe, counter) else {
            return false;
        };
        if let Operation::BindType1 { mw, info } = request.operation {
            return own.bind_type1(mw, info, &request);
        }
        self.append(0, counter, &request);
        self.flush(own, 1).is_ok()
    }

    /// Posts the entries from `at` up to `to`; returns the counter of the first one that was not taken.
    ///
    /// # Safety
    /// The caller is the queue pair's only poster, and the entries are staged.
    pub unsafe fn post(&mut self, own: &Qp, ring: SendRing<'static>, mut at: u32, to: u32) -> u32 {
        let mut count = 0;
        while at != to {
            // SAFETY: the entry is staged, and is not written before it completes.
            let wqe = unsafe { SendWqe::read(ring, at) };
            let next = at.wrapping_add(wqe.blocks());
            match Request::read(own, &wqe, at) {
                Some(request) => {
                    if let Operation::BindType1 { mw, info } = request.operation {
                        if let Err(refused) = self.flush(own, count) {
                            return refused;
                        }
                        count = 0;
                        if !own.bind_type1(mw, info, &request) {
                            return at;
                        }
                    } else {
                        self.append(count, at, &request);
                        count += 1;
                    }
                    if let Operation::Bind { mw, rkey, .. } = request.operation {
                        if let Err(refused) = self.flush(own, count) {
                            return refused;
                        }
                        count = 0;
                        // libibverbs leaves setting the new rkey to the program, and reads it when it posts.
                        // SAFETY: the window is in the table, so it is allocated.
                        unsafe { (*mw.as_ptr()).rkey = rkey };
                    }
                }
                None => return self.flush(own, count).err().unwrap_or(at),
            }
            at = next;
            if count == self.wrs.len() {
                if let Err(refused) = self.flush(own, count) {
                    return refused;
                }
                count = 0;
            }
        }
        self.flush(own, count).err().unwrap_or(at)
    }

    fn append(&mut self, index: usize, counter: u32, request: &Request<'_>) {
        let sges = &mut self.sges[index];
        let (count, is_inline) = elements(request.data, sges);
        let inline = match is_inline {
            true => sys::ibv_send_flags::IBV_SEND_INLINE.0,
            false => 0,
        };
        // SAFETY: the structure consists of numbers and null pointers, for which zeroes are valid.
        let mut wr: sys::ibv_send_wr = unsafe { zeroed() };
        wr.wr_id = request.wr_id;
        wr.sg_list = sges.as_mut_ptr().cast();
        wr.num_sge = count as i32;
        wr.send_flags = request.flags | inline;
        wr.opcode = request.operation.write(&mut wr);
        match &request.to {
            To::Peer => {}
            To::Datagram(to) => {
                wr.wr.ud = sys::ud_t {
                    ah: to.handle,
                    remote_qpn: to.qpn,
                    remote_qkey: to.qkey,
                };
            }
            To::Srq(remote_srqn) => {
                wr.qp_type.xrc = sys::xrc_t {
                    remote_srqn: *remote_srqn,
                };
            }
        }
        self.counters[index] = counter;
        self.wrs[index].write(wr);
    }

    /// Posts the first `count` requests; the error is the counter of the first one that was not taken.
    fn flush(&mut self, own: &Qp, count: usize) -> Result<(), u32> {
        let first: *mut sys::ibv_send_wr = self.wrs.as_mut_ptr().cast();
        if count == 0 {
            return Ok(());
        }
        for index in 0..count {
            let next = match index + 1 < count {
                // SAFETY: the index is within the array.
                true => unsafe { first.add(index + 1) },
                false => null_mut(),
            };
            // SAFETY: `append` has written the request.
            unsafe { (*first.add(index)).next = next };
        }
        let mut bad = null_mut();
        // SAFETY: the queue pair is alive, and the list was just linked.
        let answer = unsafe { sys::ibv_post_send(own.handle().as_ptr(), first, &raw mut bad) };
        if answer == 0 {
            return Ok(());
        }
        own.note_answer(answer);
        let refused = (0..count).find(|&index| std::ptr::eq(first.wrapping_add(index), bad));
        Err(self.counters[refused.unwrap_or(0)])
    }
}
