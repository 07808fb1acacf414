//! Packets of a fabric: a ring that a peer writes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| bellwire_soft::fuzzing::wire(bytes));
