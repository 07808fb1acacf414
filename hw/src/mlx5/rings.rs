//! A queue pair's rings, as the device has them.

use super::domain::Domain;
use super::dv;
use super::register::Registers;
use crate::error::Error;
use crate::provider::SendDoorbell;
use crate::verbs::sys;
use bellwire_core::port::DoorbellRecord;
use bellwire_core::queue::{BlueFlame, Private, Shared, SharedRegister};
use bellwire_core::wqe::{BASIC_BLOCK, SendRing};
use std::ptr::NonNull;
use std::sync::Arc;

/// The rings of a queue pair, and its records and register. Nothing of it is used before the queue pair
/// is made, or after this has gone.
#[derive(Debug)]
pub(crate) struct QpRings {
    /// Of the send queue: its memory and its basic blocks.
    pub send: (NonNull<u8>, u32),
    /// Of the receive queue: its memory, its entries, and the bytes of each. `None`: it has none.
    pub recv: Option<(NonNull<u8>, u32, u32)>,
    /// Of the receive queue, and of the send queue.
    records: [NonNull<DoorbellRecord>; 2],
    register: Bell,
    _domain: Domain,
}

// SAFETY: addresses, whose use is the queues' contract.
unsafe impl Send for QpRings {}
// SAFETY: as above.
unsafe impl Sync for QpRings {}

/// A doorbell register.
#[derive(Debug)]
enum Bell {
    /// Bytes of a half. Zero: eight bytes are written at once, so that others may as well.
    Own(NonNull<u64>, usize),
    Shared(Arc<SharedRegister>),
}

/// Rings that are not as the format has them.
pub(super) const UNUSABLE: Error = Error::Unsupported {
    what: "be posted to and polled without libibverbs",
    instead: "set BELLWIRE_VERBS_ONLY=1",
};

impl QpRings {
    /// Those of a queue pair that was made in this domain.
    ///
    /// # Errors
    /// Rings that are not as the format has them, or not where the domain's allocator gave memory.
    ///
    /// # Safety
    /// The queue pair is of a device of mlx5, and alive.
    pub unsafe fn of(
        qp: NonNull<sys::ibv_qp>,
        domain: Domain,
        registers: &Registers,
    ) -> Result<Self, Error> {
        // SAFETY: the caller's promise.
        let dv = unsafe { dv::qp(qp)? };
        let (Some(send), Some(record), Some(register)) = (
            NonNull::new(dv.sq.buf),
            NonNull::new(dv.dbrec),
            NonNull::new(dv.bf.reg),
        ) else {
            return Err(UNUSABLE);
        };
        if dv.sq.stride as usize != BASIC_BLOCK || !register.is_aligned() || !record.is_aligned() {
            return Err(UNUSABLE);
        }
        let recv = NonNull::new(dv.rq.buf).filter(|_| dv.rq.wqe_cnt != 0);
        let recv = recv.map(|recv| (recv, dv.rq.wqe_cnt, dv.rq.stride));
        let bytes = |count: u32, stride: u32| count as usize * stride as usize;
        let inside = domain.owns(send, bytes(dv.sq.wqe_cnt, dv.sq.stride))
            && recv.is_none_or(|(recv, count, stride)| domain.owns(recv, bytes(count, stride)))
            && domain.owns(record.cast(), 2 * size_of::<DoorbellRecord>());
        if !inside {
            return Err(UNUSABLE);
        }
        // A BlueFlame register has halves of 256 bytes, or none where eight bytes are all it takes.
        let size = dv.bf.size as usize & !(4 * BASIC_BLOCK - 1);
        let register = if domain.has_register() || size == 0 {
            Bell::Own(register, size)
        } else {
            // SAFETY: valid as long as the context is open, which the domain sees to. libmlx5 posts to
            // none of these queue pairs.
            Bell::Shared(unsafe { registers.at(register, size) })
        };
        Ok(Self {
            send: (send, dv.sq.wqe_cnt),
            recv,
            // SAFETY: two records, as was checked.
            records: unsafe { [record, record.add(1)] },
            register,
            _domain: domain,
        })
    }

    /// The receive queue's record.
    ///
    /// # Safety
    /// Not used after this has gone.
    pub unsafe fn recv_record(&self) -> &'static DoorbellRecord {
        // SAFETY: in the domain's memory; the caller's promise.
        unsafe { self.records[0].as_ref() }
    }

    /// The doorbell of the send queue on `ring`.
    ///
    /// # Safety
    /// The only one, and not used after this has gone.
    pub unsafe fn doorbell(&self, ring: SendRing<'static>) -> SendDoorbell {
        // SAFETY: the caller's promise, here and below.
        let record = unsafe { self.records[1].as_ref() };
        match &self.register {
            &Bell::Own(register, size) => {
                // SAFETY: nobody else rings it, but for eight bytes at once.
                let register = unsafe { Private::new(register, size) };
                SendDoorbell::Mlx5(BlueFlame::on(record, register, ring))
            }
            Bell::Shared(register) => {
                // SAFETY: kept by this.
                let register = unsafe { &*Arc::as_ptr(register) };
                SendDoorbell::Mlx5Shared(BlueFlame::on(record, Shared(register), ring))
            }
        }
    }
}
