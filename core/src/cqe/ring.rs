//! CQEs in the ring that the device and the consumer share.

use super::entry::LOW_24;
use super::{Cqe64, Cqe128, CqeOpcode, PlainCqe};
use crate::barrier;
use crate::be::{Be16, Be32, Be64};
// Not `crate::sync`: the words lie in memory shared with a device, where loom's atomics cannot.
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

/// The last byte of a CQE that is not written, whatever the lap.
const NOT_WRITTEN: u8 = CqeOpcode::Invalid.number() << 4;

/// The index of the 8-byte word that ends with `op_own`.
const LAST_WORD: usize = size_of::<Cqe64>() / 8 - 1;

/// The owner bit that the device writes in the CQE with free-running index `index`: 0 on the first
/// lap, 1 on the second, and so on. `cqe_cnt` is a power of two.
#[inline(always)]
pub const fn owner_bit(index: u32, cqe_cnt: u32) -> u8 {
    (index & cqe_cnt != 0) as u8
}

/// Whether the device has written the CQE at `ci`, so that it belongs to the consumer. `cqe_cnt` is
/// a power of two.
#[inline(always)]
pub const fn is_sw_owned(op_own: u8, ci: u32, cqe_cnt: u32) -> bool {
    op_own & 0xf0 != NOT_WRITTEN && op_own & 1 == owner_bit(ci, cqe_cnt)
}

/// The ordering of loads of the last word. Relaxed: together with the barrier in [`Cqe64::read`] it
/// pairs with the Release in [`Cqe64::publish`]. ThreadSanitizer does not support barriers (the
/// step `tsan` sets `cfg(tsan)`), so there the load itself is Acquire.
const SIGN: Ordering = match cfg!(tsan) {
    true => Ordering::Acquire,
    false => Ordering::Relaxed,
};

/// The ordering of the store of the last word. Pairs with [`SIGN`] and the barrier in [`Cqe64::read`].
const PUBLISH: Ordering = Ordering::Release;

/// The word that ends with `op_own`. Both sides access it in this one size: atomics of different
/// sizes over the same memory are a race.
///
/// # Safety
/// `slot` is valid for reads and writes for `'a`. All others access the word by this function, or
/// are ordered before or after its use.
#[inline(always)]
unsafe fn last_word<'a>(slot: NonNull<Cqe64>) -> &'a AtomicU64 {
    // SAFETY: within the CQE and aligned; the caller guarantees validity and how others access it.
    unsafe { AtomicU64::from_ptr(slot.cast::<u64>().add(LAST_WORD).as_ptr()) }
}

impl Cqe64 {
    /// Marks the CQE as not written. Do this for every CQE of a new ring.
    ///
    /// # Safety
    /// `slot` is valid for writes, and the CQE does not belong to the device: it does not use the
    /// ring yet, or has handed the CQE over and it was not returned.
    #[inline(always)]
    pub unsafe fn init(slot: NonNull<Self>) {
        let mut bytes = [0; 64];
        bytes[63] = NOT_WRITTEN;
        // SAFETY: the caller guarantees that the slot is valid and does not belong to the device.
        unsafe { slot.write(Self::from_bytes(bytes)) };
    }

    /// The CQE at `ci`, if the device has written it. Costs a load of the last word.
    ///
    /// # Safety
    /// - `slot` is entry `ci & (cqe_cnt - 1)` of a ring of `cqe_cnt` (a power of two) entries, all
    ///   of which were [`init`](Self::init)ialised, and is valid for `'a`.
    /// - The reference is not used after the CQE is returned by a consumer index past `ci`: from
    ///   then on the device may write it.
    #[inline(always)]
    pub unsafe fn read_owned<'a>(slot: NonNull<Self>, ci: u32, cqe_cnt: u32) -> Option<&'a Self> {
        // SAFETY: the caller guarantees that the slot is a valid, initialised entry.
        let op_own = unsafe { Self::peek(slot) };
        // SAFETY: the slot is valid, and the owner bit says that the device has handed it over.
        is_sw_owned(op_own, ci, cqe_cnt).then(|| unsafe { Self::read(slot) })
    }

    /// The last byte of a CQE, which says whether it was written. Costs a load of the last word.
    ///
    /// # Safety
    /// The requirements of [`read_owned`](Self::read_owned).
    #[inline(always)]
    pub(crate) unsafe fn peek(slot: NonNull<Self>) -> u8 {
        // SAFETY: valid, and the device writes the word as a whole.
        let word = unsafe { last_word(slot) };
        word.load(SIGN).to_ne_bytes()[7]
    }

    /// A CQE that is known to be written.
    ///
    /// # Safety
    /// The requirements of [`read_owned`](Self::read_owned); and [`is_sw_owned`] returned `true`
    /// for the result of [`peek`](Self::peek).
    #[inline(always)]
    pub(crate) unsafe fn read<'a>(slot: NonNull<Self>) -> &'a Self {
        barrier::from_device();
        // SAFETY: the device does not write a CQE that it has handed over until it is returned.
        unsafe { slot.as_ref() }
    }

    /// Writes `entry` as a device does: its last word, with `op_own` in place of its own last byte,
    /// after everything else. `op_own` is `entry.op_own() | owner_bit(index, cqe_cnt)`.
    ///
    /// # Safety
    /// `slot` is valid for writes and belongs to the device: it was never written, or was returned
    /// by a consumer index that was loaded with Acquire. Only one thread writes it at a time.
    #[inline(always)]
    pub unsafe fn publish(slot: NonNull<Self>, entry: &Self, op_own: u8) {
        let mut entry = *entry;
        entry.op_own = op_own;
        // SAFETY: 64 bytes without padding, of which every bit pattern is valid.
        let words: [u64; 8] = unsafe { core::mem::transmute(entry) };
        // SAFETY: the caller guarantees that the slot belongs to the device; the consumer does not
        // read the body before the last word.
        unsafe {
            slot.cast::<u64>()
                .as_ptr()
                .copy_from_nonoverlapping(words.as_ptr(), LAST_WORD);
        }
        // SAFETY: the slot belongs to the device; the consumer reads the word as a whole.
        unsafe { last_word(slot) }.store(words[LAST_WORD], PUBLISH);
    }

    /// Writes a CQE like [`publish`](Self::publish), straight to its place.
    ///
    /// # Safety
    /// The requirements of [`publish`](Self::publish).
    #[inline(always)]
    pub unsafe fn publish_plain(slot: NonNull<Self>, plain: &PlainCqe, op_own: u8) {
        // SAFETY: the caller guarantees all of it.
        unsafe { Self::publish_inline(slot, plain, op_own, |_| ()) };
    }

    /// Writes a CQE like [`publish_plain`](Self::publish_plain). `fill` writes the payload to its
    /// place: 32 bytes, which are zero before.
    ///
    /// # Safety
    /// The requirements of [`publish`](Self::publish).
    #[inline(always)]
    pub unsafe fn publish_inline(
        slot: NonNull<Self>,
        plain: &PlainCqe,
        op_own: u8,
        fill: impl FnOnce(NonNull<[u8; 32]>),
    ) {
        // SAFETY: the caller guarantees that the slot belongs to the device; the consumer does not
        // read the body before the last word.
        unsafe {
            let cqe = slot.as_ptr();
            let head = NonNull::from(&mut (*cqe).head);
            head.write([0; 32]);
            fill(head);
            (&raw mut (*cqe).srqn_uidx).write(Be32::new(plain.wqe.user_index & LOW_24));
            (&raw mut (*cqe).imm_inval_pkey).write(plain.imm);
            (&raw mut (*cqe).app).write(0);
            (&raw mut (*cqe).app_op).write(0);
            (&raw mut (*cqe).app_info).write(Be16::new(0));
            (&raw mut (*cqe).byte_cnt).write(Be32::new(plain.byte_cnt));
            (&raw mut (*cqe).timestamp).write(Be64::new(0));
        }
        // SAFETY: the slot belongs to the device; the consumer reads the word as a whole.
        unsafe { last_word(slot) }.store(plain.last_word(op_own), PUBLISH);
    }

    /// Copies the descriptor in `from` to `to`, with the owner bit for `index`, its new place.
    ///
    /// # Safety
    /// Both slots are valid, and belong to the caller: handed over by the device and not returned.
    #[inline(always)]
    pub unsafe fn move_entry(from: NonNull<Self>, to: NonNull<Self>, index: u32, cqe_cnt: u32) {
        // SAFETY: the caller guarantees that both slots are valid and belong to it.
        let mut entry = unsafe { from.read() };
        entry.op_own = entry.op_own & !1 | owner_bit(index, cqe_cnt);
        // SAFETY: the caller guarantees that both slots are valid and belong to it.
        unsafe { to.write(entry) };
    }

    /// Changes a CQE to an opcode that pollers drop. Its owner bit and the queue that it names do
    /// not change.
    ///
    /// # Safety
    /// `slot` is a CQE that is known to be written and was not returned; no reference to it exists.
    pub(crate) unsafe fn make_void(slot: NonNull<Self>) {
        // SAFETY: the caller guarantees that the CQE belongs to it and is not referenced.
        unsafe {
            let op_own = &raw mut (*slot.as_ptr()).op_own;
            op_own.write(op_own.read() & 1 | CqeOpcode::Unknown11.number() << 4);
        }
    }
}

impl Cqe128 {
    /// Writes a CQE of 128 bytes, whose descriptor is `slot`, like [`Cqe64::publish`].
    ///
    /// # Safety
    /// The requirements of [`Cqe64::publish`], for the whole CQE.
    #[inline(always)]
    pub unsafe fn publish(slot: NonNull<Cqe64>, entry: &Self, op_own: u8) {
        // SAFETY: the caller guarantees that the 64 bytes before the descriptor belong to the CQE.
        unsafe { slot.sub(1).cast().write(entry.payload) };
        // SAFETY: the caller guarantees that the slot belongs to the device.
        unsafe { Cqe64::publish(slot, &entry.cqe, op_own) };
    }
}

/// A CQE of two words: the ring itself is memory that a device writes, which loom cannot see.
#[cfg(all(test, any(loom, miri)))]
mod loom_models {
    use super::{PUBLISH, SIGN, barrier};
    use crate::sync::{
        atomic,
        model::{Arc, UnsafeCell, check, thread},
    };

    struct Entry {
        body: UnsafeCell<u32>,
        last: atomic::AtomicU64,
    }

    // SAFETY: the model checks that accesses do not conflict.
    unsafe impl Sync for Entry {}
    // SAFETY: the model checks that accesses do not conflict.
    unsafe impl Send for Entry {}

    #[test]
    fn an_owned_entry_is_whole() {
        check(|| {
            let entry = Arc::new(Entry {
                body: UnsafeCell::new(0),
                last: atomic::AtomicU64::new(0),
            });
            let device = {
                let entry = entry.clone();
                thread::spawn(move || {
                    // SAFETY: the model checks that this access does not conflict.
                    entry.body.with_mut(|body| unsafe { *body = 7 });
                    entry.last.store(1, PUBLISH);
                })
            };
            if entry.last.load(SIGN) == 1 {
                barrier::from_device();
                // SAFETY: the model checks that this access does not conflict.
                entry.body.with(|body| unsafe { assert_eq!(*body, 7) });
            }
            device.join().expect("no panic");
        });
    }

    /// The barrier behind the owner bit is there, and the bit comes last.
    #[cfg(loom)]
    #[test]
    fn the_owner_bit_needs_its_orderings() {
        let models: [fn(); 1] = [an_owned_entry_is_whole];
        crate::sync::needs_orderings(&models, "src/barrier.rs", &[]);
        crate::sync::needs_orderings(&models, "cqe/ring.rs", &[]);
    }
}

#[cfg(test)]
mod tests {
    use super::super::CompletedWqe;
    use super::*;
    use core::sync::atomic::AtomicU32;
    use std::{boxed::Box, thread, vec, vec::Vec};

    /// A ring of 128-byte CQEs, of which a test may use only the descriptors.
    #[derive(Clone, Copy)]
    struct Ring(NonNull<Cqe128>, u32);
    // SAFETY: the tests use a CQE from one thread at a time, according to the owner bit.
    unsafe impl Send for Ring {}

    impl Ring {
        fn new(cqe_cnt: u32) -> Self {
            let fill = Cqe128 {
                payload: [0xee; 64],
                cqe: Cqe64::from_bytes([0xee; 64]),
            };
            let entries = Box::leak(vec![fill; cqe_cnt as usize].into_boxed_slice());
            let ring = Self(NonNull::from(entries).cast(), cqe_cnt);
            for index in 0..cqe_cnt {
                // SAFETY: nothing else uses the ring yet.
                unsafe { Cqe64::init(ring.slot(index)) };
            }
            ring
        }

        fn slot(self, index: u32) -> NonNull<Cqe64> {
            // SAFETY: masked, so within the ring.
            unsafe {
                self.0
                    .add((index & (self.1 - 1)) as usize)
                    .cast::<Cqe64>()
                    .add(1)
            }
        }

        fn free(self) {
            let entries = NonNull::slice_from_raw_parts(self.0, self.1 as usize);
            // SAFETY: leaked in `new`, and not used any more.
            drop(unsafe { Box::from_raw(entries.as_ptr()) });
        }
    }

    fn entry(number: u32) -> Cqe64 {
        let wqe = CompletedWqe {
            qpn: number,
            user_index: number ^ 0xff_ffff,
            wqe_counter: number as u16,
        };
        Cqe64::requester(wqe, 0x10, number).with_timestamp(u64::from(number) << 20)
    }

    #[test]
    fn plain_entries_are_the_same_as_those_put_together() {
        let ring = Ring::new(2);
        for number in [0, 1, 0x12_3456, 0xff_ffff, u32::MAX] {
            let wqe = CompletedWqe {
                qpn: number & LOW_24,
                user_index: number.wrapping_mul(7),
                wqe_counter: (number >> 3) as u16,
            };
            let (imm, kind) = (Be32::new(!number), CqeOpcode::RespSendImm);
            let solicited = number & 1 != 0;
            let received = Cqe64::responder(kind, wqe, number)
                .with_imm(imm)
                .with_solicited(solicited);
            let pairs = [
                (
                    PlainCqe::responder(kind, wqe, number, imm, solicited),
                    received,
                ),
                (
                    PlainCqe::requester(wqe, 0x0a, number),
                    Cqe64::requester(wqe, 0x0a, number),
                ),
            ];
            let (short, payload) = (PlainCqe::requester(wqe, 0x0a, 7).with_inline(), [9; 7]);
            // SAFETY: in the ring, which only this thread uses.
            let written = unsafe {
                let fill = |head: NonNull<[u8; 32]>| head.cast().write(payload);
                Cqe64::publish_inline(ring.slot(0), &short, short.op_own(), fill);
                ring.slot(0).read()
            };
            let expected = Cqe64::requester(wqe, 0x0a, 0).with_inline(&payload);
            assert_eq!(Some(written), expected);
            for (plain, entry) in pairs {
                assert_eq!(plain.op_own(), entry.op_own());
                let op_own = plain.op_own() | 1;
                // SAFETY: in the ring, which only this thread uses.
                let [written, expected] = unsafe {
                    Cqe64::publish_plain(ring.slot(0), &plain, op_own);
                    Cqe64::publish(ring.slot(1), &entry, op_own);
                    [0, 1].map(|at| ring.slot(at).read().to_bytes())
                };
                assert_eq!(written, expected);
            }
        }
        ring.free();
    }

    #[test]
    fn a_fresh_ring_is_the_devices_on_every_lap() {
        for op_own in 0..=u8::MAX {
            for (ci, lap) in [(0, 0), (3, 0), (4, 1), (7, 1), (8, 0), (u32::MAX, 1)] {
                let expected = op_own >> 4 != 0xf && op_own & 1 == lap;
                assert_eq!(is_sw_owned(op_own, ci, 4), expected, "{op_own:#x} {ci}");
            }
        }
        let ring = Ring::new(4);
        for ci in 0..16 {
            // SAFETY: in the ring, which only this thread uses.
            assert_eq!(unsafe { Cqe64::read_owned(ring.slot(ci), ci, 4) }, None);
        }
        ring.free();
    }

    #[test]
    fn laps_alternate_and_moved_entries_take_their_places_bit() {
        let ring = Ring::new(4);
        for index in 0..64 {
            let slot = ring.slot(index);
            let cqe = entry(index);
            // SAFETY: a single thread, which writes each CQE only when it belongs to the device.
            unsafe {
                assert_eq!(Cqe64::read_owned(slot, index, 4), None, "last lap's entry");
                Cqe64::publish(slot, &cqe, cqe.op_own() | owner_bit(index, 4));
                let read = Cqe64::read_owned(slot, index, 4).expect("just written");
                assert_eq!((read.qpn(), read.owner()), (index, owner_bit(index, 4)));
            }
        }
        // CQEs 60 to 63 are unread. 62 and 63 are moved as if 64 and 65 had been written too.
        for (from, to) in [(63, 65), (62, 64)] {
            // SAFETY: a single thread uses the ring.
            unsafe {
                Cqe64::move_entry(ring.slot(from), ring.slot(to), to, 4);
                let moved = Cqe64::read_owned(ring.slot(to), to, 4).expect("of the next lap");
                assert_eq!(moved.qpn(), from);
                assert_eq!(Cqe64::read_owned(ring.slot(to), to - 4, 4), None);
            }
        }
        ring.free();
    }

    /// Under Miri this finds any access that the owner bit does not order.
    #[test]
    fn a_writer_and_a_reader_agree_on_every_byte() {
        const COUNT: u32 = if cfg!(miri) { 40 } else { 100_000 };
        const CQE_CNT: u32 = 8;
        let ring = Ring::new(CQE_CNT);
        let record = AtomicU32::new(0);
        let given_back = &record;
        thread::scope(|scope| {
            scope.spawn(move || {
                for index in 0..COUNT {
                    // Acquire: pairs with the Release below, by which the reader returns CQEs.
                    while index.wrapping_sub(given_back.load(Ordering::Acquire)) >= CQE_CNT {
                        thread::yield_now();
                    }
                    let data: Vec<u8> = (0..index % 65).map(|i| (i ^ index) as u8).collect();
                    let cqe = Cqe128::with_inline(entry(index), &data).expect("fits");
                    let op_own = cqe.cqe.op_own() | owner_bit(index, CQE_CNT);
                    // SAFETY: the consumer index says that the CQE belongs to the writer.
                    unsafe { Cqe128::publish(ring.slot(index), &cqe, op_own) };
                }
            });
            for ci in 0..COUNT {
                let slot = ring.slot(ci);
                let cqe = loop {
                    // SAFETY: in the ring; not used after the store below.
                    match unsafe { Cqe64::read_owned(slot, ci, CQE_CNT) } {
                        Some(cqe) => break cqe,
                        None => thread::yield_now(),
                    }
                };
                assert_eq!((cqe.qpn(), cqe.wqe_counter()), (ci, ci as u16));
                assert_eq!(cqe.timestamp(), u64::from(ci) << 20);
                assert_eq!(cqe.user_index(), ci ^ 0xff_ffff);
                // SAFETY: the CQE belongs to the reader, and the ring's CQEs have 128 bytes.
                let data = unsafe { Cqe128::around(slot) }.inline_data();
                assert_eq!(data.len() as u32, ci % 65);
                assert!((0..).zip(data).all(|(i, &byte)| byte == (i ^ ci) as u8));
                // Release: pairs with the Acquire in the writer.
                record.store(ci + 1, Ordering::Release);
            }
        });
        ring.free();
    }
}
