//! Messages of a link's peer, and endpoints that programs exchange over TCP.
#![no_main]

use bellwire_core::link::{ConnInfo, Message};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = Message::from_bytes(bytes) {
        assert_eq!(&*message.to_bytes(), bytes);
    }
    if bytes.len() >= Message::HEADER_BYTES
        && let Ok(length) = Message::length(bytes)
    {
        assert!(length <= Message::MAX_BYTES);
    }
    if let Ok(info) = ConnInfo::from_bytes(bytes) {
        assert_eq!(info.to_bytes().as_slice(), bytes);
    }
});
