//! What clients say, and are answered with.

/// Bytes of a message.
pub const BYTES: usize = 16;

/// In place of a count: the first message of a link, which says whose it is.
pub const HELLO: u64 = u64::MAX;

/// The name of a link, and which of its messages it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    pub name: u64,
    pub count: u64,
}

impl Message {
    pub fn to_bytes(self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&self.name.to_le_bytes());
        bytes[8..].copy_from_slice(&self.count.to_le_bytes());
        bytes
    }

    pub fn of(bytes: &[u8]) -> Self {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"));
        Self {
            name: word(0),
            count: word(8),
        }
    }
}

/// What all links of a client's process have in their names, and its own.
pub fn name(process: u64, link: u64) -> u64 {
    process << 32 | link
}

/// The process in a link's name.
pub fn process_of(name: u64) -> u64 {
    name >> 32
}
