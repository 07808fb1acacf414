//! Numbers that look random.

/// xorshift64*: numbers are to look random, which is all that is asked of them.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        // Spread over all the bits, and not zero.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }
}
