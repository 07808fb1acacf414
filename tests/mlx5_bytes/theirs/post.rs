//! Posting, by `ibv_post_send` and by `ibv_wr_*`.

use super::*;

impl Theirs<'_> {
    /// Posts all of them, and rings once.
    pub fn post(&self, requests: &[Request], arena: &Arena) -> Check {
        match self.way {
            Way::Legacy => self.post_send(requests),
            Way::Extended => self.wr(requests, arena),
        }
    }

    fn bind_info(&self, bind: &crate::request::Bind) -> ibv_mw_bind_info {
        ibv_mw_bind_info {
            mr: self.library.mr.as_ptr(),
            addr: bind.addr,
            length: bind.length.into(),
            mw_access_flags: bind.access,
        }
    }

    fn post_send(&self, requests: &[Request]) -> Check {
        let mut lists: Vec<Vec<ibv_sge>> = requests
            .iter()
            .map(|request| request.sges.iter().map(sge).collect())
            .collect();
        let mut list: Vec<ibv_send_wr> = Vec::with_capacity(requests.len());
        for (request, sges) in requests.iter().zip(&mut lists) {
            list.push(self.send_wr(request, sges));
        }
        for at in 1..list.len() {
            list[at - 1].next = &raw mut list[at];
        }
        let mut bad = null_mut();
        // SAFETY: a list of requests; nothing is executed.
        let answer = unsafe { ibv_post_send(self.qp.as_ptr(), list.as_mut_ptr(), &raw mut bad) };
        done("ibv_post_send", answer)
    }

    fn send_wr(&self, request: &Request, sges: &mut [ibv_sge]) -> ibv_send_wr {
        use ibv_wr_opcode as O;
        // SAFETY: zeroes are values of it.
        let mut wr: ibv_send_wr = unsafe { zeroed() };
        wr.wr_id = request.wr_id;
        wr.sg_list = sges.as_mut_ptr();
        wr.num_sge = sges.len() as c_int;
        let inline = if request.inline {
            SendFlags::INLINE
        } else {
            SendFlags::empty()
        };
        wr.send_flags = (request.flags | inline).bits().into();
        let rdma = |remote: bellwire::wr::Remote| wr_t {
            rdma: rdma_t {
                remote_addr: remote.addr,
                rkey: remote.rkey,
            },
        };
        let atomic = |remote: bellwire::wr::Remote, compare_add, swap| wr_t {
            atomic: atomic_t {
                remote_addr: remote.addr,
                compare_add,
                swap,
                rkey: remote.rkey,
            },
        };
        let imm = &mut wr.imm_data_invalidated_rkey_union;
        wr.opcode = match request.op {
            Op::Send => O::IBV_WR_SEND,
            Op::SendImm(data) => {
                imm.imm_data = data;
                O::IBV_WR_SEND_WITH_IMM
            }
            Op::SendInv(rkey) => {
                imm.invalidated_rkey = rkey;
                O::IBV_WR_SEND_WITH_INV
            }
            Op::Write(remote) => {
                wr.wr = rdma(remote);
                O::IBV_WR_RDMA_WRITE
            }
            Op::WriteImm(remote, data) => {
                imm.imm_data = data;
                wr.wr = rdma(remote);
                O::IBV_WR_RDMA_WRITE_WITH_IMM
            }
            Op::Read(remote) => {
                wr.wr = rdma(remote);
                O::IBV_WR_RDMA_READ
            }
            Op::CmpSwap(remote, compare, swap) => {
                wr.wr = atomic(remote, compare, swap);
                O::IBV_WR_ATOMIC_CMP_AND_SWP
            }
            Op::FetchAdd(remote, add) => {
                wr.wr = atomic(remote, add, 0);
                O::IBV_WR_ATOMIC_FETCH_AND_ADD
            }
            Op::LocalInv(rkey) => {
                imm.invalidated_rkey = rkey;
                O::IBV_WR_LOCAL_INV
            }
            Op::Bind(bind) => {
                wr.bind_mw_tso_union.bind_mw = bind_mw_t {
                    mw: self.library.windows[bind.window].as_ptr(),
                    rkey: bind.new_rkey,
                    bind_info: self.bind_info(&bind),
                };
                O::IBV_WR_BIND_MW
            }
        };
        if let Some(ah) = self.library.ahs.get(request.to.ah)
            && self.is_ud()
        {
            wr.wr.ud = ud_t {
                ah: ah.as_ptr(),
                remote_qpn: request.to.qpn,
                remote_qkey: request.to.qkey,
            };
        }
        wr
    }

    fn is_ud(&self) -> bool {
        // SAFETY: alive.
        unsafe { self.qp.as_ref().qp_type == ibv_qp_type::IBV_QPT_UD }
    }

    fn wr(&self, requests: &[Request], arena: &Arena) -> Check {
        let to_extended = ibv_qp_to_qp_ex()?;
        // SAFETY: an extended queue pair; requests that it has, between start and completion; nothing is
        // executed.
        unsafe {
            let qp = to_extended(self.qp.as_ptr());
            ibv_wr_start(qp);
            for request in requests {
                (*qp).wr_id = request.wr_id;
                (*qp).wr_flags = request.flags.bits().into();
                match request.op {
                    Op::Send => ibv_wr_send(qp),
                    Op::SendImm(imm) => ibv_wr_send_imm(qp, imm),
                    Op::SendInv(rkey) => ibv_wr_send_inv(qp, rkey),
                    Op::Write(to) => ibv_wr_rdma_write(qp, to.rkey, to.addr),
                    Op::WriteImm(to, imm) => ibv_wr_rdma_write_imm(qp, to.rkey, to.addr, imm),
                    Op::Read(from) => ibv_wr_rdma_read(qp, from.rkey, from.addr),
                    Op::CmpSwap(at, compare, swap) => {
                        ibv_wr_atomic_cmp_swp(qp, at.rkey, at.addr, compare, swap);
                    }
                    Op::FetchAdd(at, add) => ibv_wr_atomic_fetch_add(qp, at.rkey, at.addr, add),
                    Op::LocalInv(rkey) => {
                        ibv_wr_local_inv(qp, rkey);
                        continue;
                    }
                    Op::Bind(bind) => {
                        let window = self.library.windows[bind.window].as_ptr();
                        let info = self.bind_info(&bind);
                        ibv_wr_bind_mw(qp, window, bind.new_rkey, &raw const info);
                        continue;
                    }
                }
                if self.is_ud() {
                    let ah = self.library.ahs[request.to.ah].as_ptr();
                    ibv_wr_set_ud_addr(qp, ah, request.to.qpn, request.to.qkey);
                }
                set_data(qp, request, arena);
            }
            done("ibv_wr_complete", ibv_wr_complete(qp))
        }
    }

    /// Posts all of them to the queue pair's own receive queue, or to the shared one.
    pub fn receive(&self, receives: &[(u64, Vec<Sge>)]) -> Check {
        let mut lists: Vec<Vec<ibv_sge>> = receives
            .iter()
            .map(|(_, sges)| sges.iter().map(sge).collect())
            .collect();
        let mut list: Vec<ibv_recv_wr> = Vec::with_capacity(receives.len());
        for ((wr_id, _), sges) in receives.iter().zip(&mut lists) {
            list.push(ibv_recv_wr {
                wr_id: *wr_id,
                next: null_mut(),
                sg_list: sges.as_mut_ptr(),
                num_sge: sges.len() as c_int,
            });
        }
        for at in 1..list.len() {
            list[at - 1].next = &raw mut list[at];
        }
        let mut bad = null_mut();
        // SAFETY: a list of receives; completions write to the arena.
        let answer = unsafe {
            match self.srq {
                Some(srq) => ibv_post_srq_recv(srq.as_ptr(), list.as_mut_ptr(), &raw mut bad),
                None => ibv_post_recv(self.qp.as_ptr(), list.as_mut_ptr(), &raw mut bad),
            }
        };
        done("post receives", answer)
    }
}

/// The data of a request of `ibv_wr_*`, by the call that a program would take.
///
/// # Safety
/// A request of this queue pair was begun.
unsafe fn set_data(qp: *mut ibv_qp_ex, request: &Request, arena: &Arena) {
    // SAFETY: the caller guarantees that a request of this queue pair was begun; inline data is in the arena.
    unsafe {
        match (request.inline, &request.sges[..]) {
            (true, [sge]) => {
                let bytes: *const [u8] = arena.bytes(sge);
                ibv_wr_set_inline_data(qp, bytes.cast::<c_void>().cast_mut(), bytes.len());
            }
            (true, sges) => {
                let piece = |sge: &Sge| ibv_data_buf {
                    addr: std::ptr::from_ref(arena.bytes(sge))
                        .cast::<c_void>()
                        .cast_mut(),
                    length: sge.length as usize,
                };
                let pieces: Vec<_> = sges.iter().map(piece).collect();
                ibv_wr_set_inline_data_list(qp, pieces.len(), pieces.as_ptr());
            }
            (false, [sge]) => ibv_wr_set_sge(qp, sge.lkey, sge.addr, sge.length),
            (false, sges) => {
                let list: Vec<_> = sges.iter().map(sge).collect();
                ibv_wr_set_sge_list(qp, list.len(), list.as_ptr());
            }
        }
    }
}
