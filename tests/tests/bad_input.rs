//! What the software HCA does not have. What every device refuses is in the conformance suite.

use bellwire::soft::Mode;
use bellwire::state::QpState;
use bellwire::wqe::*;
use bellwire::wr::WcStatus;
use bellwire_tests::fixture::*;
use bellwire_tests::in_both_modes;

in_both_modes! { an_operation_that_the_device_does_not_have }

fn an_operation_that_the_device_does_not_have(mode: Mode) {
    let (mut a, mut b) = pair(mode);
    b.receive(70, &[]);
    let rkey = b.region.remote(0).rkey;
    a.go(1, SendWithInv { rkey }, NoPayload);
    assert_eq!(a.outcome(), (1, WcStatus::LocQpOpErr));
    assert_eq!(a.qp.state(), QpState::Err);
    b.nothing();
    assert_eq!(b.qp.state(), QpState::Rts);
}
