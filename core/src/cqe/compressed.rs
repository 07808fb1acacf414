//! Compressed blocks: several similar CQEs in few bytes.
//!
//! ```text
//!   slot   ci        ci+1        ci+2 ‥ ci+7   ci+8        ci+9 ‥ ci+15   ci+16
//!        │ title   │ minis 0‥7 │ not written │ minis 8‥15│ not written  │ minis 16‥23 ‥
//!
//!   title    a Cqe64 of format 3, whose byte_cnt is the count N of entries in the block
//!   mini     │ 4 bytes, by format  │ byte_cnt 4 │                            (mlx5_mini_cqe8)
//!            checksum 2, stride index 2   or   hash 4
//!            or, where the title is a requester's: wqe_counter 2, opcode of the send entry 1, · 1
//! ```
//!
//! The block takes N slots, as many as the CQEs that it stands for. All of it is written before the
//! owner bit of the title changes. An array of mini CQEs extends to the last byte of its slot, and
//! the slots in between keep the contents of an earlier lap. So their owner bits are not those of
//! this lap, and the whole block has to be overwritten before its slots are returned.
//!
//! Sources: Linux `drivers/net/ethernet/mellanox/mlx5/core/en_rx.c` (`mlx5e_decompress_cqe`) and
//! `include/linux/mlx5/device.h`; DPDK `mlx5_rx_poll_len`; UCX `uct_ib_mlx5_iface_cqe_unzip` for
//! requesters; `enum mlx5dv_cqe_comp_res_format`. This is the layout of completion queues created
//! by `mlx5dv_create_cq`. The "enhanced" layout, which has to be requested by a DevX command, is
//! not supported.

use super::entry::head;
use super::{Cqe64, CqeFormat, CqeOpcode, owner_bit};
use crate::be::{Be16, Be32};
use core::fmt;
use core::ptr::NonNull;

/// Mini CQEs in an array.
const ARRAY: u32 = 8;

/// The field of mini CQEs of received messages besides the length (`mlx5dv_cqe_comp_res_format`). The
/// program chooses it when it creates the completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MiniFormat {
    /// The receive side scaling (RSS) hash.
    Hash,
    /// The packet's checksum.
    Checksum,
    /// The packet's checksum, and the index of the stride in which it starts.
    ChecksumStrideIndex,
}

/// An invalid title CQE: its count is less than 2 (a block of one would have no room for its mini
/// CQE) or more than the ring has, or its opcode is not that of a successful request. The device or
/// the memory is faulty; nothing behind the title in this ring can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedBlock {
    /// The number of CQEs that the title claims.
    pub count: u32,
    /// The title's opcode.
    pub opcode: CqeOpcode,
}

impl fmt::Display for MalformedBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "completion entry heads a compressed block of {} entries of {:?}, which cannot be: \
             the queue has to be rebuilt",
            self.count, self.opcode
        )
    }
}

impl core::error::Error for MalformedBlock {}

/// Expands the compressed block at `ci` in place: writes the CQEs that it stands for into the slots
/// that it takes, to be polled one by one as if the device had not compressed them. Returns their
/// number. The timestamp and all other fields that mini CQEs lack are those of the title.
///
/// `slot` returns the slot of a free-running index, `cqe_cnt` is the size of the ring (a power of
/// two).
///
/// # Errors
/// [`MalformedBlock`]; nothing was written then.
///
/// # Safety
/// - [`Cqe64::read_owned`] has returned the CQE at `ci`, and its format is `Compressed`.
/// - `slot` returns slots of that ring, valid for reads and writes, for every index.
/// - No reference into the ring is in use.
#[cold]
pub unsafe fn expand_in_place(
    slot: impl Fn(u32) -> NonNull<Cqe64>,
    ci: u32,
    cqe_cnt: u32,
    format: MiniFormat,
) -> Result<u32, MalformedBlock> {
    // SAFETY: the caller guarantees that the CQE at `ci` was handed over.
    let title = unsafe { slot(ci).read() };
    let count = check_title(&title, cqe_cnt)?;
    for first in (0..count).step_by(ARRAY as usize) {
        let at = ci.wrapping_add(first.max(1));
        // Copied, because the array's slot is overwritten below.
        // SAFETY: within the ring. The device wrote the arrays before the title; every bit pattern
        // of the remaining bytes is valid.
        let array = unsafe { slot(at).read() }.to_bytes();
        let (minis, _) = array.as_chunks::<8>();
        for (number, mini) in (first..count).zip(minis) {
            let index = ci.wrapping_add(number);
            let entry = expand(
                &title,
                number as u16,
                *mini,
                owner_bit(index, cqe_cnt),
                format,
            );
            // SAFETY: within the ring. By the title's owner bit the block belongs to the caller;
            // arrays not read yet are in later slots.
            unsafe { slot(index).write(entry) };
        }
    }
    Ok(count)
}

fn check_title(title: &Cqe64, cqe_cnt: u32) -> Result<u32, MalformedBlock> {
    let (count, opcode) = (title.byte_cnt(), title.opcode());
    let executed = opcode == CqeOpcode::Req || opcode.is_received();
    if executed && title.format() == CqeFormat::Compressed && (2..=cqe_cnt).contains(&count) {
        Ok(count)
    } else {
        Err(MalformedBlock { count, opcode })
    }
}

/// The CQE for `mini`, at position `number` of the block.
fn expand(title: &Cqe64, number: u16, mini: [u8; 8], owner: u8, format: MiniFormat) -> Cqe64 {
    let [a, b, c, d, len @ ..] = mini;
    let mut entry = *title;
    entry.byte_cnt = Be32::from_bytes(len);
    // Mini CQEs have no format for inline payload and no solicited bit.
    entry.op_own = title.op_own & 0xf0 | owner;
    if title.opcode() == CqeOpcode::Req {
        entry.wqe_counter = Be16::from_bytes([a, b]);
        entry.sop_drop_qpn = Be32::new(u32::from(c) << 24 | title.qpn());
        return entry;
    }
    // Receives complete in order.
    entry.wqe_counter = Be16::new(title.wqe_counter().wrapping_add(number));
    if format == MiniFormat::Hash {
        entry.head[head::RSS_HASH..][..4].copy_from_slice(&[a, b, c, d]);
        return entry;
    }
    entry.head[head::CHECK_SUM..][..2].copy_from_slice(&[a, b]);
    if number > 0 {
        // The title's hash is that of the first packet.
        entry.head[head::RSS_HASH..=head::RSS_HASH_TYPE].fill(0);
    }
    if format == MiniFormat::ChecksumStrideIndex {
        entry.wqe_counter = Be16::from_bytes([c, d]);
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::super::CompletedWqe;
    use super::*;
    use core::cell::UnsafeCell;
    use std::{vec, vec::Vec};

    const CQE_CNT: u32 = 32;

    struct Ring(Vec<UnsafeCell<Cqe64>>);

    impl Ring {
        /// A ring full of CQEs that, wherever the block does not write, would count as written on
        /// every odd lap.
        fn new() -> Self {
            let stale = Cqe64::from_bytes([0x21; 64]);
            Self(
                vec![stale; CQE_CNT as usize]
                    .into_iter()
                    .map(UnsafeCell::new)
                    .collect(),
            )
        }

        fn slot(&self, index: u32) -> NonNull<Cqe64> {
            NonNull::new(self.0[(index % CQE_CNT) as usize].get()).expect("not null")
        }

        fn put(&self, index: u32, bytes: [u8; 64]) {
            // SAFETY: a single thread, and no references.
            unsafe { self.slot(index).write(Cqe64::from_bytes(bytes)) };
        }

        fn bytes(&self) -> Vec<[u8; 64]> {
            // SAFETY: a single thread, and no references.
            (0..CQE_CNT)
                .map(|i| unsafe { self.slot(i).read() }.to_bytes())
                .collect()
        }

        /// Writes a block of `count` CQEs, whose mini CQE `i` is `mini(i)`, as the device does.
        fn compress(&self, title: Cqe64, ci: u32, count: u32, mini: impl Fn(u32) -> [u8; 8]) {
            let mut title = title.to_bytes();
            title[44..48].copy_from_slice(&count.to_be_bytes());
            title[63] |= 3 << 2 | 1 << 1 | owner_bit(ci, CQE_CNT);
            self.put(ci, title);
            for first in (0..count).step_by(8) {
                let mut array = [0xee; 64];
                for number in first..count.min(first + 8) {
                    let at = (number - first) as usize * 8;
                    array[at..at + 8].copy_from_slice(&mini(number));
                }
                let distance = if first == 0 { 1 } else { first };
                self.put(ci.wrapping_add(distance), array);
            }
        }

        fn expand(&self, ci: u32, format: MiniFormat) -> Result<u32, MalformedBlock> {
            // SAFETY: the ring belongs to this thread, and no reference is in use.
            unsafe { expand_in_place(|index| self.slot(index), ci, CQE_CNT, format) }
        }

        /// Polls all CQEs that belong to the consumer, from `ci` on.
        fn poll(&self, ci: u32) -> Vec<Cqe64> {
            // SAFETY: a single thread, which does not write while the references live.
            let read = |i| unsafe {
                Cqe64::read_owned(self.slot(ci.wrapping_add(i)), ci.wrapping_add(i), CQE_CNT)
            };
            (0..CQE_CNT).map_while(read).copied().collect()
        }
    }

    fn received() -> Cqe64 {
        let wqe = CompletedWqe {
            qpn: 0x1234,
            user_index: 0x77,
            wqe_counter: 0xfffe,
        };
        let title = Cqe64::responder(CqeOpcode::RespSend, wqe, 0).with_timestamp(99);
        let mut bytes = title.to_bytes();
        bytes[12..17].copy_from_slice(&[1, 2, 3, 4, 5]);
        Cqe64::from_bytes(bytes)
    }

    fn mini(number: u32) -> [u8; 8] {
        let mut mini = [0xc0, number as u8, 0xd0, number as u8, 0, 0, 0, 0];
        mini[4..].copy_from_slice(&(1000 + number).to_be_bytes());
        mini
    }

    #[test]
    fn a_block_of_any_length_at_any_place_becomes_plain_entries() {
        for count in (2..=CQE_CNT).step_by(if cfg!(miri) { 9 } else { 1 }) {
            for ci in [0, 1, 30, 31, 32, 63, u32::MAX - 3] {
                let ring = Ring::new();
                ring.compress(received(), ci, count, mini);
                assert_eq!(ring.expand(ci, MiniFormat::Checksum), Ok(count));
                let entries = ring.poll(ci);
                assert!(
                    entries.len() as u32 >= count,
                    "{count} at {ci}: {}",
                    entries.len()
                );
                for (number, cqe) in (0..count).zip(&entries) {
                    assert_eq!(cqe.byte_cnt(), 1000 + number, "{count} at {ci}");
                    assert_eq!(cqe.wqe_counter(), 0xfffe_u16.wrapping_add(number as u16));
                    assert_eq!(cqe.check_sum(), 0xc000 + number as u16);
                    assert_eq!(cqe.rss_hash(), if number == 0 { 0x0102_0304 } else { 0 });
                    assert_eq!(cqe.rss_hash_type(), if number == 0 { 5 } else { 0 });
                    assert_eq!((cqe.qpn(), cqe.user_index()), (0x1234, 0x77));
                    assert_eq!((cqe.opcode(), cqe.timestamp()), (CqeOpcode::RespSend, 99));
                    assert_eq!((cqe.format(), cqe.solicited()), (CqeFormat::None, false));
                }
                for number in 0..count {
                    let again = ci.wrapping_add(CQE_CNT + number);
                    let shown = ring.poll(again).first().copied();
                    assert_eq!(shown, None, "{number} of {count} at {ci}, a lap later");
                }
            }
        }
    }

    #[test]
    fn hashes_and_strides_come_from_the_mini_entry() {
        let ring = Ring::new();
        ring.compress(received(), 40, 11, mini);
        assert_eq!(ring.expand(40, MiniFormat::Hash), Ok(11));
        assert_eq!(ring.poll(40)[9].rss_hash(), 0xc009_d009);
        assert_eq!(ring.poll(40)[9].rss_hash_type(), 5);

        ring.compress(received(), 40, 11, mini);
        assert_eq!(ring.expand(40, MiniFormat::ChecksumStrideIndex), Ok(11));
        assert_eq!(ring.poll(40)[10].wqe_counter(), 0xd00a);
        assert_eq!(ring.poll(40)[10].check_sum(), 0xc00a);
    }

    #[test]
    fn requesters_have_counter_and_opcode_of_their_own() {
        let wqe = CompletedWqe {
            qpn: 0x1234,
            user_index: 0x77,
            wqe_counter: 5,
        };
        let opcodes = [0x0a, 0x10, 0x08];
        let mini = |i: u32| [0x80, i as u8, opcodes[i as usize % 3], 0, 0, 0, 2, i as u8];
        let ring = Ring::new();
        ring.compress(Cqe64::requester(wqe, 0x0b, 0), 33, 20, mini);
        assert_eq!(ring.expand(33, MiniFormat::Hash), Ok(20));
        for (i, cqe) in ring.poll(33)[..20].iter().enumerate() {
            assert_eq!(cqe.wqe_counter(), 0x8000 + i as u16);
            assert_eq!((cqe.send_opcode(), cqe.qpn()), (opcodes[i % 3], 0x1234));
            assert_eq!(cqe.byte_cnt(), 0x200 + i as u32);
        }
    }

    #[test]
    fn titles_that_cannot_be_leave_the_ring_alone() {
        let error = Cqe64::error(
            CqeOpcode::ReqErr,
            CompletedWqe::default(),
            0,
            super::super::Syndrome::WR_FLUSH,
            0,
        );
        for (title, count) in [
            (received(), 0),
            (received(), 1),
            (received(), CQE_CNT + 1),
            (received(), u32::MAX),
            (error, 8),
        ] {
            let ring = Ring::new();
            ring.compress(title, 3, count.min(8), mini);
            let mut bytes = ring.bytes()[3];
            bytes[44..48].copy_from_slice(&count.to_be_bytes());
            ring.put(3, bytes);
            let before = ring.bytes();
            let opcode = title.opcode();
            assert_eq!(
                ring.expand(3, MiniFormat::Hash),
                Err(MalformedBlock { count, opcode })
            );
            assert!(ring.bytes() == before);
        }
    }
}
