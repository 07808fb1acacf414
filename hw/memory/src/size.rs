//! Human-readable byte counts.

use std::fmt;

/// A number of bytes, printed in the largest binary unit that it reaches: `64 KiB`, `1.5 GiB`.
pub(super) struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let unit = (self.0.ilog2() / 10) as usize;
        let name = UNITS[unit - 1];
        let one = 1u64 << (10 * unit);
        if self.0.is_multiple_of(one) {
            return write!(f, "{} {name}", self.0 / one);
        }
        // Tenths, truncated rather than rounded: a length just below a limit must not print as the limit.
        let tenths = u128::from(self.0) * 10 / u128::from(one);
        write!(f, "{}.{} {name}", tenths / 10, tenths % 10)
    }
}

#[cfg(test)]
mod tests {
    use super::Size;

    #[test]
    fn prints_the_largest_unit_that_is_filled() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (64 << 10, "64 KiB"),
            (128 << 20, "128 MiB"),
            (3 << 29, "1.5 GiB"),
            ((1 << 20) - 1, "1023.9 KiB"),
            (u64::MAX, "15.9 EiB"),
            (1 << 63, "8 EiB"),
        ] {
            assert_eq!(Size(bytes).to_string(), text, "{bytes}");
        }
    }
}
