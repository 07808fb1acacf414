//! The operations of libibverbs: each as converted from an entry, and as posted by `ibv_wr_*` or by
//! `ibv_post_send`.

use super::qp::{Ops, Qp};
use super::sys;
use bellwire_core::op::WrOpcode;
use bellwire_core::wqe::{Atomic, BindMwInfo, Request, Umr};
use bellwire_core::wr::{MwType, Remote};
use std::ptr::NonNull;

/// The operation of a request. Immediate data are in network byte order.
pub(super) enum Operation {
    Send,
    SendImm(u32),
    SendInv(u32),
    Write(Remote),
    WriteImm(Remote, u32),
    Read(Remote),
    CmpSwp {
        remote: Remote,
        compare: u64,
        swap: u64,
    },
    FetchAdd(Remote, u64),
    LocalInv(u32),
    Bind {
        mw: NonNull<sys::ibv_mw>,
        rkey: u32,
        info: sys::ibv_mw_bind_info,
    },
    /// Binds a window of type 1, by a call of its own (`ibv_bind_mw`).
    BindType1 {
        mw: NonNull<sys::ibv_mw>,
        info: sys::ibv_mw_bind_info,
    },
}

impl Operation {
    /// Converts a request. `None`: libibverbs or the device does not have this operation, or the request names
    /// an object that no longer exists.
    #[inline(always)]
    pub fn of(qp: &Qp, request: &Request<'_>) -> Option<Self> {
        Some(match request.operation() {
            WrOpcode::Send => Self::Send,
            WrOpcode::SendWithImm => Self::SendImm(request.imm()?.to_raw()),
            WrOpcode::SendWithInv if qp.can(Ops::SEND_INV) => Self::SendInv(request.invalidates()?),
            WrOpcode::RdmaWrite => Self::Write(request.remote()?),
            WrOpcode::RdmaWriteWithImm => {
                Self::WriteImm(request.remote()?, request.imm()?.to_raw())
            }
            WrOpcode::RdmaRead => Self::Read(request.remote()?),
            WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd if qp.can(Ops::ATOMICS) => {
                let remote = request.remote()?;
                match request.atomic()? {
                    Atomic::CompareAndSwap { compare, swap } => Self::CmpSwp {
                        remote,
                        compare,
                        swap,
                    },
                    Atomic::FetchAndAdd(add) => Self::FetchAdd(remote, add),
                }
            }
            WrOpcode::LocalInv | WrOpcode::BindMw => registration(qp, request.registration()?)?,
            // The queue pair was not created with it, or libibverbs has none.
            WrOpcode::SendWithInv
            | WrOpcode::AtomicCmpAndSwp
            | WrOpcode::AtomicFetchAndAdd
            | WrOpcode::Tso
            | WrOpcode::Nop => return None,
        })
    }

    /// Begins a request by `ibv_wr_*`; returns whether its address and data are to be set.
    ///
    /// # Safety
    /// Posting was started, and is not complete; the queue pair was created with the operation.
    #[inline(always)]
    pub unsafe fn begin(&self, qp: *mut sys::ibv_qp_ex) -> bool {
        // SAFETY: the caller guarantees that posting was started, and that the queue pair has the operation.
        unsafe {
            match *self {
                Self::Send => sys::ibv_wr_send(qp),
                Self::SendImm(imm) => sys::ibv_wr_send_imm(qp, imm),
                Self::SendInv(key) => sys::ibv_wr_send_inv(qp, key),
                Self::Write(to) => sys::ibv_wr_rdma_write(qp, to.rkey, to.addr),
                Self::WriteImm(to, imm) => {
                    sys::ibv_wr_rdma_write_imm(qp, to.rkey, to.addr, imm);
                }
                Self::Read(from) => sys::ibv_wr_rdma_read(qp, from.rkey, from.addr),
                Self::CmpSwp {
                    remote,
                    compare,
                    swap,
                } => sys::ibv_wr_atomic_cmp_swp(qp, remote.rkey, remote.addr, compare, swap),
                Self::FetchAdd(remote, add) => {
                    sys::ibv_wr_atomic_fetch_add(qp, remote.rkey, remote.addr, add);
                }
                Self::LocalInv(key) => {
                    sys::ibv_wr_local_inv(qp, key);
                    return false;
                }
                Self::Bind { mw, rkey, ref info } => {
                    sys::ibv_wr_bind_mw(qp, mw.as_ptr(), rkey, info);
                    // libibverbs leaves setting the new rkey to the program.
                    (*mw.as_ptr()).rkey = rkey;
                    return false;
                }
                Self::BindType1 { .. } => return false,
            }
            true
        }
    }

    /// Writes its fields for `ibv_post_send`, and returns its opcode there.
    pub fn write(&self, wr: &mut sys::ibv_send_wr) -> u32 {
        use sys::ibv_wr_opcode::*;
        let rdma = |remote: Remote| sys::rdma_t {
            remote_addr: remote.addr,
            rkey: remote.rkey,
        };
        let union = &mut wr.imm_data_invalidated_rkey_union;
        match *self {
            Self::Send => IBV_WR_SEND,
            Self::SendImm(imm) => {
                union.imm_data = imm;
                IBV_WR_SEND_WITH_IMM
            }
            Self::SendInv(key) => {
                union.invalidated_rkey = key;
                IBV_WR_SEND_WITH_INV
            }
            Self::Write(to) => {
                wr.wr.rdma = rdma(to);
                IBV_WR_RDMA_WRITE
            }
            Self::WriteImm(to, imm) => {
                union.imm_data = imm;
                wr.wr.rdma = rdma(to);
                IBV_WR_RDMA_WRITE_WITH_IMM
            }
            Self::Read(from) => {
                wr.wr.rdma = rdma(from);
                IBV_WR_RDMA_READ
            }
            Self::CmpSwp {
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
            Self::FetchAdd(remote, add) => {
                wr.wr.atomic = sys::atomic_t {
                    remote_addr: remote.addr,
                    compare_add: add,
                    swap: 0,
                    rkey: remote.rkey,
                };
                IBV_WR_ATOMIC_FETCH_AND_ADD
            }
            Self::LocalInv(key) => {
                union.invalidated_rkey = key;
                IBV_WR_LOCAL_INV
            }
            Self::Bind { mw, rkey, info } => {
                wr.bind_mw_tso_union.bind_mw = sys::bind_mw_t {
                    mw: mw.as_ptr(),
                    rkey,
                    bind_info: info,
                };
                IBV_WR_BIND_MW
            }
            // Never part of a list.
            Self::BindType1 { .. } => IBV_WR_BIND_MW,
        }
    }
}

/// Converts registration work. Windows and regions are looked up under a lock: this is not for the data path.
#[cold]
fn registration(qp: &Qp, umr: Umr) -> Option<Operation> {
    match umr {
        Umr::LocalInv { rkey } => {
            let key = qp.can(Ops::LOCAL_INV).then(|| qp.invalidated(rkey))??;
            Some(Operation::LocalInv(key))
        }
        // With libibverbs, a window of type 2 is unbound by invalidating its rkey.
        Umr::Unbind {
            mw_type: MwType::Type2,
            mw_rkey,
            ..
        } => {
            let key = qp.can(Ops::LOCAL_INV).then(|| qp.unbound(mw_rkey))??;
            Some(Operation::LocalInv(key))
        }
        Umr::Bind {
            mw_type: MwType::Type2,
            mw_rkey,
            new_rkey,
            info,
        } => {
            let (mw, info) = qp.can(Ops::BIND).then(|| qp.window(mw_rkey, &info))??;
            Some(Operation::Bind {
                mw,
                rkey: new_rkey,
                info,
            })
        }
        Umr::Bind { mw_rkey, info, .. } => {
            let (mw, info) = qp.window(mw_rkey, &info)?;
            Some(Operation::BindType1 { mw, info })
        }
        Umr::Unbind { mw_rkey, .. } => {
            let (mw, info) = qp.window(mw_rkey, &BindMwInfo::default())?;
            Some(Operation::BindType1 { mw, info })
        }
    }
}
