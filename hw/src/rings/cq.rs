//! Completion queues whose rings are somebody else's.

use super::does_not_fit;
use crate::device::Device;
use crate::error::Error;
use crate::event::CompChannel;
use crate::soft::CqCtx;
use bellwire_core::be::Be64;
use bellwire_core::port::DoorbellRecord;
use bellwire_core::queue::CqMemory;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A completion queue's memory, and whom it tells.
#[derive(Clone, Copy, Debug)]
pub struct CqInit<'a> {
    /// The ring: `count` entries of `cqe_size` bytes.
    pub ring: NonNull<u8>,
    /// Entries, a power of two.
    pub count: u32,
    /// Bytes of an entry: 64 or 128.
    pub cqe_size: u32,
    /// Two words: the consumer index, and the arm record.
    pub records: NonNull<[DoorbellRecord; 2]>,
    /// The channel that it tells of entries, when armed.
    pub channel: Option<&'a CompChannel>,
}

/// A completion queue as its device has it. Goes, with its number, when it and every queue on it are
/// dropped.
#[derive(Clone, Debug)]
pub struct Cq(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    ctx: CqCtx,
    arm: &'static DoorbellRecord,
    /// The arm record that was last acted upon.
    armed: AtomicU32,
    device: Device,
}

const CONSUMER: usize = 0;
const ARM: usize = 1;

/// No consumer arms with this word: bits are set that none of its parts has.
const NEVER_ARMED: u32 = u32::MAX;

impl Cq {
    /// A queue without entries. The ring is set to "owned by the device", and the arm record to a word
    /// that no consumer writes.
    ///
    /// # Errors
    /// Sizes that the format does not have, an address that is not aligned to the entries; another
    /// device than a software HCA; no number left.
    ///
    /// # Safety
    /// Ring and records are valid for reads and writes until the queue, its clones and all queue
    /// pairs and shared receive queues on it are gone. One consumer uses them, as a ConnectX device's
    /// are used.
    pub unsafe fn new(device: &Device, init: &CqInit<'_>) -> Result<Self, Error> {
        let hca = device.hca.soft("rings of somebody else's")?;
        device.hca.check_alive()?;
        // SAFETY: the caller's promise.
        let memory = unsafe { CqMemory::new(init.ring, init.count, init.cqe_size) };
        let memory = memory.ok_or_else(|| does_not_fit("cqe", init.count, 1 << 22))?;
        // SAFETY: the caller's promise.
        let records: &'static [DoorbellRecord; 2] = unsafe { init.records.as_ref() };
        let cqn = hca.cqns.take()?;
        // So that the first word is a change: it may be zero.
        records[ARM].store(NEVER_ARMED);
        let channel = init.channel.map(|channel| channel.queue().clone());
        let events = device.events.clone();
        Ok(Self(Arc::new(Inner {
            ctx: CqCtx::new(
                memory,
                &records[CONSUMER],
                cqn,
                events,
                channel,
                hca.armed(),
            ),
            arm: &records[ARM],
            armed: AtomicU32::new(NEVER_ARMED),
            device: device.clone(),
        })))
    }

    /// Its number.
    pub fn cqn(&self) -> u32 {
        self.0.ctx.cqn()
    }

    /// Acts upon the arm record, if it has changed: an entry behind the consumer index that it names
    /// tells the channel, also one that stands there already. Between two events the word changes, for
    /// it counts them.
    pub fn look_at_arm(&self) {
        let word = self.0.arm.load();
        // Relaxed: the records of a queue are looked at by one thread.
        if self.0.armed.swap(word, Ordering::Relaxed) != word {
            let word = u64::from(word) << 32 | u64::from(self.cqn());
            self.0.ctx.arm_and_look(Be64::new(word));
        }
    }

    /// Removes its events that nobody got, and takes no more. Queue pairs on it may stay.
    pub fn retire(&self) {
        self.0.ctx.retire();
    }

    /// # Safety
    /// Not used after the queue and all its clones are gone.
    pub(super) unsafe fn ctx(&self) -> &'static CqCtx {
        // SAFETY: the caller's promise.
        unsafe { &*std::ptr::from_ref(&self.0.ctx) }
    }

    pub(super) fn is_of(&self, device: &Device) -> bool {
        self.0.device.hca.is_same(&device.hca)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.ctx.retire();
        if let Ok(hca) = self.device.hca.soft("numbers") {
            hca.cqns.give_back(self.ctx.cqn());
        }
    }
}
