//! Waiting for a receive, inline. The rules of waiting are in the conformance suite.

use bellwire::ConnectAttr;
use bellwire::soft::Mode;
use bellwire::state::rnr_timer;
use bellwire::wqe::*;
use bellwire::wr::WcStatus;
use bellwire_tests::fixture::*;

/// Ringing lets those go on that have waited long enough, the one that rings among them.
#[test]
fn ringing_behind_a_request_whose_time_has_come() {
    let attr = ConnectAttr {
        min_rnr_timer: 1,
        ..ConnectAttr::default()
    };
    let (mut a, mut b) = pair_with(&device(Mode::Inline), Mode::Inline, &attr);
    a.go(1, Send {}, NoPayload);
    b.receive(70, &[]);
    std::thread::sleep(rnr_timer(1).unwrap() * 2);
    a.go(2, Nop {}, NoPayload);
    assert_eq!(b.outcome(), (70, WcStatus::Success));
    assert_eq!(a.outcome(), (1, WcStatus::Success));
    assert_eq!(a.outcome(), (2, WcStatus::Success));
}
