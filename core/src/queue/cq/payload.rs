//! Payload that came within completion entries.

use super::{CompletionQueue, Naming};
use crate::cqe::{Cqe64, Cqe128, Syndrome, scatter};
use crate::queue::completion::{Failure, Success};
use crate::wqe::{Data, SendRing, SendWqe};
use crate::wr::{QpType, Sge, WcStatus};
use core::ptr::NonNull;

impl<'m, N: Naming> CompletionQueue<'m, N> {
    /// Bytes of a READ or atomic that came within the entry go where the request says; whether all
    /// found a place.
    pub(super) fn scatter_read(
        &self,
        entry: NonNull<Cqe64>,
        cqe: &Cqe64,
        ring: SendRing<'m>,
        transport: QpType,
        counter: u32,
    ) -> bool {
        // SAFETY: in flight, so the poster does not write it.
        let wqe = unsafe { SendWqe::read(ring, counter) };
        let Some(offset) = wqe.result_offset(transport) else {
            return false;
        };
        let sges = wqe.data(offset).filter_map(|data| match data {
            Data::Pointer(sge) => Some(sge),
            Data::Inline(..) => None,
        });
        // SAFETY: the request is in flight; its poster promised the memory until it is told.
        unsafe { put(cqe, self.inline_data(entry, cqe), sges) }
    }

    #[inline(always)]
    pub(super) fn inline_data<'c>(&self, entry: NonNull<Cqe64>, cqe: &'c Cqe64) -> &'c [u8] {
        if self.memory.cqe_size() == 128 {
            // SAFETY: the entries have 128 bytes, and this one is ours.
            unsafe { Cqe128::around(entry) }.inline_data()
        } else {
            cqe.inline_data()
        }
    }
}

/// Success, unless bytes that came within the entry found no place in the request's memory.
#[inline(always)]
pub(super) fn placed_or_failed(
    placed: bool,
    success: Success,
    counter: u32,
) -> Result<Success, Failure> {
    if placed {
        return Ok(success);
    }
    Err(Failure {
        status: WcStatus::LocLenErr,
        vendor_err: 0,
        syndrome: Syndrome::LOCAL_LENGTH,
        counter,
        is_recv: success.opcode.is_recv(),
    })
}

/// Copies an entry's payload over a list's memory; whether all that it claims was there and found a
/// place.
///
/// # Safety
/// The list's memory is writable.
#[inline(always)]
pub(super) unsafe fn put(cqe: &Cqe64, data: &[u8], list: impl Iterator<Item = Sge>) -> bool {
    let left = scatter(data, list, |sge, bytes| {
        // SAFETY: the caller's promise; `scatter` gives no more bytes than the element has.
        unsafe {
            core::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                core::ptr::with_exposed_provenance_mut(sge.addr as usize),
                bytes.len(),
            );
        }
    });
    left == 0
        && cqe
            .byte_len()
            .is_some_and(|claimed| claimed as usize == data.len())
}
