//! A WRITE or a READ of one element on a reliable connection: rung alone, where [`execute`](super::execute) comes here with
//! what is not inline, or with others. Whatever is otherwise than usual changes nothing here.

use super::copy::{Fault, copy};
use super::execute::{Current, DATA, TARGET};
use super::hca::Hca;
use super::qp::SendWork;
use super::remote::reach_there;
use super::respond::usual_place;
use bellwire_core::access::AccessFlags;
use bellwire_core::op::opcode;
use bellwire_core::wqe::{Data, FirstBlock};
use bellwire_core::wr::{Remote, Sge};

/// What the entry says, and the local memory has been checked.
#[derive(Clone, Copy)]
pub(super) struct Transfer {
    pub target: Remote,
    /// It is a READ.
    pub reads: bool,
    local: *mut u8,
    pub len: usize,
}

impl Hca {
    /// Executes a WRITE or a READ within this process, and leaves the section.
    #[inline(never)]
    pub(super) fn transfer_here(&self, mut current: Current) {
        let block = current.block;
        // SAFETY: used before the section is left.
        let work = unsafe { current.work() };
        let done = transfer_here(self, work, block);
        self.finish(current, done.map(|done| done.bytes()));
    }

    /// Executes a WRITE or a READ of another process's memory, if that is mapped here, and leaves the section.
    #[inline(never)]
    pub(super) fn transfer_there(&self, mut current: Current) {
        let block = current.block;
        // SAFETY: used before the section is left.
        let work = unsafe { current.work() };
        let done = transfer_there(self, work, block);
        self.finish(current, done.map(|done| done.bytes()));
    }
}

impl Transfer {
    /// The access that the peer has to allow.
    #[inline(always)]
    pub fn access(&self) -> AccessFlags {
        match self.reads {
            true => AccessFlags::REMOTE_READ,
            false => AccessFlags::REMOTE_WRITE,
        }
    }

    /// The byte count of its completion.
    #[inline(always)]
    pub fn bytes(&self) -> u32 {
        match self.reads {
            true => self.len as u32,
            false => 0,
        }
    }

    /// Copies to or from the peer's memory.
    ///
    /// # Errors
    /// One of them cannot be accessed any more.
    ///
    /// # Safety
    /// The place has been found for this transfer, and is still valid, as is the local memory.
    #[inline(always)]
    pub unsafe fn copy(&self, place: *mut u8) -> Result<(), Fault> {
        // SAFETY: the caller guarantees both.
        unsafe {
            if self.reads {
                copy(place, self.local, self.len)
            } else {
                copy(self.local, place, self.len)
            }
        }
    }
}

/// Executes the current entry, if it is a WRITE or a READ of one element on a reliable connection within this process.
/// `None`: it is otherwise than usual, and nothing has changed. The caller passes it.
#[inline(always)]
pub(super) fn transfer_here(
    hca: &Hca,
    work: &mut SendWork,
    block: FirstBlock<'static>,
) -> Option<Transfer> {
    let transfer = transfer(hca, work, block)?;
    let Transfer { target, len, .. } = transfer;
    let place = usual_place(hca, work, target, len as u64, transfer.access())?;
    // SAFETY: the target was checked in this section.
    unsafe { transfer.copy(place) }.ok()?;
    Some(transfer)
}

/// Executes the current entry, if it is a WRITE or a READ of one element, and there are no outstanding requests, and the
/// peer's memory is mapped here. `None`: nothing has changed. The caller passes it.
#[inline(always)]
pub(super) fn transfer_there(
    hca: &Hca,
    work: &mut SendWork,
    block: FirstBlock<'static>,
) -> Option<Transfer> {
    let transfer = transfer(hca, work, block)?;
    reach_there(work, &transfer).then_some(transfer)
}

/// What the current entry says, if it has one element, whose memory may be accessed.
#[inline(always)]
fn transfer(hca: &Hca, work: &mut SendWork, block: FirstBlock<'static>) -> Option<Transfer> {
    let reads = block.opcode() == opcode::RDMA_READ;
    // SAFETY: posted.
    let Some(Data::Pointer(Sge { addr, length, lkey })) = (unsafe { block.piece(DATA, 1) }) else {
        return None;
    };
    let local = &mut work.local[usize::from(!reads)];
    let allowed = (!reads || work.max_rd_atomic != 0)
        && hca.mrs.covers_local(local, lkey, addr, length.into());
    allowed.then(|| Transfer {
        target: block.remote(TARGET),
        reads,
        local: std::ptr::with_exposed_provenance_mut(addr as usize),
        len: length as usize,
    })
}
