//! Posting by `ibv_post_send`: requests are linked in prepared memory, and given away as a list.

use super::qp::Qp;
use super::request::{MAX_SGE, Operation, Request, To, elements};
use super::sys;
use bellwire_core::wqe::{SendRing, SendWqe};
use std::mem::{MaybeUninit, zeroed};
use std::ptr::null_mut;

/// Requests of one list, on a queue pair that posts all of them so.
pub(super) const LENGTH: usize = 16;

/// Prepared memory for a list.
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

// SAFETY: the pointers in it are of one post, on one thread.
unsafe impl Send for Chain {}
// SAFETY: used by `&mut` only.
unsafe impl Sync for Chain {}

impl Chain {
    /// For lists of so many requests.
    pub fn new(length: usize) -> Self {
        Self {
            wrs: (0..length).map(|_| MaybeUninit::uninit()).collect(),
            counters: vec![0; length].into(),
            sges: (0..length)
                .map(|_| [const { MaybeUninit::uninit() }; MAX_SGE])
                .collect(),
        }
    }

    /// Posts one entry; whether it was taken. None is in the list.
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

    /// Posts the entries from `at` up to `to`; gives the first that was not taken.
    ///
    /// # Safety
    /// The caller is the queue pair's only poster, and the entries are staged.
    pub unsafe fn post(&mut self, own: &Qp, ring: SendRing<'static>, mut at: u32, to: u32) -> u32 {
        let mut count = 0;
        while at != to {
            // SAFETY: staged, and not written before it completes.
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
                        // libibverbs leaves that to the program, and looks at it when it posts.
                        // SAFETY: the window is in the table.
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
        // SAFETY: numbers and null pointers, which zeroes are values of.
        let mut wr: sys::ibv_send_wr = unsafe { zeroed() };
        wr.wr_id = request.wr_id;
        wr.sg_list = sges.as_mut_ptr().cast();
        wr.num_sge = count as i32;
        wr.send_flags = request.flags | inline;
        wr.opcode = write_operation(&request.operation, &mut wr);
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

    /// Posts the first `count`; the error is the counter of the first that was not taken.
    fn flush(&mut self, own: &Qp, count: usize) -> Result<(), u32> {
        let first: *mut sys::ibv_send_wr = self.wrs.as_mut_ptr().cast();
        if count == 0 {
            return Ok(());
        }
        for index in 0..count {
            let next = match index + 1 < count {
                // SAFETY: within the array.
                true => unsafe { first.add(index + 1) },
                false => null_mut(),
            };
            // SAFETY: `append` has written it.
            unsafe { (*first.add(index)).next = next };
        }
        let mut bad = null_mut();
        // SAFETY: alive; a list that was just linked.
        let answer = unsafe { sys::ibv_post_send(own.handle().as_ptr(), first, &raw mut bad) };
        if answer == 0 {
            return Ok(());
        }
        let refused = (0..count).find(|&index| std::ptr::eq(first.wrapping_add(index), bad));
        Err(self.counters[refused.unwrap_or(0)])
    }
}

/// Writes what the operation adds, and gives its number.
fn write_operation(operation: &Operation, wr: &mut sys::ibv_send_wr) -> u32 {
    use sys::ibv_wr_opcode::*;
    let rdma = |remote: bellwire_core::wr::Remote| sys::rdma_t {
        remote_addr: remote.addr,
        rkey: remote.rkey,
    };
    let union = &mut wr.imm_data_invalidated_rkey_union;
    match *operation {
        Operation::Send => IBV_WR_SEND,
        Operation::SendImm(imm) => {
            union.imm_data = imm;
            IBV_WR_SEND_WITH_IMM
        }
        Operation::SendInv(key) => {
            union.invalidated_rkey = key;
            IBV_WR_SEND_WITH_INV
        }
        Operation::Write(to) => {
            wr.wr.rdma = rdma(to);
            IBV_WR_RDMA_WRITE
        }
        Operation::WriteImm(to, imm) => {
            union.imm_data = imm;
            wr.wr.rdma = rdma(to);
            IBV_WR_RDMA_WRITE_WITH_IMM
        }
        Operation::Read(from) => {
            wr.wr.rdma = rdma(from);
            IBV_WR_RDMA_READ
        }
        Operation::CmpSwp {
            remote,
            compare,
            swap,
        } => {
            wr.wr.atomic = sys::atomic_t {
                remote_addr: remote.addr,
                compare_add: compare,
                swap,
                rkey: remote.rkey,
            };
            IBV_WR_ATOMIC_CMP_AND_SWP
        }
        Operation::FetchAdd(remote, add) => {
            wr.wr.atomic = sys::atomic_t {
                remote_addr: remote.addr,
                compare_add: add,
                swap: 0,
                rkey: remote.rkey,
            };
            IBV_WR_ATOMIC_FETCH_AND_ADD
        }
        Operation::LocalInv(key) => {
            union.invalidated_rkey = key;
            IBV_WR_LOCAL_INV
        }
        Operation::Bind { mw, rkey, info } => {
            wr.bind_mw_tso_union.bind_mw = sys::bind_mw_t {
                mw: mw.as_ptr(),
                rkey,
                bind_info: info,
            };
            IBV_WR_BIND_MW
        }
        // Is never part of a list.
        Operation::BindType1 { .. } => IBV_WR_BIND_MW,
    }
}
