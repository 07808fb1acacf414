//! A queue pair's rings, as libmlx5 set them up.

use super::domain::Domain;
use crate::error::Error;
use bellwire_core::port::{self, DoorbellRecord, Staged};
use bellwire_core::queue::{BlueFlame, Private, Shared, SharedRegister};
use bellwire_core::wqe::{BASIC_BLOCK, SendRing};
use bellwire_verbs::mlx5dv::{self as dv, UNUSABLE};
use bellwire_verbs::{Registers, sys};
use std::ptr::NonNull;
use std::sync::Arc;

/// The rings of a queue pair, its doorbell records, and its doorbell register. None of them may be used
/// before the queue pair is created, or after this has been dropped.
#[derive(Debug)]
pub struct QpRings {
    /// The send queue's memory and number of basic blocks.
    pub send: (NonNull<u8>, u32),
    /// The receive queue's memory, number of entries, and bytes per entry. `None`: it has no receive queue.
    pub recv: Option<(NonNull<u8>, u32, u32)>,
    /// The doorbell records of the receive queue and of the send queue.
    records: [NonNull<DoorbellRecord>; 2],
    register: Bell,
    _domain: Domain,
}

// SAFETY: it consists of addresses, whose use is subject to the queues' contract.
unsafe impl Send for QpRings {}
// SAFETY: it consists of addresses, whose use is subject to the queues' contract.
unsafe impl Sync for QpRings {}

/// The doorbell of a send queue.
#[derive(Debug)]
pub enum Doorbell {
    /// On a register that no other queue pair uses.
    Own(BlueFlame<'static, Private>),
    /// On a register that other queue pairs share.
    Shared(BlueFlame<'static, Shared<'static>>),
}

impl Doorbell {
    /// Whether other queue pairs use its register.
    pub fn shares_register(&self) -> bool {
        matches!(self, Self::Shared(_))
    }
}

// SAFETY: each case implements the trait with the same promise.
unsafe impl port::SendDoorbell for Doorbell {
    #[inline(always)]
    unsafe fn ring(&mut self, staged: &Staged) {
        // SAFETY: the caller keeps the promise of `ring`, which is the same in each case.
        unsafe {
            match self {
                Self::Own(doorbell) => doorbell.ring(staged),
                Self::Shared(doorbell) => doorbell.ring(staged),
            }
        }
    }
}

/// A doorbell register.
#[derive(Debug)]
enum Bell {
    /// With the bytes of half the register. Zero: only single eight-byte writes are made, which others may
    /// make, too.
    Own(NonNull<u64>, usize),
    Shared(Arc<SharedRegister>),
}

impl QpRings {
    /// The rings of a queue pair that was created in this domain.
    ///
    /// # Errors
    /// The rings do not have the expected layout, or are not in memory of the domain's allocator.
    ///
    /// # Safety
    /// The queue pair is alive, and of an mlx5 device.
    pub unsafe fn of(
        qp: NonNull<sys::ibv_qp>,
        domain: Domain,
        registers: &Registers,
    ) -> Result<Self, Error> {
        // SAFETY: the caller guarantees that the queue pair is alive and of an mlx5 device.
        let dv = unsafe { dv::qp(qp)? };
        let (Some(send), Some(record), Some(register)) = (
            NonNull::new(dv.sq.buf),
            NonNull::new(dv.dbrec.cast::<DoorbellRecord>()),
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
        // A BlueFlame register has two halves of 256 bytes; other registers take eight bytes only.
        let size = dv.bf.size as usize & !(4 * BASIC_BLOCK - 1);
        let register = if domain.has_register() || size == 0 {
            Bell::Own(register, size)
        } else {
            // SAFETY: the register is valid as long as the context is open, which the domain ensures. libmlx5
            // posts to none of these queue pairs.
            Bell::Shared(unsafe { registers.at(register, size) })
        };
        Ok(Self {
            send: (send, dv.sq.wqe_cnt),
            recv,
            // SAFETY: the memory of two records was checked above.
            records: unsafe { [record, record.add(1)] },
            register,
            _domain: domain,
        })
    }

    /// The receive queue's doorbell record.
    ///
    /// # Safety
    /// It is not used after `self` has been dropped.
    pub unsafe fn recv_record(&self) -> &'static DoorbellRecord {
        // SAFETY: the record is in the domain's memory; the caller guarantees not to use it after `self` is
        // dropped.
        unsafe { self.records[0].as_ref() }
    }

    /// The doorbell of the send queue on `ring`.
    ///
    /// # Safety
    /// It is the only one, and not used after `self` has been dropped.
    pub unsafe fn doorbell(&self, ring: SendRing<'static>) -> Doorbell {
        // SAFETY: the record is in the domain's memory; the caller guarantees not to use it after `self` is
        // dropped.
        let record = unsafe { self.records[1].as_ref() };
        match &self.register {
            &Bell::Own(register, size) => {
                // SAFETY: only this doorbell writes the register, except for single eight-byte writes.
                let register = unsafe { Private::new(register, size) };
                Doorbell::Own(BlueFlame::on(record, register, ring))
            }
            Bell::Shared(register) => {
                // SAFETY: `self` keeps the register, and the caller guarantees not to use it after `self` is
                // dropped.
                let register = unsafe { &*Arc::as_ptr(register) };
                Doorbell::Shared(BlueFlame::on(record, Shared(register), ring))
            }
        }
    }
}
