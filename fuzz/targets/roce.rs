//! Packets of RoCE v2.
#![no_main]

use bellwire_roce::packet::{MAX_HEADER, Packet};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(packet) = Packet::decode(bytes) else {
        return;
    };
    assert!(packet.payload.len() <= bytes.len());
    // The same headers come out of the bytes that they are written to.
    let mut header = [0; MAX_HEADER];
    let length = packet.header.encode(packet.payload.len(), &mut header);
    let padding = packet.payload.len().next_multiple_of(4) - packet.payload.len();
    let again = [&header[..length], packet.payload, &vec![0; padding]].concat();
    assert_eq!(Packet::decode(&again), Ok(packet));
});
