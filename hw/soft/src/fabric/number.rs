//! The number of a request between two processes.

/// The number of a request in its life, and the life of the requester's queue pair to which it belongs: one word of a
/// packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Number(u32);

impl Number {
    /// Of a packet that belongs to no request.
    pub const NONE: Self = Self(0);

    #[inline(always)]
    pub fn new(life: u16, msn: u16) -> Self {
        Self(u32::from(msn) << 16 | u32::from(life))
    }

    #[inline(always)]
    pub fn of_word(word: u32) -> Self {
        Self(word)
    }

    #[inline(always)]
    pub fn word(self) -> u32 {
        self.0
    }

    #[inline(always)]
    pub fn life(self) -> u16 {
        self.0 as u16
    }

    #[inline(always)]
    pub fn msn(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// The next one of its life.
    #[inline(always)]
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1 << 16))
    }

    /// The one before it.
    #[inline(always)]
    pub fn previous(self) -> Self {
        Self(self.0.wrapping_sub(1 << 16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_wrap_round_in_their_life() {
        let last = Number::new(7, u16::MAX);
        assert_eq!((last.life(), last.msn()), (7, u16::MAX));
        assert_eq!(last.next(), Number::new(7, 0));
        assert_eq!(last.next().previous(), last);
        assert_eq!(Number::of_word(last.word()), last);
    }
}
