//! What a send entry asks for, as libibverbs has it.

use super::qp::{Ops, Qp};
use super::sys;
use super::tag::Kind;
use bellwire_core::wqe::{
    AddressVector, BindMwInfo, Data, SEGMENT, SendWqe, SgeList, Umr, XrcSegment, fm_ce_se, opcode,
};
use bellwire_core::wr::{MwType, Remote, Sge};
use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// Elements that an entry of 63 segments can hold.
pub(super) const MAX_SGE: usize = 62;

/// A send request.
pub(super) struct Request<'m> {
    pub wr_id: u64,
    /// `ibv_send_flags`.
    pub flags: u32,
    pub operation: Operation,
    pub to: To,
    pub data: SgeList<'m>,
}

/// What requests say of where they go, beside their operation.
pub(super) mod address {
    pub const NONE: u8 = 0;
    pub const DATAGRAM: u8 = 1;
    pub const XRC: u8 = 2;
}

/// Where a request goes.
pub(super) enum To {
    /// To the queue pair's peer.
    Peer,
    Datagram(Destination),
    /// To the shared receive queue of this number, at the peer.
    Srq(u32),
}

/// The way of a datagram.
pub(super) struct Destination {
    pub handle: *mut sys::ibv_ah,
    pub qpn: u32,
    pub qkey: u32,
}

/// What it does. Immediate data are as they go over the wire.
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
    /// Of a window of type 1: by a call of its own.
    BindType1 {
        mw: NonNull<sys::ibv_mw>,
        info: sys::ibv_mw_bind_info,
    },
}

impl<'m> Request<'m> {
    /// Reads an entry. `None`: libibverbs or the device has no such request, or it names what is not
    /// there any more.
    pub fn read(qp: &Qp, wqe: &SendWqe<'m>, counter: u32) -> Option<Self> {
        match (qp.is_datagram(), qp.is_xrc()) {
            (true, _) => Self::read_as::<{ address::DATAGRAM }>(qp, wqe, wqe.opcode(), counter),
            (_, true) => Self::read_as::<{ address::XRC }>(qp, wqe, wqe.opcode(), counter),
            _ => Self::read_as::<{ address::NONE }>(qp, wqe, wqe.opcode(), counter),
        }
    }

    /// As [`read`](Self::read), of a queue pair with such [addresses](address), and an entry of this
    /// opcode: where they are constants, so is what follows from them.
    #[inline(always)]
    pub fn read_as<const ADDRESS: u8>(
        qp: &Qp,
        wqe: &SendWqe<'m>,
        opcode: u8,
        counter: u32,
    ) -> Option<Self> {
        // Behind the control segment stands the address vector of a datagram, or the number of the
        // queue.
        let address = SEGMENT
            + match ADDRESS {
                address::DATAGRAM => size_of::<AddressVector>(),
                address::XRC => size_of::<XrcSegment>(),
                _ => 0,
            };
        let imm = wqe.imm();
        let remote = || wqe.remote(address);
        let (mut kind, mut data) = (Kind::Send, address);
        let operation = match opcode {
            opcode::SEND => Operation::Send,
            opcode::SEND_IMM => Operation::SendImm(imm.to_raw()),
            opcode::RDMA_WRITE => {
                data += SEGMENT;
                Operation::Write(remote())
            }
            opcode::RDMA_WRITE_IMM => {
                data += SEGMENT;
                Operation::WriteImm(remote(), imm.to_raw())
            }
            opcode::RDMA_READ => {
                (kind, data) = (Kind::Fetch, data + SEGMENT);
                Operation::Read(remote())
            }
            opcode::ATOMIC_CS if qp.can(Ops::ATOMICS) => {
                (kind, data) = (Kind::Fetch, data + 2 * SEGMENT);
                let (swap, compare) = wqe.atomic(address + SEGMENT);
                Operation::CmpSwp {
                    remote: remote(),
                    compare,
                    swap,
                }
            }
            opcode::ATOMIC_FA if qp.can(Ops::ATOMICS) => {
                (kind, data) = (Kind::Fetch, data + 2 * SEGMENT);
                let (add, _) = wqe.atomic(address + SEGMENT);
                Operation::FetchAdd(remote(), add)
            }
            opcode::SEND_INVAL if qp.can(Ops::SEND_INV) => Operation::SendInv(imm.get()),
            opcode::UMR => {
                data = wqe.ds() as usize * SEGMENT;
                registration(qp, wqe.umr()?)?
            }
            _ => return None,
        };
        let to = match ADDRESS {
            address::DATAGRAM => To::Datagram(destination(qp, &wqe.address_vector())?),
            // Of a request without an address it is not used.
            address::XRC => To::Srq(wqe.xrc_srqn()),
            _ => To::Peer,
        };
        let tag = match kind {
            Kind::Send => qp.send_tag(),
            _ => qp.send_tag().with(kind),
        };
        Some(Self {
            wr_id: tag.of(counter),
            flags: flags(wqe.fm_ce_se()),
            operation,
            to,
            data: wqe.data(data),
        })
    }
}

/// Flags of an entry in the bits of `ibv_send_flags`.
#[inline(always)]
pub(super) fn flags(fm_ce_se: u8) -> u32 {
    /// One for each flag byte: to turn its bits takes longer.
    const FLAGS: [u8; 256] = {
        use sys::ibv_send_flags as F;
        let of = [
            (fm_ce_se::SIGNALED, F::IBV_SEND_SIGNALED),
            (fm_ce_se::SOLICITED, F::IBV_SEND_SOLICITED),
            (fm_ce_se::FENCE, F::IBV_SEND_FENCE),
        ];
        let mut flags = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let mut at = 0;
            while at < of.len() {
                if byte & of[at].0 as usize != 0 {
                    flags[byte] |= of[at].1.0 as u8;
                }
                at += 1;
            }
            byte += 1;
        }
        flags
    };
    FLAGS[usize::from(fm_ce_se)].into()
}

#[inline(always)]
fn destination(qp: &Qp, av: &AddressVector) -> Option<Destination> {
    let handle = qp.address_handle(u32::from_be_bytes(av.reserved0));
    (!handle.is_null()).then(|| Destination {
        handle,
        qpn: av.dqp_dct.get() & 0xff_ffff,
        qkey: av.qkey.get(),
    })
}

/// Registration work. Windows and regions are looked up under a lock: it is not for the data path.
#[cold]
fn registration(qp: &Qp, umr: Umr) -> Option<Operation> {
    match umr {
        Umr::LocalInv { rkey } => {
            let key = qp.can(Ops::LOCAL_INV).then(|| qp.invalidated(rkey))??;
            Some(Operation::LocalInv(key))
        }
        // The verbs take a window of type 2 away by invalidating its key.
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

#[inline(always)]
pub(super) fn element(sge: Sge) -> sys::ibv_sge {
    sys::ibv_sge {
        addr: sge.addr,
        length: sge.length,
        lkey: sge.lkey,
    }
}

/// A request's data.
pub(super) enum Payload<'m> {
    Empty,
    One(Sge),
    /// Bytes in the entry; the second string is not empty where they run over the ring's end.
    Inline(&'m [u8], &'m [u8]),
    /// More than one element.
    List,
}

impl<'m> Payload<'m> {
    #[inline(always)]
    pub fn of(mut data: SgeList<'m>) -> Self {
        match data.next() {
            None => Self::Empty,
            Some(Data::Inline(head, tail)) => Self::Inline(head, tail),
            Some(Data::Pointer(sge)) if data.is_empty() => Self::One(sge),
            Some(Data::Pointer(_)) => Self::List,
        }
    }
}

/// The pieces of a request's data, as elements; and whether they are bytes within the entry.
pub(super) fn elements(data: SgeList<'_>, to: &mut [MaybeUninit<sys::ibv_sge>]) -> (usize, bool) {
    let inline = |bytes: &[u8]| sys::ibv_sge {
        addr: bytes.as_ptr().expose_provenance() as u64,
        length: bytes.len() as u32,
        lkey: 0,
    };
    let (mut count, mut is_inline) = (0, false);
    let mut put = |element| {
        if let Some(slot) = to.get_mut(count) {
            slot.write(element);
            count += 1;
        }
    };
    for piece in data {
        match piece {
            Data::Pointer(sge) => put(element(sge)),
            Data::Inline(head, tail) => {
                is_inline = true;
                put(inline(head));
                if !tail.is_empty() {
                    put(inline(tail));
                }
            }
        }
    }
    (count, is_inline)
}
