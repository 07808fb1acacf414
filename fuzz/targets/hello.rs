//! Handshakes of a fabric.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| bellwire_soft::fuzzing::hello(bytes));
