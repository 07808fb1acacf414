//! Requests that are cancelled while a device executes them.

use super::device;
use crate::cancel::storm;

#[test]
#[ignore = "on a device: cargo xtask test vm uverbs"]
fn ten_thousand_requests_are_cancelled_in_flight() {
    // In large rounds: in the guest a recovery takes a second.
    let taken_back = storm(&device().alloc_pd(), 1024, 10_000);
    assert!(taken_back > 5_000, "{taken_back}");
}
