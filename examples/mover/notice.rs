//! The 32 bits of immediate data that come behind each block.

/// What the sender tells the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// So many bytes are in the next block.
    Data(u32),
    /// That was all: the trailer tells length and checksum.
    End,
    /// The sender cannot go on.
    Failed,
}

/// Blocks are no longer than this, so that larger numbers are free for the rest.
pub const MAX_BLOCK: u64 = 1 << 30;

const END: u32 = u32::MAX;
const FAILED: u32 = u32::MAX - 1;

impl Notice {
    /// As it travels.
    pub const fn encode(self) -> u32 {
        match self {
            Self::Data(length) => length,
            Self::End => END,
            Self::Failed => FAILED,
        }
    }

    /// What came, if it is one: a length has to be within the block.
    pub const fn decode(word: u32, block: usize) -> Option<Self> {
        match word {
            END => Some(Self::End),
            FAILED => Some(Self::Failed),
            length if length as usize <= block => Some(Self::Data(length)),
            _ => None,
        }
    }
}

/// Length and checksum of the whole file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    pub length: u64,
    pub checksum: u128,
}

impl Trailer {
    /// Bytes of it.
    pub const SIZE: usize = 24;

    /// As it travels.
    pub fn encode(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..8].copy_from_slice(&self.length.to_be_bytes());
        bytes[8..].copy_from_slice(&self.checksum.to_be_bytes());
        bytes
    }

    /// What came.
    pub fn decode(bytes: &[u8; Self::SIZE]) -> Self {
        let (mut length, mut checksum) = ([0; 8], [0; 16]);
        length.copy_from_slice(&bytes[..8]);
        checksum.copy_from_slice(&bytes[8..]);
        Self {
            length: u64::from_be_bytes(length),
            checksum: u128::from_be_bytes(checksum),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_arrive_as_they_were_sent() {
        for notice in [
            Notice::Data(0),
            Notice::Data(4096),
            Notice::End,
            Notice::Failed,
        ] {
            assert_eq!(Notice::decode(notice.encode(), 4096), Some(notice));
        }
    }

    #[test]
    fn a_length_beyond_the_block_is_no_notice() {
        assert_eq!(Notice::decode(4097, 4096), None);
        let longest = MAX_BLOCK as u32;
        assert_eq!(Notice::decode(longest + 1, longest as usize), None);
    }

    #[test]
    fn trailers_arrive_as_they_were_sent() {
        let trailer = Trailer {
            length: 3,
            checksum: u128::MAX - 5,
        };
        assert_eq!(Trailer::decode(&trailer.encode()), trailer);
    }
}
