//! Payload that a device writes inline in the CQE instead of to the request's memory.

use super::{Cqe64, CqeFormat};
use crate::wqe::LIST_END_LKEY;
use crate::wr::Sge;
use core::ptr::NonNull;
use static_assertions::const_assert_eq;

/// A CQE of 128 bytes.
///
/// ```text
///    0  │ 64 bytes of payload (format Inline64)               │
///   64  │ Cqe64, its first half payload in format Inline32    │
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Cqe128 {
    /// Inline payload, if the format of the descriptor is `Inline64`.
    pub payload: [u8; 64],
    /// The descriptor.
    pub cqe: Cqe64,
}

const_assert_eq!(size_of::<Cqe128>(), 128);
const_assert_eq!(core::mem::offset_of!(Cqe128, cqe), 64);

impl Cqe128 {
    /// The whole CQE whose descriptor is at `slot`.
    ///
    /// # Safety
    /// `slot` points into a ring of 128-byte CQEs and is valid for the whole CQE. The device has
    /// handed this CQE over, and it was not returned yet.
    #[inline(always)]
    pub unsafe fn around<'a>(slot: NonNull<Cqe64>) -> &'a Self {
        // SAFETY: the caller guarantees that the 64 bytes before belong to the same CQE, and that
        // nobody writes them.
        unsafe { slot.sub(1).cast().as_ref() }
    }

    /// The inline payload, like [`Cqe64::inline_data`], of a CQE of 128 bytes.
    #[inline(always)]
    pub fn inline_data(&self) -> &[u8] {
        match self.cqe.format() {
            CqeFormat::Inline64 => self.cqe.bounded(&self.payload),
            _ => self.cqe.inline_data(),
        }
    }
}

impl Cqe64 {
    /// The inline payload of a CQE of 64 bytes: the data of a receive, RDMA READ or atomic. Empty
    /// when there is none.
    ///
    /// Never longer than the room in the CQE, whatever it claims. When it is shorter than
    /// [`byte_len`](Self::byte_len), the device has claimed more: the rest does not exist, and the
    /// request failed (`LOC_LEN_ERR`). This includes `Inline64`, for which a CQE of 64 bytes has no
    /// room.
    #[inline(always)]
    pub fn inline_data(&self) -> &[u8] {
        match self.format() {
            CqeFormat::Inline32 => self.bounded(&self.head),
            _ => &[],
        }
    }

    /// The inline payload of a received message, if it is in the first half, and as long as the CQE
    /// claims: [`inline_data`](Self::inline_data) by fewer instructions.
    #[inline(always)]
    pub(crate) fn received_inline(&self) -> Option<&[u8]> {
        debug_assert!(self.opcode().is_received());
        let here = self.format() == CqeFormat::Inline32;
        (self.head.get(..self.byte_cnt() as usize)).filter(|_| here)
    }

    #[inline(always)]
    fn bounded<'a>(&self, room: &'a [u8]) -> &'a [u8] {
        let claimed = self.byte_len().unwrap_or(0);
        &room[..room.len().min(claimed as usize)]
    }
}

/// Distributes `data` over the scatter/gather list of its request: calls `copy` with each element
/// and the bytes for it, in order. Stops at the end of the data or of the list, which is its last
/// element or the terminator. Returns the number of bytes that did not fit: not 0 means that the
/// request failed (`LOC_LEN_ERR`).
#[inline(always)]
#[must_use = "bytes without a place mean that the request failed"]
pub fn scatter(
    mut data: &[u8],
    list: impl IntoIterator<Item = Sge>,
    mut copy: impl FnMut(Sge, &[u8]),
) -> usize {
    for sge in list {
        if data.is_empty() || sge.lkey == LIST_END_LKEY {
            break;
        }
        let (now, rest) = data.split_at(data.len().min(sge.length as usize));
        if !now.is_empty() {
            copy(sge, now);
        }
        data = rest;
    }
    data.len()
}

#[cfg(test)]
mod tests {
    use super::super::{CompletedWqe, CqeOpcode};
    use super::*;
    use std::vec::Vec;

    const WQE: CompletedWqe = CompletedWqe {
        qpn: 1,
        user_index: 2,
        wqe_counter: 3,
    };

    fn list(lengths: &[u32]) -> Vec<Sge> {
        let element = |(i, &length): (usize, &u32)| Sge {
            addr: i as u64,
            length,
            lkey: 7,
        };
        lengths.iter().enumerate().map(element).collect()
    }

    fn scattered(data: &[u8], list: Vec<Sge>) -> (Vec<(u64, Vec<u8>)>, usize) {
        let mut out = Vec::new();
        let left = scatter(data, list, |sge, bytes| {
            out.push((sge.addr, bytes.to_vec()))
        });
        (out, left)
    }

    #[test]
    fn data_goes_over_the_list_in_order() {
        let (out, left) = scattered(b"abcdef", list(&[2, 0, 3, 9, 9]));
        let expected: [(u64, &[u8]); 3] = [(0, b"ab"), (2, b"cde"), (3, b"f")];
        assert!(out.iter().map(|(at, bytes)| (*at, &bytes[..])).eq(expected));
        assert_eq!(left, 0);
    }

    #[test]
    fn the_terminator_ends_the_list_whatever_its_length() {
        let mut elements = list(&[2, 100, 100]);
        elements[1].lkey = LIST_END_LKEY;
        let (out, left) = scattered(b"abcdef", elements);
        assert_eq!((out.len(), left), (1, 4));
        assert_eq!(scattered(b"", list(&[1])), (Vec::new(), 0));
        assert_eq!(scattered(b"ab", list(&[])), (Vec::new(), 2));
    }

    #[test]
    fn payload_is_bounded_by_the_room_and_by_the_operation() {
        let received = |len| Cqe64::responder(CqeOpcode::RespSend, WQE, len);
        let short = received(0).with_inline(b"hello").expect("fits");
        assert_eq!(short.inline_data(), b"hello");
        let wide = Cqe128::with_inline(received(0), &[9; 64]).expect("fits");
        assert_eq!(wide.inline_data(), [9; 64]);
        assert_eq!(wide.cqe.inline_data(), b"", "no room in 64 bytes");

        let mut bytes = short.to_bytes();
        bytes[44..48].copy_from_slice(&u32::MAX.to_be_bytes());
        assert_eq!(Cqe64::from_bytes(bytes).inline_data().len(), 32);

        let fetched = Cqe64::requester(WQE, 0x12, 1000).with_inline(&[5; 8]);
        assert_eq!(fetched.expect("fits").inline_data(), [5; 8]);
        let sent = Cqe64::requester(WQE, 0x0a, 4).with_inline(&[5; 4]);
        assert_eq!(
            sent.expect("fits").inline_data(),
            b"",
            "a SEND brings nothing"
        );
        assert!(received(0).with_inline(&[0; 33]).is_none());
        assert!(Cqe128::with_inline(received(0), &[0; 65]).is_none());
    }
}
