//! How long a packet is, and what else its header says in the same word.

/// A word of a packet's header.
///
/// ```text
/// 31‥24 flags   23‥8 length of the payload   7 carries an acknowledgement   6‥0 length of a short SEND's data
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Size(u32);

/// The largest value of [`Size::short`].
pub const MOST_SHORT: usize = 127;

const ACK: u32 = MOST_SHORT as u32 + 1;
const LEN_AT: u32 = 8;
const FLAGS_AT: u32 = 24;

/// What [`Size::len_if`] leaves out of account.
#[derive(Clone, Copy, Debug)]
pub struct Besides(u32);

impl Besides {
    pub const NOTHING: Self = Self(0);

    /// Whether it carries an acknowledgement, and these flags.
    pub const fn ack_and(flags: u8) -> Self {
        Self(ACK | (flags as u32) << FLAGS_AT)
    }

    /// What [`Size::short`] is, too.
    pub const fn and_short(self) -> Self {
        Self(self.0 | MOST_SHORT as u32)
    }
}

impl Size {
    /// Of a packet with a payload of `len` bytes that carries no acknowledgement.
    #[inline(always)]
    pub const fn new(len: usize, flags: u8, short: u8) -> Self {
        // A sum, because so the first two are one constant.
        Self(((len as u32) << LEN_AT) + short as u32 + ((flags as u32) << FLAGS_AT))
    }

    #[inline(always)]
    pub const fn of_bits(bits: u32) -> Self {
        Self(bits)
    }

    #[inline(always)]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Of the packet, if it carries an acknowledgement, too.
    #[inline(always)]
    pub const fn with_ack(self) -> Self {
        Self(self.0 | ACK)
    }

    #[inline(always)]
    pub const fn carries_ack(self) -> bool {
        self.0 & ACK != 0
    }

    /// Length of the payload in bytes.
    #[inline(always)]
    pub const fn len(self) -> usize {
        (self.0 >> LEN_AT) as u16 as usize
    }

    /// The same, if the packet has these flags and nothing else; otherwise more than any is long. `besides` may be there or
    /// not.
    #[inline(always)]
    pub const fn len_if(self, flags: u8, besides: Besides) -> usize {
        let other = self.0 & !besides.0 ^ (flags as u32) << FLAGS_AT;
        other.rotate_right(LEN_AT) as usize
    }

    #[inline(always)]
    pub const fn flags(self) -> u8 {
        (self.0 >> FLAGS_AT) as u8
    }

    /// Whether it has one of these flags.
    #[inline(always)]
    pub const fn has(self, flags: u8) -> bool {
        self.0 & (flags as u32) << FLAGS_AT != 0
    }

    /// [`Header::short`](super::Header::short).
    #[inline(always)]
    pub const fn short(self) -> usize {
        self.0 as usize & MOST_SHORT
    }

    /// The same, if the packet has no flags and carries no acknowledgement; otherwise more than any.
    #[inline(always)]
    pub const fn short_alone(self) -> u32 {
        self.0 & (0xff << FLAGS_AT | ACK | MOST_SHORT as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_says_what_it_was_made_of() {
        let plain = Size::new(5_123, 0, 0);
        assert_eq!((plain.len(), plain.flags(), plain.short()), (5_123, 0, 0));
        assert!(!plain.carries_ack());
        let all = Size::new(usize::from(u16::MAX), 0xa5, 127).with_ack();
        assert_eq!((all.len(), all.flags(), all.short()), (65_535, 0xa5, 127));
        assert!(all.carries_ack() && all.has(0x80) && !all.has(0x5a));
        assert_eq!(Size::of_bits(all.bits()), all);
    }

    #[test]
    fn a_short_one_alone_has_no_flags_and_no_acknowledgement() {
        for short in 0..=127 {
            let size = Size::new(4 + usize::from(short), 0, short);
            assert_eq!(size.short_alone(), u32::from(short));
            assert!(size.with_ack().short_alone() > 127);
            for flag in 0..8 {
                let flagged = Size::new(size.len(), 1 << flag, short);
                assert!(flagged.short_alone() > 127);
            }
        }
    }

    #[test]
    fn with_anything_else_it_is_too_long() {
        let (len, none) = (usize::from(u16::MAX), Besides::NOTHING);
        let size = Size::new(len, 2, 0);
        assert_eq!(size.len_if(2, none), len);
        for other in [0, 1, 3, 0x82] {
            assert!(size.len_if(other, none) > len);
        }
        let besides = Besides::ack_and(8);
        for (size, same) in [
            (size.with_ack(), true),
            (Size::new(len, 10, 0), true),
            (Size::new(len, 10, 0).with_ack(), true),
            (Size::new(len, 2, 1), false),
            (Size::new(len, 2, 127), false),
        ] {
            assert!(size.len_if(2, none) > len);
            assert_eq!(size.len_if(2, besides) == len, same);
            assert_eq!(size.len_if(2, besides.and_short()), len);
        }
    }
}
