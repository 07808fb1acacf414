//! Packet sequence numbers: 24 bits, which wrap.

use core::fmt;

/// The bits of a packet sequence number.
const BITS: u32 = 0xff_ffff;

/// A packet sequence number (IBTA volume 1, chapter 9, "Packet Sequence Numbers").
///
/// Two numbers compare by their distance, which is right as long as they are less than [`Psn::HALF`] apart. A
/// [`Requester`](crate::Requester) has fewer packets outstanding. A responder takes a packet for a duplicate if its number
/// is up to [`Psn::HALF`] before the expected one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// Half of all numbers.
    pub const HALF: u32 = 1 << 23;

    /// The number in the lowest 24 bits; the others are ignored.
    pub const fn new(number: u32) -> Self {
        Self(number & BITS)
    }

    /// The number, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number `count` packets later.
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self::new(self.0.wrapping_add(count))
    }

    /// The number one packet earlier.
    #[must_use]
    pub const fn before(self) -> Self {
        Self::new(self.0.wrapping_sub(1))
    }

    /// Packets from `earlier` to this number: below zero if this number comes first. At least `-HALF`, below `HALF`.
    pub const fn since(self, earlier: Self) -> i32 {
        // The difference is in the upper 24 bits, so that the shift back extends its sign.
        (self.0.wrapping_sub(earlier.0) << 8).cast_signed() >> 8
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn distances_survive_the_wrap(start in 0..=BITS, count in 0..Psn::HALF) {
            let start = Psn::new(start);
            let end = start.plus(count);
            prop_assert_eq!(end.since(start), count.cast_signed());
            prop_assert_eq!(start.since(end), -count.cast_signed());
            prop_assert_eq!(start.plus(1).before(), start);
        }
    }

    #[test]
    fn the_edges() {
        assert_eq!(Psn::new(0).before(), Psn::new(BITS));
        assert_eq!(Psn::new(BITS).plus(1), Psn::new(0));
        assert_eq!(
            Psn::new(Psn::HALF).since(Psn::new(0)),
            -Psn::HALF.cast_signed()
        );
        assert_eq!(Psn::new(0x1234_5678).get(), 0x34_5678);
    }
}
