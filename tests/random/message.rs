//! Messages that say where they belong, and whether they are whole.

/// Bytes in front of the filling.
pub const HEADER: usize = 32;

fn sum(bytes: &[u8]) -> u64 {
    // FNV-1a.
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// A message that says where it belongs.
pub fn message(flow: u64, seq: u64, length: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..length).map(|at| (at as u64 ^ seq) as u8).collect();
    bytes[..8].copy_from_slice(&flow.to_ne_bytes());
    bytes[8..16].copy_from_slice(&seq.to_ne_bytes());
    bytes[16..24].copy_from_slice(&(length as u64).to_ne_bytes());
    let check = sum(&bytes[HEADER..]) ^ sum(&bytes[..24]);
    bytes[24..32].copy_from_slice(&check.to_ne_bytes());
    bytes
}

/// The flow and number of a message that has arrived whole.
pub fn read(bytes: &[u8]) -> (u64, u64) {
    let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight"));
    let (flow, seq) = (word(0), word(8));
    assert_eq!(
        bytes,
        message(flow, seq, bytes.len()),
        "a message is corrupt"
    );
    (flow, seq)
}
