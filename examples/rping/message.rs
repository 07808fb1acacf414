//! What the two say to each other, as rping has it.

use bellwire::wr::Remote;

/// Most bytes of a ping.
pub const MAX_SIZE: u32 = 64 << 10;

/// Least: the text's beginning with the largest number.
pub const MIN_SIZE: u32 = "rdma-ping-2147483647: ".len() as u32 + 1;

/// Where a buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    pub remote: Remote,
    pub size: u32,
}

impl Info {
    pub const BYTES: usize = 16;

    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.remote.addr.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.remote.rkey.to_be_bytes());
        bytes[12..].copy_from_slice(&self.size.to_be_bytes());
        bytes
    }

    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, size @ ..] = *bytes;
        Self {
            remote: Remote {
                addr: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
                rkey: u32::from_be_bytes([i, j, k, l]),
            },
            size: u32::from_be_bytes(size),
        }
    }
}

/// The text of a ping: its number, letters from one that moves on with it, and a zero.
pub fn text(ping: u64, size: u32) -> Vec<u8> {
    const LETTERS: u64 = (b'z' - b'A' + 1) as u64;
    let mut text = format!("rdma-ping-{ping}: ").into_bytes();
    let first = text.len();
    let letters = (0..).map(|at| b'A' + ((ping + at) % LETTERS) as u8);
    text.extend(letters.take(size as usize - first));
    text[size as usize - 1] = 0;
    text
}

/// The text without its zero, of what came: it may have none.
pub fn until_zero(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|&byte| byte == 0);
    &bytes[..end.unwrap_or(bytes.len())]
}

/// The same, to be shown.
pub fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(until_zero(bytes)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ping_is_rpings() {
        assert_eq!(text(0, 24), b"rdma-ping-0: ABCDEFGHIJ\0");
        assert_eq!(&text(1, 24)[..], b"rdma-ping-1: BCDEFGHIJK\0");
        // The letters begin anew behind the last.
        let long = text(57, 100);
        assert_eq!(&long[..17], b"rdma-ping-57: zAB");
        assert_eq!(shown(&long), String::from_utf8_lossy(&long[..99]));
    }

    #[test]
    fn what_is_said_is_understood() {
        let info = Info {
            remote: Remote {
                addr: 0x0102_0304_0506_0708,
                rkey: 0x1112_1314,
            },
            size: 64,
        };
        let bytes = info.to_bytes();
        assert_eq!(
            bytes[..12],
            [1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14]
        );
        assert_eq!(Info::from_bytes(&bytes), info);
    }
}
