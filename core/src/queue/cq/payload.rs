//! Payload inline in CQEs.

use super::{CompletionQueue, Naming};
use crate::cqe::{Cqe64, Cqe128, scatter};
use crate::wqe::{Data, LIST_END_LKEY, SendRing, SendWqe, copy_short};
use crate::wr::{QpType, Sge};
use core::ptr::{NonNull, with_exposed_provenance_mut};

impl<N: Naming> CompletionQueue<'_, N> {
    /// The payload that a CQE of the ring carries.
    #[inline(always)]
    pub(super) fn inline_data<'c>(&self, entry: NonNull<Cqe64>, cqe: &'c Cqe64) -> &'c [u8] {
        if self.memory.cqe_size() == 128 {
            // SAFETY: the entries have 128 bytes, and the device has handed this one over.
            unsafe { Cqe128::around(entry) }.inline_data()
        } else {
            cqe.inline_data()
        }
    }
}

/// Copies the inline payload of an RDMA READ or atomic to the request's scatter/gather elements.
/// Returns whether as many bytes as the CQE claims were there, and all of them fitted.
///
/// # Safety
/// The request at `counter` of the ring is in flight, and the memory that it names is writable.
pub(super) unsafe fn scatter_read(
    cqe: &Cqe64,
    data: &[u8],
    ring: SendRing<'_>,
    transport: QpType,
    counter: u32,
) -> bool {
    // SAFETY: in flight, so the poster does not write it.
    let wqe = unsafe { SendWqe::read(ring, counter) };
    let Some(request) = (wqe.request(transport).ok()).filter(|it| it.operation().has_result())
    else {
        return false;
    };
    let sges = request.data().filter_map(|data| match data {
        Data::Pointer(sge) => Some(sge),
        Data::Inline(..) => None,
    });
    // SAFETY: the caller guarantees that the memory is writable.
    unsafe { put(cqe, data, sges) }
}

/// Copies the payload in the first half of a CQE of a received message to an element of a
/// scatter/gather list, if there is any, and all of it fits. `false`: nothing was copied.
///
/// # Safety
/// The element's memory is writable.
#[inline(always)]
pub(super) unsafe fn put_short(cqe: &Cqe64, first: Sge) -> bool {
    let Some(data) = cqe.received_inline() else {
        return false;
    };
    let fits =
        !data.is_empty() && data.len() <= first.length as usize && first.lkey != LIST_END_LKEY;
    if fits && let Some(to) = NonNull::new(with_exposed_provenance_mut(first.addr as usize)) {
        // SAFETY: the caller guarantees that the memory is writable; the element has this length.
        unsafe { copy_short(data, to) };
        return true;
    }
    false
}

/// Copies the inline payload of a CQE to the memory of a scatter/gather list. Returns whether as
/// many bytes as the CQE claims were there, and all of them fitted.
///
/// # Safety
/// The list's memory is writable.
#[inline(always)]
pub(super) unsafe fn put(cqe: &Cqe64, data: &[u8], list: impl Iterator<Item = Sge>) -> bool {
    let left = scatter(data, list, |sge, bytes| {
        // SAFETY: the caller guarantees that the memory is writable; `scatter` passes no more bytes
        // than the element has.
        unsafe {
            core::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                with_exposed_provenance_mut(sge.addr as usize),
                bytes.len(),
            );
        }
    });
    left == 0
        && cqe
            .byte_len()
            .is_some_and(|claimed| claimed as usize == data.len())
}
