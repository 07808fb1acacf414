//! What messages hold, and whether what came is that.

use anyhow::{Result, bail};

/// 0 stands at the start of each of these, as rdma-core's servers check with -c; its bytes are as many
/// as the smallest page has.
const PAGE: usize = 4096;

/// Messages differ in their first byte behind a page's start, up to this many of them.
const TURNS: usize = 251;

/// What rdma-core's clients fill their messages with: ibv_srq_pingpong's with 0.
const FILLS: [u8; 2] = [0x7b, 0];

/// What a receive's memory holds before a message comes.
pub const POISON: u8 = 0xff;

/// What messages of a size hold.
#[derive(Clone, Debug)]
pub enum Content {
    /// Of this program's client: message n is `pattern` from n on.
    Ours { pattern: Vec<u8>, size: usize },
    /// Of rdma-core's client: always the same.
    Same(Vec<u8>),
}

impl Content {
    /// This program's.
    pub fn ours(size: usize) -> Self {
        let byte = |at: usize| (at % TURNS + at / TURNS * 7 + 1) as u8;
        Self::Ours {
            pattern: (0..size + TURNS).map(byte).collect(),
            size,
        }
    }

    /// That of the client whose first message this is.
    ///
    /// # Errors
    /// When it is of no client that is known.
    pub fn of(first: &[u8]) -> Result<Self> {
        let ours = Self::ours(first.len());
        if ours.check(0, first).is_ok() {
            return Ok(ours);
        }
        for fill in FILLS {
            let theirs =
                |(at, byte): (usize, &u8)| *byte == fill || *byte == 0 && at.is_multiple_of(PAGE);
            if first.iter().enumerate().all(theirs) {
                return Ok(Self::Same(first.to_vec()));
            }
        }
        let start = &first[..first.len().min(16)];
        bail!("the first message is of no pingpong's client, it begins with {start:02x?}")
    }

    /// Message `n`, in parts: where each is, and what it holds.
    fn parts(&self, n: u64) -> impl Iterator<Item = (usize, &[u8])> {
        let (whole, step) = match self {
            Self::Ours { pattern, size } => {
                let from = (n % TURNS as u64) as usize;
                (&pattern[from..from + size], PAGE)
            }
            Self::Same(all) => (all.as_slice(), all.len().max(1)),
        };
        let marked = matches!(self, Self::Ours { .. });
        whole
            .chunks(step)
            .enumerate()
            .flat_map(move |(index, part)| {
                let at = index * step;
                let (first, rest) = part.split_at(usize::from(marked));
                let first = if marked { &[0][..] } else { first };
                [(at, first), (at + first.len(), rest)]
            })
    }

    /// Writes message `n`.
    pub fn write(&self, n: u64, mut put: impl FnMut(usize, &[u8])) {
        self.parts(n).for_each(|(at, part)| put(at, part));
    }

    /// Whether this is message `n`.
    ///
    /// # Errors
    /// Says where it differs.
    pub fn check(&self, n: u64, message: &[u8]) -> Result<()> {
        for (at, part) in self.parts(n) {
            let came = &message[at..at + part.len()];
            if came != part {
                let differs = came.iter().zip(part).position(|(a, b)| a != b);
                let byte = differs.unwrap_or(0);
                bail!(
                    "byte {} of message {n} is {:#04x} instead of {:#04x}: the data is wrong",
                    at + byte,
                    came[byte],
                    part[byte]
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(content: &Content, n: u64, size: usize) -> Vec<u8> {
        let mut bytes = vec![POISON; size];
        content.write(n, |at, part| {
            bytes[at..at + part.len()].copy_from_slice(part);
        });
        bytes
    }

    #[test]
    fn what_is_written_is_what_is_checked_for() {
        for size in [1, 2, 4095, 4096, 4097, 10_000] {
            let ours = Content::ours(size);
            for n in [0, 1, 250, 251, 1 << 40] {
                let bytes = message(&ours, n, size);
                ours.check(n, &bytes).unwrap();
                for at in [0, 1, size / 2, 4096, size - 1] {
                    let mut wrong = bytes.clone();
                    if let Some(byte) = wrong.get_mut(at) {
                        *byte ^= 0x10;
                        let error = ours.check(n, &wrong).unwrap_err().to_string();
                        assert!(error.starts_with(&format!("byte {at} of")), "{error}");
                    }
                }
                assert!(ours.check(n, &vec![POISON; size]).is_err());
                if size > 1 {
                    assert!(ours.check(n + 1, &bytes).is_err(), "{size} {n}");
                }
            }
        }
    }

    #[test]
    fn their_servers_find_what_they_check_for() {
        let bytes = message(&Content::ours(10_000), 7, 10_000);
        assert_eq!([bytes[0], bytes[4096], bytes[8192]], [0; 3]);
    }

    #[test]
    fn clients_are_known_by_their_first_message() {
        let first = message(&Content::ours(5000), 0, 5000);
        let ours = Content::of(&first).unwrap();
        assert_eq!(
            message(&ours, 3, 5000),
            message(&Content::ours(5000), 3, 5000)
        );
        let mut checked = vec![0x7b; 10_000];
        (checked[0], checked[4096], checked[8192]) = (0, 0, 0);
        let large_pages = [&[0][..], &[0x7b; 9999]].concat();
        for theirs in [vec![0x7b; 10_000], vec![0; 10_000], checked, large_pages] {
            let content = Content::of(&theirs).unwrap();
            content.check(5, &theirs).unwrap();
            assert_eq!(message(&content, 9, 10_000), theirs);
            let mut wrong = theirs.clone();
            wrong[9999] ^= 1;
            assert!(content.check(5, &wrong).is_err() && Content::of(&wrong).is_err());
        }
        assert!(Content::of(&[POISON; 100]).is_err());
        for size in [1, 2] {
            for fill in FILLS {
                Content::of(&vec![fill; size]).unwrap();
            }
        }
    }
}
