//! Completion entries that a device wrote: every accessor, and the expansion of compressed blocks.
#![no_main]

use bellwire_core::cqe::{Cqe64, CqeFormat, MiniFormat, expand_in_place};
use libfuzzer_sys::fuzz_target;
use std::ptr::NonNull;

/// Entries of the ring.
const RING: u32 = 8;

fuzz_target!(|input: (u8, &[u8])| {
    let (ci, bytes) = input;
    let mut entries = [[0; 64]; RING as usize];
    for (to, from) in entries.as_flattened_mut().iter_mut().zip(bytes) {
        *to = *from;
    }
    let mut ring = entries.map(Cqe64::from_bytes);
    for cqe in &ring {
        let known = (
            cqe.wc_opcode(),
            cqe.byte_len(),
            cqe.status(),
            cqe.wc_flags(),
        );
        let numbers = (
            cqe.qpn(),
            cqe.user_index(),
            cqe.wqe_counter(),
            cqe.syndrome(),
        );
        std::hint::black_box((
            known,
            numbers,
            cqe.imm(),
            cqe.timestamp(),
            cqe.checksum_ok(),
        ));
        assert_eq!(Cqe64::from_bytes(cqe.to_bytes()), *cqe);
        assert!(cqe.inline_data().len() <= 32);
    }
    let ci = u32::from(ci);
    if ring[(ci % RING) as usize].format() != CqeFormat::Compressed {
        return;
    }
    let start = NonNull::from(&mut ring).cast::<Cqe64>();
    // SAFETY: masked, so within the ring.
    let slot = |index: u32| unsafe { start.add((index % RING) as usize) };
    for format in [MiniFormat::Hash, MiniFormat::Checksum] {
        // SAFETY: the entry at `ci` is compressed; all slots are of the ring, and nothing refers to it.
        if let Ok(count) = unsafe { expand_in_place(slot, ci, RING, format) } {
            assert!(count <= RING);
            break;
        }
    }
});
