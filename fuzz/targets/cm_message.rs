//! Datagrams to the software HCA's communication manager.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| bellwire::fuzzing::cm_message(bytes));
