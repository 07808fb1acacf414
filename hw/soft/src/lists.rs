//! Scatter/gather lists of send entries: what may be read and written, and copies.

use super::copy::{Fault, can_read, copy};
use super::hca::Hca;
use super::mr::{LOCAL_READ, Reach};
use super::qp::SendWork;
use super::run::Stop;
use bellwire_core::access::AccessFlags;
use bellwire_core::cqe::Syndrome;
use bellwire_core::wqe::{Data, SgeList};

/// Longest message (IBTA: 2 GiB).
pub(super) const MAX_MESSAGE: u64 = 1 << 31;

/// Checks that all data of a message may be read. Returns its length.
#[inline(always)]
pub(super) fn outgoing(hca: &Hca, work: &SendWork, data: SgeList<'_>) -> Result<u64, Stop> {
    let mut length = 0;
    for piece in data {
        match piece {
            Data::Inline(head, tail) => length += (head.len() + tail.len()) as u64,
            Data::Pointer(sge) => {
                length += u64::from(sge.length);
                // Every region allows local reads.
                let reach = Reach {
                    key: sge.lkey,
                    pd: work.pd,
                    qpn: 0,
                    addr: sge.addr,
                    length: u64::from(sge.length),
                    access: LOCAL_READ,
                };
                if !hca.mrs.covers(&reach) {
                    return Err(Stop::local(Syndrome::LOCAL_PROT));
                }
            }
        }
    }
    if length > MAX_MESSAGE {
        return Err(Stop::local(Syndrome::LOCAL_LENGTH));
    }
    Ok(length)
}

/// Gathers a message's data into contiguous memory.
///
/// # Errors
/// Something cannot be accessed any more: see [`can_read_all`].
///
/// # Safety
/// `outgoing` has checked the data in this section; `to` is valid for writes of its length.
#[inline(always)]
pub(super) unsafe fn gather(data: SgeList<'_>, mut to: *mut u8) -> Result<(), Fault> {
    for piece in data {
        // SAFETY: the caller guarantees that `outgoing` checked the data and that `to` is writable for its
        // length.
        unsafe {
            match piece {
                Data::Inline(head, tail) => {
                    copy(head.as_ptr(), to, head.len())?;
                    to = to.add(head.len());
                    copy(tail.as_ptr(), to, tail.len())?;
                    to = to.add(tail.len());
                }
                Data::Pointer(sge) => {
                    let from = std::ptr::with_exposed_provenance(sge.addr as usize);
                    copy(from, to, sge.length as usize)?;
                    to = to.add(sge.length as usize);
                }
            }
        }
    }
    Ok(())
}

/// Whether all data of a message can still be read. For what is to be reported after a fault.
#[cold]
pub(super) fn can_read_all(mut data: SgeList<'_>) -> bool {
    data.all(|piece| match piece {
        Data::Inline(..) => true,
        Data::Pointer(sge) => can_read(
            std::ptr::with_exposed_provenance(sge.addr as usize),
            sge.length as usize,
        ),
    })
}

/// Checks that the result of a READ or atomic may be written to the entry's elements. Returns their total
/// length.
pub(super) fn incoming(hca: &Hca, work: &SendWork, data: SgeList<'_>) -> Result<u64, Stop> {
    let mut room = 0;
    for piece in data {
        let Data::Pointer(sge) = piece else {
            return Err(Stop::local(Syndrome::LOCAL_QP_OP));
        };
        let reach = Reach {
            key: sge.lkey,
            pd: work.pd,
            qpn: 0,
            addr: sge.addr,
            length: u64::from(sge.length),
            access: AccessFlags::LOCAL_WRITE.bits(),
        };
        if !hca.mrs.covers(&reach) {
            return Err(Stop::local(Syndrome::LOCAL_PROT));
        }
        room += u64::from(sge.length);
    }
    Ok(room)
}

/// Scatters contiguous memory to an entry's elements.
///
/// # Errors
/// Something cannot be accessed any more.
///
/// # Safety
/// `incoming` has checked the elements in this section; `from` is valid for reads of their total length.
pub(super) unsafe fn spread(mut from: *const u8, data: SgeList<'_>) -> Result<(), Fault> {
    for piece in data {
        if let Data::Pointer(sge) = piece {
            let to = std::ptr::with_exposed_provenance_mut(sge.addr as usize);
            // SAFETY: the caller guarantees that `incoming` checked the elements and that `from` is readable
            // for all of them.
            unsafe {
                copy(from, to, sge.length as usize)?;
                from = from.add(sge.length as usize);
            }
        }
    }
    Ok(())
}
