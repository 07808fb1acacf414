//! Completion queues whose rings another library polls.

use super::{UNSUPPORTED, does_not_fit};
use crate::device::Device;
use crate::error::Error;
use crate::event::CompChannel;
use crate::soft::CqCtx;
use bellwire_core::be::Be64;
use bellwire_core::port::DoorbellRecord;
use bellwire_core::queue::CqMemory;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The attributes of a completion queue.
#[derive(Clone, Copy, Debug)]
pub struct CqInit<'a> {
    /// The ring: `count` entries of `cqe_size` bytes.
    pub ring: NonNull<u8>,
    /// The number of entries, a power of two.
    pub count: u32,
    /// Bytes of an entry: 64 or 128.
    pub cqe_size: u32,
    /// The doorbell records: the consumer index, and the arm record.
    pub records: NonNull<[DoorbellRecord; 2]>,
    /// The completion channel on which it reports events when armed.
    pub channel: Option<&'a CompChannel>,
}

/// A completion queue, seen from the device's side. It is destroyed, and its number is freed, when it and
/// every queue that completes on it are dropped.
#[derive(Clone, Debug)]
pub struct Cq(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    ctx: CqCtx,
    arm: &'static DoorbellRecord,
    /// The arm record that was last processed; locked while entries are examined or moved.
    armed: Mutex<u32>,
    device: Device,
}

const CONSUMER: usize = 0;
const ARM: usize = 1;

/// The most entries of a ring.
const MAX_CQE: u32 = 1 << 22;

/// A word that no consumer arms with: it has bits that no field of the arm record uses.
const NEVER_ARMED: u32 = u32::MAX;

impl Cq {
    /// Creates a queue without completions. The ring's entries are set to "owned by the device", and the arm
    /// record to a word that no consumer writes.
    ///
    /// # Errors
    /// The format does not support a size, or the address is not aligned to the entries; the device is not a
    /// software HCA; no number is left.
    ///
    /// # Safety
    /// Ring and records are valid for reads and writes until the queue, its clones, and all queue pairs and
    /// shared receive queues on it are destroyed. One consumer uses them, as it would use those of a ConnectX
    /// device.
    pub unsafe fn new(device: &Device, init: &CqInit<'_>) -> Result<Self, Error> {
        let hca = device.hca.soft().ok_or(UNSUPPORTED)?;
        device.hca.check_alive()?;
        // SAFETY: the caller guarantees that the ring is valid until the queue is destroyed.
        let memory = unsafe { CqMemory::new(init.ring, init.count, init.cqe_size) };
        let memory = memory.ok_or_else(|| does_not_fit("cqe", init.count, MAX_CQE))?;
        // SAFETY: the caller guarantees that the records are valid until the queue is destroyed.
        let records: &'static [DoorbellRecord; 2] = unsafe { init.records.as_ref() };
        let cqn = hca.cqns.take()?;
        // So that the consumer's first word is a change: it may be zero.
        records[ARM].store(NEVER_ARMED);
        let channel = init.channel.map(|channel| channel.queue().clone());
        let events = device.events.clone();
        let consumer = &records[CONSUMER];
        let ctx = CqCtx::new(memory, consumer, cqn, events, channel, hca.attention());
        Ok(Self(Arc::new(Inner {
            ctx: ctx.inspect_err(|_| hca.cqns.give_back(cqn))?,
            arm: &records[ARM],
            armed: Mutex::new(NEVER_ARMED),
            device: device.clone(),
        })))
    }

    /// The completion queue number.
    pub fn cqn(&self) -> u32 {
        self.0.ctx.cqn()
    }

    /// Processes the arm record, if it has changed: a completion after the consumer index in it raises an
    /// event on the channel, even if it is in the queue already. The word changes between two events, since
    /// it counts them.
    pub fn look_at_arm(&self) {
        let mut armed = self.armed();
        let word = self.0.arm.load();
        if word != *armed {
            *armed = word;
            let word = u64::from(word) << 32 | u64::from(self.cqn());
            self.0.ctx.arm_and_look(Be64::new(word));
        }
    }

    fn armed(&self) -> MutexGuard<'_, u32> {
        self.0.armed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes of an entry.
    pub fn cqe_size(&self) -> u32 {
        self.0.ctx.cqe_size()
    }

    /// Continues in another ring of `count` entries (`ibv_resize_cq`). The last entry of the old ring
    /// announces this (`MLX5_CQE_RESIZE_CQ`): the consumer copies the entries before it that it has not
    /// polled to the new ring, each one place further on, and may then free the old ring.
    ///
    /// # Errors
    /// The format does not support a size; [`Error::Busy`]: the entries that were not polled fill either
    /// ring.
    ///
    /// # Safety
    /// That of [`new`](Self::new), for the new ring. The consumer does not poll during the call.
    pub unsafe fn resize(&self, ring: NonNull<u8>, count: u32) -> Result<(), Error> {
        let hca = self.0.device.hca.soft().ok_or(UNSUPPORTED)?;
        // SAFETY: the caller guarantees that the new ring is valid until the queue is destroyed.
        let memory = unsafe { CqMemory::new(ring, count, self.cqe_size()) };
        let memory = memory.ok_or_else(|| does_not_fit("cqe", count, MAX_CQE))?;
        let _armed = self.armed();
        // SAFETY: the device writes no entries meanwhile, and processing the arm record waits for the lock.
        let resized = hca.hold_still(|| unsafe { self.0.ctx.resize(memory) });
        resized.then_some(()).ok_or(Error::Busy {
            what: "completion queue",
            users: count as usize,
        })
    }

    /// Removes its queued events, and raises no more. Queue pairs may still use it.
    pub fn retire(&self) {
        self.0.ctx.retire();
    }

    /// # Safety
    /// It is not used after the queue and all its clones have been dropped.
    pub(super) unsafe fn ctx(&self) -> &'static CqCtx {
        // SAFETY: the caller guarantees not to use it after the queue and all its clones have been dropped.
        unsafe { &*std::ptr::from_ref(&self.0.ctx) }
    }

    pub(super) fn is_of(&self, device: &Device) -> bool {
        self.0.device.hca.is_same(&device.hca)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A child of fork leaves what belongs to its parent as it is.
        if self.device.is_inherited() {
            return;
        }
        self.ctx.retire();
        if let Some(hca) = self.device.hca.soft() {
            hca.cqns.give_back(self.ctx.cqn());
        }
    }
}
