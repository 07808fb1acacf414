//! A queue pair that was connected to another one takes requests of its new peer only, though both are of one process, in
//! lives of the same number, and have sent as many.

use bellwire::be::Be32;
use bellwire::soft::Mode;
use bellwire::wqe::*;
use bellwire::wr::{Remote, WcStatus};
use bellwire::{ConnectAttr, Device};
use bellwire_tests::fixture::*;
use std::time::Duration;

/// Sends a message.
type Go = fn(&mut End, u64, Remote);

/// Each is sent and received by other code.
const MESSAGES: [(&str, Go); 8] = [
    ("plain", |end, wr_id, _| {
        end.go(wr_id, Send {}, Inline(&[wr_id as u8; 8]));
    }),
    ("plain, by the code of longer ones", |end, wr_id, _| {
        end.go(wr_id, Send {}, Inline(&[wr_id as u8; 24]));
    }),
    ("plain, with its entry", |end, wr_id, _| {
        end.go(wr_id, Send {}, Inline(&[wr_id as u8; 100]));
    }),
    ("with immediate data", |end, wr_id, _| {
        let imm = Be32::new(7);
        end.go(wr_id, SendWithImm { imm }, Inline(&[wr_id as u8; 8]));
    }),
    ("empty", |end, wr_id, _| end.go(wr_id, Send {}, NoPayload)),
    ("in the packet", |end, wr_id, _| {
        end.go(wr_id, Send {}, end.region.sge(0, 1000));
    }),
    ("by its place", |end, wr_id, _| {
        end.go(wr_id, Send {}, end.region.sge(0, 4096));
    }),
    ("a WRITE with immediate data", |end, wr_id, remote| {
        let imm = Be32::new(7);
        end.go(wr_id, RdmaWriteWithImm { remote, imm }, Inline(&[1; 8]));
    }),
];

/// Receives one message.
fn received(b: &mut End, wr_id: u64) {
    assert_eq!(b.outcome(), (wr_id, WcStatus::Success));
}

#[test]
fn a_former_peer_is_not_taken_for_the_present_one() {
    // Long enough for a request to be sent more than once, and short enough for the test.
    let attr = ConnectAttr {
        timeout: 14,
        retry_cnt: 3,
        ..ConnectAttr::default()
    };
    for (what, go) in MESSAGES {
        let fabric = fabric_name();
        let (here, there) = (node(&fabric, Mode::Inline), node(&fabric, Mode::Inline));
        let end = |device: &Device| End::new(&device.alloc_pd(), Mode::Inline, &init());
        let (mut former, mut present, mut b) = (end(&here), end(&here), end(&there));
        let (remote, place) = (b.region.remote(0), b.region.sge(0, 4096));

        connect_with(&mut former.qp, &mut b.qp, &attr);
        b.receive(70, &[place]);
        go(&mut former, 1, remote);
        received(&mut b, 70);
        assert_eq!(former.outcome(), (1, WcStatus::Success), "{what}");

        assert!(b.reset().is_empty(), "{what}");
        connect_with(&mut present.qp, &mut b.qp, &attr);
        (80..83).for_each(|wr_id| b.receive(wr_id, &[place]));
        go(&mut present, 2, remote);
        received(&mut b, 80);
        assert_eq!(present.outcome(), (2, WcStatus::Success), "{what}");

        // As many as the other has sent, in its first life.
        go(&mut former, 3, remote);
        nothing(&mut b.cq, Quiet(Duration::from_millis(5)));
        go(&mut present, 4, remote);
        received(&mut b, 81);
        assert_eq!(present.outcome(), (4, WcStatus::Success), "{what}");
        until("nobody answers", || {
            b.nothing();
            former.cq.poll_one().is_some_and(|done| {
                assert_eq!((done.wr_id, done.status()), (3, WcStatus::RetryExcErr));
                true
            })
        });
    }
}
