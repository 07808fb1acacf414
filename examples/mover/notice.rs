//! What comes behind each block: a header, written by the WRITE_WITH_IMM that announces it. Its
//! immediate data is its number, so that a notice that comes twice is recognised: of a notice whose outcome is
//! in doubt the sender cannot know whether it came, and it posts it again.

/// What the sender announces to the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// So many bytes are in the next block.
    Data(u32),
    /// That was all.
    End(Trailer),
}

/// Length and checksum of the whole file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trailer {
    pub length: u64,
    pub checksum: u128,
}

/// Blocks are no longer than this, so that an immediate's and a length's 32 bits do.
pub const MAX_BLOCK: u64 = 1 << 30;

/// In a header's first word, above the length.
const DATA: u64 = 1 << 62;
const END: u64 = 1 << 63;

impl Notice {
    /// Bytes of a header: kind and length, checksum. Fits inline in an entry of one block.
    pub const SIZE: usize = 24;

    /// As it travels.
    pub fn encode(self) -> [u8; Self::SIZE] {
        let (word, checksum) = match self {
            Self::Data(length) => (DATA | u64::from(length), 0),
            Self::End(Trailer { length, checksum }) => (END | length, checksum),
        };
        let mut bytes = [0; Self::SIZE];
        bytes[..8].copy_from_slice(&word.to_be_bytes());
        bytes[8..].copy_from_slice(&checksum.to_be_bytes());
        bytes
    }

    /// What came, if it is one: a length has to be within the block.
    pub fn decode(bytes: &[u8; Self::SIZE], block: usize) -> Option<Self> {
        let (mut word, mut checksum) = ([0; 8], [0; 16]);
        word.copy_from_slice(&bytes[..8]);
        checksum.copy_from_slice(&bytes[8..]);
        let word = u64::from_be_bytes(word);
        let (kind, length) = (word & (DATA | END), word & !(DATA | END));
        match kind {
            DATA if length <= block as u64 => Some(Self::Data(u32::try_from(length).ok()?)),
            END => Some(Self::End(Trailer {
                length,
                checksum: u128::from_be_bytes(checksum),
            })),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_arrive_as_they_were_sent() {
        let trailer = Trailer {
            length: 3,
            checksum: u128::MAX - 5,
        };
        for notice in [Notice::Data(0), Notice::Data(4096), Notice::End(trailer)] {
            assert_eq!(Notice::decode(&notice.encode(), 4096), Some(notice));
        }
    }

    #[test]
    fn what_cannot_be_is_no_notice() {
        assert_eq!(Notice::decode(&Notice::Data(4097).encode(), 4096), None);
        assert_eq!(Notice::decode(&[0; Notice::SIZE], 4096), None);
        assert_eq!(Notice::decode(&[0xff; Notice::SIZE], 4096), None);
    }
}
