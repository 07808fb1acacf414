//! Free-running indexes over rings whose size is a power of two.

use core::fmt;

/// The size of a ring: a power of two, from 1 to 2³¹ slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct RingSize(u32);

/// A number of slots that a ring cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSizeError {
    /// The requested number of slots.
    pub slots: usize,
}

impl fmt::Display for RingSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a ring cannot have {} slots: give it a power of two from 1 to {}",
            self.slots,
            RingSize::MAX
        )
    }
}

impl core::error::Error for RingSizeError {}

impl RingSize {
    /// The most slots. With more, a full ring could not be distinguished from an empty one after
    /// the indexes have wrapped.
    pub const MAX: u32 = 1 << 31;

    /// The size of a ring of `slots` slots.
    ///
    /// # Errors
    /// When `slots` is zero, not a power of two, or above [`RingSize::MAX`].
    pub const fn new(slots: usize) -> Result<Self, RingSizeError> {
        if slots.is_power_of_two() && slots <= Self::MAX as usize {
            Ok(Self(slots as u32))
        } else {
            Err(RingSizeError { slots })
        }
    }

    /// The number of slots.
    #[inline(always)]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// A free-running index: counts every slot passed, modulo 2³², and is masked to a slot number only
/// where it is used.
///
/// ```text
/// index    31 ........ n+1 | n      | n-1 ...... 0
///          further laps    | lap    | slot               ring of 2ⁿ slots
/// ```
///
/// Device counters are such indexes truncated to their low 16 bits (`wqe_counter`, the send
/// doorbell record) or 24 bits (the consumer index of a completion queue).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Cursor(u32);

impl Cursor {
    /// The cursor at this free-running index.
    #[inline(always)]
    pub const fn new(index: u32) -> Self {
        Self(index)
    }

    /// The free-running index.
    #[inline(always)]
    pub const fn index(self) -> u32 {
        self.0
    }

    /// The cursor advanced by `slots`.
    #[inline(always)]
    #[must_use]
    pub const fn advance(self, slots: u32) -> Self {
        Self(self.0.wrapping_add(slots))
    }

    /// The slot number, which is less than the ring's size.
    #[inline(always)]
    pub const fn slot(self, size: RingSize) -> usize {
        (self.0 & (size.0 - 1)) as usize
    }

    /// Whether this lap around the ring is an odd one; the first is lap 0. A CQE belongs to
    /// software when its owner bit equals this (rdma-core, `providers/mlx5/cq.c`, `get_sw_cqe`).
    #[inline(always)]
    pub const fn odd_lap(self, size: RingSize) -> bool {
        self.0 & size.0 != 0
    }

    /// The number of slots from `earlier` up to this cursor.
    #[inline(always)]
    pub const fn distance(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// The number of slots from this one, inclusive, to the end of the ring's memory: at least one.
    #[inline(always)]
    pub const fn run(self, size: RingSize) -> u32 {
        size.0 - (self.0 & (size.0 - 1))
    }

    /// The low `BITS` bits of the index, as in a device's counter of that width.
    #[inline(always)]
    pub const fn low<const BITS: u32>(self) -> u32 {
        self.0 & low_mask::<BITS>()
    }

    /// The first cursor at or after this one whose low `BITS` bits are those of `counter`: the
    /// index that a device's counter stands for, if it is less than 2^`BITS` ahead of this cursor.
    /// Check the distance before using it.
    #[inline(always)]
    #[must_use]
    pub const fn first_at<const BITS: u32>(self, counter: u32) -> Self {
        self.advance(counter.wrapping_sub(self.0) & low_mask::<BITS>())
    }
}

#[inline(always)]
const fn low_mask<const BITS: u32>() -> u32 {
    const { assert!(BITS >= 1 && BITS <= 32) };
    u32::MAX >> (32 - BITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    const SIZE: RingSize = match RingSize::new(8) {
        Ok(size) => size,
        Err(_) => panic!(),
    };

    #[test]
    fn sizes_are_powers_of_two() {
        for slots in [1, 2, 64, 1 << 31] {
            assert_eq!(RingSize::new(slots).unwrap().get() as usize, slots);
        }
        for slots in [0, 3, 12, (1 << 31) + 1, 1 << 32, usize::MAX] {
            let error = RingSize::new(slots).unwrap_err();
            assert_eq!(error, RingSizeError { slots });
            assert!(error.to_string().contains(&slots.to_string()));
        }
    }

    #[test]
    fn slots_and_laps_go_on_over_the_wrap_of_the_index() {
        let mut cursor = Cursor::new(u32::MAX - 20);
        for _ in 0..40 {
            let next = cursor.advance(1);
            assert_eq!(next.slot(SIZE), (cursor.slot(SIZE) + 1) % 8);
            assert_eq!(
                next.odd_lap(SIZE),
                cursor.odd_lap(SIZE) ^ (next.slot(SIZE) == 0)
            );
            assert_eq!(next.distance(cursor), 1);
            assert_eq!(cursor.run(SIZE) as usize, 8 - cursor.slot(SIZE));
            cursor = next;
        }
        assert_eq!(cursor.index(), 19);
        assert_eq!(cursor.distance(Cursor::new(u32::MAX - 20)), 40);
    }

    #[test]
    fn owner_bit_of_the_first_laps() {
        let laps = [0, 7, 8, 15, 16].map(|index| Cursor::new(index).odd_lap(SIZE));
        assert_eq!(laps, [false, false, true, true, false]);
    }

    #[test]
    fn the_smallest_and_the_largest_ring() {
        let one = RingSize::new(1).unwrap();
        assert_eq!(
            (
                Cursor::new(u32::MAX).slot(one),
                Cursor::new(u32::MAX).run(one)
            ),
            (0, 1)
        );
        assert!(Cursor::new(1).odd_lap(one) && !Cursor::new(2).odd_lap(one));
        let largest = RingSize::new(1 << 31).unwrap();
        assert_eq!(Cursor::new(u32::MAX).slot(largest), (1 << 31) - 1);
        assert_eq!(Cursor::new(u32::MAX).run(largest), 1);
        assert_eq!(Cursor::new(0).run(largest), 1 << 31);
        assert!(Cursor::new(u32::MAX).odd_lap(largest));
    }

    #[test]
    fn device_counters_are_cut_and_found_again() {
        for start in [0, 0xfffe, 0xff_fffe, u32::MAX - 1] {
            let cursor = Cursor::new(start);
            for ahead in [0, 1, 2, 3, 0xffff] {
                let target = cursor.advance(ahead);
                assert_eq!(cursor.first_at::<16>(target.low::<16>()), target);
                assert_eq!(cursor.first_at::<24>(target.low::<24>()), target);
                assert_eq!(cursor.first_at::<32>(target.low::<32>()), target);
            }
        }
        assert_eq!(Cursor::new(0x1234_5678).low::<16>(), 0x5678);
        assert_eq!(Cursor::new(0x1234_5678).low::<24>(), 0x34_5678);
        // A counter that is one behind reads as almost a whole turn ahead, which the caller's
        // distance check rejects.
        assert_eq!(
            Cursor::new(9).first_at::<16>(8).distance(Cursor::new(9)),
            0xffff
        );
    }
}
