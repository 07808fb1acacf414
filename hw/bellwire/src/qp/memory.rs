//! The memory of a queue pair.

use crate::error::Error;
use crate::mlx5::QpRings;
use crate::pinned::{Pinned, boxed, defaults, place};
use bellwire_core::port::DoorbellRecord;
use bellwire_core::queue::{Attach, Ledger, LedgerSlot, Tally};
use bellwire_core::wqe::{BASIC_BLOCK, RecvRing, SendRing};
use bellwire_core::wr::QpType;
use std::sync::{Arc, OnceLock};

/// The memory of a queue pair: rings, ledgers, and doorbell record. Kept by the queue pair, and by its
/// completion queues until they have reported everything.
#[derive(Debug)]
pub(crate) struct QpMemory {
    sizes: Sizes,
    send_ledger: LedgerBox,
    recv_ledger: LedgerBox,
    rings: Rings,
    /// Set when the queue pair was destroyed: the indices up to which its completions extend at most, as
    /// producer indices of its completion queues.
    pub(super) end: OnceLock<(u32, u32)>,
    /// Where the queues count their requests.
    pub(super) tally: OnceLock<Arc<Tally>>,
}

/// The location of the rings.
#[derive(Debug)]
enum Rings {
    /// In our own memory.
    Own {
        memory: Pinned,
        recv_offset: usize,
        record: Box<DoorbellRecord>,
    },
    /// In memory that the device's queue pair was created with; `no_recv` replaces a receive queue that the
    /// queue pair does not have, and is never posted to.
    Device { rings: QpRings, no_recv: Pinned },
}

/// The send or the receive queue.
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

// SAFETY: a ledger may be shared, and only the owner uses the pointers.
unsafe impl Send for LedgerBox {}
// SAFETY: a ledger may be shared, and only the owner uses the pointers.
unsafe impl Sync for LedgerBox {}

impl LedgerBox {
    /// `None`: the sizes are not supported.
    fn new(count: u32, capacity: u32, qpn: u32) -> Result<Option<Self>, Error> {
        let room = place()?;
        let slots: Box<[LedgerSlot<'static>]> = defaults(count as usize)?;
        let slots = Box::into_raw(slots);
        // SAFETY: the slots are freed after the ledger, in `drop`.
        let ledger = Ledger::with_capacity(unsafe { &mut *slots }, capacity, qpn);
        let Some(ledger) = ledger else {
            // SAFETY: from `Box::into_raw`, and not borrowed.
            drop(unsafe { Box::from_raw(slots) });
            return Ok(None);
        };
        let ledger = Box::into_raw(Box::write(room, ledger));
        Ok(Some(Self { ledger, slots }))
    }

    /// # Safety
    /// It is not used after the box has been dropped.
    unsafe fn get(&self) -> &'static Ledger<'static> {
        // SAFETY: from `Box::into_raw`, freed in `drop`.
        unsafe { &*self.ledger }
    }
}

impl Drop for LedgerBox {
    fn drop(&mut self) {
        // SAFETY: both are from `Box::into_raw`; the ledger, which borrows the slots, is freed first.
        unsafe {
            drop(Box::from_raw(self.ledger));
            drop(Box::from_raw(self.slots));
        }
    }
}

/// The sizes of a queue pair's rings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub send_blocks: u32,
    pub recv_count: u32,
    pub recv_stride: u32,
}

impl QpMemory {
    /// Allocates rings of these sizes in our own memory. `None`: the sizes are not supported.
    pub(super) fn new(sizes: Sizes, qpn: u32) -> Result<Option<Arc<Self>>, Error> {
        let recv_offset = sizes.send_blocks as usize * BASIC_BLOCK;
        let recv_bytes = sizes.recv_count as usize * sizes.recv_stride as usize;
        let rings = Rings::Own {
            memory: Pinned::zeroed(recv_offset + recv_bytes)?,
            recv_offset,
            record: boxed(Default::default())?,
        };
        Self::over(rings, sizes, sizes, qpn)
    }

    /// Uses the device's rings, with no more than `wanted` in flight. `None`: the rings are smaller.
    pub fn on_rings(rings: QpRings, wanted: Sizes, qpn: u32) -> Result<Option<Arc<Self>>, Error> {
        let none = (1, BASIC_BLOCK as u32);
        let (recv_count, recv_stride) =
            (rings.recv).map_or(none, |(_, count, stride)| (count, stride));
        let sizes = Sizes {
            send_blocks: rings.send.1,
            recv_count,
            recv_stride,
        };
        if recv_stride < wanted.recv_stride {
            return Ok(None);
        }
        let no_recv = Pinned::zeroed(BASIC_BLOCK)?;
        let rings = Rings::Device { rings, no_recv };
        Self::over(rings, sizes, wanted, qpn)
    }

    fn over(
        rings: Rings,
        sizes: Sizes,
        wanted: Sizes,
        qpn: u32,
    ) -> Result<Option<Arc<Self>>, Error> {
        let send_ledger = LedgerBox::new(sizes.send_blocks, wanted.send_blocks, qpn)?;
        let recv_ledger = LedgerBox::new(sizes.recv_count, wanted.recv_count, qpn)?;
        let ledgers = send_ledger.zip(recv_ledger);
        Ok(ledgers.map(|(send_ledger, recv_ledger)| {
            Arc::new(Self {
                send_ledger,
                recv_ledger,
                sizes,
                rings,
                end: OnceLock::new(),
                tally: OnceLock::new(),
            })
        }))
    }

    /// Slots of the send and of the receive queue, and how many of them are in flight. A queue that does not exist
    /// has a ring of one slot.
    pub fn depths(&self) -> [(u32, u32); 2] {
        [&self.send_ledger, &self.recv_ledger].map(|ledger| {
            // SAFETY: the ledger lives as long as `self`.
            let ledger = unsafe { ledger.get() };
            match ledger.capacity() {
                1 => (0, 0),
                slots => (slots, ledger.in_flight().min(slots)),
            }
        })
    }

    /// Bytes of rings and ledgers.
    pub fn bytes(&self) -> usize {
        let Sizes {
            send_blocks,
            recv_count,
            recv_stride,
        } = self.sizes;
        let slots = (send_blocks + recv_count) as usize * size_of::<LedgerSlot<'_>>();
        let rings = send_blocks as usize * BASIC_BLOCK + recv_count as usize * recv_stride as usize;
        size_of::<Self>() + slots + rings
    }

    /// The device's rings, if it has them.
    pub fn rings(&self) -> Option<&QpRings> {
        match &self.rings {
            Rings::Own { .. } => None,
            Rings::Device { rings, .. } => Some(rings),
        }
    }

    /// # Safety
    /// They are not used after the memory has been freed.
    pub unsafe fn parts(&self) -> Option<Borrowed> {
        let sizes = self.sizes;
        let (send, recv, record): (_, _, &'static DoorbellRecord) = match &self.rings {
            Rings::Own {
                memory,
                recv_offset,
                record,
            } => {
                // SAFETY: the offset is within the memory.
                let recv = unsafe { memory.start().add(*recv_offset) };
                // SAFETY: the caller guarantees not to use the record after the memory has been freed.
                (memory.start(), recv, unsafe {
                    &*std::ptr::from_ref(&**record)
                })
            }
            Rings::Device { rings, no_recv } => {
                let recv = rings.recv.map_or(no_recv.start(), |(recv, ..)| recv);
                // SAFETY: the caller guarantees not to use the record after the memory has been freed.
                (rings.send.0, recv, unsafe { rings.recv_record() })
            }
        };
        // SAFETY: the memory has these sizes, and belongs to one queue pair.
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

    /// Index after the last completion of a destroyed queue pair; `None` while it exists.
    pub fn end(&self, side: Side) -> Option<u32> {
        self.end.get().map(|&(send, recv)| match side {
            Side::Send => send,
            Side::Recv => recv,
        })
    }
}

/// The parts of a [`QpMemory`].
pub(crate) struct Borrowed {
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
