//! Initial packet sequence numbers.

use super::entropy;

/// The bits of a packet sequence number.
pub const PSN: u32 = 0xff_ffff;

/// A random PSN, for the first packet that a queue pair sends in a life: from creation, or RESET, to the next RESET.
///
/// A packet of an earlier connection may arrive after both ends have been reset and connected again. It has the same
/// queue pair numbers, so its PSN alone tells it from the packets of the present connection.
pub fn random_psn() -> u32 {
    entropy::draw() as u32 & PSN
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn numbers_have_24_bits_and_differ() {
        let drawn: HashSet<_> = (0..1000).map(|_| random_psn()).collect();
        assert!(drawn.iter().all(|psn| psn & !PSN == 0));
        // Of 1000 random numbers, 0.03 collide on average.
        assert!(drawn.len() >= 990, "{} of 1000", drawn.len());
        assert!(drawn.iter().any(|psn| psn >> 16 != 0) && drawn.iter().any(|psn| psn & 1 != 0));
    }
}
