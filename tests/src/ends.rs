//! Connected ends on the guest's devices, and the account of what became of their requests.

use crate::events::event;
use crate::fixture::*;
use crate::readiness::readable;
use bellwire::event::{Element, EventType};
use bellwire::state::QpState;
use bellwire::wqe::*;
use bellwire::wr::{SendFlags, WcStatus};
use bellwire::{ConnectAttr, Device, Error, Pd, Qp};
use std::io::ErrorKind;
use std::time::Duration;

/// Longer than rxe takes to report.
pub const QUIET: Quiet = Quiet(Duration::from_millis(20));

/// Receives have identifiers from here on, sends below.
pub const RECEIVES: u64 = 100;

/// The device on the network interface that leads nowhere.
pub const ALONE: &str = "rxe0";

/// The devices on the ends of the cable.
pub const CABLE: [&str; 2] = ["rxe1", "rxe2"];

/// Opens one of the guest's devices.
pub fn open(name: &str) -> Device {
    Device::open(name).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Gives up on a silent peer after a second, which is far more than a good one takes, and on one
/// without a receive at once. With 7 retries, the default, rxe would not of itself.
pub fn impatient() -> ConnectAttr {
    ConnectAttr {
        timeout: 15,
        rnr_retry: 2,
        min_rnr_timer: 1,
        ..ConnectAttr::default()
    }
}

/// Gives a path that was down its time.
pub fn patient() -> ConnectAttr {
    ConnectAttr {
        timeout: 18,
        ..ConnectAttr::default()
    }
}

fn ends_on(a: &Pd, b: &Pd) -> (End, End) {
    let end = |pd| End::new(pd, QUIET, &init());
    (end(a), end(b))
}

/// Two ends in RESET on one device.
pub fn near() -> (End, End) {
    let pd = open(ALONE).alloc_pd();
    ends_on(&pd, &pd)
}

/// Two ends in RESET on the ends of the cable.
pub fn far() -> (End, End) {
    let [a, b] = CABLE.map(|name| open(name).alloc_pd());
    ends_on(&a, &b)
}

/// Connects two ends in RESET, which may be on the ends of the cable: a port is active before the path behind it is
/// usable: while the peer's address cannot be resolved, it is tried again.
pub fn connect_patiently(a: &mut Qp, b: &mut Qp, attr: &ConnectAttr) {
    for end in [&mut *a, &mut *b] {
        end.init(attr).expect("INIT");
    }
    let (here, there) = (a.endpoint_for(attr), b.endpoint_for(attr));
    for (end, peer) in [(a, there), (b, here)] {
        until("the peer's address", || match end.connect(&peer, attr) {
            Err(Error::Io { error, .. }) if error.kind() == ErrorKind::TimedOut => false,
            connected => connected.map(|()| true).expect("RTS"),
        });
    }
}

/// Waits for this event of a context, which rxe may raise more than once, and asserts that there is no
/// other.
pub fn gets_event(context: &Device, event_type: EventType, element: Element) {
    let expected = (event_type, element);
    assert_eq!(event(context), expected);
    while readable(context.async_fd(), QUIET.0) {
        assert_eq!(event(context), expected);
    }
}

/// Asserts what becomes of everything that an end has posted: in this order in each queue, each
/// once, and nothing else.
pub fn account(end: &mut End, sends: &[(u64, WcStatus)], receives: &[(u64, WcStatus)]) {
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    while sent.len() + received.len() < sends.len() + receives.len() {
        let outcome = end.outcome();
        if outcome.0 < RECEIVES {
            &mut sent
        } else {
            &mut received
        }
        .push(outcome);
    }
    assert_eq!((&sent[..], &received[..]), (sends, receives));
    end.nothing();
    // Nor was anything reported that nobody had posted.
    assert_eq!(end.cq.stale(), 0);
}

/// Asserts that nothing is left to be reported by a reset, and that both ends work again after it.
pub fn begins_anew(a: &mut End, b: &mut End) {
    for end in [&mut *a, &mut *b] {
        assert_eq!(end.reset(), [0; 0]);
        assert_eq!(end.qp.state(), QpState::Reset);
    }
    connect_patiently(&mut a.qp, &mut b.qp, &patient());
    works(a, b);
}

/// Sends a message and writes another, and sees both there.
pub fn works(a: &mut End, b: &mut End) {
    let remote = b.region.remote(64);
    b.receive(RECEIVES, &[b.region.sge(0, 32)]);
    a.region.write(0, b"as good as new");
    let payload = a.region.sge(0, 14);
    a.post(1, RdmaWrite { remote }, payload, SendFlags::empty())
        .expect("room");
    a.go(2, Send {}, payload);
    account(a, &[(2, WcStatus::Success)], &[]);
    account(b, &[], &[(RECEIVES, WcStatus::Success)]);
    for at in [0, 64] {
        let mut bytes = [0; 14];
        b.region.read(at, &mut bytes);
        assert_eq!(&bytes, b"as good as new");
        b.region.write(at, &[0; 14]);
    }
}
