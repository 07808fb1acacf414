//! The memory behind a queue pair.

use crate::pinned::Pinned;
use bellwire_core::port::DoorbellRecord;
use bellwire_core::queue::{Attach, Ledger, LedgerSlot};
use bellwire_core::wqe::{BASIC_BLOCK, RecvRing, SendRing};
use bellwire_core::wr::QpType;
use std::sync::{Arc, OnceLock};

/// Memory of a queue pair: rings, ledgers, record. Kept by the queue pair, and by its completion
/// queues until they have told everything.
#[derive(Debug)]
pub(crate) struct QpMemory {
    sizes: Sizes,
    send_ledger: LedgerBox,
    recv_ledger: LedgerBox,
    rings: Pinned,
    record: Box<DoorbellRecord>,
    recv_offset: usize,
    /// Set when the queue pair is gone: where its last completions are at the latest, as producer
    /// indices of its completion queues.
    pub(super) end: OnceLock<(u32, u32)>,
}

/// A queue pair's half.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Side {
    Send,
    Recv,
}

/// A ledger and the slots that it borrows.
#[derive(Debug)]
struct LedgerBox {
    ledger: *mut Ledger<'static>,
    slots: *mut [LedgerSlot<'static>],
}

// SAFETY: a ledger may be shared, and the pointers are its owner's alone.
unsafe impl Send for LedgerBox {}
// SAFETY: as above.
unsafe impl Sync for LedgerBox {}

impl LedgerBox {
    fn new(count: u32, qpn: u32) -> Option<Self> {
        let slots: Box<[LedgerSlot<'static>]> = (0..count).map(|_| LedgerSlot::default()).collect();
        let slots = Box::into_raw(slots);
        // SAFETY: freed after the ledger, in `drop`.
        let ledger = Ledger::new(unsafe { &mut *slots }, qpn);
        let Some(ledger) = ledger else {
            // SAFETY: from `Box::into_raw`, and borrowed by nobody.
            drop(unsafe { Box::from_raw(slots) });
            return None;
        };
        let ledger = Box::into_raw(Box::new(ledger));
        Some(Self { ledger, slots })
    }

    /// # Safety
    /// Not used after the box has gone.
    unsafe fn get(&self) -> &'static Ledger<'static> {
        // SAFETY: from `Box::into_raw`, freed in `drop`.
        unsafe { &*self.ledger }
    }
}

impl Drop for LedgerBox {
    fn drop(&mut self) {
        // SAFETY: both from `Box::into_raw`; the ledger, which borrows the slots, goes first.
        unsafe {
            drop(Box::from_raw(self.ledger));
            drop(Box::from_raw(self.slots));
        }
    }
}

/// Sizes of a queue pair's rings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub send_blocks: u32,
    pub recv_count: u32,
    pub recv_stride: u32,
}

impl QpMemory {
    pub(super) fn new(sizes: Sizes, qpn: u32) -> Option<Arc<Self>> {
        let recv_offset = sizes.send_blocks as usize * BASIC_BLOCK;
        let recv_bytes = sizes.recv_count as usize * sizes.recv_stride as usize;
        Some(Arc::new(Self {
            sizes,
            send_ledger: LedgerBox::new(sizes.send_blocks, qpn)?,
            recv_ledger: LedgerBox::new(sizes.recv_count, qpn)?,
            rings: Pinned::zeroed(recv_offset + recv_bytes),
            record: Box::default(),
            recv_offset,
            end: OnceLock::new(),
        }))
    }

    /// # Safety
    /// Not used after the memory has gone.
    pub(super) unsafe fn parts(&self) -> Option<Borrowed> {
        let sizes = self.sizes;
        // SAFETY: the memory has these sizes, and is one queue pair's.
        unsafe {
            Some(Borrowed {
                send_ring: SendRing::new(self.rings.start(), sizes.send_blocks)?,
                recv_ring: RecvRing::new(
                    self.rings.start().add(self.recv_offset),
                    sizes.recv_count,
                    sizes.recv_stride,
                )?,
                send_ledger: self.send_ledger.get(),
                recv_ledger: self.recv_ledger.get(),
                record: &*std::ptr::from_ref(&*self.record),
            })
        }
    }

    /// Index behind a gone queue pair's last completion; `None` while it lives.
    pub fn end(&self, side: Side) -> Option<u32> {
        self.end.get().map(|&(send, recv)| match side {
            Side::Send => send,
            Side::Recv => recv,
        })
    }
}

/// Parts of a [`QpMemory`].
pub(super) struct Borrowed {
    pub send_ring: SendRing<'static>,
    pub recv_ring: RecvRing<'static>,
    pub send_ledger: &'static Ledger<'static>,
    pub recv_ledger: &'static Ledger<'static>,
    pub record: &'static DoorbellRecord,
}

impl Borrowed {
    pub fn send(&self, transport: QpType) -> Attach<'static> {
        Attach {
            send: Some((self.send_ledger, self.send_ring, transport)),
            ..Attach::default()
        }
    }

    pub fn recv(&self) -> Attach<'static> {
        Attach {
            recv: Some((self.recv_ledger, self.recv_ring)),
            ..Attach::default()
        }
    }
}
