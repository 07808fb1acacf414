//! Send requests, converted from entries to what libibverbs takes.

use super::ah;
use super::operation::Operation;
use super::qp::Qp;
use super::sys;
use super::tag::Kind;
use bellwire_core::op::WrOpcode;
use bellwire_core::wqe::{self, AddressVector, Data, SendWqe, SgeList, fm_ce_se};
use bellwire_core::wr::{QpType, Sge};
use std::mem::MaybeUninit;

/// The most elements that an entry of 63 segments can hold.
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

/// The kinds of addresses that requests carry.
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
    /// The shared receive queue with this number, at the peer.
    Srq(u32),
}

/// The destination of a datagram.
pub(super) struct Destination {
    pub handle: *mut sys::ibv_ah,
    pub qpn: u32,
    pub qkey: u32,
}

impl<'m> Request<'m> {
    /// Converts an entry. `None`: libibverbs or the device does not have this operation, or the entry names
    /// an object that no longer exists.
    pub fn read(qp: &Qp, wqe: &SendWqe<'m>, counter: u32) -> Option<Self> {
        let operation = wqe.operation()?;
        match (qp.is_datagram(), qp.is_xrc()) {
            (true, _) => Self::read_as::<{ address::DATAGRAM }>(qp, wqe, operation, counter),
            (_, true) => Self::read_as::<{ address::XRC }>(qp, wqe, operation, counter),
            _ => Self::read_as::<{ address::NONE }>(qp, wqe, operation, counter),
        }
    }

    /// Converts an entry as [`read`](Self::read) does, for a queue pair with this kind of [address](address),
    /// and an entry of this operation. If both are constants, the compiler evaluates what depends on them.
    #[inline(always)]
    pub fn read_as<const ADDRESS: u8>(
        qp: &Qp,
        wqe: &SendWqe<'m>,
        operation: WrOpcode,
        counter: u32,
    ) -> Option<Self> {
        // Connected queue pairs without XRC have the same entries, whatever their transport.
        let transport = match ADDRESS {
            address::DATAGRAM => QpType::Ud,
            address::XRC => QpType::XrcSend,
            _ => QpType::Rc,
        };
        let request = wqe.request_of(operation, transport);
        let kind = match operation.has_result() {
            true => Kind::Fetch,
            false => Kind::Send,
        };
        let operation = Operation::of(qp, &request)?;
        let to = match request.destination() {
            Some(wqe::Destination::Address(av)) => To::Datagram(destination(qp, &av)?),
            Some(wqe::Destination::Srq(number)) => To::Srq(number),
            Some(wqe::Destination::Peer) | None => To::Peer,
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
            data: request.data(),
        })
    }
}

/// Converts the flags of an entry to `ibv_send_flags`.
#[inline(always)]
pub(super) fn flags(fm_ce_se: u8) -> u32 {
    /// One value for each flag byte: converting bit by bit takes longer.
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
    let handle = qp.address_handle(ah::Name {
        place: u32::from_be_bytes(av.reserved0),
        generation: u32::from_be_bytes([av.rmac[0], av.rmac[1], av.rmac[2], av.rmac[3]]),
    });
    (!handle.is_null()).then(|| Destination {
        handle,
        qpn: av.dqp_dct.get() & 0xff_ffff,
        qkey: av.qkey.get(),
    })
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
    /// Inline data; the second slice is not empty if they wrap around the end of the ring.
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

/// Writes a request's data to `to` as elements; returns their number, and whether they are inline data.
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
