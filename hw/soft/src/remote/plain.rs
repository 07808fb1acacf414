//! Plain SENDs of up to 32 bytes, without immediate data and not solicited. They travel without their entry, of which only
//! the first word is in front of the data, so that they fit in one line. The packet's header says how long the data is. A
//! peer that writes another length than its packet has changes only what its own message says.

use super::super::copy::SHORT;
use super::entry::INLINE;
use crate::fabric::{IN_LINE, Packet, Size};
use bellwire_core::be::Be32;
use bellwire_core::wqe::{INLINE_FLAG, SEGMENT};

/// Offset of the data in the packet's payload, of a message without its entry.
pub(super) const DATA: usize = size_of::<Be32>();

/// Most bytes of data that travel without their entry: what [`copy_short`](super::super::copy::copy_short) copies.
pub(super) const MOST_WITHOUT_ENTRY: usize = SHORT;
const _: () = assert!(DATA + MOST_WITHOUT_ENTRY <= IN_LINE);

/// Bytes of the longest entry that is left out.
pub(super) const ENTRY: usize = (INLINE + MOST_WITHOUT_ENTRY).next_multiple_of(SEGMENT);

/// The length of the data of a packet of this size, if it has no entry.
#[inline(always)]
pub(super) fn without_entry(size: Size) -> Option<usize> {
    let length = size.short();
    (length.wrapping_sub(1) < MOST_WITHOUT_ENTRY).then_some(length)
}

/// The packet with its entry, which is written to `entry`, if it has none. `None`: not all of its data is there.
pub(super) fn with_entry<'p>(packet: Packet<'p>, entry: &'p mut [u8; ENTRY]) -> Option<Packet<'p>> {
    let length = usize::from(packet.header.short);
    if !(1..=MOST_WITHOUT_ENTRY).contains(&length) {
        return Some(packet);
    }
    let (first, data) = packet.bytes.split_first_chunk::<DATA>()?;
    let data = data.get(..length)?;
    let bytes = (INLINE + length).next_multiple_of(SEGMENT);
    let qpn_ds = packet.header.name.src() << 8 | (bytes / SEGMENT) as u32;
    entry[..DATA].copy_from_slice(first);
    entry[DATA..2 * DATA].copy_from_slice(&qpn_ds.to_be_bytes());
    entry[2 * DATA..SEGMENT].fill(0);
    entry[SEGMENT..INLINE].copy_from_slice(&(length as u32 | INLINE_FLAG).to_be_bytes());
    entry[INLINE..INLINE + length].copy_from_slice(data);
    entry[INLINE + length..bytes].fill(0);
    Some(Packet {
        bytes: &entry[..bytes],
        ..packet
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::fabric::{Header, Kind, MOST_SHORT, Name, Number};

    const FIRST: [u8; DATA] = [0, 0x12, 0x34, 0x0a];

    /// A packet of this data, whose header says that it is so long.
    fn packet(bytes: &[u8], short: u8) -> Packet<'_> {
        let name = Name::request(0x12_3456, 0x65_4321);
        let header = Header {
            short,
            ..Header::of(name, Number::new(1, 0))
        };
        Packet {
            kind: Kind::Request,
            header,
            bytes,
        }
    }

    #[test]
    fn the_entry_is_put_together_again() {
        for length in 1..=MOST_WITHOUT_ENTRY {
            let data: Vec<u8> = (0..length).map(|at| 100 + at as u8).collect();
            // Senders may write more than the data.
            let bytes = [&FIRST[..], &data, &[0xff; 2]].concat();
            let mut entry = [0xff; ENTRY];
            let whole = with_entry(packet(&bytes, length as u8), &mut entry).expect("all is there");
            let (ctrl, inline) = whole.bytes.split_at(SEGMENT);
            let segments = (INLINE + length).div_ceil(SEGMENT);
            assert_eq!(whole.bytes.len(), segments * SEGMENT);
            assert_eq!(ctrl[..DATA], FIRST);
            assert_eq!(ctrl[DATA..8], [0x65, 0x43, 0x21, segments as u8]);
            assert_eq!(ctrl[8..], [0; 8], "no flags, no immediate data");
            assert_eq!(inline[..4], (length as u32 | INLINE_FLAG).to_be_bytes());
            assert_eq!(inline[4..4 + length], data);
            assert!(inline[4 + length..].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn what_is_not_all_there_is_no_message() {
        for length in 1..=MOST_WITHOUT_ENTRY {
            for there in 0..DATA + length {
                let bytes = vec![0x0a; there];
                let packet = packet(&bytes, length as u8);
                assert!(
                    with_entry(packet, &mut [0; ENTRY]).is_none(),
                    "{there} of {length}"
                );
            }
        }
    }

    #[test]
    fn other_packets_stay_as_they_are() {
        let bytes = [7; 3];
        for short in [0, MOST_WITHOUT_ENTRY + 1, MOST_SHORT] {
            let mut entry = [0; ENTRY];
            let same = with_entry(packet(&bytes, short as u8), &mut entry);
            assert_eq!(same.expect("not looked at").bytes, bytes);
        }
    }
}
