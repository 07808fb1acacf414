//! Send entries of a peer, as packets of a fabric carry them.
#![no_main]

use bellwire_core::wqe::{Data, SendRing, SendWqe};
use bellwire_core::wr::QpType;
use libfuzzer_sys::fuzz_target;
use std::ptr::NonNull;

/// Blocks of 64 bytes: the longest entry.
const BLOCKS: usize = 16;

#[repr(C, align(64))]
struct Ring([[u8; 64]; BLOCKS]);

fuzz_target!(|input: (u8, &[u8])| {
    let (counter, bytes) = input;
    let mut ring = Ring([[0; 64]; BLOCKS]);
    for (to, from) in ring.0.as_flattened_mut().iter_mut().zip(bytes) {
        *to = *from;
    }
    let start = NonNull::from(&mut ring).cast();
    // SAFETY: the ring outlives the view, and nothing writes it meanwhile.
    let Some(blocks) = (unsafe { SendRing::new(start, BLOCKS as u32) }) else {
        return;
    };
    // SAFETY: as above; any bytes are an entry.
    let wqe = unsafe { SendWqe::read(blocks, u32::from(counter)) };
    for transport in [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend] {
        let Ok(request) = wqe.request(transport) else {
            continue;
        };
        let operands = (request.destination(), request.remote(), request.atomic());
        std::hint::black_box((
            operands,
            request.imm(),
            request.invalidates(),
            request.registration().is_some(),
        ));
        for data in request.data() {
            if let Data::Inline(first, rest) = data {
                let sum = first
                    .iter()
                    .chain(rest)
                    .fold(0u8, |sum, byte| sum.wrapping_add(*byte));
                std::hint::black_box(sum);
            }
        }
    }
});
