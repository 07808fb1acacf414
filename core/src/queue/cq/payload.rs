//! Payload inline in CQEs.

use super::{CompletionQueue, Naming};
use crate::cqe::{Cqe64, Cqe128, Syndrome, scatter};
use crate::guarded::{Fault, SHORT, copy_short};
use crate::wqe::{Data, LIST_END_LKEY, SendRing, SendWqe};
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

/// Copies the inline payload of an RDMA READ or atomic to the request's scatter/gather elements. As
/// [`put`].
///
/// # Safety
/// The request at `counter` of the ring is in flight, and the memory that it names is writable.
pub(super) unsafe fn scatter_read(
    cqe: &Cqe64,
    data: &[u8],
    ring: SendRing<'_>,
    transport: QpType,
    counter: u32,
) -> Result<(), Syndrome> {
    // SAFETY: in flight, so the poster does not write it.
    let wqe = unsafe { SendWqe::read(ring, counter) };
    let Some(request) = (wqe.request(transport).ok()).filter(|it| it.operation().has_result())
    else {
        return Err(Syndrome::LOCAL_LENGTH);
    };
    let sges = request.data().filter_map(|data| match data {
        Data::Pointer(sge) => Some(sge),
        Data::Inline(..) => None,
    });
    // SAFETY: the caller guarantees that the memory is writable.
    unsafe { put(cqe, data, sges) }
}

/// Copies the payload in the first half of a CQE of a received message to an element of a
/// scatter/gather list, if there is any, and all of it fits. `false`: it was not copied.
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
        return unsafe { copy_short(data.as_ptr(), to.as_ptr(), data.len()) }.is_ok();
    }
    false
}

/// Copies the inline payload of a CQE to the memory of a scatter/gather list.
///
/// # Errors
/// There were not as many bytes as the CQE claims, or not all of them fitted, or the memory cannot be
/// written any more.
///
/// # Safety
/// The list's memory is writable.
#[inline(always)]
pub(super) unsafe fn put(
    cqe: &Cqe64,
    data: &[u8],
    list: impl Iterator<Item = Sge>,
) -> Result<(), Syndrome> {
    let mut copied = Ok(());
    let left = scatter(data, list, |sge, bytes| {
        let to = with_exposed_provenance_mut::<u8>(sge.addr as usize);
        for (at, piece) in bytes.chunks(SHORT).enumerate() {
            // SAFETY: the caller guarantees that the memory is writable; `scatter` passes no more bytes
            // than the element has.
            let put = unsafe { copy_short(piece.as_ptr(), to.add(at * SHORT), piece.len()) };
            copied = copied.and(put);
        }
    });
    let claimed = cqe.byte_len().map(|claimed| claimed as usize);
    if left != 0 || claimed != Some(data.len()) {
        return Err(Syndrome::LOCAL_LENGTH);
    }
    copied.map_err(|Fault| Syndrome::LOCAL_PROT)
}
