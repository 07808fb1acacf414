//! Private data of a link whose peer connects by the communication manager.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| bellwire::fuzzing::private_data(bytes));
