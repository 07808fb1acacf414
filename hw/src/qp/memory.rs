//! The memory behind a queue pair.

#[cfg(feature = "mlx5")]
use crate::mlx5::QpRings;
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
    rings: Rings,
    /// Set when the queue pair is gone: where its last completions are at the latest, as producer
    /// indices of its completion queues.
    pub(super) end: OnceLock<(u32, u32)>,
}

/// Where the rings are.
#[derive(Debug)]
enum Rings {
    /// In memory of ours.
    Own {
        memory: Pinned,
        recv_offset: usize,
        record: Box<DoorbellRecord>,
    },
    /// Where the device has them; and in the stead of a receive queue that it has not, one that is never
    /// posted to.
    #[cfg(feature = "mlx5")]
    Device { rings: QpRings, no_recv: Pinned },
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
    fn new(count: u32, capacity: u32, qpn: u32) -> Option<Self> {
        let slots: Box<[LedgerSlot<'static>]> = (0..count).map(|_| LedgerSlot::default()).collect();
        let slots = Box::into_raw(slots);
        // SAFETY: freed after the ledger, in `drop`.
        let ledger = Ledger::with_capacity(unsafe { &mut *slots }, capacity, qpn);
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
    /// Rings of these sizes, in memory of ours.
    pub(super) fn new(sizes: Sizes, qpn: u32) -> Option<Arc<Self>> {
        let recv_offset = sizes.send_blocks as usize * BASIC_BLOCK;
        let recv_bytes = sizes.recv_count as usize * sizes.recv_stride as usize;
        let rings = Rings::Own {
            memory: Pinned::zeroed(recv_offset + recv_bytes),
            recv_offset,
            record: Box::default(),
        };
        Self::over(rings, sizes, sizes, qpn)
    }

    /// The device's rings, of which no more than `wanted` is to be in flight. `None`: they have less.
    #[cfg(feature = "mlx5")]
    pub(super) fn on_rings(rings: QpRings, wanted: Sizes, qpn: u32) -> Option<Arc<Self>> {
        let none = (1, BASIC_BLOCK as u32);
        let (recv_count, recv_stride) =
            (rings.recv).map_or(none, |(_, count, stride)| (count, stride));
        let sizes = Sizes {
            send_blocks: rings.send.1,
            recv_count,
            recv_stride,
        };
        let no_recv = Pinned::zeroed(BASIC_BLOCK);
        let enough = recv_stride >= wanted.recv_stride;
        let rings = Rings::Device { rings, no_recv };
        enough.then(|| Self::over(rings, sizes, wanted, qpn))?
    }

    fn over(rings: Rings, sizes: Sizes, wanted: Sizes, qpn: u32) -> Option<Arc<Self>> {
        Some(Arc::new(Self {
            send_ledger: LedgerBox::new(sizes.send_blocks, wanted.send_blocks, qpn)?,
            recv_ledger: LedgerBox::new(sizes.recv_count, wanted.recv_count, qpn)?,
            sizes,
            rings,
            end: OnceLock::new(),
        }))
    }

    /// The device's rings.
    #[cfg(feature = "mlx5")]
    pub(super) fn rings(&self) -> Option<&QpRings> {
        match &self.rings {
            Rings::Own { .. } => None,
            Rings::Device { rings, .. } => Some(rings),
        }
    }

    /// # Safety
    /// Not used after the memory has gone.
    pub(super) unsafe fn parts(&self) -> Option<Borrowed> {
        let sizes = self.sizes;
        let (send, recv, record): (_, _, &'static DoorbellRecord) = match &self.rings {
            Rings::Own {
                memory,
                recv_offset,
                record,
            } => {
                // SAFETY: within the memory.
                let recv = unsafe { memory.start().add(*recv_offset) };
                // SAFETY: the caller's promise.
                (memory.start(), recv, unsafe {
                    &*std::ptr::from_ref(&**record)
                })
            }
            #[cfg(feature = "mlx5")]
            Rings::Device { rings, no_recv } => {
                let recv = rings.recv.map_or(no_recv.start(), |(recv, ..)| recv);
                // SAFETY: the caller's promise.
                (rings.send.0, recv, unsafe { rings.recv_record() })
            }
        };
        // SAFETY: the memory has these sizes, and is one queue pair's.
        unsafe {
            Some(Borrowed {
                send_ring: SendRing::new(send, sizes.send_blocks)?,
                recv_ring: RecvRing::new(recv, sizes.recv_count, sizes.recv_stride)?,
                send_ledger: self.send_ledger.get(),
                recv_ledger: self.recv_ledger.get(),
                record,
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
