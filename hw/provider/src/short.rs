//! Short texts that need no memory.

use std::fmt::{self, Write};
use std::ops::Deref;

/// A text of at most `N` bytes, on the stack.
#[derive(Clone, Copy)]
pub struct Short<const N: usize> {
    bytes: [u8; N],
    used: usize,
}

impl<const N: usize> Short<N> {
    /// The text, which ends before the first piece that has no room.
    pub fn new(text: fmt::Arguments<'_>) -> Self {
        let mut short = Self {
            bytes: [0; N],
            used: 0,
        };
        let _ = short.write_fmt(text);
        short
    }
}

impl<const N: usize> Write for Short<N> {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        let end = self.used + piece.len();
        let room = self.bytes.get_mut(self.used..end).ok_or(fmt::Error)?;
        room.copy_from_slice(piece.as_bytes());
        self.used = end;
        Ok(())
    }
}

impl<const N: usize> Deref for Short<N> {
    type Target = str;

    fn deref(&self) -> &str {
        // Whole pieces are written, so the bytes are always a text.
        str::from_utf8(&self.bytes[..self.used]).unwrap_or_default()
    }
}

impl<const N: usize> PartialEq for Short<N> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<const N: usize> Eq for Short<N> {}

impl<const N: usize> PartialOrd for Short<N> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<const N: usize> Ord for Short<N> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (**self).cmp(&**other)
    }
}

impl<const N: usize> fmt::Debug for Short<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl<const N: usize> fmt::Display for Short<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

/// The text in memory of its own. Where there is none for a piece, the text ends before that piece.
pub fn text(text: fmt::Arguments<'_>) -> String {
    struct Soft(String);

    impl Write for Soft {
        fn write_str(&mut self, piece: &str) -> fmt::Result {
            self.0.try_reserve(piece.len()).map_err(|_| fmt::Error)?;
            self.0.push_str(piece);
            Ok(())
        }
    }

    let mut soft = Soft(String::new());
    let _ = soft.write_fmt(text);
    soft.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_without_room_ends_before_the_piece() {
        // Not constants, which would be one piece.
        let (number, name) = std::hint::black_box((12, "äöx"));
        let args = format_args!("{number}/{name}");
        assert_eq!(&*Short::<8>::new(args), "12/äöx");
        assert_eq!(&*Short::<7>::new(args), "12/");
        assert_eq!(&*Short::<0>::new(args), "");
        assert_eq!(text(args), "12/äöx");
    }
}
