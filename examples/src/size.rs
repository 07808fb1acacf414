//! Sizes as people write them: `8`, `4k`, `1m`.

use std::fmt;

const UNITS: [(&str, u32); 4] = [("", 0), ("k", 10), ("m", 20), ("g", 30)];

/// Reads a size: a whole number of bytes, or of KiB, MiB or GiB with `k`, `m` or `g` (also written
/// `K`, `KiB`) behind it.
///
/// # Errors
/// A text for people, when it is anything else.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[digits.len()..].to_ascii_lowercase();
    let unit = unit.strip_suffix("ib").unwrap_or(&unit);
    let shift = UNITS.iter().find(|(name, _)| *name == unit).map(|u| u.1);
    let number = digits
        .bytes()
        .all(|b| b.is_ascii_digit())
        .then(|| digits.parse::<u64>().ok())
        .flatten();
    let bytes = number.zip(shift).and_then(|(n, s)| n.checked_mul(1 << s));
    bytes.ok_or_else(|| format!("{text:?} is not a size: write bytes, or 4k, 1m, 2g"))
}

/// A number of bytes, shown in the largest unit that divides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |shift: u32| self.0 != 0 && self.0.is_multiple_of(1 << shift);
        let text = match self.0 {
            n if whole(30) => format!("{}g", n >> 30),
            n if whole(20) => format!("{}m", n >> 20),
            n if whole(10) => format!("{}k", n >> 10),
            n => n.to_string(),
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [
            ("0", 0),
            ("8", 8),
            ("4k", 4096),
            ("4K", 4096),
            ("4KiB", 4096),
            ("1m", 1 << 20),
            ("3g", 3 << 30),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "k",
            "-1",
            "+1",
            "1.5k",
            "4kb",
            "4 k",
            "ib",
            "4ki",
            "1x",
            "1mé",
            "17179869184g",
            "18446744073709551616",
        ] {
            let error = parse_size(text).unwrap_err();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }

    #[test]
    fn what_is_shown_can_be_read_again() {
        for bytes in [0, 1, 1023, 1024, 4097, 3 << 20, 1 << 30, u64::MAX] {
            assert_eq!(parse_size(&Size(bytes).to_string()), Ok(bytes));
        }
    }
}
