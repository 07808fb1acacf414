//! Entries in the ring that the device and the consumer share.

use super::{Cqe64, Cqe128, CqeOpcode};
use crate::barrier;
// Not `crate::sync`: the words lie in memory that a device shares, where loom's cannot.
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

/// The last byte of an entry that no lap takes for written.
const NOT_WRITTEN: u8 = CqeOpcode::Invalid.number() << 4;

/// The index of the 8-byte word that ends with `op_own`.
const LAST_WORD: usize = size_of::<Cqe64>() / 8 - 1;

/// The owner bit that the device writes in the entry with free-running index `index`: 0 on the
/// first lap, 1 on the second, and so on. `cqe_cnt` is a power of two.
#[inline(always)]
pub const fn owner_bit(index: u32, cqe_cnt: u32) -> u8 {
    (index & cqe_cnt != 0) as u8
}

/// Whether the device has written the entry that `ci` falls on, so that it is the consumer's.
/// `cqe_cnt` is a power of two.
#[inline(always)]
pub const fn is_sw_owned(op_own: u8, ci: u32, cqe_cnt: u32) -> bool {
    op_own & 0xf0 != NOT_WRITTEN && op_own & 1 == owner_bit(ci, cqe_cnt)
}

/// The word that ends with `op_own`. Both sides use this one size: atomics of different sizes over
/// the same memory are a race.
///
/// # Safety
/// `slot` is valid for reads and writes for `'a`, and all others use the word by this function, or
/// at times that are ordered.
#[inline(always)]
unsafe fn last_word<'a>(slot: NonNull<Cqe64>) -> &'a AtomicU64 {
    // SAFETY: within the entry and aligned; validity and the others' use are the caller's promise.
    unsafe { AtomicU64::from_ptr(slot.cast::<u64>().add(LAST_WORD).as_ptr()) }
}

impl Cqe64 {
    /// Marks the entry as not written. To be done to every entry of a fresh ring.
    ///
    /// # Safety
    /// `slot` is valid for writes, and the entry is not the device's: it does not use the ring yet, or
    /// has handed the entry over and did not get it back.
    #[inline(always)]
    pub unsafe fn init(slot: NonNull<Self>) {
        let mut bytes = [0; 64];
        bytes[63] = NOT_WRITTEN;
        // SAFETY: the caller's promise.
        unsafe { slot.write(Self::from_bytes(bytes)) };
    }

    /// The entry that `ci` falls on, if the device has written it. Costs a load of the last word.
    ///
    /// # Safety
    /// - `slot` is entry `ci & (cqe_cnt - 1)` of a ring of `cqe_cnt` (a power of two) entries, all of
    ///   which were once [`init`](Self::init)ialised, and is valid for `'a`.
    /// - The reference is not used once the entry is given back, by a consumer record past `ci`:
    ///   from then on the device may write it.
    #[inline(always)]
    pub unsafe fn read_owned<'a>(slot: NonNull<Self>, ci: u32, cqe_cnt: u32) -> Option<&'a Self> {
        // SAFETY: the caller's promise.
        let op_own = unsafe { Self::peek(slot) };
        // SAFETY: as above, and owned.
        is_sw_owned(op_own, ci, cqe_cnt).then(|| unsafe { Self::read(slot) })
    }

    /// The last byte of an entry, which says whether it was written: a load of the last word.
    ///
    /// # Safety
    /// As [`read_owned`](Self::read_owned).
    #[inline(always)]
    pub(crate) unsafe fn peek(slot: NonNull<Self>) -> u8 {
        // SAFETY: valid, and the device writes the word as a whole.
        let word = unsafe { last_word(slot) };
        // Relaxed: the barrier in `read` makes it the partner of the Release store in `publish`.
        word.load(Ordering::Relaxed).to_ne_bytes()[7]
    }

    /// An entry that was found written.
    ///
    /// # Safety
    /// As [`read_owned`](Self::read_owned), and [`is_sw_owned`] said so of what [`peek`](Self::peek) gave.
    #[inline(always)]
    pub(crate) unsafe fn read<'a>(slot: NonNull<Self>) -> &'a Self {
        barrier::from_device();
        // SAFETY: the device does not write what it has handed over until it gets it back.
        unsafe { slot.as_ref() }
    }

    /// Writes `entry` as a device does: its last word, with `op_own` in place of the entry's own
    /// last byte, after all else. `op_own` is `entry.op_own() | owner_bit(index, cqe_cnt)`.
    ///
    /// # Safety
    /// `slot` is valid for writes, and the device's: never written, or given back by a consumer
    /// record that was read with Acquire. One thread writes it at a time.
    #[inline(always)]
    pub unsafe fn publish(slot: NonNull<Self>, entry: &Self, op_own: u8) {
        let mut entry = *entry;
        entry.op_own = op_own;
        // SAFETY: 64 bytes without padding, of which every bit pattern is valid.
        let words: [u64; 8] = unsafe { core::mem::transmute(entry) };
        // SAFETY: the caller's promise; the consumer does not read the body before the last word.
        unsafe {
            slot.cast::<u64>()
                .as_ptr()
                .copy_from_nonoverlapping(words.as_ptr(), LAST_WORD);
        }
        // SAFETY: as above; the consumer reads the word as a whole.
        // Release: partner of the load and barrier in `read_owned`.
        unsafe { last_word(slot) }.store(words[LAST_WORD], Ordering::Release);
    }

    /// Copies the descriptor in `from` to `to`, with the owner bit that `index` needs in its new
    /// place.
    ///
    /// # Safety
    /// Both slots are valid, and the caller's: handed over by the device and not given back.
    #[inline(always)]
    pub unsafe fn move_entry(from: NonNull<Self>, to: NonNull<Self>, index: u32, cqe_cnt: u32) {
        // SAFETY: the caller's promise.
        let mut entry = unsafe { from.read() };
        entry.op_own = entry.op_own & !1 | owner_bit(index, cqe_cnt);
        // SAFETY: as above.
        unsafe { to.write(entry) };
    }
}

impl Cqe128 {
    /// As [`Cqe64::publish`], for an entry of 128 bytes, whose descriptor is `slot`.
    ///
    /// # Safety
    /// As there, for the whole entry.
    #[inline(always)]
    pub unsafe fn publish(slot: NonNull<Cqe64>, entry: &Self, op_own: u8) {
        // SAFETY: the 64 bytes before the descriptor are the entry's, by the caller's promise.
        unsafe { slot.sub(1).cast().write(entry.payload) };
        // SAFETY: the caller's promise.
        unsafe { Cqe64::publish(slot, &entry.cqe, op_own) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::CompletedWqe;
    use super::*;
    use core::sync::atomic::AtomicU32;
    use std::{boxed::Box, thread, vec, vec::Vec};

    /// A ring of 128-byte entries of which only the descriptors may be in use.
    #[derive(Clone, Copy)]
    struct Ring(NonNull<Cqe128>, u32);
    // SAFETY: the tests use an entry from one thread at a time, as the owner bit says.
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
                // SAFETY: nobody else uses the ring yet.
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
            // SAFETY: one thread, which writes each entry when it is the device's.
            unsafe {
                assert_eq!(Cqe64::read_owned(slot, index, 4), None, "last lap's entry");
                Cqe64::publish(slot, &cqe, cqe.op_own() | owner_bit(index, 4));
                let read = Cqe64::read_owned(slot, index, 4).expect("just written");
                assert_eq!((read.qpn(), read.owner()), (index, owner_bit(index, 4)));
            }
        }
        // Entries 60 to 63 are unread. 62 and 63 close up as if 64 and 65 had been written too.
        for (from, to) in [(63, 65), (62, 64)] {
            // SAFETY: one thread.
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
        const COUNT: u32 = if cfg!(miri) { 100 } else { 100_000 };
        const CQE_CNT: u32 = 8;
        let ring = Ring::new(CQE_CNT);
        let record = AtomicU32::new(0);
        let given_back = &record;
        thread::scope(|scope| {
            scope.spawn(move || {
                for index in 0..COUNT {
                    // Acquire: partner of the reader's Release, which gives entries back.
                    while index.wrapping_sub(given_back.load(Ordering::Acquire)) >= CQE_CNT {
                        thread::yield_now();
                    }
                    let data: Vec<u8> = (0..index % 65).map(|i| (i ^ index) as u8).collect();
                    let cqe = Cqe128::with_inline(entry(index), &data).expect("fits");
                    let op_own = cqe.cqe.op_own() | owner_bit(index, CQE_CNT);
                    // SAFETY: the record says that the entry is the writer's.
                    unsafe { Cqe128::publish(ring.slot(index), &cqe, op_own) };
                }
            });
            for ci in 0..COUNT {
                let slot = ring.slot(ci);
                let cqe = loop {
                    // SAFETY: in the ring; not used past the store below.
                    match unsafe { Cqe64::read_owned(slot, ci, CQE_CNT) } {
                        Some(cqe) => break cqe,
                        None => thread::yield_now(),
                    }
                };
                assert_eq!((cqe.qpn(), cqe.wqe_counter()), (ci, ci as u16));
                assert_eq!(cqe.timestamp(), u64::from(ci) << 20);
                assert_eq!(cqe.user_index(), ci ^ 0xff_ffff);
                // SAFETY: the entry is the reader's, and the ring's entries are of 128 bytes.
                let data = unsafe { Cqe128::around(slot) }.inline_data();
                assert_eq!(data.len() as u32, ci % 65);
                assert!((0..).zip(data).all(|(i, &byte)| byte == (i ^ ci) as u8));
                // Release: partner of the writer's Acquire.
                record.store(ci + 1, Ordering::Release);
            }
        });
        ring.free();
    }
}
